"""Owners in PostgreSQL: plain SQL, rights, junk and silence. `test_contract.py` has what every store promises.

members, claims --publish()--> a PostgreSQL of the test's own --rows, NOTIFY--> Router.from_postgresql
                                '--SELECT owner FROM neli.owners WHERE partition = neli.partition('customer-42')
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from neli_router.core.keyspace import Layout
from neli_router.drivers.open import owners_at
from neli_router.drivers.owners import postgresql
from neli_router.drivers.owners.base import Holding, Owners, Version
from neli_router.errors import ConfigError, LedgerUnusable
from neli_router.router.async_router import AsyncRouter
from neli_router.router.router import Router
from tests.drivers.owners.claims import ALL, LAYOUT, claim, everything, member, names
from tests.support.servers.postgresql import Postgresql
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.postgresql

OWNER = "SELECT owner, address FROM neli.owners WHERE partition = neli.partition(%s)"


@pytest.fixture(scope="module")
def shared() -> Iterator[Postgresql]:
    with Postgresql.started() as started:
        yield started


@pytest.fixture
def server(shared: Postgresql) -> Postgresql:
    """A server that is empty."""
    shared.run("DROP SCHEMA IF EXISTS neli CASCADE")
    return shared


@pytest.fixture
def owners(server: Postgresql) -> Iterator[Owners]:
    with closing(owners_at(server.url("jobs")).open()) as opened:
        yield opened


def told(reader: Owners) -> list[tuple[int, Any]]:
    """The next changes: revision, holdings."""
    return [(one.version.revision, one.holdings) for one in reader.follow(PATIENCE)]


def test_plain_sql_and_routers_name_the_owners_that_members_publish(server: Postgresql, tmp_path: Path) -> None:
    async def name_of(key: str) -> str:
        async with AsyncRouter.from_postgresql(server.url("jobs")) as router:
            return router.owner(key).name

    ledger = tmp_path / "ledger.db"
    with Router.from_postgresql(server.url("jobs"), wait=False) as router:
        with (
            member(server.url("jobs"), "a", ledger=ledger, lease=2.0),
            member(server.url("jobs"), "b", ledger=ledger, lease=2.0),
        ):
            until(lambda: sorted(names(router)) == ["a"] * 4 + ["b"] * 4)
            for key in ("customer-42", "customer-7", "Zoë"):
                owner = router.owner(key)
                assert [(owner.name, owner.address)] == server.run(OWNER, key) == server.run(OWNER, key.encode())
                assert owner.name == asyncio.run(name_of(key))
        until(lambda: names(router) == ["-"] * 8)
        assert [] == server.run(OWNER, "customer-42")


def test_the_partition_of_a_key_is_that_of_its_group(server: Postgresql, owners: Owners) -> None:
    def partition(*words: str) -> int:
        ((found,),) = server.run(f"SELECT neli.partition({', '.join(['%s'] * len(words))})", *words)
        return int(found)

    with closing(owners_at(server.url("more")).open()) as others:
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
        server.run("DELETE FROM neli.layouts")
        assert Layout().partition("{a}b") == partition("{a}b")


def test_each_of_many_changes_is_told_and_after_too_many_the_table_is_read(
    server: Postgresql, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners.publish(LAYOUT, claim("a", {1: 10}))
    with closing(owners_at(server.url("jobs")).open()) as reader, Router.from_postgresql(server.url("jobs")) as router:
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
    server: Postgresql, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that gives each transaction another session."""
    monkeypatch.setattr("neli_router.drivers.ledgers.postgresql.link.SqlLink.listen", lambda *_: None)
    with closing(owners_at(server.url("jobs")).open()) as reader:
        reader.table()
        owners.publish(LAYOUT, claim("a", {1: 10}))
        assert [(1, {1: Holding(10, "id-of-a")})] == told(reader)
        owners.publish(LAYOUT, claim("b", {1: 11}))
        assert [(2, {1: Holding(11, "id-of-b")})] == told(reader)


def test_members_that_begin_at_the_same_time_make_one_schema_and_no_lower_term_wins(server: Postgresql) -> None:
    def publish(number: int) -> None:
        with closing(owners_at(server.url("jobs")).open()) as opened:
            for term in range(10):
                opened.publish(LAYOUT, everything(f"m{number}", term * 10 + number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
    assert [(97, "id-of-m7", 8)] == server.run("SELECT term, holder, count(*) FROM neli.holdings GROUP BY 1, 2")


def test_a_claim_waits_for_one_that_is_not_committed_and_is_then_refused(
    server: Postgresql, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.drivers.ledgers.postgresql.link.ANSWER_MAX", PATIENCE)
    owners.publish(LAYOUT, everything("a"))
    owners.close()
    blocked = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    with psycopg.connect(server.address) as newer, ThreadPoolExecutor(1) as pool:
        # By hand, what `publish` does before it commits.
        newer.execute("UPDATE neli.layouts SET revision = revision + 1")
        newer.execute("UPDATE neli.holdings SET term = 12, holder = 'id-of-c', revision = 2")
        older = pool.submit(owners.publish, LAYOUT, everything("b", 11))
        until(lambda: server.run(blocked) or older.done())
        newer.commit()
        assert tuple(ALL) == older.result(PATIENCE).refused
    assert dict.fromkeys(ALL, Holding(12, "id-of-c")) == owners.table().holdings


def test_a_reader_makes_nothing_and_users_with_few_rights_work(server: Postgresql) -> None:
    server.run(
        "DROP ROLE IF EXISTS teller; CREATE ROLE teller LOGIN; DROP ROLE IF EXISTS asker; CREATE ROLE asker LOGIN"
    )
    tell, ask = (server.url("jobs", user=user) for user in ("teller", "asker"))
    with Router.from_postgresql(ask) as router:
        assert [] == server.run("SELECT 1 FROM pg_namespace WHERE nspname = 'neli'")
        with closing(owners_at(tell).open()) as opened, pytest.raises(LedgerUnusable, match="may not make or renew"):
            opened.publish(LAYOUT, claim("a", {1: 10}))
        with closing(owners_at(server.url("others")).open()) as opened:  # By a role that may, for any group.
            opened.publish(LAYOUT, claim("a", {1: 10}))
        server.run(GRANTS)
        with closing(owners_at(tell).open()) as opened:
            until(lambda: opened.publish(LAYOUT, everything("a")))
        until(lambda: names(router) == ["a"] * 8)
    with closing(owners_at(ask).open()) as opened:
        with pytest.raises(LedgerUnusable, match="42501: permission denied"):
            opened.publish(LAYOUT, claim("a", {1: 11}))
        assert 10 == (opened.table().holdings or {})[1].term
    server.run("DROP OWNED BY teller, asker; DROP ROLE teller, asker")


GRANTS = """
GRANT USAGE ON SCHEMA neli TO teller, asker;
GRANT SELECT, INSERT, UPDATE, DELETE ON neli.layouts, neli.holders, neli.holdings TO teller;
GRANT SELECT ON neli.layouts, neli.holders, neli.holdings TO asker;
"""


def test_who_is_silent_for_a_day_is_forgotten_and_its_terms_stay(server: Postgresql, owners: Owners) -> None:
    before = owners.publish(LAYOUT, claim("a", {1: 10})).version
    server.run("UPDATE neli.holders SET expires = now()")
    assert [] == server.run("SELECT 1 FROM neli.owners")
    assert before.revision + 1 == owners.publish(LAYOUT, claim("a", {})).version.revision  # It is back: a change.
    server.run("UPDATE neli.holders SET expires = expires - interval '25 hours'")
    owners.publish(LAYOUT, claim("b", {2: 10}))
    listing = owners.table()
    assert ["id-of-b"] == list(listing.holders)
    assert {1: Holding(10, "id-of-a"), 2: Holding(10, "id-of-b")} == listing.holdings
    assert [("b", 2)] == server.run("SELECT owner, partition FROM neli.owners")


def test_a_dropped_schema_is_made_again_and_another_version_of_the_table_begins(
    server: Postgresql, owners: Owners
) -> None:
    before = owners.publish(LAYOUT, everything("a", 20)).version
    with Router.from_postgresql(server.url("jobs")) as router:
        assert ["a"] * 8 == names(router)
        server.run("DROP SCHEMA neli CASCADE")
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
def test_junk_in_the_table_is_told_as_such(server: Postgresql, owners: Owners, junk: str) -> None:
    """The first would make a router allocate two thousand million rows."""
    owners.publish(LAYOUT, claim("a", {1: 10}))
    server.run(junk)
    with pytest.raises(LedgerUnusable, match="something else stands there"):
        owners.table()


def test_mistakes_in_an_address_are_raised_at_once(server: Postgresql) -> None:
    with pytest.raises(ConfigError, match="a group was wanted") as caught:
        Router.from_postgresql("postgresql://hidden:hidden@host/app")
    assert "hidden" not in str(caught.value)
    with pytest.raises(LedgerUnusable, match='role "nobody" does not exist'):
        Router.from_postgresql(server.url("jobs", user="nobody"))


def test_groups_and_schemas_do_not_see_each_other(server: Postgresql, owners: Owners) -> None:
    owners.publish(LAYOUT, everything("a"))
    for other in (server.url("more"), server.url("jobs", more="&schema=others")):
        with closing(owners_at(other).open()) as opened:
            assert Version() == opened.table().version
            assert () == opened.publish(LAYOUT, claim("b", {1: 5})).refused
            assert {1: Holding(5, "id-of-b")} == opened.table().holdings
    assert dict.fromkeys(ALL, Holding(10, "id-of-a")) == owners.table().holdings
    server.run("DROP SCHEMA others CASCADE")
