"""The process: what this host's kernel says of one process, and of its end.

    of a number, of a socket's peer, of oneself --> pidfd --readable--> the last of its threads has ended, for certain

A number may be given to another process as soon as its own is gone. A pidfd stays with the process for which it was
opened. If that was too late, it is held for a stranger, and the one that was meant has ended before: then its end is
seen late, and never too early.

It is readable only when no thread is left: not while the process is stopped or traced, not while a thread of it sits in
an uninterruptible call after it was killed, not when only its first thread has ended, and not after an `exec`. One that
its parent has not waited for yet (a zombie) has ended: it runs no more. All this is the kernel's word, so nothing of it
is a guess from silence.

A number and the moment at which its process began (`ProcessMark`) name one process for as long as the host runs, also
in memory that outlives the one who wrote it. If both are another's by chance, its end is waited for: late again.

Only Linux has it (5.3, and 6.5 for peers in other PID namespaces). Elsewhere, `Unsupported`.
"""

import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from neli_router.errors import Unsupported

__all__ = ["HostProcess", "ProcessMark", "peer_number"]

_SO_PEERPIDFD = 77  # asm-generic/socket.h, which never changes. Python 3.11 has no name for it.
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid.


_PARENT, _BEGAN = 1, 19
"""Fields of /proc/NUMBER/stat, counted from behind the name, which may hold anything."""


class ProcessMark(NamedTuple):
    """What tells one process from all others of this host, until it starts anew."""

    number: int
    began: int
    """In ticks since the host's start."""

    @classmethod
    def of(cls, number: int, *, parent: int | None = None) -> "ProcessMark":
        """Of the process that has this number now, if `parent` is its parent, where that is given. Raises
        ProcessLookupError."""
        try:
            fields = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError as error:
            raise ProcessLookupError(f"nothing is known of process {number}") from error
        if parent is not None and int(fields[_PARENT]) != parent:
            raise ProcessLookupError(f"process {number} is no child of {parent}")
        return cls(number, int(fields[_BEGAN]))


class HostProcess:
    """One process. Raises ProcessLookupError where none is, and Unsupported where a kernel does not tell."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    @classmethod
    def of(cls, number: int) -> "HostProcess":
        """The process that has this number now."""
        return cls(_opened(number))

    @classmethod
    def marked(cls, mark: ProcessMark) -> "HostProcess":
        """The very process of `mark`. Raises ProcessLookupError if it is no more."""
        found = cls.of(mark.number)
        try:
            if ProcessMark.of(mark.number) != mark:
                raise ProcessLookupError(f"number {mark.number} is another process's by now")
        except ProcessLookupError:
            found.close()
            raise
        return found

    @classmethod
    def own(cls) -> "HostProcess":
        return cls.of(os.getpid())

    @classmethod
    def peer_of(cls, connection: socket.socket) -> "HostProcess":
        """The process that connected this Unix socket, also when it lives in another PID namespace."""
        try:
            return cls(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except ProcessLookupError:
            raise
        except OSError:  # A kernel before 6.5; or of a peer that has ended, and then it has no number, either.
            pass
        return cls.of(peer_number(connection))

    def fileno(self) -> int:
        """Readable from its end on: for a loop, or to hand to a child."""
        return self._pidfd

    def has_ended(self, timeout: float = 0.0) -> bool:
        """Whether all its threads have ended; wait for that, at most `timeout` seconds."""
        poll = select.poll()  # Not select(), which refuses descriptors above 1023.
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def kill(self) -> None:
        """End it. That it has ended, `has_ended` says."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it; it goes on. Twice is fine."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def peer_number(connection: socket.socket) -> int:
    """Of the process that connected this Unix socket. Raises OSError: ProcessLookupError if it has none here."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    number, _, _ = _CREDENTIALS.unpack(found)
    if number <= 0:
        raise ProcessLookupError("the peer has no number in this PID namespace")
    return int(number)


def _opened(number: int) -> int:
    open_pidfd: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    if sys.platform != "linux" or open_pidfd is None:
        raise Unsupported("a kernel that tells of the end of any process was wanted", sys.platform, "use Linux")
    try:
        return open_pidfd(number)
    except OSError as error:
        if isinstance(error, ProcessLookupError):
            raise
        raise Unsupported(
            "a descriptor of a process (pidfd_open) was wanted",
            str(error),
            "use Linux 5.3 or newer, in a container that allows it; until then leases end by time alone",
        ) from None
