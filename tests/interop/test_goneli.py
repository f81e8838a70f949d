"""A real goNELI alongside our driver, on one broker and in one group.

It is the published Go module, unmodified, in a program of ours (`go/main.go`) that reports when it leads.
"""

import re
import time
from contextlib import closing

import pytest

from neli_router.drivers.consumer_groups.address import parse
from neli_router.drivers.consumer_groups.kafka import KafkaSubscription
from neli_router.protocols.consumer_group.events import Confirmed
from tests.support.servers.goneli import GoneliMember
from tests.support.taking import Taking, until
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

SESSION = 18.0

EAGER = "partition.assignment.strategy=range,roundrobin"
"""The setting of an unconfigured goNELI."""

HEARTBEAT_TIMEOUT = 6.0
"""A shorter time-out expires while other tests take all cores, and then it is fenced. It must be below the session."""

BEAT = 0.1
"""Seconds: goNELI's default between polls, at each of which the owner sends a heartbeat."""


def joined(kafka: str, group: str, *options: str) -> KafkaSubscription:
    address, problems = parse(f"//{kafka}/{group}?{'&'.join((EAGER, *options))}")
    assert address is not None, problems
    return KafkaSubscription(address, session=SESSION, patience=PATIENCE)


def test_goneli_hears_its_heartbeats_of_nanoseconds_and_its_name_after_an_owner_of_ours(kafka: str, group: str) -> None:
    """It begins at the group's offset. If the offset that ours confirms were a place to begin, it would wait there."""
    with closing(joined(kafka, group)) as subscription:
        ours = Taking(subscription)
        until(lambda: ours.has == {0}, ours)
        subscription.confirm({0: 7})
        until(lambda: ours.of(Confirmed), ours)
    with (
        closing(joined(kafka, f"{group}-reader", f"topic={group}.neli")) as subscription,
        GoneliMember(kafka, group, f"{group}.neli", "host_17_1700000000", HEARTBEAT_TIMEOUT) as member,
    ):
        reader = Taking(subscription)
        until(lambda: reader.has == {0}, reader)
        # It leads from the assignment on, without any proof, and until it has heard nothing for its time-out.
        until(lambda: member.leads and len(reader.messages) > 2 * HEARTBEAT_TIMEOUT / BEAT, reader)
        assert not member.said("fenced")
        member.leave()
    assert ["started", "acquired", "revoked", "closed"] == [it.event for it in member.events]
    bodies = [(message.body or b"").decode() for message in reader.messages]
    beats = [body for body in bodies if re.fullmatch(r"[0-9]{19}%host_17_1700000000", body)]
    assert bodies[-len(beats) :] == beats  # The earlier ones are ours.
    stamps = [int(body.partition("%")[0]) for body in beats]
    assert sorted(stamps) == stamps
    assert abs(time.time() - stamps[0] / 1e9) < PATIENCE * 5
