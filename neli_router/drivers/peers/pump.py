"""The pump of a link: one machine, its peers, one loop.

    inbox --(Nominate, Prefer, Rebalance, Released, Close)--.
                                                            v
    link --wait, then take, then the clock----------> machine.step --> publish the standing --> effects, in order
     ^                                                                                                |
     '----------------------------------- keep, send -------------------------------------------------'

Two orderings matter, and both are kept here. The clock is read *after* the datagrams are taken: a supporter promises
its leader not to help another until some time after it heard the leader. If this thread read the clock first, and then
stopped before it took the datagram, the promise would begin before the leader had even spoken, and end before the
leader's lease. And effects are carried out in order, so that a vote is on disk before it is sent. If the vote cannot be
kept, nothing behind it is done, and the error ends the member.

*A turn waits for the disk once.* When a group starts, one turn may bring hundreds of votes. If each vote waited for the
disk, answers would be so late that elections fail. So anything said after something that is to be kept is held until
the turn ends. Then the newest memory is kept, which includes all older ones, and everything behind it is sent. The
program learns immediately what it loses, unless it has not learned yet that it has it.

Like a ledger's pump, it has no thread and no clock of its own.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from neli_router.drivers.peers.base import PeerLink
from neli_router.protocols.electors.events import Heard, Keep, PeerEffect, PeerInput, Send
from neli_router.protocols.protocol import TICK, Acquired, Fenced, Machine, News, Revoked

__all__ = ["PeerPump"]

WAIT_MAX = 0.5
"""The longest wait for news, in seconds: the link has silent peers to look after, too."""

PeerMachine = TypeVar("PeerMachine", bound=Machine[PeerInput, PeerEffect])


class PeerPump(Generic[PeerMachine]):
    """Drives `machine`. Only one thread may call `turn`; any thread may call `post`.

    `publish` is called after every step, before the step's effects, and `explain` gets those effects before that.
    `tell` gets every effect that is not for the link, and the link's notices.
    """

    def __init__(
        self,
        link: PeerLink,
        machine: PeerMachine,
        *,
        clock: Callable[[], float],
        publish: Callable[[PeerMachine, float], None],
        tell: Callable[[News], None],
        explain: Callable[[Sequence[PeerEffect]], None],
    ) -> None:
        self._link, self.machine, self._clock = link, machine, clock
        self._publish, self._tell, self._explain = publish, tell, explain
        self._inbox: deque[PeerInput] = deque()
        self._memory: Keep | None = None
        """The memory that must be kept before anything in `_behind` is done."""
        self._behind: list[Send | Acquired] = []

    def post(self, event: PeerInput) -> None:
        """Let the machine take `event` soon. Callable from any thread."""
        self._inbox.append(event)
        self._link.wake()

    def turn(self) -> None:
        """Do one bounded piece of work: the inbox, and everything that has arrived."""
        for _ in range(len(self._inbox)):
            self._step(self._inbox.popleft())
        self._settle()
        if not self._inbox:
            self._link.wait(min(WAIT_MAX, max(0.0, self.machine.deadline - self._clock())))
        is_idle = True
        for event in self._link.take():
            if isinstance(event, Heard):
                self._step(event)
                is_idle = False
            else:
                self._tell(event)
        if is_idle:
            self._step(TICK)
        self._settle()

    def _step(self, event: PeerInput) -> None:
        now = self._clock()  # Read after `event` was taken: see above.
        effects = self.machine.step(event, now)
        if effects:
            self._explain(effects)
        self._publish(self.machine, now)
        for effect in effects:
            match effect:
                case Keep():
                    self._memory = effect
                case Send() | Acquired() if self._memory is not None:
                    self._behind.append(effect)
                case Send(to, body):
                    self._link.send(to, body)
                case Fenced() | Revoked() if not any(isinstance(one, Acquired) for one in self._behind):
                    self._tell(effect)
                case _:
                    self._settle()
                    self._tell(effect)

    def _settle(self) -> None:
        """Keep what is to be kept, and do what waited for that."""
        if self._memory is None:
            return
        self._link.keep(self._memory.memory)
        self._memory, behind, self._behind = None, self._behind, []
        for effect in behind:
            if isinstance(effect, Send):
                self._link.send(effect.to, effect.body)
            else:
                self._tell(effect)
