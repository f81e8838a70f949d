"""The fence on SQLite: it admits, refuses, rejects misuse, and ends with its transaction.

Concurrent writers are in test_races.py and test_postgresql.py; no test here needs a server.
"""

import os
import pickle
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neli_router import fence
from neli_router.fence import RESOURCE_MAX, TERM_MAX, FenceMisused, Refused, Tally
from neli_router.fence.statements import driver_of
from neli_router.member.leases import BaseLease
from neli_router.router.table import Owner


class Grade(IntEnum):
    HIGH = 7


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as opened:
        fence.install(opened)
        opened.commit()
        yield opened


def lease(term: int, partition: int = 3) -> BaseLease:
    return BaseLease("books", partition, term, "alpha", float)


def test_a_term_is_admitted_unless_a_higher_one_was_and_is_counted(connection: sqlite3.Connection) -> None:
    before = fence.tally.admitted, fence.tally.refused
    assert fence.admitted(connection, "invoices") is None
    for term in (0, 7, 7, 9, TERM_MAX):
        fence.admit(connection, "invoices", term)
        assert term == fence.admitted(connection, "invoices")
    fence.admit(connection, "orders", lease(9))
    with pytest.raises(Refused) as caught:
        fence.admit(connection, "orders", lease(7))
    expected = (
        "term 7 was to be admitted to 'orders', but term 9 was already: roll this transaction back and stop the "
        "work: a newer owner has taken it over. If every member is refused, the group's terms started over (another "
        "ledger, or state folders that were lost): start all with a term_base of at least 9"
    )
    # The second error is like one from another process.
    for refused in (caught.value, pickle.loads(pickle.dumps(caught.value))):  # noqa: S301 - pickled here.
        assert ("orders", 7, 9, expected) == (refused.resource, refused.term, refused.admitted, str(refused))
    assert 9 == fence.admitted(connection, "orders")
    with pytest.raises(FenceMisused):
        fence.admit(connection, "invoices", -1)
    assert (6, 1) == (fence.tally.admitted - before[0], fence.tally.refused - before[1])


@pytest.mark.parametrize(
    "name", ["Invoices", "n" * RESOURCE_MAX, "'); DROP TABLE neli_fence; -- %s ? :1 {term} ö"], ids=ascii
)
def test_resources_of_any_names_know_nothing_of_each_other(connection: sqlite3.Connection, name: str) -> None:
    fence.admit(connection, "invoices", 9)
    fence.admit(connection, name, 3)
    assert [9, 3] == [fence.admitted(connection, one) for one in ("invoices", name)]


def test_a_batch_is_new_once_and_a_later_one_ends_all_before_it(connection: sqlite3.Connection) -> None:
    for batch in (-1, True, 1.0, "7", None, 2**63):
        with pytest.raises(FenceMisused, match="a batch was wanted"):
            fence.admit_batch(connection, "invoices", 7, batch)  # type: ignore[arg-type]
    with pytest.raises(FenceMisused, match="at most 194 characters was wanted, if it has batches"):
        fence.admit_batch(connection, "n" * 195, 7, 1)
    assert (None, None) == (fence.admitted(connection, "invoices"), fence.admitted_batch(connection, "invoices"))
    asked = [(7, 0), (7, 0), (7, 5), (7, 3), (9, 5), (9, 6), (9, TERM_MAX)]
    expected = [True, False, True, False, False, True, True]
    assert expected == [fence.admit_batch(connection, "invoices", *one) for one in asked]
    assert (9, TERM_MAX) == (fence.admitted(connection, "invoices"), fence.admitted_batch(connection, "invoices"))
    assert fence.admitted_batch(connection, "orders") is None
    connection.rollback()
    assert fence.admit_batch(connection, "invoices", 9, 1), "it was rolled back"
    connection.commit()
    for batch in (1, 2):
        with pytest.raises(Refused):
            fence.admit_batch(connection, "invoices", 7, batch)
        connection.rollback()
    assert 1 == fence.admitted_batch(connection, "invoices")


PAIRS = (((7, 2), True), ((7, 2), False), ((7, 10), True), ((7, 3), False), (7, True), ((9, 1), True), ((9, 0), False))
"""Terms and pairs, asked one after another, and whether each is admitted. A plain term counts nothing."""


def test_a_pair_is_admitted_if_greater_than_all_before_it_and_is_counted_once(connection: sqlite3.Connection) -> None:
    before = fence.tally.admitted, fence.tally.refused
    for term, is_new in PAIRS:
        with nullcontext() if is_new else pytest.raises(Refused, match=r"the pair .* but it, or a greater one"):
            fence.admit(connection, "invoices", term)
    with pytest.raises(Refused, match="term 7 was to be"):
        fence.admit(connection, "invoices", (7, 11))
    assert (4, 4) == (fence.tally.admitted - before[0], fence.tally.refused - before[1])
    connection.rollback()
    fence.admit(connection, "invoices", (7, 1))


def test_the_transaction_is_the_callers_also_after_a_refusal(connection: sqlite3.Connection, path: Path) -> None:
    with connection:
        fence.admit(connection, "invoices", 9)
    fence.admit(connection, "orders", 7)
    assert connection.in_transaction
    with closing(sqlite3.connect(path)) as other:
        assert fence.admitted(other, "orders") is None
    connection.rollback()
    assert fence.admitted(connection, "orders") is None
    with connection:
        fence.admit(connection, "orders", 1)
        with pytest.raises(Refused):
            fence.admit(connection, "invoices", 7)
    assert 1 == fence.admitted(connection, "orders")
    with pytest.raises(Refused), connection:  # noqa: PT012 - the two are one transaction.
        fence.admit(connection, "orders", 2)
        fence.admit(connection, "invoices", 7)
    assert 1 == fence.admitted(connection, "orders"), "a write that is refused is rolled back with all before it"


def test_a_connection_that_commits_each_statement_is_refused_and_savepoints_hold(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as by_itself:
        fence.install(by_itself)
        with pytest.raises(FenceMisused, match="autocommit mode"):
            fence.admit(by_itself, "invoices", 7)
        assert fence.admitted(by_itself, "invoices") is None
        by_itself.execute("BEGIN IMMEDIATE")
        fence.admit(by_itself, "invoices", 7)
        by_itself.execute("SAVEPOINT step")
        fence.admit(by_itself, "invoices", 9)
        by_itself.execute("ROLLBACK TO step")  # So the write belongs in the same nested transaction.
        by_itself.execute("COMMIT")
        assert 7 == fence.admitted(by_itself, "invoices")
    modern: Any = type("Modern", (sqlite3.Connection,), {"autocommit": True})  # As Python 3.12 has it.
    with closing(sqlite3.connect(path, factory=modern)) as other, pytest.raises(FenceMisused, match="autocommit mode"):
        fence.admit(other, "invoices", 8)


def test_the_table_is_made_once_and_without_it_the_drivers_error_says_how_to_make_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as bare:
        with pytest.raises(sqlite3.OperationalError) as caught:
            fence.admit(bare, "invoices", 7)
        assert ["neli: `install(connection)` of neli_router.fence makes the table; commit it"] == caught.value.__notes__
        fence.install(bare)
        fence.admit(bare, "invoices", 7)
        fence.install(bare)
        assert 7 == fence.admitted(bare, "invoices"), "it keeps what was admitted"


def test_the_fence_is_in_the_file_that_was_opened(connection: sqlite3.Connection, path: Path, tmp_path: Path) -> None:
    """Whatever is attached, and never in a temporary table of the same name. So all writers must open the same file."""
    fence.admit(connection, "invoices", 9)
    connection.commit()
    with closing(sqlite3.connect(path)) as shadowed:
        shadowed.execute("CREATE TEMP TABLE neli_fence (resource TEXT PRIMARY KEY, term BIGINT)")
        fence.install(shadowed)
        assert 9 == fence.admitted(shadowed, "invoices")
        with pytest.raises(Refused):
            fence.admit(shadowed, "invoices", 7)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("ATTACH ? AS work", (str(path),))
        fence.install(other)
        other.commit()
        assert fence.admitted(other, "invoices") is None
        assert [(9,)] == other.execute("SELECT term FROM work.neli_fence").fetchall()


def test_what_is_no_term_or_no_name_is_refused_and_not_shown(connection: sqlite3.Connection) -> None:
    for term in (Owner("beta", "", 3, 7), True, Grade.HIGH, 7.0, -1, TERM_MAX + 1, "7", None, 10**1000, (7,), [7, 1]):
        with pytest.raises(FenceMisused, match="a term was wanted") as caught:
            fence.admit(connection, "invoices", term)  # type: ignore[arg-type]
        assert isinstance(caught.value, TypeError)
        assert type(term).__name__ in caught.value.found
    assert fence.admitted(connection, "invoices") is None
    for name in ("", "n" * (RESOURCE_MAX + 1), "two\nlines", "nul\0", "\ud800", b"bytes", 7, None):
        resource: Any = name
        with pytest.raises(FenceMisused, match="1 to 200 characters") as caught:
            fence.admit(connection, resource, 7)
        assert not resource or str(resource) not in str(caught.value)
        with pytest.raises(FenceMisused):
            fence.admitted(connection, resource)


@pytest.mark.parametrize("paramstyle", ["qmark", "named"])
def test_a_driver_that_nobody_knows_works_by_its_paramstyle(connection: sqlite3.Connection, paramstyle: str) -> None:
    with pytest.raises(FenceMisused, match="which has no cursors"):
        fence.admit(object(), "invoices", 7)
    wrapped = SimpleNamespace(cursor=connection.cursor)
    with pytest.raises(FenceMisused, match="say paramstyle="):
        fence.admit(wrapped, "invoices", 7)
    with pytest.raises(FenceMisused, match="'dollar'"):
        fence.admit(wrapped, "invoices", 7, paramstyle="dollar")
    by_itself = SimpleNamespace(cursor=connection.cursor, autocommit=True)
    with pytest.raises(FenceMisused, match="autocommit mode"):
        fence.admit(by_itself, "invoices", 7, paramstyle=paramstyle)
    fence.install(wrapped, paramstyle=paramstyle)
    fence.admit(wrapped, "invoices", 7, paramstyle=paramstyle)
    assert 7 == fence.admitted(wrapped, "invoices", paramstyle=paramstyle)
    with pytest.raises(Refused):
        fence.admit(wrapped, "invoices", 6, paramstyle=paramstyle)


@pytest.mark.parametrize(
    ("paramstyle", "values", "parameters"),
    [
        ("format", "(%s, %s)", ("invoices", 7)),
        ("numeric", "(:1, :2)", ("invoices", 7)),
        ("pyformat", "(%(resource)s, %(term)s)", {"resource": "invoices", "term": 7}),
    ],
)
def test_a_paramstyle_that_sqlite_does_not_have_is_spelled(paramstyle: str, values: str, parameters: object) -> None:
    text, found = driver_of(SimpleNamespace(cursor=print), paramstyle).admit("invoices", 7)
    assert f"VALUES {values} ON" in text
    assert parameters == found


@pytest.mark.parametrize("shape", [sqlite3.Row, lambda cursor, row: {"term": row[0]}, lambda cursor, row: None])
def test_a_derived_connection_is_known_and_rows_may_have_any_shape(path: Path, shape: Any) -> None:
    derived: type[sqlite3.Connection] = type("Derived", (sqlite3.Connection,), {})
    with closing(sqlite3.connect(path, factory=derived)) as opened:
        opened.row_factory = shape
        fence.install(opened)
        fence.admit(opened, "invoices", 9)
        assert 9 == fence.admitted(opened, "invoices")
        with pytest.raises(Refused) as caught:
            fence.admit(opened, "invoices", 7)
    assert 9 == caught.value.admitted


def test_threads_that_count_lose_nothing_and_a_forked_child_counts_from_nothing() -> None:
    tally = Tally()

    def count(times: int) -> None:
        for _ in range(times):
            tally.count(refused=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, [2000] * 4))
    assert (0, 8000) == (tally.admitted, tally.refused)
    fence.tally.count(refused=False)
    if (child := os.fork()) == 0:
        os._exit(fence.tally.admitted + fence.tally.refused)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
