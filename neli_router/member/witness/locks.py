"""The locks: on the SQLite ledger, the members of the host are each other's witnesses.

    every member --locks the byte of its life--> ledger.db-members
    another      --which process has this byte?--> number --pidfd--> the same number again? --> watched
                                                                                                   |
    its ledger wakes <--readable: the last thread has ended ---------------------------------------'--> Certify

All members of such a group are processes of one host, so each can know of the others' ends, and needs no agent, no
child and no thread for that. A POSIX lock is how they find each other: the kernel says which process holds it, to
that process alone it belongs, and no other can show it. A *life* is a number of 48 bits, and its byte needs not exist:
the file stays empty.

**Why nobody who lives is certified.** The lock never says that a process has ended; only its pidfd does. A lock that is
not there means nothing: its holder may be in a PID namespace that does not show it, or the file may have been replaced.
Then the lease tells, as ever. Between the question and the pidfd, the number could have gone to another process; then
that one does not hold the byte, and the second question shows it. A lock of the whole file, which some other program
may take, is no answer either.

**One descriptor.** A process that closes *any* descriptor of a file loses all its locks there. So all members of a
process share one, which is closed when the last of them has left (`LifeLocks`). A child does not inherit the locks, and
what it closes is no loss to its parent. A program that opens and closes the file, such as a backup inside the process,
takes the locks away from those who have not asked yet; they are taken anew when a look finds somebody missing.

**Who says it.** One certificate is enough. The members stand in a ring, in the order in which they joined, and the one
before the dead says it at once; the others only if that takes a moment too long, each a little later than the one after
it. A member watches those that come next in the ring, so in a large group, too, it holds few descriptors, and all that
are to speak before it are among those that it watches.
"""

import contextlib
import fcntl
import os
import re
import select
import stat
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path

from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import Unsupported
from neli_router.hosts.process import HostProcess, ProcessMark
from neli_router.member.witness.life import life_of
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify

__all__ = ["PEERS", "LifeLocks", "PeerWitness"]

PEERS = "peers"
"""In the Join of a member whose witnesses are the others of its host."""

WATCHED_MAX = 32
"""Members that one member watches, and descriptors that it takes for it. As many would have to die at one moment before
a death is told by the lease alone."""

TURN = 0.05
"""Seconds that each of the others leaves to the one that speaks before it. A certificate takes a few milliseconds; less
would bring several of each while the disk is slow, more a later take-over where the first of them cannot speak."""

TURNS_MAX = 8
"""After so many turns all speak: far down the ring, a lease should not be over first."""

ASK_EVERY = 1.0
"""Seconds until a process that was not found is looked for again, and until a certificate that no reader shows is said
again. Each takes a few microseconds; more often brings nothing but that."""

LOCAL_FILE_SYSTEMS = frozenset(
    {
        *("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs"),
        "xfs",
        "zfs",
    }
)
"""Where this kernel keeps the locks, and so knows their holders. Others may hand them on (9p, virtiofs, FUSE), and then
the number of a holder may be that of a process on another machine."""

_LOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid.

Identity = tuple[int, int]  # A device and an inode.


class LifeLocks:
    """The locks that this process has in one file, for all its members there. May be used by several threads."""

    def __init__(self, path: Path, ledger: Path) -> None:
        self._path, self._ledger = path, ledger
        self._lives: set[str] = set()
        self._descriptor = _opened(path, ledger)
        self.identity = _identity(os.fstat(self._descriptor))

    @classmethod
    def hold(cls, path: Path, ledger: Path, life: str) -> "LifeLocks":
        """Lock the byte of `life` in the file `path`, which is made beside `ledger` if it is not there.

        Raises OSError where that cannot be, and Unsupported where the kernel would not know the holder.
        """
        with _guard:
            for known in list(_known.values()):
                known.mend()
            # By what the file is, not by its name: a second descriptor of it could never be closed.
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
        """The member of `life` has left. The locks of other members stay."""
        with _guard:
            if _known.get(self.identity) is not self:
                return  # In a child, where they were never held.
            self._lives.discard(life)
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _byte(life))
            if not self._lives:
                del _known[self.identity]
                os.close(self._descriptor)

    def has(self, life: str) -> bool:
        """Whether `life` is of this process, which does not see its own locks."""
        return life in self._lives

    def holder(self, life: str) -> int | None:
        """The number, in this PID namespace, of the process that has the byte of `life`; None if that is not known."""
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

    def mend(self) -> None:
        """Take the locks anew, in the file that has the name now: it may have been replaced, or closed by others."""
        with _guard, contextlib.suppress(OSError, Unsupported):
            if _known.get(self.identity) is not self:
                return
            # A file that another of these has already is none that may be opened once more.
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
        """In a new child, which has none of the locks, and no other yet that closing could take away."""
        os.close(self._descriptor)


_guard = threading.RLock()  # Reentrant: a signal handler that closes must not wait for its own thread.
_known: dict[Identity | None, LifeLocks] = {}


def _after_fork_in_child() -> None:
    global _guard  # noqa: PLW0603 - one that a fork left locked can only be replaced.
    _guard = threading.RLock()
    while _known:
        _, inherited = _known.popitem()
        inherited.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


class PeerWitness:
    """A `Witness`: the other members of the host, as this one is theirs. Raises as `LifeLocks.hold`, and Unsupported
    where the kernel does not tell of the end of any process."""

    name = PEERS

    def __init__(self, ledger: SqliteLedger, life: str) -> None:
        HostProcess.own().close()  # Whether there are pidfds here.
        self._process, self._ledger, self._life = os.getpid(), ledger, life
        # One descriptor for all of them, so that a wait of the ledger does not take longer with each.
        self._ends = select.epoll()
        try:
            self._locks = LifeLocks.hold(ledger.members_path, ledger.path, life)
        except BaseException:
            self._ends.close()
            raise
        self._watched: dict[str, HostProcess] = {}
        self._dead: dict[str, float] = {}
        """Life -> when its end was seen, while it has a seat."""
        self._said: dict[str, float] = {}
        """Incarnation -> when its certificate was given out last."""
        self._seats: object = None
        self._look_at = -inf
        self._closed = self._is_rung = False
        ledger.watch(self._ends.fileno(), self._ring)

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

    def pledge(self, until: float, processes: Sequence[ProcessMark] = ()) -> None:
        pass  # The others see this process alone. A member that gives its leases to others needs another witness.

    def close(self) -> None:
        if self._closed or self._process != os.getpid():
            return  # In a child, what it inherited is its parent's.
        self._closed = True
        self._ledger.unwatch(self._ends.fileno())
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
        """Watch those of the `wanted` lives whose processes can be found."""
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
            return None  # It has ended, or there is no descriptor left for it.
        if self._locks.holder(life) == number:
            return process
        process.close()
        return None

    def _due(self, ring: Sequence[str], is_member: bool, now: float) -> Iterator[str]:
        """The dead whose turn to be certified by this member has come."""
        living = 0
        everybody = sum(life_of(one) not in self._dead for one in ring)
        for one in ring:
            seen_at = self._dead.get(life_of(one))
            if seen_at is None:
                living += 1
                continue
            # One that has not joined yet stands behind all others.
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
    """The members that are each other's witnesses, from the one that joined after me on and without me."""
    ring = [seat.incarnation for seat in state.seats.values() if seat.witness == PEERS]
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
    """A descriptor of the file, made if it is not there: for all who may write the ledger, and for no other."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        raise Unsupported(
            "locks that tell their holders were wanted", sys.platform, "use Linux on a machine of 64 bits"
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
        kind = _file_system(descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or kind not in LOCAL_FILE_SYSTEMS:
            raise Unsupported(
                f"locks in the file {path} were wanted",
                f"it is no file on a local file system (found: {kind or 'nothing known'})",
                "put the ledger on a local disk; until then leases end by time alone",
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _share_as(descriptor: int, ledger: os.stat_result) -> None:
    """Give the new file the owner, the group and the rights of the ledger, as SQLite does with its own."""
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, ledger.st_uid if os.geteuid() == 0 else -1, ledger.st_gid)
    mode = stat.S_IMODE(ledger.st_mode) & 0o666
    if os.fstat(descriptor).st_gid != ledger.st_gid:
        mode &= ~0o060  # Another group than the one that may write the ledger.
    os.fchmod(descriptor, mode)


def _file_system(descriptor: int) -> str:
    """The type of the file system that an open file is on; or nothing. By its mount: btrfs tells no number of it."""
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
