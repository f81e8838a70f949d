"""The locks: on a SQLite ledger, the members of the host are each other's witnesses.

    every member --locks the byte of its life--> ledger.db-members
    another      --which process has this byte?--> number --pidfd--> the same number again? --> watched
                                                                                                   |
    its ledger wakes <--readable: the last thread has ended ---------------------------------------'--> Certify

All members of such a group are processes of one host, so each can notice when another ends, without an agent, a child
or a thread for that. They find each other through POSIX locks: the kernel reports which process holds a lock, the lock
belongs to that process alone, and no other process can pretend to hold it. A *life* is a number of 48 bits, and its
byte need not exist: the file stays empty.

**Why no living member is certified.** The lock never proves that a process has ended; only its pidfd does. A missing
lock means nothing: its holder may be in a PID namespace that does not show it, or the file may have been replaced. Then
the lease decides, as usual. Between the query and the opening of the pidfd, the number could have passed to another
process; that process does not hold the byte, and a second query reveals this. A lock on the whole file, which some
other program may take, does not count as an answer either.

**Why no stranger can have one certified.** A process that may not write the ledger could lock the bytes of living
members, and end. So the file is used only if its owner may write the ledger, and so may everyone who can open the file.
In a shared folder a stranger may have made it first; then leases end by time alone. And the lock of a process that may
not write the ledger does not count, however that process came by the file.

**One descriptor.** A process that closes *any* descriptor of a file loses all its locks there. So all members of a
process share one descriptor, which is closed when the last of them has left (`LifeLocks`). A child does not inherit the
locks, and its closing the file costs its parent nothing. A program that opens and closes the file, such as a backup
inside the process, removes the locks for members that have not queried them yet; they are taken again when a look finds
a member missing.

**Who writes the certificate.** One certificate is enough. The members form a ring, in the order in which they joined.
The member before the dead one writes it immediately; the others write only if that takes too long, each a little later
than the member after it. A member watches those that come next in the ring. So even in a large group it holds few
descriptors, and all members that should write before it are among those that it watches.
"""

import contextlib
import fcntl
import os
import pwd
import re
import select
import stat
import struct
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from pathlib import Path

from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import Unsupported
from neli_router.hosts.process import HostProcess
from neli_router.member.witness.base import Witness, life_of
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify

__all__ = ["PEERS", "LifeLocks", "OpenToStrangers", "PeerWitness"]

PEERS = "peers"
"""The witness named in the Join of a member whose witnesses are the other members of its host."""

WATCHED_MAX = 32
"""How many members one member watches, at a descriptor each. That many would have to die at the same moment before a
death is noticed by the lease alone."""

TURN = 0.05
"""Seconds that each member leaves to the one whose turn comes before. A certificate takes a few milliseconds. A shorter
turn would produce several copies while the disk is slow; a longer one would delay the take-over if the first member
cannot write."""

TURNS_MAX = 8
"""After this many turns, all remaining members write: far down the ring, the lease should not run out first."""

ASK_EVERY = 1.0
"""Seconds until a process that was not found is looked for again, and until a certificate that no reader shows is
written again. Each takes a few microseconds; doing it more often gains nothing."""

LOCAL_FILE_SYSTEMS = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)
"""File systems on which this kernel itself keeps the locks, and so knows their holders. Others may pass locks on (9p,
virtiofs, FUSE), and then the number of a holder may be that of a process on another machine."""

_IDS = re.compile(r"^(Uid|Gid|Groups):([\t 0-9]*)$", re.MULTILINE)
"""The users and groups of a process in /proc/NUMBER/status. The last user, and the last group, are those by which the
kernel grants access to files."""

_LOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid.

Identity = tuple[int, int]  # A device and an inode.


class OpenToStrangers(Unsupported):
    """The file of the locks is one that a user who may not write the ledger made, or can open."""


class LifeLocks:
    """The locks that this process has in one file, for all its members there. May be used by several threads."""

    def __init__(self, path: Path, ledger: Path) -> None:
        self._path, self._ledger = path, ledger
        self._lives: set[str] = set()
        self._descriptor = _opened(path, ledger)
        self.identity = _identity(os.fstat(self._descriptor))

    @classmethod
    def hold(cls, path: Path, ledger: Path, life: str) -> "LifeLocks":
        """Lock the byte of `life` in the file `path`, which is created next to `ledger` if it does not exist.

        Raises OSError if that fails, and Unsupported if the kernel would not know the holder.
        """
        with _guard:
            for known in list(_known.values()):
                known.mend()
            # Looked up by the file's identity, not by its name: a second descriptor of it could never be closed.
            found = _known.get(_identity_at(path)) or cls(path, ledger)
            _known[found.identity] = found
            try:
                found.take(life)
            except OSError:
                found.let_go(life)
                raise
            return found

    def take(self, life: str) -> None:
        with _guard:
            self._lock(life)
            self._lives.add(life)

    def let_go(self, life: str) -> None:
        """Release the lock of `life`, whose member has left. The locks of other members stay."""
        with _guard:
            if _known.get(self.identity) is not self:
                return  # In a child, where the locks were never held.
            self._lives.discard(life)
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _byte(life))
            if not self._lives:
                del _known[self.identity]
                os.close(self._descriptor)

    def has(self, life: str) -> bool:
        """Whether `life` belongs to this process, which does not see its own locks."""
        return life in self._lives

    def holder(self, life: str) -> int | None:
        """The number, in this PID namespace, of the process that holds the byte of `life`; None if it is not known."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _byte(life), 1, 0)
        with _guard:
            if _known.get(self.identity) is not self:
                return None
            try:
                kind, _, start, length, number = _LOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
            except OSError:
                return None
        is_its = (kind, start, length) == (fcntl.F_WRLCK, _byte(life), 1)
        return number if is_its and number > 0 else None

    def trusts(self, number: int) -> bool:
        """Whether the process with this number may write the ledger."""
        try:
            status = Path(f"/proc/{number}/status").read_text(encoding="ascii", errors="replace")
            ledger = self._ledger.stat()
        except OSError:
            return False
        ids = {name: list(map(int, rest.split())) for name, rest in _IDS.findall(status)}
        return _may_write(ids["Uid"][-1], {ids["Gid"][-1], *ids["Groups"]}, ledger)

    def mend(self) -> None:
        """Take the locks again, in the file that now has the name: it may have been replaced, or closed by others."""
        with _guard, contextlib.suppress(OSError, Unsupported):
            if _known.get(self.identity) is not self:
                return
            # A file that another LifeLocks already has must not be opened a second time.
            if (at := _identity_at(self._path)) != self.identity and at not in _known:
                descriptor = _opened(self._path, self._ledger)
                os.close(self._descriptor)
                del _known[self.identity]
                self._descriptor, self.identity = descriptor, _identity(os.fstat(descriptor))
                _known[self.identity] = self
            for life in self._lives:
                self._lock(life)

    def _lock(self, life: str) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(life))

    def forget(self) -> None:
        """Close the file in a new child, which holds none of the locks yet that closing could remove."""
        os.close(self._descriptor)


_guard = threading.RLock()  # Reentrant: a signal handler that closes must not wait for its own thread.
_known: dict[Identity | None, LifeLocks] = {}


def _after_fork_in_child() -> None:
    global _guard  # noqa: PLW0603 - a lock that a fork left locked can only be replaced.
    _guard = threading.RLock()
    while _known:
        _, inherited = _known.popitem()
        inherited.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


class PeerWitness(Witness):
    """The other members of the host, just as this member is theirs. Raises the errors of `LifeLocks.hold`,
    and Unsupported if the kernel cannot report the end of a process."""

    name = PEERS

    def __init__(self, ledger: SqliteLedger, life: str) -> None:
        HostProcess.of(os.getpid()).close()  # Raises if the kernel has no pidfds.
        self._process, self._ledger, self._life = os.getpid(), ledger, life
        # One descriptor for all of them, so that the ledger's wait does not take longer with each member.
        self._ends = select.epoll()
        try:
            self._locks = LifeLocks.hold(ledger.members_path, ledger.path, life)
        except BaseException:
            self._ends.close()
            raise
        self._watched: dict[str, HostProcess] = {}
        self._dead: dict[str, float] = {}
        """Life -> when its end was seen, for as long as it has a seat."""
        self._said: dict[str, float] = {}
        """Incarnation -> when its certificate was last given out."""
        self._seats: object = None
        self._look_at = -inf
        self._closed = self._is_rung = False
        ledger.doorbell.watch(self._ends.fileno(), self._ring)

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        if not self._is_rung and state.seats is self._seats and now < self._look_at:
            return ()  # Nearly always.
        if self._closed:
            return ()
        self._is_rung, self._seats, self._look_at = False, state.seats, now + ASK_EVERY
        for life in self._ended():
            self._dead[life] = now
            self._let_go(life)
        ring = _ring(state, incarnation)
        lives = {life_of(one) for one in ring}
        for life in self._watched.keys() - lives:
            self._let_go(life)
        self._dead = {life: at for life, at in self._dead.items() if life in lives}
        self._said = {one: at for one, at in self._said.items() if one in state.seats}
        self._find(life_of(one) for one in ring[:WATCHED_MAX])
        return [Certify(by=incarnation, incarnation=one) for one in self._due(ring, incarnation in state.seats, now)]

    def close(self) -> None:
        if self._closed or self._process != os.getpid():
            return  # In a child: what it inherited belongs to its parent.
        self._closed = True
        self._ledger.doorbell.unwatch(self._ends.fileno())
        for life in list(self._watched):
            self._let_go(life)
        self._ends.close()
        self._locks.let_go(self._life)

    def _ring(self) -> None:
        self._is_rung = True

    def _ended(self) -> list[str]:
        """The lives that have ended since the last look."""
        if not self._watched:
            return []
        readable = {descriptor for descriptor, events in self._ends.poll(0) if events & select.EPOLLIN}
        return [life for life, process in self._watched.items() if process.fileno() in readable]

    def _find(self, wanted: Iterable[str]) -> None:
        """Watch the `wanted` lives whose processes can be found."""
        missing = [
            life
            for life in wanted
            if life not in self._watched and life not in self._dead and not self._locks.has(life)
        ]
        if not missing:
            return
        self._locks.mend()
        for life in missing:
            if (process := self._found(life)) is not None:
                self._watched[life] = process
                self._ends.register(process.fileno(), select.EPOLLIN)

    def _found(self, life: str) -> HostProcess | None:
        number = self._locks.holder(life)
        if number is None:
            return None
        try:
            process = HostProcess.of(number)
        except (ProcessLookupError, Unsupported):
            return None  # The process has ended, or no descriptor was free for it.
        if self._locks.trusts(number) and self._locks.holder(life) == number:
            return process
        process.close()
        return None

    def _due(self, ring: Sequence[str], is_member: bool, now: float) -> Iterator[str]:
        """The dead members that it is now this member's turn to certify."""
        living = 0
        everybody = sum(life_of(one) not in self._dead for one in ring)
        for one in ring:
            seen_at = self._dead.get(life_of(one))
            if seen_at is None:
                living += 1
                continue
            # A member that has not joined yet comes after all others.
            turns = min(living if is_member else everybody, TURNS_MAX)
            at = max(seen_at + turns * TURN, self._said.get(one, -inf) + ASK_EVERY)
            if now >= at:
                self._said[one] = now
                at = now + ASK_EVERY
                yield one
            self._look_at = min(self._look_at, at)

    def _let_go(self, life: str) -> None:
        process = self._watched.pop(life)
        self._ends.unregister(process.fileno())
        process.close()


def _ring(state: State, me: str) -> list[str]:
    """The members that are each other's witnesses, starting with the one that joined after me, and without me."""
    ring = [seat.incarnation for seat in state.members.values() if seat.witness == PEERS]
    place = ring.index(me) if me in ring else len(ring)
    return [*ring[place + 1 :], *ring[:place]]


def _byte(life: str) -> int:
    return int(life, 16)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _identity_at(path: Path) -> Identity | None:
    try:
        return _identity(path.stat())
    except FileNotFoundError:
        return None


def _opened(path: Path, ledger: Path) -> int:
    """A descriptor of the file, created if it does not exist, and open only to those who may write the ledger."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        raise Unsupported(
            "locks that show their holders were wanted", sys.platform, "use Linux on a machine of 64 bits"
        )
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    like, is_new = ledger.stat(), True
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        descriptor, is_new = os.open(path, flags), False
    try:
        if is_new:
            _share_as(descriptor, like)
        kind, found = _file_system(descriptor), os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or kind not in LOCAL_FILE_SYSTEMS:
            raise Unsupported(
                f"locks in the file {path} were wanted",
                f"it is not a file on a local file system (found: {kind or 'nothing known'})",
                "put the ledger on a local disk; until then leases end by time alone",
            )
        if not _is_for_writers(found, like):
            raise OpenToStrangers(
                f"a file {path} was wanted that only those who may write the ledger can make and open",
                f"user {found.st_uid} and group {found.st_gid} have it, with mode {stat.S_IMODE(found.st_mode):o}",
                "find out who made it, and delete it; until then leases end by time alone",
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_for_writers(file: os.stat_result, ledger: os.stat_result) -> bool:
    """Whether the file's owner may write the ledger, and so may each user who can open the file."""
    try:
        user = pwd.getpwuid(file.st_uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:
        groups = []
    wider = file.st_mode & 0o066 & ~ledger.st_mode
    if file.st_gid != ledger.st_gid:
        wider |= file.st_mode & 0o060
    return not wider and (file.st_uid == os.geteuid() or _may_write(file.st_uid, groups, ledger))


def _may_write(user: int, groups: Collection[int], ledger: os.stat_result) -> bool:
    """Whether a user who is in these groups may write the ledger."""
    if user in {0, ledger.st_uid}:
        return True
    return bool(ledger.st_mode & (stat.S_IWGRP if ledger.st_gid in groups else stat.S_IWOTH))


def _share_as(descriptor: int, ledger: os.stat_result) -> None:
    """Give the new file the owner, the group and the permissions of the ledger, as SQLite does with its own files."""
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, ledger.st_uid if os.geteuid() == 0 else -1, ledger.st_gid)
    mode = stat.S_IMODE(ledger.st_mode) & 0o666
    if os.fstat(descriptor).st_gid != ledger.st_gid:
        mode &= ~0o060  # A different group from the one that may write the ledger.
    os.fchmod(descriptor, mode)


def _file_system(descriptor: int) -> str:
    """The type of the file system of an open file, or nothing. Found by its mount: btrfs does not give its number."""
    try:
        told = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    number = re.search(r"^mnt_id:\s*([0-9]+)$", told, re.MULTILINE)
    for line in mounts.splitlines():
        place, _, source = line.partition(" - ")
        if number is not None and place.split()[:1] == [number[1]]:
            return source.split()[0]
    return ""
