"""The chronicle: a group's recent history, for people. It reads along everything that a member of the group reads.

    the pump's thread:   records --fold--> state --what changed?--> moves, counts
                                    Beats ------------------------> vitals, delays
                                                                       |
    other threads:                              GroupView  <--one assignment for each read

The ledger already holds all there is to know, so no process is asked: a chronicle folds the records once more, by
itself, and notes for each record that changed owners who had what before and who has it now. The fold alone would not
do: it keeps no past, knows no time, and calls members by their incarnations, which mean nothing to people.

It runs on the thread that keeps the member's lease, so it does little for a Beat, which is nearly every record, and
all that it keeps is bounded. Other threads take `group`, one value that never changes, and need no lock: all of it is
true at one and the same offset.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

from neli_router.induction.fold import State, fold
from neli_router.induction.records import (
    Beat,
    Drain,
    Expire,
    Handover,
    Join,
    Leave,
    Load,
    Pin,
    Record,
    Snapshot,
    Undrain,
    Unpin,
    Weigh,
)
from neli_router.status.group_view import COUNTED, Cause, GroupView, Move, Vital

__all__ = ["CAUSES", "DELAYS_MAX", "MOVES_MAX", "Chronicle"]

MOVES_MAX = 1000
"""Moves that are kept. More would cost every listener's page its time; a restart of a large group fits."""

PARTITIONS_MAX = 100_000
"""Partitions named by all moves that are kept: a group of many partitions that flaps must not fill memory."""

DELAYS_MAX = 4096
"""Delays that are kept until they are taken: more than an hour's at a Beat a second."""

WISHES = Drain | Undrain | Pin | Unpin | Weigh | Load


class Chronicle:
    """A Tap (see pump.py). `begin` and `read` belong to the pump's thread; any thread may take `group`."""

    def __init__(self) -> None:
        self.group = GroupView()
        self.beat_delays: deque[float] = deque(maxlen=DELAYS_MAX)
        """Seconds from the sending of the own member's Beats until they were read. A reader pops them."""
        self._own: Callable[[], str] = str
        self._names: dict[str, str] = {}
        self._moves: deque[Move] = deque()
        self._moved = 0
        self._counts = dict.fromkeys(COUNTED, 0)

    def set_own(self, incarnation: str | Callable[[], str]) -> None:
        """Time the Beats of this incarnation. A function is asked at each read: a member may be reborn as another."""
        self._own = incarnation if callable(incarnation) else lambda: incarnation

    def begin(self, state: State, now: float) -> None:
        before = self.group.state
        if before.genesis is not None:
            # Records in between were dropped unread. Their moves can be seen, but not their writers.
            self._counts["restarts"] += 1
            self._know(before, state)
            if before.genesis == state.genesis:
                self._note(before, state, range(len(state.owners)), max(0, state.at - 1), now, "other", "")
        self._know(state, state)
        self._publish(state, {key: vital for key, vital in self.group.vitals.items() if key in state.seats})

    def read(self, records: Sequence[tuple[int, Record | None]], now: float) -> None:
        state, own, vitals = self.group.state, self._own(), dict(self.group.vitals)
        for offset, record in records:
            before, state = state, fold(state, offset, record)
            self._counts["records"] += 1
            if type(record) is Beat:
                if record.by == own:
                    self.beat_delays.append(max(0.0, now - record.sent_at))
                if state.last_beats.get(record.by) == offset:
                    self._counts["beats"] += 1
                    vitals[record.by] = Vital(now, record.at, offset)
                continue
            if state.seats is not before.seats:
                self._know(before, state)
            self._count(before, state, record)
            if record is not None and state.owners is not before.owners:
                places = [record.partition] if isinstance(record, Handover) else range(len(state.owners))
                self._note(
                    before, state, places, offset, now, CAUSES.get(type(record), "other"), self._name_of(record.by)
                )
        self._publish(state, {key: vital for key, vital in vitals.items() if key in state.seats})

    def _publish(self, state: State, vitals: dict[str, Vital]) -> None:
        was = self.group
        moves = was.moves if self._counts["moves"] == was.counts["moves"] else tuple(self._moves)
        self.group = GroupView(state, MappingProxyType(vitals), moves, MappingProxyType(dict(self._counts)))

    def _know(self, before: State, state: State) -> None:
        """Remember names for as long as the fold remembers incarnations: a dead member is still called by its name."""
        names = {key: name for key, name in self._names.items() if key in state.departed}
        names |= {seat.incarnation: seat.name for seat in before.seats.values()}
        self._names = names | {seat.incarnation: seat.name for seat in state.seats.values()}

    def _name_of(self, by: str) -> str:
        return self._names.get(by, by)

    def _count(self, before: State, state: State, record: Record | None) -> None:
        kinds: list[str] = []
        gone = len(before.seats.keys() - state.seats.keys())
        match record:
            case None:
                kinds = ["skipped"]
            case Join(by):
                kinds = ["joins"] * (by in state.seats and by not in before.seats) + ["replaced"] * gone
            case Leave():
                kinds = ["leaves"] * gone
            case Expire():
                kinds = ["suspicions"] + ["expired"] * gone
            case Handover():
                kinds = ["handovers"] * (state.terms is not before.terms)
            case Snapshot():
                kinds = ["snapshots"]
            case _ if isinstance(record, WISHES):
                kinds = ["wishes"]
        for kind in kinds:
            self._counts[kind] += 1

    def _note(
        self,
        before: State,
        state: State,
        places: Sequence[int],
        offset: int,
        now: float,
        cause: Cause,
        by: str,
    ) -> None:
        pairs = sorted(self._pairs(before, state, places), key=lambda pair: (pair[1] or "", pair[2] or "", pair[0]))
        for (source, target), group in groupby(pairs, key=lambda pair: pair[1:]):
            partitions = tuple(partition for partition, _, _ in group)
            self._moves.append(Move(offset, now, partitions, source, target, cause, by))
            self._moved += len(partitions)
            self._counts["moves"] += len(partitions)
        while len(self._moves) > MOVES_MAX or (self._moved > PARTITIONS_MAX and len(self._moves) > 1):
            self._moved -= len(self._moves.popleft().partitions)

    def _pairs(
        self, before: State, state: State, places: Sequence[int]
    ) -> Iterator[tuple[int, str | None, str | None]]:
        for place in places:
            had = before.owners[place] if before.owners else None
            has = state.owners[place]
            if had == has:
                continue
            source, target = had and self._name_of(had), has and self._name_of(has)
            if source != target:  # A process that comes back under its name keeps what it had: a new term, no move.
                yield place, source, target


CAUSES: Mapping[type, Cause] = {
    Join: "join",
    Leave: "leave",
    Expire: "expire",
    Handover: "handover",
    Drain: "drain",
    Undrain: "undrain",
    Pin: "pin",
    Unpin: "unpin",
    Weigh: "weigh",
    Load: "load",
}
