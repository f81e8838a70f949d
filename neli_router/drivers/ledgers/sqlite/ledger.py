"""The embedded ledger: one SQLite file that all members on one host append to and read. Nothing else has to run.

    append --BEGIN IMMEDIATE--> records(offset, payload, checksum) --COMMIT, flushed if lasting--> ring the doorbell
    read   --"is the last offset at or above my position?"--> no: wait for the doorbell --> yes: up to READ_MAX entries

**Offsets.** AUTOINCREMENT counts 1, 2, 3 and never gives a number twice, not even when trimming empties the table; a
failed transaction gives back its numbers. So there are no holes. If the first entry is above the position, records were
trimmed. If an entry is missing between two others, records were deleted, which is an error and never skipped.

**Reading.** The last offset ever given is one row of `sqlite_sequence`, and a look costs only this one query. Above the
position: there is something to read, or it was trimmed. Lower than ever before: the ledger was rewound. No transaction
stays open between two calls, because it would keep the write-ahead log from being restarted.

**Durability.** A lasting append is flushed to the disk before any reader can see it, and the flush includes everything
before it, because it is one log. Heartbeats are not flushed. If a process dies, none of its heartbeats is lost; a power
failure takes at most the heartbeats after the last lasting record. Their offsets are given again, which does no harm:
no reader survives a power failure of the only host, so no reader is left that has read them. And every term is the
offset of a lasting record, so all terms given out are below the offsets that come back.

**Promises.** DURABLE: an acknowledged record survives kill -9 of all processes at any moment. NEVER_REWINDS, in the
sense just described, as long as the disk keeps what it said it flushed and no old copy replaces the file; the driver
checks for an old copy and raises LedgerRewound. Not MULTI_HOST: the log is shared through memory. If a process is
stopped (SIGSTOP) inside its few microseconds of a transaction, it holds up all appends until it is continued or killed:
this is an outage, and harmless like any other. Make a backup with `.backup` of the sqlite3 shell. A process that has a
ledger open must not copy or read the file itself: closing a file drops all locks that the process has on it, including
SQLite's. Trimmed pages are used again, so the file keeps its largest size.
"""

import contextlib
import os
import sqlite3
import time
import zlib
from collections.abc import Sequence
from itertools import chain
from math import inf

from neli_router.drivers.ledgers.base import READ_BYTES_MAX, READ_MAX, Entry, Promise, trimmed
from neli_router.drivers.ledgers.sqlite.doorbell import Doorbell
from neli_router.drivers.ledgers.sqlite.file import SqliteFile, beside, damaged
from neli_router.errors import LedgerUnavailable

__all__ = ["SqliteLedger", "busy_within"]

FIRST = 1  # The first number that AUTOINCREMENT gives.

CHECKPOINT_EVERY = 256
"""The member that appends the record at a multiple of this makes a checkpoint. Going by offset keeps the frequency
independent of the number of members. A small record writes two pages, so the write-ahead log reaches some 2 MiB.
Raising it makes the log larger; lowering it holds up all appends more often, for two flushes each time."""

CHECKPOINT_BYTES = 2**20  # An append this large fills the log on its own, and makes a checkpoint wherever it ends.

TRIM_MAX = 1000
"""The most records deleted in one transaction. Raising it holds up others' appends for longer (a millisecond for a
thousand heartbeats); lowering it trims slower than a busy group writes."""

BUSY_MIN, BUSY_MAX = 0.25, 2.0
"""Bounds of `busy_max`. An append that gives up is lost, and a slow disk can hold the lock for longer than BUSY_MIN.
Raising them keeps a caller, and its heartbeats, waiting; lowering them makes a slow disk look like an outage."""


def busy_within(lease: float) -> float:
    """How long an operation of a member with this lease may wait for other processes' locks."""
    return max(BUSY_MIN, min(lease / 8, BUSY_MAX))


class SqliteLedger:
    """One handle of the ledger in the file `path`. Used by one thread at a time, except for `wake`.

    `create=False` refuses to create the file. `busy_max` is how long an operation may wait for other processes' locks
    before it raises LedgerUnavailable.
    """

    promises = frozenset({Promise.DURABLE, Promise.NEVER_REWINDS})
    doubts = ()

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True, busy_max: float = BUSY_MIN) -> None:
        self._file = SqliteFile(path, create=create, busy_max=busy_max)
        self.path = self._file.path
        self.address = f"sqlite:{self.path}"
        self.members_path = beside(self.path)[-1]
        """The file next to this one in which members have their locks. It is theirs: the ledger never opens it."""
        self._highest = 0  # The highest offset known to have existed.
        self._trim_before = FIRST
        self._acknowledged: list[int] = []
        self._all_at = -inf  # When the last look found nothing beyond what was read.
        try:
            self._position = self.start()
            self.doorbell = Doorbell(str(self.path))
            """Ends a waiting `read`. A witness of the same member lets it watch a descriptor, too."""
        except BaseException:
            self._file.close()
            raise

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        if not payloads:
            return

        def insert(connection: sqlite3.Connection) -> range:
            self._last_offset(connection)  # Checked before anything is written to a ledger that was rewound.
            last = 0
            for payload in payloads:
                row = connection.execute(
                    "INSERT INTO records (payload, checksum) VALUES (?, ?)", (payload, zlib.crc32(payload))
                )
                last = row.lastrowid or 0
            return range(last - len(payloads) + 1, last + 1)

        offsets = self._file.write("an append", insert, lasting=lasting)
        self.doorbell.ring()
        self._highest = offsets[-1]
        self._acknowledged.extend(offsets)
        crossed = offsets[-1] // CHECKPOINT_EVERY > (offsets[0] - 1) // CHECKPOINT_EVERY
        if crossed or sum(map(len, payloads)) >= CHECKPOINT_BYTES:
            self._file.checkpoint()
        self._trim_some()

    def acknowledged(self) -> list[int]:
        offsets, self._acknowledged = self._acknowledged, []
        return offsets

    def read(self, timeout: float) -> list[Entry]:
        give_up_at = time.monotonic() + timeout
        woken = False
        while True:
            asked_at = time.monotonic()
            entries = self._file.run("a read", self._entries)
            self._all_at = asked_at if self._position > self._highest else -inf
            patience = give_up_at - time.monotonic()
            if entries or woken or patience <= 0:
                return entries
            woken = self.doorbell.wait(patience)

    def age(self) -> float:
        return time.monotonic() - self._all_at

    def seek(self, offset: int) -> None:
        self._position = max(FIRST, offset)  # Nothing was ever below the first offset, so nothing is missed there.

    def start(self) -> int:
        def first(connection: sqlite3.Connection) -> int:
            tip = self._last_offset(connection) + 1
            (offset,) = connection.execute("SELECT min(offset) FROM records").fetchone()
            return tip if offset is None else int(offset)

        return self._file.run("the start", first)

    def tip(self) -> int:
        return self._file.run("the tip", self._last_offset) + 1

    def trim(self, before: int) -> None:
        """Drop entries below `before`, at most TRIM_MAX of them now and as many with each later append."""
        # Not above the known offsets: records that are yet to come must not be dropped.
        self._trim_before = max(self._trim_before, min(before, self._highest + 1))
        self._trim_some()

    def wake(self) -> None:
        self.doorbell.wake()

    def close(self) -> None:
        self._file.close()
        self.doorbell.close()

    def _last_offset(self, connection: sqlite3.Connection) -> int:
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'records'").fetchone()
        last = 0 if row is None else row[0]
        if not isinstance(last, int):  # A damaged file may hold anything.
            raise damaged(self.path, "the number of its last record is not a number")
        if last < self._highest:
            raise self._file.condemn(
                f"the last record in {self.path} is at offset {last}, and there was one at {self._highest}"
            )
        self._highest = last
        return last

    def _entries(self, connection: sqlite3.Connection) -> list[Entry]:
        last = self._last_offset(connection)
        if last < self._position:
            return []
        # A second statement may see more than the first, never less: a record that it misses below `last` was trimmed.
        asked = "SELECT offset, payload, checksum FROM records WHERE offset >= ? ORDER BY offset LIMIT ?"
        # Closed, because a statement that is not read to its end would keep the log from being copied into the file.
        with contextlib.closing(connection.execute(asked, (self._position, READ_MAX))) as rows:
            row = rows.fetchone()
            first = last + 1 if row is None else row[0]
            if first > self._position:
                raise trimmed(f"the ledger {self.path}", first, self._position)
            entries, size = [], 0
            for expected, (offset, payload, checksum) in enumerate(chain([row], rows), start=first):
                if offset != expected:
                    raise self._file.condemn(f"the record at offset {expected} is missing among its neighbours")
                if not isinstance(payload, bytes) or zlib.crc32(payload) != checksum:
                    raise damaged(self.path, f"the record at offset {offset} does not match its checksum")
                entries.append(Entry(offset, payload))
                size += len(payload)
                if size >= READ_BYTES_MAX:
                    break
        self._position = entries[-1].offset + 1
        return entries

    def _trim_some(self) -> None:
        if self._trim_before == FIRST:
            return

        def delete(connection: sqlite3.Connection) -> int:
            return connection.execute(
                "DELETE FROM records WHERE offset < min(?, (SELECT min(offset) FROM records) + ?)",
                (self._trim_before, TRIM_MAX),
            ).rowcount

        # Trimming later is fine, so a failure must not fail the append that came before it. No flush is needed: nothing
        # is lost if a power failure brings trimmed records back.
        with contextlib.suppress(LedgerUnavailable):
            if self._file.write("a trim", delete, lasting=False) < TRIM_MAX:
                self._trim_before = FIRST
