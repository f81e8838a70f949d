"""DataFrames in fenced tables: what Spark writes lands in one step, and is read by the table's own list of files."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, raise_error, when

from neli_router.core.keyspace import Layout
from neli_router.fence import FenceMisused, Refused, TableMismatch, TableUnavailable
from neli_router.fence.delta import FencedTable, Progress, Staging
from neli_router.spark import FilesRead, append_rows, files_read, owned, read_table, stage_rows
from tests.fence.lakes import again, made, orphans, read

pytestmark = pytest.mark.spark

LAYOUT = Layout(partitions=8)
ALL = dict.fromkeys(range(8), 7)


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> FencedTable:
    return FencedTable.create(tmp_path / "a lake" / "prices", ticks(spark, 0).schema, LAYOUT)


def ticks(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select("id", (col("id") % 8).cast("int").alias("partition"))


def ids(rows: DataFrame) -> list[int]:
    return sorted(row.id for row in rows.collect())


def names(table: FencedTable) -> set[str]:
    """Every file and folder of the table except its log."""
    found = (path.relative_to(table.path) for path in table.path.rglob("*"))
    return {str(path) for path in found if path.parts[0] != "_delta_log"}


def test_a_batch_lands_once_and_is_read_by_version_and_by_partition(spark: SparkSession, table: FencedTable) -> None:
    commit = append_rows(ticks(spark, 80), table, ALL, 0)
    assert (1, tuple(range(8))) == (commit.version, commit.landed)
    jobs: Any = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    assert "Some(neli prices step 0 (8 partitions))" == jobs.head().description().toString()
    assert None is spark.sparkContext.getLocalProperty("spark.job.description")
    assert tuple(range(8)) == append_rows(ticks(spark, 80), table, ALL, 0).skipped
    before = read_table(spark, table)
    assert list(range(80)) == ids(before)
    placed = {str(Path(file).relative_to(table.path)) for file in table.files()}
    assert 8 == len(placed)
    assert placed | {f"partition={number}" for number in range(8)} | {"_neli"} == names(table)
    assert 80 == DeltaTable(str(table.path)).count()

    append_rows(ticks(spark, 16), table, ALL, 1)
    frames = (before, read_table(spark, table, version=1), read_table(spark, table))
    assert [80, 80, 96] == [frame.count() for frame in frames]
    some = read_table(spark, table, partitions=[3])
    assert [3, 3, 11, 11, *range(19, 80, 8)] == ids(some)
    assert {"partition=3"} == {Path(urlparse(file).path).parent.name for file in some.inputFiles()}
    assert 0 == read_table(spark, table, partitions=[]).count()
    # So does Spark if a filter is on the partitions, and `owned` knows by which layout they were made.
    assert FilesRead(2, 16) == files_read(frames[-1], [3])
    plan = frames[-1].where("partition = 3")._jdf.queryExecution().executedPlan().toString()
    assert re.search(r"PartitionFilters: \[[^\]]*partition", plan)
    with pytest.raises(TableMismatch, match="notes "):
        owned(frames[-1], "id", [3], Layout(partitions=4))
    # A batch without rows takes the step, too.
    assert (1, 2) == append_rows(ticks(spark, 0), table, {1: 9, 2: 9}, 2).landed
    assert {2: Progress(9, 2)} == table.progress([2])


def test_an_old_writer_leaves_a_later_column_null(spark: SparkSession, table: FencedTable) -> None:
    old = ticks(spark, 16).where("partition = 1").coalesce(1)
    new = old.withColumn("venue", lit("X"))
    append_rows(old, table, {1: 7}, 0)
    FencedTable(table.path).add_columns(new.schema)
    assert {"id", "partition", "venue"} == {*read_table(spark, table).columns}
    append_rows(old, table, {1: 7}, 1)
    append_rows(new, table, {1: 7}, 2)
    assert [None] * 4 + ["X"] * 2 == sorted((row.venue for row in read_table(spark, table).collect()), key=str)
    for where, files in ([("id", ">=", 10)], 0), ([("id", "<", 2)], 3), ([("venue", "=", "X")], 2):
        assert files == len(read_table(spark, table, where=where).inputFiles()), where


def test_columns_that_differ_and_foreign_rows_are_refused(spark: SparkSession, table: FencedTable) -> None:
    other = ticks(spark, 8).select(col("id").cast("string"), raise_error(lit("it was run")).alias("size"))
    with pytest.raises(TableMismatch) as mismatch:  # Before Spark starts.
        append_rows(other, table, ALL, 0)
    for word in ("partition is missing", "size is not in the table", "id is string instead of long"):
        assert word in mismatch.value.found
    for partition in ("5", "null"):
        rows = spark.sql(f"SELECT 1L AS id, CAST({partition} AS INT) AS partition")
        with pytest.raises(FenceMisused, match="drop rows without a key"):
            append_rows(rows, table, {1: 7}, 0)
    assert {1: Progress(None, -1)} == table.progress([1])
    assert {"_neli"} == names(table)


def test_neither_a_failed_job_nor_unseen_files_leave_anything(spark: SparkSession, table: FencedTable) -> None:
    class Elsewhere(Staging):
        """Like on a machine whose disk the executors of other machines cannot write to."""

        def count(self) -> int:
            for path in self.folder.glob("partition=3/*"):
                path.unlink()
            return super().count()

    with table.stage(ALL, 0) as staging:
        staging.__class__ = Elsewhere
        with pytest.raises(TableUnavailable, match=r"the 80 rows that Spark wrote .* the driver sees 70"):
            stage_rows(ticks(spark, 80), staging)
    rows = ticks(spark, 80).withColumn("id", when(col("id") == 79, raise_error(lit("no"))).otherwise(col("id")))
    with table.stage(ALL, 0) as staging:
        with pytest.raises(Exception, match="no"):
            stage_rows(rows, staging)
        (staging.folder / "_temporary").mkdir(parents=True, exist_ok=True)  # Like a job that is still running.
        with pytest.raises(TableUnavailable, match="_temporary"):
            table.commit(staging)
    assert {"_neli"} == names(table)


def test_a_path_that_looks_like_a_pattern_is_that_of_one_table(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a b", 3)], "text string, partition int")
    table = FencedTable.create(tmp_path / "[p] {p,q} * ?#ü", rows.schema, LAYOUT)
    append_rows(rows, table, {3: 7}, 0)
    assert rows.collect() == read_table(spark, table).collect()


TYPES = (
    "SELECT 1 AS partition, 3 c, CAST(1.5 AS FLOAT) d, 2.5D e, 'x' f, X'00ff' g, true h, DATE '9999-12-31' i, "
    "TIMESTAMP '9999-12-31 23:59:59.123456' j, 1.25BD k, array(1, null) l, map('k', 1) n, CAST(null AS LONG) o, "
    "named_struct('at', TIMESTAMP '2026-01-02 03:04:05.678901', 'n', 'y') m"
)


def test_values_of_every_type_are_the_same_to_spark_and_to_other_engines(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(f"{TYPES}, CAST(1 AS TINYINT) a, CAST(2 AS SMALLINT) b")
    table = FencedTable.create(tmp_path / "types", rows.schema, LAYOUT)
    append_rows(rows, table, {1: 7}, 0)
    for compacted in (False, True):
        if compacted:
            append_rows(rows, table, {1: 7}, 1)
            assert 1 == table.compact({1: 7}).made
        found = read_table(spark, table).select(*sorted(rows.columns)).collect()
        assert rows.select(*sorted(rows.columns)).collect() * (1 + compacted) == found
    found = DeltaTable(str(table.path)).to_pyarrow_table().to_pylist()[0]
    assert datetime(9999, 12, 31, 23, 59, 59, 123456, UTC) == found["j"]
    assert (date(9999, 12, 31), Decimal("1.25"), b"\x00\xff") == (found["i"], found["k"], found["g"])
    assert {"at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "n": "y"} == found["m"]


def test_an_iceberg_table_takes_the_same_rows_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(TYPES)
    with made("iceberg", tmp_path / "a lake", rows.schema) as table:
        first = append_rows(rows, table, {1: 7, 2: 7}, 0)
        assert (1, 2) == first.landed
        second = rows.withColumn("partition", lit(2))
        assert (2,) == append_rows(second, table, {2: 7}, 1).landed
        assert (2,) == append_rows(second, table, {2: 7}, 1).skipped
        wanted = rows.select(*sorted(rows.columns)).collect()
        assert wanted == read_table(spark, table, partitions=[1]).select(*sorted(rows.columns)).collect()
        assert [1, 2] == [read_table(spark, table, version=version).count() for version in (first.version, None)]
        found = read(table).to_pylist()[0]
        assert datetime(9999, 12, 31, 23, 59, 59, 123456, UTC) == found["j"]
        assert {"at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "n": "y"} == found["m"]
        with table.stage({1: 7}, 1) as staging:
            stage_rows(rows, staging)
            again(table).raise_terms({1: 9})
            with pytest.raises(Refused, match="term 9"):
                table.commit(staging)
        assert [] == orphans(table)
