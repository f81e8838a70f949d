"""Slots and placement over Spark Connect: in a process of its own, because this one has a classic Spark already."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import neli_router

pytestmark = pytest.mark.spark

SECONDS_MAX = 280.0

PROGRAM = """
import random, sys
from pyspark.sql import SparkSession
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.functions import spark_partition_id
from neli_router.errors import BadKey
from neli_router.fence import TableMismatch
from neli_router.keyspace import Layout
from neli_router.spark import files_read, laid_out, owned, repartition_by_owner, with_partition, with_slot
from tests.spark.test_slots import EDGES, random_binaries, random_texts

SETTINGS = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
spark = SparkSession.builder.remote("local[2]").config(map=SETTINGS).getOrCreate()
chance = random.Random(1)
for layout in (Layout(), Layout(slots=1000, partitions=7, tags=True)):
    both_kinds = {"string": [*EDGES, *random_texts(300, chance)], "binary": [*random_binaries(300, chance)]}
    for kind, keys in both_kinds.items():
        df = spark.createDataFrame([(key,) for key in keys], f"key {kind}")
        assert isinstance(df, DataFrame), type(df)
        both = df.transform(with_slot, "key", layout).transform(with_partition, "key", layout)
        expected = [(key, layout.slot(key), layout.partition(key)) for key in keys]
        assert expected == [(row.key, row.slot, row.partition) for row in both.collect()], (kind, layout)

layout = Layout(partitions=8)
df = spark.range(200).selectExpr("concat('customer-', id) AS key", "id AS number")
df.transform(laid_out, "key", layout).write.partitionBy("partition").parquet(sys.argv[1])
table = spark.read.parquet(sys.argv[1])
mine = owned(table, "key", [3], layout)
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
spark.stop()
"""


def test_all_of_it_holds_over_spark_connect(tmp_path: Path) -> None:
    """It has no JVM at hand, so a function that reached into one would fail."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "table")],
        cwd=Path(neli_router.__file__).parents[1],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert "files that Spark read: 1" == done.stdout.strip(), done.stderr
