"""A ledger in Kafka: a group's records are one topic of one partition, whose order is the order that members agree on.

    append --Writer, acks=all----> [ topic GROUP.ledger, partition 0 ] --Consumer--> Feed (a thread) --> read
                                     ^ start = low watermark    ^ tip = high watermark, asked by a second thread

No consumer group takes part: members read by offset, all of them everything. What this driver takes care of:

- *Silence is no peace.* A fetch that fails inside librdkafka shows nothing. So the broker is asked for its high
  watermark all the time (`kafka_feed.py`), and a read that knows of no answer raises instead of returning nothing.
- *Nothing is skipped.* `auto.offset.reset` is `error`: a position below the log's start is LedgerTrimmed, one above
  its end, a truncated log, or a topic that was made anew is LedgerRewound.
- *Transactions of others stop nobody*: `read_uncommitted`.
- A client that librdkafka calls broken for good is replaced by a new one; the position stays.

What it promises follows from how the topic is set up: see `kafka_topic.py`.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from neli_router.errors import LedgerUnavailable
from neli_router.ledgers.base import Entry, Promise, require_not_closed, require_own_process
from neli_router.ledgers.kafka.address import KafkaAddress
from neli_router.ledgers.kafka.faults import DENIED, REFUSED, SILENT, explain
from neli_router.ledgers.kafka.feed import Feed
from neli_router.ledgers.kafka.questions import Questions
from neli_router.ledgers.kafka.topic import require_topic
from neli_router.ledgers.kafka.writer import Writer

__all__ = ["KafkaLedger"]

COMMON: Mapping[str, Any] = {
    "allow.auto.create.topics": False,  # A topic that was deleted must not come back with a broker's defaults.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 50,  # A partition's new leader is asked for this often,
    "topic.metadata.refresh.interval.ms": 10_000,  # and even if the old one said nothing.
    "socket.timeout.ms": 3000,  # A broker that is frozen, not dead, is given up after this. By default it is a minute.
    "log_level": 0,
    **SILENT,
}


class KafkaLedger:
    """One handle of a group's topic. `patience` is how long a record may wait for a broker, in seconds."""

    def __init__(self, address: KafkaAddress, *, create: bool = True, patience: float = 1.0) -> None:
        self._at = address
        self._process = os.getpid()
        self._closed = False
        self._high = 0
        self._trim_refused: KafkaError | None = None
        self._refused: KafkaError | None = None
        settings = {**COMMON, **address.client}
        try:
            self._admin = AdminClient({**settings, "error_cb": self._complained})  # type: ignore[dict-item]
            self._facts = require_topic(self._admin, address, create=create)
            self._questions = Questions(self._admin, address.topic, self._facts.identity)
            self._writer = Writer(address, settings, patience=patience)
            self._feed = Feed(address, self._questions, settings, self._writer)
        except KafkaException as error:
            raise explain(error.args[0], address, "the opening") from error
        except LedgerUnavailable as error:
            self._admin.poll(0)
            if self._refused is None:
                raise
            # Who is refused at the door is told of a time-out otherwise.
            raise explain(self._refused, address, "the opening") from error

    @property
    def promises(self) -> frozenset[Promise]:
        return self._facts.promises

    @property
    def doubts(self) -> tuple[str, ...]:
        return self._facts.doubts

    @property
    def address(self) -> str:
        return self._at.public

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._require_open()
        self._writer.append(payloads)

    def acknowledged(self) -> list[int]:
        return [] if self._closed else self._writer.acknowledged()

    def read(self, timeout: float) -> list[Entry]:
        self._require_open()
        return self._feed.read(timeout)

    def age(self) -> float:
        return self._feed.age()

    def seek(self, offset: int) -> None:
        self._feed.seek(max(0, offset))

    def start(self) -> int:
        self._require_open()
        return self._feed.watermarks()[0]

    def tip(self) -> int:
        self._require_open()
        self._high = self._feed.watermarks()[1]
        return self._high

    def trim(self, before: int) -> None:
        self._require_open()
        if (refused := self._trim_refused) is not None:
            raise explain(refused, self._at, "dropping old records")
        before = min(before, max(self._high, self._feed.next))  # The broker refuses more than there is.
        if before <= 0:
            return
        self._questions.drop(before, self._trimmed)

    def wake(self) -> None:
        self._feed.wake()

    def close(self) -> None:
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._feed.close()
        self._writer.close()

    def _trimmed(self, done: Future[object]) -> None:
        error = done.exception()
        if isinstance(error, KafkaException) and error.args[0].code() in DENIED:
            self._trim_refused = error.args[0]  # Anything else may go better with the next snapshot.

    def _complained(self, error: KafkaError) -> None:
        if error.code() in REFUSED:
            self._refused = error

    def _require_open(self) -> None:
        require_own_process(self.address, self._process)
        require_not_closed(self.address, closed=self._closed)
