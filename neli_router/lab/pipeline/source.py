"""Ticks as Spark reads them: a step at a time, from a folder or a topic, without a connector's jar.

    folder    Spark's own reader of Parquet, on the files of the step
    topic     spark.read.format(...), options lane, after, upto: a data source whose workers read with confluent-kafka

The topic is passed as an attribute of the source's class, not as an option: Spark shows options in its plans and logs
unmasked, and the address of a topic may contain a password.
"""

from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from neli_router.core.keyspace import Layout
from neli_router.core.logs import logger
from neli_router.lab.pipeline.feeds import TickFolder, TickTopic, feed_at
from neli_router.lab.pipeline.ticks import SCHEMA
from neli_router.spark.fenced import to_read
from neli_router.spark.steps import InputStep

__all__ = ["TickSteps"]


class TickSteps:
    """The steps of a feed of ticks, as frames of one Spark."""

    def __init__(self, spark: SparkSession, address: str, layout: Layout) -> None:
        self._spark, self._schema = spark, from_arrow_schema(SCHEMA)
        self._feed = feed_at(address, layout)
        if isinstance(self._feed, TickTopic):
            ticks = self._feed

            class OfThisTopic(_TickSource):
                topic, format = ticks, f"ticks-{uuid4().hex}"

            self._format = OfThisTopic.format
            spark.dataSource.register(OfThisTopic)
        elif not self._feed.folder.exists():
            # It may still appear. If the path was mistyped, the job would wait forever without saying for what.
            logger().warning("ticks.awaited", folder=str(self._feed.folder))

    def lanes(self) -> int:
        return self._feed.lanes()

    def tip(self, lane: int, known: int) -> int:
        return self._feed.tip(lane, known)

    def frame(self, step: InputStep) -> DataFrame:
        if isinstance(self._feed, TickFolder):
            paths = [to_read(self._feed.checked(number)) for number in range(step.after + 1, step.upto + 1)]
            return self._spark.read.schema(self._schema).parquet(*paths)
        bounds = {"lane": str(step.lane), "after": str(step.after), "upto": str(step.upto)}
        return self._spark.read.format(self._format).options(**bounds).load()


class _TickSource(DataSource):
    topic: ClassVar[TickTopic]
    format: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.format

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> "_Reader":
        return _Reader(self.topic, self.options)


class _Reader(DataSourceReader):
    """Reads one step, in one task, so that its ticks stay in order."""

    def __init__(self, topic: TickTopic, options: Any) -> None:
        self._topic = topic
        self._lane, self._after, self._upto = (int(options[name]) for name in ("lane", "after", "upto"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._topic.read(self._lane, self._after, self._upto)
