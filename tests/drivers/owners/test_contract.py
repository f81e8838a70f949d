"""The contract of owner stores: what base.py promises holds in Redis and in PostgreSQL, and the server may be away.

members, claims --publish--> a server of the test's own --table, follow--> routers, readers
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from neli_router.core.keyspace import Layout
from neli_router.drivers.open import owners_at
from neli_router.drivers.owners.base import Card, Claim, Holding, Owners, Version
from neli_router.errors import ConfigError, GroupMismatch, LedgerUnavailable, LedgerUnusable, NoOwner, StaleTable
from neli_router.router.router import Router
from neli_router.router.table import Owner, Peer
from neli_router.router.watch import Change
from tests.conftest import require
from tests.drivers.owners.claims import ALL, LAYOUT, claim, everything, member, names
from tests.support.forking import in_child, raised_by
from tests.support.servers import postgresql, redis
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis
from tests.support.waiting import PATIENCE, until

Server = Redis | Postgresql

SERVERS = [pytest.param("redis", marks=pytest.mark.redis), pytest.param("postgresql", marks=pytest.mark.postgresql)]


@pytest.fixture(scope="module", params=SERVERS)
def shared(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that keeps what it has on disk when it is killed."""
    support = redis if request.param == "redis" else postgresql
    require(support.missing())
    with (Redis if support is redis else Postgresql).started(settings=support.DURABLE) as started:
        yield started


@pytest.fixture
def server(shared: Server) -> Server:
    """A server that runs and is empty."""
    if not shared.running:
        shared.start()
    if isinstance(shared, Redis):
        shared.cli("FLUSHALL")
    else:
        shared.ask("DROP SCHEMA IF EXISTS neli CASCADE")
    return shared


@pytest.fixture
def owners(server: Server) -> Iterator[Owners]:
    with closing(owners_at(server.url("jobs")).open()) as opened:
        yield opened


def test_a_claim_says_which_partitions_a_higher_term_has_and_a_release_leaves_its_own_term_behind(
    owners: Owners,
) -> None:
    high = 2**53 - 1  # No term has more bits.
    owners.publish(LAYOUT, claim("a", {1: 10, 2: high - 1}))
    assert (1,) == owners.publish(LAYOUT, claim("b", {1: 9, 2: high, 3: 1})).refused
    assert (2,) == owners.publish(LAYOUT, claim("c", {2: high})).refused  # One term has one owner.
    assert () == owners.publish(LAYOUT, claim("b", {2: high})).refused
    expected = {1: Holding(10, "id-of-a"), 2: Holding(high, "id-of-b"), 3: Holding(1, "id-of-b")}
    assert expected == owners.table().holdings
    owners.publish(LAYOUT, claim("a", {}, released={1: 10, 2: high - 1, 4: 10}))
    assert {**expected, 1: Holding(10, "")} == owners.table().holdings
    assert (1,) == owners.publish(LAYOUT, claim("c", {1: 9})).refused
    assert () == owners.publish(LAYOUT, claim("c", {1: 10})).refused
    for other in (claim("c", {}, released={1: 9}), claim("a", {}, released={1: 10})):
        owners.publish(LAYOUT, other)
        assert {**expected, 1: Holding(10, "id-of-c")} == owners.table().holdings


def test_who_comes_with_another_layout_is_refused_unless_its_terms_are_all_higher(owners: Owners) -> None:
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


def test_each_change_is_told_once_and_a_renewal_is_no_change(server: Server, owners: Owners) -> None:
    with closing(owners_at(server.url("jobs")).open()) as reader:
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
            assert all(one.holders[said.holder][1] == 0 for one in heard if said.ttl == 0)
            if version != Version():
                assert after == (version if told is None else Version(version.since, version.revision + 1))
            version = after
        assert reader.table(version).holdings is None
        assert reader.table(Version("another")).holdings is not None


def test_a_router_names_the_owners_and_follows_each_change(server: Server, owners: Owners) -> None:
    owners.publish(LAYOUT, everything("a"))
    partition = LAYOUT.partition("key")
    with Router(owners_at(server.url("jobs")), name="a") as router:
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
        assert owners_at(server.url("jobs")).address in repr(router)


def test_mistakes_in_an_address_are_raised_at_once(server: Server) -> None:
    for wrong in ("redis://hidden:hidden@host/a b", "postgresql://hidden:hidden@host/app"):
        with pytest.raises(ConfigError, match="a group was wanted") as caught:
            owners_at(wrong)
        assert "hidden" not in str(caught.value)
    if isinstance(server, Redis):
        url, said = server.url("jobs", who="nobody:hidden@"), "WRONGPASS"
    else:
        url, said = server.url("jobs").replace("neli@", "nobody@"), 'role "nobody" does not exist'
    with pytest.raises(LedgerUnusable, match=said):
        Router(owners_at(url))


def test_a_partition_that_nobody_says_to_lead_has_no_owner_and_the_reason_is_told(
    server: Server, owners: Owners
) -> None:
    partition = LAYOUT.partition("key")
    with Router(owners_at(server.url("jobs"))) as router:
        with pytest.raises(NoOwner, match="no member ever joined"):
            router.owner("key")
        owners.publish(LAYOUT, claim("a", {i: 10 for i in ALL if i != partition}))
        until(lambda: "a" in names(router))
        said = "no live member has recorded in the store of owners that it leads it: wait for its next owner"
        with pytest.raises(NoOwner, match=said):
            router.owner("key")
        assert "a" == router.owner_of_role(partition + 1).name
        owners.publish(LAYOUT, claim("a", {partition: 10}))
        until(lambda: names(router) == ["a"] * 8)


def test_who_says_nothing_for_its_time_is_no_owner_any_more(server: Server, owners: Owners) -> None:
    owners.publish(LAYOUT, claim("b", {1: 10}))
    owners.publish(LAYOUT, claim("a", {i: 10 for i in ALL if i != 1}, ttl=0.3))
    with Router(owners_at(server.url("jobs"))) as router:
        assert ["a", "b", *("a",) * 6] == names(router)
        until(lambda: names(router) == ["-", "b", *("-",) * 6])
        assert (Peer("b", "b:1", 1, ""),) == router.members
        owners.publish(LAYOUT, claim("a", {}))  # It says that it lives, and what it holds is its own again.
        until(lambda: names(router) == ["a", "b", *("a",) * 6])


def test_answers_go_on_while_the_store_is_away_until_max_age_and_heal_by_themselves(
    server: Server, owners: Owners
) -> None:
    owners.publish(LAYOUT, everything("a", ttl=2.0))
    if isinstance(server, Postgresql):
        server.ask("CHECKPOINT")  # Otherwise a crash may lose what was published last.
    with Router(owners_at(server.url("jobs")), max_age=3.0) as router:
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
        with pytest.raises(StaleTable, match=r"the table of owners .* and max_age is 3 s \(the last try: "):
            router.owner("key")
        server.start()
        owners.close()
        until(lambda: names(router) == ["-"] * 8)
        owners.publish(LAYOUT, claim("a", {}))
        until(lambda: names(router) == ["a"] * 8)


def test_what_was_said_while_a_connection_was_broken_is_not_missed(server: Server, owners: Owners) -> None:
    owners.publish(LAYOUT, everything("a"))
    with Router(owners_at(server.url("jobs"))) as router:
        owners.close()
        for term in range(11, 21):
            if isinstance(server, Redis):  # Another kind of connection each time.
                server.cli("CLIENT", "KILL", "TYPE", ("pubsub", "normal")[term % 2])
            else:
                server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'neli'")
            with contextlib.suppress(LedgerUnavailable):
                owners.publish(LAYOUT, everything(f"m{term}", term))
        until(lambda: names(router)[:1] in (["m19"], ["m20"]))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reopens_and_the_parent_goes_on(server: Server, owners: Owners) -> None:
    owners.publish(LAYOUT, everything("a"))
    with Router(owners_at(server.url("jobs"))) as router:

        def child() -> list[str]:
            before = raised_by(lambda: router.owner("key"))
            router.reopen()
            return [before, router.owner("key").name, raised_by(router.close)]

        assert ["Forked", "a", "nothing"] == in_child(child)
        owners.publish(LAYOUT, everything("b", 11))
        until(lambda: names(router) == ["b"] * 8)


def test_a_handover_leaves_no_moment_without_an_owner_and_routers_of_store_and_ledger_agree(
    server: Server, tmp_path: Path
) -> None:
    # With a lease that a busy machine keeps: a lost partition has no owner for a moment.
    ledger, lease = tmp_path / "ledger.db", 2.0
    with (
        member(server.url("jobs"), "a", ledger=ledger, lease=lease) as first,
        Router(f"sqlite://{ledger}", wait=False) as true,
        Router(owners_at(server.url("jobs")), wait=False) as router,
    ):
        until(lambda: names(router) == ["a"] * 8)
        with router.watch() as watch, member(server.url("jobs"), "b", ledger=ledger, lease=lease) as second:
            until(lambda: len(second.led) == 4 and sorted(names(router)) == ["a"] * 4 + ["b"] * 4)
            changes = [watch.take(0) for _ in range(4)]
            assert all(isinstance(change, Change) and change.after is not None for change in changes)
            assert len(first.led) == 4
            until(lambda: true.table.partitions == router.table.partitions)
        until(lambda: names(router) == ["a"] * 8 and true.table.partitions == router.table.partitions)


def test_a_member_leads_whether_the_store_is_there_or_not_and_a_router_waits_for_it(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "neli_router")
    server.kill()
    with (
        member(server.url("jobs"), "a", ledger=tmp_path / "ledger.db") as leading,
        Router(owners_at(server.url("jobs")), wait=False) as router,
    ):
        assert leading.pulse(PATIENCE)
        until(lambda: "ownership.unavailable" in caplog.text)
        with pytest.raises(StaleTable, match="not yet read up to its end"):
            router.owner("key")
        server.start()
        until(lambda: names(router) == ["a"] * 8)
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


def test_names_may_hold_anything_printable(server: Server, owners: Owners) -> None:
    odd = ["a b", '"', "\\", "@x", "-", "12 id", "ü€𝄞", "{}[],:", "'; FLUSHALL", "x" * 100]
    with Router(owners_at(server.url("jobs")), wait=False) as router:
        for term, name in enumerate(odd, start=1):
            card = Card(name, name, zone=name)
            owners.publish(LAYOUT, Claim(f"id-{term}", card, 60.0, dict.fromkeys(ALL, term), {}))
            until(lambda: names(router) == [name] * 8)  # noqa: B023 - it is over by then.
            assert Peer(name, name, 1, name) in router.members
