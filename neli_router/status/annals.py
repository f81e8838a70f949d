"""The annals of a group: everything that the records of its ledger changed, in order.

    entries --replay--> changes --of what?-------> lives, tenures, moves, plans     facts: exact, and the same for all
                               '--why? (causes)--> events
            Beats --> time axis --> when                                             within the stated error
            Beats, snapshots --> digests --> signs that something is not sound

A state has the members, and the owner and term of each partition. It has no past, but these annals do: a *life* for
each incarnation; a *tenure* for each partition and term; a *plan* for each change of members or wishes.

**Moves** are counted by name: a process that comes back under its name and keeps its partitions moves none. At each
change of members or wishes, `assign` without loads gives the fewest moves that would even out the shares. The fold's
own plan may have a few more, for the sake of load. No more than planned may move until the next change.

**The beginning.** Members trim their ledger, so its first record may be gone. Then the entries wait until there is a
state to start from (`replay.beginning`), and the annals begin with its members and owners.

Each record is read once. Events are kept, but Beats are not, so a long history fits into memory.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median
from typing import Literal

from msgspec import UNSET

from neli_router.drivers.ledgers.base import Entry
from neli_router.errors import LedgerUnusable
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.fold import State, targets_of
from neli_router.protocols.induction.records import (
    Beat,
    Certify,
    Expire,
    Genesis,
    Handover,
    Join,
    Leave,
    Record,
    Snapshot,
)
from neli_router.protocols.induction.snapshots import BadSnapshot
from neli_router.protocols.protocol import BEATS_PER_LEASE, DRIFT_MAX, Cause, wait_for
from neli_router.status.causes import CAUSES, Causes, Episode
from neli_router.status.group_view import Move
from neli_router.status.replay import Transition, beginning, step
from neli_router.status.time_axis import TimeAxis

__all__ = ["Annals", "Ending", "Finding", "MemberLife", "Plan", "Severity", "TenureSpan"]

DIGESTS_MAX = 4096
"""Digests that are kept, one per record, to compare with the members'. A Beat delayed for longer goes unchecked."""

INTERVALS_MAX = 8192
"""Intervals between Beats that are kept for their median. If there are more, every other one is dropped."""

Severity = Literal["broken", "warning", "note"]

Ending = Literal["", "expire", "certify", "replaced", "leave", "handover"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`broken`: a promise was broken. `warning`: look at it. `note`: good to know."""

    severity: Severity
    kind: str
    text: str
    offset: int | None = None
    time: float | None = None


@dataclass(slots=True)
class MemberLife:
    """One incarnation, from its Join to its end. Times are on the audit's axis; NaN where there is none."""

    incarnation: str
    name: str
    address: str
    first: int
    """The record that made it a member, or the first record of the annals."""
    settled: int | None
    """The same, if it joined a group without members and so had to wait from then on."""
    since: float = inf
    until: float = inf
    ended: int | None = None
    """The record that ended it, or None."""
    ending: Ending = ""
    died: float = inf
    """The midpoint between its last Beat and when the next was due, if another member's record ended it."""
    heard: float | None = None
    """If another member's record ended it: when it sent its last Beat; if it sent none, the latest time known then."""
    seen: float = -inf
    """It was alive at least until then: when its last record of any kind was written, at the earliest."""
    held: "list[TenureSpan]" = field(default_factory=list)
    """Everything that it owned when another member's record ended it."""
    beats: int = 0
    owned_max: int = 0
    came_too_late: int = 0
    """Its Beats after its end: it was alive when it was expired, or when a newer process took its name. After a
    certificate, they may have been in flight when it died."""
    late_reading: float = -inf
    """When it sent the last of them, on its own clock."""
    silences: list[tuple[float, float]] = field(default_factory=list)
    """From the end of its lease to its next Beat: it was alive, and could not lead."""


@dataclass(slots=True)
class TenureSpan:
    """One member owned one partition under one term: from the record `first` to the record `last`, if it ended."""

    partition: int
    term: int
    member: str
    incarnation: str
    first: int
    cause: Cause
    last: int | None = None
    ending: Ending = ""
    since: float = inf
    until: float = inf
    led_from: float = -inf
    led_until: float = inf
    """When it was led, according to the rules or the notes. If `led_until` is not after `led_from`, it never was."""


@dataclass(slots=True)
class Plan:
    """A change of members or wishes, and the moves that followed until the next one."""

    offset: int
    least: int
    """The fewest moves to even shares."""
    planned: int
    """The moves of the fold's own plan: those, plus some for the sake of load."""
    moved: int = 0
    pending: set[int] = field(default_factory=set)
    """Partitions that a live owner still has to hand over."""


class Annals:
    """Reads a ledger's entries, in any number of calls. All other attributes are results to look at."""

    def __init__(self, *, drift: float = DRIFT_MAX, one_clock: bool = False) -> None:
        self.state = State()
        self.records = 0
        self.first: int | None = None
        self.base = 0
        """A term was this much above the offset of its record when the annals began. It never falls."""
        """The offset from which all records count; None before there is one."""
        self.wait = 0.0
        """How long a successor waits under `exclusive`, including `drift`."""
        self.appended: float | None = None
        """Seconds from the axis to the ledger's own time (Kafka), if it keeps one."""
        self.axis = TimeAxis(drift=drift, one_clock=one_clock)
        self.kinds: Counter[str] = Counter()
        self.void: Counter[str] = Counter()
        """Records that changed nothing, by kind. Snapshots are not meant to change anything."""
        self.lives: dict[str, MemberLife] = {}
        """By incarnation."""
        self.tenures: defaultdict[int, list[TenureSpan]] = defaultdict(list)
        """By partition."""
        self.moves: list[Move] = []
        """Without times."""
        self.events: list[Episode] = []
        """One per cause. Their own times mean nothing here: call `time` for those of `offset` and `last`."""
        self.plans: list[Plan] = []
        self.handovers: list[tuple[int, int]] = []
        """The offset of a plan, and the offset of a Handover that carried out part of it."""
        self.balance: list[tuple[int, float]] = []
        """From each offset on, the largest share over the fair one."""
        self.joins: defaultdict[str, list[int]] = defaultdict(list)
        """The offsets at which each name joined."""
        self.findings: list[Finding] = []
        self._drift = drift
        self._causes = Causes()
        self._waiting: list[Entry] | None = []
        """The entries so far, until a starting point is found among them."""
        self._beats: dict[str, float] = {}
        """Incarnation -> the reading of its last Beat."""
        self._seen: dict[str, float] = {}
        """Incarnation -> a time before its last record of another kind."""
        self._intervals: list[float] = []
        self._held: dict[int, TenureSpan] = {}
        self._busy: dict[int, float] = {}
        self._peopled = -1
        """The offset of the last Join into a group without members."""
        self._digests: dict[int, int] = {}

    @property
    def beat(self) -> float:
        """The usual time between two Beats of a member."""
        assert self.state.genesis is not None
        return median(self._intervals) if self._intervals else self.state.genesis.lease / BEATS_PER_LEASE

    @property
    def to_wall(self) -> float | None:
        """Seconds from the axis to the wall clock, by the ledger's own time (Kafka) or by the founder's wall clock at
        the Genesis; None if neither is known."""
        if self.appended is not None or self.first is None or self.state.genesis_at < self.first:
            return self.appended
        return None if self.state.genesis is None else self.state.genesis.base / 1e6 - self.time(self.state.genesis_at)

    def time(self, offset: int) -> float:
        """When the record at `offset` was written, if it changed something. Raises KeyError for others."""
        low, high = self.axis.when(offset)
        return (low + high) / 2 if isfinite(high) else 0.0  # Without any Beat, no time is known.

    def require_history(self) -> None:
        """Raise LedgerUnusable if what was read is not a group's history."""
        if self._waiting:
            raise LedgerUnusable(
                "a history from its Genesis or from a snapshot on was wanted",
                f"it begins at offset {self._waiting[0].offset}, and no snapshot follows that has what was before",
                "try again when a member has written a snapshot, or audit a copy that has the records before",
            )
        if self.state.genesis is None:
            raise LedgerUnusable(
                "the records of a group were wanted", "there is no Genesis among them", "name the ledger of a group"
            )

    # Reading

    def read(self, entries: Iterable[Entry]) -> None:
        """Take the next entries into account. Raises LedgerUnusable, and GroupMismatch for a newer fold."""
        for entry in entries:
            if self._waiting is None:
                self._take(entry)
                continue
            self._waiting.append(entry)
            try:
                state = beginning(self._waiting)
            except BadSnapshot as error:
                self.find("broken", "snapshot", f"{error}: the next one is taken", entry.offset)
            else:
                if state is not None:
                    waiting, self._waiting = self._waiting, None
                    self._begin(state)
                    for one in waiting:
                        if one.offset >= state.at:
                            self._take(one)

    def _begin(self, state: State) -> None:
        self.state = state
        self._causes.begin(state)
        if state.genesis is not None:
            self.first, self.base = state.at, state.base
            self.wait = wait_for(state.genesis.lease, self._drift)
            self._digests[state.at] = state.digest
            self.axis.mark(state.at)
            for incarnation in state.seats:
                self.lives[incarnation] = _life(incarnation, state, state.at)
            for partition in range(len(state.owners)):
                self._hold(partition, state, state.at, "other")
            self._weigh(state, state.at)

    def _take(self, entry: Entry) -> None:
        change = step(self.state, entry)
        offset, record, before = entry.offset, change.record, self.state
        if not change.is_known:
            raise LedgerUnusable(
                f"records in the order of the ledger were wanted, from offset {before.at} on",
                f"offset {offset} came again or too late",
                "sort the copy by offset and leave out what is there twice; if it is a ledger, it lost records",
            )
        if self.first is None:
            self.first = offset
        self.records += 1
        self.kinds[change.kind] += 1
        after = self.state = change.after
        if before.genesis is None:
            self.base = after.base
        self._suspect(change)
        episode, _ = self._causes.take(change, 0.0)
        if episode is not None:
            self.axis.mark(offset)
            self.events.append(episode)
        if not change.counts and record is not None and not isinstance(record, Snapshot):
            self.void[change.kind] += 1
        if isinstance(record, Beat):
            self._hear(entry, record, is_late=change.is_late)
        elif record is not None:
            if record.by in before.seats:
                self._seen[record.by] = self.axis.now
            if isinstance(record, Genesis):
                if change.counts:
                    self.wait = wait_for(record.lease, self._drift)
                    self.axis.mark(offset)
            elif change.gone or after.seats is not before.seats or after.targets is not before.targets:
                self._change(change, record)
            elif isinstance(record, Handover) and change.counts:
                self._own(change, record)
        self._remember(after, record, offset)

    def _hear(self, entry: Entry, beat: Beat, *, is_late: bool) -> None:
        life = self.lives.get(beat.by)
        if is_late:
            if life is not None and life.ended is not None:
                life.came_too_late += 1
                life.late_reading = max(life.late_reading, beat.sent_at)
            return
        assert life is not None, "who has a last Beat has a seat"
        life.beats += 1
        genesis, last = self.state.genesis, self._beats.get(beat.by)
        assert genesis is not None
        if last is not None:
            self._intervals.append(beat.sent_at - last)
            if beat.sent_at - last > genesis.lease:
                life.silences.append((last + genesis.lease, beat.sent_at))
        self._beats[beat.by] = beat.sent_at
        self.axis.beat(entry.offset, beat.by, beat.sent_at, beat.at)
        if self.appended is None and entry.time is not None and isfinite(self.axis.now):
            self.appended = entry.time - self.axis.now
        if len(self._intervals) > INTERVALS_MAX:
            self._intervals = self._intervals[::2]

    # Signs that a ledger or a member is not sound

    def _suspect(self, change: Transition) -> None:
        offset, record, before = change.offset, change.record, change.before
        if isinstance(record, Beat) and record.at > offset:
            text = f"a Beat stands at {offset}, and its writer had read up to {record.at}: the ledger lost records"
            self.find("broken", "rewound", text, offset)
        if isinstance(record, Genesis) and before.genesis is not None and record.at > before.genesis_at:
            text = (
                f"a second Genesis stands at {offset}, whose writer had read past the first, at {before.genesis_at}, "
                "and not found it: the ledger lost records"
            )
            self.find("broken", "genesis", text, offset)

    def _remember(self, after: State, record: Record | None, offset: int) -> None:
        self._digests[after.at] = after.digest
        if len(self._digests) > DIGESTS_MAX:
            del self._digests[next(iter(self._digests))]
        if isinstance(record, Beat) and record.by in after.seats and record.digest is not UNSET:
            at, digest = record.at, record.digest
        elif isinstance(record, Snapshot):
            at, digest = record.upto, record.state.digest
        else:
            return
        mine = self._digests.get(at)
        if mine is not None and digest_text(mine) != digest:
            name = self._name(record.by)
            text = (
                f"{name} computed another table than these records give, at offset {at}: its release or its memory is "
                "not sound, or this copy of the ledger lacks records"
            )
            self.find("broken", "digest", text, offset)

    def find(self, severity: Severity, kind: str, text: str, offset: int | None = None) -> None:
        self.findings.append(Finding(severity, kind, text, offset))

    # Changes

    def _change(self, change: Transition, record: Record) -> None:
        """Members, wishes or both changed, and with them the plan."""
        offset, gone = change.offset, change.gone
        if isinstance(record, Join) and change.has_joined:
            if not change.before.seats:
                self._peopled = offset
            # A member that had read of no other did not wait before it joined, so it has to wait from then on.
            settled = offset if record.at <= self._peopled else None
            self.lives[record.by] = _life(record.by, change.after, offset, settled=settled)
            self.joins[record.name].append(offset)
        for incarnation in gone:
            self._end(incarnation, offset, _ending(record))
        self._plan(change, record)
        self._own(change, record)
        for incarnation in gone:
            self.axis.depart(incarnation)

    def _end(self, incarnation: str, offset: int, ending: Ending) -> None:
        life = self.lives[incarnation]
        life.ended, life.ending = offset, ending
        reading, last = self._beats.pop(incarnation, None), self._seen.pop(incarnation, -inf)
        if ending == "leave":
            return
        beat = None if reading is None else self.axis.align(incarnation, reading)
        heard = self.axis.now if beat is None else beat
        life.heard, life.seen = heard, max(heard, last)
        life.held = [held for held in self._held.values() if held.incarnation == incarnation]
        for one in life.held if ending != "certify" else ():
            self._busy[one.partition] = max(self._busy.get(one.partition, -inf), heard + self.wait)

    def _plan(self, change: Transition, record: Record) -> None:
        before, after = change.before, change.after
        # Like the fold: the successor under a name is assigned what its predecessor had.
        replaced = before.seats.keys() - after.seats.keys()
        successors = dict.fromkeys(replaced, record.by) if isinstance(record, Join) else {}
        kept = [None if owner is None else successors.get(owner, owner) for owner in before.owners]
        names = _names(before, before.owners)
        # Even shares with the fewest moves: without loads.
        fewest = targets_of(after, kept)
        least, planned = (_moves(names, _names(after, target)) for target in (fewest, after.targets))
        pending = {
            partition
            for partition, (owner, target) in enumerate(zip(after.owners, after.targets, strict=True))
            if owner != target
        }
        self.plans.append(Plan(change.offset, least, planned, pending=pending))

    def _own(self, change: Transition, record: Record) -> None:
        offset, after = change.offset, change.after
        self.axis.mark(offset)
        cause = CAUSES.get(change.kind, "other")
        moved: defaultdict[tuple[str | None, str | None], list[int]] = defaultdict(list)
        for partition in change.moved:
            was = self._held.pop(partition, None)
            if was is not None:
                was.last, was.ending = offset, _ending(record)
            self._hold(partition, after, offset, cause)
            now = self._held.get(partition)
            source, target = was.member if was else None, now.member if now else None
            if source != target:
                moved[source, target].append(partition)
            if isinstance(record, Handover) and self.plans and partition in self.plans[-1].pending:
                self.plans[-1].pending.discard(partition)
                self.handovers.append((self.plans[-1].offset, offset))
        by = self._name(record.by)
        for (source, target), partitions in moved.items():
            self.moves.append(Move(offset, inf, tuple(partitions), source, target, cause, by))
            if self.plans and source is not None and target is not None:
                self.plans[-1].moved += len(partitions)
        if moved or not isinstance(record, Handover):
            self._weigh(after, offset)

    def _hold(self, partition: int, state: State, offset: int, cause: Cause) -> None:
        owner, term = state.owners[partition], state.terms[partition]
        if owner is None:
            return
        past = self.tenures[partition]
        if past and past[-1].term >= term:
            text = f"partition {partition}: term {term} follows {past[-1].term}, and terms may only rise"
            self.find("broken", "term", text, offset)
        life = self.lives[owner]
        held = TenureSpan(partition, term, life.name, owner, offset, cause, led_from=self._busy.get(partition, -inf))
        self._held[partition] = held
        past.append(held)

    def _weigh(self, state: State, offset: int) -> None:
        counts = Counter(state.owners)
        for incarnation in state.seats:
            life = self.lives[incarnation]
            life.owned_max = max(life.owned_max, counts[incarnation])
        weights = {
            seat.incarnation: state.weights.get(seat.name, seat.weight)
            for seat in state.seats.values()
            if seat.name not in state.drains
        }
        whole = sum(weights.values())
        if whole:
            fair = len(state.owners) / whole
            # A member that may own one partition, and whose fair share is half of one, is not overloaded.
            ratio = max(counts[it] / max(1.0, weight * fair) for it, weight in weights.items() if weight)
            self.balance.append((offset, ratio))

    def _name(self, incarnation: str) -> str:
        life = self.lives.get(incarnation)
        return incarnation if life is None else life.name


def _ending(record: Record) -> Ending:
    endings: Mapping[type, Ending] = {Join: "replaced", Expire: "expire", Certify: "certify", Leave: "leave"}
    return endings.get(type(record), "handover")


def _life(incarnation: str, state: State, offset: int, *, settled: int | None = None) -> MemberLife:
    seat = state.seats[incarnation]
    return MemberLife(incarnation, seat.name, seat.address, offset, settled)


def _names(state: State, incarnations: Sequence[str | None]) -> list[str | None]:
    return [None if it is None else state.seats[it].name for it in incarnations]


def _moves(before: Sequence[str | None], after: Sequence[str | None]) -> int:
    return sum(was != now and was is not None and now is not None for was, now in zip(before, after, strict=True))
