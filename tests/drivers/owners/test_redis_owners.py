"""Owners in Redis: members write there what they lead, routers and commands read it, and Redis or a member may be away.

members --SAY--> a Redis of the test's own --READ, messages--> Router.from_redis
claims ---'                                 '--HGET----------> redis-cli
"""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.errors import (
    Closed,
    ConfigError,
    GroupMismatch,
    LedgerUnavailable,
    LedgerUnusable,
    NoOwner,
    StaleTable,
)
from neli_router.member.member import Member
from neli_router.router.async_router import AsyncRouter
from neli_router.router.router import Router
from neli_router.router.table import Owner, Peer
from neli_router.router.watch import Change
from tests.conftest import require
from tests.support.forking import in_child, raised_by
from tests.support.servers.redis import Redis, Sentinel, missing
from tests.support.waiting import PATIENCE, until

pytest.importorskip("redis")

from neli_router.drivers.ledgers.redis.address import parse
from neli_router.drivers.owners.base import Card, Claim, Holding, Version
from neli_router.drivers.owners.redis import RedisOwners, news

pytestmark = pytest.mark.redis

LAYOUT = Layout(slots=64, partitions=8)
ALL = range(LAYOUT.partitions)


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
def owners(server: Redis) -> Iterator[RedisOwners]:
    with closing(store(server.url("jobs"))) as opened:
        yield opened


def store(url: str) -> RedisOwners:
    at, problems = parse(*url.split(":", 1))
    assert at is not None, problems
    return RedisOwners(at)


def claim(name: str, led: dict[int, int], *, released: dict[int, int] | None = None, ttl: float = 60.0) -> Claim:
    return Claim(f"id-of-{name}", Card(name, f"{name}:1"), ttl, led, released or {})


def member(server: Redis, name: str, *, ledger: Path, url: str = "", **options: Any) -> Member:
    """A member whose ledger is a file, so that Redis is only its cache."""
    options = {"layout": LAYOUT, "lease": 0.5, **options}
    return Member(
        Config(f"sqlite://{ledger}", name=name, address=f"{name}:1", ownership=url or server.url("jobs"), **options)
    )


def names(router: Router) -> list[str]:
    """The owners' names by partition; "-" for none, and an empty list while the table does not exist."""
    try:
        return [owner.name if owner else "-" for owner in router.table.partitions]
    except (NoOwner, StaleTable):
        return []


def everything(name: str, term: int = 10, *, ttl: float = 60.0) -> Claim:
    """The claim of a member that leads everything."""
    return claim(name, dict.fromkeys(ALL, term), ttl=ttl)


def test_a_lower_term_never_replaces_a_higher_one_whatever_the_order(owners: RedisOwners) -> None:
    rng = random.Random(5)
    claims = [(partition, term, f"m{rng.randrange(4)}") for partition in ALL for term in range(1, 30)]
    rng.shuffle(claims)
    for partition, term, name in claims:
        owners.publish(LAYOUT, claim(name, {partition: 2**52 + term}))
    last = {partition: f"id-of-{name}" for partition, term, name in claims if term == 29}
    assert {i: Holding(2**52 + 29, last[i]) for i in ALL} == owners.table().holdings


def test_a_claim_says_which_partitions_a_higher_term_has_and_a_release_leaves_its_own_term_behind(
    owners: RedisOwners,
) -> None:
    owners.publish(LAYOUT, claim("a", {1: 10, 2: 20}))
    assert (1,) == owners.publish(LAYOUT, claim("b", {1: 9, 2: 21, 3: 1})).refused
    assert (2,) == owners.publish(LAYOUT, claim("c", {2: 21})).refused  # One term has one owner.
    assert () == owners.publish(LAYOUT, claim("b", {2: 21})).refused
    expected = {1: Holding(10, "id-of-a"), 2: Holding(21, "id-of-b"), 3: Holding(1, "id-of-b")}
    assert expected == owners.table().holdings
    owners.publish(LAYOUT, claim("a", {}, released={1: 10, 2: 20, 4: 10}))
    assert {**expected, 1: Holding(10, "")} == owners.table().holdings
    assert (1,) == owners.publish(LAYOUT, claim("c", {1: 9})).refused


def test_who_comes_with_another_layout_is_refused_unless_its_terms_are_all_higher(owners: RedisOwners) -> None:
    """A recreated ledger gives higher terms than the one before it."""
    owners.publish(LAYOUT, claim("a", {1: 10, 2: 20}))
    other = Layout(slots=64, partitions=4)
    for zombie in (claim("b", {1: 20}), claim("b", {1: 21, 2: 15}), claim("b", {}, released={1: 10})):
        with pytest.raises(GroupMismatch, match="another group is there, with slots=64, partitions=8, tags=0"):
            owners.publish(other, zombie)
    owners.publish(other, claim("b", {1: 21, 2: 22}))
    listing = owners.table()
    assert other == listing.layout
    assert {1: Holding(21, "id-of-b"), 2: Holding(22, "id-of-b")} == listing.holdings
    assert ["id-of-b"] == list(listing.holders)


def test_each_change_is_told_once_and_a_renewal_is_no_change(server: Redis, owners: RedisOwners) -> None:
    with closing(store(server.url("jobs"))) as reader:
        version = reader.table().version
        for said, told in (
            (claim("a", {1: 10}), {1: Holding(10, "id-of-a")}),
            (claim("a", {1: 10}), None),
            (claim("b", {1: 9}), {}),  # It is new, if nothing else.
            (claim("a", {}, released={1: 10}), {1: Holding(10, "")}),
            (claim("a", {}, ttl=0), {}),
            (claim("a", {}, ttl=0), None),
        ):
            after = owners.publish(LAYOUT, said).version
            heard = reader.follow(0.05 if told is None else PATIENCE)
            assert ([] if told is None else [told]) == [one.holdings for one in heard]
            if version != Version():
                assert after == (version if told is None else Version(version.since, version.revision + 1))
            version = after
        assert reader.table(version).holdings is None
        assert reader.table(Version("another")).holdings is not None


def test_a_router_names_the_owners_and_follows_each_change(server: Redis, owners: RedisOwners) -> None:
    owners.publish(LAYOUT, everything("a"))
    partition = LAYOUT.partition("key")
    with Router.from_redis(server.url("jobs"), name="a") as router:
        kept = router.owner
        assert Owner("a", "a:1", partition, 10) == router.owner("key") == router.owner(b"key") == kept("key")
        assert ["key"] == router.mine(["key"])
        assert LAYOUT == router.table.layout
        with router.watch() as watch:
            owners.publish(LAYOUT, claim("b", {partition: 11}))
            change = watch.take(PATIENCE)
            after = Owner("b", "b:1", partition, 11)
            assert isinstance(change, Change)
            assert (Owner("a", "a:1", partition, 10), after) == (change.before, change.after)
            assert after == router.owner("key") == kept("key")
        assert (Peer("a", "a:1", 1, ""), Peer("b", "b:1", 1, "")) == router.members
        assert server.url("jobs") in repr(router)
        router.reopen()
        assert after == router.owner("key")
        router.close()
        router.close()
        with pytest.raises(Closed):
            router.owner("key")


def test_a_partition_that_nobody_says_to_lead_has_no_owner_and_the_reason_is_told(
    server: Redis, owners: RedisOwners
) -> None:
    partition = LAYOUT.partition("key")
    with Router.from_redis(server.url("jobs")) as router:
        with pytest.raises(NoOwner, match="no member ever joined"):
            router.owner("key")
        owners.publish(LAYOUT, claim("a", {i: 10 for i in ALL if i != partition}))
        until(lambda: "a" in names(router))
        with pytest.raises(
            NoOwner,
            match="no live member has recorded in the store of owners that it leads it: wait for its next owner",
        ):
            router.owner("key")
        assert "a" == router.owner_of_role(partition + 1).name
        owners.publish(LAYOUT, claim("a", {partition: 10}))
        until(lambda: names(router) == ["a"] * 8)


def test_who_says_nothing_for_its_time_is_no_owner_any_more(server: Redis, owners: RedisOwners) -> None:
    owners.publish(LAYOUT, claim("b", {1: 10}))
    owners.publish(LAYOUT, claim("a", {i: 10 for i in ALL if i != 1}, ttl=0.3))
    with Router.from_redis(server.url("jobs")) as router:
        assert ["a", "b", *("a",) * 6] == names(router)
        until(lambda: names(router) == ["-", "b", *("-",) * 6])
        assert (Peer("b", "b:1", 1, ""),) == router.members
        owners.publish(LAYOUT, claim("a", {}))  # It says that it lives, and what it holds is its own again.
        until(lambda: names(router) == ["a", "b", *("a",) * 6])


def test_answers_go_on_while_redis_is_away_until_max_age_and_heal_by_themselves(
    server: Redis, owners: RedisOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.cli("CONFIG", "SET", "appendonly", "yes")
    monkeypatch.setitem(server.settings, "appendonly", "yes")
    owners.publish(LAYOUT, everything("a", ttl=2.0))
    until(lambda: "aof_rewrite_in_progress:0" in server.cli("INFO", "persistence"))
    with Router.from_redis(server.url("jobs"), max_age=3.0) as router:
        server.kill()

        def is_stale() -> bool:
            try:
                # Even after its two seconds: the store cannot report that it is gone.
                assert "a" == router.owner("key").name
            except StaleTable:
                return True
            return False

        until(is_stale)
        assert router.at.age > 3.0
        with pytest.raises(StaleTable, match=r"the table of owners redis://.* and max_age is 3 s \(the last try: "):
            router.owner("key")
        server.start()
        owners.close()
        until(lambda: names(router) == ["-"] * 8)
        owners.publish(LAYOUT, claim("a", {}))
        until(lambda: names(router) == ["a"] * 8)


@pytest.mark.parametrize("kind", ["pubsub", "normal"])
def test_what_was_said_while_a_connection_was_broken_is_not_missed(
    server: Redis, owners: RedisOwners, kind: str
) -> None:
    owners.publish(LAYOUT, everything("a"))
    with Router.from_redis(server.url("jobs")) as router:
        owners.close()
        for term in range(11, 21):
            server.cli("CLIENT", "KILL", "TYPE", kind)
            with contextlib.suppress(LedgerUnavailable):
                owners.publish(LAYOUT, everything(f"m{term}", term))
        until(lambda: names(router)[:1] in (["m19"], ["m20"]))


def test_a_router_of_a_redis_that_is_not_there_yet_waits_for_it(server: Redis, owners: RedisOwners) -> None:
    url = server.url("jobs")
    server.kill()
    with Router.from_redis(url, wait=False) as router:

        def refusal() -> str:
            with pytest.raises(StaleTable) as caught:
                router.owner("key")
            return str(caught.value)

        until(lambda: "not yet read up to its end (the last try: " in refusal())
        server.start()
        owners.publish(LAYOUT, everything("a"))
        until(lambda: names(router) == ["a"] * 8)


def test_a_lost_message_is_found_by_the_next_and_a_later_group_with_another_layout_stops_a_router(
    server: Redis, owners: RedisOwners
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


def test_mistakes_in_an_address_are_raised_at_once(server: Redis) -> None:
    with pytest.raises(ConfigError, match="a group was wanted") as caught:
        Router.from_redis("redis://hidden:hidden@host/a b")
    assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigError, match="ownership="):
        Config("memory://x", ownership="sqlite:x")
    with pytest.raises(LedgerUnusable, match="WRONGPASS"):
        Router.from_redis(server.url("jobs", who="nobody:hidden@"))
    server.cli("HSET", "jobs:owners:v1", "0", "nonsense")
    server.cli("HSET", "jobs:layout:v1", "slots", "64", "partitions", "8", "tags", "0")
    with pytest.raises(LedgerUnusable, match="something else stands there"):
        Router.from_redis(server.url("jobs"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reopens_and_the_parent_goes_on(server: Redis, owners: RedisOwners) -> None:
    owners.publish(LAYOUT, everything("a"))
    with Router.from_redis(server.url("jobs")) as router:

        def child() -> list[str]:
            before = raised_by(lambda: router.owner("key"))
            router.reopen()
            return [before, router.owner("key").name, raised_by(router.close)]

        assert ["Forked", "a", "nothing"] == in_child(child)
        owners.publish(LAYOUT, everything("b", 11))
        until(lambda: names(router) == ["b"] * 8)


def test_the_asynchronous_router_reads_there_too(server: Redis, owners: RedisOwners) -> None:
    async def act() -> None:
        async with AsyncRouter.from_redis(server.url("jobs"), name="a") as router:
            assert "a" == router.owner("key").name
            async with router.watch() as watch:
                owners.publish(LAYOUT, claim("b", {5: 11}))
                change = await watch.take(PATIENCE)
                assert isinstance(change, Change)
                assert Owner("b", "b:1", 5, 11) == change.after

    owners.publish(LAYOUT, everything("a"))
    asyncio.run(act())


def test_sockets_tls_and_users_with_few_rights_work(server: Redis) -> None:
    server.cli("ACL", "SETUSER", "teller", "on", ">word", "~jobs:*", "&jobs:*", "-@all", *TELLER.split())
    server.cli("ACL", "SETUSER", "asker", "on", ">word", "%R~jobs:*", "&jobs:*", "-@all", *ASKER.split())
    with Redis.started(tls=True) as secure:
        for tell, ask in (
            (server.unix_url("jobs"), server.unix_url("jobs")),
            (server.url("jobs", who="teller:word@"), server.url("jobs", who="asker:word@")),
            (secure.url("jobs"), secure.url("jobs")),
        ):
            with closing(store(tell)) as owners, Router.from_redis(ask) as router:
                owners.publish(LAYOUT, everything("a"))
                until(lambda: names(router) == ["a"] * 8)
    with closing(store(server.url("jobs", who="asker:word@"))) as owners:
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
        member(group.master, "a", ledger=tmp_path / "ledger.db", url=group.url("jobs")),
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


def test_a_handover_leaves_no_moment_without_an_owner_and_routers_of_store_and_ledger_agree(
    server: Redis, tmp_path: Path
) -> None:
    # With a lease that a busy machine keeps: a lost partition has no owner for a moment.
    ledger, lease = tmp_path / "ledger.db", 2.0
    with (
        member(server, "a", ledger=ledger, lease=lease) as first,
        Router(f"sqlite://{ledger}", wait=False) as true,
        Router.from_redis(server.url("jobs"), wait=False) as router,
    ):
        until(lambda: names(router) == ["a"] * 8)
        with router.watch() as watch, member(server, "b", ledger=ledger, lease=lease) as second:
            until(lambda: len(second.led) == 4 and sorted(names(router)) == ["a"] * 4 + ["b"] * 4)
            changes = [watch.take(0) for _ in range(4)]
            assert all(isinstance(change, Change) and change.after is not None for change in changes)
            assert len(first.led) == 4
            until(lambda: true.table.partitions == router.table.partitions)
        until(lambda: names(router) == ["a"] * 8 and true.table.partitions == router.table.partitions)


def test_a_member_leads_whether_redis_is_there_or_not_and_the_log_says_so_once(
    server: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "neli_router")
    server.kill()
    with member(server, "a", ledger=tmp_path / "ledger.db") as leading:
        assert leading.pulse(PATIENCE)
        until(lambda: "ownership.unavailable" in caplog.text)
        server.start()
        until(lambda: server.cli("HLEN", "jobs:owners:v1") == "8")
        until(lambda: "ownership.available" in caplog.text)
        before = caplog.text.count("ownership.unavailable")
        server.freeze()
        try:
            until(lambda: caplog.text.count("ownership.unavailable") > before)
            assert leading.pulse(PATIENCE)
        finally:
            server.thaw()
    # A busy machine may have more outages than these two. Each one is reported once, and then its end.
    told = re.findall(r"ownership\.(unavailable|available)", caplog.text)
    assert all(one != other for one, other in pairwise(told)), told


def test_names_may_hold_anything_printable(server: Redis, owners: RedisOwners) -> None:
    odd = ["a b", '"', "\\", "@x", "-", "12 id", "ü€𝄞", "{}[],:", "'; FLUSHALL", "x" * 100]
    with Router.from_redis(server.url("jobs"), wait=False) as router:
        for term, name in enumerate(odd, start=1):
            card = Card(name, name, zone=name)
            owners.publish(LAYOUT, Claim(f"id-{term}", card, 60.0, dict.fromkeys(ALL, term), {}))
            until(lambda: names(router) == [name] * 8)  # noqa: B023 - it is over by then.
            assert Peer(name, name, 1, name) in router.members


def test_what_a_later_release_says_more_is_passed_over(server: Redis, owners: RedisOwners) -> None:
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


def test_junk_in_the_table_is_told_as_such(server: Redis, owners: RedisOwners) -> None:
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


def test_a_member_overwrites_junk_in_its_own_entries_but_no_layout_that_is_none(
    server: Redis, owners: RedisOwners
) -> None:
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
