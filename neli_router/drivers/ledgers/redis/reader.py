"""The reader of a stream: a thread that waits for new records, checks that none was lost, and reads ahead.

    Redis --XREAD BLOCK, and the anchor--> the reading thread --entries--> [ queue, bounded ] --read--> the pump

The thread waits in Redis; the pump's thread waits for the queue, so `wake` and `seek` need not disturb the question.

An error ends the thread if asking again cannot fix it: records were lost, or the key does not hold a ledger. Any other
error is trouble, which every read raises until an answer comes.
"""

import threading
import time
from math import inf

from neli_router.drivers.ledgers.base import READ_MAX, Entry
from neli_router.drivers.ledgers.read_ahead import ReadAhead, again
from neli_router.drivers.ledgers.redis.link import Link
from neli_router.drivers.ledgers.redis.stream import Extent, RecordStream
from neli_router.errors import LedgerError, LedgerRewound, LedgerTrimmed, LedgerUnavailable, LedgerUnusable

__all__ = ["BLOCK_MAX", "CLOSE_MAX", "RedisReader", "defect"]

BLOCK_MAX = 0.2
"""Seconds that one question may wait in Redis. Raising it saves an idle member some of its five questions a second, but
delays noticing a frozen server, or a seek, by as much."""

BLOCK_MIN = 0.005
"""The first wait after a seek, because another seek often follows. Each further wait is twice as long."""

MASTER_EVERY = 1.0
"""How often to ask whether the server is still a master: a new replica answers as if nothing had happened."""

QUIET_MAX = 2.0
"""Seconds without an answer after which a read does not take silence for peace, whatever the thread is doing."""

RETRY_EVERY = 0.05
CLOSE_MAX = 1.0


class RedisReader(ReadAhead):
    """Entries of one stream in order. `highest` is the highest offset known to have existed."""

    def __init__(self, stream: RecordStream, extent: Extent, name: str) -> None:
        super().__init__()
        self._stream = stream
        self.highest = extent.tip - 1
        self._anchor: Entry | None = None
        self._next = extent.first
        self._block = self._alive_at = self._master_at = -inf
        self._link: Link | None = None
        self._trouble: LedgerError | None = None
        self.seek(extent.first)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def seek(self, offset: int) -> None:
        with self._changed:
            self._alive_at = time.monotonic()
            self._begin_turn(self._alive_at)
            self._next, self._block = offset, 0.0

    def saw(self, offset: int) -> None:
        """Note that there is, or was, a record at `offset`."""
        with self._changed:
            self.highest = max(self.highest, offset)

    def require_same(self, link: Link) -> None:
        """Raise LedgerRewound if the server at `link` has lost records. Call it before appending over a new link."""
        anchor, highest = self._anchor, self.highest
        answer = link.ask(self._stream.anchor(anchor))[0] if anchor is not None else None
        self._stream.require_anchor(link, anchor, answer, highest)

    def close(self) -> None:
        self._stop()
        with self._changed:
            if self._link is not None:
                self._link.interrupt()  # Otherwise the thread would end only when its question is answered.
        self._thread.join(CLOSE_MAX)

    def _require_life(self, now: float, *, ends: bool) -> None:
        if self._trouble is not None:
            raise again(self._trouble)
        if (quiet := now - self._alive_at) > QUIET_MAX:
            raise LedgerUnavailable(
                f"a read of {self._stream.at.public} was wanted",
                f"the server has not answered for {quiet:.1f} s",
                "check the server and the network to it; it will be tried again",
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
                    with self._changed:
                        self._trouble, self._known_at = trouble, -inf
                        self._changed.notify_all()
                        self._changed.wait_for(lambda: self._closing, RETRY_EVERY)
        except BaseException as error:
            self.fail(defect(error))
            raise
        finally:
            self._unlink()

    def _may_go_on(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or (self._has_room and self._trimmed is None))
            return not self._closing and self.fault is None

    def _linked(self) -> Link:
        """A connection to a server that was a master a moment ago."""
        now = time.monotonic()
        if self._link is None:
            link = Link(self._stream.at, "a read", blocked=BLOCK_MAX)
            with self._changed:
                self._link, self._master_at, self._block = link, now, 0.0
        elif now - self._master_at > MASTER_EVERY:
            self._link.require_master()
            self._master_at = now
        return self._link

    def _unlink(self) -> None:
        with self._changed:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, link: Link) -> None:
        with self._changed:
            turn, position, anchor, highest = self._turn, self._next, self._anchor, self.highest
            block_ms = int(self._block * 1000)
            asked_at = time.monotonic()
        stream = self._stream
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
        with self._changed:
            if turn != self._turn:
                return
            self._alive_at, self._trouble, self._trimmed = time.monotonic(), None, trimmed
            if trimmed is None:
                if entries:
                    self._next = entries[-1].offset + 1
                    if anchor is None or entries[-1].offset > anchor.offset:
                        self._anchor = entries[-1]
                    self.highest = max(self.highest, entries[-1].offset)
                is_all = len(entries) < READ_MAX
                self._known_at = asked_at if is_all else -inf
                self._block = min(BLOCK_MAX, max(BLOCK_MIN, 2 * self._block)) if is_all else 0.0
            self._extend(entries)


def defect(error: BaseException) -> LedgerUnusable:
    """The fault to raise from now on, after a thread of this driver ended with `error`."""
    return LedgerUnusable(
        "a thread of the ledger in Redis was to run until it was closed",
        f"it ended with {type(error).__name__}, which is a defect",
        "report it with the traceback that this process wrote, and open the ledger again",
    )
