"""The process: what this host's kernel reports about one process, and about its end.

    by process ID, by a socket's peer, own --> pidfd --readable--> the last of its threads has ended, for certain

A process ID may be given to another process as soon as its own process is gone. A pidfd stays with the process for
which it was opened. If it is opened too late, it refers to a stranger, and the intended process has ended before: then
its end is noticed late, but never too early.

A pidfd is readable only when no thread is left: not while the process is stopped or traced, while a killed thread is
still in an uninterruptible call, when only the first thread has ended, or after an `exec`. A process that its parent
has not waited for yet (a zombie) has ended: it no longer runs.

A process ID and the moment at which its process began (`ProcessMark`) identify one process for as long as the host
runs, even in memory that outlives the process that wrote it. If both match another process by chance, that process's
end is waited for: late again.

Only Linux supports this (5.3, and 6.5 for peers in other PID namespaces). Elsewhere it raises `Unsupported`.
"""

import errno
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from neli_router.errors import Unsupported

__all__ = ["HostProcess", "ProcessMark", "ProcessStat", "hurry", "peer_number"]

_SO_PEERPIDFD = 77  # asm-generic/socket.h, which never changes. Python 3.11 has no name for it.
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid.

_IS_A_THREAD = errno.EINVAL, errno.ENOENT
"""The answers of older and newer kernels if the number is that of a thread, and no longer of a process."""


class ProcessStat(NamedTuple):
    """One process, as the kernel shows it."""

    state: bytes
    """One letter: `Z` or `X` once it has ended."""
    parent: int
    began: int
    """In ticks since the host started."""

    @classmethod
    def of(cls, number: int) -> "ProcessStat":
        """The process that has this ID now. Raises ProcessLookupError."""
        try:
            # The name, which comes before these fields, may contain anything.
            fields = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()
            return cls(fields[0], int(fields[1]), int(fields[19]))
        except (OSError, IndexError) as error:
            raise ProcessLookupError(f"nothing is known of process {number}") from error


class ProcessMark(NamedTuple):
    """Distinguishes one process from all others on this host, until the host restarts."""

    number: int
    began: int
    """In ticks since the host started."""

    @classmethod
    def of(cls, number: int, *, parent: int | None = None) -> "ProcessMark":
        """The mark of the process that has this ID now. If `parent` is given, it must be its parent. Raises
        ProcessLookupError."""
        stat = ProcessStat.of(number)
        if parent not in (None, stat.parent):
            raise ProcessLookupError(f"process {number} is not a child of {parent}")
        return cls(number, stat.began)


class HostProcess:
    """One process. Raises ProcessLookupError where there is none, and Unsupported where the kernel cannot report it."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    @classmethod
    def of(cls, number: int) -> "HostProcess":
        """The process that has this ID now."""
        open_pidfd: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
        if sys.platform != "linux" or open_pidfd is None:
            raise Unsupported("a kernel that reports the end of any process was wanted", sys.platform, "use Linux")
        try:
            return cls(open_pidfd(number))
        except ProcessLookupError:
            raise
        except OSError as error:
            if error.errno in _IS_A_THREAD:
                raise ProcessLookupError(f"{number} is the number of a thread by now") from None
            raise Unsupported(
                "a descriptor of a process (pidfd_open) was wanted",
                str(error),
                "use Linux 5.3 or newer, in a container that allows it; until then leases end by time alone",
            ) from None

    @classmethod
    def marked(cls, mark: ProcessMark) -> "HostProcess":
        """The very process of `mark`. Raises ProcessLookupError if it no longer exists."""
        found = cls.of(mark.number)
        try:
            if ProcessMark.of(mark.number) != mark:
                raise ProcessLookupError(f"number {mark.number} is another process's by now")
        except ProcessLookupError:
            found.close()
            raise
        return found

    @classmethod
    def peer_of(cls, connection: socket.socket) -> "HostProcess":
        """The process that connected this Unix socket, even if it lives in another PID namespace."""
        try:
            return cls(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except ProcessLookupError:
            raise
        except OSError:  # The kernel is older than 6.5, or the peer has ended; then it has no process ID, either.
            pass
        return cls.of(peer_number(connection))

    def fileno(self) -> int:
        """Readable once the process has ended: for a loop, or to pass to a child."""
        return self._pidfd

    def has_ended(self, timeout: float = 0.0) -> bool:
        """Whether all its threads have ended. Waits for that, at most `timeout` seconds."""
        poll = select.poll()  # Not select(), which refuses descriptors above 1023.
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def kill(self) -> None:
        """Kill it. Use `has_ended` to see when it has ended."""
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send it a signal. Raises ProcessLookupError if it has ended, and PermissionError."""
        signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Let go of it; the process itself continues. Safe to call twice."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def hurry() -> "tuple[int, os.sched_param] | None":
    """Let this process run before all ordinary ones. Returns the previous scheduling; None where this is not allowed,
    which is usual for users other than root."""
    if sys.platform == "linux":
        with suppress(OSError):
            ordinary = os.sched_getscheduler(0), os.sched_getparam(0)
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            return ordinary
    return None


def peer_number(connection: socket.socket) -> int:
    """The ID of the process that connected this Unix socket. Raises OSError: ProcessLookupError if it has none here."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    number, _, _ = _CREDENTIALS.unpack(found)
    if not number:
        raise ProcessLookupError("the peer has no number in this PID namespace")
    return int(number)
