"""Real processes on a Kafka of three brokers, all in a network of their own, and a storm of faults upon them.

    storm --kill, stop, cut, step--> members, brokers --notes--> referee: did two act for one partition at once?
                                        |        '-- writes --> fence, SQLite: was a zombie let through?
                                        '--ledger--> chronicle --fold--> the very terms that were noted

`NELI_TEST_SECONDS` says how long the main storm lasts, no less than 30 for every fault to be met; `NELI_TEST_SEED`
draws the same faults as in the run that printed it.
"""

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from benchmarks._processes.chronicle import Chronicle, History, history_of
from benchmarks._processes.group import Group
from benchmarks._processes.referee import Verdict
from benchmarks._processes.writer import Writer, zombie_writes
from neli_router.clock import host_clock
from tests.chaos import report
from tests.chaos.cluster import OUTSIDE, Cluster, missing
from tests.chaos.faults import LEADER_FAULTS, MEMBER_FAULTS
from tests.chaos.outside import Outside
from tests.chaos.storm import Storm
from tests.chaos.wall_clock import WallClock
from tests.conftest import require

LEASE = 1.0
NAMES = ["m1", "m2", "m3", "m4", "m5"]
PARTITIONS = 16
PAUSE = LEASE / 20
SECONDS = max(30.0, float(os.environ.get("NELI_TEST_SECONDS", "30")))
SEED = int(os.environ.get("NELI_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
SNAPSHOT_EVERY = 500
"""Often, so that those who come back start from snapshots, and the ledger is trimmed below what they once read."""

AVAILABLE_SECONDS = 10.0
AVAILABLE_FAULTS = ("stop", "cut off", "deaf", "kill")

LEADER_KILLS = 2

pytestmark = [pytest.mark.kafka, pytest.mark.process, pytest.mark.timeout(SECONDS * 1.5 + 400)]


def say(line: str) -> None:
    print(line)  # noqa: T201 - pytest shows it if the test fails, or if asked to with -rP.


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require(missing())
    with Cluster.started(NAMES) as started:
        yield started


@pytest.fixture(autouse=True)
def _outside(cluster: Cluster) -> Iterator[None]:
    """Whatever the test itself connects, it connects from there."""
    with cluster.network.entered(OUTSIDE):
        yield


class Run(NamedTuple):
    """What came of a storm."""

    verdict: Verdict
    history: History
    storm: Storm
    noted: dict[tuple[int, int], str]
    """(partition, term) -> who acted so."""
    zombies: list[str]
    """Writes that the fence should have refused."""

    def say(self) -> None:
        say(report.table(self.storm.injected))
        say(report.seen(self.verdict))
        say(
            f"all led {self.storm.led_after:.2f} s after the calm, and shared evenly after "
            f"{self.storm.balanced_after:.2f} s; {len(self.history.departures)} departures, {self.history.state.at} "
            f"records; {len(self.storm.ended)} processes ended by themselves"
        )


def weather(cluster: Cluster, folder: Path, guarantee: str, kinds: Sequence[str], seconds: float) -> Run:
    """Let a group live through a storm of these faults, with this guarantee and for so long."""
    say(f"repeat with NELI_TEST_SEED={SEED} NELI_TEST_SECONDS={seconds:g}")
    clock = WallClock(folder) if "clock" in kinds else None
    fence, name = folder / "fence.db", f"chaos-{uuid4().hex}"
    Writer.install(fence)
    options: dict[str, Any] = {"lease": LEASE, "guarantee": guarantee, "snapshot_every": SNAPSHOT_EVERY}
    ledger = f"kafka://{cluster.kafka.bootstrap}/{name}"
    with Group(folder, partitions=PARTITIONS, pause=PAUSE, ledger=ledger, fence=fence, **options) as group:
        topic = f"{name}.ledger"
        storm = Storm(cluster, group, NAMES, kinds, topic=topic, lease=LEASE, seed=SEED, clock=clock)
        with Chronicle(ledger) as chronicle:
            storm.run(seconds)
    noted = {(partition, term): process.partition(".")[0] for partition, term, process in group.referee.terms()}
    run = Run(group.referee.verdict(), history_of(chronicle.close()), storm, noted, zombie_writes(fence))
    run.say()
    return run


def test_no_two_processes_ever_act_at_once_whatever_happens_to_them_and_their_brokers(
    cluster: Cluster, tmp_path: Path
) -> None:
    """And whatever term they act under, the ledger gave it to them."""
    kinds = [kind for kind in (*MEMBER_FAULTS, *LEADER_FAULTS) if kind != "clock" or not WallClock.missing()]
    run = weather(cluster, tmp_path, "exclusive", kinds, SECONDS)
    assert [] == run.verdict.faults
    assert [] == run.zombies
    assert [] == [said for said in run.storm.ended if "LedgerUnavailable" not in said]

    # The fold, over the same records, gives the very terms that were noted.
    assert run.noted == {key: owner for key, owner in run.history.owners.items() if key in run.noted}

    # There was something to see: a storm in which nothing happens proves nothing.
    assert set(range(PARTITIONS)) == run.verdict.processes.keys()
    assert run.verdict.takeovers > 0
    assert run.verdict.writes > 100 * PARTITIONS
    met = {fault.kind for fault in run.storm.injected}
    assert {"kill", "stop"} <= met
    assert met & set(LEADER_FAULTS)
    assert met & {"cut off", "torn", "mute", "deaf"}


def test_where_overlaps_are_promised_the_same_referee_sees_them_and_the_fence_stops_their_writes(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Under `available`, an owner goes on until it has heard its successor: a referee who misses that is blind."""
    run = weather(cluster, tmp_path, "available", AVAILABLE_FAULTS, AVAILABLE_SECONDS)
    assert run.verdict.overlaps
    assert run.verdict.refusals
    assert [] == run.zombies


def test_when_the_leading_broker_is_killed_no_record_is_lost_and_all_is_led_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    """As soon as anybody can append again, the group can, too."""
    name = f"leader-{uuid4().hex}"
    topic, ledger = f"{name}.ledger", f"kafka://{cluster.kafka.bootstrap}/{name}"
    with (
        Group(tmp_path, partitions=PARTITIONS, pause=PAUSE, ledger=ledger, lease=LEASE) as group,
        Chronicle(ledger) as chronicle,
        Outside(cluster.kafka.bootstrap, topic) as outside,
    ):
        for member in NAMES[:3]:
            group.start(member, prefix=cluster.network.prefix(member))
        group.settle()
        for _ in range(LEADER_KILLS):
            cluster.await_all_well(topic)
            leader = cluster.leader(topic)
            assert leader is not None
            group.read_notes()
            killed_at = host_clock()
            cluster.node(leader).kill()
            accepted_at = outside.accepted_after(killed_at)
            led_at = max(group.led_from(accepted_at).values())
            cluster.node(leader).start()
            say(
                f"{leader} killed: an append succeeds after {accepted_at - killed_at:.2f} s, and all is led after "
                f"another {led_at - accepted_at:.3f} s: {(led_at - accepted_at) / LEASE:.2f} leases"
            )
            group.settle()
        cluster.await_all_well(topic)
        group.leave()
    entries = {entry.offset: entry.payload for entry in chronicle.close()}
    verdict, history = group.referee.verdict(), history_of(chronicle.close())
    say(report.seen(verdict))
    say(f"{len(outside.acknowledged)} acknowledged records of an outside producer")
    say(f"departures: {', '.join(f'{it.name} by {it.kind.__name__}' for it in history.departures)}")
    assert [] == verdict.faults
    assert outside.acknowledged
    assert [] == [offset for offset, payload in outside.acknowledged.items() if entries.get(offset) != payload]
    noted = {(partition, term): process.partition(".")[0] for partition, term, process in group.referee.terms()}
    assert noted == {key: owner for key, owner in history.owners.items() if key in noted}
