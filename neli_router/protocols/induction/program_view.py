"""The program's view of a member's partitions: what the table says about them, and what the program believes.

    table --look--> owned, owed (meant for another member) --to_give--> what to hand over now
                          '---- led by the program: Revoked, and handed over when it has let go (`belief`)

An owed partition that the program does not work on is handed over immediately. A partition that the program was asked
to let go of is given up even if it stays here after all: it then comes back under a new term.

**Joins settle first.** Each Join changes the targets. If three members join one after another, what was given to the
first may be meant for the second or the third a moment later, and moves again. So newcomers get nothing while others
may follow:

    Join --half a lease without another one, or two leases since the first--> settled: to_give
         '--until then, what is meant for these newcomers stays, and the program leads it

Only what the program leads stays, because no member would lead the rest. A drained member gives all immediately, and
a pinned partition moves immediately. Under `available` a partition moves without a pause, so nothing stays.

**Standbys.** If the set of partitions that this member stands by for has changed, the program gets the whole set. If a
partition comes to its standby, the table immediately names another standby, but this member may have to wait before it
leads. Until then the partition stays in the set, so that the program keeps what it prepared.
"""

from collections.abc import Mapping
from math import inf

from neli_router.protocols.belief import Belief
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.tenure import Tenure
from neli_router.protocols.protocol import Event, Settings, Standby

__all__ = ["HANDOVERS_MAX", "SETTLED_LEASES", "UNSETTLED_LEASES_MAX", "ProgramView"]

HANDOVERS_MAX = 256
"""How many partitions a member gives away at a time. More move a large table sooner, fewer disturb less at a time."""

SETTLED_LEASES, UNSETTLED_LEASES_MAX = 0.5, 2.0
"""After how many leases without a Join a group is settled, and after how many at the latest. With more, newcomers get
their share later; with fewer, joins in succession move partitions twice."""


class ProgramView(Belief):
    """One program's view of what its member owns."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.drain_timeout)
        self._exclusive, self._lease = settings.exclusive, settings.lease
        self._table: tuple[State, str] | None = None
        """The latest table, if it was not processed yet. If a hundred Handovers arrive in one read, only the last table
        is processed."""
        self._owned: tuple[int, ...] = ()
        self._owed: tuple[int, ...] = ()
        self._newest = -1
        self.standby: frozenset[int] = frozenset()
        """The partitions that this member stands by for, as the program knows them."""
        self._standing_by: frozenset[int] = frozenset()
        self._coming: frozenset[int] = frozenset()
        """The part of `standby` that is meant for this member by now."""
        self._newcomers_from, self._first_joined_at, self._settled_at = 0, -inf, -inf
        self.resumes_at = inf
        """When to give what stays for now; `inf` if nothing does."""

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
    def newest(self) -> int:
        """The offset at which this member got the newest of what it owns; -1 if it owns nothing."""
        self._work_through()
        return self._newest

    @property
    def draining(self) -> dict[int, float]:
        """The draining partitions that this member still owns, with their deadlines."""
        self._work_through()
        return self._draining

    def joined(self, offset: int, now: float) -> None:
        """The Join at `offset` made a member."""
        if now >= self._settled_at:
            self._newcomers_from, self._first_joined_at = offset, now
        latest = self._first_joined_at + UNSETTLED_LEASES_MAX * self._lease
        self._settled_at = min(now + SETTLED_LEASES * self._lease, latest)

    def look(self, state: State, incarnation: str) -> None:
        """The table changed; `incarnation` is this member's."""
        self._table = state, incarnation

    def to_give(self, state: State, tenure: Tenure, now: float, *, repeat: bool) -> tuple[list[int], list[Event]]:
        """Which partitions to hand over now, and the events for the program."""
        gives: list[int] = []
        # The program must let go of a partition that it was asked for, even if the partition stays here after all: it
        # comes back under a new term.
        waiting = {i: self.leading[i] for i in self.draining}
        due = self._due(state, tenure.incarnation, now)[:HANDOVERS_MAX]
        for i in due:
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
            seen = set(due)
            gives += [i for i in self.owned if i not in seen and tenure.given.get(i) == state.terms[i]]
        late, events = self.drain(waiting, now)
        return gives + late, events

    def settle(self, may: Mapping[int, int], *, take: bool) -> list[Event]:
        self._work_through()  # The calls below change `leading`, which processing the last table depends on.
        return super().settle(may, take=take)

    def stand_by(self) -> list[Event]:
        """The event for a changed set of partitions that this member stands by for."""
        self._work_through()
        standby = self._standing_by | (self._coming & self.standby) - self.leading.keys()
        if standby == self.standby:
            return []
        self.standby = standby
        return [Standby(tuple(sorted(standby)))]

    def _due(self, state: State, incarnation: str, now: float) -> tuple[int, ...]:
        """The owed partitions that need not wait for joins to settle."""
        owed, targets, terms = self.owed, state.targets, state.terms
        self.resumes_at = inf
        if not owed or not self._exclusive or now >= self._settled_at:
            return owed
        if state.seats[incarnation].name in state.drains:
            return owed
        newcomers = {q for q, seat in state.seats.items() if seat.joined >= self._newcomers_from}
        due = tuple(
            i for i in owed if targets[i] not in newcomers or i in state.pins or self.leading.get(i) != terms[i]
        )
        if len(due) < len(owed):
            self.resumes_at = self._settled_at
        return due

    def _work_through(self) -> None:
        if self._table is None:
            return
        (state, incarnation), self._table = self._table, None
        self._owned = tuple([i for i, owner in enumerate(state.owners) if owner == incarnation])
        self._owed = tuple([i for i in self._owned if state.targets[i] != incarnation])
        self._newest = max(map(state.began.__getitem__, self._owned), default=-1)
        self._standing_by = frozenset([i for i, standby in enumerate(state.standbys) if standby == incarnation])
        self._coming = frozenset([i for i in self.standby if incarnation in (state.owners[i], state.targets[i])])
        self._draining = {
            i: end
            for i, end in self._draining.items()
            if (state.owners[i], state.terms[i]) == (incarnation, self.leading.get(i))
        }
