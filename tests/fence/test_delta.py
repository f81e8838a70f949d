"""A fenced Delta table: what only this format has. `test_tables.py` holds it to the contract of all formats."""

import os
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from neli_router.fence import Refused, TableMismatch, TableUnavailable
from neli_router.fence.delta import FencedTable, Progress
from tests.fence.lakes import LAYOUT, SCHEMA, orphans, prices, rows


@pytest.fixture
def table(tmp_path: Path) -> FencedTable:
    return FencedTable.create(tmp_path / "prices", SCHEMA, LAYOUT)


def test_a_place_or_a_schema_of_which_no_table_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "prices"):
        with pytest.raises((TableMismatch, TableUnavailable), match="a fenced table was wanted at") as refused:
            FencedTable.create(path, SCHEMA, LAYOUT)
        assert isinstance(refused.value.__cause__, DeltaError)
    for address in ("s3://lake/prices", "hdfs://name/prices", "abfss://c@a/prices", "dbfs:/prices"):
        with pytest.raises(TableMismatch, match=r"in a local or shared file system was wanted, but found an address"):
            FencedTable.create(address, SCHEMA, LAYOUT)
    with pytest.raises(TableMismatch, match="without a percent sign"):  # The library takes it for another path.
        FencedTable.create(tmp_path / "a%20lake", SCHEMA, LAYOUT)
    # A column that not every reader knows, and a partition of another type.
    with pytest.raises(TableMismatch, match="found others: at"):
        FencedTable.create(tmp_path / "prices", pa.schema([("at", pa.timestamp("ns"))]), LAYOUT)
    with pytest.raises(TableMismatch, match="found the type string"):
        FencedTable.create(tmp_path / "prices", SCHEMA.append(pa.field("partition", pa.string())), LAYOUT)


def test_no_table_of_others_is_taken_and_none_is_made_among_their_files(tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match="there is no Delta table"):
        FencedTable(tmp_path)
    write_deltalake(str(tmp_path / "theirs"), rows(1), partition_by=["partition"])
    with pytest.raises(TableMismatch, match=r"its neli\.format is None"):
        FencedTable(tmp_path / "theirs")
    # Hidden files do not count as files of others.
    folder = tmp_path / "folder"
    for name in (".hidden", "_neli"):
        (folder / name).mkdir(parents=True)
    (folder / "prices.parquet").write_bytes(b"theirs")
    with pytest.raises(TableMismatch, match=r"'prices\.parquet' lies there"):
        FencedTable.create(folder, SCHEMA, LAYOUT)
    assert [".hidden", "_neli", "prices.parquet"] == sorted(path.name for path in folder.iterdir())
    (folder / "prices.parquet").unlink()
    assert LAYOUT == FencedTable.create(folder, SCHEMA, LAYOUT).layout


def test_a_table_that_was_made_anew_or_forgets_its_terms_is_ours_no_longer(tmp_path: Path, table: FencedTable) -> None:
    table.append(rows(1), {1: 7}, 0)
    table.path.rename(tmp_path / "moved")
    again = FencedTable.create(table.path, SCHEMA, LAYOUT)
    with pytest.raises(TableMismatch, match="another one was made in its place"):
        table.append(rows(1), {1: 7}, 1)
    assert {1: Progress(None, -1)} == again.progress([1])
    DeltaTable(str(table.path)).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    for refused in (lambda: FencedTable(table.path), lambda: again.append(rows(1), {1: 7}, 0)):
        with pytest.raises(TableMismatch, match="transaction ids expire"):
            refused()


def test_a_rename_that_fails_halfway_goes_on_from_there(monkeypatch: pytest.MonkeyPatch, table: FencedTable) -> None:
    rename, errors = Path.rename, [OSError("the server is away")]

    def renamed(path: Path, target: Path) -> Path:
        if target.name.endswith("-1.parquet") and errors:
            raise errors.pop()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    assert (1, 2, 3) == table.append(rows(1, 2, 3), {1: 7, 2: 7, 3: 7}, 0).landed
    assert ([(1, 1.0), (2, 1.0), (3, 1.0)], []) == (prices(table), errors)


def test_a_table_may_lie_in_a_folder_with_any_name_and_have_times_without_a_zone(tmp_path: Path) -> None:
    at = datetime(9999, 12, 31, 23, 59)  # noqa: DTZ001 - this is what is tested.
    schema = pa.schema([("at", pa.timestamp("us"))])
    for name in ("a lake", "ein Müller-See", "a=b", "a+b#c"):
        table = FencedTable.create(tmp_path / name / "prices", schema, LAYOUT)
        table.append(pa.table({"at": pa.array([at], pa.timestamp("us")), "partition": [1]}), {1: 7}, 0)
        assert [True] == [Path(file).is_file() for file in table.files()]
        assert [at] == DeltaTable(str(table.path)).to_pyarrow_table()["at"].to_pylist()
        assert [] == orphans(table)


def test_a_handle_that_slept_while_the_log_was_cut_begins_with_the_newest_version(table: FencedTable) -> None:
    asleep, zombie = FencedTable(table.path), FencedTable(table.path)
    zombie.append(rows(1), {1: 7}, 0)
    for batch in (1, 2):
        table.append(rows(1), {1: 9}, batch)
    table.maintain()
    for version in range(3):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()
    assert {1: Progress(9, 2)} == asleep.progress([1])
    with pytest.raises(Refused, match="term 9"):
        zombie.append(rows(1), {1: 7}, 1)
    other = FencedTable(table.path)
    table.append(rows(1), {1: 9}, 3)
    (table.path / "_delta_log" / f"{3:020}.json").unlink()
    assert (1,) == other.append(rows(1), {1: 9}, 4).landed
    assert 5 == len(prices(table))


def test_checkpoints_come_by_themselves_keep_the_terms_and_let_older_versions_go(tmp_path: Path) -> None:
    table = FencedTable.create(tmp_path / "prices", SCHEMA, LAYOUT, history=timedelta(hours=1))
    for batch in range(21):
        table.append(rows(1), {1: 7}, batch)
        for path in (table.path / "_delta_log").iterdir():
            os.utime(path, (0, 0))
    assert [f"{19:020}.checkpoint.parquet"] == [path.name for path in table.path.rglob("*.checkpoint.parquet")]
    assert 19 > len([*(table.path / "_delta_log").glob("*.json")])
    assert {1: Progress(7, 20), 2: Progress(None, -1)} == FencedTable(table.path).progress([1, 2])
    with pytest.raises(Refused):
        FencedTable(table.path).append(rows(1), {1: 6}, 21)


def test_compaction_by_another_engine_harms_neither_a_step_nor_the_fence(table: FencedTable) -> None:
    for batch in range(3):
        table.append(rows(1), {1: 7}, batch)
    with table.stage({1: 7}, 3) as staging:
        staging.write(rows(1))
        staging.place([1])
        DeltaTable(str(table.path)).optimize.compact()
        assert (1,) == table.commit(staging).landed
        assert 4 == len(prices(table))
        assert 2 == len(table.files())
        table.append(rows(1), {1: 7}, 4)
        DeltaTable(str(table.path)).optimize.compact()
        # As if its program had been killed after the commit: a sweep keeps files that landed in older versions.
        assert 0 == table.sweep()
        assert [] == [*(table.path / "_neli").iterdir()]
    table.maintain()
    for version, count in ((3, 3), (5, 2)):
        assert [True] * count == [Path(file).is_file() for file in table.files(version=version)]


def test_a_vacuum_or_a_sweep_never_removes_what_a_commit_in_flight_has_placed(table: FencedTable) -> None:
    # From a program that was killed before it had recorded the goal of its attempt. It is removed after a day.
    left = table.path / "_neli" / "0123456789abcdef"
    left.mkdir(parents=True)
    with table.stage({1: 7}, 0) as staging:
        staging.write(rows(1))
        staging.place([1])
        for path in table.path.glob("partition=1/*"):
            os.utime(path, (0, 0))
        table.maintain()
        table.sweep()
        assert left.exists()
        os.utime(left, (0, 0))
        table.sweep()
        assert not left.exists()
        assert (1,) == table.commit(staging).landed
    assert [(1, 1.0)] == prices(table)
