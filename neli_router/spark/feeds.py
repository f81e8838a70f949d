"""Feeds: input that is cut into steps, so that every host that reads a step gets the same rows.

    NumberedFiles   FOLDER/00000001.parquet, 00000002.parquet, ...   a step ends with a file; progress counts files
    Topic           kafka://HOST:PORT/TOPIC                          a step ends at an offset; progress is an offset

    progress of a partition    after                        upto                   tip
                               -|---------- one step --------|---- not read yet ----|

A takeover needs nothing more from its input. The successor reads how far the table has got, and continues from there to
the tip. No clock and no consumer group is involved, and a step that is read twice gives the same rows twice.

A file becomes visible as a whole, by a rename, and never changes. A folder that Spark wrote counts as a file, once
Spark has put its `_SUCCESS` into it.

A topic may have several partitions, with no order between them. So each partition of the group has its messages in one
*lane*: the topic partition with its number, modulo their count. A message that is found in another lane is an error,
because its owner would never see it. Its producer must put each message where the partition of its key belongs. A
folder is one lane.

Nothing here needs Spark, so any program can fill or read a feed.
"""

import time
from collections.abc import Collection, Iterator
from contextlib import closing
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.kafka import address as kafka_address
from neli_router.errors import ConfigError, MissingExtra, NeliError

__all__ = ["MESSAGES", "NumberedFiles", "Topic", "kafka"]

MESSAGES = pa.schema(
    {"key": pa.binary(), "value": pa.binary(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
)
"""The columns of a topic's rows."""

ANSWER_MAX = 30.0
"""Seconds for a broker to answer a question, or to deliver the next messages. A broker that restarts takes a while."""

MESSAGES_MAX = 10_000
"""Messages taken at a time: enough to outweigh the cost of a call, few enough for a worker's memory."""

PATIENCE = 0.1
"""Seconds to wait for that many. The last messages of a step wait just as long; a shorter wait asks more often."""


class NumberedFiles:
    """A folder that all hosts see, with numbered Parquet files. Any process may read it, and one writes."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        if "://" in fspath(folder):  # As a path it would name an empty folder, and a job would wait forever.
            raise ConfigError([f"folder={fspath(folder)!r:.200} must be a path; a topic is read by KafkaSteps"])
        self.folder = Path(folder).absolute()  # Spark's workers have another working folder.
        self._written = 0

    def path(self, number: int) -> Path:
        """Path of file `number`, whether it exists or not. The first is 1."""
        return self.folder / f"{number:08}.parquet"

    def checked(self, number: int, columns: Collection[str]) -> Path:
        """Path of file `number`. Raises NeliError unless it is Parquet and has these columns."""
        path = self.path(number)
        file = next(path.glob("*.parquet"), path) if path.is_dir() else path
        # A reader fills missing columns with nulls. Rows without a key have no owner, so all would be dropped, and the
        # step would count as landed.
        try:
            there = parquet.read_schema(file).names
        except (OSError, pa.ArrowException) as error:
            found = f"it cannot be read ({error})"
        else:
            missing = sorted(set(columns).difference(there))
            if not missing:
                return path
            found = f"it has no column {', '.join(missing)}"
        raise NeliError(
            f"a Parquet file of the input was wanted at {path}", found, "name its folder, or mend what fills it"
        )

    def append(self, rows: pa.Table) -> int:
        """Write the next file; returns its number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = self._written = self.tip(0, self._written) + 1
        # Spark skips names that start with a dot, and a rename within one folder is atomic.
        hidden = self.folder / f".{number:08}.unfinished"
        parquet.write_table(rows, hidden)
        hidden.rename(self.path(number))
        return number

    def lanes(self) -> int:
        return 1

    def tip(self, lane: int, known: int) -> int:
        """How far the feed goes now; it was known to go to `known`."""
        while (path := self.path(known + 1)).is_file() or (path / "_SUCCESS").is_file():
            known += 1
        return known


class Topic:
    """An existing topic. May be sent to Spark's workers, where it opens its own connection."""

    def __init__(self, address: str) -> None:
        at, problems = kafka_address.parse(address.partition(":")[2])
        if at is None:
            raise ConfigError([f"the topic of the input: {problem}" for problem in problems])
        self.client, self.name = dict(at.client), at.group
        self.shown = at.public
        self._asked: Any = None
        """Client for questions. It is kept, because a job asks for the tip of each lane several times a second."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asked": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"

    def lanes(self) -> int:
        found = self._answer("list_topics", self.name).topics[self.name]
        if found.error is not None:
            raise NeliError(f"a topic was wanted at {self.shown}", found.error.str(), "make it, or correct the address")
        return len(found.partitions)

    def tip(self, lane: int, known: int) -> int:
        return self._bounds(lane)[1]

    def read(self, lane: int, after: int, upto: int, layout: Layout) -> Iterator[pa.RecordBatch]:
        """The messages of that step. Raises NeliError if the topic no longer has all of them, or if one has a key that
        belongs into another lane."""
        wanted = f"the messages from offset {after} to {upto} of {self.shown}, partition {lane}, were wanted"
        first, tip = self._bounds(lane)
        if not first <= after <= upto <= tip:
            raise NeliError(
                wanted,
                f"it has those from {first} to {tip}",
                "retention dropped them, or the topic was made again: retain messages for longer, in a new topic",
            )
        lanes = self.lanes()
        at, trouble, heard_at = after, "nothing was heard", time.monotonic()
        with closing(self._consumer()) as consumer:
            consumer.assign([kafka().TopicPartition(self.name, lane, after)])
            while at < upto:
                rows: list[tuple[bytes | None, bytes | None, int, int]] = []
                for message in consumer.consume(MESSAGES_MAX, timeout=PATIENCE):
                    error = message.error()
                    if error is None and message.offset() < upto:
                        rows.append((message.key(), message.value(), message.offset(), 1000 * message.timestamp()[1]))
                    if error is None or error.code() == kafka().KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name.
                        # Offsets have holes where transactions ended. The end-of-partition event covers holes behind
                        # the last message.
                        at = message.offset() + (error is None)
                        heard_at = time.monotonic()
                    else:
                        trouble = error.str()
                if time.monotonic() > heard_at + ANSWER_MAX:
                    raise NeliError(
                        wanted, f"behind {at}, {trouble}", "see to the brokers, which said that they have them"
                    )
                if rows:
                    self._require_lane({row[0] for row in rows}, lane, lanes, layout)
                    columns = zip(*rows, strict=True)
                    yield pa.RecordBatch.from_arrays(
                        [pa.array(column, kind.type) for column, kind in zip(columns, MESSAGES, strict=True)],
                        schema=MESSAGES,
                    )

    def _require_lane(self, keys: set[bytes | None], lane: int, lanes: int, layout: Layout) -> None:
        strangers = {None if key is None else layout.partition(key) % lanes for key in keys} - {lane}
        if strangers:
            others = sorted(other for other in strangers if other is not None)
            raise NeliError(
                f"partition {lane} of {self.shown} was to have the messages of its own lane",
                f"it has some that belong to partition {others[0]}" if others else "it has some without a key",
                "let the producer give each message its key, and put it into the topic partition that is the key's "
                "partition in the group, mod the topic's count",
            )

    def _bounds(self, lane: int) -> tuple[int, int]:
        """The first offset that is retained, and the one after the last."""
        first, tip = self._answer("get_watermark_offsets", kafka().TopicPartition(self.name, lane))
        return int(first), int(tip)

    def _answer(self, question: str, about: object) -> Any:
        self._asked = self._asked or self._consumer()
        try:
            return getattr(self._asked, question)(about, timeout=ANSWER_MAX)
        except kafka().KafkaException as error:
            raise NeliError(
                f"{self.shown} was to say what it has",
                error.args[0].str(),
                "see to its brokers, or correct the address",
            ) from None

    def _consumer(self) -> Any:
        # Kafka's client requires a group name; nothing is ever committed under it.
        return kafka().Consumer(
            {
                **self.client,
                "group.id": "neli-steps",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )


def kafka() -> Any:
    try:
        import confluent_kafka  # noqa: PLC0415 - it may not be installed.
    except ModuleNotFoundError:
        raise MissingExtra.of("confluent-kafka", "for input in Kafka", "kafka") from None
    return confluent_kafka
