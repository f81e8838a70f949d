"""Held partitions: each revocation, loss or addition is reported once; the handover follows when they are let go of."""

from collections.abc import Sequence

from neli_router.member.held_partitions import HeldPartitions
from neli_router.member.membership import Lease
from neli_router.testing import Group


def hold(group: Group) -> HeldPartitions:
    """Everything that `a` leads."""
    return HeldPartitions(group["a"].engine.membership, range(8))


def numbers(leases: Sequence[Lease]) -> list[int]:
    return [lease.partition for lease in leases]


def test_those_that_are_led_are_held_and_come_along_when_they_are_led_later(group: Group) -> None:
    mine, theirs = sorted(group["a"].led), sorted(group["b"].led)
    with hold(group) as held:
        assert (mine, False) == (numbers(held.leases), held.has_news())
        group["b"].operator.drain("b")
        group.settle()
        assert held.has_news()
        assert theirs == numbers(held.more())
        assert ([], mine) == (held.more(), numbers(held.leases))
    group["a"].close()
    assert [] == hold(group).leases


def test_a_revoked_one_is_told_once_and_handed_over_when_all_are_let_go_of(group: Group) -> None:
    moved, *kept = sorted(group["a"].led)
    with hold(group) as held:
        group["b"].operator.pin(moved, "b")
        group.advance(3.0)
        assert ([moved], []) == (numbers(held.revoked()), held.revoked())
        assert all(lease.holds() for lease in held.leases)
        assert moved not in group["b"].led
    group.settle()
    assert moved in group["b"].led
    assert set(kept) <= group["a"].led.keys()


def test_a_lost_one_is_told_with_its_reason_and_the_others_are_still_held(group: Group) -> None:
    moved, *kept = sorted(group["a"].led)
    with hold(group) as held:
        group["b"].operator.pin(moved, "b")
        group.settle()
        ((why, lost),) = held.lost().items()
        assert ("the program did not finish within drain_timeout=5 s", [moved]) == (why, numbers(lost))
        assert ({}, kept) == (held.lost(), numbers(held.leases))


def test_all_of_a_member_that_stood_still_are_lost_by_time_alone(group: Group) -> None:
    """Before the member's own thread has noticed."""
    mine = sorted(group["a"].led)
    with hold(group) as held:
        group.pause("a")
        group.advance(5.0)
        ((why, lost),) = held.lost().items()
        assert (mine, []) == (numbers(lost), held.leases)
        assert "no heartbeat of a having come back in time" in why
