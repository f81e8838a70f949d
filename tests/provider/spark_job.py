"""A Spark job of the tests: it commits, or goes on and ignores every signal.

spark_job.py FOLDER commit    commits one row for each of its partitions into the table next to FOLDER
spark_job.py FOLDER linger    never ends, and has a Python worker of Spark
spark_job.py FOLDER late      like `linger`, and commits once there is a file `now`
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyspark.sql import SparkSession

from neli_router.core.keyspace import Layout
from neli_router.errors import NeliError
from neli_router.fence.delta import FencedTable
from neli_router.spark.guard import run_job

folder, way = Path(sys.argv[1]), sys.argv[2]
SCHEMA = pa.schema({"member": pa.string()})


def put(name: str, text: str) -> None:
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / name)


def told(spark: SparkSession) -> dict[str, str]:
    """The settings that come from us."""
    return {name: value for name, value in spark.sparkContext.getConf().getAll() if name.startswith("spark.neli.")}


def commit(settings: dict[str, str]) -> None:
    terms = {int(partition): term for partition, term in json.loads(settings["spark.neli.terms"]).items()}
    layout = Layout(**json.loads(settings["spark.neli.layout"]))
    table = FencedTable.create(folder.parent / "table", SCHEMA, layout, first_batch=1)
    member = [settings["spark.neli.member"]] * len(terms)
    table.append(pa.table({"member": member, "partition": pa.array(terms, pa.int32())}), terms, 1)


def linger(spark: SparkSession) -> NoReturn:
    """Ignore signals, and be busy in Spark and in the driver's own Python."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def busy(rows: Iterable[int]) -> Iterable[int]:
        put("worker", str(os.getpid()))
        time.sleep(3600)
        yield from rows

    job = spark.sparkContext.parallelize(range(2), 1).mapPartitions(busy)
    threading.Thread(target=job.count, daemon=True).start()
    settings = told(spark)
    while True:
        time.sleep(0.02)
        if way == "late" and (folder / "now").exists() and not (folder / "late").exists():
            try:
                commit(settings)
                put("late", "landed")
            except NeliError as error:
                put("late", type(error).__name__)


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    if way != "commit":
        linger(spark)
    commit(told(spark))
    spark.stop()


run_job(main)
