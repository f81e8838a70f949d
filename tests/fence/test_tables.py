"""The contract of fenced tables, which both formats keep: what lands, what is refused, and what is left behind."""

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.fence import BatchGap, FenceMisused, Refused, TableMismatch, TableUnavailable, tally
from neli_router.fence.tables import Progress
from tests.fence import lakes
from tests.fence.lakes import SCHEMA, AnyTable, again, files, made, meanwhile, orphans, prices, rows
from tests.fence.test_fence import lease


@pytest.fixture(params=lakes.FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyTable]:
    with made(request.param, tmp_path) as table:
        yield table


def test_a_batch_moves_the_rows_and_the_fence_in_one_version_and_lands_once(table: AnyTable) -> None:
    before = tally.admitted
    commit = table.append(rows(1, 1, 2), {1: 7, 2: 8, 4: 8}, 0)
    assert 3 == tally.admitted - before
    assert ((1, 2, 4), (), {}) == (commit.landed, commit.skipped, commit.lost)
    # Also in the partition without rows.
    moved = {1: Progress(7, 0), 2: Progress(8, 0), 3: Progress(None, -1), 4: Progress(8, 0)}
    assert moved == table.progress(moved)
    again = table.append(rows(1), {1: 7}, 0)
    assert (None, (), (1,)) == (again.version, again.landed, again.skipped)
    assert (1,) == table.append(rows(1, price=2.0), {1: 7}, 1).landed
    assert [(1, 1.0), (1, 1.0), (1, 2.0), (2, 1.0)] == prices(table)
    assert [] == orphans(table)


@pytest.mark.parametrize(("batch", "after"), [(2, None), (9, 8), (3, -1)])
def test_a_longer_step_begins_where_the_last_one_ended(table: AnyTable, batch: int, after: int | None) -> None:
    table.append(rows(1, 2), {1: 7, 2: 7}, 0)
    with pytest.raises(BatchGap, match="a step from batch 0 was wanted next in partition 1"):
        table.append(rows(1, 2), {1: 7, 2: 7}, batch, after=after)
    assert [(1, 1.0), (2, 1.0)] == prices(table)
    assert (1,) == table.append(rows(1), {1: 7}, 1100, after=0).landed
    assert (1,) == table.append(rows(1), {1: 7}, 1040, after=-1).skipped


def test_terms_are_raised_once_and_never_lowered_and_refuse_a_zombie_from_then_on(table: AnyTable) -> None:
    zombie = again(table)
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
    before = tally.refused
    with pytest.raises(Refused) as refused:
        table.append(rows(1), lease(8, partition=1), 0)
    assert (8, 9, f"{table.name}/partition=1") == (refused.value.term, refused.value.admitted, refused.value.resource)
    with pytest.raises(Refused):
        table.raise_terms({1: 8})
    assert 2 == tally.refused - before
    assert {1: Progress(9, -1), 2: Progress(10, -1)} == table.progress([1, 2])
    with pytest.raises(Refused), table.stage({1: 7}, 0):
        pytest.fail("there was no reason to begin")


def test_a_row_under_a_term_the_table_has_is_refused_if_the_term_rises_between_look_and_commit(table: AnyTable) -> None:
    rival = again(table)
    table.raise_terms({1: 7})
    with pytest.raises(Refused, match="term 9"):
        meanwhile(table, lambda: rival.raise_terms({1: 9}))
    assert [] == prices(table)


def test_the_partitions_that_are_not_lost_land_together(table: AnyTable) -> None:
    rival, twin = again(table), again(table)
    with table.stage({1: 7, 2: 7, 3: 7}, 0) as staging, twin.stage({3: 7}, 0) as older:
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
    table: AnyTable, monkeypatch: pytest.MonkeyPatch, term: int, is_placed: bool
) -> None:
    rival = again(table)
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


def test_a_skipped_batch_raises_the_fence_also_when_a_sweep_took_its_files(table: AnyTable) -> None:
    with table.stage({1: 9}, 0) as staging:
        staging.write(rows(1))
        again(table).append(rows(1), {1: 7}, 0)
        table.sweep()
        assert (1,) == table.commit(staging).skipped
    assert {1: Progress(9, 0)} == table.progress([1])
    assert (1,) == table.append(rows(1), {1: 10}, 0).skipped
    with pytest.raises(Refused):
        table.append(rows(1), {1: 9}, 1)


@pytest.mark.parametrize("format_", lakes.FORMATS)
def test_a_step_that_makes_no_sense_is_refused(tmp_path: Path, format_: str) -> None:
    with made(format_, tmp_path, first_batch=100) as table:
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


def test_columns_that_differ_are_named_one_by_one_but_their_order_is_free(table: AnyTable) -> None:
    other = pa.table({"instrument": [b"NELI"], "size": [1], "partition": pa.array([1], pa.int32())})
    with pytest.raises(TableMismatch) as mismatch:
        table.append(other, {1: 7}, 0)
    for word in ("price is missing", "size is not in the table", "instrument is binary instead of string"):
        assert word in mismatch.value.found
    for partition in (2, None):  # Neither has a term.
        foreign = rows(1).set_column(2, "partition", pa.array([partition], pa.int32()))
        with pytest.raises(FenceMisused, match=f"found some of partition {partition}"):
            table.append(foreign, {1: 7}, 0)
    assert {1: Progress(None, -1)} == table.progress([1])
    assert [] == orphans(table)
    given = rows(1).select(["partition", "price", "instrument"])
    table.append(given.set_column(0, "partition", pa.array([1], pa.int64())), {1: 7}, 0)
    assert [(1, 1.0)] == prices(table)


def test_a_file_with_other_columns_or_that_is_no_parquet_is_refused(table: AnyTable) -> None:
    for content, problem in ((None, "price is missing"), (b"half of a fi", r"a\.parquet is none")):
        with table.stage({1: 7}, 0) as staging:
            file = Path(str(staging.folder).removeprefix("file://")) / f"{staging.folders}=1" / "a.parquet"
            file.parent.mkdir(parents=True)
            pq.write_table(pa.table({"instrument": ["NELI"]}), file)
            if content is not None:
                file.write_bytes(content)
            with pytest.raises(TableMismatch, match=problem):
                table.commit(staging)
        assert [] == orphans(table)


def test_a_table_is_made_once_and_then_opened_if_it_is_the_same(table: AnyTable) -> None:
    table.append(rows(1), {1: 7}, 0)
    assert Progress(7, 0) == lakes.remade(table).progress()[1]
    with pytest.raises(TableMismatch, match="price is long instead of double"):
        lakes.remade(table, SCHEMA.set(1, pa.field("price", pa.int64())))
    with pytest.raises(TableMismatch, match="first_batch=1"):
        lakes.remade(table, first_batch=1)
    with pytest.raises(ConfigError):
        lakes.remade(table, first_batch=-1)
    with pytest.raises(TableMismatch, match="unequal: partitions"):
        again(table, layout=Layout())
    with pytest.raises(TableMismatch, match="unequal: tags"):
        lakes.remade(table, SCHEMA, Layout(partitions=8, tags=True))


@pytest.mark.parametrize("has_landed", [True, False])
@pytest.mark.parametrize("error", [None, OSError("the disk is full")])
def test_the_table_says_what_became_of_a_commit_and_not_the_answer(
    monkeypatch: pytest.MonkeyPatch, table: AnyTable, error: Exception | None, has_landed: bool
) -> None:
    library, name, lost = lakes.commits_by(table)
    write, errors = getattr(library, name), [error or lost]

    def failing(*arguments: Any, **named: Any) -> None:
        if not errors or has_landed:
            write(*arguments, **named)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(library, name, failing)
    assert ((1, 2), []) == (table.append(rows(1, 2), {1: 7, 2: 7}, 0).landed, errors)
    assert [(1, 1.0), (2, 1.0)] == prices(table)
    assert [] == orphans(table)


def test_a_table_that_cannot_be_written_stays_as_it_was(monkeypatch: pytest.MonkeyPatch, table: AnyTable) -> None:
    with monkeypatch.context() as patch:
        library, name, _ = lakes.commits_by(table)
        patch.setattr(library, name, failing)
        with pytest.raises(TableUnavailable, match=r"each of 6 tries failed \(OSError\)"):
            table.append(rows(1), {1: 7}, 0)
    assert (1,) == table.append(rows(1), {1: 7}, 0).landed
    table.sweep()  # A commit to a catalog may still have been on its way, so its files were left.
    assert [] == orphans(table)


def failing(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("kept", [0, 1], ids=["the file of the commit", "its folder"])
def test_a_commit_that_a_power_cut_may_undo_raises(monkeypatch: pytest.MonkeyPatch, table: AnyTable, kept: int) -> None:
    library, name, _ = lakes.commits_by(table)
    commit, fsync = getattr(library, name), os.fsync

    def commits(handle: object, *given: Any, **named: Any) -> None:
        commit(handle, *given, **named)
        works = iter([fsync] * kept)

        def fsyncs(file: int) -> None:
            next(works, failing)(file)

        monkeypatch.setattr(os, "fsync", fsyncs)

    monkeypatch.setattr(library, name, commits)
    with pytest.raises(TableUnavailable, match="it landed, but perhaps not on stable storage"):
        table.append(rows(3), {3: 7}, 0)
    monkeypatch.setattr(os, "fsync", fsync)
    assert ((3,), [(3, 1.0)]) == (table.append(rows(3), {3: 7}, 0).skipped, prices(table))


def test_staged_or_placed_rows_that_are_gone_are_never_committed(table: AnyTable) -> None:
    for is_placed in (True, False):
        with table.stage({1: 7}, 0) as staging:
            staging.write(rows(1))
            if is_placed:
                staging.place([1])
                for path in files(table):
                    path.unlink()
            else:
                shutil.rmtree(Path(str(staging.folder).removeprefix("file://")).parent)
            with pytest.raises(TableUnavailable, match=r"gone|0 of 1 files"):
                table.commit(staging)
    assert {1: Progress(None, -1)} == table.progress([1])


def test_files_are_found_by_partition_by_version_and_by_what_is_in_them(table: AnyTable) -> None:
    versions = [table.append(rows(1, 2, price=batch), {1: 7, 2: 7}, batch).version for batch in range(2)]
    assert 4 == len(table.files())
    assert 2 == len(table.files([2, 5]))
    assert {"2"} == {Path(file).parent.name.partition("=")[2] for file in table.files([2, 5])}
    assert 2 == len(table.files(version=versions[0]))
    with pytest.raises(TableMismatch, match="at version 9, but it has no such version"):
        table.files(version=9)
    assert [] == table.files([])
    assert 1 == len(table.files([2], where=[("instrument", "<=", "NELI"), ("partition", ">", 1)], version=versions[0]))
    assert [] == table.files(where=[("instrument", ">", "NELI")])
    with pytest.raises(FenceMisused, match="conditions on columns"):
        table.files(where=[("instrument", "like", "N")])


@pytest.mark.parametrize("format_", lakes.FORMATS)
def test_any_number_may_make_the_table_at_once(tmp_path: Path, format_: str) -> None:
    for trial in range(5 if format_ == "delta" else 1):  # Out of eight, two collide in about every second trial.
        with ExitStack() as stack, ThreadPoolExecutor(8) as pool:
            lakes = [made(format_, tmp_path / f"lake-{trial}") for _ in range(8)]
            tables: list[Any] = list(pool.map(stack.enter_context, lakes))
            assert 1 == len({table.format.identity for table in tables}), "it was made once"


def test_threads_that_share_a_table_take_turns(table: AnyTable) -> None:
    def work(partition: int) -> list[tuple[int, ...]]:
        return [table.append(rows(partition), {partition: 7}, batch).landed for batch in range(5)]

    with ThreadPoolExecutor(4) as pool:
        assert [[(partition,)] * 5 for partition in range(4)] == list(pool.map(work, range(4)))
    assert 20 == len(prices(table))


class Writers(RuleBasedStateMachine):
    """Two writers, one partition. The model follows the essay of `tables`."""

    format_ = "delta"

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.lake = made(self.format_, Path(self.folder.name))
        table = self.lake.__enter__()
        self.tables: list[Any] = [table, again(table)]
        self.terms = [1, 2]
        self.staged: list[tuple[ExitStack, Any, int, int] | None] = [None, None]
        self.term, self.batch = 0, -1
        self.landed: list[int] = []
        self.replaced: set[str] = set()

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

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for table in self.tables:
            assert {1: Progress(self.term or None, self.batch)} == table.progress([1])
        assert [(1, float(batch)) for batch in self.landed] == prices(self.tables[0])

    def teardown(self) -> None:
        for staged in self.staged:
            if staged is not None:
                staged[0].close()
        assert set() == {*orphans(self.tables[0])} - self.replaced
        self.lake.__exit__(None, None, None)
        self.folder.cleanup()


class DeltaWriters(Writers):
    @rule(who=st.integers(0, 1))
    def compact(self, who: int) -> None:
        with suppress(Refused) if self.terms[who] < self.term else nullcontext():
            self.replaced |= {Path(path).name for path in self.tables[who].files()}
            self.tables[who].compact({1: self.terms[who]})
            assert 2 > len(self.tables[who].files())


class IcebergWriters(Writers):
    format_ = "iceberg"


TestDeltaWriters, TestIcebergWriters = DeltaWriters.TestCase, IcebergWriters.TestCase
TestDeltaWriters.settings = settings(max_examples=15, stateful_step_count=20)
TestIcebergWriters.settings = settings(max_examples=2, stateful_step_count=20)
