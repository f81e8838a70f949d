"""The sockets that an agent listens on: its user's own Unix socket, and a port of loopback.

    lock next to the socket --held by another--> refused, with its process ID
       | ours                                        the path holds: nothing --> bind
       '--> look at the path ------------------------ a socket that answers --> refused
               ^                                      a socket that is dead --> removed, bind
               |                                      anything else --------> refused, never touched
               '-- removed while the agent lives

A Unix socket is a file that outlives its process, so an agent that starts must distinguish a dead one from a living
one. Two agents that start at the same time must not both find it dead: the slower one would remove the socket of the
faster one. The lock decides that, and the kernel releases it when its process ends, however it ends.

In a folder that all users share, such as /tmp, any of them may create a file with the lock's name. It proves nothing,
so it is ignored. Then two agents of one user that start at the same moment may both bind; the first finds within a
second that its socket is gone, and ends.

If the socket is removed (by a cleaner of /tmp, or by hand), the agent still leads, but no program can ask it. So the
agent checks its socket, and creates it again. A program that can reach the socket may do everything that the agent can.
So it gives no rights to other users, and it is in a folder in which no other user can replace it.
"""

import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neli_router.config.agent_address import is_local_name, socket_problem
from neli_router.core.private import intrusion
from neli_router.errors import ConfigError, NeliError
from neli_router.hosts.process import peer_number

__all__ = ["BACKLOG", "OwnSocket", "listen_tcp", "listen_unix"]

BACKLOG = 2048
"""Connections that wait to be accepted: many clients may reconnect at the same time. The kernel may allow fewer."""

ANSWER_MAX = 1.0
"""How long a socket may take to accept a connection. The kernel does that for the process, which may be busy."""

BUFFER = 32768
"""Bytes that the kernel buffers in each direction for a client of the port, before it doubles that. By default it would
buffer megabytes, and count them as memory of our container."""

LOCK_TRIES = 100
"""How often a lock file may vanish between opening and locking it, because its holder removed it."""


class OwnSocket:
    """The socket at `path`, for this user alone. Creates its folder, too. For use by one thread at a time."""

    def __init__(self, path: str) -> None:
        if problem := socket_problem(path):
            raise ConfigError([f"the agent's socket {path!r:.200} {problem}"])
        self._place = Path(path)
        self._lock: int | None = None
        self._made: os.stat_result | None = None
        self._listeners: list[socket.socket] = []

    @property
    def listener(self) -> socket.socket:
        """The socket that listens."""
        return self._listeners[-1]

    def open(self) -> socket.socket:
        """Take the path. Raises NeliError if it belongs to another."""
        _make_folder(self._place)
        if self._lock is None:
            self._lock = _lock(self._place)
        _clear(self._place)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listeners.append(listener)
        before = os.umask(0o177)
        try:
            listener.bind(str(self._place))
        except OSError as error:
            raise _cannot(f"listen on {self._place}", error) from None
        finally:
            os.umask(before)
        self._made = os.lstat(self._place)
        listener.listen(BACKLOG)
        return listener

    def restored(self) -> socket.socket | None:
        """None if the socket is still there; a new one, which listens, if it was removed.

        Raises NeliError if it cannot be created again, or if something else is there now.
        """
        if self._made is not None and _is_there(self._place, self._made):
            return None
        if _listener(self._place) == os.getpid():  # Some file systems change a file's inode number after a while.
            self._made = os.lstat(self._place)
            return None
        if self._lock is not None and not _is_there(_lock_of(self._place), os.fstat(self._lock)):
            self._unlock()  # A lock whose file was removed, too, keeps no other agent away.
        return self.open()

    def close(self) -> None:
        """Remove the socket, if it is still this one."""
        if self._made is not None and _is_there(self._place, self._made):
            self._place.unlink(missing_ok=True)
        self._unlock()
        for listener in self._listeners:
            listener.close()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is None:
            return
        # An agent that has opened the file meanwhile gets the lock, finds that the file is gone, and starts over.
        if _is_there(_lock_of(self._place), os.fstat(lock)):
            _lock_of(self._place).unlink(missing_ok=True)
        os.close(lock)


@contextmanager
def listen_unix(path: str) -> Iterator[OwnSocket]:
    """A socket that listens at `path`, for this user alone; removed at the end, if it is still this one."""
    own = OwnSocket(path)
    try:
        own.open()
        yield own
    finally:
        own.close()


@contextmanager
def listen_tcp(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens at `host` and `port`; port 0 takes a free one."""
    where = f"{host} port {port}"
    if is_local_name(host):
        host = "127.0.0.1"  # The host's files may map the name to an address that is not limited to this host.
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise _cannot(f"listen on {where}", error) from None
    with socket.socket(kind, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for direction in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listener.setsockopt(socket.SOL_SOCKET, direction, BUFFER)  # Accepted connections inherit it.
        try:
            listener.bind(address)
            listener.listen(BACKLOG)  # Right away: two may bind the same port as long as neither listens.
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NeliError(
                    f"the agent was to listen on {where}",
                    "another process holds that port",
                    f"stop it (`ss -ltnp 'sport = :{port}'` names it), or choose another port",
                ) from None
            raise _cannot(f"listen on {where}", error) from None
        yield listener


def _make_folder(place: Path) -> None:
    folder = place.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not checked for the socket itself: that is examined more closely, and does not call for another folder.
        found = intrusion(folder / f"{place.name}.")
    except OSError as error:
        raise _cannot(f"make the folder {folder}", error) from None
    if found:
        wanted = f"the agent was to put its socket into {folder}"
        raise NeliError(wanted, found, f"`chmod 700 {folder}`, or choose a folder of your own")


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _lock(place: Path) -> int | None:
    """Hold the right to create and remove the socket at `place`. None if a stranger's file is in the way."""
    path = _lock_of(place)
    for _ in range(LOCK_TRIES):
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            with suppress(OSError):
                if not _is_lock(path.lstat()):
                    return None
            raise _cannot(f"make the lock file {path}", error) from None
        if not _is_lock(os.fstat(handle)):
            os.close(handle)
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            written = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
            os.close(handle)
            raise _held(place, f"process {written}" if written.isdecimal() else "another agent") from None
        if _is_there(path, os.fstat(handle)):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            return handle
        os.close(handle)
    raise NeliError(f"the agent was to hold {path}", "it vanished again and again", "see who removes it")


def _is_lock(found: os.stat_result) -> bool:
    """Whether an agent of this user created it. With a second name, it is a file of ours that someone linked there."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1


def _clear(place: Path) -> None:
    """Remove a dead socket. Raises if something else is there."""
    try:
        found = os.lstat(place)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise NeliError(
            f"the agent was to listen on {place}",
            "something is there that is not a socket",
            "look what it is and move it away, or choose another path",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.settimeout(ANSWER_MAX)
        try:
            asker.connect(str(place))
        except (ConnectionRefusedError, FileNotFoundError):
            place.unlink(missing_ok=True)
            return
        except TimeoutError:
            raise _held(place, "a process that does not answer") from None
        except OSError as error:
            raise _cannot(f"see who listens on {place}", error) from None
        process = _peer(asker)
        raise _held(place, f"process {process}" if process else "another process")


def _listener(place: Path) -> int:
    """The ID of the process that listens at `place`; 0 if none does, or if the system does not say."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.settimeout(ANSWER_MAX)
        try:
            asker.connect(str(place))
        except OSError:
            return 0
        return _peer(asker)


def _peer(asker: socket.socket) -> int:
    with suppress(OSError):
        if sys.platform == "linux":
            return peer_number(asker)
    return 0


def _held(place: Path, holder: str) -> NeliError:
    return NeliError(
        f"the agent was to listen on {place}",
        f"{holder} listens there already",
        "use that agent, stop it, or choose another socket for this one",
    )


def _cannot(what: str, error: OSError) -> NeliError:
    return NeliError(f"the agent was to {what}", f"the system refused: {error.strerror}", "see to that, and try again")


def _is_there(path: Path, found: os.stat_result) -> bool:
    """Whether the file at `path` is the very one that was `found`."""
    try:
        now = os.lstat(path)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)
