"""Held partitions: each is told as revoked, lost or come along once, and handed over when they are let go of."""

from collections.abc import Mapping, Sequence

from neli_router import testing
from neli_router.member.lease import Lease
from neli_router.testing import Group

EVERYTHING = range(4)


def partitions(group: Group, name: str) -> list[int]:
    return sorted(group[name].led)


def test_those_that_are_led_are_held_and_come_along_when_they_are_led_later() -> None:
    with testing.group("a", "b", partitions=4, lease=1.0, drain_timeout=50.0) as group:
        group.settle()
        mine, theirs = partitions(group, "a"), partitions(group, "b")
        held = group["a"].hold(EVERYTHING)
        assert mine == [lease.partition for lease in held.leases]
        assert not held.has_news()
        group["b"].drain("b")
        group.settle()
        assert held.has_news()
        assert theirs == [lease.partition for lease in held.more()]
        assert ([], mine) == (held.more(), [lease.partition for lease in held.leases])
        held.close()
        group["a"].close()
        assert [] == group["a"].hold(EVERYTHING).leases


def test_a_revoked_one_is_told_once_and_handed_over_when_all_are_let_go_of() -> None:
    with testing.group("a", "b", partitions=4, lease=1.0, drain_timeout=50.0) as group:
        group.settle()
        held = group["a"].hold(EVERYTHING)
        moved, kept = partitions(group, "a")
        group["b"].pin(moved, "b")
        group.advance(5.0)
        assert [moved] == [lease.partition for lease in held.revoked()]
        assert [] == held.revoked()
        assert all(lease.holds() for lease in held.leases)
        assert moved not in group["b"].led
        held.close()
        group.settle()
        assert moved in group["b"].led
        assert kept in group["a"].led


def test_a_lost_one_is_told_with_its_reason_and_the_others_are_still_held() -> None:
    with testing.group("a", "b", partitions=4, lease=1.0, drain_timeout=2.0) as group:
        group.settle()
        held = group["a"].hold(EVERYTHING)
        moved, kept = partitions(group, "a")
        group["b"].pin(moved, "b")
        group.settle()
        lost = held.lost()
        assert {"the program did not finish within drain_timeout=2 s": [moved]} == told(lost)
        assert ({}, [kept]) == (held.lost(), [lease.partition for lease in held.leases])
        held.close()


def test_all_of_a_member_that_stood_still_are_lost_by_time_alone() -> None:
    """Before its own thread has found out."""
    with testing.group("a", "b", partitions=4, lease=1.0) as group:
        group.settle()
        held = group["a"].hold(EVERYTHING)
        mine = partitions(group, "a")
        group.pause("a")
        group.advance(5.0)
        (why, lost), *others = told(held.lost()).items()
        assert (mine, []) == (lost, others)
        assert "no heartbeat of a having come back in time" in why
        assert [] == held.leases
        held.close()


def told(lost: Mapping[str, Sequence[Lease]]) -> dict[str, list[int]]:
    return {why: [lease.partition for lease in leases] for why, leases in lost.items()}
