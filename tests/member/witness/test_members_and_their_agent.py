"""Real members with the agent of their host: killed with it, without it, and after it was restarted.

    w1 is killed --> certified --> agent is killed, and started again --> w2 is killed --> certified
                                   agent and w3 killed together ---> w3 is expired when its lease is over

The agent asks for no partitions, so the members share all of them. A referee reads what they noted.
"""

from contextlib import closing
from pathlib import Path

import httpx
import pytest

from neli_router.drivers.open import open_ledger
from neli_router.lab.moves import History, history_of
from neli_router.lab.processes.group import MemberProcess, ProcessGroup, led_elsewhere
from neli_router.protocols.induction.records import Certify, Expire
from tests.support.agents.processes import PARTITIONS, AgentProcess
from tests.support.agents.running import PATIENCE
from tests.support.waiting import until

pytestmark = pytest.mark.process

LEASE = 5.0


def history(group: ProcessGroup) -> History:
    entries = []
    with closing(open_ledger(group.ledger, create=False, patience=1.0)) as ledger:
        ledger.seek(ledger.start())
        while more := ledger.read(0.0):
            entries += more
    return history_of(entries)


def witnessed(agent: AgentProcess) -> float:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(agent.socket)), timeout=PATIENCE) as client:
        lines = client.get("http://agent/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("neli_witnessed_members "))


def take_over(group: ProcessGroup, victim: MemberProcess) -> None:
    """Kill the member, and wait until others lead all that it led."""
    led = set(victim.life.held)
    assert led
    at = victim.kill()
    group.wait_until(lambda: led_elsewhere(group.lives, victim.life, led, at) < float("inf"), "others were to lead it")


def test_a_member_is_certified_whenever_its_agent_lives_and_expired_when_it_does_not(tmp_path: Path) -> None:
    with (
        AgentProcess("agent", tmp_path, "--weight", "0", lease=LEASE) as agent,
        ProcessGroup(tmp_path, partitions=PARTITIONS, pause=LEASE / 20, lease=LEASE, witness="agent") as group,
    ):
        w1, w2, w3, _ = [group.start(f"w{n}", environment={"NELI_AGENT": agent.address}) for n in (1, 2, 3, 4)]
        group.settle()
        until(lambda: 4 == witnessed(agent), "the registrations")

        take_over(group, w1)
        assert ["w1"] == history(group).departed_by(Certify)

        agent.kill()
        agent.start()
        until(lambda: 3 == witnessed(agent), "the others' registrations")
        take_over(group, w2)
        assert ["w1", "w2"] == history(group).departed_by(Certify)

        agent.kill()
        take_over(group, w3)
        assert "w3" in history(group).departed_by(Expire)
        assert ["w1", "w2"] == history(group).departed_by(Certify)
        assert [] == group.verdict().faults
