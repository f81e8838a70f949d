"""Belief: which partitions a program knows it may act for, and which it was asked to let go of.

                     may act for it                              another member will get it
    (not led) ---------- Acquired ---------> led ------------------- Revoked -----------------> draining
         ^                                    |                                                    |
         |<------ Fenced: may no longer ------+------ Fenced: may no longer, or drain_timeout -----+
         |<------------------------------ Released by the program: now it is given up -------------'

A protocol says which partitions a member *may* act for. This module keeps what the program believes, and reports the
difference to it. The program never believes more than the protocol allows, because it is notified of losses first and
in the same step. It is notified of a loss only once: a partition that was fenced is not revoked as well.

**No reported end outlasts a drain.** A draining partition is given up when its time is over, whether or not the program
has let go of it. So from the moment the program is asked for it, its lease is reported to end then at the latest. An
end that was reported earlier is at most a lease away; a `drain_timeout` no shorter than the lease covers that, too.

Under `available` nothing drains. A partition is given up while it is still led, and the program is notified with
Revoked once the protocol knows of its successor: then it can stop without a gap.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import inf
from random import Random

from neli_router.errors import NeliError
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked, Standing

__all__ = ["BaseMachine", "Belief"]


class Belief:
    """One program's belief. It outlives an incarnation: under `available`, the program keeps leading when one ends."""

    def __init__(self, drain_timeout: float) -> None:
        self._drain_timeout = drain_timeout
        self.leading: dict[int, int] = {}
        """Partition -> term, as the program knows it."""
        self.reason = ""
        """The reason for the next loss of partitions, in words for the program."""
        self._succeeded: set[int] = set()
        self._draining: dict[int, float] = {}

    @property
    def draining(self) -> dict[int, float]:
        """Partition -> when the program must have let go of it; it was asked to, and still has the partition."""
        return self._draining

    @property
    def deadline(self) -> float:
        """When the first of the draining partitions is taken from the program."""
        return min(self.draining.values(), default=inf)

    def bounded(self, ends: Mapping[int, float]) -> dict[int, float]:
        """`ends`, cut so that no draining partition ends later than the drain. A successor does not wait for longer. A
        caller that saw a later end, such as an agent's client that hears of the loss late, would act alongside it.
        """
        draining = self.draining
        return {i: min(end, draining.get(i, inf)) for i, end in ends.items()}

    def succeeded(self, partitions: Iterable[int]) -> None:
        """Under `available`: these have a successor."""
        self._succeeded.update(partitions)

    def release(self, terms: Mapping[int, int]) -> list[int]:
        """The program let go of these partitions; returns those that it was asked for."""
        draining = self.draining
        done = [i for i, term in terms.items() if i in draining and self.leading.get(i) == term]
        for i in done:
            del draining[i], self.leading[i]
        return done

    def settle(self, may: Mapping[int, int], *, take: bool) -> list[Event]:
        """Events that bring the program's belief to `may`, which it may act for; new partitions only if `take`."""
        if may == self.leading:
            return []
        events = self._lose({i: term for i, term in self.leading.items() if i not in may})
        # A member that closes takes on nothing new, but a partition that it still leads may come back to it under a
        # new term.
        new = {i: term for i, term in may.items() if self.leading.get(i) != term and (take or i in self.leading)}
        if new:
            self.leading.update(new)
            self._succeeded -= new.keys()
            events.append(Acquired(new))
        return events

    def drain(self, partitions: Mapping[int, int], now: float) -> tuple[list[int], list[Event]]:
        """Ask the program for `partitions`, which are led; returns those whose time is over, which are lost now."""
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


class BaseMachine(ABC):
    """The answers that every machine without a ledger gives about itself. It knows only its own tenures."""

    caught_up = True  # Such a machine has nothing to catch up with.

    def __init__(self, drain_timeout: float, rng: Random) -> None:
        self.incarnation = f"{rng.getrandbits(64):016x}"
        self.error: NeliError | None = None
        self._belief = Belief(drain_timeout)
        self._closing = self._told = False

    @abstractmethod
    def _ends(self, partition: int) -> float:
        """Until when this member may act for `partition` if it hears nothing more."""

    @property
    def leading(self) -> dict[int, int]:
        """Partition -> term, for each partition that the program was notified it Acquired and not yet that it lost."""
        return dict(self._belief.leading)

    @property
    def finishing(self) -> tuple[int, ...]:
        """The Revoked partitions that the program has not let go of yet."""
        return tuple(self._belief.draining)

    @property
    def standing(self) -> Standing:
        ends = {i: self._ends(i) for i in self._belief.leading}
        return Standing(self.leading, min(ends.values(), default=-inf), self._belief.bounded(ends))
