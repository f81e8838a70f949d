"""The program's view: for which partitions it was told that it may act, and which it was asked to let go.

                     may act for it                              its target is another member
    (not led) ---------- Acquired ---------> led ------------------- Revoked -----------------> draining
         ^                                    |                                                    |
         |<------ Fenced: may no longer ------+------ Fenced: may no longer, or drain_timeout -----+
         |<------------------------------ Released by the program: now it is handed over ----------'

The tenure says what a member *may* act for; this keeps what its program believes. The program never believes more than
the tenure allows: for each partition that it may no longer act for, it hears Fenced in the same step.

Under `available` nothing drains. A partition is handed over while it is led, and the program is told Revoked when the
successor was heard: then it can stop without a gap.
"""

from collections.abc import Iterable, Mapping
from math import inf

from neli_router.induction.events import Effect
from neli_router.induction.fold import State
from neli_router.induction.tenure import Tenure
from neli_router.protocol import Acquired, Fenced, Revoked, Settings

__all__ = ["HANDOVERS_MAX", "ProgramView"]

HANDOVERS_MAX = 256
"""Partitions that one member gives away at a time. More move a large table sooner, fewer disturb less at once."""


class ProgramView:
    """One program's view. It outlives an incarnation: under `available` the program leads on when one ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.leading: dict[int, int] = {}
        """Partition -> term, as the program knows it."""
        self.reason = ""
        """Why partitions are lost next, in words for the program."""
        self._succeeded: set[int] = set()
        self._table: tuple[State, str] | None = None
        """The table that was seen last and not worked through. Of a hundred Handovers that come at once, only the
        last is worked through."""
        self._owned: tuple[int, ...] = ()
        self._owed: tuple[int, ...] = ()
        self._draining: dict[int, float] = {}
        """Partition -> by when the program has to let go of it. It was asked to, and this member still owns it."""

    @property
    def owned(self) -> tuple[int, ...]:
        self._work_through()
        return self._owned

    @property
    def owed(self) -> tuple[int, ...]:
        """Owned, and meant for another member."""
        self._work_through()
        return self._owed

    @property
    def deadline(self) -> float:
        """When the first of the draining partitions is taken from the program."""
        self._work_through()
        return min(self._draining.values(), default=inf)

    @property
    def finishing(self) -> tuple[int, ...]:
        """The partitions that the program was asked to let go of and still has."""
        self._work_through()
        return tuple(self._draining)

    def look(self, state: State, incarnation: str) -> None:
        """The table changed; `incarnation` is this member's."""
        self._table = state, incarnation

    def succeeded(self, partitions: Iterable[int]) -> None:
        """Under `available`: the successors for these were heard."""
        self._succeeded.update(partitions)

    def to_give(self, state: State, tenure: Tenure, now: float, *, repeat: bool) -> tuple[list[int], list[Effect]]:
        """Which partitions to hand over now, and what to tell the program about those and others."""
        self._work_through()
        gives: list[int] = []
        # The program has to let go of a partition that it was asked for, even if that stays here after all: it comes
        # back under a new term.
        waiting = {i: self.leading[i] for i in self._draining}
        for i in self.owed[:HANDOVERS_MAX]:
            term = state.terms[i]
            if tenure.given.get(i) == term:
                if repeat:  # It may have been lost, and no other member can act for i before it is read.
                    gives.append(i)
            elif self._settings.exclusive and self.leading.get(i) == term:
                waiting[i] = term
            else:
                gives.append(i)
        if repeat:
            # The target may be this member again. A Handover is final all the same once sent: only a new term helps.
            seen = set(self.owed[:HANDOVERS_MAX])
            gives += [i for i in self.owned if i not in seen and tenure.given.get(i) == state.terms[i]]
        late, effects = self._drain(waiting, now)
        return gives + late, effects

    def drain_all(self, now: float) -> list[Effect]:
        """The member leaves: ask for everything back. Done when nothing is led any more."""
        self._work_through()
        _, effects = self._drain(self.leading, now)
        return effects

    def release(self, terms: Mapping[int, int]) -> list[int]:
        """The program let go of these; returns those that it was asked for."""
        self._work_through()
        done = [i for i, term in terms.items() if i in self._draining and self.leading.get(i) == term]
        for i in done:
            del self._draining[i], self.leading[i]
        return done

    def settle(self, may: Mapping[int, int], *, take: bool) -> list[Effect]:
        """Tell the program the difference to `may`, for which it may act; new partitions only if `take`."""
        self._work_through()
        effects = self._lose({i: term for i, term in self.leading.items() if i not in may})
        # A member that closes takes on nothing new, but a partition that it still leads may come back to it under a
        # new term: seed 0x165.
        new = {i: term for i, term in may.items() if self.leading.get(i) != term and (take or i in self.leading)}
        if new:
            self.leading.update(new)
            self._succeeded -= new.keys()
            effects.append(Acquired(new))
        return effects

    def _work_through(self) -> None:
        if self._table is None:
            return
        (state, incarnation), self._table = self._table, None
        self._owned = tuple(i for i, owner in enumerate(state.owners) if owner == incarnation)
        self._owed = tuple(i for i in self._owned if state.targets[i] != incarnation)
        present = {i: state.terms[i] for i in self._owned}
        self._draining = {i: end for i, end in self._draining.items() if self.leading.get(i) == present.get(i)}

    def _drain(self, partitions: Mapping[int, int], now: float) -> tuple[list[int], list[Effect]]:
        """Ask for `partitions`; returns those that were asked for too long ago."""
        effects: list[Effect] = []
        asked = {i: term for i, term in partitions.items() if i not in self._draining}
        if asked:
            self._draining.update(dict.fromkeys(asked, now + self._settings.drain_timeout))
            effects.append(Revoked(asked))
        late = {i: term for i, term in partitions.items() if now >= self._draining[i]}
        if late:
            self.reason = f"the program did not finish within drain_timeout={self._settings.drain_timeout:g} s"
            effects += self._lose(late)
        return list(late), effects

    def _lose(self, lost: Mapping[int, int]) -> list[Effect]:
        effects: list[Effect] = []
        for i in lost:
            del self.leading[i]
            self._draining.pop(i, None)
        passed_on = {i: term for i, term in lost.items() if i in self._succeeded}
        fenced = {i: term for i, term in lost.items() if i not in self._succeeded}
        self._succeeded -= lost.keys()
        if passed_on:
            effects.append(Revoked(passed_on))
        if fenced:
            effects.append(Fenced(fenced, self.reason))
        return effects
