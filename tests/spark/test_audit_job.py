"""The job `audit_ownership`: an archive that grows with each run, and statistics that Spark makes of the audit."""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace
from pyspark.sql import SparkSession

from dags.jobs.audit_ownership import archived, audit_archive, by_member_and_hour, copy_new, entries_of, statistics_of
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import NeliError
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Beat, Record, encode
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.status.audit_table import tables_of, write_tables
from neli_router.status.notes import Acts, Notebook
from tests.support.audited import audited, entries, taken_over
from tests.support.records import genesis

pytestmark = pytest.mark.spark

START = 3590.0
"""Ten seconds before the end of an hour on the members' clock."""


def history() -> list[Record]:
    """Alice dies, and bob takes over all four partitions. Offsets in a file begin with 1."""
    return [replace(it, sent_at=START + it.sent_at) if isinstance(it, Beat) else it for it in taken_over(first=1)]


def append(path: Path, records: Sequence[Record]) -> None:
    with closing(SqliteLedger(path)) as ledger:
        ledger.append([encode(record) for record in records])


def archive(spark: SparkSession, folder: Path, records: Sequence[Record]) -> Path:
    rows = [(entry.offset, None, entry.payload.decode()) for entry in entries(records, first=1)]
    spark.createDataFrame(rows, "offset long, time timestamp, payload string").write.mode("append").parquet(str(folder))
    return folder


def test_each_run_copies_what_is_new_unless_the_ledger_was_made_anew(spark: SparkSession, tmp_path: Path) -> None:
    first, second, folder, records = tmp_path / "first.db", tmp_path / "second.db", tmp_path / "archive [1]", history()
    append(first, records[:12])
    copy_new(spark, f"sqlite://{first}", folder)
    append(second, [genesis("c"), *records[1:]])  # Longer than the first, so that no record is missing.
    with pytest.raises(NeliError, match="began in another way: it was recreated"):
        copy_new(spark, f"sqlite://{second}", folder)
    assert entries(records[:12], first=1) == list(entries_of(archived(spark, folder)))

    state = State()
    for offset, record in enumerate(records, start=1):
        state = fold(state, offset, record)
    records.append(snapshot("b", state))
    append(first, records[12:])
    with closing(SqliteLedger(first)) as opened:
        opened.trim(10)
    copy_new(spark, f"sqlite://{first}", folder)
    assert entries(records, first=1) == list(entries_of(archived(spark, folder)))


def test_records_that_two_runs_copied_are_audited_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = archive(spark, tmp_path / "archive", history())
    archive(spark, folder, history()[:9])
    assert entries(history(), first=1) == list(entries_of(archived(spark, folder)))
    Notebook(tmp_path / "alice.1.notes").write(Acts(START + 6.1, START + 13.0, {0: 1002}))
    Notebook(tmp_path / "bob.1.notes").write(Acts(START + 12.5, START + 17.0, {0: 1020}))
    found = audit_archive(spark, folder, tmp_path)
    assert audited(entries(history(), first=1)).tenures == audit_archive(spark, folder).tenures
    assert (1, "broken") == (len(found.overlaps), found.verdict)


def test_kafkas_time_of_a_record_comes_along_and_an_archive_must_be_there(spark: SparkSession, tmp_path: Path) -> None:
    at = datetime(2026, 11, 22, 8, 0, 0, 250_000, tzinfo=UTC)
    rows = spark.createDataFrame([(7, at, "{}")], "offset long, time timestamp, payload string")
    assert [(7, b"{}", at.timestamp())] == list(map(tuple, entries_of(rows)))
    with pytest.raises(NeliError, match=r"there is no .*: name a ledger"):
        archived(spark, tmp_path / "archive")


def test_a_tenure_over_several_hours_counts_in_each(spark: SparkSession) -> None:
    tenures = [("m1", 0, 3000.0, 11_000.0), ("m1", 1, 3000.0, 3600.0), ("m2", 1, None, None)]
    rows = spark.createDataFrame(tenures, "member string, partition long, led_from double, led_until double")
    assert [(0, 1200.0, 2, 2), (1, 3600.0, 1, 0), (2, 3600.0, 1, 0), (3, 200.0, 1, 0)] == [
        (it.hour, it.partition_seconds, it.partitions, it.began) for it in by_member_and_hour(rows).collect()
    ]


def test_statistics_by_hour_member_and_partition_are_delta_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Alice led from 6 s and a bit until she died at 7.5; bob leads from 15, in the next hour, until 16.5."""
    write_tables(statistics_of(spark, tables_of(audited(entries(history(), first=1), one_clock=True))), tmp_path)

    def rows(name: str, *columns: str) -> list[tuple[Any, ...]]:
        found = DeltaTable(tmp_path / name).to_pyarrow_table().to_pylist()
        return sorted(tuple(row[column] for column in columns) for row in found)

    assert {"by_hour", "by_member_and_hour", "by_partition"} == {path.name for path in tmp_path.iterdir()}
    assert [(0, 0, 1, 7.5, 2, 0), (1, 4, 0, None, 0, 1)] == rows(
        "by_hour", "hour", "moves", "takeovers", "takeover_p50", "joins", "expired"
    )
    assert [(0, "alice", 4, 4), (1, "bob", 4, 4)] == rows("by_member_and_hour", "hour", "member", "partitions", "began")
    seconds = [row[1] for row in rows("by_member_and_hour", "hour", "partition_seconds")]
    assert [4 * (7.5 - 6.012012), 4 * 1.5] == pytest.approx(seconds, abs=1e-4)
    assert [(partition, 2, 2) for partition in range(4)] == rows("by_partition", "partition", "tenures", "members")
