"""The common part of all electors' machines: they grant the program its partitions, and let it finish.

    Heard, Nominate ... --> elector --tenures--> belief --Acquired, Revoked, Fenced--> program
                              ^                                   |
                              '---- it may cede these <-- Released, or drain_timeout

An elector says for which partitions this member *may* act, and until when: its tenures. The program's belief follows in
the same step, losses before gains (`belief.py`). A close, an operator or a preferred peer can only request that a
leader gives a partition away. The program is asked first, and the elector cedes the partitions that the program has
released. So the next leader begins when the program has finished, and need not wait for a lease.

A closing voter continues to vote until its program has released everything. Then it says farewell and stops.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from math import inf
from random import Random

from neli_router.errors import NeliError
from neli_router.protocols.belief import BaseMachine
from neli_router.protocols.electors.events import Heard, Led, Nominate, PeerEffect, PeerInput, Prefer, Rebalance
from neli_router.protocols.electors.settings import PeerSettings
from neli_router.protocols.protocol import Close, Released, Stopped

__all__ = ["PeerMachine"]


class PeerMachine(BaseMachine):
    """One member's machine. Not thread-safe."""

    shed: frozenset[int] = frozenset()
    """The partitions that this member should lead only while no other can."""
    drained = False
    """Whether it has shed every partition that it could lead."""

    _settings: PeerSettings
    _why: str
    """Why tenures ended last, worded for the program."""

    def __init__(self, settings: PeerSettings, causes: Iterable[tuple[str, str]], *, rng: Random) -> None:
        super().__init__(settings.drain_timeout, rng)
        self.transitions = Counter(dict.fromkeys(causes, 0))
        """(role, cause) -> how often this member entered that role, in any partition. All pairs exist from the start: a
        counter that only appears with its first event hides that event."""
        self.leader_changes = 0
        """How often a partition was found to have another leader than the last known one."""
        self.strangers: set[int] = set()
        """The peers that are ignored because they keep other promises than this member. Each was reported once."""
        self._settings = settings

    # The parts that each elector provides

    @abstractmethod
    def _hear(self, sender: int, body: bytes, now: float, effects: list[PeerEffect]) -> None:
        """Take a peer's message. An unreadable one is ignored: a newer release may say more."""

    @abstractmethod
    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        """Do what is due at `now`. Called at the end of each step."""

    @abstractmethod
    def tenures(self, now: float) -> dict[int, int]:
        """Partition -> term, for all partitions that this member may act for at `now`."""

    @abstractmethod
    def _unwanted(self, now: float) -> Iterable[int]:
        """The partitions that this member leads and should give away. A closing member gives away all without this."""

    @abstractmethod
    def _cede(self, partitions: Iterable[int], now: float, effects: list[PeerEffect]) -> None:
        """Stop leading these, and announce it to peers. The program has let go of them, or is fenced in this step."""

    @abstractmethod
    def _due(self) -> float:
        """When the elector has something to do next; `inf` means never."""

    @property
    @abstractmethod
    def leaders(self) -> Sequence[Led | None]:
        """The leader of each partition, for display; None for a partition that this member takes no part in."""

    @property
    @abstractmethod
    def electorates(self) -> Collection[tuple[int, ...]]:
        """The sets of places that elect together: a leader needs a majority of its set, or of both of its sets."""

    @abstractmethod
    def _nominate(self, event: Nominate | Prefer | Rebalance, now: float, effects: list[PeerEffect]) -> None:
        """Take an operator's request. An elector that has no use for it ignores it."""

    def _close_step(self, effects: list[PeerEffect]) -> None:
        """Add the outcome of the step. Called at the end of each step, when the program's news is in `effects`."""

    # Questions

    @property
    def _is_over(self) -> bool:
        return self._told

    @property
    def deadline(self) -> float:
        """When to step with TICK if nothing comes first; `inf` means never."""
        if self._told:
            return inf
        due = self._due()
        if leading := self._belief.leading:
            due = min(due, self._belief.deadline, *map(self._ends, leading))
        return due

    # The step

    def step(self, event: PeerInput, now: float) -> list[PeerEffect]:
        effects: list[PeerEffect] = []
        if self._told:
            return effects
        self._settle(now, effects)  # Time first: an input that arrives late must not hide the silence before it.
        match event:
            case Heard(sender, body):
                if sender != self._settings.me:
                    self._hear(sender, body, now, effects)
            case Nominate() | Prefer() | Rebalance():
                self._nominate(event, now, effects)
            case Released(terms):
                if done := self._belief.release(terms):
                    self._cede(done, now, effects)
            case Close():
                self._closing = True
                if event.at_once:  # The program is fenced in this same step.
                    self._belief.reason = event.reason
                    effects += self._belief.settle({}, take=False)
                    self._end(event.error, now, effects)
        if not self._told:
            self._turn(now, effects)
            self._settle(now, effects)
            self._drain(now, effects)
            if self._closing and not self._belief.leading:
                self._end(None, now, effects)
        self._close_step(effects)
        if self._is_over:
            effects.append(Stopped(self.error))  # After the farewell: the driver closes the link then.
        return effects

    def _settle(self, now: float, effects: list[PeerEffect]) -> None:
        if (may := self.tenures(now)) != self._belief.leading:
            self._belief.reason = self._why
            effects += self._belief.settle(may, take=not self._closing)

    def _drain(self, now: float, effects: list[PeerEffect]) -> None:
        if not (leading := self._belief.leading):
            return
        # A partition that its program was asked to release is given away, even if no peer wants it now, because the
        # request cannot be taken back.
        asked = set(leading) if self._closing else {*self._belief.draining, *self._unwanted(now)}
        wanted = {i: leading[i] for i in sorted(asked) if i in leading}
        late, told = self._belief.drain(wanted, now)
        effects += told
        if late:
            self._cede(late, now, effects)

    def _end(self, error: NeliError | None, now: float, effects: list[PeerEffect]) -> None:
        self._cede(range(self._settings.layout.partitions), now, effects)
        self.error, self._told = error, True
