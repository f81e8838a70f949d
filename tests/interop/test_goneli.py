"""A real goNELI beside our driver, on one broker and in one group.

It is the Go module as it is published, in a program of ours (`go/main.go`) that says when it leads.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise

import pytest

from neli_router.clock import host_clock
from neli_router.consumer_group.events import AskedBack, Confirmed, Given, Lost
from neli_router.subscriptions.base import GroupSubscription
from neli_router.subscriptions.kafka.address import parse
from neli_router.subscriptions.kafka.subscription import KafkaSubscription
from tests.support.servers.goneli import GoneliMember
from tests.support.taking import PATIENCE, Taking, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

SESSION = 18.0

EAGER = "partition.assignment.strategy=range,roundrobin"
"""As goNELI has it with unchanged settings."""

HEARTBEAT_TIMEOUT = 6.0
"""A shorter one is over while other tests take all cores, and then it is fenced. Less than the session."""

BEAT = 0.1
"""Seconds: goNELI's default for its polls, at each of which the owner sends a heartbeat."""

Interval = tuple[float, float]


@pytest.fixture
def goneli(kafka: str, group: str) -> Iterator[Callable[[str], GoneliMember]]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(GoneliMember(kafka, group, f"{group}.neli", name, HEARTBEAT_TIMEOUT))


def joined(kafka: str, group: str, *options: str) -> KafkaSubscription:
    address, problems = parse(f"//{kafka}/{group}?{'&'.join((EAGER, *options))}")
    assert address is not None, problems
    return KafkaSubscription(address, session=SESSION, patience=PATIENCE)


def test_goneli_alone_leads_and_says_so_when_it_leaves(goneli: Callable[[str], GoneliMember]) -> None:
    member = goneli("alone")
    until(lambda: member.leads)
    member.leave()
    assert ["started", "acquired", "revoked", "closed"] == [it.event for it in member.events]


def test_its_heartbeats_are_nanoseconds_and_its_name(
    kafka: str, group: str, goneli: Callable[[str], GoneliMember]
) -> None:
    with closing(joined(kafka, f"{group}-reader", f"topic={group}.neli")) as subscription:
        reader = Taking(subscription)
        until(lambda: reader.has == {0}, reader)
        goneli("host_17_1700000000")
        until(lambda: len(reader.messages) >= 2, reader)
    bodies = [(message.body or b"").decode() for message in reader.messages]
    assert [True] * len(bodies) == [bool(re.fullmatch(r"[0-9]{19}%host_17_1700000000", body)) for body in bodies]
    stamps = [int(body.partition("%")[0]) for body in bodies]
    assert sorted(stamps) == stamps
    assert abs(time.time() - stamps[0] / 1e9) < PATIENCE * 5


class WatchedTaking(Taking):
    """Remembers when partition 0 was its own, by the clock that goNELI's program tells, too."""

    def __init__(self, subscription: GroupSubscription) -> None:
        super().__init__(subscription)
        self.holding = True
        self.held: list[Interval] = []
        self._since = 0.0

    def turn(self) -> None:
        before = len(self.news)
        super().turn()
        for news in self.news[before:]:
            match news:
                case Given([0]):
                    self._since = host_clock()
                case AskedBack([0]):
                    self._ended()
                    self.give_back()
                case Lost([0]) if self._since:
                    self._ended()
                case _:
                    pass

    def _ended(self) -> None:
        self.held.append((self._since, host_clock()))
        self._since = 0.0


def test_exactly_one_of_both_has_partition_zero(kafka: str, group: str, goneli: Callable[[str], GoneliMember]) -> None:
    first = goneli("first")
    until(lambda: first.leads)
    with closing(joined(kafka, group)) as subscription:
        ours = WatchedTaking(subscription)
        # An eager assignor takes it from goNELI, and gives it to either.
        until(lambda: first.said("revoked") and first.leads != (ours.has == {0}), ours)
        first.leave()
        until(lambda: ours.has == {0}, ours)
        second = goneli("second")
        until(lambda: ours.of(AskedBack) and second.leads != (ours.has == {0}), ours)
        ours.subscription.close()
        until(lambda: second.leads)
        second.leave()
    intervals = sorted([*first.led, *second.led, *ours.held])
    assert [] == [(one, other) for one, other in pairwise(intervals) if one[1] > other[0]]


def test_goneli_hears_itself_after_an_owner_of_ours(
    kafka: str, group: str, goneli: Callable[[str], GoneliMember]
) -> None:
    """It begins at the group's offset. One of ours that were a place to begin would be a place to wait for."""
    with closing(joined(kafka, group)) as subscription:
        ours = Taking(subscription)
        until(lambda: ours.has == {0}, ours)
        subscription.confirm({0: 7})
        until(lambda: ours.of(Confirmed), ours)
    with closing(joined(kafka, f"{group}-reader", f"topic={group}.neli")) as subscription:
        reader = Taking(subscription)
        until(lambda: reader.has == {0}, reader)
        member = goneli("next")
        # It leads from the assignment on, without any proof, and until it has heard nothing for its time-out.
        until(lambda: member.leads and len(reader.messages) > 2 * HEARTBEAT_TIMEOUT / BEAT, reader)
        assert not member.said("fenced")
