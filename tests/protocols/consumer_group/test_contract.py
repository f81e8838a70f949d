"""The behaviour that all borrowed protocols share: a leader finishes, gives back, closes and ends."""

from typing import Any

import pytest

from neli_router.errors import GroupMismatch, LedgerUnusable
from neli_router.protocols.consumer_group.events import BrokerAway, BrokerBack, BrokerBroken, GiveBack, LeaveGroup
from neli_router.protocols.protocol import Close, Fenced, Released, Revoked, Stopped
from tests.protocols.consumer_group.scenes import (
    EXCLUSIVE,
    FastScene,
    NeliScene,
    Scene,
    exclusive,
    exclusive_leader,
    fast_leader,
    fenced,
)

pytestmark = pytest.mark.parametrize("protocol", ["neli", "fast-neli"])


def leader(protocol: str, *partitions: int, **told: Any) -> tuple[Scene[Any], float, float]:
    """A scene that leads these partitions, since when, and when it ends if it hears nothing further."""
    if protocol == "neli":
        return exclusive_leader(*partitions, **told), 4.5, 8.0
    return fast_leader(*partitions, **told), 0.0, 5.0


def idle(protocol: str) -> Scene[Any]:
    return exclusive() if protocol == "neli" else FastScene()


def test_a_topic_with_another_number_of_partitions_is_refused(protocol: str) -> None:
    """Members that know the new number would map roles to other partitions, and both owners would be right."""
    with pytest.raises(GroupMismatch, match=r"M=4 partitions was wanted.* but it has 6") as caught:
        NeliScene(EXCLUSIVE, partitions=6) if protocol == "neli" else FastScene(partitions=6)
    assert "give all of them the layout" in caught.value.remedy


def test_a_topic_that_grows_while_a_group_runs_ends_the_member(protocol: str) -> None:
    """A message reveals it, just like a partition that is given."""
    scene, now, _ = leader(protocol, 1)
    *losses, of_given = scene.given(now, 2, 4)
    assert [1] == fenced(losses)
    assert [] == scene.step(now + 1)
    *_, of_message = idle(protocol).message(1.0, 7)
    for end, found in ((of_given, 5), (of_message, 8)):
        assert isinstance(end, Stopped)
        assert isinstance(end.error, GroupMismatch)
        assert f"which never changes while a group runs, but it has {found} or more" in str(end.error)


def test_a_leader_is_one_by_the_time_and_by_no_stored_flag(protocol: str) -> None:
    """The answers end even if no step is taken because a thread hangs."""
    scene, _, ends = leader(protocol, 1)
    assert ({1: 10}, {}) == (scene.machine.tenures(ends - 0.1), scene.machine.tenures(ends))
    assert (ends, float("-inf")) == (scene.machine.standing.end(1, 10), scene.machine.standing.end(1, 9))


def test_a_program_finishes_before_its_partition_is_given_back(protocol: str) -> None:
    scene, now, _ = leader(protocol, 0, 1)
    assert [Revoked({1: 10})] == scene.asked_back(now, 1)
    assert [0, 1] == scene.leads(now + 1)
    assert [GiveBack([1])] == scene.step(now + 1, Released({1: 10}))
    assert [0] == scene.leads(now + 1)


def test_a_program_that_does_not_finish_in_time_is_fenced(protocol: str) -> None:
    scene, now, _ = leader(protocol, 1, drain_timeout=2.0)
    scene.asked_back(now, 1)
    loss, back = scene.step(now + 2)
    assert Fenced({1: 10}, "the program did not finish within drain_timeout=2 s") == loss
    assert GiveBack([1]) == back


def test_a_leader_that_hears_no_more_while_its_program_finishes_or_loses_its_partition_is_fenced(protocol: str) -> None:
    scene, now, ends = leader(protocol, 1)
    scene.asked_back(now, 1)
    loss, back = scene.step(ends)
    assert ([1], GiveBack([1])) == (fenced([loss]), back)
    scene, now, _ = leader(protocol, 1)
    assert [1] == fenced(scene.lost(now, 1))


def test_a_leader_that_closes_takes_on_nothing_new_finishes_and_leaves(protocol: str) -> None:
    scene, now, _ = leader(protocol, 0, 1)
    assert [Revoked({0: 10, 1: 10})] == scene.step(now, Close())
    scene.given(now, 2)
    assert [] == scene.step(now + 1, Released({0: 10}))
    assert [1] == scene.leads(now + 1)
    assert [LeaveGroup(), Stopped(None)] == scene.step(now + 2, Released({1: 10}))
    assert [] == scene.step(now + 3)


def test_a_leader_that_closes_at_once_is_fenced_and_one_that_does_not_lead_is_not(protocol: str) -> None:
    scene, now, _ = leader(protocol, 1)
    loss, end = scene.step(now, Close(at_once=True))
    assert ([1], Stopped(None)) == (fenced([loss]), end)
    assert [LeaveGroup(), Stopped(None)] == idle(protocol).step(0.0, Close())


def test_a_broken_topic_ends_the_member_with_its_error(protocol: str) -> None:
    scene, now, _ = leader(protocol, 1)
    for event in (BrokerAway(), BrokerBack()):  # Faults that may heal cost a leader nothing.
        assert [] == scene.step(now, event)
        assert [1] == scene.leads(now)
    error = LedgerUnusable("a topic was wanted", "it was deleted", "make it")
    loss, end = scene.step(now, BrokerBroken(error))
    assert ([1], Stopped(error)) == (fenced([loss]), end)
