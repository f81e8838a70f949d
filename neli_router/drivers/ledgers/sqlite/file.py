"""One connection to one SQLite file: opened with care, shared with other processes, and never kept across a fork.

    parked --next use--> connected --before a fork, in parent and child--> parked
                             |
                             |-- deleted, replaced, rewound --> condemned, permanently
                             '-- close() --> closed

**Is it still there?** SQLite goes on using a file whose name was deleted, while the next process that starts creates a
new file under that name: two halves of a group, each with its own ledger. So before *every* use, the file and its two
companions (`-wal`, `-shm`) are compared with what the names now stand for. Checking once a second would not be enough:
a heartbeat that slipped into the nameless file half a second later could prolong a lease.

**Forks.** SQLite keeps its locks in POSIX locks, which a child does not inherit, and keeps the note that it holds them
in memory, which a child does inherit. So a child works without locks if it opens a file that its parent had open at the
fork, and its records can be lost without an error (seen with 3.40.1). So no connection survives a fork. All are closed
just before it; the parent opens a new one when it needs to, and the child may open handles of its own.

**The WAL-reset bug** (sqlite.org/wal.html#walresetbug) is in SQLite 3.7.0 to 3.51.2: a commit that restarts the
write-ahead log during a checkpoint can make the next checkpoint leave out records. So the automatic checkpoints are
off, and ours run while we hold the write lock, when no other process can commit.

**Readers.** A handle that may not create the ledger, and whose user may not write the file and its folder, is opened
read-only. SQLite reads such a file with the help of its companions, and would create those that are missing. They would
belong to the reader's user, and then no member could write them. So a reader opens only files that are there already:
while a member is alive, and after one was killed. After the last member has closed, SQLite has deleted them.

**The mark of a ledger.** The file's header carries our application id and a layout that this release knows, and a table
names its owner. Any other file is refused without changing a byte of it. All of the mark is written
in one transaction, and the write-ahead log is switched on after that. So a process killed in between leaves either an
empty file or a ledger that the next process can finish.

**Faults** are translated into words that say what to do. The place is examined before SQLite opens it, because SQLite
has one answer, "unable to open database file", for most of what can be wrong there. After that, CANTOPEN may heal: the
one case that remains is mostly a process that has too many open files.
"""

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from neli_router.drivers.ledgers.base import require_not_closed, require_own_process
from neli_router.errors import LedgerError, LedgerMissing, LedgerRewound, LedgerUnavailable, LedgerUnusable

__all__ = ["SqliteFile", "beside", "damaged", "delete_file", "file_system", "refuse_unusable_place"]

APPLICATION_ID = int.from_bytes(b"NELI")  # The command `file` and other tools see it in the header, too.

LAYOUT = 1  # The version of the tables below. Another layout gets another number; a release refuses unknown ones.

GROUP = "neli"  # The first table holds this name. A file with another name is refused.

_TABLES = (
    "CREATE TABLE belongs_to (group_name TEXT NOT NULL)",
    "CREATE TABLE records (offset INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB NOT NULL, checksum INTEGER NOT NULL)",
)

BUSY_PAUSE = 0.0005
"""How long to wait before asking again for a lock that is held. SQLite's own waiting backs off to 100 ms, which is far
longer than any of our transactions, and all later callers overtake a waiter that sleeps."""

WAL_SIZE_MAX = 4 * 2**20
"""A write-ahead log that grew larger, because of a long record or a slow reader, is cut back to this size. Lowering it
makes writers allocate the same blocks again and again."""

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"),
        *("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""File systems on which a second host may have the same file, without our shared memory and perhaps without our locks.
The list cannot be complete. Folders that a virtual machine shares with its host (9p, virtiofs) work inside it."""

_HELD = "look for a stopped process inside a transaction, or another program that holds the file; nothing was lost"
_DAMAGED = (
    "stop the group, keep the file and its -wal and -shm to be examined, and let the group start on a new "
    "file: its terms will be higher than all before"
)
_COMPLAINTS: dict[int, tuple[type[LedgerError], str, str]] = {
    sqlite3.SQLITE_BUSY: (LedgerUnavailable, "others had it locked all the time", _HELD),
    sqlite3.SQLITE_LOCKED: (LedgerUnavailable, "others had it locked all the time", _HELD),
    sqlite3.SQLITE_PROTOCOL: (LedgerUnavailable, "others had it locked all the time", _HELD),
    sqlite3.SQLITE_FULL: (
        LedgerUnavailable,
        "the disk is full",
        "free some space; acknowledged records are safe, and appends then resume on their own",
    ),
    sqlite3.SQLITE_IOERR: (
        LedgerUnavailable,
        "the operating system could not read or write it",
        "look at the limits of this process and at the kernel's messages about the disk",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        LedgerUnavailable,
        "it cannot be opened",
        "look at the limit of open files, and at who may write the -wal and -shm next to it",
    ),
    sqlite3.SQLITE_READONLY: (LedgerUnusable, "it is read-only", "give this user write access to the file and folder"),
    sqlite3.SQLITE_CORRUPT: (LedgerUnusable, "it is damaged", _DAMAGED),
    sqlite3.SQLITE_NOTADB: (
        LedgerUnusable,
        "it is not an SQLite database, or its header was overwritten",
        "name another file; this one was left unchanged",
    ),
}

Answer = TypeVar("Answer")
Identity = tuple[int, int] | None  # A device and an inode; None if the file does not exist.


class SqliteFile:
    """May be used by several threads; each `run` or `write` is one undivided piece of work."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool, busy_max: float) -> None:
        self.path = Path(path).absolute()
        self._create, self._busy_max = create, busy_max
        self._process = os.getpid()
        self.turn = threading.RLock()  # Reentrant: a signal handler that closes must not wait for its own thread.
        self._connection: sqlite3.Connection | None = None
        self._identities: list[tuple[Path, Identity]] = []
        self._condemned_for = ""
        self._closed = False
        refuse_unusable_place(self.path, create=create)
        with _registering:
            _files.add(self)
        self.run("the opening", lambda _: None)
        self._create = False  # A handle that reopens after a fork wants the file it had.

    def run(self, purpose: str, act: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Do one thing with the connection, waiting for locks up to `busy_max` and leaving no transaction open."""
        give_up_at = time.monotonic() + self._busy_max
        require_own_process(self.path, self._process)
        while True:
            with self.turn:
                try:
                    self._require_usable()
                    return act(self._connected())
                except BaseException as error:
                    # Even for KeyboardInterrupt: a transaction left open would stop the appends of the whole group.
                    self._roll_back()
                    if isinstance(error, UnicodeDecodeError):
                        raise damaged(self.path, "a text in it is not UTF-8") from error
                    if not isinstance(error, sqlite3.Error):
                        raise
                    # Another process usually releases a lock in a moment.
                    is_busy = _primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
                    if not is_busy or time.monotonic() >= give_up_at:
                        self._require_usable()  # A file that was moved explains most other complaints.
                        raise _explain(error, self.path, purpose) from error
            time.sleep(BUSY_PAUSE)

    def write(self, purpose: str, act: Callable[[sqlite3.Connection], Answer], *, lasting: bool) -> Answer:
        """Do `act` in one transaction: its changes become visible together, and if `lasting`, are flushed first."""

        def transaction(connection: sqlite3.Connection) -> Answer:
            connection.execute("PRAGMA synchronous = FULL" if lasting else "PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            answer = act(connection)
            connection.execute("COMMIT")
            return answer

        return self.run(purpose, transaction)

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the file, so that the next commit can restart the log. Failing is harmless."""

        def copy(connection: sqlite3.Connection) -> None:
            # Our write lock keeps all others from committing meanwhile: see the WAL-reset bug. SQLite does not let one
            # connection both hold that lock and make a checkpoint, so there is a second connection.
            connection.execute("BEGIN IMMEDIATE")
            with contextlib.closing(self._connect()) as copier:
                copier.execute("PRAGMA user_version").fetchone()  # Older releases copy nothing before a first read.
                copier.execute("PRAGMA wal_checkpoint(PASSIVE)")
            connection.execute("ROLLBACK")

        # A full disk or a locked file must not fail the append that came before: the next one tries again.
        with contextlib.suppress(LedgerUnavailable):
            self.run("a checkpoint", copy)

    def condemn(self, found: str) -> LedgerRewound:
        """Make every later use raise this error: nothing may go on as if the records were still there."""
        self._condemned_for = found
        return LedgerRewound(
            f"the ledger {self.path} with all its records was wanted",
            found,
            "stop every member of the group, find out who moved or restored the file, and start them again on one file",
        )

    def close(self) -> None:
        """Close the connection; the file stays. May be called twice."""
        with self.turn:
            self._closed = True
            self.park()

    def park(self) -> None:
        """Close the connection until the next use."""
        if self.is_left_over:
            return  # This is the parent's connection: closing it here could delete the log that the parent uses.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def is_left_over(self) -> bool:
        """True in a child that was forked past Python's fork hooks while this connection was open."""
        return self._connection is not None and self._process != os.getpid()

    def _require_usable(self) -> None:
        require_not_closed(self.path, closed=self._closed)
        if found := self._condemned_for or self._moved():
            raise self.condemn(found)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = self._connect()
            try:
                _recognise(connection, self.path, create=self._create)
                for setting in (
                    "wal_autocheckpoint = 0",
                    f"journal_size_limit = {WAL_SIZE_MAX}",
                    "secure_delete = OFF",
                ):
                    connection.execute(f"PRAGMA {setting}")
            except BaseException:
                connection.close()
                raise
            # Not earlier: SQLite creates the companions for the first connection, and keeps them while one is open.
            paths = (self.path, *beside(self.path)[:2])
            self._identities = [(path, _identity(path)) for path in paths]
            self._connection = connection
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if any(file.is_left_over for file in list(_files)):
            raise LedgerUnusable(
                f"the ledger {self.path} was wanted",
                "this process was forked, past Python's fork hooks, from one that had a ledger open",
                "fork before opening a ledger, or start a fresh process (spawn): SQLite's locks do not survive a fork",
            )
        mode = "rwc" if self._create else "rw"
        if not (self._create or _may_write_at(self.path)):
            mode = "ro"
            if not all(path.exists() for path in beside(self.path)[:2]):
                raise LedgerUnavailable(
                    f"the ledger {self.path} was wanted, and this user may not write it and its folder",
                    "no member has it open, and then SQLite reads it only for users who may write there",
                    "start a member, or give this user write access to the file and its folder",
                )
        # No waiting inside SQLite (timeout=0): see BUSY_PAUSE. `turn` decides which thread calls.
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self.park()  # Closing rolls back, whatever state the connection is in.

    def _moved(self) -> str:
        """Which of the files, if any, is not the one we opened, in words."""
        # The companions may come and go while no connection of ours holds them.
        held = self._identities if self._connection is not None else self._identities[:1]
        for (path, known), now in zip(held, map(_identity, (path for path, _ in held)), strict=True):
            if now != known:
                return f"{path} {'was deleted' if now is None else 'was replaced'} while it was in use"
        return ""


def beside(path: Path) -> tuple[Path, Path, Path]:
    """SQLite's two companions of the ledger in `path`, and the file in which its members have their locks.

    SQLite puts its own next to the file itself, not next to a link to it; so do the members.
    """
    real = path.resolve()
    log, index, members = (real.with_name(f"{real.name}{end}") for end in ("-wal", "-shm", "-members"))
    return log, index, members


def delete_file(path: Path) -> list[str]:
    """Delete the ledger in `path` and its companions, and return the names that were deleted. Raises LedgerUnusable.

    The file goes before its companions: SQLite discards a write-ahead log that it finds next to an empty file, but it
    would read a ledger without its log as one that ends early. A process that starts meanwhile does no harm: it notices
    that its file was deleted before it acts on it.
    """
    real = path.resolve()
    deleted = []
    # If the path is a link, it goes last: it says where the other files are, should an error end this here.
    for name in dict.fromkeys((real, *beside(path), path)):
        try:
            name.unlink()
        except FileNotFoundError:
            continue  # SQLite deletes the companions itself when the last process that has them open closes.
        except OSError as error:
            raise LedgerUnusable(
                f"the file {name} was to be deleted", f"it cannot be ({error})", "delete it by hand"
            ) from None
        deleted.append(str(name))
    return deleted


def _identity(path: Path) -> Identity:
    # Never by opening the file: closing it again would drop every lock that SQLite holds on it in this process.
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LedgerUnavailable(
            f"the file {path} of a ledger was wanted", f"it cannot be examined ({error})", "make its folder accessible"
        ) from error
    return status.st_dev, status.st_ino


def _recognise(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Make an empty file a ledger if we may; raise LedgerUnusable, before anything is written, if it is not ours."""

    wanted = f"the ledger of the group {GROUP!r} was wanted in {path}"

    def require(met: bool, found: str, remedy: str) -> None:
        if not met:
            raise LedgerUnusable(wanted, found, remedy)

    if _ask(connection, "PRAGMA page_count") == 0:
        if not create:  # A member that creates a ledger is at this point for a moment.
            raise LedgerMissing(wanted, "the file is empty", "correct the path, or start a member, which makes it")
        # SQLite takes a file of a few bytes for an empty one. Asked again, because another process may have created it.
        few_bytes = path.stat().st_size > 0 and _ask(connection, "PRAGMA page_count") == 0
        require(not few_bytes, "the file holds something else", "name another file; this one was left unchanged")
        _create(connection)
    require(
        _ask(connection, "PRAGMA application_id") == APPLICATION_ID,
        "the file holds something else (its application id is not NELI's)",
        "name another file; this one was left unchanged",
    )
    layout = _ask(connection, "PRAGMA user_version")
    require(
        layout == LAYOUT,
        f"its layout is {layout}, and this release knows layout {LAYOUT}",
        "use the release that made it, or let the group start on a new file",
    )
    owner = _ask(connection, "SELECT group_name FROM belongs_to")
    require(
        owner == GROUP,
        f"the file belongs to the group {owner!r}",
        f"correct the group's name, or give the group {GROUP!r} a file of its own",
    )
    require(
        _ask(connection, "PRAGMA journal_mode = WAL") == "wal",
        "SQLite cannot keep a write-ahead log there",
        "put the ledger on a local file system that has shared memory",
    )
    _ask(connection, "PRAGMA user_version")  # The first read in the new mode creates the log, and keeps it from now on.


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    # Is it still empty? Another process may have been faster. (The transaction itself has made a first page by now.)
    if _ask(connection, "SELECT count(*) FROM sqlite_master") == 0:
        for table in _TABLES:
            connection.execute(table)
        connection.execute("INSERT INTO belongs_to VALUES (?)", (GROUP,))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {LAYOUT}")
    connection.execute("COMMIT")


def _ask(connection: sqlite3.Connection, question: str) -> Any:
    """The single value of the answer, or None."""
    row = connection.execute(question).fetchone()
    return None if row is None else row[0]


def _explain(error: sqlite3.Error, path: Path, purpose: str) -> LedgerError:
    """Translate SQLite's complaint into one of ours."""
    kind, found, remedy = _COMPLAINTS.get(
        _primary_code(error), (LedgerUnusable, "SQLite cannot use it", "see whether another program changed the file")
    )
    return kind(f"{purpose} of the ledger {path} was wanted", f"{found} (SQLite: {error})", remedy)


def damaged(path: Path, found: str) -> LedgerUnusable:
    """The error for damage that SQLite itself cannot notice."""
    return LedgerUnusable(f"the records of the ledger {path} were wanted", found, _DAMAGED)


def refuse_unusable_place(path: Path, *, create: bool) -> None:
    """Raise LedgerUnusable if no ledger can be there, and LedgerMissing if there is none and none may be created."""
    try:
        problem = _problem(path, create=create)
    except OSError as error:
        problem = LedgerUnusable, f"it cannot be examined ({error})", "make the path accessible to this user"
    if problem is not None:
        kind, found, remedy = problem
        raise kind(f"a ledger in the file {path} was wanted", found, remedy)


def file_system(device: int) -> str:
    """The type of the file system with this device number, or nothing."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in _mounts().splitlines():
        # 36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw: before the dash, the number of fields varies.
        place, _, source = line.partition(" - ")
        if place.split()[2:3] == [number]:
            return source.split()[0]
    return ""


def _problem(path: Path, *, create: bool) -> tuple[type[LedgerUnusable], str, str] | None:
    """The kind of the error, what was found and what to do about it."""
    folder = path.parent
    if not folder.is_dir():
        return LedgerUnusable, f"there is no folder {folder}", "make the folder; only the file is created"
    if path.is_dir():
        return LedgerUnusable, "that is a folder", "name a file in it"
    if not path.exists() and not create:
        return LedgerMissing, "there is no such file", "correct the path, or start a member, which makes it"
    if create and not _may_write_at(path):
        found = "the file or its folder is read-only for this user"
        return LedgerUnusable, found, "give this user write access to both; only readers do without"
    if path.exists() and not _may(os.R_OK, path):
        return LedgerUnusable, "this user may not read the file", "give this user read access to it"
    if (system := file_system(folder.stat().st_dev)) in NETWORK_FILE_SYSTEMS:
        remedy = (
            "put it on a local disk, because SQLite's write-ahead log needs memory that all members share; for members "
            "on several hosts, use Kafka or Redis as the ledger"
        )
        return LedgerUnusable, f"it is on a network file system ({system})", remedy
    return None


def _mounts() -> str:
    try:
        # A path may hold any bytes, and the type we look for is ASCII.
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # macOS, or a container that hides the file.
        return ""


def _may_write_at(path: Path) -> bool:
    return all(_may(os.W_OK, place) for place in (path, path.parent) if place.exists())


def _may(what: int, place: Path) -> bool:
    return os.access(place, what, effective_ids=os.access in os.supports_effective_ids)


def _primary_code(error: sqlite3.Error) -> int:
    # Python's own errors, such as "closed database", have no code. The upper bits give details.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()
_registering = threading.RLock()  # Held throughout a fork, so that no new file can get a connection meanwhile.
_parked_for_fork: list[SqliteFile] = []


def _before_fork() -> None:
    _registering.acquire()
    for file in list(_files):
        file.turn.acquire()
        _parked_for_fork.append(file)
        file.park()


def _after_fork() -> None:
    while _parked_for_fork:
        _parked_for_fork.pop().turn.release()
    _registering.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
