"""A group's history as plain rows: what was written to its ledger, and who owned which partition from when.

    entries --replay--> changes --record_rows---> a RecordRow per record: as written, and what the fold made of it
                           '------tenure_rows---> a TenureRow per partition that got another owner or another term

A ledger holds records, but most questions are about tenures: who owned partition 7 under term 9,041? No record says so.
One Expire may pass on a hundred partitions, to several members, and the Expire names none of them: that follows from
the fold. So there are two tables.

- *Records*: every place in the range has its row, including void records and bytes that are not a record. The record's
  own content is as written. `member`, `counted`, `moved` and `term` come from the fold.
- *Tenures*: a row for each partition at each offset where its owner or its term changed. A tenure lasts until the next
  row of its partition. Owners that `state_before` knows already have rows, too (`standing_rows`): the term says where
  each tenure began, even if the record that began it is gone.

Where the state is not known (see `replay`), the fold's columns are None, and tenures are missing. None always means
"not known" or "does not apply", never a guess.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from neli_router.drivers.ledgers.base import Entry
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Beat, Certify, Expire, Genesis, Join
from neli_router.status.replay import replayed

__all__ = ["RecordRow", "TenureRow", "record_rows", "standing_rows", "tenure_rows"]


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
    """The incarnation that it is about, for a Join, a Certify, and an Expire of one."""
    partition: int | None
    """The partition that a Pin, an Unpin or a Handover of one names; see `moved` for all."""
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


def record_rows(entries: Iterable[Entry], state: State | None) -> Iterator[RecordRow]:
    """A row for each of `entries`. `state` is what `state_before` returns for the first. Raises like `step`."""
    for entry, change in replayed(entries, state):
        record, before, after = change.record, change.before, change.after
        moved = change.moved if change.is_known else None
        by = "" if record is None else record.by
        # Before it, for a Leave; after it, for a Join.
        seat = before.seats.get(by) or after.seats.get(by)
        incarnation = by if isinstance(record, Join) else _only(getattr(record, "last_beats", ()))
        incarnation = getattr(record, "incarnation", incarnation)
        subject = before.seats.get(incarnation or "") if isinstance(record, Expire | Certify) else record
        yield RecordRow(
            offset=entry.offset,
            time=entry.time,
            kind=change.kind,
            member=None if seat is None else seat.name,
            by=None if record is None else by,
            counted=change.counts if change.is_known else None,
            name=getattr(subject, "name", None),
            incarnation=incarnation,
            partition=getattr(record, "partition", _only(getattr(record, "terms", ()))),
            moved=moved,
            term=after.base + entry.offset if moved else None,
            at=record.at if isinstance(record, Genesis | Join | Beat) else None,
            sent_at=record.sent_at if isinstance(record, Beat) else None,
            payload=entry.payload.decode(errors="backslashreplace"),
        )


def _only(named: Collection[Any]) -> Any:
    """The one thing that a record names, if it is one."""
    return next(iter(named)) if len(named) == 1 else None


def tenure_rows(entries: Iterable[Entry], state: State | None) -> Iterator[TenureRow]:
    """A row for each partition at each entry that gave it another owner or term. Otherwise like `record_rows`."""
    for entry, change in replayed(entries, state):
        for partition in change.moved:
            had = change.former_owner(partition)
            former = None if had is None else change.before.seats[had]
            yield _tenure_row(change.after, partition, entry.offset)._replace(
                time=entry.time,
                kind=change.kind,
                former_member=None if former is None else former.name,
                former_incarnation=had,
                former_term=None if former is None else change.before.terms[partition],
            )


def standing_rows(state: State | None) -> Iterator[TenureRow]:
    """A row for each partition that has an owner in `state`, at the offset where its tenure began."""
    if state is None or state.genesis is None:
        return
    for partition, (owner, began) in enumerate(zip(state.owners, state.began, strict=True)):
        if owner is not None:
            yield _tenure_row(state, partition, began)


def _tenure_row(state: State, partition: int, offset: int) -> TenureRow:
    owner = state.owners[partition]
    if owner is None:
        return TenureRow(offset, None, None, partition, None, None, None, None, None, None, None)
    seat, term = state.seats[owner], state.terms[partition]
    return TenureRow(offset, None, None, partition, term, seat.name, owner, seat.address, None, None, None)
