"""Belief: for which partitions a program was told that it may act, and which it was asked to let go.

                     may act for it                              another member shall have it
    (not led) ---------- Acquired ---------> led ------------------- Revoked -----------------> draining
         ^                                    |                                                    |
         |<------ Fenced: may no longer ------+------ Fenced: may no longer, or drain_timeout -----+
         |<------------------------------ Released by the program: now it is given up -------------'

A protocol says what a member *may* act for; this keeps what its program believes, and tells it the difference. The
program never believes more than the protocol allows, because it hears of losses first and in the same step. It hears of
nothing twice: a partition that was fenced is not revoked as well.

A machine that reads no ledger knows nobody's tenures but its own: a `Believer`. Those of borrowed groups and electors
are such, and answer alike for what they believe.

**No told end outlasts a drain.** A partition that drains is given up when its time is over, whether the program has let
go of it or not. So as soon as it is asked for, its lease is shown to end then at the latest. An end that was told
before is at most a lease away: a `drain_timeout` that is no shorter than the lease covers that, too.

Under `available` nothing drains. A partition is given up while it is led, and the program is told Revoked when the
protocol knows that it has a successor: then it can stop without a gap.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import inf
from random import Random

from neli_router.protocols.protocol import NO_STANDING, Acquired, Event, Fenced, Revoked, Standing

__all__ = ["Belief", "Believer"]


class Belief:
    """One program's belief. It outlives an incarnation: under `available` the program leads on when one ends."""

    def __init__(self, drain_timeout: float) -> None:
        self._drain_timeout = drain_timeout
        self.leading: dict[int, int] = {}
        """Partition -> term, as the program knows it."""
        self.reason = ""
        """Why partitions are lost next, in words for the program."""
        self._succeeded: set[int] = set()
        self._draining: dict[int, float] = {}

    @property
    def draining(self) -> dict[int, float]:
        """Partition -> by when the program has to let go of it. It was asked to, and still has it."""
        return self._draining

    @property
    def deadline(self) -> float:
        """When the first of the draining partitions is taken from the program."""
        return min(self.draining.values(), default=inf)

    def bounded(self, ends: Mapping[int, float]) -> dict[int, float]:
        """`ends`, where no draining partition ends later than it is taken away. A successor waits no longer for it, and
        whoever was told a later end would act beside that one: a client of an agent, say, which hears of the loss late.
        """
        draining = self.draining
        return {i: min(end, draining.get(i, inf)) for i, end in ends.items()}

    def succeeded(self, partitions: Iterable[int]) -> None:
        """Under `available`: these have a successor."""
        self._succeeded.update(partitions)

    def release(self, terms: Mapping[int, int]) -> list[int]:
        """The program let go of these; returns those that it was asked for."""
        draining = self.draining
        done = [i for i, term in terms.items() if i in draining and self.leading.get(i) == term]
        for i in done:
            del draining[i], self.leading[i]
        return done

    def settle(self, may: Mapping[int, int], *, take: bool) -> list[Event]:
        """Tell the program the difference to `may`, for which it may act; new partitions only if `take`."""
        if may == self.leading:
            return []
        events = self._lose({i: term for i, term in self.leading.items() if i not in may})
        # A member that closes takes on nothing new, but a partition that it still leads may come back to it under a
        # new term: seed 0x165.
        new = {i: term for i, term in may.items() if self.leading.get(i) != term and (take or i in self.leading)}
        if new:
            self.leading.update(new)
            self._succeeded -= new.keys()
            events.append(Acquired(new))
        return events

    def drain(self, partitions: Mapping[int, int], now: float) -> tuple[list[int], list[Event]]:
        """Ask for `partitions`, which are led; returns those that were asked for too long ago, and are lost now."""
        draining = self.draining
        events: list[Event] = []
        asked = {i: term for i, term in partitions.items() if i not in draining}
        if asked:
            draining.update(dict.fromkeys(asked, now + self._drain_timeout))
            events.append(Revoked(asked))
        late = {i: term for i, term in partitions.items() if now >= draining[i]}
        if late:
            self.reason = f"the program did not finish within drain_timeout={self._drain_timeout:g} s"
            events += self._lose(late)
        return list(late), events

    def _lose(self, lost: Mapping[int, int]) -> list[Event]:
        events: list[Event] = []
        for i in lost:
            del self.leading[i]
            self.draining.pop(i, None)
        passed_on = {i: term for i, term in lost.items() if i in self._succeeded}
        fenced = {i: term for i, term in lost.items() if i not in self._succeeded}
        self._succeeded -= lost.keys()
        if passed_on:
            events.append(Revoked(passed_on))
        if fenced:
            events.append(Fenced(fenced, self.reason))
        return events


class Believer(ABC):
    """A machine that has no ledger to read: what it answers of itself, whatever its protocol."""

    def __init__(self, drain_timeout: float, now: float, rng: Random) -> None:
        self._incarnation = f"{rng.getrandbits(64):016x}"
        self._belief = Belief(drain_timeout)
        self._heard_at = now

    @abstractmethod
    def _ends(self, partition: int) -> float:
        """Until when this member may act for `partition`, if it hears nothing more."""

    @property
    def incarnation(self) -> str:
        return self._incarnation

    @property
    def caught_up(self) -> bool:
        return True  # There is no past to read.

    @property
    def heard_at(self) -> float:
        return self._heard_at

    @property
    def leading(self) -> dict[int, int]:
        """Partition -> term, for all that the program was told it Acquired and was not yet told it lost."""
        return dict(self._belief.leading)

    @property
    def finishing(self) -> tuple[int, ...]:
        """The partitions that were Revoked and that the program has not let go of."""
        return tuple(self._belief.draining)

    @property
    def standing(self) -> Standing:
        if not (leading := self._belief.leading):
            return NO_STANDING
        ends = {i: self._ends(i) for i in leading}
        return Standing(dict(leading), min(ends.values(), default=-inf), self._belief.bounded(ends))
