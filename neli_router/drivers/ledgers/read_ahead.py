"""The read-ahead queue: one thread reads a ledger over the network, and the pump's thread takes what is there.

    server --> the reading thread --_extend--> [ queue, at most AHEAD_MAX ] --read--> the pump
                        |                         ^ seek empties it: the next turn
                        '--fail, _trimmed-----------------------> raised by `read`

    sought --entries taken, or an answer that the ledger has none left--> settled --seek--> sought

The pump must fence a member in time, so it never waits for a server: it takes entries, or waits for some until its
timeout or until `wake`. Only the first read after a seek waits longer, for at most FIRST_MAX: before the first answer,
an empty read would say "at the tip" without knowing it.

An error in the reading thread has no caller, so the thread leaves it here, and each call of the pump raises a fresh
copy: an exception that is raised twice would collect both tracebacks.

Our knowledge is as old as the question. `_known_at` is the time of a question to which a server had no more than was
read; it is -inf while more is known to exist.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar

from neli_router.core.closing import anew
from neli_router.drivers.ledgers.base import READ_BYTES_MAX, READ_MAX, Entry, require_not_closed, require_own_process
from neli_router.errors import LedgerError, LedgerRewound, LedgerTrimmed, LedgerUnusable

__all__ = ["AHEAD_BYTES_MAX", "ReadAhead", "ReadAheadLedger"]

AHEAD_MAX = 20 * READ_MAX
"""The most entries read ahead. A program that is slow to fold leaves the rest on the server."""

AHEAD_BYTES_MAX = 4 * READ_BYTES_MAX
"""The most bytes read ahead, give or take one answer: long records fill memory sooner than many records do."""

FIRST_MAX = 5.0
"""Seconds to wait for the first answer after a seek."""

LOOK_EVERY = 1.0
"""How often, in seconds, a waiting read checks that the reading thread still gets answers."""

Fault = TypeVar("Fault", bound=LedgerError)


class ReadAhead:
    """The entries that one thread has read and another has not taken yet. Each call may come from any thread.

    A driver's reader derives from it, and runs the thread. `_changed` guards all attributes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # Reentrant, so a signal handler may call `wake` at any moment.
        self._queue: deque[Entry] = deque()
        self._bytes = 0
        self._turn = 0
        """The number of the seek that the queue belongs to: answers to earlier questions are dropped."""
        self._held_back = False
        """Whether the queue must wait until the thread has made sure of something."""
        self._settled = self._woken = self._closing = False
        self._known_at = -inf
        self._sought_at = time.monotonic()
        self._trimmed: LedgerTrimmed | None = None
        """Why there is nothing at this position. A seek clears it."""
        self.fault: LedgerRewound | LedgerUnusable | None = None
        """Why this ledger cannot be used any longer."""

    def read(self, timeout: float) -> list[Entry]:
        """See the port. Also returns an empty list when woken; `age` says which."""
        give_up_at = time.monotonic() + timeout
        with self._changed:
            while True:
                self.require_sound()
                if self._queue and not self._held_back:
                    self._settled = True
                    entries = self._pop()
                    self._changed.notify_all()
                    return entries
                if self._trimmed is not None:
                    raise anew(self._trimmed)
                now = time.monotonic()
                self._settled |= self._known_at > -inf
                patience = (give_up_at if self._settled else self._sought_at + FIRST_MAX) - now
                ends = self._woken or patience <= 0
                self._woken &= not ends
                self._require_life(now, ends=ends)
                if ends:
                    return []
                self._changed.wait(min(patience, LOOK_EVERY))

    def age(self) -> float:
        """Seconds since everything read so far was everything there was; infinity while more is known to exist."""
        with self._changed:
            return inf if self._queue else time.monotonic() - self._known_at

    def wake(self) -> None:
        """See the port."""
        with self._changed:
            self._woken = True  # It stays set for the next read, if none is waiting: a wake-up is never lost.
            self._changed.notify_all()

    def fail(self, fault: LedgerRewound | LedgerUnusable) -> None:
        """Mark this ledger as unusable. The first reason counts."""
        with self._changed:
            self.fault = self.fault or fault
            self._changed.notify_all()

    def require_sound(self) -> None:
        """Raise the reason given to `fail`, if there is one."""
        if self.fault is not None:
            raise anew(self.fault)

    @property
    def _has_room(self) -> bool:
        return len(self._queue) < AHEAD_MAX and self._bytes < AHEAD_BYTES_MAX

    def _pop(self) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        while self._queue and len(entries) < READ_MAX and size < READ_BYTES_MAX:
            entries.append(self._queue.popleft())
            size += len(entries[-1].payload)
        self._bytes -= size
        return entries

    def _begin_turn(self, now: float) -> None:
        """Forget what was read: the position is elsewhere now."""
        self._turn += 1
        self._queue.clear()
        self._bytes = 0
        self._settled, self._trimmed = False, None
        self._known_at, self._sought_at = -inf, now
        self._changed.notify_all()

    def _extend(self, entries: Sequence[Entry]) -> None:
        self._queue.extend(entries)
        self._bytes += sum(len(entry.payload) for entry in entries)
        self._changed.notify_all()

    def _require_life(self, now: float, *, ends: bool) -> None:
        """Raise LedgerUnavailable if the ledger cannot be read now. `ends`: an empty read is about to return."""
        raise NotImplementedError

    def close(self) -> None:
        """Ask the reading thread to end. Each driver's reader also waits for that, but not for long."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()


class ReadAheadLedger:
    """The common part of ledgers over a network: each has a reader that reads ahead, and a writer that sends later."""

    _reader: ReadAhead
    _writer: Any

    def __init__(self, address: str) -> None:
        self.address, self._process, self._closed = address, os.getpid(), False

    def acknowledged(self) -> list[int]:
        return [] if self._closed else list(self._writer.acknowledged())

    def read(self, timeout: float) -> list[Entry]:
        self._require_open()
        return self._reader.read(timeout)

    def age(self) -> float:
        return self._reader.age()

    def wake(self) -> None:
        if os.getpid() == self._process:  # In a child, a thread that no longer exists may hold the lock.
            self._reader.wake()

    def close(self) -> None:
        if not self._closed and os.getpid() == self._process:
            self._closed = True
            self._writer.close()
            self._reader.close()

    def _require_open(self) -> None:
        require_own_process(self.address, self._process)
        require_not_closed(self.address, closed=self._closed)
