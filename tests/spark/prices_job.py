"""A job such as a user writes one: prices into PostgreSQL, through the fence. test_standalone.py runs it.

    python prices_job.py MASTER ADDRESS [MISHAPS]      prints {batch: its partitions}, at last the refusal

The job is the same wherever it runs. With a folder for mishaps, things go wrong in the first run of its tasks:

    batch 1   the task of partition 0 wrote, and did not commit: it names its process, and waits to be killed
    batch 2   each task fails after it has committed
    batch 3   the task of partition 0 waits before its commit until Spark has started it a second time elsewhere
    batch 4   a newer owner has taken partition 5 over, as the test sees to
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from neli_router.fence import Refused
from neli_router.spark import SqlReceiver, session

PATIENCE = 300.0
PARTITIONS = 8
ROWS = 4000


def main(master: str, address: str, mishaps: Path) -> None:
    batch = 0

    def is_first(number: int) -> bool:
        """Whether this is the first run of a task of batch `number`, and that is to go wrong."""
        context = TaskContext.get()
        return batch == number and mishaps.exists() and context is not None and context.attemptNumber() == 0

    class Connection(psycopg.Connection[Any]):
        def close(self) -> None:
            super().close()
            if is_first(2):
                (mishaps / "failed").touch()
                raise RuntimeError("this task fails on purpose, after its write")

    def connect() -> psycopg.Connection[Any]:
        context = TaskContext.get()
        if batch == 3 and mishaps.exists() and context is not None and context.attemptNumber() > 0:
            (mishaps / "again").touch()
        return Connection.connect(address)

    def insert(connection: psycopg.Connection[Any], rows: Iterator[Row]) -> None:
        seen = set()
        with connection.cursor() as cursor, cursor.copy("COPY prices FROM STDIN") as copy:
            for row in rows:
                seen.add(row.partition)
                copy.write_row((batch, row.instrument, row.price))
        # If an executor is lost with what others still have to fetch, Spark counts the runs of a task from the start.
        if 0 in seen and is_first(1) and not (mishaps / "process").exists():
            (mishaps / "process").write_text(f"{os.getppid()}\n")  # The daemon, whose parent is the executor.
            wait_for(mishaps / "never")
        if 0 in seen and is_first(3):
            wait_for(mishaps / "again")

    def wait_for(path: Path) -> None:
        give_up_at = time.monotonic() + PATIENCE
        while not path.exists():
            assert time.monotonic() < give_up_at, f"{path.name} did not come"
            time.sleep(0.02)

    terms = {partition: 100 + partition for partition in range(PARTITIONS)}
    prices = SqlReceiver("prices", connect)
    with session("prices", master=master, settings=SETTINGS) as spark:
        prices.raise_terms(terms)
        for batch in range(1, 4):  # The functions above see it.
            landing = prices.write(ticks(spark), insert, terms=terms, batch=batch)
            tell({batch: sorted({*landing.landed, *landing.before})})
        sys.stdin.readline()
        batch = 4
        try:
            prices.write(ticks(spark), insert, terms=terms, batch=batch)
        except Refused as refused:
            tell([refused.resource, refused.term, refused.admitted])


SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",  # Or few rows would make a single task.
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.showConsoleProgress": "false",
}


def ticks(spark: SparkSession) -> Any:
    return spark.range(ROWS).selectExpr(
        "CONCAT('instrument ', id) AS instrument",
        "id / 4.0D AS price",
        f"CAST(id % {PARTITIONS} AS INT) AS partition",
    )


def tell(answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - the test reads it.


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3] if sys.argv[3:] else "/nowhere"))
