"""The reader of a topic: a consumer that reads ahead in a thread, and knows how old its knowledge is.

    Consumer --poll--> the reading thread --entries--> [ queue, bounded ] --read--> the pump
    broker <--"what is your high watermark?"-- Prober (thread, its own connection)
                '--> everything that existed at `asked` stood below `high`: age = now - asked, once that was read

librdkafka says nothing while its fetches fail, and its records may have waited in its queue while this process was
stopped. So only an answer to a question shows how recent our knowledge is. A read returns nothing only if everything
below the last high watermark was read and an answer came within QUIET_MAX. Otherwise it raises LedgerUnavailable with
the last complaint.

Signs of a rewound ledger are an offset that is out of range, and a log that librdkafka finds truncated. librdkafka
misses a truncation if the log has grown again meanwhile: see `position.py`. A topic with a different identity is a
sign, too. So after an outage, or after a broker said that the topic does not exist, no record is handed over until the
identity was asked for.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from neli_router.drivers.ledgers.base import READ_MAX, trimmed
from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.drivers.ledgers.kafka.clients import explain, sorted_out, told
from neli_router.drivers.ledgers.kafka.position import QUIET_MAX, ConsumerState, Position
from neli_router.drivers.ledgers.kafka.prober import LOOK_MAX, LeaderSeeker, Prober
from neli_router.drivers.ledgers.kafka.topic import Questions, once_known
from neli_router.drivers.ledgers.read_ahead import AHEAD_BYTES_MAX, ReadAhead
from neli_router.errors import LedgerRewound, LedgerUnavailable

__all__ = ["KafkaReader"]

SLICE = 0.05
"""Seconds of one poll. A seek may wait this long until the thread notices."""

FETCH_WAIT = 0.1
"""Seconds that a broker may hold an empty fetch."""

ASK_MAX = 5.0
CLOSE_MAX = 2.0


class KafkaReader(ReadAhead):
    """Entries of one topic in order."""

    def __init__(
        self, at: KafkaAddress, questions: Questions, settings: Mapping[str, object], *seekers: LeaderSeeker
    ) -> None:
        super().__init__()
        self._at, self._questions = at, questions
        self._settings = {
            "group.id": at.topic,  # The client requires one. No member joins this group.
            **settings,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_uncommitted",
            "queued.max.messages.kbytes": AHEAD_BYTES_MAX // 1024,
            "fetch.wait.max.ms": int(FETCH_WAIT * 1000),
            "fetch.error.backoff.ms": 20,
            "error_cb": self._complained,
        }
        low, _ = once_known(lambda: questions.watermarks(ASK_MAX))
        self._position = Position(low, time.monotonic())
        self._consumer = Consumer(self._settings)
        self._prober = Prober(f"neli-kafka-prober-{at.group}", questions, self, [self, *seekers])
        self._thread = threading.Thread(target=self._read_ahead, name=f"neli-kafka-reader-{at.group}", daemon=True)
        self.seek(low)
        self._thread.start()
        self._prober.start()

    @property
    def next(self) -> int:
        """The offset that follows what the thread has read."""
        return self._position.next

    def seek(self, offset: int) -> None:
        now = time.monotonic()
        with self._changed:
            self._begin_turn(now)
            self._position.seek(offset, now)
        self._prober.ask()

    def watermarks(self) -> tuple[int, int]:
        """The lowest offset retained, and the offset that the next record will have. Raises LedgerError."""
        before, asked_at = self.next, time.monotonic()
        try:
            low, high = self._questions.watermarks(ASK_MAX)
        except KafkaException as error:
            raise explain(error.args[0], self._at, "the start and the tip") from error
        self.answered(before, high, asked_at)
        return low, high

    def close(self) -> None:
        self._stop()
        self._prober.close()
        self._thread.join(CLOSE_MAX)  # It ends on its own when its call into librdkafka returns.

    def _require_life(self, now: float, *, ends: bool) -> None:
        quiet, trouble = now - self._position.alive_at, self._position.trouble
        if not ends or (quiet < QUIET_MAX and (self._settled or trouble is None)):
            return  # librdkafka reports many faults that heal on their own a moment later.
        if trouble is not None:
            raise explain(trouble, self._at, "a read")
        found = f"no broker has answered about the topic for {quiet:.1f} s"
        raise LedgerUnavailable(f"a read of {self._at.public} was wanted", found, "check the brokers")

    # The reading thread

    def _read_ahead(self) -> None:
        position = self._position
        while True:
            with self._changed:
                while not (self._has_room or position.fetch_from is not None or self._closing):
                    self._changed.wait(SLICE)
                if self._closing:
                    break
            try:
                if position.consumer is ConsumerState.BROKEN:
                    # Dropped, not closed: closing a broken consumer never ends, and keeps a core busy.
                    self._consumer = Consumer(self._settings)
                    with self._changed:
                        position.renewed()
                with self._changed:
                    turn, (fetch_from, astray) = self._turn, position.begin()
                if fetch_from is not None:
                    self._consumer.assign([TopicPartition(self._at.topic, 0, fetch_from)])
                if astray:
                    with suppress(KafkaException):
                        self._consumer.list_topics(self._at.topic, LOOK_MAX)  # The consumer learns from this who leads.
                first = self._consumer.poll(SLICE)
                if first is not None:
                    self._take(turn, [first, *self._consumer.consume(READ_MAX - 1, 0)])
            except KafkaException as error:
                with self._changed:
                    position.complained(error.args[0])
                    position.fetch_anew()
                time.sleep(SLICE)
        if position.consumer is not ConsumerState.BROKEN:
            self._consumer.close()

    def _take(self, turn: int, messages: list[Message]) -> None:
        records, nothing_there = sorted_out(messages, self._complained)
        with self._moving() as position:
            if turn != self._turn:
                return
            entries = position.take(records, time.monotonic())
            if position.cut:
                self._rewound(position.cut)
            if entries:
                self._extend(entries)
                self._prober.ask_again()
        if nothing_there is not None:
            self._examine(nothing_there)

    def _examine(self, error: KafkaError) -> None:
        """There is nothing at our position. Is it below the log, or above it, or was the log cut in between?"""
        low, high = self._questions.watermarks(ASK_MAX)
        with self._moving() as position:
            if position.next < low:
                self._trimmed = trimmed(self._at.public, low, position.next)
            elif position.next > high or "truncat" in error.str().lower():
                self._rewound(told(error))
            else:
                position.fetch_anew(low)

    def _complained(self, error: KafkaError) -> None:
        with self._changed:
            self._position.complained(error)

    def _rewound(self, found: str) -> None:
        self.fail(
            LedgerRewound(
                f"the ledger {self._at.public} with all its records was wanted",
                found,
                "stop every member of the group, find out what happened to the topic, and start them again",
            )
        )

    @contextmanager
    def _moving(self) -> Iterator[Position]:
        """The position, to be changed: afterwards `read` and `age` take the change into account."""
        with self._changed:
            yield self._position
            self._known_at = self._position.known_at
            self._held_back = self._position.tip.doubtful
            self._changed.notify_all()

    # Answers from the prober

    def position(self) -> tuple[int, bool]:
        with self._changed:
            return self._position.next, self._position.tip.doubtful

    def identified(self, why: str) -> None:
        with self._moving() as position:
            if why:
                self._rewound(why)
            else:
                position.tip.assured(time.monotonic())

    def answered(self, before: int, high: int, asked_at: float) -> bool:
        with self._moving() as position:
            return position.answered(before, high, asked_at, time.monotonic())

    def unanswered(self, error: KafkaError, asked_at: float) -> None:
        with self._moving() as position:
            position.unanswered(error, asked_at)

    def follow(self, *, anew: bool) -> bool:
        with self._changed:
            return self._position.follow(anew=anew, has_room=self._has_room)
