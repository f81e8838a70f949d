"""The writer: a producer that keeps order, says what was acknowledged, and is replaced when it is broken for good.

    append --produce--> queue --acks=all, idempotent--> broker
                          '--a record that waits for longer than `patience` is dropped      _delivered --> offsets
                                                                                            '--> or why not

A delivery that fails is told by the *next* append: by then it may have been tried for long, and what the caller must do
is the same. Whether the record stands in the log after all, nobody knows; the protocol lives with that.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from neli_router.ledgers.kafka.address import KafkaAddress
from neli_router.ledgers.kafka.faults import explain, is_fatal
from neli_router.ledgers.kafka.prober import LOOK_MAX
from neli_router.ledgers.kafka.topic import MESSAGE_MAX

__all__ = ["Writer"]

QUEUE_MAX = 100_000
"""Records that may wait for a broker. They are dropped after `patience`, so it only bounds the memory."""

LINGER = 0.00005
"""Seconds. With none, librdkafka sends the first few of a hundred Handovers before the others are queued, and everybody
reads them in as many pieces: a drain takes half as long again at the worst. An append alone takes 0.3 ms more."""

PATIENCE_MIN = 5.0
"""Seconds. What comes late harms nobody; a broker that is busy for a while should not cost records, too."""

FLUSH_MAX = 1.0
"""Seconds that `close` waits for what was appended last, such as a Leave."""


class Writer:
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
            "message.max.bytes": MESSAGE_MAX,
            "queue.buffering.max.messages": QUEUE_MAX,
            "compression.type": "lz4",
            **at.client,
        }
        self._offsets: list[int] = []
        self._failing: KafkaError | None = None
        self._count = self._stood = 0
        """Of deliveries, failed ones too; and at the last look for a leader."""
        self._producer = Producer(self._settings)

    def append(self, payloads: Sequence[bytes]) -> None:
        """Queue them. Raises LedgerError if they cannot be, or if the last that were could not be delivered."""
        batch: list[dict[str, Any]] = [{"value": payload} for payload in payloads]
        try:
            self._producer.produce_batch(self._at.topic, batch, 0, on_delivery=self._delivered)
            self._producer.poll(0)
        except KafkaException as error:
            raise explain(self._heed(error.args[0]), self._at, "an append") from error
        if (refused := next((it["_error"] for it in batch if "_error" in it), None)) is not None:
            raise explain(self._heed(refused), self._at, "an append")
        if self._failing is not None:
            raise explain(self._failing, self._at, "an append")

    def acknowledged(self) -> list[int]:
        """Of records appended since the last call, oldest first."""
        try:
            self._producer.poll(0)
        except KafkaException as error:
            self._failing = self._heed(error.args[0])
        offsets, self._offsets = self._offsets, []
        return offsets

    def follow(self, *, anew: bool) -> bool:
        """As the prober wants it, on its thread."""
        producer, stood, self._stood = self._producer, self._stood, self._count
        waiting = len(producer) > 0
        if anew or (waiting and stood == self._stood):
            with suppress(KafkaException):
                producer.list_topics(self._at.topic, LOOK_MAX)  # Which lets it know who leads.
        return waiting

    def close(self) -> None:
        try:
            self._producer.flush(FLUSH_MAX)
            self._producer.purge()
            self._producer.flush(0)
        except KafkaException:
            return  # Broken for good: nothing that waits in it will be sent.

    def _heed(self, error: KafkaError) -> KafkaError:
        if is_fatal(error):
            self._producer = Producer(self._settings)
        return error

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._failing = error
        self._count += 1
        offset = message.offset()
        if error is None and offset is not None:
            self._offsets.append(offset)
