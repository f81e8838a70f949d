"""The feed: a thread that waits for new records, checks that none was lost, and knows how old its knowledge is.

    Redis --XREAD BLOCK, and the anchor--> reader (thread) --entries--> [ queue, bounded ] --read--> the pump

The thread waits in Redis, so a record is here within a fraction of a millisecond of its append; whoever calls `read`
waits for the queue, so `wake` and `seek` need not disturb what is outstanding. An answer tells what there was at some
moment after it was asked for. So what we know is as old as the question, and the age is counted from there.

What the thread cannot mend by asking again ends it: records were lost, or it is no ledger. Everything else is trouble,
which every read raises until an answer comes; a new connection begins with the same check for lost records as every
answer (`redis_stream.py`), before anything is handed over.
"""

import threading
import time
from collections import deque
from math import inf

from neli_router.errors import LedgerError, LedgerRewound, LedgerTrimmed, LedgerUnavailable, LedgerUnusable
from neli_router.ledgers.base import READ_MAX, Entry
from neli_router.ledgers.redis.link import ANSWER_MAX, Link
from neli_router.ledgers.redis.stream import Extent, Stream

__all__ = ["BLOCK_MAX", "CLOSE_MAX", "Feed", "defect"]

BLOCK_MAX = 0.2
"""Seconds that one question may wait in Redis. Raising it saves an idle member some of five questions a second, and
notices a frozen server, and a seek, later by as much."""

BLOCK_MIN = 0.005
"""The first wait after a seek, because another one often follows; each further one is twice as long."""

MASTER_EVERY = 1.0
"""How often to ask whether the server is still a master: one that became a replica answers as if nothing had been."""

QUIET_MAX = 2.0
"""Seconds without an answer after which a read does not take silence for peace, whatever the thread is doing."""

FIRST_MAX = 5.0
"""Seconds for the first answer after a seek."""

RETRY_EVERY = 0.05
AHEAD_MAX = 20 * READ_MAX
CLOSE_MAX = 1.0


class Feed:
    """Entries of one stream in order. `highest` is the highest offset known to have existed."""

    def __init__(self, stream: Stream, extent: Extent, name: str) -> None:
        self._stream = stream
        self.changed = threading.Condition()  # Reentrant, so a signal handler may call `wake` at any moment.
        self.highest = extent.tip - 1
        self.anchor: Entry | None = None
        self._queue: deque[Entry] = deque()
        self._turn = 0
        """Which seek the queue belongs to: what was asked for before the newest one is dropped."""
        self._next = 0
        self._all_at = self._block = self._master_at = -inf
        self._sought_at = self._alive_at = time.monotonic()
        self._settled = self._woken = False
        self.closing = False
        self._link: Link | None = None
        self._trouble: LedgerError | None = None
        self._trimmed: LedgerTrimmed | None = None
        self.fault: LedgerRewound | LedgerUnusable | None = None
        """Why this ledger cannot be used any more."""
        self.seek(extent.first)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def read(self, timeout: float) -> list[Entry]:
        """As the port says; and nothing, too, when woken. `age` tells which."""
        give_up_at = time.monotonic() + timeout
        with self.changed:
            while True:
                now = time.monotonic()
                self.require_sound()
                if self._queue:
                    entries = [self._queue.popleft() for _ in range(min(READ_MAX, len(self._queue)))]
                    self.changed.notify_all()
                    return entries
                if self._trimmed is not None:
                    raise LedgerTrimmed(self._trimmed.wanted, self._trimmed.found, self._trimmed.remedy)
                self._require_life(now)
                patience = (give_up_at if self._settled else self._sought_at + FIRST_MAX) - now
                if self._woken or patience <= 0:
                    self._woken = False
                    return []
                self.changed.wait(min(patience, QUIET_MAX))

    def age(self) -> float:
        """How long ago all that was read so far was all; infinity while more is known to be there."""
        with self.changed:
            return inf if self._queue else time.monotonic() - self._all_at

    def seek(self, offset: int) -> None:
        with self.changed:
            self._turn += 1
            self._queue.clear()
            self._next, self._all_at, self._block = offset, -inf, 0.0
            self._settled, self._trimmed = False, None
            self._sought_at = self._alive_at = time.monotonic()
            self.changed.notify_all()

    def wake(self) -> None:
        with self.changed:
            self._woken = True  # It stays set for the next read, if none is waiting: a wake-up is never lost.
            self.changed.notify_all()

    def saw(self, offset: int) -> None:
        """There is, or was, a record at `offset`."""
        with self.changed:
            self.highest = max(self.highest, offset)

    def fail(self, fault: LedgerRewound | LedgerUnusable) -> None:
        """This ledger cannot be used any more. The first reason counts."""
        with self.changed:
            self.fault = self.fault or fault
            self.changed.notify_all()

    def require_sound(self) -> None:
        """Raise what `fail` was told."""
        if (fault := self.fault) is not None:
            raise type(fault)(fault.wanted, fault.found, fault.remedy)

    def require_same(self, link: Link) -> None:
        """Raise LedgerRewound if what `link` leads to has lost records. For whoever is about to append."""
        anchor, highest = self.anchor, self.highest
        answer = link.ask(self._stream.anchor(anchor))[0] if anchor is not None else None
        self._stream.require_anchor(link, anchor, answer, highest)

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
            if self._link is not None:
                self._link.interrupt()  # Or it would leave only when its question is answered.
        self._thread.join(CLOSE_MAX)

    def _require_life(self, now: float) -> None:
        if (trouble := self._trouble) is not None:
            raise LedgerUnavailable(trouble.wanted, trouble.found, trouble.remedy)
        if (quiet := now - self._alive_at) > QUIET_MAX:
            raise LedgerUnavailable(
                f"a read of {self._stream.at.public} was wanted",
                f"the server has not answered for {quiet:.1f} s",
                "look after it and the way to it; it will be tried again",
            )

    def _run(self) -> None:
        try:
            while self._may_go_on():
                try:
                    self._ask(self._linked())
                except (LedgerRewound, LedgerUnusable) as fault:
                    self.fail(fault)
                except LedgerError as trouble:
                    self._unlink()
                    with self.changed:
                        self._trouble, self._all_at = trouble, -inf
                        self.changed.notify_all()
                        self.changed.wait_for(lambda: self.closing, RETRY_EVERY)
        except BaseException as error:
            self.fail(defect(error))
            raise
        finally:
            self._unlink()

    def _may_go_on(self) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.closing or self._wants_more)
            return not self.closing and self.fault is None

    def _linked(self) -> Link:
        """A connection to what was a master a moment ago."""
        now = time.monotonic()
        if self._link is None:
            link = Link(self._stream.at, "a read", patience=ANSWER_MAX + BLOCK_MAX)
            with self.changed:
                self._link, self._master_at, self._block = link, now, 0.0
        elif now - self._master_at > MASTER_EVERY:
            self._link.require_master()
            self._master_at = now
        return self._link

    def _unlink(self) -> None:
        with self.changed:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    @property
    def _wants_more(self) -> bool:
        return len(self._queue) < AHEAD_MAX and self._trimmed is None

    def _ask(self, link: Link) -> None:
        with self.changed:
            turn, position, anchor, highest = self._turn, self._next, self.anchor, self.highest
            block_ms = int(self._block * 1000)
            asked_at = time.monotonic()
        stream, extent = self._stream, None
        questions = [stream.news(position, block_ms=block_ms)]
        if anchor is not None:
            questions.append(stream.anchor(anchor))
        answers = link.ask(*questions)
        entries = stream.entries(answers[0])
        trimmed = None
        extent = stream.require_anchor(link, anchor, answers[1] if anchor is not None else None, highest)
        try:
            stream.require_whole(link, position, entries, extent)
        except LedgerTrimmed as error:
            trimmed, entries = error, []
        with self.changed:
            if turn != self._turn:
                return
            self._alive_at, self._trouble, self._trimmed = time.monotonic(), None, trimmed
            self._settled = True
            if trimmed is None:
                if entries:
                    self._queue.extend(entries)
                    self._next = entries[-1].offset + 1
                    if anchor is None or entries[-1].offset > anchor.offset:
                        self.anchor = entries[-1]
                    self.highest = max(self.highest, entries[-1].offset)
                is_all = len(entries) < READ_MAX
                self._all_at = asked_at if is_all else -inf
                self._block = min(BLOCK_MAX, max(BLOCK_MIN, 2 * self._block)) if is_all else 0.0
            self.changed.notify_all()


def defect(error: BaseException) -> LedgerUnusable:
    """What a thread of this driver that ended by `error` leaves to the rest."""
    return LedgerUnusable(
        "a thread of the ledger in Redis was to run until it was closed",
        f"it ended by {type(error).__name__}, which is a defect",
        "report it with the traceback that this process wrote, and open the ledger anew",
    )
