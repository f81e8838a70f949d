"""Sources of a `StepLoop`: what a step is, and the frame of its rows.

    ParquetSteps   numbered files of a folder: Spark's own reader, on the files of the step
    KafkaSteps     a topic: key, value, offset, timestamp. Spark's Python workers read it; no connector's jar is needed

The address of a topic may contain a password. So it is an attribute of the data source's class, and not an option:
Spark shows options in its plans and logs unmasked.
"""

import time
from collections.abc import Iterator
from copy import copy
from os import PathLike
from typing import Any, ClassVar, Protocol
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from neli_router.core.keyspace import Layout
from neli_router.core.logs import logger
from neli_router.errors import ConfigError
from neli_router.spark.feeds import MESSAGES, NumberedFiles, Topic
from neli_router.spark.fenced import to_read
from neli_router.spark.slots import Key

__all__ = ["KafkaSteps", "ParquetSteps", "StepSource"]

LOOK_EVERY = 1.0
"""Seconds between two looks for the first file."""


class StepSource(Protocol):
    """Input that is cut into steps: the same step has the same rows, whichever host reads it and when."""

    @property
    def key(self) -> Key:
        """The column, or the expression, by which a row belongs to a partition."""

    @property
    def longest(self) -> int:
        """How long a step may be."""

    def lanes(self) -> int:
        """The number of independent sequences of steps. Partition i of the group is in lane i mod this number."""

    def tip(self, lane: int, known: int) -> int:
        """The current end of the lane; its last known end is `known`."""

    def frame(self, spark: SparkSession, layout: Layout, lane: int, after: int, upto: int) -> DataFrame:
        """The rows of `lane` behind `after`, up to and including `upto`. An empty step has the columns and no row."""


class ParquetSteps:
    """The files 00000001.parquet, 00000002.parquet, ... of a folder. They must be complete when they appear.

    Each may also be a folder that Spark wrote, `df.write.parquet(f"{folder}/{number:08}.parquet")`. Write them in the
    order of their numbers. `schema` is a StructType or Spark's text for one, "customer string, amount double"; by
    default it is that of the first file, for which a job waits.
    """

    def __init__(
        self, folder: str | PathLike[str], key: Key, *, schema: StructType | str | None = None, longest: int = 1
    ) -> None:
        """A step is at most `longest` files. Raises ConfigError for an address instead of a path."""
        self.key, self.longest, self._schema = key, _positive(longest), schema
        self._files = NumberedFiles(folder)

    def lanes(self) -> int:
        if not self._files.tip(0, 0):
            # It may still appear. If the path was mistyped, the job would wait forever without saying for what.
            logger().warning("steps.awaited", first=str(self._files.path(1)))
        return 1

    def tip(self, lane: int, known: int) -> int:
        return self._files.tip(lane, known)

    def frame(self, spark: SparkSession, layout: Layout, lane: int, after: int, upto: int) -> DataFrame:
        schema = self._schema = self._known(spark)
        if after == upto:
            return spark.createDataFrame([], schema)
        paths = [to_read(self._files.checked(number, schema.names)) for number in range(after + 1, upto + 1)]
        return spark.read.schema(schema).parquet(*paths)

    def _known(self, spark: SparkSession) -> StructType:
        if isinstance(self._schema, StructType):
            return self._schema
        if self._schema is not None:
            return spark.createDataFrame([], self._schema).schema
        while not self._files.tip(0, 0):
            time.sleep(LOOK_EVERY)
        return spark.read.parquet(to_read(self._files.checked(1, ()))).schema


class KafkaSteps:
    """The messages of a topic: `key`, `value`, `offset`, `timestamp`. Cast and parse them in the job's function.

    A message must be in the topic partition that is its key's partition in the group, mod the number of the topic's
    partitions; the job refuses any other topic. The topic must retain messages for longer than a job may be away.
    """

    key = "key"

    def __init__(self, address: str, *, longest: int = 100_000) -> None:
        """`address` is kafka://HOST:PORT/TOPIC, with the options of a ledger's. A step is at most `longest` offsets."""
        self.longest = _positive(longest)
        self._topic = Topic(address)
        self._formats: dict[Layout, str] = {}

    def lanes(self) -> int:
        return self._topic.lanes()

    def tip(self, lane: int, known: int) -> int:
        return self._topic.tip(lane, known)

    def frame(self, spark: SparkSession, layout: Layout, lane: int, after: int, upto: int) -> DataFrame:
        bounds = {"lane": str(lane), "after": str(after), "upto": str(upto)}
        return spark.read.format(self._format(spark, layout)).options(**bounds).load()

    def _format(self, spark: SparkSession, layout: Layout) -> str:
        """The name under which this session knows the topic."""
        if layout not in self._formats:

            class OfThisTopic(_StepFormat):
                # A copy: a class lives on for a while, and would keep the client for questions open.
                topic, lanes_of, format = copy(self._topic), layout, f"neli-steps-{uuid4().hex}"

            self._formats[layout] = OfThisTopic.format
            spark.dataSource.register(OfThisTopic)
        return self._formats[layout]


class _StepFormat(DataSource):
    topic: ClassVar[Topic]
    lanes_of: ClassVar[Layout]
    format: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.format

    def schema(self) -> StructType:
        return from_arrow_schema(MESSAGES)

    def reader(self, schema: StructType) -> "_Reader":
        return _Reader(self.topic, self.lanes_of, self.options)


class _Reader(DataSourceReader):
    """Reads one step, in one task, so that its messages stay in order."""

    def __init__(self, topic: Topic, layout: Layout, options: Any) -> None:
        self._topic, self._layout = topic, layout
        self._lane, self._after, self._upto = (int(options[name]) for name in ("lane", "after", "upto"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._topic.read(self._lane, self._after, self._upto, self._layout)


def _positive(longest: int) -> int:
    if type(longest) is not int or longest < 1:
        raise ConfigError([f"longest={longest!r} must be a whole number of at least 1"])
    return longest
