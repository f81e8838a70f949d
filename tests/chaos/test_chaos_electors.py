"""Real processes that elect among themselves, each on a host of its own, and a storm upon them and their network."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chaos import report
from tests.chaos.bad_switch import BadSwitch
from tests.chaos.fenced import FencedWriter, writes_in
from tests.chaos.peer_storm import PeerStorm
from tests.chaos.wall_clock import WallClock
from tests.chaos.weather import NAMES, SECONDS
from tests.conftest import require
from tests.processes.peer_group import PeerProcesses
from tests.repeat import SEED, say
from tests.servers.network import Network, missing

LEASE = 1.0
PAUSE = LEASE / 20
PARTITIONS = 4
PORT = 7801

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS * 1.5 + 900)]


ELECTORS = {
    "priority": {"protocol": "term", "policy": "priority"},
    "random": {"protocol": "term", "policy": "random"},
    "gossip": {"protocol": "gossip"},
}


@pytest.mark.parametrize("options", ELECTORS.values(), ids=ELECTORS)
def test_no_two_peers_ever_act_at_once_whatever_happens_to_them_and_their_network(
    options: Mapping[str, str], tmp_path: Path
) -> None:
    """Terms grow, a fence refuses those that wake up late, and in calm all is led again."""
    require(missing())
    say(f"repeat with NELI_TEST_SEED={SEED} NELI_TEST_SECONDS={SECONDS:g}")
    fence = tmp_path / "fence.db"
    FencedWriter.install(fence)

    def seen() -> bool:
        verdict, writes = group.verdict(), writes_in(fence)
        return verdict.takeovers > 0 and len(verdict.processes) == PARTITIONS and bool(writes.refusals)

    clock = None if WallClock.missing() else WallClock(tmp_path)
    with Network.started(NAMES) as network, BadSwitch(network, seed=SEED) as switch:
        places = {name: f"{network.address(name)}:{PORT}" for name in NAMES}
        chosen = {"program": ("tests.chaos.fenced", str(fence)), "lease": LEASE, **options}
        with PeerProcesses(tmp_path, places, partitions=PARTITIONS, pause=PAUSE, **chosen) as group:
            storm = PeerStorm(network, group, switch, lease=LEASE, seed=SEED, clock=clock)
            storm.run(SECONDS, seen)
    verdict, writes = group.verdict(), writes_in(fence)
    say(report.table(storm.injected))
    say(report.seen(verdict))
    say(f"{writes.written} writes, {len(writes.refusals)} refused by the fence; all led {storm.led_after:.2f} s after")
    say(f"{switch.carried} datagrams carried, {switch.lost} lost by the switch")
    assert [] == verdict.faults
    assert [] == writes.zombies
    assert [] == storm.ended
    assert set(storm.kinds) == {fault.kind for fault in storm.injected}
    assert set(range(PARTITIONS)) == verdict.processes.keys()
    assert verdict.takeovers > 0
    assert writes.refusals
