"""The landing's judge: it counts each missing or doubled tick, and computes the same bars as the job."""

from math import inf
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from neli_router.core.keyspace import Layout
from neli_router.fence.delta import FencedTable
from neli_router.lab.pipeline import landing
from neli_router.lab.pipeline.landing import Count, TableCommit, bars_of, counted, same_bars, taken_over, whole_bars
from neli_router.lab.pipeline.ticks import Market

NUMBERS = ("first_sequence", "last_sequence", "ticks")
RANGES = pa.schema({"instrument": pa.string(), **dict.fromkeys(NUMBERS, pa.int64())})


def rows(*ranges: tuple[str, int, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(RANGES.names, one, strict=True)) for one in ranges], schema=RANGES)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([("a", 0, 3, 4), ("a", 4, 9, 6), ("b", 0, 4, 5)], Count(15, 15, 0, 0)),
        ([("a", 4, 9, 6), ("b", 0, 4, 5), ("a", 0, 3, 4)], Count(15, 15, 0, 0)),
        ([("a", 0, 3, 4), ("a", 3, 9, 7), ("b", 0, 4, 5)], Count(15, 15, 1, 0)),
        ([("a", 0, 9, 10), ("a", 2, 4, 3), ("b", 0, 4, 5)], Count(15, 15, 3, 0)),
        ([("a", 0, 3, 4), ("a", 5, 9, 5), ("b", 0, 4, 5)], Count(15, 14, 0, 1)),
        ([("a", 0, 8, 9), ("b", 0, 4, 5)], Count(15, 14, 0, 1)),
        ([("a", 0, 9, 10)], Count(15, 10, 0, 5)),
        ([("a", 0, 9, 9), ("b", 0, 4, 5)], Count(15, 14, 0, 1)),
        ([("a", 0, 9, 11), ("b", 0, 4, 5)], Count(15, 15, 1, 0)),
        ([("a", 0, 9, 10), ("b", 0, 5, 6)], Count(15, 15, 1, 0)),
        ([], Count(15, 0, 0, 15)),
    ],
)
def test_ticks_are_counted_by_what_became_of_them(ranges: list[tuple[str, int, int, int]], expected: Count) -> None:
    found = counted(rows(*ranges), {"a": 10, "b": 5})
    assert (expected, expected.made == expected.landed and not expected.doubled) == (found, found.is_exact)


def test_bars_are_as_their_words_say() -> None:
    ticks = pa.concat_tables(Market(instruments=5).split(2000, 3))
    bars = bars_of(ticks, 60)
    for bar in bars.to_pylist():
        of = ticks.filter(pc.field("instrument") == bar["instrument"])
        of = [tick for tick in of.to_pylist() if 0 <= (tick["at"] - bar["begins"]).total_seconds() < 60]
        prices = [tick["price"] for tick in of]
        expected = [prices[0], max(prices), min(prices), prices[-1]]
        assert expected == [bar[name] for name in ("open", "high", "low", "close")]
        assert (sum(tick["size"] for tick in of), len(of)) == (bar["volume"], bar["ticks"])
        last = of[-1]
        assert (last["bid"], last["ask"], last["at"]) == (bar["bid"], bar["ask"], bar["last_at"])
    assert 2000 == sum(bars["ticks"].to_pylist())


def test_parts_of_bars_put_together_are_the_bars() -> None:
    ticks = pa.concat_tables(Market(instruments=20).split(3000, 3)).combine_chunks()
    cuts = [ticks.slice(start, 700) for start in range(0, 3000, 700)]
    parts = pa.concat_tables([bars_of(cut, 60) for cut in reversed(cuts)])
    assert parts.num_rows > bars_of(ticks, 60).num_rows
    assert bars_of(ticks, 60).num_rows == whole_bars(parts).num_rows
    assert same_bars(parts, ticks, 60)
    assert not same_bars(parts, ticks.slice(1), 60)


def test_the_tables_log_tells_each_commit(tmp_path: Path) -> None:
    layout = Layout(slots=16, partitions=4)
    table = FencedTable.create(tmp_path / "table", pa.schema({"x": pa.int64()}), layout, first_batch=1)
    table.raise_terms({1: 70, 3: 70})
    rows = pa.table({"x": [5], "partition": pa.array([3], pa.int32())})
    table.append(rows, {1: 70, 3: 70}, 1)
    table.append(rows.slice(0, 0), {3: 70}, 4, after=1)
    raised, first, second = landing.commits_of(tmp_path / "table")
    assert ({1: 70, 3: 70}, {}) == (raised.terms, raised.batches)
    assert [{1: 1, 3: 1}, {3: 4}] == [first.batches, second.batches]
    assert min(raised.at, first.at, second.at) > 1_700_000_000


def test_a_takeover_counts_until_the_last_partition_was_fenced_and_landed_by_others() -> None:
    took = {1: 50, 2: 51}
    mine = TableCommit(3, 10.0, took, dict.fromkeys(took, 7))
    fenced = [TableCommit(4, 12.0, {1: 60}, {}), TableCommit(5, 13.0, {2: 61, 9: 5}, {})]
    landed = [TableCommit(6, 14.0, {2: 61}, {2: 8}), TableCommit(7, 15.5, {1: 60}, {1: 8})]
    assert (13.0, 15.5) == taken_over([mine, *fenced, *landed], took)
    assert (13.0, inf) == taken_over([mine, *fenced, landed[0]], took)
    assert (inf, inf) == taken_over([mine], took)
