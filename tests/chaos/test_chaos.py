"""Real processes on a Kafka of three brokers, all in a separate network, and a storm of faults upon them."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from neli_router.core.clock import host_clock
from neli_router.drivers.open import open_ledger
from neli_router.lab.moves import history_of
from neli_router.lab.processes.group import ProcessGroup
from tests.chaos.cluster import OUTSIDE, KafkaCluster
from tests.chaos.faults import LEADER_FAULTS, MAIN_FAULTS
from tests.chaos.storm import led_from
from tests.chaos.weather import LEASE, NAMES, PARTITIONS, PAUSE, SECONDS, require_safe, require_terms_of, weather
from tests.conftest import require
from tests.support.asking import collected
from tests.support.processes.ledger_copy import LedgerCopy
from tests.support.waiting import PATIENCE, until

AVAILABLE_SECONDS = 10.0
AVAILABLE_FAULTS = ("stop", "cut off", "deaf", "kill")

pytestmark = [pytest.mark.kafka, pytest.mark.process, pytest.mark.timeout(SECONDS * 1.5 + 900)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    require(KafkaCluster.missing())
    with KafkaCluster.started(NAMES) as started:
        yield started


@pytest.fixture(autouse=True)
def _outside(cluster: KafkaCluster) -> Iterator[None]:
    """The test itself opens all its connections from there."""
    with cluster.network.entered(OUTSIDE):
        yield


def test_no_two_processes_ever_act_at_once_in_a_storm(cluster: KafkaCluster, tmp_path: Path) -> None:
    """And the ledger gave them every term that they act under."""
    require_safe(weather(cluster, tmp_path, "exclusive", [*MAIN_FAULTS, *LEADER_FAULTS], SECONDS))


def test_promised_overlaps_are_seen_and_the_fence_stops_their_writes(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Under `available`, an owner goes on until it has heard its successor: a referee that misses that is blind."""
    run = weather(cluster, tmp_path, "available", AVAILABLE_FAULTS, AVAILABLE_SECONDS)
    assert run.verdict.overlaps
    assert run.writes.refusals
    assert [] == run.writes.zombies


def test_a_killed_leading_broker_loses_no_record_and_all_is_led_without_it(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    name = f"leader-{uuid4().hex}"
    ledger = cluster.ledger(name)
    with (
        ProcessGroup(tmp_path, partitions=PARTITIONS, pause=PAUSE, ledger=ledger, lease=LEASE) as group,
        LedgerCopy(ledger) as copy,
        closing(open_ledger(ledger, create=False, patience=PATIENCE)) as outside,
    ):
        for member in NAMES[:3]:
            group.start(member, prefix=cluster.network.prefix(member))
        group.settle()
        cluster.await_all_well(name)
        leader = until(partial(cluster.leader, name), "a leader of the partition")
        assert leader is not None
        outside.append([b"of no member"] * 100)
        acknowledged = collected(outside.acknowledged, 1)
        killed_at = host_clock()
        cluster.node(leader).kill()
        led_from(group, killed_at, claimed=LEASE)  # A lease from before the kill may last that long.
        acknowledged += outside.acknowledged()
        cluster.node(leader).start()
        group.settle()
        cluster.await_all_well(name)
        group.leave()
    payloads = {entry.offset: entry.payload for entry in copy.close()}
    assert {b"of no member"} == {payloads.get(offset) for offset in acknowledged}
    assert [] == group.verdict().faults
    require_terms_of(history_of(copy.close()), group.verdict())
