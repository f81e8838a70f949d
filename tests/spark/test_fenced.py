"""DataFrames in fenced tables: what Spark writes lands as one step, and is read by the table's own list of files."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit, raise_error, when

import neli_router
from neli_router.fence import FenceMisused, Refused, TableMismatch, TableUnavailable
from neli_router.fence.delta import FencedTable, Progress, Staging
from neli_router.keyspace import Layout
from neli_router.spark import append_rows, files_read, owned, read_table, stage_rows, with_partition
from tests.support.servers.spark import Spark

pytestmark = pytest.mark.spark

ROOT = Path(neli_router.__file__).parents[1]
LAYOUT = Layout(partitions=8)
ALL = dict.fromkeys(range(8), 7)
JOB_MAX = 1500.0
JOBS_MAX = 3
ROWS = 400_000

JOB = """
import sys
from pyspark.sql.functions import col, md5
from neli_router.fence.delta import FencedTable
from neli_router.spark import append_rows, session

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.showConsoleProgress": "false",
}

master, path, rows = sys.argv[1:]
with session("prices", master=master, settings=SETTINGS) as spark:
    table = FencedTable(path)
    ticks = spark.range(int(rows), numPartitions=2).select("id", (col("id") % 8).cast("int").alias("partition"))
    ticks = ticks.withColumn("text", md5(col("id").cast("string")))
    for batch in range(2):
        print(append_rows(ticks, table, dict.fromkeys(range(8), 7), batch), flush=True)
"""
"""Enough rows that a task writes for a while, and that slow ones are run a second time elsewhere."""


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> FencedTable:
    return FencedTable.create(tmp_path / "a lake" / "prices", ticks(spark, 0).schema, LAYOUT)


def ticks(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select("id", (col("id") % 8).cast("int").alias("partition"))


def ids(rows: DataFrame) -> list[int]:
    return sorted(row.id for row in rows.collect())


def names(table: FencedTable) -> set[str]:
    """Every file and folder of the table but its log."""
    found = (path.relative_to(table.path) for path in table.path.rglob("*"))
    return {str(path) for path in found if path.parts[0] != "_delta_log"}


def test_a_batch_of_spark_lands_with_one_file_a_partition(spark: SparkSession, table: FencedTable) -> None:
    commit = append_rows(ticks(spark, 80), table, ALL, 0)
    assert (1, tuple(range(8))) == (commit.version, commit.landed)
    assert list(range(80)) == ids(read_table(spark, table))
    placed = {str(Path(file).relative_to(table.path)) for file in table.files()}
    assert 8 == len(placed)
    assert placed | {f"partition={number}" for number in range(8)} | {"_neli"} == names(table)
    assert 80 == DeltaTable(str(table.path)).count()


def test_a_batch_that_is_repeated_lands_once(spark: SparkSession, table: FencedTable) -> None:
    append_rows(ticks(spark, 8), table, ALL, 0)
    assert tuple(range(8)) == append_rows(ticks(spark, 8), table, ALL, 0).skipped
    assert list(range(8)) == ids(read_table(spark, table))
    assert 8 == len([name for name in names(table) if name.endswith("parquet")])


def test_a_driver_that_was_deposed_while_spark_wrote_is_refused(spark: SparkSession, table: FencedTable) -> None:
    rival = FencedTable(table.path)
    with table.stage(ALL, 0) as staging:
        assert 8 == stage_rows(ticks(spark, 8), staging)
        rival.raise_terms(dict.fromkeys(range(8), 9))
        with pytest.raises(Refused, match="term 9"):
            table.commit(staging)
    assert 0 == read_table(spark, table).count()
    assert {"_neli"} == names(table)


def test_columns_that_differ_are_named_before_spark_starts(spark: SparkSession, table: FencedTable) -> None:
    other = ticks(spark, 8).select(col("id").cast("string"), raise_error(lit("it was run")).alias("size"))
    with pytest.raises(TableMismatch) as mismatch:
        append_rows(other, table, ALL, 0)
    for word in ("partition is missing", "size is not in the table", "id is string instead of long"):
        assert word in mismatch.value.found
    assert {"_neli"} == names(table)


@pytest.mark.parametrize("partition", ["5", "null"])
def test_rows_that_belong_to_no_partition_that_is_held_are_refused(
    spark: SparkSession, table: FencedTable, partition: str
) -> None:
    rows = spark.sql(f"SELECT 1L AS id, CAST({partition} AS INT) AS partition")
    with pytest.raises(FenceMisused, match="drop rows without a key"):
        append_rows(rows, table, {1: 7}, 0)
    assert {1: Progress(None, -1)} == table.progress([1])
    assert {"_neli"} == names(table)


def test_a_batch_without_rows_takes_the_step(spark: SparkSession, table: FencedTable) -> None:
    assert (1, 2) == append_rows(ticks(spark, 0), table, {1: 7, 2: 7}, 0).landed
    assert {2: Progress(7, 0)} == table.progress([2])


def test_files_that_the_driver_does_not_see_never_land_as_an_empty_batch(
    spark: SparkSession, table: FencedTable
) -> None:
    class Elsewhere(Staging):
        """As on a machine whose disk the executors of other machines cannot write to."""

        def count(self) -> int:
            for path in self.folder.glob("partition=3/*"):
                path.unlink()
            return super().count()

    with table.stage(ALL, 0) as staging:
        staging.__class__ = Elsewhere
        with pytest.raises(TableUnavailable, match=r"the 80 rows that Spark wrote .* the driver sees 70"):
            stage_rows(ticks(spark, 80), staging)


def test_a_job_that_failed_leaves_nothing_in_the_table(spark: SparkSession, table: FencedTable) -> None:
    rows = ticks(spark, 80).withColumn("id", when(col("id") == 79, raise_error(lit("no"))).otherwise(col("id")))
    with table.stage(ALL, 0) as staging:
        with pytest.raises(Exception, match="no"):
            stage_rows(rows, staging)
        (staging.folder / "_temporary").mkdir(parents=True, exist_ok=True)  # As a job that is still running has it.
        with pytest.raises(TableUnavailable, match="_temporary"):
            table.commit(staging)
    assert {"_neli"} == names(table)


@pytest.mark.timeout(1800)
def test_on_a_cluster_whose_executor_dies_while_it_writes_every_row_lands_once(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = FencedTable.create(tmp_path / "prices", schema, LAYOUT)
    killed, ended = 0, -1
    with Spark.started(workers=2) as cluster, (tmp_path / "log").open("w+") as log:
        give_up_at = time.monotonic() + JOB_MAX
        # Spark gives a job up whose executor dies between the leave to commit a task and the word that it has. Whoever
        # runs it starts it again.
        for _ in range(JOBS_MAX):
            job = subprocess.Popen(
                [sys.executable, "-c", JOB, cluster.master, str(table.path), str(ROWS)],
                env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                while job.poll() is None and time.monotonic() < give_up_at:
                    if not killed and any(table.path.glob("_neli/*/rows/_temporary/0/_temporary/*/*")):
                        killed = executor_of(cluster.master)
                        os.kill(killed, signal.SIGKILL)
                    time.sleep(0.005)
            finally:
                job.kill()
                ended = job.wait()
            if 0 == ended:
                break
        log.seek(0)
        assert 0 == ended, "\n".join(line for line in log.read().splitlines() if not line.startswith("\tat "))
    assert killed
    found = DeltaTable(str(table.path)).to_pyarrow_table(columns=["id"])
    assert (2 * ROWS, ROWS) == (found.num_rows, len(pc.unique(found["id"])))
    assert dict.fromkeys(range(8), Progress(7, 1)) == table.progress()
    table.sweep()
    assert {str(Path(file).relative_to(table.path)) for file in table.files()} == {
        name for name in names(table) if name.endswith(".parquet")
    }


def executor_of(master: str) -> int:
    """One of the executors of this cluster: other tests may have clusters of their own."""
    ps = shutil.which("ps")
    assert ps, "Spark's own scripts need it"
    told = subprocess.check_output([ps, "-axww", "-o", "pid=,ppid=,args="], text=True)
    found = [line.split(maxsplit=2) for line in told.splitlines()]
    workers = {process for process, _, command in found if "worker.Worker" in command and master in command}
    executors = [process for process, parent, command in found if "ExecutorBackend" in command and parent in workers]
    return int(executors[0])


def test_a_partition_is_read_from_its_own_files_alone(spark: SparkSession, table: FencedTable) -> None:
    append_rows(ticks(spark, 80), table, ALL, 0)
    whole, some = read_table(spark, table), read_table(spark, table, partitions=[3])
    assert [3, 11, 19] == ids(some)[:3]
    assert {"partition=3"} == {Path(urlparse(file).path).parent.name for file in some.inputFiles()}
    assert ids(some) == ids(whole.where("partition = 3"))
    assert 0 == read_table(spark, table, partitions=[]).count()


def test_owned_rows_are_read_from_their_files_alone(spark: SparkSession, tmp_path: Path) -> None:
    keys = spark.range(400).select(concat(lit("instrument "), "id").alias("key"))
    rows = with_partition(keys, "key", LAYOUT)
    table = FencedTable.create(tmp_path / "keys", rows.schema, LAYOUT)
    append_rows(rows, table, ALL, 0)
    whole = read_table(spark, table)
    mine = owned(whole, "key", [3], LAYOUT)
    wanted = sorted(row.key for row in rows.where("partition = 3").collect())
    assert wanted == sorted(row.key for row in mine.collect())
    assert (1, 8) == (files_read(whole, [3]).read, files_read(whole, [3]).total)
    assert 1 == len(pruned(mine))
    with pytest.raises(TableMismatch, match="notes "):
        owned(whole, "key", [3], Layout(partitions=4))


def pruned(rows: DataFrame) -> list[str]:
    """The conditions by which the scan of `rows` skips files."""
    plan = rows._jdf.queryExecution().executedPlan().toString()
    return [found for found in re.findall(r"PartitionFilters: \[([^\]]*)\]", plan) if "partition" in found]


def test_a_path_that_looks_like_a_pattern_is_that_of_one_table(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a b", 3)], "text string, partition int")
    for name in ("p", "[p]", "{p,q}", "p*", "p?", "p q", "p#q", "ü"):
        table = FencedTable.create(tmp_path / name, rows.schema, LAYOUT)
        append_rows(rows, table, {3: 7}, 0)
        assert rows.collect() == read_table(spark, table).collect(), name


def test_a_table_is_read_at_a_version(spark: SparkSession, table: FencedTable) -> None:
    append_rows(ticks(spark, 8), table, ALL, 0)
    before = read_table(spark, table)
    append_rows(ticks(spark, 16), table, ALL, 1)
    assert (8, 8, 24) == (
        before.count(),
        read_table(spark, table, version=1).count(),
        read_table(spark, table).count(),
    )


def test_values_of_every_type_are_the_same_to_spark_and_to_other_engines(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "SELECT 1 AS partition, CAST(1 AS TINYINT) a, CAST(2 AS SMALLINT) b, 3 c, CAST(1.5 AS FLOAT) d, 2.5D e, 'x' f, "
        "X'00ff' g, true h, DATE '9999-12-31' i, TIMESTAMP '9999-12-31 23:59:59.123456' j, 1.25BD k, array(1, null) l, "
        "named_struct('at', TIMESTAMP '2026-01-02 03:04:05.678901', 'n', 'y') m, map('k', 1) n, CAST(null AS LONG) o"
    )
    rows = spark.sql(text)
    table = FencedTable.create(tmp_path / "types", rows.schema, LAYOUT)
    append_rows(rows, table, {1: 7}, 0)
    assert rows.select(*sorted(rows.columns)).collect() == (
        read_table(spark, table).select(*sorted(rows.columns)).collect()
    )
    found = DeltaTable(str(table.path)).to_pyarrow_table().to_pylist()[0]
    assert datetime(9999, 12, 31, 23, 59, 59, 123456, UTC) == found["j"]
    assert (date(9999, 12, 31), Decimal("1.25"), b"\x00\xff") == (found["i"], found["k"], found["g"])
    assert {"at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "n": "y"} == found["m"]
