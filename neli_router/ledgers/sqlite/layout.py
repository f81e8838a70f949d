"""What makes an SQLite file a ledger, how an empty one becomes one, and how every other file is refused.

    no bytes --create--> ours --journal_mode--> ours, with a write-ahead log
    anything else: LedgerUnusable, and not a byte of it changes

A file is ours if its header carries our application id and a layout that this release knows, and a table names the
group it belongs to. All of it is written in one transaction, and the write-ahead log is switched on after that: so a
process killed in between leaves either an empty file or a ledger that the next one can finish.
"""

import sqlite3
from pathlib import Path
from typing import Any

from neli_router.errors import LedgerUnusable

__all__ = ["APPLICATION_ID", "LAYOUT", "recognise"]

APPLICATION_ID = int.from_bytes(b"NELI")  # The command `file` and other tools see it in the header, too.

LAYOUT = 1  # Of the tables below. Another layout gets another number, and each release refuses those it does not know.

_TABLES = (
    "CREATE TABLE belongs_to (group_name TEXT NOT NULL)",
    "CREATE TABLE records (offset INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB NOT NULL, checksum INTEGER NOT NULL)",
)


def recognise(connection: sqlite3.Connection, path: Path, *, group: str, create: bool) -> None:
    """Make an empty file a ledger if we may; raise LedgerUnusable, before anything is written, if it is not ours."""

    def require(met: bool, found: str, remedy: str) -> None:
        if not met:
            raise LedgerUnusable(f"the ledger of the group {group!r} was wanted in {path}", found, remedy)

    if _ask(connection, "PRAGMA page_count") == 0:
        require(create, "the file is empty", "correct the path, or let the ledger be created")
        # SQLite takes a file of a few bytes for an empty one. Asked again, because somebody else may have made it.
        few_bytes = path.stat().st_size > 0 and _ask(connection, "PRAGMA page_count") == 0
        require(not few_bytes, "the file holds something else", "name another file; this one was left as it was")
        _create(connection, group)
    require(
        _ask(connection, "PRAGMA application_id") == APPLICATION_ID,
        "the file holds something else (its application id is not NELI's)",
        "name another file; this one was left as it was",
    )
    layout = _ask(connection, "PRAGMA user_version")
    require(
        layout == LAYOUT,
        f"its layout is {layout}, and this release knows layout {LAYOUT}",
        "use the release that made it, or let the group start on a new file",
    )
    owner = _ask(connection, "SELECT group_name FROM belongs_to")
    require(
        owner == group,
        f"the file belongs to the group {owner!r}",
        f"correct the group's name, or give the group {group!r} a file of its own",
    )
    require(
        _ask(connection, "PRAGMA journal_mode = WAL") == "wal",
        "SQLite cannot keep a write-ahead log there",
        "put the ledger on a local file system that has shared memory",
    )
    _ask(connection, "PRAGMA user_version")  # The first read in the new mode makes the log, and holds it from now on.


def _create(connection: sqlite3.Connection, group: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    # Still empty? Somebody else may have been faster. (The transaction itself has made a first page by now.)
    if _ask(connection, "SELECT count(*) FROM sqlite_master") == 0:
        for table in _TABLES:
            connection.execute(table)
        connection.execute("INSERT INTO belongs_to VALUES (?)", (group,))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {LAYOUT}")
    connection.execute("COMMIT")


def _ask(connection: sqlite3.Connection, question: str) -> Any:
    """The one value that answers, or None."""
    row = connection.execute(question).fetchone()
    return None if row is None else row[0]
