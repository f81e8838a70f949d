"""Translate the faults of an SQLite file into words that say what to do.

    before opening   no folder, a folder, no file, read-only, a network file system   LedgerUnusable
    SQLite says      BUSY, LOCKED, PROTOCOL, FULL, IOERR, CANTOPEN                    LedgerUnavailable: may heal
                     READONLY, CORRUPT, NOTADB, everything else                       LedgerUnusable: will not

The first row exists because SQLite has one answer, "unable to open database file", for most of its cases. CANTOPEN may
heal, because the one case that remains is mostly a process that has too many open files.
"""

import os
import sqlite3
from pathlib import Path

from neli_router.errors import LedgerError, LedgerMissing, LedgerUnavailable, LedgerUnusable

__all__ = ["damaged", "explain", "file_system", "is_busy", "refuse_unusable_place"]

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"),
        *("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""File systems on which a second host may have the same file, without our shared memory and perhaps without our locks.
The list cannot be complete. Folders that a virtual machine shares with its host (9p, virtiofs) pass: inside one machine
they work."""

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


def is_busy(error: sqlite3.Error) -> bool:
    """True if another process holds a lock that is usually released in a moment."""
    return _primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def explain(error: sqlite3.Error, path: Path, purpose: str) -> LedgerError:
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


def file_system(device: int, mounts: str) -> str:
    """The type of the file system with this device number, from the text of /proc/self/mountinfo; or nothing."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
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
        return LedgerMissing, "there is no such file", "correct the path, or let the ledger be created"
    if not all(_may_write(place) for place in (path, folder) if place.exists()):
        found = "the file or its folder is read-only for this user"
        return LedgerUnusable, found, "give this user write access to both"
    if (system := file_system(folder.stat().st_dev, _mounts())) in NETWORK_FILE_SYSTEMS:
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


def _may_write(place: Path) -> bool:
    return os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _primary_code(error: sqlite3.Error) -> int:
    # Python's own errors, such as "closed database", have no code. The upper bits give details.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
