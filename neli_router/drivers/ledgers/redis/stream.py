"""One stream as a ledger: the questions to ask it, how to interpret the answers, and the thread that reads it.

    0-1  0-2  0-3 ... 0-17  0-18 ...      XADD GROUP:ledger 0-*   the server counts the second part, without holes
                       ^anchor  ^next     an offset is that part

**The anchor.** A server may come back without its newest records (a restart without AOF, a failover), and may since
have got enough new ones that its tip is above everything that was read. Then no offset goes back. So the reader keeps
the entry with the highest offset that it read. It asks for that entry again *after* each question for new entries, in
the same write. New entries count only if the anchor is there and unchanged. No two records of members have the same
bytes. An anchor that is gone was trimmed, or everything was lost: the first offset that is left and the last one ever
given show which.

    XREAD  ... 0-17      new entries
    XRANGE 0-17 0-17     the anchor  --same-----------------------> all is well
                                     --different------------------> LedgerRewound
                                     --none-- XINFO: last < 0-17 --> LedgerRewound
                                                     first > 0-17 --> trimmed, and harmless
                                                     neither ------> it was deleted: LedgerUnusable

A program that adds with `*` instead of `0-*` puts the clock's time where our zero is. From then on no member can append
to the stream. That is LedgerUnusable, too.

**The reader** is a thread that waits in Redis for new records, checks that none was lost, and reads ahead. The pump's
thread waits for the queue, so `wake` and `seek` need not disturb the question. An error ends the thread if asking again
cannot fix it. Any other error is trouble, which every read raises until an answer comes.
"""

import threading
import time
from math import inf
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from neli_router.core.closing import anew
from neli_router.drivers.ledgers.base import READ_MAX, Entry, trimmed
from neli_router.drivers.ledgers.read_ahead import ReadAhead
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import Command, Link
from neli_router.errors import LedgerError, LedgerRewound, LedgerTrimmed, LedgerUnavailable, LedgerUnusable

__all__ = ["BLOCK_MAX", "CLOSE_MAX", "FIELD", "FIRST", "Extent", "RecordStream", "RedisReader", "defect"]

FIRST = 1
"""The first offset that `0-*` gives."""

FIELD = b"record"

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


class Extent(NamedTuple):
    """The records that a stream holds: `first` to `tip` - 1; none if equal. `exists` says whether there is a key."""

    first: int
    tip: int
    exists: bool


class RecordStream:
    """The questions to one group's stream, and the interpretation of the answers. Holds no state."""

    def __init__(self, at: RedisAddress) -> None:
        self.at = at
        self.key = f"{at.group}:ledger".encode()

    def append(self, payload: bytes, *, must_exist: bool) -> Command:
        """Add a record. A stream that existed and is gone must not come back with our record as its first."""
        return ("XADD", self.key, *(("NOMKSTREAM",) if must_exist else ()), "0-*", FIELD, payload)

    def trim(self, before: int) -> Command:
        return ("XTRIM", self.key, "MINID", f"0-{before}")

    def news(self, position: int, *, block_ms: int) -> Command:
        """Ask for the entries at `position` and above; wait for the first of them."""
        waiting = ("BLOCK", block_ms) if block_ms else ()
        return ("XREAD", "COUNT", READ_MAX, *waiting, "STREAMS", self.key, f"0-{position - 1}")

    def anchor(self, anchor: Entry) -> Command:
        return ("XRANGE", self.key, f"0-{anchor.offset}", f"0-{anchor.offset}")

    def entries(self, answer: Any) -> list[Entry]:
        """The entries in the answer to `news`."""
        return [] if answer is None else [self._entry(*said) for said in answer[0][1]]

    def offset(self, place: bytes) -> int:
        zero, _, offset = place.partition(b"-")
        if zero != b"0":
            raise LedgerUnusable(
                f"the stream {self.key.decode()} with places 0-1, 0-2, 0-3 ... was wanted",
                f"{place.decode()} is in it: another program added to it with `*`",
                "use another group, and let only members write to its stream",
            )
        return int(offset)

    def extent(self, link: Link) -> Extent:
        """The extent as of now. Raises LedgerUnavailable or LedgerUnusable."""
        (answer,) = link.try_each([("XINFO", "STREAM", self.key)])
        if isinstance(answer, ResponseError) and "no such key" in str(answer):
            return Extent(FIRST, FIRST, exists=False)
        link.require(answer)
        facts = dict(zip(answer[::2], answer[1::2], strict=True))
        tip = self.offset(facts[b"last-generated-id"]) + 1
        first = facts[b"first-entry"]
        return Extent(tip if first is None else self.offset(first[0]), tip, exists=True)

    def require_anchor(self, link: Link, anchor: Entry | None, answer: Any, highest: int) -> Extent | None:
        """Raise LedgerRewound unless the stream is still the one that `anchor` was read from, or that reached
        `highest`. `answer` is the answer to the question for the anchor. Returns the extent, if it was asked for."""
        if anchor is not None and answer:
            there = self._entry(*answer[0])
            if there.payload == anchor.payload:
                return None
            raise self.rewound(f"the record at offset {anchor.offset} is not the one that was read there")
        extent = self.extent(link)
        if extent.tip <= highest:
            lost = f"it ends at {extent.tip}" if extent.exists else "it is gone"
            raise self.rewound(f"{lost}, and there was a record at offset {highest}")
        if anchor is not None and anchor.offset >= extent.first:
            raise self._holed(anchor.offset)
        return extent

    def require_whole(self, link: Link, position: int, entries: list[Entry], extent: Extent | None) -> None:
        """Raise LedgerTrimmed or LedgerUnusable unless `entries` are the entries that begin at `position`."""
        if not entries and extent is None:
            return  # The anchor is there, and nothing is above it: see the module's docstring.
        for expected, entry in enumerate(entries, start=position):
            if entry.offset != expected:
                extent = extent or self.extent(link)
                if position >= extent.first:
                    raise self._holed(expected)
                break
        if extent is not None and position < extent.first and not (entries and entries[0].offset == position):
            raise trimmed(self.at.public, extent.first, position)

    def rewound(self, found: str) -> LedgerRewound:
        return LedgerRewound(
            f"the ledger {self.at.public} with all its records was wanted",
            found,
            "stop every member of the group, find out what Redis lost (a restart without AOF, a failover, FLUSHALL), "
            "and start them again",
        )

    def _entry(self, place: bytes, fields: list[bytes]) -> Entry:
        named = dict(zip(fields[::2], fields[1::2], strict=False))
        return Entry(self.offset(place), named.get(FIELD, b""))

    def _holed(self, offset: int) -> LedgerUnusable:
        return LedgerUnusable(
            f"the stream {self.key.decode()} without holes was wanted",
            f"the record at offset {offset} is missing: it was deleted",
            "use a new group, and let no program use XDEL on its stream",
        )


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
        super().close()
        with self._changed:
            if self._link is not None:
                self._link.interrupt()  # Otherwise the thread would end only when its question is answered.
        self._thread.join(CLOSE_MAX)

    def _require_life(self, now: float, *, ends: bool) -> None:
        if self._trouble is not None:
            raise anew(self._trouble)
        if (quiet := now - self._alive_at) > QUIET_MAX:
            raise LedgerUnavailable(
                f"a read of {self._stream.at.public} was wanted",
                f"the server has not answered for {quiet:.1f} s",
                "check the server and the network to it",
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
