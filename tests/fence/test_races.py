"""The fence against a process that is stopped in its work and wakes up too late; and the awaited form, on SQLite.

    zombie   lease.check()  SIGSTOP ........................ SIGCONT  BEGIN IMMEDIATE  admit(7) --> Refused
    newer                            admit(9)  write  COMMIT

The database is SQLite or PostgreSQL. In test_postgresql.py, the zombie has begun its transaction, and waits.
"""

import asyncio
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from neli_router import fence
from neli_router.fence import FenceMisused, Refused, asynchronous
from tests.support.processes.forked import Program, state_of
from tests.support.waiting import until

ZOMBIE = """
import sqlite3, sys
import psycopg
from neli_router import fence

kind, address = sys.argv[1:]
if kind == "sqlite":
    connection = sqlite3.connect(address, timeout=60)
else:
    connection = psycopg.connect(address)
print("working under term 7", flush=True)
sys.stdin.readline()
try:
    if kind == "sqlite":
        connection.execute("BEGIN IMMEDIATE")
    fence.admit(connection, "notes", 7)
    connection.execute("INSERT INTO notes VALUES ('z', 'zombie', 7)")
    connection.commit()
except fence.Refused as refused:
    connection.rollback()
    print(refused.term, "refused by", refused.admitted, fence.tally.refused, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "work.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT NOT NULL, fence BIGINT NOT NULL)")
        fence.install(connection)
        connection.commit()
    return path


@contextmanager
def zombie(kind: str, address: str, folder: Path) -> Iterator[Program]:
    """A process that is about to write under term 7, and is stopped."""
    with Program(ZOMBIE, kind, address, folder=folder) as process:
        assert "working under term 7\n" == process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        until(lambda: state_of(process.pid) == "T", "the stop")
        # From now on only the signal keeps it from going on.
        process.stdin.write("go on\n")
        process.stdin.flush()
        yield process


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_a_process_that_was_stopped_in_its_work_is_refused_when_it_wakes_up(
    kind: str, path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = str(path) if kind == "sqlite" else request.getfixturevalue("address")
    newer: Any = sqlite3.connect(address) if kind == "sqlite" else psycopg.connect(address)
    with zombie(kind, address, tmp_path) as process, closing(newer):
        # Act like a new owner: raise the fence and commit it; then read, and write.
        fence.admit(newer, "notes", 9)
        newer.commit()
        assert [] == newer.execute("SELECT * FROM notes").fetchall()
        fence.admit(newer, "notes", 9)
        newer.execute("INSERT INTO notes VALUES ('n', 'newer', 9)")
        newer.commit()
        process.send_signal(signal.SIGCONT)
        assert "7 refused by 9 1\n" == process.stdout.readline()
        assert [("newer",)] == newer.execute("SELECT body FROM notes").fetchall()


class Awaited:
    """SQLite with aiosqlite's interface: every method is awaited, including `cursor`. (This one runs them in place.)"""

    def __init__(self, inner: sqlite3.Connection | sqlite3.Cursor) -> None:
        self._inner: Any = inner

    @property
    def rowcount(self) -> int:
        return int(self._inner.rowcount)

    async def cursor(self) -> "Awaited":
        return Awaited(self._inner.cursor())

    async def execute(self, statement: str, parameters: Any = ()) -> None:
        self._inner.execute(statement, parameters)

    async def fetchone(self) -> Any:
        return self._inner.fetchone()

    async def close(self) -> None:
        self._inner.close()


def test_the_awaited_form_gives_the_same_answers(path: Path) -> None:
    async def script() -> Refused:
        with closing(sqlite3.connect(path)) as inner:
            connection = Awaited(inner)
            with pytest.raises(FenceMisused, match="say paramstyle="):
                await asynchronous.admit(connection, "notes", 9)
            await asynchronous.install(connection, paramstyle="qmark")
            await asynchronous.admit(connection, "notes", 9, paramstyle="qmark")
            assert inner.in_transaction
            assert 9 == await asynchronous.admitted(connection, "notes", paramstyle="qmark")
            with pytest.raises(Refused) as caught:
                await asynchronous.admit(connection, "notes", 7, paramstyle="qmark")
            inner.rollback()
            assert await asynchronous.admitted(connection, "notes", paramstyle="qmark") is None
            asked = [(7, 1), (7, 1), (7, 2)]
            is_new = [await asynchronous.admit_batch(connection, "notes", *one, paramstyle="qmark") for one in asked]
            assert [True, False, True] == is_new
            assert 2 == await asynchronous.admitted_batch(connection, "notes", paramstyle="qmark")
            inner.rollback()
            await asynchronous.admit(connection, "notes", (7, 1), paramstyle="qmark")
            with pytest.raises(Refused, match=r"the pair \(7, 1\) was to be admitted"):
                await asynchronous.admit(connection, "notes", (7, 1), paramstyle="qmark")
        return caught.value

    before = fence.tally.admitted, fence.tally.refused
    refused = asyncio.run(script())
    assert ("notes", 7, 9) == (refused.resource, refused.term, refused.admitted)
    assert (5, 2) == (fence.tally.admitted - before[0], fence.tally.refused - before[1])
