"""The prober: a thread that asks the brokers for the tip, and lets the clients leave a dead broker for the new leader.

    calm    --every PROBE_EVERY--> "what is your high watermark?" --answered--> calm
                                        '--not--> failing
    failing --every LOOK_EVERY--> "who leads?" --a new leader, or it is time again--> the question once more
    stuck     a broker leads, but the reader or the writer makes no progress: they are asked to look for the leader

librdkafka looks for the new leader of a partition once a second, and after the death of a broker it may need two such
looks. One member would then come back seconds before another, and expire it. While no broker leads, librdkafka also
repeats a question for an offset without any pause, which takes the brokers' processor time: so that question is then
asked seldom, and briefly.
"""

import threading
import time
from collections.abc import Sequence
from math import inf
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from neli_router.drivers.ledgers.kafka.topic import Questions

__all__ = ["LOOK_MAX", "LeaderSeeker", "Listener", "Prober"]

PROBE_EVERY = 0.25
PROBE_MAX = 0.5
LOOK_EVERY = 0.1
LOOK_MAX = 0.2
PAUSE = 0.5
"""Seconds between two questions for an offset while the brokers answer none."""

IDENTITY_MAX = 0.5
CLOSE_MAX = 2.0


class Listener(Protocol):
    """The reader, which needs the answers. The prober's thread makes these calls."""

    def position(self) -> tuple[int, bool]:
        """The offset that follows what was read, and whether the topic may be a different one now."""

    def identified(self, why: str) -> None:
        """The topic's identity was asked for: `why` says how it differs from before; empty if it is the same."""

    def answered(self, before: int, high: int, asked_at: float) -> bool:
        """The tip, asked for at `asked_at` when `before` was the position. False if it cannot be believed."""

    def unanswered(self, error: KafkaError, asked_at: float) -> None:
        """Called if no tip came."""


class LeaderSeeker(Protocol):
    """A client that has to find the partition's leader: the reader or the writer."""

    def follow(self, *, anew: bool) -> bool:
        """A broker leads. Look for it if its leadership is new, or if nothing moves. Returns whether anything waits."""


class Prober:
    """Asks until `close`, or until the topic is a different one."""

    def __init__(self, name: str, questions: Questions, listener: Listener, seekers: Sequence[LeaderSeeker]) -> None:
        self._questions, self._listener, self._seekers = questions, listener, seekers
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
        before, doubtful = self._listener.position()
        asked_at = time.monotonic()
        try:
            if self._failing and not self._may_answer(asked_at) and not urgent:
                return LOOK_EVERY
            # Any broker knows the identity, even while the partition has no leader, so it is asked for first.
            if doubtful:
                why = self._questions.changed_identity(IDENTITY_MAX)
                self._listener.identified(why)
                if why:
                    return None
            high = self._questions.tip(LOOK_MAX if self._failing and not urgent else PROBE_MAX)
        except KafkaException as error:
            now, self._failing = time.monotonic(), True
            self._again_at = now + PAUSE if now - asked_at >= LOOK_MAX else now  # A quick no costs the brokers nothing.
            self._listener.unanswered(error.args[0], asked_at)
            return LOOK_EVERY
        anew, self._failing = self._failing, not self._listener.answered(before, high, asked_at)
        waiting = [seeker.follow(anew=anew) for seeker in self._seekers]
        return LOOK_EVERY if self._failing or any(waiting) else PROBE_EVERY

    def _may_answer(self, now: float) -> bool:
        """Whether it is worth asking for the tip. Asking who leads also updates the client's own knowledge."""
        was, self._leader = self._leader, self._questions.leader(LOOK_MAX)
        return now >= self._again_at or self._leader not in {was, -1}
