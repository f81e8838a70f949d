"""A group's history as plain rows: what was written to its ledger, and who owned which partition from when.

    ledger --between--> entries --record_rows---> a RecordRow per record: as written, and what the fold made of it
              ^             '-----tenure_rows---> a TenureRow per partition that got another owner or another term
              |
       state_before(offset): where the fold starts, so that any range of offsets can be read without those before it

**Two kinds of rows.** A ledger holds records, but most questions are about tenures: who owned partition 7 under term
9,041? No record says so. One Expire may pass on a hundred partitions, to several members, and the Expire names none of
them: that follows from the fold. So there are two tables.

- *Records*: every place in the range has its row, including void records and bytes that are not a record, so that a
  hole in the offsets always means a lost record. The record's own content is as written. `member`, `counted`, `moved`
  and `term` come from the fold; `counted` is false for a record that changed nothing.
- *Tenures*: a row for each partition at each offset where its owner or its term changed. A tenure lasts until the next
  row of its partition. Owners that `state_before` knows already have rows, too (`standing_rows`): the term says where
  each tenure began, even if the record that began it is gone.

**Where the fold starts.** Members drop what no newcomer needs, so a ledger seldom has its first record. But it has
snapshots: the newest one at or below the range, folded on, gives the state at the range's first offset. So any range
can be read independently, in parallel with others. Between the first retained record and the first snapshot's place
there may be records whose state cannot be known; there the fold's columns are None, and tenures are missing. None
always means "not known" or "does not apply", never a guess.

**Time.** Kafka keeps a time for each record. The other ledgers keep none; a Beat's `sent_at` is on its writer's own
clock.

A reader of a history appends nothing and does not join; the group does not notice it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple, TypeVar

from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.pump import FIRST_OFFSET_MAX
from neli_router.errors import LedgerRewound, LedgerTrimmed, LedgerUnavailable
from neli_router.protocols.induction.admission import unknown_version
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import (
    Beat,
    Certify,
    Expire,
    Genesis,
    Handover,
    Join,
    Pin,
    Record,
    Snapshot,
    Unpin,
    decode,
)
from neli_router.protocols.induction.snapshots import BadSnapshot, restore

__all__ = [
    "RecordRow",
    "State",
    "TenureRow",
    "base_of",
    "between",
    "folded",
    "patiently",
    "record_rows",
    "standing_rows",
    "state_before",
    "tenure_rows",
    "tip_above",
]

UNREADABLE = "unreadable"
"""The kind of ledger content that is not a record: all readers skip it."""

PATIENCE = 30.0
"""Seconds without an answer after which an unreadable ledger is given up. A longer time survives a broker's restart; a
shorter one reports the failure sooner."""

TIP_MAX = 2.0
"""Seconds for which a tip that is too low is not believed: a broker that has just become the leader may not yet know
how far the log goes."""

LOOKS_MAX = 8
"""How often to look for the state at an offset when records are dropped meanwhile."""

READ_MAX_SECONDS = 0.5
RETRY_EVERY = 0.05

LOOK_BACK = 6_000
"""How far below a range to look for a snapshot at first; by default, more than the records between two snapshots."""

LOOK_FACTOR = 4

Answer = TypeVar("Answer")


class RecordRow(NamedTuple):
    """One place in the ledger."""

    offset: int
    time: float | None
    """When it was appended, in seconds since 1970, where the ledger keeps that (Kafka)."""
    kind: str
    """As in the record; `unreadable` for bytes that are not a record."""
    member: str | None
    """The name of the member that wrote it; None if the writer was not a member at this place."""
    by: str | None
    """The writer's own name for itself: an incarnation, or any name for a wish."""
    counted: bool | None
    """Whether it changed the group's state. Snapshots and void records never do."""
    name: str | None
    """The name that it is about: the member that joins, is expired, certified dead, drained, weighed, or pinned to."""
    incarnation: str | None
    """The incarnation that it is about, for a Join, an Expire and a Certify."""
    partition: int | None
    """The partition that a Handover, a Pin or an Unpin names."""
    moved: list[int] | None
    """The partitions that from here on have another owner, or the same owner under another term."""
    term: int | None
    """The term under which `moved` are owned."""
    at: int | None
    """How far its writer had read, for a Genesis, a Join and a Beat."""
    sent_at: float | None
    """When a Beat was sent, on its writer's own clock."""
    payload: str
    """The record itself, as JSON; for an unreadable one, its bytes, with `\\x..` for those that are not text."""


class TenureRow(NamedTuple):
    """From `offset` on, `partition` belongs to `member` under `term`; to no member if these are None."""

    offset: int
    time: float | None
    kind: str | None
    """The kind of the record at `offset`; None for a tenure that had begun before the range."""
    partition: int
    term: int | None
    member: str | None
    incarnation: str | None
    address: str | None
    former_member: str | None
    """The previous owner, if any. If its name equals `member`, a process came back, or got the partition back."""
    former_incarnation: str | None
    former_term: int | None


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
        entries, at_tip = patiently(lambda: _read(ledger), patience=patience)
        if at_tip:
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


def state_before(ledger: Ledger, offset: int, *, patience: float = PATIENCE) -> State | None:
    """The state that results from all records below `offset`. Moves the ledger's position.

    If too much was dropped for that, returns the first state above that can be known: its `at` is higher than `offset`.
    None if the ledger holds no snapshot from which any state could be known. Raises like `between`.
    """
    for look in range(LOOKS_MAX):
        try:
            return _state_before(ledger, offset, patience)
        except LedgerTrimmed:  # Records were dropped after the start was looked up. The rest has a newer snapshot.
            if look == LOOKS_MAX - 1:
                raise
    raise AssertionError("the last look returns or raises")


def folded(state: State | None, entry: Entry) -> State | None:
    """The state after `entry`; unchanged where that is not known yet. Raises GroupMismatch if the group folds its
    ledger in a way that this release does not know."""
    if state is None or entry.offset < state.at:
        return state
    return _required(fold(state, entry.offset, decode(entry.payload)))


def base_of(state: State | None) -> int | None:
    """The base of the Genesis, which distinguishes two ledgers at one address; None before there is a Genesis."""
    return None if state is None or state.genesis is None else state.genesis.base


def record_rows(entries: Iterable[Entry], state: State | None) -> Iterator[RecordRow]:
    """A row for each of `entries`. `state` is what `state_before` returns for the first. Raises like `folded`."""
    for entry, record, before, after in _states(entries, state):
        moved: list[int] | None = None
        counted = member = term = None
        if before is not None and after is not None:
            counted = before.digest != after.digest
            moved = _moved(before, after)
            term = after.genesis.base + entry.offset if moved and after.genesis is not None else None
            member = _writer(record, before, after)
        yield RecordRow(
            offset=entry.offset,
            time=entry.time,
            kind=_kind(record),
            member=member,
            by=None if record is None else record.by,
            counted=counted,
            name=_name(record, before),
            incarnation=_incarnation(record),
            partition=record.partition if isinstance(record, Handover | Pin | Unpin) else None,
            moved=moved,
            term=term,
            at=record.at if isinstance(record, Genesis | Join | Beat) else None,
            sent_at=record.sent_at if isinstance(record, Beat) else None,
            payload=entry.payload.decode(errors="backslashreplace"),
        )


def tenure_rows(entries: Iterable[Entry], state: State | None) -> Iterator[TenureRow]:
    """A row for each partition at each of `entries` that gave it another owner or term. Otherwise like
    `record_rows`."""
    for entry, record, before, after in _states(entries, state):
        if before is None or after is None or (partitions := _moved(before, after)) is None:
            continue
        for partition in partitions:
            owner, term = after.owners[partition], after.terms[partition]
            seat = None if owner is None else after.seats[owner]
            had = before.owners[partition] if before.owners else None
            former = None if had is None else before.seats[had]
            yield TenureRow(
                offset=entry.offset,
                time=entry.time,
                kind=_kind(record),
                partition=partition,
                term=None if seat is None else term,
                member=None if seat is None else seat.name,
                incarnation=owner,
                address=None if seat is None else seat.address,
                former_member=None if former is None else former.name,
                former_incarnation=had,
                former_term=None if former is None else before.terms[partition],
            )


def standing_rows(state: State | None) -> Iterator[TenureRow]:
    """A row for each partition that has an owner in `state`, at the offset where its tenure began."""
    if state is None or state.genesis is None:
        return
    for partition, (owner, term) in enumerate(zip(state.owners, state.terms, strict=True)):
        if owner is not None:
            seat = state.seats[owner]
            offset = term - state.genesis.base
            yield TenureRow(offset, None, None, partition, term, seat.name, owner, seat.address, None, None, None)


def _read(ledger: Ledger) -> tuple[Sequence[Entry], bool]:
    """The next entries, and whether the ledger is known to have none. Silence without that knowledge is not an
    answer."""
    entries = ledger.read(READ_MAX_SECONDS)
    if not entries and ledger.age() == inf:
        raise LedgerUnavailable(
            f"the next records of {ledger.address} were wanted", "none came in time", "look after the ledger"
        )
    return entries, not entries


def _state_before(ledger: Ledger, offset: int, patience: float) -> State | None:
    start, tip = patiently(ledger.start, patience=patience), patiently(ledger.tip, patience=patience)
    span, low, state = LOOK_BACK, offset, None
    while state is None and low > start:
        low = max(start, offset - span)
        for newer in _snapshots(between(ledger, low, min(offset, tip), patience=patience), start):
            state = newer  # The last one leaves the least to fold.
        span *= LOOK_FACTOR
    if state is None and start <= FIRST_OFFSET_MAX:
        state = State()
    if state is None:
        # A snapshot is written some places above the records that it covers, so the ledger's first one may be above.
        state = next(_snapshots(between(ledger, max(start, offset), tip, patience=patience), start), None)
    if state is not None:
        for entry in between(ledger, max(start, state.at), min(offset, tip), patience=patience):
            state = _required(fold(state, entry.offset, decode(entry.payload)))
    return state


def _snapshots(entries: Iterable[Entry], start: int) -> Iterator[State]:
    """The state of each good snapshot from whose place on all records are retained."""
    for entry in entries:
        # This check saves decoding thousands of Beats to find one snapshot.
        record = decode(entry.payload) if b'"snapshot"' in entry.payload[:40] else None
        if isinstance(record, Snapshot) and start <= record.upto <= entry.offset:
            try:
                yield restore(record)
            except BadSnapshot:
                continue


def _states(
    entries: Iterable[Entry], state: State | None
) -> Iterator[tuple[Entry, Record | None, State | None, State | None]]:
    """Each entry with its record and the states before and after it; None where they are not known."""
    for entry in entries:
        record = decode(entry.payload)
        if state is None or entry.offset < state.at:
            yield entry, record, None, None
            continue
        before, state = state, _required(fold(state, entry.offset, record))
        yield entry, record, before, state


def _required(state: State) -> State:
    if error := unknown_version(state):
        raise error
    return state


def _moved(before: State, after: State) -> list[int]:
    # Compare by identity first: the fold keeps what a record does not change, and nearly every record changes neither.
    if before.owners is after.owners and before.terms is after.terms:
        return []
    had = zip(before.owners, before.terms, strict=True) if before.owners else ((None, 0) for _ in after.owners)
    has = zip(after.owners, after.terms, strict=True)
    return [partition for partition, (was, now) in enumerate(zip(had, has, strict=True)) if was != now]


def _kind(record: Record | None) -> str:
    return UNREADABLE if record is None else type(record).__name__.lower()


def _writer(record: Record | None, before: State, after: State) -> str | None:
    """The name of the member that wrote `record`: before it, for a Leave; after it, for a Join."""
    seat = None if record is None else before.seats.get(record.by) or after.seats.get(record.by)
    return None if seat is None else seat.name


def _name(record: Record | None, before: State | None) -> str | None:
    if isinstance(record, Expire | Certify):
        seat = None if before is None else before.seats.get(record.incarnation)
        return None if seat is None else seat.name
    return getattr(record, "name", None)


def _incarnation(record: Record | None) -> str | None:
    match record:
        case Join(by):
            return by
        case Expire() | Certify():
            return record.incarnation
        case _:
            return None
