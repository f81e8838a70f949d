"""A ledger in memory, for tests, examples and groups that live in one process.

     handle a --append--> MemoryLog [ 1 | 2 | 3 | ... | tip ) --read--> handle a, at its own position
     handle b --append-->           ^ start                   --read--> handle b, at its own position

Every member holds a `MemoryLedger` of one `MemoryLog`. Nothing is ever lost, delayed or reordered.

The ledger is neither DURABLE nor MULTI_HOST: the log dies with its process. It does promise NEVER_REWINDS, because all
readers of a record die at the same moment: no reader is left to see the log start over. A fence or a table in Redis
outlives the process, but is ordered by terms, and a new log has a new genesis with a later `base`. A fork would also be
a second log that starts with the first one's records, so every call in the child is refused.
"""

import os
import threading
import time
from collections.abc import Sequence
from math import inf

from neli_router.drivers.ledgers.base import READ_MAX, Entry, Promise, require_not_closed, trimmed
from neli_router.errors import LedgerUnusable

__all__ = ["MemoryLedger", "MemoryLog"]

FIRST = 1  # As in SQLite, so that zero can mean "before everything".


class MemoryLog:
    """The records that all handles share. Safe to use from any number of threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()  # Reentrant, so a signal handler may call `wake` at any moment.
        self._payloads: list[bytes] = []
        self.start = FIRST
        self._process = os.getpid()

    def require_same_process(self) -> None:
        # Checked before any lock is taken: a thread that the fork left behind may hold it forever.
        if os.getpid() != self._process:
            raise LedgerUnusable(
                "a ledger in memory was wanted",
                f"process {self._process} made it, and this is process {os.getpid()}, forked from it",
                "make a new MemoryLog in this process, or use a ledger that processes can share, such as SqliteLedger",
            )

    @property
    def tip(self) -> int:
        return self.start + len(self._payloads)

    def append(self, payloads: Sequence[bytes]) -> range:
        with self.changed:
            first = self.tip
            self._payloads.extend(payloads)
            self.changed.notify_all()
            return range(first, self.tip)

    def entries(self, position: int) -> list[Entry]:
        with self.changed:
            index = position - self.start
            return [
                Entry(offset, payload)
                for offset, payload in enumerate(self._payloads[index : index + READ_MAX], start=position)
            ]

    def trim(self, before: int) -> None:
        with self.changed:
            dropped = min(max(0, before - self.start), len(self._payloads))
            del self._payloads[:dropped]
            self.start += dropped


class MemoryLedger:
    """One member's handle of a MemoryLog. Used by one thread at a time, except for `wake`."""

    promises = frozenset({Promise.NEVER_REWINDS})
    doubts = ()
    address = "memory"

    def __init__(self, log: MemoryLog) -> None:
        log.require_same_process()
        self._log = log
        self._position = log.start
        self._acknowledged: list[int] = []
        self._woken = False
        self._closed = False
        self._all = False

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._require_open()
        self._acknowledged.extend(self._log.append(payloads))

    def acknowledged(self) -> list[int]:
        offsets, self._acknowledged = self._acknowledged, []
        return offsets

    def read(self, timeout: float) -> list[Entry]:
        self._require_open()
        give_up_at = time.monotonic() + timeout
        with self._log.changed:
            while self._log.tip <= self._position and not self._woken:
                patience = min(give_up_at - time.monotonic(), threading.TIMEOUT_MAX)
                if patience <= 0:
                    break
                self._log.changed.wait(patience)
            self._woken = False
            if self._position < self._log.start:
                raise trimmed("the ledger in memory", self._log.start, self._position)
            entries = self._log.entries(self._position) if self._position < self._log.tip else []
            self._all = len(entries) < READ_MAX
        if entries:
            self._position = entries[-1].offset + 1
        return entries

    def age(self) -> float:
        return 0.0 if self._all else inf

    def seek(self, offset: int) -> None:
        self._position = max(FIRST, offset)  # Nothing was ever below the first offset, so nothing is missed there.

    def start(self) -> int:
        self._require_open()
        return self._log.start

    def tip(self) -> int:
        self._require_open()
        return self._log.tip

    def trim(self, before: int) -> None:
        self._require_open()
        self._log.trim(before)

    def wake(self) -> None:
        with self._log.changed:
            self._woken = True  # It stays set for the next read, if none is waiting: a wake-up is never lost.
            self._log.changed.notify_all()

    def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        self._log.require_same_process()
        require_not_closed("in memory", closed=self._closed)
