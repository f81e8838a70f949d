"""Notify other processes on this host that a file has something new, so that they need not ask all the time.

     writer: commit, then touch the file ---- the kernel (inotify, IN_ATTRIB) ----> every waiting reader
     wake(), from any thread ------------------------- a pipe --------------------> this handle's reader only
     watch(descriptor, call) ----------------- it is readable ------------------> this handle's reader, after the call
     none of these ------------- PATIENCE_MS passes, or without inotify BLIND_MS -> look anyway

A reader that polls must choose between waking up late and never sleeping. A touch is one system call of the writer,
after the commit. The write itself would ring too early: SQLite makes a commit visible through shared memory, long after
the bytes went to the file.

The bell affects only speed, never whether a record is seen. It may stay silent: the writer was killed between commit
and touch, or the host allows no more inotify instances, or this is macOS. So no wait is longer than PATIENCE_MS, and
where no bell exists at all, no wait is longer than BLIND_MS.
"""

import contextlib
import ctypes
import math
import os
import select
import threading
from collections.abc import Callable

__all__ = ["BLIND_MS", "PATIENCE_MS", "Doorbell"]

PATIENCE_MS = 50
"""The longest that a record can stay unseen because its writer died before it rang. Raising it saves an idle reader
some of the half percent of a core that it takes now; lowering it costs more."""

BLIND_MS = 8
"""The same without inotify, for every record. Lowering it costs an idle reader more than the three percent of a core
that it takes now; raising it delays every takeover by as much."""

_IN_ATTRIB = 0x00000004  # linux/inotify.h: metadata changed. A touch does that, a write to the file does not.
_EVENTS_SIZE = 4096  # More than the kernel ever holds for us: it merges an event with an equal one before it.


class Doorbell:
    """One handle's bell at the file `path`, which must exist. Used by one thread at a time, except for `wake`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._closing = threading.RLock()  # Reentrant, so a signal handler may call `wake` during `close`.
        self._closed = False
        self._listening, self._waking = os.pipe()
        os.set_blocking(self._listening, False)
        os.set_blocking(self._waking, False)  # A full pipe wakes as well as one more byte would.
        self._watch = _watch(path)
        self._patience_ms = BLIND_MS if self._watch is None else PATIENCE_MS
        self._watched: dict[int, Callable[[], None]] = {}
        self._poll = select.poll()
        for descriptor in (self._listening, self._watch):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def ring(self) -> None:
        """Make all readers that wait at this file look now. Call it when the commit is visible."""
        # A file that is gone or no longer ours cannot be touched; the next use of it notices and says so.
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def wake(self) -> None:
        """End this handle's wait, or the next one if none is running. Callable from threads and signal handlers."""
        # Held under the lock, because the number of a closed descriptor may already stand for another file.
        with self._closing, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._waking, b"!")

    def wait(self, timeout: float) -> bool:
        """Wait for a ring, for `wake`, for a watched descriptor, or until a look is due anyway.

        Returns True if the cause was `wake` or a watched descriptor.
        """
        # Rounded up, because a remainder of 0.3 ms rounded down would spin.
        patience_ms = math.ceil(min(self._patience_ms, max(0.0, timeout * 1000)))
        rung = [descriptor for descriptor, _ in self._poll.poll(patience_ms)]
        for descriptor in rung:
            if descriptor not in self._watched:
                os.read(descriptor, _EVENTS_SIZE)
        called = [self._watched[descriptor] for descriptor in rung if descriptor in self._watched]
        for call in called:
            call()
        return self._listening in rung or bool(called)

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """End each wait when `descriptor` is readable, after a `call` on the waiting thread, which must make sure that
        it does not stay readable. Like `wait` and `unwatch`, this is for the thread that reads."""
        self._watched[descriptor] = call
        self._poll.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Call this before the descriptor is closed: its number may soon stand for another file."""
        del self._watched[descriptor]
        self._poll.unregister(descriptor)

    def close(self) -> None:
        """Release the descriptors. May be called twice."""
        with self._closing:
            if not self._closed:
                self._closed = True
                for descriptor in (self._listening, self._waking, self._watch):
                    if descriptor is not None:
                        os.close(descriptor)


def _watch(path: str) -> int | None:
    """A descriptor that becomes readable when the file is touched; None if the kernel does not offer that."""
    # Watched by path: opening the file here and closing it would drop every lock that SQLite holds on it in this
    # process, because POSIX locks belong to the process and not to the descriptor.
    try:
        kernel = ctypes.CDLL(None, use_errno=True)
        watch: int = kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except AttributeError:  # Not Linux.
        return None
    if watch < 0:
        return None
    if kernel.inotify_add_watch(watch, os.fsencode(path), _IN_ATTRIB) < 0:
        os.close(watch)
        return None
    return watch
