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
sign, too. So after an outage no record is handed over until the identity was asked for.

**The prober** asks the brokers for the tip, and lets the clients leave a dead broker for the new leader.

    calm    --every PROBE_EVERY--> "what is your high watermark?" --answered--> calm
                                        '--not--> failing
    failing --every LOOK_EVERY--> "who leads?" --a new leader, or it is time again--> the question once more

librdkafka looks for the new leader of a partition once a second, and after the death of a broker it may need two such
looks. One member would then come back seconds before another, and expire it. While no broker leads, librdkafka also
repeats a question for an offset without any pause, which takes the brokers' processor time: so that question is then
asked seldom, and briefly.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from neli_router.drivers.ledgers.base import READ_MAX, trimmed
from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.drivers.ledgers.kafka.clients import LOST, explain, told
from neli_router.drivers.ledgers.kafka.position import QUIET_MAX, ConsumerState, Position
from neli_router.drivers.ledgers.kafka.topic import Questions, once_known
from neli_router.drivers.ledgers.read_ahead import AHEAD_BYTES_MAX, ReadAhead
from neli_router.errors import LedgerRewound, LedgerUnavailable

__all__ = ["LOOK_MAX", "KafkaReader", "LeaderSeeker", "Prober"]

SLICE = 0.05
"""Seconds of one poll. A seek may wait this long until the thread notices."""

FETCH_WAIT = 0.1
"""Seconds that a broker may hold an empty fetch."""

ASK_MAX = 5.0
CLOSE_MAX = 2.0

PROBE_EVERY = 0.25
PROBE_MAX = 0.5
LOOK_EVERY = 0.1
LOOK_MAX = 0.2
PAUSE = 0.5
"""Seconds between two questions for an offset while the brokers answer none."""

IDENTITY_MAX = 0.5


class LeaderSeeker(Protocol):
    """A client that has to find the partition's leader: the reader or the writer."""

    def follow(self, *, anew: bool) -> bool:
        """A broker leads. Look for it if its leadership is new, or if nothing moves. Returns whether anything waits."""


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
        super().close()
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
        records, nothing_there = [], None
        for message in messages:
            if (error := message.error()) is None:
                records.append(message)
            elif error.code() in LOST:
                nothing_there = error
            else:
                self._complained(error)
        with self._moving() as position:
            if turn != self._turn:
                return
            entries = position.take(records, time.monotonic())
            if position.seam.found:
                self._rewound(position.seam.found)
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
            self._held_back = self._position.doubtful
            self._changed.notify_all()

    # Answers from the prober

    def position(self) -> tuple[int, bool]:
        """The offset that follows what was read, and whether the topic may be a different one now."""
        with self._changed:
            return self._position.next, self._position.doubtful

    def identified(self, why: str) -> None:
        """The topic's identity was asked for: `why` says how it differs from before; empty if it is the same."""
        with self._moving() as position:
            if why:
                self._rewound(why)
            else:
                position.assured(time.monotonic())

    def answered(self, before: int, high: int, asked_at: float) -> bool:
        """The tip, asked for at `asked_at` when `before` was the position. False if it cannot be believed."""
        with self._moving() as position:
            return position.answered(before, high, asked_at, time.monotonic())

    def unanswered(self, error: KafkaError, asked_at: float) -> None:
        with self._moving() as position:
            position.unanswered(error, asked_at)

    def follow(self, *, anew: bool) -> bool:
        with self._changed:
            return self._position.follow(anew=anew, has_room=self._has_room)


class Prober:
    """A thread that asks until `close`, or until the topic is a different one."""

    def __init__(self, name: str, questions: Questions, reader: "KafkaReader", seekers: Sequence[LeaderSeeker]) -> None:
        self._questions, self._reader, self._seekers = questions, reader, seekers
        self._wanted = threading.Event()
        self._closing = self._failing = False
        self._leader: int | None = None
        self._again_at = -inf
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self) -> None:
        """Ask now, without waiting for the next turn."""
        self._wanted.set()

    def ask_again(self) -> None:
        """Ask now, if the last question had no answer: a broker was heard."""
        if self._failing:
            self._wanted.set()

    def close(self) -> None:
        self._closing = True
        self._wanted.set()
        self._thread.join(CLOSE_MAX)  # It ends on its own when its call into librdkafka returns.

    def _run(self) -> None:
        pause: float | None = 0.0
        while pause is not None:
            urgent = self._wanted.wait(pause)
            self._wanted.clear()
            if self._closing:
                return
            pause = self._turn(urgent=urgent)

    def _turn(self, *, urgent: bool) -> float | None:
        """Ask one question, or none. Returns how long to wait until the next, or None to stop."""
        before, doubtful = self._reader.position()
        asked_at = time.monotonic()
        try:
            if self._failing and not self._may_answer(asked_at) and not urgent:
                return LOOK_EVERY
            # Any broker knows the identity, even while the partition has no leader, so it is asked for first.
            if doubtful:
                why = self._questions.changed_identity(IDENTITY_MAX)
                self._reader.identified(why)
                if why:
                    return None
            high = self._questions.tip(LOOK_MAX if self._failing and not urgent else PROBE_MAX)
        except KafkaException as error:
            now, self._failing = time.monotonic(), True
            self._again_at = now + PAUSE if now - asked_at >= LOOK_MAX else now  # A quick no costs the brokers nothing.
            self._reader.unanswered(error.args[0], asked_at)
            return LOOK_EVERY
        anew, self._failing = self._failing, not self._reader.answered(before, high, asked_at)
        waiting = [seeker.follow(anew=anew) for seeker in self._seekers]
        return LOOK_EVERY if self._failing or any(waiting) else PROBE_EVERY

    def _may_answer(self, now: float) -> bool:
        """Whether it is worth asking for the tip. Asking who leads also updates the client's own knowledge."""
        was, self._leader = self._leader, self._questions.leader(LOOK_MAX)
        return now >= self._again_at or self._leader not in {was, -1}
