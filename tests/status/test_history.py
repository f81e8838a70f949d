"""The history: a ledger's records as rows, and the tenures that follow from them.

Incarnations are single letters, and each member is called by a word. The ledger is in memory, so the Genesis is at
offset 1, and the term 1002 began with the record at offset 2.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neli_router.drivers.ledgers.base import Entry
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.errors import GroupMismatch, LedgerRewound, LedgerTrimmed, LedgerUnavailable
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import (
    Certify,
    Drain,
    Handover,
    Leave,
    Pin,
    Record,
    Snapshot,
    Weigh,
    decode,
    encode,
)
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.status import replay
from neli_router.status.history import RecordRow, TenureRow, record_rows, standing_rows, tenure_rows
from neli_router.status.replay import between, state_before
from tests.support.records import BASE, Plot, beat, expire, folded, genesis, join, next_record, plots

LAW = settings(max_examples=60)

ALICE, BOB = join("a", "alice", address="alice:1"), join("b", "bob")
PAIR = (genesis(), ALICE, BOB, Handover(by="a", terms={1: 1002}), Handover(by="a", terms={3: 1002}))
"""Two members with two partitions each; the next record is at offset 6."""
EMPTY = State(at=1)
"""The ledger in memory begins at offset 1."""


def ledger_of(*records: Record | bytes, kind: Callable[[MemoryLog], MemoryLedger] = MemoryLedger) -> MemoryLedger:
    ledger = kind(MemoryLog())
    ledger.append([record if isinstance(record, bytes) else encode(record) for record in records])
    return ledger


def rows_of(ledger: MemoryLedger, start: int = 0, end: int = 0) -> list[RecordRow]:
    start, end = start or ledger.start(), end or ledger.tip()
    state = state_before(ledger, start)
    return list(record_rows(between(ledger, start, end), state))


def tenures_of(ledger: MemoryLedger, start: int = 0) -> list[TenureRow]:
    """Including those that stand at the beginning."""
    start = start or ledger.start()
    state = state_before(ledger, start)
    return [*standing_rows(state), *tenure_rows(between(ledger, start, ledger.tip()), state)]


def spelled(rows: Iterable[TenureRow]) -> list[str]:
    """For example "4: 1 alice@1002 -> bob@1004 by handover"."""
    return [
        f"{row.offset}: {row.partition} {row.former_member}@{row.former_term} -> {row.member}@{row.term} by {row.kind}"
        for row in rows
    ]


def test_each_record_is_a_row_of_what_it_said_with_its_time_and_its_writers_name_while_it_is_a_member() -> None:
    rows = rows_of(ledger_of(*PAIR, beat("b", sent_at=7.5), Pin(by="ops", partition=2, name="bob")))
    assert ["genesis", "join", "join", "handover", "handover", "beat", "pin"] == [row.kind for row in rows]
    assert [1, 2, 3, 4, 5, 6, 7] == [row.offset for row in rows]
    assert [None, "alice", "bob", None, None, None, "bob"] == [row.name for row in rows]
    assert [None, None, None, 1, 3, None, 2] == [row.partition for row in rows]
    assert (0, 7.5) == (rows[5].at, rows[5].sent_at)
    assert [None, "a", "b", None, None, None, None] == [row.incarnation for row in rows]
    assert encode(ALICE).decode() == rows[1].payload
    rows = rows_of(ledger_of(*PAIR, beat("b"), Leave(by="b"), beat("b"), Drain(by="ops", name="bob")))
    assert [None, "alice", "bob", "alice", "alice", "bob", "bob", None, None] == [row.member for row in rows]
    assert ["a", "a", "b", "a", "a", "b", "b", "b", "ops"] == [row.by for row in rows]
    kept = [Entry(1, encode(genesis()), 12.25), Entry(2, encode(ALICE))]
    assert [12.25, None] == [row.time for row in record_rows(kept, State())]


def test_a_record_without_effect_has_a_row_that_says_so() -> None:
    for record in (
        *(b"no record", b'{"kind":"beat","by":"\xff"}', beat("stranger"), genesis("b"), join("c", "alice", at=2)),
        *(expire("b", "a", 1), Handover(by="a", terms={1: 1002}), Weigh(by="ops", name="bob", weight=None)),
    ):
        row = rows_of(ledger_of(*PAIR, record))[-1]
        assert (6, False, []) == (row.offset, row.counted, row.moved), record
    counted = [row.counted for row in rows_of(ledger_of(*PAIR, beat("a"), Drain(by="ops", name="alice")))]
    assert [True] * 7 == counted
    # Bytes that are not a record are shown in a way that no reader mistakes for one.
    valid = encode(join("a", "al\xefce"))
    row = rows_of(ledger_of(genesis(), valid.replace("\xef".encode(), b"\xef")))[-1]
    assert ("unreadable", None, None) == (row.kind, row.by, row.name)
    assert '"name":"al\\xefce"' in row.payload
    assert decode(row.payload.encode()) is None


def test_each_partition_that_changes_hands_has_a_row_and_the_record_names_them_and_the_member_that_died() -> None:
    rows = tenures_of(ledger_of(*PAIR))
    assert [
        *(f"2: {partition} None@None -> alice@1002 by join" for partition in range(4)),
        "4: 1 alice@1002 -> bob@1004 by handover",
        "5: 3 alice@1002 -> bob@1005 by handover",
    ] == spelled(rows)
    assert ("a", "alice:1", None) == (rows[0].incarnation, rows[0].address, rows[0].former_incarnation)
    rows = tenures_of(ledger_of(genesis(), ALICE, Leave(by="a")))
    assert [f"3: {partition} alice@1002 -> None@None by leave" for partition in range(4)] == spelled(rows[4:])
    # A process that comes back under its name has new tenures.
    rows = tenures_of(ledger_of(genesis(), ALICE, join("c", "alice", at=3)))
    assert [f"3: {partition} alice@1002 -> alice@1003 by join" for partition in range(4)] == spelled(rows[4:])
    assert {("a", "c")} == {(row.former_incarnation, row.incarnation) for row in rows[4:]}
    # Tenures from before are listed with the offset where they began.
    rows = tenures_of(ledger_of(*PAIR, beat("a"), beat("b")), start=6)
    assert [
        "2: 0 None@None -> alice@1002 by None",
        "4: 1 None@None -> bob@1004 by None",
        "2: 2 None@None -> alice@1002 by None",
        "5: 3 None@None -> bob@1005 by None",
    ] == spelled(rows)
    assert [] == tenures_of(ledger_of(b"no record"))  # Without a group there are none.
    records = rows_of(ledger_of(*PAIR, expire("b", "a", 2), beat("b")))
    assert [[], [0, 1, 2, 3], [], [1], [3], [0, 2], []] == [row.moved for row in records]
    assert [None, 1002, None, 1004, 1005, 1006, None] == [row.term for row in records]
    assert ("alice", "a") == (records[5].name, records[5].incarnation)
    row = rows_of(ledger_of(*PAIR, Certify(by="b", incarnation="a")))[-1]
    assert ("certify", "bob", "alice", "a", [0, 2]) == (row.kind, row.member, row.name, row.incarnation, row.moved)
    row = rows_of(ledger_of(*PAIR, snapshot("a", folded(*PAIR, state=EMPTY))))[-1]
    assert ("snapshot", "alice", False) == (row.kind, row.member, row.counted)


def written(plot: Sequence[Plot]) -> tuple[MemoryLedger, State]:
    """A ledger in which `plot` happens after a Genesis, and the state at its end."""
    state = folded(genesis(), state=EMPTY)
    records: list[Record | bytes] = [genesis()]
    for one in plot:
        record = next_record(state, one)
        records.append(b"junk" if record is None else record)
        state = fold(state, state.at, record)
    return ledger_of(*records), state


@LAW
@given(plots, st.lists(st.integers(1, 42), max_size=3))
def test_the_ranges_of_a_ledger_say_together_what_it_says_as_a_whole(plot: list[Plot], cuts: list[int]) -> None:
    ledger, _ = written(plot)
    places = sorted({1, ledger.tip(), *(cut for cut in cuts if cut < ledger.tip())})
    parts = [row for start, end in pairwise(places) for row in rows_of(ledger, start, end)]
    assert rows_of(ledger) == parts


@LAW
@given(plots, st.integers(1, 42))
def test_the_tenures_from_any_offset_on_lead_to_the_same_owners(plot: list[Plot], start: int) -> None:
    ledger, state = written(plot)
    owned: dict[int, tuple[str | None, int | None]] = {}
    for row in tenures_of(ledger, min(start, ledger.tip())):
        assert row.former_incarnation is None or owned[row.partition] == (row.former_incarnation, row.former_term)
        assert row.term is None or row.offset == row.term - BASE
        owned[row.partition] = row.incarnation, row.term
    pairs = zip(state.owners, state.terms, strict=True)
    wanted = {partition: pair for partition, pair in enumerate(pairs) if pair[0] is not None}
    assert wanted == {partition: pair for partition, pair in owned.items() if pair[0] is not None}


@LAW
@given(plots, st.integers(1, 42))
def test_what_is_left_of_a_trimmed_ledger_says_what_it_said_before(plot: list[Plot], start: int) -> None:
    ledger, _ = written(plot)
    whole = rows_of(ledger)
    start = min(start, ledger.tip())
    ledger.trim(start)
    state = state_before(ledger, start)
    known = ledger.tip() if state is None else state.at
    assert [row for row in whole if row.offset >= max(start, known)] == [
        row for row in rows_of(ledger) if row.offset >= known
    ]
    assert {None} >= {row.counted for row in rows_of(ledger) if row.offset < known}


def test_the_newest_sound_snapshot_is_found_however_far_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "LOOK_BACK", 2)
    ledger = ledger_of(*PAIR, snapshot("a", folded(*PAIR, state=EMPTY)), *[beat("a")] * 50)
    ledger.trim(6)
    assert [row.member for row in rows_of(ledger, 40, 42)] == ["alice", "alice"]
    good = snapshot("a", folded(*PAIR, state=EMPTY))
    bad = Snapshot(by="a", state=good.state, upto=7)
    ledger = ledger_of(*PAIR, good, b'{"kind":"snapshot"}', b'{"kind":"snapshot","by":"a","upto":3}', beat("b"), bad)
    ledger.trim(6)
    assert "bob" == rows_of(ledger, 9)[0].member


def test_before_the_first_snapshot_left_or_without_one_only_the_record_itself_is_known() -> None:
    records = (*PAIR, beat("a"), beat("b"))
    ledger = ledger_of(*records, snapshot("a", folded(*records, state=EMPTY)), beat("b"))
    ledger.trim(6)
    rows = rows_of(ledger)
    assert [None, None, None, None] == [rows[0].member, rows[0].counted, rows[0].moved, rows[0].term]
    assert ["a", "b", "a", "b"] == [row.by for row in rows]
    assert [None, None, "alice", "bob"] == [row.member for row in rows]
    assert 4 == len(tenures_of(ledger))
    ledger = ledger_of(*PAIR, beat("a"), expire("b", "a", 2))
    ledger.trim(6)
    assert [(None, None), (None, None)] == [(row.member, row.name) for row in rows_of(ledger)]
    assert [] == tenures_of(ledger)


class Faltering(MemoryLedger):
    """Raises, or returns nothing without knowing why, once for each of `troubles`."""

    def __init__(self, log: MemoryLog, troubles: list[Callable[[], list[Entry]]]) -> None:
        super().__init__(log)
        self._troubles, self.unsure = troubles, False

    def read(self, timeout: float) -> list[Entry]:
        self.unsure = bool(self._troubles)
        return self._troubles.pop()() if self._troubles else super().read(timeout)

    def age(self) -> float:
        return float("inf") if self.unsure else super().age()


def away() -> list[Entry]:
    raise LedgerUnavailable("a read was wanted", "nothing answers", "wait")


def test_a_short_outage_leaves_nothing_out_and_a_long_one_or_a_range_that_is_not_there_is_an_error() -> None:
    ledger = ledger_of(*PAIR, kind=partial(Faltering, troubles=[away, list, away]))
    assert [1, 2, 3, 4, 5] == [entry.offset for entry in between(ledger, 1, 6)]
    for trouble in (away, list):
        ledger = ledger_of(*PAIR, kind=partial(Faltering, troubles=[trouble] * 10))
        with pytest.raises(LedgerUnavailable):
            list(between(ledger, 1, 6, patience=0.0))
    assert [4, 5] == [entry.offset for entry in between(ledger_of(*PAIR, kind=Holed), 4, 7)]
    with pytest.raises(GroupMismatch):
        rows_of(ledger_of(genesis(version=9), join("a", "alice", versions=(1, 9))))
    held = ledger_of(*PAIR)
    assert [] == list(between(held, 4, 4))
    with pytest.raises(LedgerRewound, match="up to offset 9 were wanted, but it ends at 6: ask for what is there"):
        list(between(held, 2, 9, patience=0.0))
    held.trim(3)
    with pytest.raises(LedgerTrimmed, match="offset 2 was wanted, but the ledger in memory starts at 3"):
        list(between(held, 2, 4))


class Holed(MemoryLedger):
    """Its last place holds no record, like where a transaction of another program ended in Kafka."""

    def tip(self) -> int:
        return super().tip() + 1
