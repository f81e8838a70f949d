"""The feed: a consumer that reads ahead in a thread, and knows how old its knowledge is.

    Consumer --poll--> reader (thread) --entries--> [ queue, bounded ] --read--> the pump
    broker <--"what is your high watermark?"-- Prober (thread, its own connection)
                '--> all that there was at `asked` stood below `high`: age = now - asked, once that was read

librdkafka tells nothing while its fetches fail, and what it hands over may have lain in its queue while this process
was stopped. So neither silence nor records say how new our knowledge is; only an answer to a question does, counted
from *before* it was asked. A read returns nothing only if everything below the last high watermark was read and an
answer came within QUIET_MAX; else it raises LedgerUnavailable with the last complaint.

An offset that is out of range, and a log that librdkafka finds truncated, are signs of a rewound ledger. It does not
find the latter if the log has grown again meanwhile: see `kafka_seam.py`. A topic of another identity is a sign, too:
after an outage, and after a broker said that there is no such topic, nothing is handed over before that was asked.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from math import inf

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from neli_router.errors import LedgerRewound, LedgerTrimmed, LedgerUnavailable
from neli_router.ledgers.base import READ_MAX, Entry
from neli_router.ledgers.kafka.address import KafkaAddress
from neli_router.ledgers.kafka.faults import DENIED, UNKNOWN, explain, is_fatal, sorted_out, told
from neli_router.ledgers.kafka.prober import LOOK_MAX, Follower, Prober
from neli_router.ledgers.kafka.questions import Questions
from neli_router.ledgers.kafka.seam import Seam
from neli_router.ledgers.kafka.tip import QUIET_MAX, Tip
from neli_router.ledgers.kafka.topic import once_known

__all__ = ["Feed"]

SLICE = 0.05
"""Seconds of one poll: so long may a seek wait until the thread notices."""

FETCH_WAIT = 0.1
"""Seconds that a broker may hold an empty fetch."""

FIRST_MAX = 5.0
"""Seconds for the first answer after a seek."""

ASK_MAX = 5.0
AHEAD_MAX = 20 * READ_MAX
"""Entries read ahead. A program that is slow to fold leaves the rest to the brokers."""

CLOSE_MAX = 2.0


class Feed:
    """Entries of one topic in order."""

    def __init__(
        self, at: KafkaAddress, questions: Questions, settings: Mapping[str, object], *followers: Follower
    ) -> None:
        self._at, self._questions = at, questions
        self._settings = {
            "group.id": at.topic,  # The client insists on one. Nobody joins it.
            **settings,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": int(FETCH_WAIT * 1000),
            "fetch.error.backoff.ms": 20,
            "error_cb": self._complained,
        }
        self._changed = threading.Condition()  # Reentrant, so a signal handler may call `wake` at any moment.
        self._queue: deque[Entry] = deque()
        self._seek_to: int | None = None
        self._turn = 0
        """Which seek the queue belongs to: what was polled before the newest one is dropped."""
        self.next = 0
        """The offset that follows what the thread has read."""
        self._seam = Seam()
        self._alive_at = self._sought_at = time.monotonic()
        self._tip = Tip(self._sought_at)
        self._settled = self._trimmed = self._woken = self._closing = self._broken = self._astray = False
        self._low = self._stood = 0
        self._trouble: KafkaError | None = None
        self._fault: LedgerRewound | None = None
        self._consumer = Consumer(self._settings)
        self._prober = Prober(f"neli-kafka-prober-{at.group}", questions, self, [self, *followers])
        self.seek(once_known(lambda: questions.watermarks(ASK_MAX))[0])
        self._reader = threading.Thread(target=self._read_ahead, name=f"neli-kafka-reader-{at.group}", daemon=True)
        self._reader.start()
        self._prober.start()

    def read(self, timeout: float) -> list[Entry]:
        """As the port says; and nothing, too, when woken. `age` tells which."""
        give_up_at = time.monotonic() + timeout
        with self._changed:
            while True:
                now = time.monotonic()
                if self._fault is not None:
                    raise LedgerRewound(self._fault.wanted, self._fault.found, self._fault.remedy)
                if self._queue and not self._tip.doubtful:
                    entries = [self._queue.popleft() for _ in range(min(READ_MAX, len(self._queue)))]
                    self._settled = True
                    self._changed.notify_all()
                    return entries
                if self._trimmed:
                    raise LedgerTrimmed(
                        f"the record at offset {self.next} was wanted",
                        f"{self._at.public} starts at {self._low}",
                        "start again from a snapshot, at or above that offset",
                    )
                self._settled |= self._is_all()
                patience = (give_up_at if self._settled else self._sought_at + FIRST_MAX) - now
                if self._woken or patience <= 0:
                    self._woken = False
                    self._require_life(now)
                    return []
                self._changed.wait(patience)

    def age(self) -> float:
        """How long ago all that was read so far was all; infinity while more is known to be there."""
        with self._changed:
            return time.monotonic() - self._tip.known_at if self._is_all() and not self._queue else inf

    def seek(self, offset: int) -> None:
        with self._changed:
            self._turn += 1
            self._queue.clear()
            self.next = self._seek_to = offset
            self._seam = Seam()
            self._settled = self._trimmed = False
            self._alive_at = self._sought_at = time.monotonic()
            self._tip.forget(self._sought_at)
            self._changed.notify_all()
        self._prober.ask()

    def watermarks(self) -> tuple[int, int]:
        """The lowest offset retained and the one that the next record will have. Raises LedgerError."""
        before, asked_at = self.next, time.monotonic()
        try:
            low, high = self._questions.watermarks(ASK_MAX)
        except KafkaException as error:
            raise explain(error.args[0], self._at, "the start and the tip") from error
        self.answered(before, high, asked_at)
        return low, high

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._prober.close()
        self._reader.join(CLOSE_MAX)  # It leaves by itself when its call into librdkafka returns.

    def _is_all(self) -> bool:
        return self._tip.is_all(self.next)

    def _require_life(self, now: float) -> None:
        quiet = now - self._alive_at
        if quiet < QUIET_MAX and (self._settled or self._trouble is None):
            return
        if self._trouble is not None:
            raise explain(self._trouble, self._at, "a read")
        found = f"no broker has told of the topic for {quiet:.1f} s"
        raise LedgerUnavailable(f"a read of {self._at.public} was wanted", found, "look after the brokers")

    def _read_ahead(self) -> None:
        while True:
            with self._changed:
                while len(self._queue) >= AHEAD_MAX and self._seek_to is None and not self._closing:
                    self._changed.wait(SLICE)
                if self._closing:
                    break
                turn, seek_to, self._seek_to = self._turn, self._seek_to, None
                astray, self._astray = self._astray, False
            try:
                if self._broken:
                    self._renew()
                    seek_to = self.next if seek_to is None else seek_to
                if seek_to is not None:
                    self._consumer.assign([TopicPartition(self._at.topic, 0, seek_to)])
                if astray:
                    with suppress(KafkaException):
                        self._consumer.list_topics(self._at.topic, LOOK_MAX)  # Which lets it know who leads.
                first = self._consumer.poll(SLICE)
                if first is not None:
                    self._take(turn, [first, *self._consumer.consume(READ_MAX - 1, 0)])
            except KafkaException as error:
                self._complained(error.args[0])
                self._start_anew()
                time.sleep(SLICE)
        if not self._broken:  # See `_renew`.
            self._consumer.close()

    def _take(self, turn: int, messages: list[Message]) -> None:
        records, complaint = sorted_out(messages, self._complained)
        with self._changed:
            if turn != self._turn:
                return
            entries = [Entry(it.offset() or 0, it.value() or b"") for it in self._seam.take(records)]
            if self._seam.found:
                self._rewound(self._seam.found)
            if self._seam.asked is not None:
                self._seek_to = self._seam.asked
            if entries:
                self._queue.extend(entries)
                self.next = entries[-1].offset + 1
                self._alive_at, self._trouble = time.monotonic(), None
                self._tip.reached(self.next)
                self._prober.ask_again()
                self._changed.notify_all()
        if complaint is not None:
            self._examine(complaint)

    def _examine(self, error: KafkaError) -> None:
        """There is nothing at our position. Is it below the log, above it, or was the log cut in between?"""
        low, high = self._questions.watermarks(ASK_MAX)
        with self._changed:
            if self.next < low:
                self._trimmed, self._low = True, low
            elif self.next > high or "truncat" in error.str().lower():
                self._rewound(told(error))
            else:
                self._start_anew(low)
            self._changed.notify_all()

    # What the prober tells

    def position(self) -> tuple[int, bool]:
        with self._changed:
            return self.next, self._tip.doubtful

    def identified(self, why: str) -> None:
        with self._changed:
            if why:
                self._rewound(why)
            else:
                self._tip.assured(time.monotonic())
                self._changed.notify_all()

    def answered(self, before: int, high: int, asked_at: float) -> bool:
        with self._changed:
            if not self._tip.answered(high, asked_at, before=before, next=self.next):
                return False
            if self.next >= high:
                self._alive_at = time.monotonic()
                if self._trouble is not None and self._trouble.code() not in DENIED:  # That is told only once.
                    self._trouble = None
            self._changed.notify_all()
            return True

    def unanswered(self, error: KafkaError, asked_at: float) -> None:
        with self._changed:
            self._trouble = error
            self._tip.missed(asked_at, unknown=error.code() in UNKNOWN)

    def follow(self, *, anew: bool) -> bool:
        with self._changed:
            stood, self._stood = self._stood, self.next
            behind = self.next < self._tip.high and len(self._queue) < AHEAD_MAX
            self._astray |= anew or (behind and stood == self.next)
            return behind

    def _complained(self, error: KafkaError) -> None:
        with self._changed:
            self._trouble = error
            self._broken |= is_fatal(error)

    def _start_anew(self, low: int = 0) -> None:
        """Fetch again from where we are. Nothing is skipped, whatever was complained of."""
        with self._changed:
            self._seam.give_up(low)
            self._seek_to = self.next if self._seek_to is None else self._seek_to

    def _renew(self) -> None:
        # Dropped, not closed: the closing of a consumer that had a fatal error never ends, and keeps a core busy.
        self._consumer = Consumer(self._settings)
        self._broken = False

    def _rewound(self, found: str) -> None:
        with self._changed:
            self._fault = self._fault or LedgerRewound(
                f"the ledger {self._at.public} with all its records was wanted",
                found,
                "stop every member of the group, find out what happened to the topic, and start them again",
            )
            self._changed.notify_all()
