"""The program's view of a member's partitions: what the table says about them, and what the program believes.

    table --look--> owned, owed (meant for another member) --to_give--> what to hand over now
                          '---- led by the program: Revoked, and handed over when it has let go (`belief`)

An owed partition that the program does not work on is handed over immediately. A partition that the program was asked
to let go of is given up even if it stays here after all: it then comes back under a new term.
"""

from collections.abc import Mapping

from neli_router.protocols.belief import Belief
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.tenure import Tenure
from neli_router.protocols.protocol import Event, Settings

__all__ = ["HANDOVERS_MAX", "ProgramView"]

HANDOVERS_MAX = 256
"""How many partitions a member gives away at a time. More move a large table sooner, fewer disturb less at a time."""


class ProgramView(Belief):
    """One program's view of what its member owns."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.drain_timeout)
        self._exclusive = settings.exclusive
        self._table: tuple[State, str] | None = None
        """The latest table, if it was not processed yet. If a hundred Handovers arrive in one read, only the last table
        is processed."""
        self._owned: tuple[int, ...] = ()
        self._owed: tuple[int, ...] = ()

    @property
    def owned(self) -> tuple[int, ...]:
        self._work_through()
        return self._owned

    @property
    def owed(self) -> tuple[int, ...]:
        """The owned partitions that are meant for another member."""
        self._work_through()
        return self._owed

    @property
    def draining(self) -> dict[int, float]:
        """The draining partitions that this member still owns, with their deadlines."""
        self._work_through()
        return self._draining

    def look(self, state: State, incarnation: str) -> None:
        """The table changed; `incarnation` is this member's."""
        self._table = state, incarnation

    def to_give(self, state: State, tenure: Tenure, now: float, *, repeat: bool) -> tuple[list[int], list[Event]]:
        """Which partitions to hand over now, and the events for the program."""
        gives: list[int] = []
        # The program must let go of a partition that it was asked for, even if the partition stays here after all: it
        # comes back under a new term.
        waiting = {i: self.leading[i] for i in self.draining}
        for i in self.owed[:HANDOVERS_MAX]:
            term = state.terms[i]
            if tenure.given.get(i) == term:
                if repeat:  # The Handover may have been lost, and no other member can act for i before it is read.
                    gives.append(i)
            elif self._exclusive and self.leading.get(i) == term:
                waiting[i] = term
            else:
                gives.append(i)
        if repeat:
            # The target may be this member again. A Handover is still final once sent: only a new term helps.
            seen = set(self.owed[:HANDOVERS_MAX])
            gives += [i for i in self.owned if i not in seen and tenure.given.get(i) == state.terms[i]]
        late, events = self.drain(waiting, now)
        return gives + late, events

    def settle(self, may: Mapping[int, int], *, take: bool) -> list[Event]:
        self._work_through()  # The calls below change `leading`, which processing the last table depends on.
        return super().settle(may, take=take)

    def _work_through(self) -> None:
        if self._table is None:
            return
        (state, incarnation), self._table = self._table, None
        self._owned = tuple([i for i, owner in enumerate(state.owners) if owner == incarnation])
        self._owed = tuple([i for i in self._owned if state.targets[i] != incarnation])
        self._draining = {
            i: end
            for i, end in self._draining.items()
            if (state.owners[i], state.terms[i]) == (incarnation, self.leading.get(i))
        }
