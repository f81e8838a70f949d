"""The memory on disk: the few bytes that a member must not forget, such as that it voted.

    keep --> FILE.new --flush--> rename to FILE --flush of the folder--> it returns        FILE is whole at any moment

    FILE    NELIVOTE | 1 | mark of group, place and protocol | length | memory | checksum
    LOCK    FILE.lock, locked for as long as a process uses FILE

A process may be killed between any two of these steps, and the power may fail. Then the file has the old memory or the
new one, and never a piece of both. When `keep` has returned, the file has the new memory.

A file that cannot be read is never overwritten. If the file was cut, or if another program or another group has put it
there, the error gives its path, and nothing is changed. An operator who deletes it then knows that this member will
have forgotten its votes. That can give one term to two leaders, so the message says how to avoid it.

Only one process may use a memory. A second process would keep votes that the first does not know of. A forked child
closes its copy of the lock (`udp.py`), so the lock ends with the process that took it.

No error here sends people to another folder, because the member would start there without its votes.
"""

import errno
import fcntl
import hashlib
import os
import struct
from pathlib import Path
from typing import NoReturn

from neli_router.core.private import intrusion
from neli_router.errors import Closed, ConfigError, PeersUnusable

__all__ = ["MEMORY_MAX", "KeptMemory", "default_folder", "look_at_memory"]

MAGIC = b"NELIVOTE"
VERSION = 1
HEADER = struct.Struct(">8sB16sI")
CHECK_SIZE = 16

MEMORY_MAX = 16 * 2**20
"""Bytes. A member of a thousand partitions keeps some tens of thousands; a longer file is something else."""

_FORGET = (
    "bring the file back from where it is whole; or, if no peer of the group runs, delete it and start all with a "
    "term_base above every term that the group had"
)

_ANOTHER = (
    "in another folder it has forgotten its votes; if it must have one, stop all peers of the group, and start all "
    "with a term_base above every term that the group had"
)


class KeptMemory:
    """The memory of one place of one group. Used by one thread. Raises PeersUnusable; `close` frees it for another."""

    def __init__(self, folder: Path, *, group: str, me: str, mark: bytes) -> None:
        self.path, self._about = _named(folder, group, me), _digest(group, me, mark)
        self._lock = self._folder = -1
        try:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                # The lock has its own file, because each rename replaces the memory's file.
                self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                # If a file stands in the folder's place, mkdir itself would report only that it exists.
                found = "it is not a folder" if isinstance(error, FileExistsError) else _reason(error)
                _fail(
                    self.path,
                    f"{error.filename} cannot be used ({found})",
                    f"let this user read and write it (chown it, or remount it), and start again; {_ANOTHER}",
                )
            self._take()
            self.doubts = _doubts(self.path)
            """A sentence, for people, for each way in which the memory may be lost or changed."""
            self.is_first = not os.path.lexists(self.path)
            """Whether no memory was found here."""
            self.memory = _read(self.path, self._about)
        except BaseException:
            self.close()
            raise

    def keep(self, memory: bytes) -> None:
        """Put `memory` on disk. If this raises, the file has either this memory or the one before."""
        if self._lock < 0:
            raise Closed(f"the memory {self.path} was wanted", "it was closed before", "open it again")
        if len(memory) > MEMORY_MAX:
            found = f"{len(memory)} bytes are more than the {MEMORY_MAX} that one has"
            _fail(self.path, found, "have fewer partitions")
        text = HEADER.pack(MAGIC, VERSION, self._about, len(memory)) + memory
        new = Path(f"{self.path}.new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text + _check(text))
                file.flush()
                os.fsync(descriptor)
            new.rename(self.path)
            os.fsync(self._folder)  # Without this, a power cut could undo the rename.
        except OSError as error:
            found = f"it cannot be kept ({_reason(error)})"
            _fail(self.path, found, "make room, or fix the disk, and start again")
        self.memory = memory

    def close(self) -> None:
        for descriptor in (self._lock, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._folder = -1

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                _fail(self.path, "another process has it", "end that process first: a member votes once")
            _fail(
                self.path,
                f"it cannot be locked ({_reason(error)})",
                "move the folder, with what is in it, to a local disk, and name it (--state, or ?state= in an address)",
            )


def look_at_memory(folder: Path, *, group: str, me: str, mark: bytes) -> bytes:
    """The memory that a `KeptMemory` would begin with. Makes, changes and locks nothing. Raises PeersUnusable."""
    return _read(_named(folder, group, me), _digest(group, me, mark))


def default_folder(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> Path:
    """Where a group on loopback keeps its memory, if its address does not say: with the user's other state.

    Raises ConfigError for a user who has no home, as in many containers.
    """
    state = Path(environment.get("XDG_STATE_HOME") or "")
    try:
        return (state if state.is_absolute() else Path.home() / ".local" / "state") / "neli"
    except RuntimeError:
        raise ConfigError(
            ["this user has no home to keep its votes in: name a folder with --state PATH, or ?state=PATH"]
        ) from None


def _named(folder: Path, group: str, me: str) -> Path:
    return folder / f"{group}@{me}.votes"


def _digest(group: str, me: str, mark: bytes) -> bytes:
    return hashlib.blake2b(f"{group}\n{me}\n".encode() + mark, digest_size=16).digest()


def _read(path: Path, about: bytes) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(HEADER.size + MEMORY_MAX + CHECK_SIZE + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        _fail(path, f"it cannot be read ({_reason(error)})", "let this user read the file, and start again")
    if text[: len(MAGIC)] != MAGIC[: len(text)] or not text:
        _fail(path, "the file is none of ours", _FORGET)
    if len(text) > len(MAGIC) and text[len(MAGIC)] != VERSION:
        found = f"the file is of version {text[len(MAGIC)]}, and this is {VERSION}"
        _fail(path, found, "run the release that wrote it")
    whole = len(text) >= HEADER.size + CHECK_SIZE and _check(text[:-CHECK_SIZE]) == text[-CHECK_SIZE:]
    if not whole or HEADER.unpack_from(text)[3] != len(text) - HEADER.size - CHECK_SIZE:
        _fail(path, "the file was cut or changed", _FORGET)
    if HEADER.unpack_from(text)[2] != about:
        _fail(
            path,
            "the file was written for another protocol, or for another number of partitions, of peers or of those that "
            "vote (or it was renamed)",
            "start this member with its former settings; or give the group a new name or new folders, with a "
            "term_base above every term that it had",
        )
    return text[HEADER.size : -CHECK_SIZE]


def _fail(path: Path, found: str, remedy: str) -> NoReturn:
    raise PeersUnusable(f"the memory of this member's votes in {path} was wanted", found, remedy) from None


def _doubts(path: Path) -> list[str]:
    try:
        found = intrusion(path)
    except OSError as error:
        found = f"{error.filename} cannot be looked at: {_reason(error)}"
    costs = "another user can change or bring back this member's votes, and then two may lead"
    return [f"{costs}: {found}; chown {path.parent} to this user, and chmod 700 it"] if found else []


def _check(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=CHECK_SIZE).digest()


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno is not None else type(error).__name__
