"""The fence on a real PostgreSQL: of two concurrent transactions, which one waits, and which one is refused.

     older, term 7   ---- admit ------------------------------ blocked ...... Refused
     newer, term 9   ------------ admit ---- write --- COMMIT ----^

The tests ask the server whether a transaction waits (`pg_blocking_pids`); they do not guess from the time it takes.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import class_row, dict_row, scalar_row

from neli_router import fence
from neli_router.fence import TERM_MAX, FenceMisused, Refused, asynchronous
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.postgresql

Connection = psycopg.Connection[Any]
Either = Connection | psycopg.AsyncConnection[Any]


@contextmanager
def two(address: str) -> Iterator[tuple[Connection, Connection]]:
    with psycopg.connect(address) as older, psycopg.connect(address) as newer:
        yield older, newer


@contextmanager
def beside(act: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Run `act` on another thread, because it will block."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(act)


def wait_until_blocked(address: str, blocked: Either, by: Either) -> None:
    asked = "SELECT %s = ANY(pg_blocking_pids(%s))"
    pids = by.info.backend_pid, blocked.info.backend_pid
    with psycopg.connect(address, autocommit=True) as watching:
        until(lambda: watching.execute(asked, pids).fetchone() == (True,), "one that is blocked")


def admitted(address: str, resource: str = "notes") -> int | None:
    with psycopg.connect(address) as connection:
        return fence.admitted(connection, resource)


def write(connection: Connection, term: int, body: str) -> None:
    """An owner's whole transaction: the fence, and what it protects."""
    replaces = "ON CONFLICT (id) DO UPDATE SET body = excluded.body"
    with connection.transaction():
        fence.admit(connection, "notes", term)
        connection.execute(f"INSERT INTO notes VALUES ('a', %s, 0) {replaces}", (body,))


def bodies(address: str) -> list[str]:
    with psycopg.connect(address) as connection:
        return [row[0] for row in connection.execute("SELECT body FROM notes").fetchall()]


@pytest.mark.parametrize("factory", [dict_row, scalar_row, class_row(dict)])
def test_it_admits_and_refuses_whatever_rows_the_caller_likes(address: str, factory: Any) -> None:
    with psycopg.connect(address, row_factory=factory) as connection:
        for term in (0, 7, 7, 9, TERM_MAX):
            fence.admit(connection, "notes", term)
        assert TERM_MAX == fence.admitted(connection, "notes")
        with pytest.raises(Refused) as caught:
            fence.admit(connection, "notes", 9)
    assert ("notes", 9, TERM_MAX) == (caught.value.resource, caught.value.term, caught.value.admitted)


@pytest.mark.parametrize("first", [None, 5])
def test_a_zombie_waits_for_the_newer_owner_and_is_then_refused(address: str, first: int | None) -> None:
    """Also if no term was admitted before, so that there is not yet a row to wait for."""
    with two(address) as (older, newer):
        if first is not None:
            write(older, first, "first")
        with newer.transaction():
            fence.admit(newer, "notes", 9)
            with beside(lambda: write(older, 7, "zombie")) as zombie:
                wait_until_blocked(address, older, newer)
                newer.execute("INSERT INTO notes VALUES ('b', 'new', 9)")
                newer.execute("COMMIT; BEGIN")
                with pytest.raises(Refused) as caught:
                    zombie.result(PATIENCE)
    assert (7, 9) == (caught.value.term, caught.value.admitted)
    assert "zombie" not in bodies(address)
    assert 9 == admitted(address)


def test_the_newer_owner_waits_for_an_older_write_that_is_not_committed_and_then_sees_it(address: str) -> None:
    """So the newer owner reads *after* it was admitted: the older owner's writes are there, and none will follow."""
    with two(address) as (older, newer):
        seen: list[Any] = []

        def take_over() -> None:
            with newer.transaction():
                fence.admit(newer, "notes", 9)
                seen.extend(newer.execute("SELECT body FROM notes").fetchall())

        fence.admit(older, "notes", 7)
        older.execute("INSERT INTO notes VALUES ('a', 'last words', 7)")
        with beside(take_over) as taking:
            wait_until_blocked(address, newer, older)
            older.commit()
            taking.result(PATIENCE)
        assert [("last words",)] == seen
        with pytest.raises(Refused):
            write(older, 7, "zombie")


@pytest.mark.parametrize(("term", "end", "is_new"), [(7, "COMMIT", False), (9, "ROLLBACK", True)])
def test_the_second_writer_waits_for_the_first_whose_rollback_restores_the_fence(
    address: str, term: int, end: str, *, is_new: bool
) -> None:
    """A committed batch is not written again. After a rollback, even of the first admission, a lower term writes."""
    with two(address) as (one, other):
        assert fence.admit_batch(one, "notes", term, 1)
        with beside(lambda: fence.admit_batch(other, "notes", 7, 1)) as asking:
            wait_until_blocked(address, other, one)
            one.execute(end)
            assert is_new == asking.result(PATIENCE)
    assert 7 == admitted(address)


def test_resources_do_not_wait_for_each_other_and_another_search_path_is_another_fence(address: str) -> None:
    with two(address) as (older, newer):
        fence.admit(newer, "notes", 9)
        older.execute("SET lock_timeout = '1ms'")
        fence.admit(older, "orders", 7)
        newer.commit()
        newer.execute("DROP SCHEMA IF EXISTS elsewhere CASCADE; CREATE SCHEMA elsewhere")
        newer.execute("SET search_path TO elsewhere, public")
        assert 9 == fence.admitted(newer, "notes")
        fence.install(newer)
        assert fence.admitted(newer, "notes") is None
        newer.rollback()


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_stricter_isolation_refuses_in_the_servers_words(address: str, level: psycopg.IsolationLevel) -> None:
    """A zombie with a snapshot from before the newer owner's commit must retry its transaction, and is then refused."""
    with two(address) as (older, newer):
        older.isolation_level = level
        older.execute("SELECT * FROM notes")
        write(newer, 9, "new")
        with pytest.raises(psycopg.errors.SerializationFailure):
            fence.admit(older, "notes", 7)
        older.rollback()
        with pytest.raises(Refused):
            fence.admit(older, "notes", 7)
    assert ["new"] == bodies(address)


def test_a_connection_that_commits_each_statement_or_is_in_pipeline_mode_is_refused(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as by_itself:
        with pytest.raises(FenceMisused, match="autocommit mode"):
            fence.admit(by_itself, "notes", 7)
        assert admitted(address) is None
        with by_itself.transaction():
            fence.admit(by_itself, "notes", 7)
    assert 7 == admitted(address)
    with psycopg.connect(address) as connection:
        with connection.pipeline(), pytest.raises(FenceMisused, match="it is in pipeline mode"):
            fence.admit(connection, "notes", 9)
        fence.admit(connection, "notes", 9)
        with connection.pipeline():
            connection.execute("INSERT INTO notes VALUES ('a', 'nine', 9)")
    assert (9, ["nine"]) == (admitted(address), bodies(address))


@pytest.mark.parametrize("autocommit", [True, False])
def test_many_may_make_the_table_at_once(address: str, autocommit: bool) -> None:
    with psycopg.connect(address) as connection:
        connection.execute("DROP TABLE neli_fence")
    barrier = threading.Barrier(8)

    def make(_: int) -> None:
        with psycopg.connect(address, autocommit=autocommit) as own:
            barrier.wait()
            fence.install(own)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(8)))
    assert admitted(address) is None


def test_the_table_refuses_no_terms_and_the_error_without_it_says_how_to_make_it(address: str) -> None:
    with psycopg.connect(address) as connection:
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("INSERT INTO neli_fence VALUES ('notes', -1)")
        connection.rollback()
        connection.execute("DROP TABLE neli_fence")
        with pytest.raises(psycopg.errors.UndefinedTable) as caught:
            fence.admit(connection, "notes", 7)
    assert ["neli: `install(connection)` of neli_router.fence makes the table; commit it"] == caught.value.__notes__


def test_a_users_own_update_is_fenced_by_the_row_that_it_changes(address: str) -> None:
    """The recipe of docs/fencing.md: the comparison is repeated after the wait for the newer transaction."""
    recipe = "UPDATE notes SET body = %(body)s, fence = %(term)s WHERE id = %(id)s AND fence <= %(term)s"
    with two(address) as (older, newer):
        older.execute("INSERT INTO notes VALUES ('a', 'first', 5)")
        older.commit()
        assert 1 == newer.execute(recipe, {"id": "a", "body": "new", "term": 9}).rowcount
        with beside(lambda: older.execute(recipe, {"id": "a", "body": "zombie", "term": 7}).rowcount) as zombie:
            wait_until_blocked(address, older, newer)
            newer.commit()
            assert 0 == zombie.result(PATIENCE)
    assert ["new"] == bodies(address)


def test_the_awaited_form_waits_and_refuses_alike_also_after_a_wait_that_was_cancelled(address: str) -> None:
    """`test_races.py` has its other answers, without a server."""

    async def script() -> None:
        older = await psycopg.AsyncConnection.connect(address, row_factory=dict_row)
        newer = await psycopg.AsyncConnection.connect(address)
        async with older, newer:
            await asynchronous.admit(newer, "notes", 9)
            for is_cancelled in (True, False):
                zombie = asyncio.create_task(asynchronous.admit(older, "notes", 7))
                await asyncio.to_thread(wait_until_blocked, address, older, newer)
                if is_cancelled:
                    zombie.cancel()
                else:
                    await newer.commit()
                with pytest.raises(asyncio.CancelledError if is_cancelled else Refused):
                    await zombie
                await older.rollback()
            assert 9 == await asynchronous.admitted(older, "notes")

    asyncio.run(script())


def test_two_resources_in_opposite_order_deadlock_and_the_servers_error_says_what_to_do(address: str) -> None:
    """The server ends one of the two. In the order of their names, the second would wait."""
    with two(address) as (one, other):
        fence.admit(one, "a", 7)
        fence.admit(other, "b", 7)
        with beside(lambda: fence.admit(one, "b", 7)) as first:
            wait_until_blocked(address, one, other)
            failures = []
            try:
                fence.admit(other, "a", 7)
            except psycopg.errors.DeadlockDetected as error:
                failures.append(error)
            other.rollback()
            if (ended := first.exception(PATIENCE)) is not None:
                assert isinstance(ended, psycopg.errors.DeadlockDetected)
                failures.append(ended)
        remedy = "neli: roll back and try again; admit several resources in the order of their names"
        assert [[remedy]] == [failure.__notes__ for failure in failures]
