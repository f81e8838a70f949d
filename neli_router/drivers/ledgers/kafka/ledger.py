"""A ledger in Kafka: a group's records are one topic of one partition, whose order is the order that members agree on.

    append --a producer, acks=all--> [ topic GROUP.ledger, partition 0 ] --Consumer--> KafkaReader (a thread) --> read
                                       ^ start = low watermark    ^ tip = high watermark, asked by a second thread

No consumer group takes part: members read by offset, and each member reads everything. `reader.py` takes no silence for
peace, skips nothing, and waits for no transaction of another program. When librdkafka reports that a client is broken
for good, a new one takes its place, and the position stays.

Its promises depend on how the topic is set up: see `topic.py`.

**The writer** is a producer that keeps the order. The *next* append raises the error of a failed delivery. The record
may stand in the log after all; the protocol allows for that.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from neli_router.drivers.ledgers.base import APPEND_MAX
from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.drivers.ledgers.kafka.clients import (
    COMMON,
    DENIED,
    TOO_LONG,
    asking,
    explain,
    is_fatal,
    keep_in_children,
    serve,
)
from neli_router.drivers.ledgers.kafka.reader import LOOK_MAX, KafkaReader
from neli_router.drivers.ledgers.kafka.topic import Questions, require_topic
from neli_router.drivers.ledgers.read_ahead import ReadAheadLedger
from neli_router.protocols.protocol import RECORD_MAX

__all__ = ["KafkaAppender", "KafkaLedger"]

QUEUE_MAX = 100_000
"""Records that may wait for a broker. They are dropped after `patience`, so this only bounds the memory."""

LINGER = 0.00005
"""Seconds. Without lingering, librdkafka sends the first few of a hundred Handovers before the others are queued, and a
drain takes up to half as long again. Alone, an append takes 0.3 ms longer."""

PATIENCE_MIN = 5.0
"""Seconds. A record that comes late does no harm, and a broker that is busy for a while should not cost records too."""

FLUSH_MAX = 1.0
"""Seconds that `close` waits for the last appends, such as a Leave."""


class KafkaLedger(ReadAheadLedger):
    """One handle of a group's topic. `patience` is how long a record may wait for a broker, in seconds."""

    _reader: KafkaReader
    _writer: "_KafkaWriter"

    def __init__(self, address: KafkaAddress, *, create: bool = True, patience: float = 1.0) -> None:
        super().__init__(address.public)
        keep_in_children(self)
        self._at = address
        self._high = 0
        self._trim_refused: KafkaError | None = None
        settings = {**COMMON, **address.client}
        with asking(address, "the opening") as admin:
            identity, self.promises, self.doubts = require_topic(admin, address, create=create)
            self._questions = Questions(admin, address.topic, identity)
            self._writer = _KafkaWriter(address, settings, patience=patience)
            self._reader = KafkaReader(address, self._questions, settings, self._writer)

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._require_open()
        self._writer.append(payloads)

    def seek(self, offset: int) -> None:
        self._reader.seek(max(0, offset))

    def start(self) -> int:
        self._require_open()
        return self._reader.watermarks()[0]

    def tip(self) -> int:
        self._require_open()
        self._high = self._reader.watermarks()[1]
        return self._high

    def trim(self, before: int) -> None:
        self._require_open()
        if (refused := self._trim_refused) is not None:
            raise explain(refused, self._at, "dropping old records")
        before = min(before, max(self._high, self._reader.next))  # The broker refuses an offset above the tip.
        if before > 0:
            self._questions.drop(before, self._trimmed)

    def _trimmed(self, done: Future[object]) -> None:
        error = done.exception()
        if isinstance(error, KafkaException) and error.args[0].code() in DENIED:
            self._trim_refused = error.args[0]  # Any other fault may be gone by the next snapshot.


class KafkaAppender:
    """See `Appender`. librdkafka reconnects automatically."""

    def __init__(self, at: KafkaAddress, *, patience: float) -> None:
        self._writer = _KafkaWriter(at, {**COMMON, **at.client}, patience=patience)
        self.close = self._writer.close
        self.keep()

    def keep(self) -> None:
        self._writer.follow(anew=True)

    def append(self, payloads: Sequence[bytes]) -> bool:
        self._writer.append(payloads)
        return self._writer.flush(APPEND_MAX) and len(self._writer.acknowledged()) == len(payloads)


class _KafkaWriter:
    """Appends to one topic, from one thread."""

    def __init__(self, at: KafkaAddress, settings: Mapping[str, Any], *, patience: float) -> None:
        self._at = at
        self._settings = {
            **settings,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER * 1000,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "message.timeout.ms": int(max(PATIENCE_MIN, patience) * 1000),
            "message.max.bytes": RECORD_MAX,
            "queue.buffering.max.messages": QUEUE_MAX,
            "compression.type": "lz4",
            **at.client,
        }
        self._offsets: list[int] = []
        self._failing: KafkaError | None = None
        """Why the most recent delivery failed; None if it succeeded."""
        self._too_long: KafkaError | None = None
        """Why a record was refused, until `append` raises it. It says nothing about later records."""
        self._count = self._stood = 0
        """The number of deliveries, failed ones included; and that number at the last look for a leader."""
        self._producer = Producer(self._settings)

    def append(self, payloads: Sequence[bytes]) -> None:
        """Queue the payloads. Raises LedgerError if that fails, or if earlier ones could not be delivered."""
        batch: list[dict[str, Any]] = [{"value": payload} for payload in payloads]
        try:
            self._producer.produce_batch(self._at.topic, batch, 0, on_delivery=self._delivered)
            serve(self._producer.poll, 0)
        except KafkaException as error:
            raise explain(self._heed(error.args[0]), self._at, "an append") from error
        if (refused := next((it["_error"] for it in batch if "_error" in it), None)) is not None:
            raise explain(self._heed(refused), self._at, "an append")
        too_long, self._too_long = self._too_long, None
        if (failing := too_long or self._failing) is not None:
            raise explain(failing, self._at, "an append")

    def acknowledged(self) -> list[int]:
        """The offsets of records acknowledged since the last call, oldest first."""
        try:
            serve(self._producer.poll, 0)
        except KafkaException as error:
            self._failing = self._heed(error.args[0])
        offsets, self._offsets = self._offsets, []
        return offsets

    def follow(self, *, anew: bool) -> bool:
        """See LeaderSeeker. The prober's thread calls it."""
        producer, stood, self._stood = self._producer, self._stood, self._count
        waiting = len(producer) > 0
        if anew or (waiting and stood == self._stood):
            with suppress(KafkaException):
                producer.list_topics(self._at.topic, LOOK_MAX)  # The producer learns from this who leads.
        return waiting

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued is delivered, or has failed; return whether that is so."""
        serve(self._producer.flush, timeout)
        return not len(self._producer)

    def close(self) -> None:
        try:
            self.flush(FLUSH_MAX)
            self._producer.purge()
            serve(self._producer.flush, 0)
        except KafkaException:
            return  # Broken for good: no record that waits in the producer will be sent.

    def _heed(self, error: KafkaError) -> KafkaError:
        if is_fatal(error):
            self._producer = Producer(self._settings)
        return error

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._failing = error
        if error is not None and error.code() in TOO_LONG:
            self._too_long, self._failing = error, None
        self._count += 1
        offset = message.offset()
        if error is None and offset is not None:
            self._offsets.append(offset)
