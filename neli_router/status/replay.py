"""The replay: a ledger's entries, one after the other, and what each of them changed. It is the only fold in this room.

    ledger --between--> entries --decode, fold--> a Transition each: the record, and the states before and after it
              ^                                     |--> chronicle, annals    causes, counts, lives, tenures
       state_before(offset), beginning              |--> history              rows
                                                    '--> inspection           Beats, writers

    UNKNOWN --the place of a state that is known--> KNOWN --an entry out of order--> UNKNOWN, for that entry alone
       |                                              '--a fold that this release does not know--> GroupMismatch
       '-- every record is read, but what it changed is not known

**Where it starts.** Members drop what no newcomer needs, so a ledger seldom has its first record. It has snapshots
instead. A state is known

- if the ledger begins with its first record, or with a Genesis whose writer had read everything before: nothing is;
- from the place of a snapshot on after which no record is missing, and which does not contradict itself;
- if the caller kept one.

`state_before` finds the state at any offset of an open ledger: it folds on from the newest snapshot at or below, so any
range can be read independently. `beginning` finds the first one in a stream of entries that cannot be read twice.

**Guarantees.** Each entry gives one Transition, in order, so that a hole in the offsets always means a lost record.
Bytes that are not a record have a Transition, too: their record is None, and they change nothing, as in every member.
The fold is that of the members, so a Transition is exact and the same for all readers. Nothing is guessed: as long as
the state is not known, a Transition names no member and no partition. A record that is dropped before it was read is an
error of `between`, LedgerTrimmed, and never a silent gap.

A replay appends nothing and does not join; the group does not notice it. A chronicle replays on the thread that keeps
a lease, so a Transition computes nothing before it is asked.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from math import inf
from typing import NamedTuple, TypeVar

from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.pump import FIRST_OFFSET_MAX
from neli_router.errors import LedgerRewound, LedgerTrimmed, LedgerUnavailable
from neli_router.protocols.induction.admission import unknown_version
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Beat, Genesis, Handover, Join, Record, Snapshot, decode
from neli_router.protocols.induction.snapshots import BadSnapshot, restore

__all__ = [
    "State",
    "Transition",
    "beginning",
    "between",
    "patiently",
    "replayed",
    "state_before",
    "step",
    "tip_above",
    "untrimmed",
]

PATIENCE = 30.0
"""Seconds without an answer after which an unreadable ledger is given up. A longer time survives a broker's restart; a
shorter one reports the failure sooner."""

TIP_MAX = 2.0
"""Seconds for which a tip that is too low is not believed: a broker that has just become the leader may not yet know
how far the log goes."""

LOOKS_MAX = 8
"""How often to read when records are dropped meanwhile."""

READ_MAX_SECONDS = 0.5
RETRY_EVERY = 0.05

LOOK_BACK = 6_000
"""How far below a range to look for a snapshot at first; by default, more than the records between two snapshots."""

LOOK_FACTOR = 4

UNKNOWN = State()

Answer = TypeVar("Answer")


class Transition(NamedTuple):
    """What one record changed. Where nothing is known about that, both states are empty."""

    offset: int
    record: Record | None
    """None for bytes that are not a record."""
    before: State
    after: State

    @classmethod
    def of(cls, before: State, offset: int, record: Record | None) -> "Transition":
        """For a caller that takes any version of the fold; others call `step`."""
        return cls(offset, record, before, fold(before, offset, record))

    @property
    def is_known(self) -> bool:
        return self.before is not UNKNOWN

    @property
    def kind(self) -> str:
        return "unreadable" if self.record is None else type(self.record).__name__.lower()

    @property
    def counts(self) -> bool:
        """Whether it changed anything. Snapshots and void records never do."""
        return self.before.digest != self.after.digest

    @property
    def is_late(self) -> bool:
        """Whether it is the Beat of an incarnation that is not, or no longer, a member."""
        return isinstance(self.record, Beat) and self.after.last_beats.get(self.record.by) != self.offset

    @property
    def has_joined(self) -> bool:
        """Whether it is the Join of a new member."""
        record = self.record
        return isinstance(record, Join) and record.by in self.after.seats and record.by not in self.before.seats

    @property
    def gone(self) -> list[str]:
        """The incarnations that are no longer members, or away from here on, sorted."""
        # Compare by identity first, here and below: the fold keeps what a record does not change.
        before, after = self.before, self.after
        if before.seats is after.seats and before.away is after.away:
            return []
        return sorted(before.members.keys() - after.members.keys())

    @property
    def moved(self) -> list[int]:
        """The partitions that from here on have another owner, or the same owner under another term."""
        before, after = self.before, self.after
        if before.owners is after.owners and before.terms is after.terms:
            return []
        if isinstance(self.record, Handover):
            return [i for i in sorted(self.record.terms) if i < len(before.terms) and before.terms[i] != after.terms[i]]
        had = zip(before.owners, before.terms, strict=True) if before.owners else repeat((None, 0))
        pairs = zip(had, zip(after.owners, after.terms, strict=True), strict=False)
        return [partition for partition, (was, now) in enumerate(pairs) if was != now]

    def former_owner(self, partition: int) -> str | None:
        """The incarnation that owned `partition` before. A group has no partitions before its Genesis."""
        return self.before.owners[partition] if self.before.owners else None


def step(state: State | None, entry: Entry) -> Transition:
    """What `entry` changed, if the state before it is known; that is the case from `state.at` on.

    Raises GroupMismatch if the group folds its ledger in a way that this release does not know.
    """
    record = decode(entry.payload)
    if state is None or entry.offset < state.at:
        return Transition(entry.offset, record, UNKNOWN, UNKNOWN)
    change = Transition.of(state, entry.offset, record)
    if error := unknown_version(change.after):
        raise error
    return change


def replayed(entries: Iterable[Entry], state: State | None) -> Iterator[tuple[Entry, Transition]]:
    """Each of `entries`, and what it changed. `state` is what `state_before` returns for the first. Raises like
    `step`."""
    for entry in entries:
        change = step(state, entry)
        state = change.after if change.is_known else state
        yield entry, change


def beginning(entries: Sequence[Entry]) -> State | None:
    """The state to start from, if the last of `entries` shows one; None if more must be read.

    Records that stand before its place are part of it. Raises BadSnapshot if the last one is a snapshot that
    contradicts itself.
    """
    first, record = entries[0].offset, decode(entries[-1].payload)
    if first <= FIRST_OFFSET_MAX or (isinstance(record, Genesis) and record.at <= first):
        return State()
    return _restored(record, entries[-1].offset, first)


def state_before(ledger: Ledger, offset: int) -> State | None:
    """The state that results from all records below `offset`. Moves the ledger's position.

    If too much was dropped for that, returns the first state above that can be known: its `at` is higher than `offset`.
    None if the ledger holds no snapshot from which any state could be known. Raises like `between`.
    """
    return untrimmed(lambda: _state_before(ledger, offset))


def between(ledger: Ledger, start: int, end: int, *, patience: float = PATIENCE) -> Iterator[Entry]:
    """The entries from `start` up to but not including `end`. Moves the ledger's position.

    Raises LedgerTrimmed if the entry at `start`, or a later one before it was read, is no longer retained;
    LedgerRewound if the ledger ends before `end`; LedgerUnavailable after `patience` seconds without an answer.
    """
    if end <= start:
        return
    tip_above(ledger, end, patience=patience)
    ledger.seek(start)
    position = start
    while position < end:
        entries = patiently(lambda: _read(ledger), patience=patience)
        if not entries:
            return  # Only places without a record are left: in Kafka, other programs' transactions take some.
        for entry in entries:
            if entry.offset >= end:
                return
            yield entry
        position = entries[-1].offset + 1


def tip_above(ledger: Ledger, end: int, *, patience: float = PATIENCE) -> int:
    """The ledger's tip. Raises LedgerRewound if that is below `end`, which an earlier tip was not."""
    give_up_at = time.monotonic() + min(patience, TIP_MAX)
    while (tip := patiently(ledger.tip, patience=patience)) < end:
        if time.monotonic() >= give_up_at:
            raise LedgerRewound(
                f"the records of {ledger.address} up to offset {end} were wanted",
                f"it ends at {tip}",
                "ask for what is there; if it was longer before, it lost records: find out what happened to it",
            )
        time.sleep(RETRY_EVERY)
    return tip


def untrimmed(read: Callable[[], Answer]) -> Answer:
    """The result of `read`, which starts over if records were dropped before it came to them: the rest has a newer
    snapshot. Raises LedgerTrimmed if that happens LOOKS_MAX times."""
    for _ in range(LOOKS_MAX - 1):
        with suppress(LedgerTrimmed):
            return read()
    return read()


def patiently(ask: Callable[[], Answer], *, patience: float = PATIENCE) -> Answer:
    """The answer of `ask`, which is called again while it raises LedgerUnavailable, for `patience` seconds."""
    give_up_at = time.monotonic() + patience
    while True:
        try:
            return ask()
        except LedgerUnavailable:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(RETRY_EVERY)


def _read(ledger: Ledger) -> Sequence[Entry]:
    """The next entries; empty if the ledger is known to have none. Silence without that knowledge is not an answer."""
    entries = ledger.read(READ_MAX_SECONDS)
    if not entries and ledger.age() == inf:
        raise LedgerUnavailable(
            f"the next records of {ledger.address} were wanted", "none came in time", "look after the ledger"
        )
    return entries


def _state_before(ledger: Ledger, offset: int) -> State | None:
    start, tip = patiently(ledger.start), patiently(ledger.tip)
    span, low, state = LOOK_BACK, offset, None
    while state is None and low > start:
        low = max(start, offset - span)
        for newer in _snapshots(between(ledger, low, min(offset, tip)), start):
            state = newer  # The last one leaves the least to fold.
        span *= LOOK_FACTOR
    if state is None and start <= FIRST_OFFSET_MAX:
        state = State()
    if state is None:
        # A snapshot is written some places above the records that it covers, so the ledger's first one may be above.
        state = next(_snapshots(between(ledger, max(start, offset), tip), start), None)
    if state is not None:
        for entry in between(ledger, max(start, state.at), min(offset, tip)):
            state = step(state, entry).after
    return state


def _snapshots(entries: Iterable[Entry], start: int) -> Iterator[State]:
    """The state of each good snapshot from whose place on all records are retained."""
    for entry in entries:
        # This check saves decoding thousands of Beats to find one snapshot.
        record = decode(entry.payload) if b'"snapshot"' in entry.payload[:40] else None
        with suppress(BadSnapshot):
            if (state := _restored(record, entry.offset, start)) is not None:
                yield state


def _restored(record: Record | None, offset: int, start: int) -> State | None:
    """The state in a snapshot at `offset`, if all records that are not in it are at `start` or above."""
    return restore(record) if isinstance(record, Snapshot) and start <= record.upto <= offset else None
