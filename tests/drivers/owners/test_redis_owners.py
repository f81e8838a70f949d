"""Owners in Redis: its own words, rights and failovers, and junk. `test_contract.py` has what every store promises.

members --SAY--> a Redis of the test's own --READ, messages--> Router.from_redis
claims ---'                                 '--HGET----------> redis-cli
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.drivers.open import owners_at
from neli_router.drivers.owners.base import Card, Holding, Owners
from neli_router.errors import GroupMismatch, LedgerUnusable, NoOwner
from neli_router.member.member import Member
from neli_router.router.router import Router
from neli_router.router.table import Owner
from tests.conftest import require
from tests.drivers.owners.claims import LAYOUT, claim, everything, member, names
from tests.support.servers.redis import Redis, Sentinel, missing
from tests.support.waiting import until

pytest.importorskip("redis")

from neli_router.drivers.owners.redis import news

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def shared() -> Iterator[Redis]:
    require(missing())
    with Redis.started() as started:
        yield started


@pytest.fixture
def server(shared: Redis) -> Redis:
    """A server that runs and is empty, and forgets everything when it is killed."""
    if not shared.running:
        shared.start()
    shared.cli("FLUSHALL")
    return shared


@pytest.fixture
def owners(server: Redis) -> Iterator[Owners]:
    with closing(owners_at(server.url("jobs")).open()) as opened:
        yield opened


def test_a_lost_message_is_found_by_the_next_and_a_later_group_with_another_layout_stops_a_router(
    server: Redis, owners: Owners
) -> None:
    owners.publish(LAYOUT, everything("a"))
    with Router.from_redis(server.url("jobs")) as router:
        server.cli("HSET", "jobs:owners:v1", "3", "12 id-of-a")
        server.cli("HINCRBY", "jobs:layout:v1", "revision", "1")
        owners.publish(LAYOUT, claim("b", {5: 11}))
        until(lambda: router.table.partitions[5] == Owner("b", "b:1", 5, 11))
        assert Owner("a", "a:1", 3, 12) == router.table.partitions[3]
        owners.publish(Layout(slots=64, partitions=4), claim("b", {1: 21}))
        until(lambda: router.error is not None)
        with pytest.raises(GroupMismatch, match="slots=64, partitions=8, tags=off against slots=64, partitions=4"):
            router.owner("key")


def test_users_with_few_rights_work(server: Redis) -> None:
    server.cli("ACL", "SETUSER", "teller", "on", ">word", "~jobs:*", "&jobs:*", "-@all", *TELLER.split())
    server.cli("ACL", "SETUSER", "asker", "on", ">word", "%R~jobs:*", "&jobs:*", "-@all", *ASKER.split())
    teller, asker = (server.url("jobs", who=f"{user}:word@") for user in ("teller", "asker"))
    with closing(owners_at(teller).open()) as owners, Router.from_redis(asker) as router:
        owners.publish(LAYOUT, everything("a"))
        until(lambda: names(router) == ["a"] * 8)
    with closing(owners_at(asker).open()) as owners:
        with pytest.raises(LedgerUnusable, match="NOPERM"):
            owners.publish(LAYOUT, claim("a", {1: 11}))
        assert 10 == (owners.table().holdings or {})[1].term


TELLER = "+hello +select +eval +time +hget +hmget +hgetall +hvals +hset +hdel +hincrby +del +publish"
ASKER = "+hello +select +eval_ro +time +hmget +hgetall +subscribe"


def test_a_failover_is_followed_by_members_and_routers(tmp_path: Path) -> None:
    require(missing())
    with (
        Sentinel.started() as group,
        Router.from_redis(group.url("jobs"), max_age=60.0, wait=False) as router,
        member(group.url("jobs"), "a", ledger=tmp_path / "ledger.db"),
    ):
        until(lambda: names(router) == ["a"] * 8)
        group.master.kill()
        group.await_failover()
        until(lambda: router.at.age < 0.5)
        group.replica.cli("FLUSHALL")  # The members write the lost entries again.
        until(lambda: "8" == group.replica.cli("HLEN", "jobs:owners:v1"))
        until(lambda: names(router) == ["a"] * 8)


def test_what_a_member_leads_is_there_once_prepared_is_renewed_and_ends_when_it_closes(
    server: Redis, tmp_path: Path
) -> None:
    told: list[str] = []
    options: dict[str, Any] = {"name": "a", "address": "a:1", "layout": LAYOUT, "lease": 2.0}  # It must not lose it.
    config = Config(f"sqlite://{tmp_path}/ledger.db", ownership=server.url("jobs"), **options)
    with Router.from_redis(server.url("jobs"), wait=False) as router:
        with Member(config, on_event=lambda _: told.append(server.cli("EXISTS", "jobs:owners:v1"))) as leading:
            until(lambda: len(leading.led) == 8 and server.cli("HLEN", "jobs:owners:v1") == "8")
            assert "0" == told[0], "a partition was published before its handler had prepared it"
            holder = leading.incarnation
            assert holder is not None
            expires_ms, card = server.cli("HGET", "jobs:holders:v1", holder).split(" ", 1)
            assert '{"name":"a","address":"a:1","weight":1,"zone":""}' == card
            now_ms = int(server.cli("TIME").split("\n")[0]) * 1000
            assert now_ms < int(expires_ms) < now_ms + 10_000
            until(lambda: expires_ms != server.cli("HGET", "jobs:holders:v1", holder).split(" ", 1)[0])
            until(lambda: names(router) == ["a"] * 8)
        until(lambda: server.cli("HLEN", "jobs:holders:v1") == "0")
        assert all(held.endswith(" -") for held in server.cli("HVALS", "jobs:owners:v1").split("\n"))
        until(lambda: names(router) == ["-"] * 8)
        with pytest.raises(NoOwner, match="all of them left or were expired"):
            router.owner("key")


def test_what_a_later_release_says_more_is_passed_over(server: Redis, owners: Owners) -> None:
    owners.publish(LAYOUT, claim("a", {1: 10}))
    server.cli("HSET", "jobs:owners:v1", "1", "11 id-of-a more words")
    server.cli("HSET", "jobs:holders:v1", "id-of-a", '9999999999999 {"name":"a","more":{"x":[1]}}')
    listing = owners.table()
    assert {1: Holding(11, "id-of-a")} == listing.holdings
    assert {"id-of-a": (Card("a", ""), 9999999999999)} == listing.holders
    assert {1: Holding(12, "b")} == news(b"x:1\n1 12 b more", "jobs").holdings


def test_what_is_not_ours_on_the_channel_is_said() -> None:
    for message in (
        b"\xff",
        b"x:1\n@h 5 " + b"[" * 100_000,
        b"x:1\nno number",
        b"x:1\n@h 5 no json",
        b'x:1\n@h 5 {"name":7}',
    ):
        with pytest.raises(LedgerUnusable, match="something else stands there"):
            news(message, "jobs")


def test_junk_in_the_table_is_told_as_such(server: Redis, owners: Owners) -> None:
    """The first would make a router allocate two thousand million rows, and the fourth raised a RecursionError."""
    for key, *fields in (
        ("layout", "slots", str(2**31), "partitions", str(2**31)),
        ("layout", "slots", "9" * 4000),
        ("layout", "revision", "many"),
        ("holders", "id-of-a", "9999999999999 " + '{"name":' * 3000),
        ("owners", "0", "first a"),
        ("owners", "one", "1 a"),
    ):
        server.cli("FLUSHALL")
        owners.publish(LAYOUT, claim("a", {1: 10}))
        server.cli("HSET", f"jobs:{key}:v1", *fields)
        with pytest.raises(LedgerUnusable, match="something else stands there"):
            owners.table()


def test_a_member_overwrites_junk_in_its_own_entries_but_no_layout_that_is_none(server: Redis, owners: Owners) -> None:
    server.cli("HSET", "jobs:owners:v1", "1", "junk")
    server.cli("HSET", "jobs:holders:v1", "stranger", "junk")
    owners.publish(LAYOUT, claim("a", {1: 10}))
    assert {1: Holding(10, "id-of-a")} == owners.table().holdings
    for slots in ("junk", "1 2 3 4"):
        server.cli("DEL", "jobs:layout:v1", "jobs:owners:v1")
        server.cli("HSET", "jobs:layout:v1", "slots", slots)
        server.cli("HSET", "jobs:owners:v1", "1", "99 b")
        with pytest.raises(LedgerUnusable, match="something else stands there"):
            owners.publish(LAYOUT, claim("a", {1: 10}))
