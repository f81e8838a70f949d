"""A job like a user's, with everything that can go wrong in it on a cluster. test_standalone.py runs it.

    python cluster_job.py MASTER FOLDER POSTGRESQL REDIS        prints a line of JSON after each batch

A database is redis://..., or a PostgreSQL address for psycopg. The first part writes into each database, and a stage is
a single task. Its first run waits, so that Spark starts a second run on the other executor:

    batch 1   the first waits in the middle of its first write until the second begins; then both write concurrently
    batch 2   the first waits until the second has written all, then sends the same batch; and then both end

The second part writes into PostgreSQL:

    batch 3   the task of partition 0 has written, but not committed: it names its process, and waits to be killed
    batch 4   each task fails after it has committed
    batch 5   a newer owner has taken over partition 5: the test arranges that

The last part appends to the fenced table in FOLDER/table. The test kills an executor while it writes.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import redis
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, md5

from neli_router.fence import Refused
from neli_router.fence.delta import FencedTable
from neli_router.spark import RedisReceiver, SqlReceiver, append_rows, session

PATIENCE = 300.0
PARTITIONS, ROWS = 8, 800
TABLE_ROWS = 200_000
"""Enough rows that a task writes for a while."""

TERMS = {partition: 100 + partition for partition in range(PARTITIONS)}
SECOND_PART = "--- the second part ---"

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.task.duration.threshold": "500ms",  # Otherwise a stage of a single task never runs twice.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",  # Otherwise few rows would make a single task.
    "spark.sql.shuffle.partitions": "1",
}


def main(master: str, folder: Path, addresses: list[str]) -> None:
    with session("mishaps", master=master, settings=SETTINGS) as spark:
        for number, address in enumerate(addresses):
            for batch in (1, 2):
                written(spark, Mishap(address, batch, folder / f"{number}-{batch}"), number)
        print(SECOND_PART, file=sys.stderr, flush=True)  # noqa: T201 - the test reads all output.
        spark.conf.set("spark.sql.shuffle.partitions", "4")
        for batch in (3, 4):
            written(spark, Mishap(addresses[0], batch, folder / f"0-{batch}"), 0)
        sys.stdin.readline()
        try:
            written(spark, Mishap(addresses[0], 5, folder / "0-5"), 0)
        except Refused as refused:
            tell([refused.resource, refused.term, refused.admitted])
        table = FencedTable(folder / "table")
        for batch in range(2):
            tell(list(appended(spark, table, batch)))


def written(spark: SparkSession, mishap: "Mishap", number: int) -> None:
    prices, write = mishap.receiver(mishap.connect)
    if mishap.batch == 1:
        prices.raise_terms(TERMS)
    rows = spark.range(ROWS).selectExpr("CONCAT('instrument ', id) AS instrument", partition_of("id"))
    landing = prices.write(rows, write, terms=TERMS, batch=mishap.batch)
    tell([number, mishap.batch, sorted({*landing.landed, *landing.before})])


def appended(spark: SparkSession, table: FencedTable, batch: int) -> tuple[int, ...]:
    """If an executor dies between the permission to commit a task and its confirmation, Spark gives up the job. The
    user starts it again."""
    rows: DataFrame = spark.range(TABLE_ROWS, numPartitions=2).selectExpr("id", partition_of("id"))
    rows = rows.withColumn("text", md5(col("id").cast("string")))
    for _ in range(2):
        with suppress(Exception):
            return append_rows(rows, table, TERMS, batch).landed
    return append_rows(rows, table, TERMS, batch).landed


def partition_of(number: str) -> str:
    return f"CAST({number} % {PARTITIONS} AS INT) AS partition"


class Mishap:
    """The mishap in the first run of each task that writes a batch into a database."""

    def __init__(self, address: str, batch: int, note: Path) -> None:
        self.address, self.batch, self.note = address, batch, note

    def receiver(self, connect: Callable[[], Any]) -> tuple[Any, Callable[..., Any]]:
        """The receiver, and the function that it writes with."""
        if self.address.startswith("redis:"):
            return RedisReceiver(f"{self.note.parent}/prices", connect), self.commands
        return SqlReceiver("mishaps", connect), self.insert

    def connect(self) -> Any:
        if (self.batch, run()) == (1, 1):
            self.note.touch()
        if (self.batch, run()) == (2, 0):
            last = PARTITIONS - 1
            wait_for(lambda: self.receiver(self.plain)[0].progress([last]) == {last: self.batch})
        return self.opened(lambda kind: type(kind.__name__, (kind,), {"close": self.closing(kind)}))

    def plain(self) -> Any:
        return self.opened(lambda kind: kind)

    def opened(self, made_of: Callable[[type[Any]], Any]) -> Any:
        if self.address.startswith("redis:"):
            return made_of(redis.Redis).from_url(self.address)
        return made_of(psycopg.Connection).connect(self.address)

    def closing(self, kind: type[Any]) -> Callable[[Any], None]:
        def close(connection: Any) -> None:
            kind.close(connection)
            self.at_end()

        return close

    def insert(self, connection: Any, rows: Iterator[Row]) -> None:
        cursor, seen = connection.cursor(), set()
        for row in rows:
            seen.add(row.partition)
            cursor.execute("INSERT INTO mishaps VALUES (%s, %s)", (self.batch, row.instrument))
        self.in_write(seen)

    def commands(self, rows: Iterator[Row]) -> list[tuple[Any, ...]]:
        made = [("HINCRBY", f"{self.note.parent}/{self.batch}", row.instrument, 1) for row in rows]
        self.in_write(set())
        return made

    def in_write(self, partitions: set[int]) -> None:
        if (self.batch, run()) == (1, 0):
            wait_for(self.note.exists)
        # If an executor is lost together with output that others still have to fetch, Spark counts a task's runs from
        # the start.
        if (self.batch, run(), self.note.exists()) == (3, 0, False) and 0 in partitions:
            self.note.write_text(f"{os.getppid()}\n")  # The daemon, whose parent is the executor.
            wait_for(self.note.with_name("never").exists)

    def at_end(self) -> None:
        """Spark kills the later run: so the run that has written everything waits for the other."""
        if (self.batch, run()) == (2, 0):
            self.note.touch()
        if (self.batch, run()) == (2, 1):
            wait_for(self.note.exists)
        if (self.batch, run()) == (4, 0):
            self.note.touch()
            raise RuntimeError("this task fails on purpose, after its write")


def run() -> int:
    """The number of this run of the task: 0 or 1. The driver has -1."""
    context = TaskContext.get()
    return -1 if context is None else context.attemptNumber()


def wait_for(holds: Callable[[], bool]) -> None:
    """Like `until`, which the executors cannot import."""
    give_up_at = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come true"
        time.sleep(0.02)


def tell(answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - as above.


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
