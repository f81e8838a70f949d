"""The simulated witnesses say what they saw, when all that acts for the dead has ended, and may die themselves."""

import pytest

from neli_router.induction.records import Certify, Join, decode
from neli_router.sim import witnesses
from neli_router.sim.group import SimulatedGroup
from tests.sim.groups import LEASE, at_rest, incarnation


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Witnesses that say at once what they saw, and a child that says it once."""
    for name, value in (("DELAYS", (0.0,)), ("DIES_TOO", 0.0), ("AGAIN", 0.0)):
        monkeypatch.setattr(witnesses, name, value)


@pytest.fixture(params=[0.0, 1.0], ids=["children", "agents"])
def agent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether agents are asked first, and not children. The very first process has no agent to ask, and has a child."""
    monkeypatch.setattr(witnesses, "AGENT", request.param)
    return bool(request.param)


def certificates(group: SimulatedGroup) -> list[Certify]:
    return [record for record in map(decode, group.log.payloads) if isinstance(record, Certify)]


def after(leases: float, group: SimulatedGroup) -> list[Certify]:
    group.world.run(group.world.now + leases * LEASE)
    return certificates(group)


def test_a_child_or_an_agent_certifies_a_process_in_the_moment_of_its_end(agent: bool) -> None:
    found, one, other = at_rest(witnessed=1.0)
    dead = incarnation(other)
    other.kill()
    (certificate,) = after(0.1, found)
    assert (dead, agent) == (certificate.incarnation, certificate.by == incarnation(one))
    assert {incarnation(one)} == set(found.referee.state.owners)
    assert found.converged


def test_a_join_names_the_witness() -> None:
    found, _, _ = at_rest(witnessed=1.0)
    named = {record.name: record.witness for record in map(decode, found.log.payloads) if isinstance(record, Join)}
    assert "child" == named["m1"]
    assert set(named.values()) <= {"agent", "child"}


@pytest.mark.parametrize("agent", [0.0], indirect=True)
@pytest.mark.usefixtures("agent")
def test_a_child_waits_for_a_ledger_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "AGAIN", 1.0)
    found, one, _ = at_rest(witnessed=1.0)
    back_at = found.log.away_until = found.world.now + LEASE
    one.kill()
    found.world.run(back_at)
    assert [] == certificates(found)
    assert 1 <= len(after(0.1, found))
