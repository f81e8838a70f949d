"""A fenced Iceberg table: what only this format has. `test_tables.py` holds it to the contract of all formats."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform

from neli_router.fence import Refused, TableMismatch, TableUnavailable
from neli_router.fence.iceberg import FencedIcebergTable, Progress
from tests.fence.lakes import LAYOUT, SCHEMA, again, made, meanwhile, orphans, prices, rows


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Any]:
    with made("iceberg", tmp_path) as table:
        yield table


def plain(table: Any) -> Table:
    """The table, as a program that knows nothing of fences has it."""
    found: Table = table.catalog.load_table(table.name)
    return found


def test_a_plain_append_next_to_us_loses_nothing_and_costs_us_another_round(table: Any) -> None:
    assert (1,) == meanwhile(table, lambda: plain(table).append(rows(1, 2, price=5.0))).landed
    foreign = plain(table)
    assert (1,) == table.append(rows(1, price=2.0), {1: 7}, 1).landed
    foreign.append(rows(2, price=6.0))
    assert [(1, 1.0), (1, 2.0), (1, 5.0), (2, 5.0), (2, 6.0)] == prices(table)
    assert {1: Progress(7, 1), 2: Progress(None, -1)} == table.progress([1, 2])
    assert 5 == len(table.files())


def test_a_rollback_to_where_a_zombie_looked_does_not_let_it_in(table: Any) -> None:
    owner = again(table)
    table.raise_terms({1: 7})

    def rolled_back() -> None:
        found = plain(table)
        looked_at = found.metadata.current_snapshot_id
        owner.append(rows(1, price=9.0), {1: 9}, 0)
        found.refresh().manage_snapshots().set_current_snapshot(looked_at).commit()

    with pytest.raises(Refused, match="term 9"):
        meanwhile(table, rolled_back)
    assert [] == prices(table)  # The operator took the rows out. The batch has landed nevertheless.
    assert {1: Progress(9, 0)} == table.progress([1])


def test_every_commit_moves_main_and_asserts_all_that_it_was_judged_at(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asserted, commit = [], Table._do_commit

    def commits(handle: Table, updates: Any, requirements: Any) -> None:
        asserted.append({it.type + getattr(it, "ref", "") for it in requirements})
        commit(handle, updates, requirements)

    monkeypatch.setattr(Table, "_do_commit", commits)
    versions = [table.raise_terms({1: 7}).version, table.raise_terms({1: 8}).version]
    assert versions == [entry.snapshot_id for entry in plain(table).history()]
    always = {"assert-ref-snapshot-idmain", "assert-table-uuid", "assert-current-schema-id", "assert-default-spec-id"}
    assert [always, always | {"assert-ref-snapshot-idneli"}] == asserted


def test_a_commit_that_lands_after_its_program_gave_up_finds_files(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_its_way, commit = [], Table._do_commit

    def silent(handle: Table, updates: Any, requirements: Any) -> None:
        on_its_way.append((handle, updates, requirements))
        raise CommitStateUnknownException("the gateway timed out")

    for is_dead in (False, True):
        batch = len(prices(table))
        with monkeypatch.context() as patch:
            patch.setattr(Table, "_do_commit", silent)
            patch.setattr(FencedIcebergTable, "spare_tries", 0)
            with pytest.raises(TableUnavailable, match=r"each of 1 tries failed \(CommitStateUnknownException\)"):
                table.append(rows(1, price=batch), {1: 7}, batch)
        assert 0 == table.sweep()
        if is_dead:
            again(table).raise_terms({1: 9})
            assert 1 == table.sweep()
            with pytest.raises(CommitFailedException):
                commit(*on_its_way.pop())
        else:
            commit(*on_its_way.pop())
            assert (1,) == table.append(rows(1, price=batch), {1: 7}, batch).skipped
        table.sweep()
        assert ([(1, 0.0)], []) == (prices(table), orphans(table))


def test_snapshots_expire_and_terms_do_not(tmp_path: Path) -> None:
    with made("iceberg", tmp_path, history=timedelta(0)) as table:
        for batch in range(3):
            table.append(rows(1, price=batch), {1: 7}, batch)
        zombie = again(table)
        with zombie.stage({1: 7}, 3) as staging:
            staging.write(rows(1))
            table.raise_terms({1: 9})
            table.maintain()
            assert 1 == len(plain(table).snapshots())
            with pytest.raises(Refused, match="term 9"):
                zombie.commit(staging)
        assert {1: Progress(9, 2)} == again(table).progress([1])
        assert ([(1, 0.0), (1, 1.0), (1, 2.0)], []) == (prices(table), orphans(table))


def test_a_column_may_be_added_and_other_changes_are_refused(table: Any) -> None:
    wide = rows(1).append_column("venue", pa.array(["XLON"]))

    def widened() -> None:
        plain(table).update_schema().union_by_name(pa.schema([("venue", pa.string())])).commit()

    assert (1,) == meanwhile(table, widened).landed
    assert (1,) == table.append(wide, {1: 7}, 1).landed
    assert (1,) == table.append(rows(1), {1: 7}, 2).landed  # A program of an older version.
    assert 3 == len(prices(table))

    def split() -> None:
        plain(table).update_spec().add_field("instrument", BucketTransform(4), "more").commit()

    def renamed() -> None:
        plain(table).update_schema().rename_column("price", "cost").commit()

    for change, problem in ((split, "partitioned by"), (renamed, "columns were renamed, retyped or removed: price")):
        with pytest.raises(TableMismatch, match=problem):
            meanwhile(table, change, batch=3)
        with pytest.raises(TableMismatch, match=problem):
            again(table)


def test_no_table_of_others_and_no_table_made_anew_is_taken(tmp_path: Path, table: Any) -> None:
    for name in ("lake.nothing", "elsewhere.prices"):
        with pytest.raises(TableMismatch, match="the catalog has none"):
            FencedIcebergTable(name, table.catalog)
    table.catalog.create_table("lake.theirs", SCHEMA)
    with pytest.raises(TableMismatch, match=r"its neli\.format is None"):
        FencedIcebergTable.create("lake.theirs", SCHEMA, LAYOUT, table.catalog)
    with pytest.raises(TableMismatch, match="shorter whole numbers: size"):
        FencedIcebergTable.create("lake.short", pa.schema([("size", pa.int16())]), LAYOUT, table.catalog)
    with pytest.raises(TableUnavailable, match="it cannot be opened"):
        FencedIcebergTable("lake.prices", {"type": "sql", "uri": f"sqlite:///{tmp_path}/no/catalog.db"})
    with pytest.raises(TableMismatch, match="loads all snapshots"):
        FencedIcebergTable("lake.prices", {**table.catalog.properties, "snapshot-loading-mode": "refs"})
    table.append(rows(1), {1: 7}, 0)
    table.catalog.drop_table(table.name)
    fresh = FencedIcebergTable.create(table.name, SCHEMA, LAYOUT, table.catalog)
    with pytest.raises(TableMismatch, match="another one was made in its place"):
        table.append(rows(1), {1: 7}, 1)
    assert {1: Progress(None, -1)} == fresh.progress([1])


def test_rows_that_lie_in_the_folder_of_another_partition_are_refused(table: Any) -> None:
    with table.stage({1: 7, 2: 7}, 0) as staging:
        staging.write(rows(1))
        home = Path(staging.folder.removeprefix("file://"))
        (home / "neli_partition=1").rename(home / "neli_partition=2")
        with pytest.raises(TableMismatch, match="rows of partition 2 alone"):
            table.commit(staging)


@pytest.mark.postgresql
def test_hosts_share_a_catalog_in_postgresql(database: str, tmp_path: Path) -> None:
    uri = database.replace("postgresql://", "postgresql+psycopg://")
    catalog = {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}"}
    hosts = [FencedIcebergTable.create("lake.prices", SCHEMA, LAYOUT, catalog) for _ in range(3)]

    def work(partition: int) -> list[tuple[int, ...]]:
        return [hosts[partition].append(rows(partition), {partition: 7}, batch).landed for batch in range(3)]

    try:
        with ThreadPoolExecutor(3) as pool:
            assert [[(partition,)] * 3 for partition in range(3)] == list(pool.map(work, range(3)))
        assert 9 == len(prices(hosts[0]))
        hosts[0].raise_terms({1: 9})
        with pytest.raises(Refused, match="term 9"):
            hosts[1].append(rows(1), {1: 7}, 3)
    finally:
        for one in hosts:
            one.catalog.close()
