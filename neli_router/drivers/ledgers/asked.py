"""Ledgers on a server that is asked: what the drivers for Redis and PostgreSQL share.

    append --AskedWriter (a thread)--> [ records 1 2 3 ... 17 18 ... ] --AskedReader (a thread)--> queue --> read
                                                            ^anchor  ^next

The pump must fence a member in time, so it never waits for the server, except to open the ledger and to ask where it
starts and ends: it hands records over and takes them. A driver supplies an `AskedLog`: how to connect, to ask and to
append. Everything that makes it safe is here.

**The anchor.** A server may come back without its newest records (a crash, a failover, a restored copy), and may since
have got enough new ones that its end is above everything that was read. Then no offset goes back. So the reader keeps
the entry with the highest offset that it read, and asks for that entry again with each question for new ones. New
entries count only if the anchor is there and unchanged, as of the same moment or a later one. No two records of members
have the same bytes. An anchor that is gone was trimmed, or everything was lost: the first offset that is left and the
last one ever given show which.

    the anchor  --same--------------------------> all is well
                --different---------------------> LedgerRewound
                --gone-- the end <= the anchor --> LedgerRewound
                         the start > the anchor -> trimmed, and harmless
                         neither ----------------> it was deleted: LedgerUnusable

**The reader** waits for new records where the server lets it, checks that none was lost, and reads ahead. The pump's
thread waits for the queue, so `wake` and `seek` need not disturb the question. An error ends the thread if asking again
cannot fix it. Any other error is trouble, which every read raises until an answer comes.

In a large group, a question for each record would cost the server and the member more than all else. So once the reader
has brought all that there was, it asks again only when the pump has taken it: by then there is more, for one question.

**The writer** is a thread, so that a slow server never holds the pump up.

    append --> [ payload | payload | trim ] --all that is queued, in one write--> server --offsets--> acknowledged

Records that were on their way when a connection failed may or may not have been appended. They and the records that
wait behind them are dropped, and the member that wrote them notices when it does not read them. Keeping them for later
would flood a server that comes back with an hour's heartbeats. A new connection is asked for the anchor before anything
is appended. An offset that is not above all known ones shows immediately that records were lost.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

from neli_router.core.closing import anew
from neli_router.drivers.ledgers.base import READ_BYTES_MAX, READ_MAX, Entry, trimmed
from neli_router.drivers.ledgers.read_ahead import ReadAhead, ReadAheadLedger
from neli_router.errors import LedgerError, LedgerRewound, LedgerTrimmed, LedgerUnavailable, LedgerUnusable

__all__ = [
    "BLOCK_MAX",
    "FIRST",
    "AnyLink",
    "AskedLedger",
    "AskedLog",
    "AskedReader",
    "AskedWriter",
    "Extent",
    "Found",
    "Sent",
]

FIRST = 1
"""The first offset of a ledger on a server."""

BLOCK_MAX = 0.2
"""Seconds that one question may wait for a record. Raising it saves an idle member some of its five questions a second,
but delays noticing a frozen server, or a seek, by as much."""

BLOCK_MIN = 0.005
"""The first wait after a seek, because another seek often follows. Each further wait is twice as long."""

SEVERAL = 2
"""After an answer with this many entries or more, the next question does not wait: Redis then needs one command for it
and not two. If this were 1, a log with an entry now and then would be asked once more for each."""

QUIET_MAX = 2.0
"""Seconds without an answer after which a read does not take silence for peace, whatever the thread is doing."""

SETTLE_MAX = 0.5
"""Seconds that a question for the start and the end waits for the appends before it."""

QUEUE_MAX = 10_000
"""Records that may wait for the server. More would only arrive later."""

BATCH_MAX = 256
"""Records in one write. If there were more, their answers would wait for each other."""

RETRY_EVERY = 0.05
CLOSE_MAX = 1.0


class AnyLink(Protocol):
    """One connection. Used by one thread at a time, except for `interrupt`."""

    def interrupt(self) -> None:
        """Make a thread that waits for an answer find the connection broken."""

    def close(self) -> None:
        """May be called twice."""


Link = TypeVar("Link", bound=AnyLink)


class Extent(NamedTuple):
    """The records that a log holds: `first` to `tip` - 1; none if equal. `exists` says whether there is a log."""

    first: int
    tip: int
    exists: bool


class Found(NamedTuple):
    """The answer to a question for new entries."""

    asked_at: float
    entries: list[Entry]
    anchor: Entry | None
    """The entry at the anchor's offset, as of the same moment as the entries or a later one."""


class Sent(NamedTuple):
    """The fate of a batch."""

    offsets: Sequence[int]
    trouble: LedgerError | None = None
    trim_trouble: LedgerError | None = None
    has_trimmed: bool = False
    to_trim: int | None = None
    """More is left to trim below this."""
    moved_on: bool = False
    """Another server may have taken over: make a new connection."""


class AskedLog(ABC, Generic[Link]):
    """The questions to one group's log, and how to interpret the answers. Holds no state."""

    public: str
    """The ledger's address, for people."""
    name: str
    """A word for the names of its threads."""
    log: str
    """The log itself in the server's own words, such as `the stream jobs:ledger`."""
    losses: str
    """The mishaps in which this kind of server loses records."""
    deleting: str
    """The command that no program may use on the log."""

    @abstractmethod
    def connect(self, purpose: str, *, blocked: float = 0.0) -> Link:
        """A connection to the server that may be written to. Raises LedgerUnavailable or LedgerUnusable."""

    @abstractmethod
    def ask(self, link: Link, position: int, anchor: Entry | None, wait: float) -> Found:
        """The entries at `position` and above; waits up to `wait` seconds for the first of them."""

    @abstractmethod
    def at(self, link: Link, offset: int) -> Entry | None:
        """The entry at `offset`, if there is one."""

    @abstractmethod
    def extent(self, link: Link) -> Extent:
        """The extent as of now."""

    @abstractmethod
    def send(self, link: Link, batch: Sequence[bytes | int], last: int) -> Sent:
        """Append the payloads and carry out the trims, in order. `last` is the highest offset known before.

        Raises LedgerRewound if the log is gone, or gave an offset again.
        """

    def require_anchor(self, link: Link, anchor: Entry | None, there: Entry | None, highest: int) -> Extent | None:
        """Raise LedgerRewound unless the log is still the one that `anchor` was read from, or that reached `highest`.
        `there` is what stands in its place. Returns the extent, if it was asked for."""
        if anchor is not None and there is not None:
            if there.payload == anchor.payload:
                return None
            raise self.rewound(f"the record at offset {anchor.offset} is not the one that was read there")
        extent = self.extent(link)
        if extent.tip <= highest:
            lost = f"it ends at {extent.tip}" if extent.exists else "it is gone"
            raise self.rewound(f"{lost}, and there was a record at offset {highest}")
        if anchor is not None and anchor.offset >= extent.first:
            if there is None and (there := self.at(link, anchor.offset)) is not None:  # Replaced between the questions.
                return self.require_anchor(link, anchor, there, highest)
            raise self._holed(anchor.offset)
        return extent

    def require_whole(self, link: Link, position: int, entries: list[Entry], extent: Extent | None) -> None:
        """Raise LedgerTrimmed or LedgerUnusable unless `entries` are the entries that begin at `position`."""
        if not entries and extent is None:
            return  # The anchor is there, and nothing is above it.
        for expected, entry in enumerate(entries, start=position):
            if entry.offset != expected:
                extent = extent or self.extent(link)
                if position >= extent.first:
                    raise self._holed(expected)
                break
        if extent is not None and position < extent.first and not (entries and entries[0].offset == position):
            raise trimmed(self.public, extent.first, position)

    def rewound(self, found: str) -> LedgerRewound:
        return LedgerRewound(
            f"the ledger {self.public} with all its records was wanted",
            found,
            f"stop every member of the group, find out what was lost ({self.losses}), and start them again",
        )

    def _holed(self, offset: int) -> LedgerUnusable:
        return LedgerUnusable(
            f"{self.log} without holes was wanted",
            f"the record at offset {offset} is missing: it was deleted",
            f"use a new group, and let no program use {self.deleting}",
        )

    def defect(self, error: BaseException) -> LedgerUnusable:
        """The fault to raise from now on, after a thread of this ledger ended with `error`."""
        return LedgerUnusable(
            f"a thread of the ledger {self.public} was to run until it was closed",
            f"it ended with {type(error).__name__}, which is a defect",
            "report it with the traceback that this process wrote, and open the ledger again",
        )


class AskedLedger(ReadAheadLedger, Generic[Link]):
    """One handle of a group's log. Used by one thread at a time, except for `wake`."""

    _reader: "AskedReader[Link]"
    _writer: "AskedWriter[Link]"

    def __init__(self, asked: AskedLog[Link], extent: Extent) -> None:
        super().__init__(asked.public)
        self._asked = asked
        self._reader = AskedReader(asked, extent)
        self._writer = AskedWriter(asked, self._reader)

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._require_open()
        self._reader.require_sound()
        if payloads:
            self._writer.append(payloads)

    def seek(self, offset: int) -> None:
        self._reader.seek(max(FIRST, offset))  # Nothing was ever below the first offset, so nothing is missed there.

    def start(self) -> int:
        return self._extent().first

    def tip(self) -> int:
        return self._extent().tip

    def trim(self, before: int) -> None:
        self._require_open()
        self._reader.require_sound()
        self._writer.trim(before)

    def _extent(self) -> Extent:
        """Where the log begins and ends, as of now."""
        self._require_open()
        self._reader.require_sound()
        self._writer.settle(SETTLE_MAX)  # After that, the requested trims are done.
        highest = self._reader.highest
        with closing(self._asked.connect("the start and the tip")) as link:
            extent = self._asked.extent(link)
        if extent.tip <= highest:
            self._reader.fail(self._asked.rewound(f"it ends at {extent.tip}, and offset {highest} was there"))
            self._reader.require_sound()
        self._reader.saw(extent.tip - 1)
        return extent


class AskedReader(ReadAhead, Generic[Link]):
    """Entries of one log in order. `highest` is the highest offset known to have existed."""

    def __init__(self, asked: AskedLog[Link], extent: Extent) -> None:
        super().__init__()
        self._asked = asked
        self.highest = extent.tip - 1
        self._anchor: Entry | None = None
        self._next = extent.first
        self._block = self._alive_at = -inf
        self._link: Link | None = None
        self._trouble: LedgerError | None = None
        self.seek(extent.first)
        self._thread = threading.Thread(target=self._run, name=f"neli-{asked.name}-reader", daemon=True)
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
        there = None if anchor is None else self._asked.at(link, anchor.offset)
        self._asked.require_anchor(link, anchor, there, highest)

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
                f"a read of {self._asked.public} was wanted",
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
            self.fail(self._asked.defect(error))
            raise
        finally:
            self._unlink()

    def _may_go_on(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._is_wanted)
            return not self._closing and self.fault is None

    @property
    def _is_wanted(self) -> bool:
        is_ahead = bool(self._queue) and self._known_at > -inf
        return self._has_room and self._trimmed is None and not is_ahead

    def _pop(self) -> list[Entry]:
        self._alive_at = time.monotonic()  # Until now, the thread may have had no reason to ask.
        return super()._pop()

    def _linked(self) -> Link:
        if (link := self._link) is None:
            link = self._asked.connect("a read", blocked=BLOCK_MAX)
            with self._changed:
                self._link, self._block = link, 0.0
        return link

    def _unlink(self) -> None:
        with self._changed:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, link: Link) -> None:
        with self._changed:
            turn, position, anchor, highest, block = self._turn, self._next, self._anchor, self.highest, self._block
        asked = self._asked
        asked_at, entries, there = asked.ask(link, position, anchor, max(0.0, block))
        trimmed = None
        extent = asked.require_anchor(link, anchor, there, highest)
        try:
            asked.require_whole(link, position, entries, extent)
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
                is_all = len(entries) < READ_MAX and sum(len(one.payload) for one in entries) < READ_BYTES_MAX
                self._known_at = asked_at if is_all else -inf
                # Where several came together, the next question will not have to wait either.
                waits = is_all and len(entries) < SEVERAL
                self._block = min(BLOCK_MAX, max(BLOCK_MIN, 2 * self._block)) if waits else 0.0
            self._extend(entries)


class AskedWriter(Generic[Link]):
    """Appends to one log, in order. Any thread may call any method."""

    def __init__(self, asked: AskedLog[Link], reader: AskedReader[Link]) -> None:
        self._asked, self._reader = asked, reader
        self._changed = threading.Condition()
        self._queue: deque[bytes | int] = deque()
        """Payloads; and offsets, below which to trim."""
        self._offsets: list[int] = []
        self._trouble: LedgerError | None = None
        self._trim_trouble: LedgerError | None = None
        self._closing = self._sending = False
        self._thread = threading.Thread(target=self._run, name=f"neli-{asked.name}-writer", daemon=True)
        self._thread.start()

    def append(self, payloads: Sequence[bytes]) -> None:
        """Queue the payloads. Raises LedgerUnavailable if the last ones that were sent could not be appended."""
        with self._changed:
            if len(self._queue) + len(payloads) > QUEUE_MAX:
                raise LedgerUnavailable(
                    f"an append to {self._asked.public} was wanted",
                    f"{len(self._queue)} records wait for the server already",
                    "check the server",
                )
            self._queue.extend(payloads)
            self._changed.notify_all()
            if self._trouble is not None:
                raise anew(self._trouble)

    def trim(self, before: int) -> None:
        """Queue a trim. Raises LedgerUnavailable if the last one was refused."""
        with self._changed:
            self._queue.append(before)
            self._changed.notify_all()
            if (refused := self._trim_trouble) is not None:
                raise LedgerUnavailable(refused.wanted, refused.found, refused.remedy)

    def settle(self, timeout: float) -> None:
        """Wait until everything queued has been sent, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queue or self._sending), timeout)

    def acknowledged(self) -> list[int]:
        with self._changed:
            offsets, self._offsets = self._offsets, []
            return offsets

    def close(self) -> None:
        """Append what is queued, such as a Leave, if that is quickly done."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(CLOSE_MAX)

    def _run(self) -> None:
        link: Link | None = None
        try:
            while batch := self._next():
                try:
                    if link is None:
                        link = self._asked.connect("an append")
                        self._reader.require_same(link)
                    if not self._send(link, batch):
                        continue
                except (LedgerRewound, LedgerUnusable) as fault:
                    self._reader.fail(fault)
                except LedgerError as trouble:
                    with self._changed:
                        self._trouble = trouble
                        self._queue.clear()
                if link is not None:
                    link.close()
                link = None
        except BaseException as error:
            self._reader.fail(self._asked.defect(error))
            raise
        finally:
            if link is not None:
                link.close()

    def _next(self) -> list[bytes | int]:
        """The records and trims to send now; nothing if the thread should end."""
        with self._changed:
            self._sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._closing)
            if self._reader.fault is not None:
                return []
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            self._sending = bool(batch)
            return batch

    def _send(self, link: Link, batch: Sequence[bytes | int]) -> bool:
        """Append `batch`. Returns whether another connection is needed afterwards."""
        last = self._reader.highest  # Before anything is sent: the reader may read our records before the answer comes.
        sent = self._asked.send(link, batch, last)
        for offset in sent.offsets:
            if offset <= last:
                raise self._asked.rewound(f"offset {offset} was given again")
            last = offset
        with self._changed:
            self._offsets.extend(sent.offsets)
            self._trouble = sent.trouble
            if sent.trim_trouble is not None or sent.has_trimmed:
                self._trim_trouble = sent.trim_trouble
            if sent.to_trim is not None and not self._closing:
                self._queue.append(sent.to_trim)  # Behind the appends that wait.
        if sent.offsets:
            self._reader.saw(sent.offsets[-1])
        return sent.moved_on
