"""Feeds of ticks, cut into steps: every host that reads a step gets the same ticks.

    TickFolder   FOLDER/00000001.parquet, 00000002.parquet, ...    a step ends with a file; progress counts files
    TickTopic    kafka://HOST:PORT/TOPIC                           a step ends at an offset; progress is an offset

    progress of a partition    after                        upto                   tip
                               -|---------- one step --------|---- not read yet ----|

A takeover needs nothing more from its input. The successor reads how far the table has got, and continues from there to
the tip. No clock and no consumer group is involved, and a step that is read twice gives the same ticks twice.

A file of the folder becomes visible as a whole, by a rename, and never changes.

A topic may have several partitions, with no order between them. So each partition of the group has its ticks in one
*lane*: the topic partition with its number, modulo their count. A tick that is found in another lane is an error,
because its owner would never see it. `append` puts each tick into its lane; any other producer must do so, too. A
folder is one lane.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
from pyarrow import parquet

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.kafka import address as kafka_address
from neli_router.errors import ConfigError, MissingExtra, NeliError
from neli_router.lab.pipeline.ticks import SCHEMA

__all__ = ["TickFolder", "TickTopic", "feed_at"]

ANSWER_MAX = 30.0
"""Seconds for a broker to answer a question, or to deliver the next messages. A broker that restarts takes a while."""

SEND_MAX = 60.0
"""Seconds within which the broker must acknowledge what it was sent."""

MESSAGES_MAX = 10_000
"""Messages taken at a time: enough to outweigh the cost of a call, few enough for a worker's memory."""

PATIENCE = 0.1
"""Seconds to wait for that many. The last messages of a step wait just as long; a shorter wait asks more often."""


class TickFolder:
    """A folder that all hosts see. Any process may read it, and one writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # Spark's workers have another working folder.
        self._written = 0

    def path(self, number: int) -> Path:
        """Path of file `number`, whether it exists or not. The first is 1."""
        return self.folder / f"{number:08}.parquet"

    def checked(self, number: int) -> Path:
        """Path of file `number`. Raises NeliError if it does not contain ticks."""
        path = self.path(number)
        # A reader fills missing columns with nulls. Rows without a key have no owner, so all would be dropped, and the
        # step would count as landed.
        try:
            there = parquet.read_schema(path).names
        except (OSError, pa.ArrowException) as error:
            found = f"it cannot be read ({error})"
        else:
            missing = sorted(set(SCHEMA.names).difference(there))
            if not missing:
                return path
            found = f"it has no column {', '.join(missing)}"
        raise NeliError(
            f"a Parquet file of ticks was wanted at {path}", found, "name the folder of ticks, or mend what fills it"
        )

    def append(self, ticks: pa.Table) -> int:
        """Write the next file; returns its number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = self._written = self.tip(0, self._written) + 1
        # Spark skips names that start with a dot, and a rename within one folder is atomic.
        hidden = self.folder / f".{number:08}.unfinished"
        parquet.write_table(ticks, hidden)
        hidden.rename(self.path(number))
        return number

    def lanes(self) -> int:
        return 1

    def tip(self, lane: int, known: int) -> int:
        """How far the feed goes now; it was known to go to `known`."""
        while self.path(known + 1).exists():
            known += 1
        return known


class TickTopic:
    """An existing topic. May be sent to Spark's workers, where it opens its own connection."""

    def __init__(self, address: str, layout: Layout) -> None:
        at, problems = kafka_address.parse(address.partition(":")[2])
        if at is None:
            raise ConfigError([f"the topic of ticks: {problem}" for problem in problems])
        self._client, self._topic, self._layout = dict(at.client), at.group, layout
        self._shown = at.public
        self._asked: Any = None
        """Client for questions. It is kept, because a job asks for the tip of each lane several times a second."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asked": None}

    def __repr__(self) -> str:
        return f"TickTopic({self._shown!r})"

    def append(self, ticks: pa.Table) -> None:
        """Append `ticks`, each as a message with its key and one JSON object. Returns when the broker has them all."""
        lanes, lost, places = self.lanes(), list[str](), dict[str, int]()
        producer = _kafka().Producer({**self._client, "enable.idempotence": True, "linger.ms": 20})

        def delivered(error: object, _: object) -> None:
            if error is not None:
                lost.append(str(error))

        for batch in ticks.to_batches(MESSAGES_MAX):
            columns = batch.set_column(2, "at", batch["at"].cast(pa.int64()))
            for tick in columns.to_pylist():
                name = tick["instrument"]
                place = places.get(name)
                if place is None:
                    place = places[name] = self._layout.partition(name) % lanes
                value = msgspec.json.encode(tick)
                producer.produce(self._topic, value, key=name, partition=place, on_delivery=delivered)
            # The queue holds ten times as many: it is flushed here, before it is full.
            if left := producer.flush(SEND_MAX):
                lost.append(f"{left} were not acknowledged within {SEND_MAX:g} s")
            if lost:
                raise NeliError(
                    f"ticks were to be appended to {self._shown}",
                    lost[0],
                    "see to the broker, and begin with a new topic",
                )

    def lanes(self) -> int:
        found = self._answer("list_topics", self._topic).topics[self._topic]
        if found.error is not None:
            raise NeliError(
                f"a topic with ticks was wanted at {self._shown}", found.error.str(), "make it, or correct the address"
            )
        return len(found.partitions)

    def tip(self, lane: int, known: int) -> int:
        return self._bounds(lane)[1]

    def read(self, lane: int, after: int, upto: int) -> Iterator[pa.RecordBatch]:
        """The ticks of that step. Raises NeliError if the topic no longer has all of them."""
        wanted = f"the ticks from offset {after} to {upto} of {self._shown}, partition {lane}, were wanted"
        first, tip = self._bounds(lane)
        if not first <= after <= upto <= tip:
            raise NeliError(
                wanted,
                f"it has those from {first} to {tip}",
                "retention dropped them, or the topic was made again: retain ticks for longer, in a new topic",
            )
        lanes = self.lanes()
        at, trouble, heard_at = after, "nothing was heard", time.monotonic()
        with closing(self._consumer()) as consumer:
            consumer.assign([_kafka().TopicPartition(self._topic, lane, after)])
            while at < upto:
                values: list[bytes] = []
                for message in consumer.consume(MESSAGES_MAX, timeout=PATIENCE):
                    error = message.error()
                    if error is None and message.offset() < upto:
                        values.append(message.value() or b"")
                    if error is None or error.code() == _kafka().KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name.
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
                if values:
                    yield self._decoded(values, lane, lanes)

    def _decoded(self, values: list[bytes], lane: int, lanes: int) -> pa.RecordBatch:
        try:
            ticks = pa.RecordBatch.from_pylist([_decoder.decode(value) for value in values], schema=SCHEMA)
        except msgspec.DecodeError as error:
            raise NeliError(
                f"messages of {self._shown} were to be ticks", f"one is not ({error})", "keep other messages out of it"
            ) from None
        strangers = {
            lane_of
            for name in ticks["instrument"].unique().to_pylist()
            if (lane_of := self._layout.partition(name) % lanes) != lane
        }
        if strangers:
            raise NeliError(
                f"partition {lane} of {self._shown} was to have the ticks of its own lane",
                f"it has some that belong to partition {min(strangers)}",
                "let the producer put a tick into the partition of its instrument in the group, mod the topic's count",
            )
        return ticks

    def _bounds(self, lane: int) -> tuple[int, int]:
        """The first offset that is retained, and the one after the last."""
        first, tip = self._answer("get_watermark_offsets", _kafka().TopicPartition(self._topic, lane))
        return int(first), int(tip)

    def _answer(self, question: str, about: object) -> Any:
        self._asked = self._asked or self._consumer()
        try:
            return getattr(self._asked, question)(about, timeout=ANSWER_MAX)
        except _kafka().KafkaException as error:
            raise NeliError(
                f"{self._shown} was to say what it has",
                error.args[0].str(),
                "see to its brokers, or correct the address",
            ) from None

    def _consumer(self) -> Any:
        # Kafka's client requires a group name; nothing is ever committed under it.
        return _kafka().Consumer(
            {
                **self._client,
                "group.id": "neli-ticks",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )


class _Tick(TypedDict):
    """The value of a message."""

    instrument: str
    sequence: int
    at: int
    bid: float
    ask: float
    price: float
    size: int


_decoder = msgspec.json.Decoder(_Tick)


def _kafka() -> Any:
    try:
        import confluent_kafka  # noqa: PLC0415 - it may not be installed.
    except ModuleNotFoundError:
        raise MissingExtra.of("confluent-kafka", "for ticks in Kafka", "kafka") from None
    return confluent_kafka


def feed_at(address: str, layout: Layout) -> TickFolder | TickTopic:
    """The feed at `kafka://HOST:PORT/TOPIC`, or in the folder of that name. Raises ConfigError."""
    if address.startswith("kafka:"):
        return TickTopic(address, layout)
    if "://" in address:  # As a path it would name an empty folder, and a job would wait forever.
        raise ConfigError([f"ticks={address!r:.200} must be the path of a folder, or kafka://HOST:PORT/TOPIC"])
    return TickFolder(Path(address))
