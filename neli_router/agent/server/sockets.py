"""The sockets that an agent listens on: its user's own Unix socket, and a port of loopback.

    lock beside the socket --held by another--> refused, with its process number
       | ours                                        what is there: nothing --> bind
       '--> look at the path ------------------------ a socket that answers --> refused
                                                      a socket that is dead --> removed, bind
                                                      anything else --------> refused, never touched

A Unix socket is a file that outlives its process, so an agent that starts must tell a dead one from a living one. Two
agents that start at once must not both find it dead: the slower one would remove the socket of the faster one. The lock
decides that, and the kernel releases it when its process ends, in any way.

A program that can reach the socket may do all that the agent can. So the socket gives no rights to other users, and it
lies in a folder in which no other user can replace it.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neli_router.errors import ConfigError, NeliError
from neli_router.settings.addresses import is_local_name, socket_problem

__all__ = ["BACKLOG", "listen_tcp", "listen_unix"]

BACKLOG = 2048
"""Connections that wait to be accepted: many clients may come back at once. The kernel may allow fewer."""

ANSWER_MAX = 1.0
"""How long a socket may take to take a connection. The kernel does that for its process, which may be busy."""

LOCK_TRIES = 100
"""How often a lock file may vanish between opening and locking it, because its holder removed it."""


@contextmanager
def listen_unix(path: str) -> Iterator[socket.socket]:
    """A socket that listens at `path`, for this user alone; removed at the end, if it is still this one."""
    place = Path(path)
    if problem := socket_problem(path):
        raise ConfigError([f"the agent's socket {path!r:.200} {problem}"])
    _make_folder(place.parent)
    with _locked(place), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _clear(place)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        except OSError as error:
            raise _cannot(f"listen on {path}", error) from None
        finally:
            os.umask(before)
        mine = os.lstat(path)
        try:
            listener.listen(BACKLOG)
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                if _same(os.lstat(path), mine):
                    place.unlink()


@contextmanager
def listen_tcp(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens at `host` and `port`; port 0 takes a free one."""
    where = f"{host} port {port}"
    if is_local_name(host):
        host = "127.0.0.1"  # A host's files may give the name to an address that is not for this host alone.
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise _cannot(f"listen on {where}", error) from None
    with socket.socket(kind, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)  # At once: two may bind the same port as long as neither listens.
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NeliError(
                    f"the agent was to listen on {where}",
                    "another process holds that port",
                    f"stop it (`ss -ltnp 'sport = :{port}'` names it), or choose another port",
                ) from None
            raise _cannot(f"listen on {where}", error) from None
        yield listener


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise _cannot(f"make the folder {folder}", error) from None
    wanted = f"the agent was to put its socket into {folder}"
    if found.st_uid not in {os.geteuid(), 0}:
        raise NeliError(wanted, "it belongs to another user", "choose a folder of your own")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        raise NeliError(
            wanted, "other users may replace what is in it", f"`chmod 700 {folder}`, or choose a folder of your own"
        )


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the right to make and to remove the socket at `place`."""
    path = f"{place}.lock"
    handle = _lock(path, place)
    try:
        yield
    finally:
        # An agent that opened it meanwhile gets the lock, finds that its file is gone, and begins anew.
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        os.close(handle)


def _lock(path: str, place: Path) -> int:
    for _ in range(LOCK_TRIES):
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _cannot(f"make the lock file {path}", error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            written = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
            os.close(handle)
            raise _held(place, f"process {written}" if written.isdecimal() else "another agent") from None
        with contextlib.suppress(FileNotFoundError):
            if _same(os.fstat(handle), os.lstat(path)):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                return handle
        os.close(handle)
    raise NeliError(f"the agent was to hold {path}", "it vanished again and again", "see who removes it")


def _clear(place: Path) -> None:
    """Remove a dead socket. Raises if something else is there."""
    try:
        found = os.lstat(place)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise NeliError(
            f"the agent was to listen on {place}",
            "something is there that is no socket",
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
        raise _held(place, _peer(asker))


def _peer(asker: socket.socket) -> str:
    if sys.platform != "linux":
        return "another process"
    process, _, _ = struct.unpack("3i", asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return f"process {process}"


def _held(place: Path, holder: str) -> NeliError:
    return NeliError(
        f"the agent was to listen on {place}",
        f"{holder} listens there already",
        "use that agent, stop it, or choose another socket for this one",
    )


def _cannot(what: str, error: OSError) -> NeliError:
    return NeliError(f"the agent was to {what}", f"the system refused: {error.strerror}", "see to that, and try again")


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
