"""A fenced Delta table: what lands, what is refused, and what is left behind."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.fence import BatchGap, FenceMisused, Refused, TableMismatch, TableUnavailable, tally
from neli_router.fence.delta import FencedTable, Progress, Staging
from tests.fence.test_fence import lease

LAYOUT = Layout(partitions=8)
SCHEMA = pa.schema([("instrument", pa.string()), ("price", pa.float64())])


@pytest.fixture
def table(tmp_path: Path) -> FencedTable:
    return FencedTable.create(tmp_path / "prices", SCHEMA, LAYOUT)


def rows(*partitions: int, price: float = 1.0) -> pa.Table:
    """One row for each partition."""
    count = len(partitions)
    columns = {"instrument": ["NELI"] * count, "price": [float(price)] * count}
    return pa.table({**columns, "partition": pa.array(partitions, pa.int32())})


def prices(table: FencedTable) -> list[tuple[int, float]]:
    """(partition, price) of all rows, as any engine reads them."""
    read = DeltaTable(str(table.path)).to_pyarrow_table()
    return sorted(zip(read["partition"].to_pylist(), read["price"].to_pylist(), strict=True))


def orphans(table: FencedTable) -> list[str]:
    """Everything below the table that the log does not name and that does not belong to the log."""
    known = {*table.files()}
    found = [path for path in table.path.rglob("*") if path.is_file() and "_delta_log" not in path.parts]
    return sorted(path.name for path in found if str(path) not in known)


def test_a_batch_moves_the_rows_and_the_fence_in_one_version_and_lands_once(table: FencedTable) -> None:
    before = tally.admitted
    commit = table.append(rows(1, 1, 2), {1: 7, 2: 8, 4: 8}, 0)
    assert 3 == tally.admitted - before
    assert (1, (1, 2, 4), (), {}) == (commit.version, commit.landed, commit.skipped, commit.lost)
    # Also in the partition without rows.
    moved = {1: Progress(7, 0), 2: Progress(8, 0), 3: Progress(None, -1), 4: Progress(8, 0)}
    assert moved == table.progress(moved)
    actions = pa.table(DeltaTable(str(table.path)).get_add_actions(flatten=True))
    assert [1, 2] == sorted(actions["num_records"].to_pylist())
    assert 3 == DeltaTable(str(table.path)).count()
    again = table.append(rows(1), {1: 7}, 0)
    assert (None, (), (1,)) == (again.version, again.landed, again.skipped)
    assert (1,) == table.append(rows(1, price=2.0), {1: 7}, 1).landed
    assert [(1, 1.0), (1, 1.0), (1, 2.0), (2, 1.0)] == prices(table)
    assert [] == orphans(table)


@pytest.mark.parametrize(("batch", "after"), [(2, None), (9, 8), (3, -1)])
def test_a_longer_step_begins_where_the_last_one_ended(table: FencedTable, batch: int, after: int | None) -> None:
    table.append(rows(1, 2), {1: 7, 2: 7}, 0)
    with pytest.raises(BatchGap, match="a step from batch 0 was wanted next in partition 1"):
        table.append(rows(1, 2), {1: 7, 2: 7}, batch, after=after)
    assert [(1, 1.0), (2, 1.0)] == prices(table)
    assert (1,) == table.append(rows(1), {1: 7}, 1100, after=0).landed
    assert (1,) == table.append(rows(1), {1: 7}, 1040, after=-1).skipped


def test_a_lower_term_is_refused_and_the_error_names_the_rivals(table: FencedTable) -> None:
    zombie = FencedTable(table.path)
    zombie.append(rows(1), {1: 7}, 0)
    table.append(rows(1), lease(9, partition=1), 1)
    before = tally.refused
    with pytest.raises(Refused) as refused:
        zombie.append(rows(1), lease(7, partition=1), 2)
    assert (7, 9, "prices/partition=1") == (refused.value.term, refused.value.admitted, refused.value.resource)
    assert 1 == tally.refused - before
    assert 2 == len(prices(table))
    assert [] == orphans(table)


def test_terms_are_raised_once_and_never_lowered_and_refuse_a_zombie_from_then_on(table: FencedTable) -> None:
    zombie = FencedTable(table.path)
    with zombie.stage({1: 7}, 0) as staging:
        staging.write(rows(1))
        assert (1, 2) == table.raise_terms({1: 9, 2: 9}).landed
        with pytest.raises(Refused, match="term 9"):
            zombie.commit(staging)
    assert [] == prices(table)
    assert [] == orphans(table)
    assert (1, 2) == table.raise_terms({1: 9, 2: 9}).skipped
    commit = table.raise_terms({1: 8, 2: 10})
    assert ((2,), {1: 9}) == (commit.landed, commit.lost)
    with pytest.raises(Refused):
        table.raise_terms({1: 8})
    assert {1: Progress(9, -1), 2: Progress(10, -1)} == table.progress([1, 2])
    with pytest.raises(Refused), table.stage({1: 7}, 0):
        pytest.fail("there was no reason to begin")


def test_a_row_under_a_term_the_table_has_is_refused_if_the_term_rises_between_look_and_commit(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = FencedTable(table.path)
    table.raise_terms({1: 7})
    with table.stage({1: 7}, 0) as staging:
        staging.write(rows(1))
        place = staging.place

        def raised(partitions: Iterable[int]) -> object:
            rival.raise_terms({1: 9})
            return place(partitions)

        monkeypatch.setattr(staging, "place", raised)
        with pytest.raises(Refused, match="term 9"):
            table.commit(staging)
    assert [] == prices(table)


def test_the_partitions_that_are_not_lost_land_together(table: FencedTable) -> None:
    rival, twin = FencedTable(table.path), FencedTable(table.path)
    terms = {1: 7, 2: 7, 3: 7}
    with table.stage(terms, 0) as staging, twin.stage({3: 7}, 0) as older:
        staging.write(rows(1, 2, 3))
        older.write(rows(3, price=2.0))
        rival.raise_terms({2: 9})
        commit = table.commit(staging)
        # A driver was started again under the same lease, while the older driver still runs.
        assert (3,) == twin.commit(older).skipped
    assert ((1, 3), {2: 9}) == (commit.landed, commit.lost)
    assert [(1, 1.0), (3, 1.0)] == prices(table)
    assert [] == orphans(table)


@pytest.mark.parametrize("is_placed", [False, True])
@pytest.mark.parametrize("term", [7, 9])
def test_one_that_is_overtaken_and_swept_just_before_it_places_its_files_is_told_so(
    table: FencedTable, monkeypatch: pytest.MonkeyPatch, term: int, is_placed: bool
) -> None:
    rival = FencedTable(table.path)
    with table.stage({1: 7}, 0) as staging:
        staging.write(rows(1))
        place = staging.place

        def overtaken(partitions: Iterable[int]) -> object:
            if is_placed:
                place(partitions)
            if rival.progress([1])[1].batch < 0:
                rival.append(rows(1, price=2.0), {1: term}, 0)
                rival.sweep()
            return place(partitions)

        monkeypatch.setattr(staging, "place", overtaken)
        if term == 7:
            assert (1,) == table.commit(staging).skipped
        else:
            with pytest.raises(Refused, match="9"):
                table.commit(staging)
    assert [(1, 2.0)] == prices(table)


def test_a_skipped_batch_raises_the_fence_also_when_a_sweep_took_its_files(table: FencedTable) -> None:
    with table.stage({1: 9}, 0) as staging:
        staging.write(rows(1))
        FencedTable(table.path).append(rows(1), {1: 7}, 0)
        table.sweep()
        assert (1,) == table.commit(staging).skipped
    assert {1: Progress(9, 0)} == table.progress([1])
    assert (1,) == table.append(rows(1), {1: 10}, 0).skipped
    with pytest.raises(Refused):
        table.append(rows(1), {1: 9}, 1)


def test_a_step_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    table = FencedTable.create(tmp_path / "prices", SCHEMA, LAYOUT, first_batch=100)
    with table.stage({1: 7}, 100) as staging:
        staging.place([1])
        with pytest.raises(FenceMisused, match="found some after it"):
            staging.write(rows(1))
    without_sense: tuple[Any, ...] = ({}, 100), ({8: 7}, 100), ({-1: 7}, 100), ({True: 7}, 100), ({1: -1}, 100)
    for terms, batch in (*without_sense, ({1: 7}, 99), ({1: 7}, 100.0)):
        with pytest.raises(FenceMisused):
            table.append(rows(1), terms, batch)
    with pytest.raises(BatchGap):
        table.append(rows(1), {1: 7}, 101)
    assert (1,) == table.append(rows(1), {1: 7}, 100).landed


def test_columns_that_differ_are_named_one_by_one_but_their_order_is_free(table: FencedTable) -> None:
    other = pa.table({"instrument": [b"NELI"], "size": [1], "partition": pa.array([1], pa.int32())})
    with pytest.raises(TableMismatch) as mismatch:
        table.append(other, {1: 7}, 0)
    for word in ("price is missing", "size is not in the table", "instrument is binary instead of string"):
        assert word in mismatch.value.found
    for partition in (2, None):  # Neither has a term.
        foreign = rows(1).set_column(2, "partition", pa.array([partition], pa.int32()))
        with pytest.raises(FenceMisused, match=f"found some of partition {partition}"):
            table.append(foreign, {1: 7}, 0)
    assert 0 == DeltaTable(str(table.path)).version()
    assert [] == orphans(table)
    given = rows(1).select(["partition", "price", "instrument"])
    table.append(given.set_column(0, "partition", pa.array([1], pa.int64())), {1: 7}, 0)
    assert [(1, 1.0)] == prices(table)


def test_a_file_with_other_columns_or_that_is_no_parquet_is_refused(table: FencedTable) -> None:
    for content, problem in ((None, "price is missing"), (b"half of a fi", r"a\.parquet is none")):
        with table.stage({1: 7}, 0) as staging:
            file = staging.folder / "partition=1" / "a.parquet"
            file.parent.mkdir(parents=True)
            pq.write_table(pa.table({"instrument": ["NELI"]}), file)
            if content is not None:
                file.write_bytes(content)
            with pytest.raises(TableMismatch, match=problem):
                table.commit(staging)
        assert [] == orphans(table)


def test_a_table_is_made_once_and_then_opened_if_it_is_the_same(table: FencedTable) -> None:
    table.append(rows(1), {1: 7}, 0)
    assert Progress(7, 0) == FencedTable.create(table.path, SCHEMA, LAYOUT).progress()[1]
    with pytest.raises(TableMismatch, match="price is long instead of double"):
        FencedTable.create(table.path, SCHEMA.set(1, pa.field("price", pa.int64())), LAYOUT)
    with pytest.raises(TableMismatch, match="first_batch=1"):
        FencedTable.create(table.path, SCHEMA, LAYOUT, first_batch=1)
    with pytest.raises(ConfigError):
        FencedTable.create(table.path, SCHEMA, LAYOUT, first_batch=-1)
    with pytest.raises(TableMismatch, match="unequal: partitions"):
        FencedTable(table.path, layout=Layout())
    with pytest.raises(TableMismatch, match="unequal: tags"):
        FencedTable.create(table.path, SCHEMA, Layout(partitions=8, tags=True))


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


@pytest.mark.parametrize("has_landed", [True, False])
@pytest.mark.parametrize("error", [DeltaError("the answer was lost"), OSError("the disk is full")])
def test_the_log_says_what_became_of_a_commit_and_not_the_answer(
    monkeypatch: pytest.MonkeyPatch, table: FencedTable, error: Exception, has_landed: bool
) -> None:
    write, errors = DeltaTable.create_write_transaction, [error]

    def failing(*arguments: Any, **named: Any) -> None:
        if not errors or has_landed:
            write(*arguments, **named)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    commit = table.append(rows(1, 2), {1: 7, 2: 7}, 0)
    assert (1, (1, 2), []) == (commit.version, commit.landed, errors)
    assert [(1, 1.0), (2, 1.0)] == prices(table)
    assert [] == orphans(table)


def test_a_table_that_cannot_be_written_stays_as_it_was(monkeypatch: pytest.MonkeyPatch, table: FencedTable) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", failing)
        with pytest.raises(TableUnavailable, match=r"each of 6 tries failed \(OSError\)"):
            table.append(rows(1), {1: 7}, 0)
    assert [] == orphans(table)
    assert (1,) == table.append(rows(1), {1: 7}, 0).landed


def failing(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("kept", [0, 1], ids=["the entry of the log", "the folder of the log"])
def test_a_commit_that_may_not_outlast_a_power_cut_says_so(
    monkeypatch: pytest.MonkeyPatch, table: FencedTable, kept: int
) -> None:
    commit, fsync = DeltaTable.create_write_transaction, os.fsync

    def commits(handle: DeltaTable, *given: Any, **named: Any) -> None:
        commit(handle, *given, **named)
        works = iter([fsync] * kept)

        def fsyncs(file: int) -> None:
            next(works, failing)(file)

        monkeypatch.setattr(os, "fsync", fsyncs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commits)
    with pytest.raises(TableUnavailable, match="it landed, but perhaps not on stable storage"):
        table.append(rows(3), {3: 7}, 0)
    monkeypatch.setattr(os, "fsync", fsync)
    assert ((3,), [(3, 1.0)]) == (table.append(rows(3), {3: 7}, 0).skipped, prices(table))


def test_a_rename_that_fails_halfway_goes_on_from_there(monkeypatch: pytest.MonkeyPatch, table: FencedTable) -> None:
    rename, errors = Path.rename, [OSError("the server is away")]

    def renamed(path: Path, target: Path) -> Path:
        if target.name.endswith("-1.parquet") and errors:
            raise errors.pop()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    assert (1, 2, 3) == table.append(rows(1, 2, 3), {1: 7, 2: 7, 3: 7}, 0).landed
    assert ([(1, 1.0), (2, 1.0), (3, 1.0)], []) == (prices(table), errors)


def test_staged_or_placed_rows_that_are_gone_are_never_committed(table: FencedTable) -> None:
    with table.stage({1: 7}, 0) as staging:
        staging.write(rows(1))
        for action in staging.place([1]):
            (table.path / action.path).unlink()
        with pytest.raises(TableUnavailable, match="it is gone"):
            table.commit(staging)
    with table.stage({1: 7}, 0) as staging:
        staging.write(rows(1))
        staging.folder.parent.rename(table.path / "_elsewhere")
        with pytest.raises(TableUnavailable, match="the rows that were staged"):
            table.commit(staging)
    assert {1: Progress(None, -1)} == table.progress([1])


def test_files_are_found_by_partition_and_by_version(table: FencedTable) -> None:
    for batch in range(2):
        table.append(rows(1, 2), {1: 7, 2: 7}, batch)
    assert 4 == len(table.files())
    assert {"partition=2"} == {Path(file).parent.name for file in table.files([2, 5])}
    assert 2 == len(table.files(version=1))
    with pytest.raises(TableMismatch, match="at version 9, but it has no such version"):
        table.files(version=9)
    assert [] == table.files([])


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
        found = table.files(version=version)
        assert [True] * count == [Path(file).is_file() for file in found]


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


def test_any_number_may_make_the_table_at_once(tmp_path: Path) -> None:
    for trial in range(5):  # Out of eight, two collide in about every second trial.
        path = tmp_path / f"prices-{trial}"
        with ThreadPoolExecutor(8) as pool:
            made = [pool.submit(FencedTable.create, path, SCHEMA, LAYOUT) for _ in range(8)]
            assert 1 == len({one.result().made.identity for one in made})
        assert 0 == DeltaTable(path).version(), "it was made once"


def test_threads_that_share_a_table_take_turns(table: FencedTable) -> None:
    def work(partition: int) -> list[tuple[int, ...]]:
        return [table.append(rows(partition), {partition: 7}, batch).landed for batch in range(5)]

    with ThreadPoolExecutor(4) as pool:
        assert [[(partition,)] * 5 for partition in range(4)] == list(pool.map(work, range(4)))
    assert 20 == len(prices(table))


class Writers(RuleBasedStateMachine):
    """Two writers, one partition. The model follows the essay of `table`."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.tables = [FencedTable.create(Path(self.folder.name) / "prices", SCHEMA, LAYOUT) for _ in range(2)]
        self.terms = [1, 2]
        self.staged: list[tuple[ExitStack, Staging, int, int] | None] = [None, None]
        self.term, self.batch = 0, -1
        self.landed: list[int] = []
        self.replaced = set[str]()

    @rule(who=st.integers(0, 1))
    def acquire(self, who: int) -> None:
        self.terms[who] = max(self.terms) + 1

    @rule(who=st.integers(0, 1))
    def raise_term(self, who: int) -> None:
        if self.terms[who] < self.term:
            with pytest.raises(Refused):
                self.tables[who].raise_terms({1: self.terms[who]})
        else:
            self.tables[who].raise_terms({1: self.terms[who]})
            self.term = self.terms[who]

    @precondition(lambda self: None in self.staged)
    @rule(ahead=st.integers(0, 1))
    def stage(self, ahead: int) -> None:
        """Stage the next batch, or the last one again."""
        who, batch = self.staged.index(None), max(0, self.batch + ahead)
        with ExitStack() as stack:
            try:
                staging = stack.enter_context(self.tables[who].stage({1: self.terms[who]}, batch))
            except Refused:
                assert self.terms[who] < self.term
                return
            staging.write(rows(1, price=batch))
            self.staged[who] = (stack.pop_all(), staging, self.terms[who], batch)

    @rule(who=st.integers(0, 1))
    def place(self, who: int) -> None:
        if (staged := self.staged[who]) is not None:
            with suppress(TableUnavailable):  # It was swept.
                staged[1].place([1])

    @rule(who=st.integers(0, 1))
    def commit(self, who: int) -> None:
        if (staged := self.staged[who]) is None:
            return
        stack, staging, term, batch = staged
        self.staged[who] = None
        with stack:
            if term < self.term:
                with pytest.raises(Refused):
                    self.tables[who].commit(staging)
                return
            commit = self.tables[who].commit(staging)
            if batch <= self.batch:
                assert ((), (1,)) == (commit.landed, commit.skipped)
            else:
                assert ((1,), ()) == (commit.landed, commit.skipped)
                self.batch = batch
                self.landed.append(batch)
            self.term = term

    @rule(who=st.integers(0, 1))
    def sweep(self, who: int) -> None:
        self.tables[who].sweep()

    @rule(who=st.integers(0, 1))
    def compact(self, who: int) -> None:
        with suppress(Refused) if self.terms[who] < self.term else nullcontext():
            self.replaced |= {*self.tables[who].files()}
            self.tables[who].compact({1: self.terms[who]})
            assert 2 > len(self.tables[who].files())

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for table in self.tables:
            assert {1: Progress(self.term or None, self.batch)} == table.progress([1])
        assert [(1, float(batch)) for batch in self.landed] == prices(self.tables[0])

    def teardown(self) -> None:
        for staged in self.staged:
            if staged is not None:
                staged[0].close()
        replaced = {Path(path).name for path in self.replaced}
        assert set() == {*orphans(self.tables[0])} - replaced
        self.folder.cleanup()


TestWriters = Writers.TestCase
TestWriters.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
