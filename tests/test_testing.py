"""The group in memory that users test with: on a ledger, and with members that elect among themselves."""

import doctest
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from neli_router import testing
from neli_router.core.keyspace import Layout
from neli_router.drivers.peers.memory import MemoryLink
from neli_router.errors import Closed, ConfigError, LeaseLost, NotLeading
from neli_router.protocols.electors.settings import GossipSettings
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked
from neli_router.testing import Group

NAMES = ("a", "b", "c")
PARTITIONS = 6
elected = pytest.mark.parametrize("protocol", ["term", "gossip"])
all_protocols = pytest.mark.parametrize("protocol", ["induction", "neli", "fast-neli", "term", "gossip"])


@contextmanager
def settled(protocol: str, **options: Any) -> Iterator[tuple[Group, str]]:
    """A group of three, and the member that leads partition 0."""
    with testing.group(*NAMES, protocol=protocol, partitions=PARTITIONS, **options) as group:
        group.settle()
        leader = group.owner(0)
        assert leader is not None
        yield group, leader


def owners(group: Group) -> list[str | None]:
    return [group.owner(i) for i in range(PARTITIONS)]


def terms(group: Group) -> list[int]:
    return [group.router.owner_of_role(i).term for i in range(PARTITIONS)]


def kinds(group: Group, name: str) -> list[type[Event]]:
    return [type(event) for event in group.told[name]]


def test_the_example_of_the_essay_holds() -> None:
    failed, tried = doctest.testmod(testing, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert (0, 3) == (failed, tried)


def test_waiting_turns_the_clock_and_without_effect_ends_with_an_error() -> None:
    with testing.group("a", partitions=1, lease=1.0) as group, group["a"].leading("k") as lease:
        assert (1.0 < group.now < 1.1, True) == (True, lease.holds())
    with testing.group("a", "b", partitions=2) as group:
        group.settle()
        mine = next(iter(group["a"].led))
        with pytest.raises(NotLeading, match="a owns it under term"), group["b"].leading(mine, timeout=5.0):
            pass
        with pytest.raises(AssertionError, match="gave up waiting"), group["b"].leading(mine):
            pass


def test_owner_is_what_a_router_would_say_and_a_group_without_a_member_is_settled() -> None:
    with testing.group(partitions=1, lease=1.0) as group:
        assert group.owner("k") is None
        group.join("a")
        group.settle()
        assert "a" == group.owner("k")
        group.kill("a")
        group.settle()
        later = group.now + 10.0
        group.advance(10.0)
        assert (later, None) == (group.now, group.owner("k"))


def test_a_group_that_cannot_settle_says_where_it_stands() -> None:
    def fickle(event: Event) -> None:
        if isinstance(event, Acquired):
            group.restart("b")

    where = r"within 3 s: a is up as <Member a: \d of 2 partitions>, b is up as"
    with (
        testing.group("a", "b", partitions=2, lease=0.1, drain_timeout=0.0, on_event={"b": fickle}) as group,
        pytest.raises(AssertionError, match=where),
    ):
        group.settle()


def test_what_a_group_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean lease"), testing.group("a", leese=1):
        pass
    with testing.group("a", partitions=2) as group:
        with pytest.raises(KeyError, match="there is no member 'b' in this group: there is a"):
            group.kill("b")
        with pytest.raises(ValueError, match="member 'a' is in this group already"):
            group.join("a")
        group.kill("a")
        group.join("a")
        group.settle()
        assert {0, 1} == set(group["a"].led)
    with testing.group(*NAMES, protocol="term") as group, pytest.raises(ValueError, match="not one of the peers"):
        group.join("d")


@elected
def test_a_group_settles_and_all_its_routers_show_what_members_lead(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        assert owners(group) == [next(name for name in NAMES if i in group[name].led) for i in range(PARTITIONS)]
        shares = sorted(len(group[name].led) for name in NAMES)
        assert ([2, 2, 2] if protocol == "term" else [0, 0, PARTITIONS]) == shares
        assert set(NAMES) == {peer.name for peer in group.router.members}
        expected = [*zip(owners(group), terms(group), strict=True)]
        group.advance(1.0)  # Members take stock of what they believe a few times a second.
        for name in NAMES:
            router = group[name].router
            assert expected == [(owner.name, owner.term) for owner in map(router.owner_of_role, range(PARTITIONS))]
            assert router.owner("customer-3") == group.router.owner("customer-3")
            assert router.owner("customer-3") in router.table.rows
        other = next(name for name in NAMES if name != leader)
        group.kill(leader)
        group.settle()
        group.advance(1.0)
        assert leader not in {owner.name for owner in map(group[other].router.owner_of_role, range(PARTITIONS))}


@pytest.mark.parametrize("protocol", ["induction", "term", "gossip"])
def test_whoever_may_act_for_a_key_finds_itself_by_a_look_up_at_once(protocol: str) -> None:
    with testing.group(*NAMES, protocol=protocol, partitions=PARTITIONS) as group:
        looked_up = 0
        while looked_up <= 10 * PARTITIONS:
            assert group.now < 50.0
            group.advance(0.01)
            for name in NAMES:
                for i, term in group[name].led.items():
                    owner = group[name].router.owner_of_role(i)
                    assert (name, term) == (owner.name, owner.term)
                    looked_up += 1


@all_protocols
def test_the_same_seed_gives_the_same_run(protocol: str) -> None:
    def run(seed: int) -> list[object]:
        with settled(protocol, seed=seed) as (group, _):
            group.kill("a")
            group.settle()
            return [group.now, group.told, group["b"].incarnation]

    assert run(1) == run(1)
    assert run(1) != run(2)


@all_protocols
def test_what_a_killed_member_led_is_taken_over_under_higher_terms_and_it_remembers(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        before = dict(group[leader].led)
        group.kill(leader)
        with pytest.raises(Closed, match="the test killed it"):
            group[leader].lease(0)
        group.settle()
        assert leader not in owners(group)
        taken_over = terms(group)
        assert all(taken_over[i] > term for i, term in before.items())
        group.restart(leader)
        group.settle()
        assert all(new >= old for new, old in zip(terms(group), taken_over, strict=True))


@all_protocols
def test_a_member_that_is_cut_off_is_fenced_before_another_leads(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        lease = group[leader].lease(0)
        assert lease is not None
        group.cut(leader)
        assert group.wait(lambda: group.owner(0) not in (None, leader), 100.0)
        assert not lease.holds()
        assert Fenced is kinds(group, leader)[-1]
        group.heal(leader)
        group.settle()
        with pytest.raises(LeaseLost):  # Even if the same member leads again.
            lease.check()


@all_protocols
def test_a_paused_member_finds_its_lease_over_when_it_goes_on(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        lease = group[leader].lease(0)
        assert lease is not None
        group.pause(leader)
        group.settle()
        assert (False, True) == (lease.holds(), group.owner(0) not in (None, leader))
        assert Fenced not in kinds(group, leader)  # It has not read anything yet.
        group.resume(leader)
        group.advance(0.0)
        assert Fenced in kinds(group, leader)


@elected
def test_without_a_majority_nobody_leads(protocol: str) -> None:
    with settled(protocol) as (group, _):
        group.outage = True
        group.advance(10 * group.config.lease)
        assert [None] * PARTITIONS == owners(group)


@all_protocols
def test_a_member_that_closes_gives_everything_to_the_others_without_a_fence(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        group[leader].close()
        group.settle()
        assert leader not in owners(group)
        assert [Acquired, Revoked] == list(dict.fromkeys(kinds(group, leader)))


def test_a_ring_of_gossip_leads_without_gaps_with_the_lease_that_links_need(monkeypatch: pytest.MonkeyPatch) -> None:
    size, send = 7, MemoryLink.send

    def send_along(link: MemoryLink, to: int, body: bytes) -> None:
        if (to - link.place) % size in (1, size - 1):
            send(link, to, body)

    monkeypatch.setattr(MemoryLink, "send", send_along)
    names = [f"m{i}" for i in range(size)]
    peers = tuple(f"{name}:1" for name in names)
    settings = GossipSettings(name="a", layout=Layout(), peers=peers, me=0, lease=3.0, beat=0.3)
    assert (8.1, 0.9) == (round(settings.lease_over(2), 9), round(settings.lease_over(6), 9))
    gaps = []
    for lease in (3.0, settings.lease_over(2)):
        with testing.group(*names, protocol="gossip", partitions=1, lease=lease, beat=0.3) as group:
            group.advance(10 * lease)
            gaps.append(0)
            for _ in range(100):
                group.advance(0.6)
                gaps[-1] += not any(group[name].led for name in names)
    assert gaps[0] > gaps[1] == 0


@pytest.mark.parametrize(("partitions", "advised"), [(2, {"members stay idle"}), (4, set()), (64, {"far more"})])
def test_members_of_a_borrowed_group_are_advised_about_its_size_once_it_has_settled(
    caplog: pytest.LogCaptureFixture, partitions: int, advised: set[str]
) -> None:
    with caplog.at_level(logging.WARNING), testing.group(*NAMES, protocol="neli", partitions=partitions) as group:
        group.advance(59.0)
        assert [] == [text for text in caplog.messages if "group.advice" in text]
        group.advance(60.0)
        told = [text for text in caplog.messages if "group.advice" in text]
    assert advised == {words for words in ("members stay idle", "far more") for text in told if words in text}
    assert len(told) == {2: 1, 4: 0, 64: 3}[partitions]


@elected
def test_a_member_logs_what_an_even_number_of_voters_costs(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), testing.group("a", "b", "c", "d", protocol=protocol) as group:
        group.advance(0.0)
    expected = "4 peers need 3 for a majority, and bear 1 failure, as 3 do: leave one out, or add one"
    assert 4 == sum(expected in record.getMessage() for record in caplog.records)
