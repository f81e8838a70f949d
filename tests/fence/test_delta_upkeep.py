"""A fenced Delta table over the years: columns are added, files are compacted, and foreign writers are noticed."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from neli_router.core.keyspace import Layout
from neli_router.fence import TableMismatch
from neli_router.fence.delta import FencedTable

LAYOUT = Layout(partitions=8)
FIRST = pa.schema([("id", pa.int64())])
VENUE = pa.schema([("venue", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> FencedTable:
    return FencedTable.create(tmp_path / "ticks", FIRST, LAYOUT)


def rows(number: int, partition: int = 1, **more: str) -> pa.Table:
    return pa.Table.from_pylist([{"id": number, "partition": partition, **more}])


def held(table: FencedTable) -> list[tuple[int, str | None]]:
    """(id, venue) of all rows, as any engine reads them."""
    found = DeltaTable(str(table.path)).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row.get("venue")) for row in found)


def test_writers_of_two_versions_go_on_while_a_column_is_added(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = FencedTable(table.path), FencedTable(table.path)
    with pytest.raises(TableMismatch, match=r"venue is not in the table: .*`add_columns`"):
        new.append(rows(0, venue="X"), {1: 7}, 0)
    with old.stage({1: 7}, 0) as staging:
        staging.write(rows(0))
        place = staging.place

        def upgraded(partitions: Iterable[int]) -> object:
            new.add_columns(VENUE)
            return place(partitions)

        monkeypatch.setattr(staging, "place", upgraded)  # Between the look of the old writer and its commit.
        assert (1,) == old.commit(staging).landed
    assert (2,) == new.append(rows(1, 2, venue="X"), {2: 7}, 0).landed
    assert (1,) == FencedTable.create(table.path, FIRST, LAYOUT).append(rows(2), {1: 7}, 1).landed
    assert [(0, None), (1, "X"), (2, None)] == held(table)
    assert 1 == len(table.files(where=[("venue", "=", "X")])) - 1  # The old attempt knew no such column.
    assert () == new.add_columns(pa.schema([*FIRST, *VENUE]))
    with pytest.raises(TableMismatch, match="id is missing"):  # Not a later one: this is a fault of the writer.
        table.append(rows(3, venue="X").drop_columns("id"), {1: 7}, 2)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (("venue", pa.int64()), "venue is long instead of string"),
        (("ID", pa.int64()), "differ in case alone: id"),
        (("at", pa.timestamp("ns")), "found others: at"),
    ],
)
def test_no_column_is_changed_by_adding_columns(
    table: FencedTable, column: tuple[str, pa.DataType], problem: str
) -> None:
    assert ("venue",) == FencedTable(table.path).add_columns(VENUE)
    with pytest.raises(TableMismatch, match=problem):
        table.add_columns(pa.schema([column]))
    assert 1 == DeltaTable(str(table.path)).version()


def test_any_number_may_add_columns_at_once(table: FencedTable) -> None:
    tables = [FencedTable(table.path) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        wanted = [pa.schema([*VENUE, (f"c{number % 3}", pa.int64())]) for number in range(6)]
        added = [name for names in pool.map(FencedTable.add_columns, tables, wanted) for name in names]
    assert {"venue", "c0", "c1", "c2"} == {*added} == {*FencedTable(table.path).made.later}
