"""The port between a member and its peers: datagrams between the places of one list, and one memory on disk. Its pump.

    network --sealed datagrams--> link --wait, take, then the clock--> machine.step --> publish the standing --.
    network <-------------------- link <---------------------------- keep, send -------------------------------'

The link guarantees exactly three things:

- *Who.* A body that is taken came from the peer at the place it names, which holds the group's key, has the same list,
  and is in the same group. It was sent while this process lived, and is taken once.
- *Nothing is bigger than it may be.* No datagram, from any sender, costs more than its size.
- *What was kept is kept.* When `keep` returns, a power cut does not lose the memory. `memory` is what the last process
  of this place kept, and at most one process has it.

Datagrams may be lost, arrive late, and arrive in any order: protocols allow for that.

**The pump** keeps two orderings. The clock is read *after* the datagrams are taken: a supporter promises its leader not
to help another until some time after it heard the leader. If this thread read the clock first, and then stopped before
it took the datagram, the promise would begin before the leader had even spoken, and end before the leader's lease. And
effects are carried out in order, so that a vote is on disk before it is sent. If the vote cannot be kept, nothing
behind it is done, and the error ends the member.

*A turn waits for the disk once.* When a group starts, one turn may bring hundreds of votes. If each vote waited for the
disk, answers would be so late that elections fail. So anything said after something that is to be kept is held until
the turn ends. Then the newest memory is kept, which includes all older ones, and everything behind it is sent. The
program learns immediately what it loses, unless it has not learned yet that it has it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from neli_router.drivers.handle import Handle
from neli_router.protocols.electors.events import Heard, Keep, PeerEffect, PeerInput, Send
from neli_router.protocols.protocol import TICK, Acquired, Fenced, Machine, News, Notice, Revoked

__all__ = ["PeerLink", "PeerPump"]

WAIT_MAX = 0.5
"""The longest wait for news, in seconds: the link has silent peers to look after, too."""

PeerMachine = TypeVar("PeerMachine", bound=Machine[PeerInput, PeerEffect])


class PeerLink(Handle, Protocol):
    """One member's link to its peers. `wake` ends a `wait`. Its mappings go on changing: copy what is to be kept."""

    @property
    def memory(self) -> bytes:
        """The bytes that this process or the one before it kept last; empty if there are none."""

    @property
    def doubts(self) -> Sequence[str]:
        """A sentence, for people, for each part of the set-up that wastes something or endangers a promise."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Datagrams since the start: `sent`, `unsent` (no known address), `taken`, and `refused.` with a reason."""

    @property
    def heard_at(self) -> Mapping[int, float]:
        """Place -> when that peer was heard last, on the clock of this host; without peers that were never heard.

        A peer is heard when something from it is taken. For a silent peer an Ask is enough, as far as an Ask can be
        distinguished from a replay.
        """

    @property
    def silent(self) -> frozenset[int]:
        """The places of peers that have given no answer for some seconds, although they were asked for one."""

    @property
    def refusals(self) -> Mapping[int, str]:
        """Place -> why that peer's newest datagram was refused, if none was taken since, or shortly before.

        So forging the address of a peer that is heard cannot make that peer count as refused.
        """

    @property
    def words(self) -> Mapping[int, bytes]:
        """Place -> the last word of that peer about itself; without peers that said nothing. For people: may be old."""

    def say(self, word: bytes) -> None:
        """Send all peers this word about me, within some seconds, in place of the last one. At most BODY_MAX bytes."""

    def wait(self, timeout: float) -> None:
        """Wait until there is something to take, for at most `timeout` seconds, or until `wake`."""

    def take(self) -> list[Heard | Notice]:
        """Everything that arrived since the last call, in order, and notices for people about it. Returns immediately.

        Raises Replaced when a peer says that another process has this member's place.
        """

    def send(self, to: int, body: bytes) -> None:
        """Send to the peer at place `to`. Returns immediately, and never raises for anything a network may do."""

    def keep(self, memory: bytes) -> None:
        """Replace the memory on disk with `memory`. Raises NeliError if that fails: then send nothing."""


class PeerPump(Generic[PeerMachine]):
    """Drives `machine`. Only one thread may call `turn`; any thread may call `post`.

    `publish` is called after every step, before the step's effects, and `explain` gets those effects before that.
    `tell` receives every effect that is not for the link, and the link's notices.
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
