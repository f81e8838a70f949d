"""The group in memory that users test with, where its members elect among themselves."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from neli_router import testing
from neli_router.errors import BeyondProtocol, LeaseLost
from neli_router.protocol import Acquired, Event, Fenced, Revoked
from neli_router.testing import Group

NAMES = ("a", "b", "c")
PARTITIONS = 6
both = pytest.mark.parametrize("protocol", ["term", "gossip"])


@contextmanager
def settled(protocol: str, **options: Any) -> Iterator[tuple[Group, str]]:
    """A group of three, and the one of them that leads partition 0."""
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


@both
def test_a_group_settles_and_all_its_routers_show_what_members_lead(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        assert owners(group) == [next(name for name in NAMES if i in group[name].led) for i in range(PARTITIONS)]
        shares = sorted(len(group[name].led) for name in NAMES)
        assert ([2, 2, 2] if protocol == "term" else [0, 0, PARTITIONS]) == shares
        assert set(NAMES) == {peer.name for peer in group.router.members}
        expected = [*zip(owners(group), terms(group), strict=True)]
        group.advance(1.0)  # Members look at what they believe a few times a second.
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


@both
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


@both
def test_the_same_seed_gives_the_same_run(protocol: str) -> None:
    def run(seed: int) -> list[object]:
        with settled(protocol, seed=seed) as (group, _):
            group.kill("a")
            group.settle()
            return [group.now, group.told, group["b"].incarnation]

    assert run(1) == run(1)
    assert run(1) != run(2)


@both
def test_what_a_killed_member_led_is_taken_over_under_higher_terms_and_it_comes_back_with_its_memory(
    protocol: str,
) -> None:
    with settled(protocol) as (group, leader):
        before = dict(group[leader].led)
        group.kill(leader)
        group.settle()
        assert leader not in owners(group)
        taken_over = terms(group)
        assert all(taken_over[i] > term for i, term in before.items())
        group.restart(leader)
        group.settle()
        assert all(new >= old for new, old in zip(terms(group), taken_over, strict=True))


@both
def test_a_member_that_is_cut_off_is_fenced_before_another_leads(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        lease = group[leader].lease(0)
        assert lease is not None
        group.cut(leader)
        assert group.wait(lambda: group.owner(0) not in (None, leader), 100.0)
        assert not lease.holds()
        assert Fenced is kinds(group, leader)[-1]
        with pytest.raises(LeaseLost):
            lease.check()
        group.heal(leader)
        group.settle()


@both
def test_a_paused_member_finds_its_lease_over_when_it_goes_on(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        lease = group[leader].lease(0)
        assert lease is not None
        group.pause(leader)
        group.settle()
        assert (False, True) == (lease.holds(), group.owner(0) not in (None, leader))
        group.resume(leader)
        group.advance(0.0)
        assert Fenced is kinds(group, leader)[-1]


def test_of_two_classes_the_leader_replaces_the_dead_so_that_most_may_die_one_after_another() -> None:
    """Two of five are fewer than a majority. With three that vote, one spare takes the place of each that died."""
    names = ("a", "b", "c", "d", "e")
    with testing.group(*names, protocol="gossip", partitions=PARTITIONS, first_class=3, relay=True) as group:
        group.settle()
        living = set(names)
        for _ in range(3):
            leader = group.owner(0)
            assert leader is not None
            outlook = group[leader].outlook
            assert outlook is not None
            assert 3 == len(outlook.voters)
            killed = next(name for i, name in enumerate(names) if name in living - {leader} and i in outlook.voters)
            group.kill(killed)
            living.remove(killed)
            group.advance(60.0)
        assert group.owner(0) in living
        group.kill(str(group.owner(0)))
        group.advance(60.0)
        assert group.owner(0) is None


@both
def test_without_a_majority_nobody_leads(protocol: str) -> None:
    with settled(protocol) as (group, _):
        group.outage = True
        group.advance(10 * group.config.lease)
        assert [None] * PARTITIONS == owners(group)
        group.outage = False
        group.settle()


@both
def test_a_member_that_closes_gives_everything_to_the_others_without_a_fence(protocol: str) -> None:
    with settled(protocol) as (group, leader):
        group[leader].close()
        group.settle()
        assert leader not in owners(group)
        assert [Acquired, Revoked] == list(dict.fromkeys(kinds(group, leader)))


def test_random_waits_instead_of_priorities_settle_too() -> None:
    with settled("term", policy="random") as (group, _):
        assert None not in owners(group)


def test_who_is_none_of_the_peers_and_what_needs_a_broker_is_refused() -> None:
    with testing.group(*NAMES, protocol="term") as group, pytest.raises(ValueError, match="none of the peers"):
        group.join("d")
    with pytest.raises(BeyondProtocol, match="needs a broker"), testing.group("a", protocol="neli"):
        pass


@both
def test_a_member_says_in_its_log_what_an_even_number_of_voters_costs(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), testing.group("a", "b", "c", "d", protocol=protocol) as group:
        group.advance(0.0)
    expected = "4 peers need 3 for a majority, and bear 1 failure, as 3 do: leave one out, or add one"
    assert 4 == sum(expected in record.getMessage() for record in caplog.records)
