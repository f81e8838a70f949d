"""Everything that works over Spark Connect: in a separate process, because this one already has a classic Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import neli_router

pytestmark = pytest.mark.spark

PROGRAM = """
import os, random, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.functions import col, spark_partition_id
from neli_router.errors import BadKey, LeaseLost
from neli_router.fence import TableMismatch
from neli_router.fence.delta import FencedTable
from neli_router.core.keyspace import Layout
from neli_router.spark import append_rows, files_read, guarded, hot_keys, repartition_by_key, load_profile, owned
from neli_router.spark import ParquetSteps, StepLoop, read_table, register_functions, repartition_by_owner
from neli_router.spark import with_partition, with_slot
from tests.support.waiting import until
from tests.support.agents.running import PATIENCE
from tests.spark.test_guard import ROLE, give, group, take
from tests.spark.test_slots import EDGES, random_binaries, random_texts

SETTINGS = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
spark = SparkSession.builder.remote("local[2]").config(map=SETTINGS).getOrCreate()
chance, tagged = random.Random(1), Layout(slots=1000, partitions=7, tags=True)
for kind, keys in ("string", [*EDGES, *random_texts(300, chance)]), ("binary", [*random_binaries(300, chance)]):
    df = spark.createDataFrame([(key,) for key in keys], f"key {kind}")
    assert isinstance(df, DataFrame), type(df)
    both = df.transform(with_slot, "key", tagged).transform(with_partition, "key", tagged)
    register_functions(spark, tagged)
    found = both.selectExpr("*", "neli_slot(key)", "neli_partition(key)").collect()
    expected = [(key, *(tagged.slot(key), tagged.partition(key)) * 2) for key in keys]
    assert expected == [tuple(row) for row in found], kind

layout = Layout(partitions=8)
df = spark.range(200).selectExpr("concat('customer-', id) AS key", "id AS number")
df.transform(repartition_by_key, "key", layout).write.partitionBy("partition").parquet(sys.argv[1])
table = spark.read.parquet(sys.argv[1])
mine = owned(table, col("key"), [3], layout)
rows = mine.collect()
assert {3} == {layout.partition(row.key) for row in rows} and 0 < len(rows) < 200
assert "1 of 8 files" == str(files_read(table, [3]))
tasks = repartition_by_owner(table, [*range(8)]).select("partition", spark_partition_id().alias("task")).distinct()
assert [(number, number) for number in range(8)] == sorted((row.partition, row.task) for row in tasks.collect())
for error, attempt in (
    (BadKey, lambda: with_slot(df, "number", layout)),
    (TableMismatch, lambda: owned(table, "key", [3], Layout(partitions=4))),
):
    try:
        attempt()
    except error:
        continue
    raise AssertionError(f"{error.__name__} was wanted")
told = [metric for plan in mine.executionInfo.metrics._metrics for metric in plan.metrics]
print("files that Spark read:", *(metric.value for metric in told if metric.name == "numFiles") or map(str, told))

weighed = spark.createDataFrame([("ACME", 7.5), ("ACME", 8.0), ("GLOBEX", 1.25)], "key string, milliseconds double")
profile = load_profile(weighed, "key", layout, weight="milliseconds")
slot = layout.slot("ACME")
assert (16.75, [(slot, 15.5)]) == (profile.total, profile.hottest(1))
assert [(slot, "ACME", 15.5)] == hot_keys(weighed, "key", layout, [slot], weight="milliseconds").collect()

both = df.transform(with_partition, "key", layout)
fenced = FencedTable.create(sys.argv[2], both.schema, layout)
assert 8 == len(append_rows(both, fenced, dict.fromkeys(range(8), 5), 0).landed)
assert 8 == len(append_rows(both, fenced, dict.fromkeys(range(8), 5), 0).skipped)
assert 200 == read_table(spark, fenced).count()

begun = Path(sys.argv[3]) / "begun"

def endless(batches):
    begun.touch()
    for batch in batches:
        while True:
            yield batch

def lose(agent):
    until(begun.exists, "the beginning of the job")
    for _ in range(2):
        agent.stop()

def query():
    return spark.readStream.format("rate").option("rowsPerSecond", 5).load().writeStream.format("noop").start()

other = query()
with group(Path(sys.argv[3]), drain_timeout=PATIENCE) as place:
    give(place)
    with place[2].share([ROLE], timeout=PATIENCE) as share, guarded(spark, share, end_within=None) as guard:
        ours = query()
        take(place)
        assert ours.awaitTermination(PATIENCE), "a revoked query goes on"
        guard.check()
        assert guard.ending and other.isActive
    give(place)
    try:
        with place[2].share([ROLE], timeout=PATIENCE) as share, guarded(spark, share, end_within=None):
            ours = query()
            # The agent ends when the job runs. A job that is cancelled earlier, while the server plans it, may run
            # there forever, and keep the cores from everything that follows.
            losing = threading.Thread(target=lose, args=(place[0],))
            losing.start()
            spark.range(2).mapInArrow(endless, "id long").count()
        raise AssertionError("LeaseLost was wanted")
    except LeaseLost as lost:
        assert "OPERATION_CANCELED" in str(lost.__cause__), lost.__cause__
    assert ours.awaitTermination(PATIENCE), "a query goes on after the loss"
    assert 10 == spark.range(10).count()

# A loop on another thread, which has no active session, takes a session itself, and stops it in the end.
spark.range(8).selectExpr("string(id) AS key").write.parquet(f"{sys.argv[3]}/steps/00000001.parquet")
(apart := Path(sys.argv[3], "loop")).mkdir()  # The ledger of the first group still pins the role.
with group(apart, drain_timeout=PATIENCE) as place, ThreadPoolExecutor(1) as pool:
    give(place)
    os.environ["SPARK_REMOTE"] = "local[2]"
    loop = StepLoop(ParquetSteps(f"{sys.argv[3]}/steps", "key"), lambda rows: rows, sys.argv[2] + "-2", client=place[2])
    assert pool.submit(loop.run, "now").result()
assert spark.is_stopped
"""


def test_all_of_it_holds_over_spark_connect(tmp_path: Path) -> None:
    """The process has no JVM, so a function that used one would fail."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "files"), str(tmp_path / "table"), str(tmp_path)],
        cwd=Path(neli_router.__file__).parents[1],
        # PySpark's own tests set this, and get a free port instead of the default one.
        env={**os.environ, "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,  # pytest shows the rest, even if it ends this test.
        text=True,
        check=False,
    )
    assert (0, "files that Spark read: 1") == (done.returncode, done.stdout.strip())
