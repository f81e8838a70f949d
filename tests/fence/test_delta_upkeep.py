"""A fenced Delta table over the years: columns are added, files are compacted, and foreign writers are noticed."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from neli_router.core.keyspace import Layout
from neli_router.fence import Refused, TableMismatch
from neli_router.fence.delta import Compaction, FencedTable, Progress, Staging
from tests.fence.lakes import meanwhile

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
    return sorted((row["id"], row.get("venue")) for row in DeltaTable(str(table.path)).to_pyarrow_table().to_pylist())


def test_two_versions_write_while_a_column_is_added(table: FencedTable) -> None:
    old, new = FencedTable(table.path), FencedTable(table.path)
    with pytest.raises(TableMismatch, match=r"venue is not in the table: .*`add_columns`"):
        new.append(rows(0, venue="X"), {1: 7}, 0)
    assert (1,) == meanwhile(old, lambda: new.add_columns(VENUE), added=rows(0)).landed
    assert (2,) == new.append(rows(1, 2, venue="X"), {2: 7}, 0).landed
    assert (1,) == FencedTable.create(table.path, FIRST, LAYOUT).append(rows(2), {1: 7}, 1).landed
    assert [(0, None), (1, "X"), (2, None)] == held(table)
    assert 1 == len(table.files(where=[("venue", "=", "X")])) - 1  # The old attempt knew no such column.
    assert () == new.add_columns(pa.schema([*FIRST, *VENUE]))
    with pytest.raises(TableMismatch, match="id is missing"):  # Not a later one: this is a fault of the writer.
        table.append(rows(3, venue="X").drop_columns("id"), {1: 7}, 2)


def test_no_column_is_changed_by_adding_columns(table: FencedTable) -> None:
    assert ("venue",) == FencedTable(table.path).add_columns(VENUE)
    columns = ("venue", pa.int64()), ("ID", pa.int64()), ("at", pa.timestamp("ns"))
    problems = "venue is long instead of string", "differ in case alone: id", "found others: at"
    for column, problem in zip(columns, problems, strict=True):
        with pytest.raises(TableMismatch, match=problem):
            table.add_columns(pa.schema([column]))
    assert 1 == DeltaTable(str(table.path)).version()


def test_any_number_may_add_columns_at_once(table: FencedTable) -> None:
    tables = [FencedTable(table.path) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        wanted = [pa.schema([*VENUE, (f"c{number % 3}", pa.int64())]) for number in range(6)]
        added = [name for names in pool.map(FencedTable.add_columns, tables, wanted) for name in names]
    assert {"venue", "c0", "c1", "c2"} == {*added} == {*FencedTable(table.path).format.later}


def test_small_files_become_one_of_each_partition_and_only_for_its_owner(table: FencedTable) -> None:
    assert Compaction(0, 0, {}) == table.compact({1: 7})
    for batch in range(5):
        table.append(pa.concat_tables([rows(batch), rows(batch, 2), rows(batch, 3)]), {1: 7, 2: 7, 3: 7}, batch)
        table.add_columns(VENUE)
    before = table.progress()
    FencedTable(table.path).raise_terms({2: 9})
    assert 0 == table.compact({1: 7}, target=1).replaced  # These are large enough.
    done = table.compact({1: 7, 2: 7, 3: 8})
    assert (10, 2, {2: 9}) == (done.replaced, done.made, done.lost)
    assert 7 == len(table.files())
    assert sorted([(batch, None) for batch in range(5)] * 3) == held(table)
    assert {**before, 2: Progress(9, 4)} == table.progress()
    entry = table.path / "_delta_log" / f"{DeltaTable(str(table.path)).version():020}.json"
    assert (6, 0) == tuple(entry.read_text().count(f'"dataChange":{word}') for word in ("false", "true"))
    assert 0 == table.compact({1: 7}).replaced
    with pytest.raises(Refused, match="term 9"):
        table.compact({2: 7})


RIVALS: dict[str, Callable[[FencedTable], object]] = {
    "append": lambda rival: rival.append(rows(2, venue="X"), {1: 7}, 2),
    "column": lambda rival: rival.add_columns(pa.schema([("size", pa.int64())])),
    "compaction": lambda rival: rival.compact({1: 7}),
    "other engine": lambda rival: DeltaTable(str(rival.path)).optimize.compact(),
    "term": lambda rival: rival.raise_terms({1: 9}),
    "sweep": lambda rival: (rival.raise_terms({1: 9}), rival.sweep()),
}


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_of_a_compaction_doubles_no_row(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    table.add_columns(VENUE)
    for batch in range(2):
        table.append(rows(batch), {1: 7}, batch)
    place, calls = Staging.place, [RIVALS[rival]]

    def overtaken(staging: Staging, *given: Any, **named: Any) -> object:
        if calls:
            calls.pop()(FencedTable(table.path))
        return place(staging, *given, **named)

    monkeypatch.setattr(Staging, "place", overtaken)
    with pytest.raises(Refused, match="term 9") if rival in {"term", "sweep"} else nullcontext():
        assert (rival in {"append", "column"}) == (table.compact({1: 7}).made == 1)
    assert [(0, None), (1, None), *[(2, "X")] * (rival == "append")] == held(table)
    assert [] == [*(table.path / "_neli").iterdir()]


def test_a_killed_compaction_and_replaced_files_are_swept(table: FencedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(2):
        table.append(rows(batch), {1: 7}, batch)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        patch.setattr(Staging, "settle", lambda *_: None)  # As if the process had been killed.
        with pytest.raises(KeyboardInterrupt):
            table.compact({1: 7})
    assert 0 == table.sweep()  # It may still land.
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda clock=time.time: clock() - 8 * 24 * 60 * 60)
        assert 1 == table.compact({1: 7}).made
    assert 1 == table.sweep()
    table.append(rows(2), {1: 7}, 2)
    kept = {*table.files()}
    assert 1 == table.compact({1: 7}).made
    assert 5 == len([*table.path.glob("partition=1/*")])
    DeltaTable(str(table.path)).create_checkpoint()  # It forgets the names of files that were removed long ago.
    FencedTable(table.path).maintain()
    assert {*table.files(), *kept} == {str(path) for path in table.path.glob("partition=1/*")}
    assert [(number, None) for number in range(3)] == held(table)


def test_foreign_commits_that_change_rows_are_listed(table: FencedTable, caplog: pytest.LogCaptureFixture) -> None:
    for batch in range(2):
        table.append(rows(batch), {1: 7}, batch)
    schema = DeltaTable(table.path).to_pyarrow_table().schema
    write_deltalake(str(table.path), pa.table({"id": [2, 9], "partition": [1, None]}, schema), mode="append")
    assert 1 == table.compact({1: 7}).made
    table.append(rows(3), {1: 7}, 2)
    DeltaTable(str(table.path)).optimize.compact()
    DeltaTable(str(table.path)).delete("id = 2")
    table.maintain()
    append, delete = table.foreign()
    found = [(one.version, one.operation, one.added, one.removed) for one in (append, delete)]
    assert ([(3, "WRITE", 2, 0), (7, "DELETE", 1, 1)], [delete]) == (found, table.foreign(after=3))
    for _ in range(2):  # Each is logged once.
        table.sweep()
    assert ["WRITE", "DELETE"] == [record.fields["operation"] for record in caplog.records]  # type: ignore[attr-defined]
    (table.path / "_delta_log" / f"{3:020}.json").unlink()
    assert [delete] == table.foreign()
