"""A reader's position in a topic: how far it has read, whether the log was cut there, and what lies ahead. No I/O.

    Position   the next offset; the tip; the state of the consumer; the last trouble, and the last sign of life
      '--- Seam   behind it: is the log that we read still the log that is there?

    SOUND --another broker leads, or nothing moves--> ASTRAY --looked for the leader--> SOUND
    either --librdkafka gives it up-----------------> BROKEN --replaced----------------> SOUND, and fetches from `next`

Three threads share one position, under the lock of the reader: the pump's thread seeks, the reading thread takes
records, and the prober's thread brings answers about the tip.

**The seam.** The log may have been cut where records of one leader's time end and those of the next leader's begin.

    [ ... last, epoch 4 ] | [ first, epoch 6 ...       read `last` again: the same --> go on
                          '-- another epoch                               another  --> the log was rewound

If a replica that was not in sync becomes leader, it drops the records that it never had, and the log grows again from
there, under a higher epoch. If the log is longer than before when we look, no offset goes back. But then our last
record is gone: the record at its offset was written under the new epoch, or is a different one. If the epochs are
equal, nothing has to be read again: one leader wrote both records, one after the other.

**The tip.**

    asked_at ----- high -----> answered          everything that existed at `asked_at` stood below `high`
                                  |
    next >= high ----------------'--> known_at = asked_at: our knowledge is at most this old

    no answer for QUIET_MAX, or "no such topic" --> doubtful --the topic's identity was asked for--> assured

An answer describes the moment at which it was asked for: this process may have been stopped before it arrived. An
answer below the position *before it was asked for* comes from a former leader, and does not count. The fetches show
whether the log lost records: they carry the leader's epoch, and a former leader refuses them.
"""

from enum import Enum
from math import inf

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message

from neli_router.drivers.ledgers.base import Entry
from neli_router.drivers.ledgers.kafka.clients import DENIED, UNKNOWN, is_fatal

__all__ = ["QUIET_MAX", "ConsumerState", "Position", "Seam"]

QUIET_MAX = 1.0
"""Seconds without an answer after which silence no longer counts as peace, and the topic may have been recreated."""


class ConsumerState(Enum):
    """The consumer's condition. The value says what the reading thread does before it goes on fetching."""

    SOUND = "nothing"
    ASTRAY = "look for the leader"
    BROKEN = "make a new consumer"


class Position:
    """One reader's position in one topic. Not thread-safe. `now` is monotonic seconds."""

    def __init__(self, offset: int, now: float) -> None:
        self.next = offset
        """The offset that follows the last record read."""
        self.fetch_from: int | None = offset
        """Where the consumer must start to fetch; None if it is there already."""
        self.consumer = ConsumerState.SOUND
        self.alive_at = now
        self.trouble: KafkaError | None = None
        self.doubtful = False
        """Whether the topic may be a different one now."""
        self._high = 0
        self._known_at = -inf
        self._asked_at = self._since = self._assured_at = now
        self.seam = Seam()
        self._stood = 0
        """The position at the last look for a leader."""

    def seek(self, offset: int, now: float) -> None:
        self.next = self.fetch_from = offset
        self.alive_at = self._since = now
        self._known_at = -inf
        self.seam = Seam()

    @property
    def known_at(self) -> float:
        """When everything below `next` was all there was; -inf if there is more, or if the topic may have changed."""
        return self._known_at if self.next >= self._high and not self.doubtful else -inf

    def begin(self) -> tuple[int | None, bool]:
        """Begin a fetch: where to fetch from, unless the consumer is there, and whether to look for the leader.

        Both then count as done. A broken consumer must be replaced first, and `renewed` be called.
        """
        fetch_from, self.fetch_from = self.fetch_from, None
        astray = self.consumer is ConsumerState.ASTRAY
        if astray:
            self.consumer = ConsumerState.SOUND
        return fetch_from, astray

    def take(self, records: list[Message], now: float) -> list[Entry]:
        """The entries of `records` that follow what was read."""
        entries = [Entry(it.offset() or 0, it.value() or b"", _time(it)) for it in self.seam.take(records)]
        if self.seam.asked is not None:
            self.fetch_from = self.seam.asked
        if entries:
            self.next = entries[-1].offset + 1
            self.alive_at, self.trouble = now, None
            self._reached()
        return entries

    def fetch_anew(self, low: int = 0) -> None:
        """Fetch again from `next`, in a log that starts at `low`. Nothing is skipped, whatever the complaint was."""
        self.seam.give_up(low)
        self.fetch_from = self.next if self.fetch_from is None else self.fetch_from

    def complained(self, error: KafkaError) -> None:
        """The consumer reports that something is wrong."""
        self._heed(error)
        if is_fatal(error):
            self.consumer = ConsumerState.BROKEN

    def renewed(self) -> None:
        """A new consumer has replaced the broken one."""
        self.consumer = ConsumerState.SOUND
        self.fetch_from = self.next if self.fetch_from is None else self.fetch_from

    def answered(self, before: int, high: int, asked_at: float, now: float) -> bool:
        """The tip is `high`, asked for at `asked_at` when `next` was `before`. False if it cannot be believed."""
        if high < before:
            self._missed(asked_at, unknown=False)
            return False
        self._high, self._asked_at = high, asked_at
        self._reached()
        if self.next >= high:
            self.alive_at = now
            if not self._is_denied:
                self.trouble = None
        return True

    def unanswered(self, error: KafkaError, asked_at: float) -> None:
        """A question asked at `asked_at` ended in `error`."""
        self._heed(error)
        self._missed(asked_at, unknown=error.code() in UNKNOWN)

    def assured(self, now: float) -> None:
        """The topic is still the same."""
        self.doubtful, self._assured_at = False, now

    def _missed(self, asked_at: float, *, unknown: bool) -> None:
        """A question asked at `asked_at` had no answer, or the answer that the topic does not exist."""
        self.doubtful |= unknown or asked_at - max(self._asked_at, self._assured_at) > QUIET_MAX

    def _reached(self) -> None:
        """`next` or the tip has changed. Only an answer that is newer than the last seek counts."""
        if self.next >= self._high and self._asked_at >= self._since:
            self._known_at = max(self._known_at, self._asked_at)

    @property
    def _is_denied(self) -> bool:
        """Whether the right to read is missing. librdkafka reports that only once, so it holds until a record comes."""
        return self.trouble is not None and self.trouble.code() in DENIED

    def _heed(self, error: KafkaError) -> None:
        # If a busy broker answers a question too late, that must not hide for good that the right to read is missing.
        if not self._is_denied:
            self.trouble = error

    def follow(self, *, anew: bool, has_room: bool) -> bool:
        """A broker leads. Returns whether records wait there; if none came since the last call, we are astray."""
        stood, self._stood = self._stood, self.next
        behind = self.next < self._high and has_room
        if self.consumer is ConsumerState.SOUND and (anew or (behind and stood == self.next)):
            self.consumer = ConsumerState.ASTRAY
        return behind


class Seam:
    """Watches one reader's records in order, from a seek on."""

    def __init__(self) -> None:
        self._last: Message | None = None
        self._sure = False
        self.asked: int | None = None
        """The offset to read again before anything else, if there is one."""
        self.found = ""
        """How the log was cut, once that is certain."""

    def take(self, records: list[Message]) -> list[Message]:
        """The records that follow what was read; none as long as a record is `asked` for."""
        if not records:
            return []
        first, last = records[0], self._last
        if last is not None and self.asked is not None:
            self.asked = None
            if _marks(first) != _marks(last):
                self.found = f"the record at {last.offset()} is no longer the one that was read there"
                return []
            self._sure, records = True, records[1:]
        elif last is not None and first.leader_epoch() != last.leader_epoch() and not self._sure:
            self.asked = last.offset()
            return []
        if records:
            self._last, self._sure = records[-1], False
        return records

    def give_up(self, start: int) -> None:
        """The offset asked for cannot be read: the log starts at `start`, or the reader starts over."""
        self._sure = self._last is not None and (self._last.offset() or 0) < start
        self.asked = None


def _time(record: Message) -> float | None:
    kind, milliseconds = record.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1000


def _marks(record: Message) -> tuple[object, ...]:
    return record.offset(), record.leader_epoch(), record.value()
