"""A DataFrame into a fenced table and out of it: executors write Parquet, the driver alone commits. No jar.

    rows --repartition by `partition`--> tasks --> _neli/NAME/rows/partition=3/part-0.parquet      Spark's own commit
                                                                     |
    driver: does it count as many rows as were written? --yes--> commit: fence and files, in one version
                                                        --no---> TableUnavailable, and nothing has landed

All rows of one partition go through one task, and no file holds two partitions. So an owner reads its own files and no
others, and a batch adds one file to each partition.

**Tasks that run twice.** The tasks of a lost executor run again, and with speculation the slow ones run twice. Spark's
committer lets one attempt of each task finish, and moves its files out of `_temporary` when the whole job is done. We
request its version 1, because version 2 moves them task by task, and leaves half of a failed job among finished files.
The folder is new for each attempt, so it cannot contain anything of an older job. A straggler that goes on after its
driver has died writes only into that folder, which no reader looks at.

**A file system that is not shared** is the trap of a cluster: executors write to their own disks, Spark reports
success, and the driver finds no file. The batch would land empty. So rows are counted twice: by Spark during the write,
and in the footers of the files that the driver sees. Both counts must agree.

Reading needs no jar either: the table lists its files, and Spark reads Parquet. The column `partition` comes from the
folder names, so a filter on it skips files, and `partitions=` does not even list them. The files of an Iceberg table
contain the column, so a filter opens their footers.
"""

import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession, functions
from pyspark.sql.types import StructType

from neli_router.fence import TableUnavailable
from neli_router.fence.delta.layouts import columns_of
from neli_router.fence.tables import PARTITION, AnyFencedTable, AnyStaging, Commit, Condition, Terms
from neli_router.spark.sessions import described
from neli_router.spark.slots import NOTE, layout_note

__all__ = ["append_rows", "read_table", "stage_rows", "to_read", "to_write"]

COUNT_SECONDS_MAX = 60.0
"""Spark reports the count through a queue that drops events when it is full; then the count would never arrive."""

OPTIONS = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    # By default INT96, whose years after 2262 other engines misread.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""The write gets them, and not the session, which other threads may use."""

PATTERN = re.compile(r"[\\{}\[\]*?]")
"""Characters that make a path name many files."""


def append_rows(
    rows: DataFrame, table: AnyFencedTable[Any], terms: Terms, batch: int, *, after: int | None = None
) -> Commit:
    """Write `rows` and commit them like `FencedTable.append`: one step of all partitions in `terms`.

    `rows` have the table's columns; `partition` says where each row belongs. It must be one of `terms`. Raises the
    errors of `FencedTable.stage` and `commit`, and Spark's own errors.
    """
    step = batch if after is None else f"{after} -> {batch}"
    with table.stage(terms, batch, after=after) as staging:
        told = f"neli {table.name} step {step} ({len(staging.step.terms)} partitions)"
        with described(rows.sparkSession, told):
            stage_rows(rows, staging)
        return table.commit(staging)


def stage_rows(rows: DataFrame, staging: AnyStaging) -> int:
    """Write `rows` into `staging`, and count them. Call it once for each staging. Nothing lands before the commit.

    Raises TableMismatch, before Spark starts any work, if the columns are not the table's; TableUnavailable if
    the driver does not see what the executors wrote.
    """
    staging.format.require(columns_of(rows.schema), "the DataFrame")
    counted = Observation()
    # A column that names folders is left out of the files.
    named = rows if staging.folders == PARTITION else rows.withColumn(staging.folders, functions.col(PARTITION))
    (
        named.repartition(PARTITION)
        .observe(counted, functions.count(functions.lit(1)).alias("rows"))
        .write.options(**OPTIONS)
        .partitionBy(staging.folders)
        .parquet(to_write(staging.folder))
    )
    written, seen = _answer(counted), staging.count()
    if written != seen:
        raise TableUnavailable(
            f"the {written} rows that Spark wrote were wanted in {staging.folder}",
            f"the driver sees {seen}",
            "put the table on a file system that the driver and all executors share, under the same path",
        )
    return seen


def read_table(
    spark: SparkSession,
    table: AnyFencedTable[Any],
    *,
    partitions: Iterable[int] | None = None,
    version: int | None = None,
    where: Sequence[Condition] = (),
) -> DataFrame:
    """The rows of `partitions` (default: all), as the table is now or was at `version`.

    `where` leaves out files without such rows, as in `FencedTable.files`; filter the rows by the same conditions. The
    DataFrame stays at that version. Call again to read what is committed later.
    """
    files = table.files(partitions, version=version, where=where)
    schema = StructType.fromJson(table.format.spark_schema())  # Only now: another program may have added columns.
    if files:
        reader = spark.read.schema(schema)
        if table.base is not None:
            reader = reader.option("basePath", to_write(table.base))
        rows = reader.parquet(*map(to_read, files))
    else:
        rows = spark.createDataFrame([], schema)
    # As `repartition_by_key` does, so that `owned` knows immediately whether it was given the table's layout.
    return rows.withMetadata(PARTITION, {NOTE: layout_note(table.layout)})


def to_write(place: Path | str) -> str:
    """`place`, which the driver and all executors see, as Spark takes it: a bare path may mean the cluster's storage.

    An address stays the same."""
    return str(place) if "://" in str(place) else f"file://{Path(place).absolute()}"


def to_read(place: Path | str) -> str:
    """The same for Spark's readers, which take a bare path for a pattern."""
    return PATTERN.sub(r"\\\g<0>", to_write(place))


def _answer(counted: Observation) -> int:
    found: list[int] = []
    # In a thread that nothing waits for, because asking for a count that was dropped never returns.
    asker = threading.Thread(target=lambda: found.append(int(counted.get["rows"])), daemon=True, name="neli-count")
    asker.start()
    asker.join(COUNT_SECONDS_MAX)
    if not found:
        raise TableUnavailable(
            "Spark's count of the rows that it wrote was wanted",
            f"it did not come in {COUNT_SECONDS_MAX:g} s",
            "if Spark logs dropped events, raise spark.scheduler.listenerbus.eventqueue.capacity; repeat the batch",
        )
    return found[0]
