"""A DataFrame into a fenced table and out of it: executors write Parquet, the driver alone commits. No jar.

    rows --repartition by `partition`--> tasks --> _neli/NAME/rows/partition=3/part-0.parquet      Spark's own commit
                                                                     |
    driver: counted as many rows as were written? --yes--> FencedTable.commit: fence and files, in one version
                                                  --no---> TableUnavailable, and nothing has landed

All rows of one partition go through one task, and no file holds two partitions. So an owner reads its files and no
others, and a batch adds one file to each partition.

**Tasks that run twice.** A lost executor's tasks run again, and with speculation the slow ones run twice. Spark's
committer lets one attempt of each task finish, and moves its files out of `_temporary` when the whole job is done. We
ask for its version 1, because version 2 moves them task by task, and leaves half of a failed job among finished files.
The folder is new for each attempt, so nothing of an older job can be in it. A straggler that goes on after its driver
has died writes into that folder only, which no reader looks at.

**A file system that is not shared** is the trap of a cluster: executors write to their own disks, Spark reports a
success, and the driver finds no file. The batch would land empty. So rows are counted twice: by Spark as they are
written, and by the footers of the files that the driver sees. Both must agree.

Reading needs no jar either: the table says which files are in it, and Spark reads Parquet. The column `partition` comes
from the names of the folders, so a filter on it skips files, and `partitions=` does not even list them.
"""

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession, functions
from pyspark.sql.types import StructType

from neli_router.fence import TableUnavailable
from neli_router.fence.delta import PARTITION, Commit, FencedTable, Staging
from neli_router.fence.delta.layouts import columns_of, require_columns
from neli_router.spark.paths import to_read, to_write
from neli_router.spark.slots import NOTE, noted_as

__all__ = ["append_rows", "read_table", "stage_rows"]

COUNT_SECONDS_MAX = 60.0
"""Spark tells the count through a queue that drops what is too much for it; then it would never come."""

COMMITTER = "mapreduce.fileoutputcommitter.algorithm.version"

TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
"""By default INT96, in which other engines read years after 2262 as others."""


def append_rows(
    rows: DataFrame, table: FencedTable, terms: Mapping[int, int], batch: int, *, after: int | None = None
) -> Commit:
    """Write `rows` and commit them as `FencedTable.append` does: one step of all partitions in `terms`.

    `rows` have the table's columns; `partition` says where each belongs. It must be one of `terms`. Raises what
    `FencedTable.stage` and `commit` raise, and Spark's own errors.
    """
    with table.stage(terms, batch, after=after) as staging:
        stage_rows(rows, staging)
        return table.commit(staging)


def stage_rows(rows: DataFrame, staging: Staging) -> int:
    """Write `rows` into `staging`, and count them. Once for each staging. Nothing has landed before it is committed.

    Raises TableMismatch, before Spark starts any work, if the columns are not the table's; TableUnavailable if
    the driver does not see what the executors wrote.
    """
    require_columns(staging.made.columns, columns_of(rows.schema), "the DataFrame")
    counted = Observation()
    conf = rows.sparkSession.conf
    before = conf.get(TIMESTAMPS)
    conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        (
            rows.repartition(PARTITION)
            .observe(counted, functions.count(functions.lit(1)).alias("rows"))
            .write.option(COMMITTER, "1")
            .partitionBy(PARTITION)
            .parquet(to_write(staging.folder))
        )
    finally:
        conf.set(TIMESTAMPS, str(before))
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
    table: FencedTable,
    *,
    partitions: Iterable[int] | None = None,
    version: int | None = None,
) -> DataFrame:
    """The rows of `partitions`, all of them by default, as the table is now or was at `version`.

    It stays at that version. Read it again for what is committed later.
    """
    schema = StructType.fromJson(table.made.spark_schema())
    if files := table.files(partitions, version=version):
        paths = [to_read(Path(file)) for file in files]
        rows = spark.read.schema(schema).option("basePath", to_write(table.path)).parquet(*paths)
    else:
        rows = spark.createDataFrame([], schema)
    # As the columns are noted that Spark lays out: so `owned` knows at once whether it was given the table's layout.
    return rows.withMetadata(PARTITION, {NOTE: noted_as(table.layout)})


def _answer(counted: Observation) -> int:
    found: list[int] = []
    # In a thread that nothing waits for, since asking for a count that was dropped takes for ever.
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
