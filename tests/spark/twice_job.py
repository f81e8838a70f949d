"""A job whose tasks Spark runs twice at once, into SQLite, PostgreSQL or Redis. test_standalone.py runs it.

    python twice_job.py MASTER FOLDER DATABASE...      prints [number of the database, batch, its partitions]

A database is the path of an SQLite file, redis://..., or how psycopg finds a PostgreSQL. A stage is a single task here.
Its first run waits, so that Spark starts a second one beside it, on the other executor; then both write:

    batch 1   the first waits in the middle of its first write until the second begins; then both write, side by side
    batch 2   the first waits until the second has written all, then comes with the same batch; and then both end
"""

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import redis
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from neli_router.spark import RedisReceiver, SqlReceiver, session

PATIENCE = 300.0
PARTITIONS = 8
ROWS = 800
TERMS = {partition: 100 + partition for partition in range(PARTITIONS)}

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.task.duration.threshold": "500ms",  # Else a stage of a single task is never run twice.
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.showConsoleProgress": "false",
}


def main(master: str, folder: Path, addresses: list[str]) -> None:
    with session("twice", master=master, settings=SETTINGS) as spark:
        for number, address in enumerate(addresses):
            for batch in (1, 2):
                mishap = Mishap(address, batch, folder / f"{number}-{batch}")
                prices, write = mishap.receiver(mishap.connect)
                prices.raise_terms(TERMS)
                landing = prices.write(ticks(spark), write, terms=TERMS, batch=batch)
                print(json.dumps([number, batch, sorted({*landing.landed, *landing.before})]), flush=True)  # noqa: T201


class Mishap:
    """Of one batch into one database. In a task, it sees to it that both runs write."""

    def __init__(self, address: str, batch: int, note: Path) -> None:
        self.address, self.batch, self.note = address, batch, note

    def receiver(self, connect: Callable[[], Any]) -> tuple[Any, Callable[..., Any]]:
        """The receiver, and what it is given to write with."""
        if self.address.startswith("redis:"):
            return RedisReceiver(f"{self.note.parent}/prices", connect), self.commands
        return SqlReceiver("prices", connect), self.insert

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
        if self.address.startswith("/"):
            return made_of(sqlite3.Connection)(self.address, timeout=PATIENCE)
        return made_of(psycopg.Connection).connect(self.address)

    def closing(self, kind: type[Any]) -> Callable[[Any], None]:
        def close(connection: Any) -> None:
            kind.close(connection)
            self.at_end()

        return close

    def insert(self, connection: Any, rows: Iterator[Row]) -> None:
        mark = "?" if self.address.startswith("/") else "%s"
        cursor = connection.cursor()
        for row in rows:
            cursor.execute(f"INSERT INTO twice VALUES ({mark}, {mark})", (self.batch, row.instrument))
        self.in_write()

    def commands(self, rows: Iterator[Row]) -> list[tuple[Any, ...]]:
        made = [("HINCRBY", f"{self.note.parent}/{self.batch}", row.instrument, 1) for row in rows]
        self.in_write()
        return made

    def in_write(self) -> None:
        if (self.batch, run()) == (1, 0):
            wait_for(self.note.exists)

    def at_end(self) -> None:
        """Spark kills the run that is later: so the one that has written all waits for the other one."""
        if (self.batch, run()) == (2, 0):
            self.note.touch()
        if (self.batch, run()) == (2, 1):
            wait_for(self.note.exists)


def run() -> int:
    """Of this task: 0 or 1. In the driver, none."""
    context = TaskContext.get()
    return -1 if context is None else context.attemptNumber()


def wait_for(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come true"
        time.sleep(0.02)


def ticks(spark: SparkSession) -> Any:
    return spark.range(ROWS).selectExpr(
        "CONCAT('instrument ', id) AS instrument", f"CAST(id % {PARTITIONS} AS INT) AS partition"
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
