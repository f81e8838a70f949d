"""Ticks as Spark reads them: a step at a time, or as a stream, from a folder or a topic, without a connector's jar.

    folder, a step at a time    Spark's own reader of Parquet, on the files of the step
    everything else             a data source of this feed: workers read with pyarrow, or with confluent-kafka

    spark.read.format(...)          options: lane, after, upto
    spark.readStream.format(...)    options: lane, after, longest

The feed is passed as an attribute of the source's class, not as an option: Spark shows options in its plans and logs
unmasked, and the address of a topic may contain a password.

The offset of the stream is the progress that `feeds` counts: a number of files, or an offset of the topic. A
micro-batch spans at most `longest` of them. The column `step` of its rows holds the number that it goes up to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from neli_router.core.keyspace import Layout
from neli_router.core.logs import logger
from neli_router.lab.pipeline.feeds import TickFolder, TickTopic, feed_at
from neli_router.lab.pipeline.ticks import SCHEMA
from neli_router.spark.fenced import to_read
from neli_router.spark.steps import STEP, InputStep

__all__ = ["TickSteps"]

STREAMED = SCHEMA.append(pa.field(STEP, pa.int64(), nullable=False))


class TickSteps:
    """The steps of a feed of ticks, as frames of one Spark."""

    def __init__(self, spark: SparkSession, address: str, layout: Layout) -> None:
        self._spark, self._feed = spark, feed_at(address, layout)
        if isinstance(self._feed, TickFolder) and not self._feed.folder.exists():
            # It may still appear. If the path was mistyped, the job would wait forever without saying for what.
            logger().warning("ticks.awaited", folder=str(self._feed.folder))

        class OfThisFeed(_TickSource):
            feed, format = self._feed, f"ticks-{uuid4().hex}"

        self._format = OfThisFeed.format
        spark.dataSource.register(OfThisFeed)

    def lanes(self) -> int:
        return self._feed.lanes()

    def tip(self, lane: int, known: int) -> int:
        return self._feed.tip(lane, known)

    def frame(self, step: InputStep) -> DataFrame:
        if isinstance(self._feed, TickFolder):
            paths = [to_read(self._feed.checked(number)) for number in range(step.after + 1, step.upto + 1)]
            return self._spark.read.schema(_spark_schema(SCHEMA)).parquet(*paths)
        bounds = {"lane": str(step.lane), "after": str(step.after), "upto": str(step.upto)}
        return self._spark.read.format(self._format).options(**bounds).load().drop(STEP)

    def stream(self, lane: int, after: int, longest: int) -> DataFrame:
        bounds = {"lane": str(lane), "after": str(after), "longest": str(longest)}
        return self._spark.readStream.format(self._format).options(**bounds).load()


class _TickSource(DataSource):
    feed: ClassVar[TickFolder | TickTopic]
    format: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.format

    def schema(self) -> StructType:
        return _spark_schema(STREAMED)

    def reader(self, schema: StructType) -> "_Reader":
        return _Reader(self.feed, self.options)

    def streamReader(self, schema: StructType) -> "_StreamReader":  # noqa: N802 - the name is Spark's.
        return _StreamReader(self.feed, self.options)


@dataclass
class _Range(InputPartition):
    """The range that one Spark task reads."""

    after: int
    upto: int


class _Source:
    def __init__(self, feed: TickFolder | TickTopic, options: Any) -> None:
        self._feed, self._lane = feed, int(options["lane"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Range), "it comes from `partitions`"
        for ticks in self._feed.read(self._lane, partition.after, partition.upto):
            steps = pa.repeat(pa.scalar(partition.upto, pa.int64()), ticks.num_rows)
            yield pa.RecordBatch.from_arrays([*ticks.columns, steps], schema=STREAMED)


class _Reader(_Source, DataSourceReader):
    def __init__(self, feed: TickFolder | TickTopic, options: Any) -> None:
        super().__init__(feed, options)
        self._range = _Range(int(options["after"]), int(options["upto"]))

    def partitions(self) -> Sequence[InputPartition]:
        return [self._range]


class _StreamReader(_Source, DataSourceStreamReader):
    def __init__(self, feed: TickFolder | TickTopic, options: Any) -> None:
        super().__init__(feed, options)
        self._after, self._longest = int(options["after"]), int(options["longest"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - the name is Spark's, like those below.
        return {"at": self._after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._longest)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        tip = self._feed.tip(self._lane, start["at"])
        return {"at": tip if isinstance(limit, ReadAllAvailable) else min(tip, start["at"] + self._longest)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        # One task, so that a micro-batch is read in order.
        return [_Range(start["at"], end["at"])] if start["at"] < end["at"] else []


def _spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema)
