"""Owners in PostgreSQL: plain SQL, rights, junk and silence. `test_contract.py` has what every store promises.

members, claims --publish()--> a PostgreSQL of the test's own --rows, NOTIFY--> Router.from_postgresql
                                '--SELECT owner FROM neli.owners WHERE partition = neli.partition('customer-42')
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.postgresql.schema import LOCK
from neli_router.drivers.open import owners_at
from neli_router.drivers.owners import postgresql
from neli_router.drivers.owners.base import Claim, Holding, Owners, Version
from neli_router.errors import LedgerUnavailable, LedgerUnusable
from neli_router.router.async_router import AsyncRouter
from neli_router.router.router import Router
from tests.drivers.owners.claims import ALL, LAYOUT, claim, everything, member, names
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.postgresql

Ask = Callable[..., list[tuple[Any, ...]]]

OWNER = "SELECT owner, address FROM neli.owners WHERE partition = neli.partition(%s)"


@pytest.fixture
def address(database: str) -> str:
    """The address of a group in a database without any schema of ours."""
    return f"{database}?group=jobs"


@pytest.fixture
def owners(address: str) -> Iterator[Owners]:
    with closing(owners_at(address).open()) as opened:
        yield opened


@pytest.fixture
def ask(database: str) -> Iterator[Ask]:
    """Runs a statement in the database, and returns its rows."""
    with psycopg.connect(database, autocommit=True) as connection:

        def run(statement: str, *values: Any) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement.encode(), values or None)
            return [] if cursor.description is None else cursor.fetchall()

        yield run


def _is_published(store: Owners, said: Claim) -> bool:
    try:
        store.publish(LAYOUT, said)
    except LedgerUnavailable:  # On a busy machine, it has waited for a lock for too long.
        return False
    return True


def told(reader: Owners) -> list[tuple[int, Any]]:
    """The next changes: revision, holdings."""
    return [(one.version.revision, one.holdings) for one in reader.follow(PATIENCE)]


def test_plain_sql_and_routers_name_the_owners_that_members_publish(ask: Ask, address: str, tmp_path: Path) -> None:
    async def name_of(key: str) -> str:
        async with AsyncRouter.from_postgresql(address) as router:
            return router.owner(key).name

    ledger = tmp_path / "ledger.db"
    with Router.from_postgresql(address, wait=False) as router:
        with member(address, "a", ledger=ledger, lease=2.0), member(address, "b", ledger=ledger, lease=2.0):
            until(lambda: sorted(names(router)) == ["a"] * 4 + ["b"] * 4)
            for key in ("customer-42", "customer-7", "Zoë"):
                owner = router.owner(key)
                assert [(owner.name, owner.address)] == ask(OWNER, key) == ask(OWNER, key.encode())
                assert owner.name == asyncio.run(name_of(key))
        until(lambda: names(router) == ["-"] * 8)
        assert [] == ask(OWNER, "customer-42")


def test_the_partition_of_a_key_is_that_of_its_group(ask: Ask, database: str, owners: Owners) -> None:
    def partition(*words: str) -> int:
        ((found,),) = ask(f"SELECT neli.partition({', '.join(['%s'] * len(words))})", *words)
        return int(found)

    with closing(owners_at(f"{database}?group=more").open()) as others:
        tagged = Layout(slots=100, partitions=7, tags=True)
        with pytest.raises(psycopg.errors.InvalidSchemaName):
            partition("key")
        owners.publish(LAYOUT, claim("a", {1: 10}))
        assert LAYOUT.partition("{a}b") == partition("{a}b") == partition("{a}b", "jobs")
        with pytest.raises(psycopg.Error, match="a group was wanted, but 'job' was given: name one of jobs"):
            partition("key", "job")
        others.publish(tagged, claim("a", {1: 10}))
        assert tagged.partition("{a}b") == partition("{a}b", "more")
        with pytest.raises(psycopg.Error, match="a group was wanted, but none was given: name one of jobs, more"):
            partition("key")
        ask("DELETE FROM neli.layouts")
        assert Layout().partition("{a}b") == partition("{a}b")


def test_each_of_many_changes_is_told_and_after_too_many_the_table_is_read(
    address: str, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners.publish(LAYOUT, claim("a", {1: 10}))
    with closing(owners_at(address).open()) as reader, Router.from_postgresql(address) as router:
        assert 1 == reader.table().version.revision
        for term in (11, 12, 13):
            owners.publish(LAYOUT, claim("a", {term % 2: term}))
        # Nothing is left of the second change: the last one overwrote it.
        later = [(3, {0: Holding(12, "id-of-a")}), (4, {1: Holding(13, "id-of-a")})]
        assert [(2, {}), *later] == told(reader)
        monkeypatch.setattr(postgresql, "CHANGES_MAX", 1)
        for term in range(20, 30):
            owners.publish(LAYOUT, everything("a", term))
        until(lambda: names(router) == ["a"] * 8 and router.owner("key").term == 29)


def test_changes_are_found_where_no_notification_arrives(
    address: str, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that gives each transaction another session."""
    monkeypatch.setattr("neli_router.drivers.ledgers.postgresql.link.SqlLink.listen", lambda *_: None)
    version = owners.publish(LAYOUT, everything("a")).version
    with closing(owners_at(address).open()) as reader:
        reader.table()
        for term in (11, 12, 13):  # Only the regular questions of a router find these.
            owners.publish(LAYOUT, everything("a", term))
            assert [] == reader.follow(0.01)
            listing = reader.table(version)
            assert listing.holdings == dict.fromkeys(ALL, Holding(term, "id-of-a"))
            version = listing.version
        owners.publish(LAYOUT, claim("b", {1: 14}))
        assert [(5, {1: Holding(14, "id-of-b")})] == told(reader)


def test_members_that_begin_at_the_same_time_make_one_schema_and_no_lower_term_wins(
    ask: Ask, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.drivers.ledgers.postgresql.link.ANSWER_MAX", PATIENCE)

    def publish(number: int) -> None:
        with closing(owners_at(address).open()) as opened:
            for term in range(10):
                until(lambda: _is_published(opened, everything(f"m{number}", term * 10 + number)))  # noqa: B023 - it is over by then.

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
    assert [(97, "id-of-m7", 8)] == ask("SELECT term, holder, count(*) FROM neli.holdings GROUP BY 1, 2")


def test_a_claim_waits_for_one_that_is_not_committed_and_is_then_refused(
    ask: Ask, database: str, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.drivers.ledgers.postgresql.link.ANSWER_MAX", PATIENCE)
    owners.publish(LAYOUT, everything("a"))
    owners.close()
    blocked = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    with psycopg.connect(database) as newer, ThreadPoolExecutor(1) as pool:
        # By hand, what `publish` does before it commits.
        newer.execute("UPDATE neli.layouts SET revision = revision + 1")
        newer.execute("UPDATE neli.holdings SET term = 12, holder = 'id-of-c', revision = 2")
        with pytest.raises(LedgerUnavailable, match="55P03"):  # The server ends the wait, not only the client.
            owners.publish(LAYOUT, everything("b", 11))
        older = pool.submit(owners.publish, LAYOUT, everything("b", 11))
        until(lambda: ask(blocked) or older.done())
        newer.commit()
        with suppress(LedgerUnavailable):  # On a busy machine, it may have waited for too long.
            assert tuple(ALL) == older.result(PATIENCE).refused
    assert dict.fromkeys(ALL, Holding(12, "id-of-c")) == owners.table().holdings


def test_a_member_that_hangs_while_it_makes_the_schema_holds_up_no_other_for_long(
    database: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.drivers.ledgers.postgresql.link.ANSWER_MAX", PATIENCE)
    lock = "SELECT pg_advisory_xact_lock(%s)", (LOCK,)
    with closing(owners_at(address).open()) as opened, psycopg.connect(database) as hung:
        hung.execute(*lock)
        with pytest.raises(LedgerUnavailable, match="55P03"):
            opened.publish(LAYOUT, everything("a"))
        hung.rollback()
        assert _is_published(opened, everything("a"))
        opened.close()
        hung.execute(*lock)
        assert _is_published(opened, everything("a", 11))  # The schema is there, so no lock is taken.


def test_a_reader_makes_nothing_and_users_with_few_rights_work(ask: Ask, database: str, address: str) -> None:
    ask("DROP ROLE IF EXISTS teller; CREATE ROLE teller LOGIN")
    ask("DROP ROLE IF EXISTS asker; CREATE ROLE asker LOGIN")
    teller, asker = (address.replace("neli@", f"{user}@") for user in ("teller", "asker"))
    with Router.from_postgresql(asker) as router:
        assert [] == ask("SELECT 1 FROM pg_namespace WHERE nspname = 'neli'")
        with (
            closing(owners_at(teller).open()) as opened,
            pytest.raises(LedgerUnusable, match="permission denied for database"),
        ):
            opened.publish(LAYOUT, claim("a", {1: 10}))
        with closing(owners_at(f"{database}?group=others").open()) as opened:  # By a role that may, for any group.
            opened.publish(LAYOUT, claim("a", {1: 10}))
        ask(GRANTS)
        with closing(owners_at(teller).open()) as opened:
            opened.publish(LAYOUT, everything("a"))
        until(lambda: names(router) == ["a"] * 8)
    with closing(owners_at(asker).open()) as opened:
        with pytest.raises(LedgerUnusable, match="42501: permission denied"):
            opened.publish(LAYOUT, claim("a", {1: 11}))
        assert 10 == (opened.table().holdings or {})[1].term
    ask("DROP OWNED BY teller, asker; DROP ROLE teller, asker")


GRANTS = """
GRANT USAGE ON SCHEMA neli TO teller, asker;
GRANT SELECT, INSERT, UPDATE, DELETE ON neli.layouts, neli.holders, neli.holdings TO teller;
GRANT SELECT ON neli.layouts, neli.holders, neli.holdings TO asker;
"""


def test_who_is_silent_for_a_day_is_forgotten_and_its_terms_stay(ask: Ask, owners: Owners) -> None:
    before = owners.publish(LAYOUT, claim("a", {1: 10})).version
    ask("UPDATE neli.holders SET expires = now()")
    assert [] == ask("SELECT 1 FROM neli.owners")
    assert before.revision + 1 == owners.publish(LAYOUT, claim("a", {})).version.revision  # It is back: a change.
    ask("UPDATE neli.holders SET expires = expires - interval '25 hours'")
    owners.publish(LAYOUT, claim("b", {2: 10}))
    listing = owners.table()
    assert ["id-of-b"] == list(listing.holders)
    assert {1: Holding(10, "id-of-a"), 2: Holding(10, "id-of-b")} == listing.holdings
    assert [("b", 2)] == ask("SELECT owner, partition FROM neli.owners")


def test_a_dropped_schema_is_made_again_and_another_version_of_the_table_begins(
    ask: Ask, address: str, owners: Owners
) -> None:
    before = owners.publish(LAYOUT, everything("a", 20)).version
    with Router.from_postgresql(address) as router:
        assert ["a"] * 8 == names(router)
        ask("DROP SCHEMA neli CASCADE")
        until(lambda: [] == names(router))
        with pytest.raises(LedgerUnusable, match="3F000"):
            owners.publish(LAYOUT, everything("a", 20))
        after = owners.publish(LAYOUT, everything("b")).version
        assert before.since != after.since != Version().since
        until(lambda: names(router) == ["b"] * 8)


@pytest.mark.parametrize(
    "junk",
    [
        "UPDATE neli.layouts SET slots = 2147483648, partitions = 2147483648",
        "UPDATE neli.layouts SET slots = 4",
        "UPDATE neli.holdings SET partition = 8",
        "DELETE FROM neli.layouts",
    ],
)
def test_junk_in_the_table_is_told_as_such(ask: Ask, owners: Owners, junk: str) -> None:
    """The first would make a router allocate two thousand million rows."""
    owners.publish(LAYOUT, claim("a", {1: 10}))
    ask(junk)
    with pytest.raises(LedgerUnusable, match="something else stands there"):
        owners.table()


def test_groups_and_schemas_do_not_see_each_other(database: str, address: str, owners: Owners) -> None:
    owners.publish(LAYOUT, everything("a"))
    for other in (f"{database}?group=more", f"{address}&schema=others"):
        with closing(owners_at(other).open()) as opened:
            assert Version() == opened.table().version
            assert () == opened.publish(LAYOUT, claim("b", {1: 5})).refused
            assert {1: Holding(5, "id-of-b")} == opened.table().holdings
    assert dict.fromkeys(ALL, Holding(10, "id-of-a")) == owners.table().holdings
