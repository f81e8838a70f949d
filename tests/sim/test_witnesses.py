"""The simulated witnesses say what they saw, when all that acts for the dead has ended, and may die themselves."""

from dataclasses import replace

import pytest

from neli_router.induction.machine import Induction
from neli_router.induction.records import Certify, Join, decode
from neli_router.protocol import Guarantee
from neli_router.sim import witnesses
from neli_router.sim.group import SimulatedGroup
from neli_router.sim.process import Process
from neli_router.sim.simulate import CONVERGED_LEASES_MAX
from neli_router.sim.world import World
from tests.sim.test_checkers import LEASE, options


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Witnesses that say at once what they saw, and a child that says it once."""
    for name, value in (("DELAYS", (0.0,)), ("DIES_TOO", 0.0), ("AGAIN", 0.0)):
        monkeypatch.setattr(witnesses, name, value)


def at_rest(guarantee: Guarantee = "exclusive", *, lent: float = 0.0) -> tuple[SimulatedGroup, Process, Process]:
    """A group of two with witnesses, who have come to rest."""
    found = SimulatedGroup(World(1), replace(options("foul", guarantee), witnessed=1.0, lent=lent))
    found.heal()
    one, other = found.start("m1"), found.start("m2")
    found.world.run(CONVERGED_LEASES_MAX * LEASE)
    assert found.converged, found.describe()
    return found, one, other


def certificates(group: SimulatedGroup) -> list[Certify]:
    return [record for record in map(decode, group.log.payloads) if isinstance(record, Certify)]


def incarnation(process: Process) -> str:
    assert isinstance(process.machine, Induction)
    return process.machine.incarnation


@pytest.mark.usefixtures("prompt")
def test_a_child_certifies_its_process_in_the_moment_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "AGENT", 0.0)
    found, one, other = at_rest()
    dead = incarnation(one)
    one.kill()
    found.world.run(found.world.now + LEASE / 10)
    assert [dead] == [record.incarnation for record in certificates(found)]
    assert dict.fromkeys(range(4), incarnation(other)) == dict(enumerate(found.referee.state.owners))
    assert found.converged


@pytest.mark.usefixtures("prompt")
def test_an_agent_certifies_in_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "AGENT", 1.0)
    found, one, other = at_rest()
    dead, agent = incarnation(other), incarnation(one)
    other.kill()
    found.world.run(found.world.now + LEASE / 10)
    assert [Certify(by=agent, incarnation=dead)] == certificates(found)


@pytest.mark.usefixtures("prompt")
def test_an_agent_that_has_ended_certifies_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "AGENT", 1.0)
    found, one, other = at_rest()
    one.kill()  # The first of all had nobody to ask, and has a child.
    found.world.run(found.world.now + LEASE / 10)
    others = len(certificates(found))
    dead = incarnation(other)
    other.kill()
    found.world.run(found.world.now + 3 * LEASE)
    assert dead not in [record.incarnation for record in certificates(found)[others:]]


@pytest.mark.usefixtures("prompt")
def test_one_that_lent_its_lease_is_certified_when_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "AGENT", 0.0)
    found, one, _ = at_rest(lent=1.0)
    one.kill()
    found.world.run(found.world.now + LEASE / 2)
    assert [] == certificates(found)
    found.world.run(found.world.now + LEASE)
    assert 1 == len(certificates(found))


def test_a_join_names_the_witness() -> None:
    found, _, _ = at_rest()
    named = {record.name: record.witness for record in map(decode, found.log.payloads) if isinstance(record, Join)}
    assert {"m1": "child"} == {name: said for name, said in named.items() if name == "m1"}
    assert set(named.values()) <= {"agent", "child"}


def test_a_child_waits_for_a_ledger_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "AGENT", 0.0)
    monkeypatch.setattr(witnesses, "DIES_TOO", 0.0)
    monkeypatch.setattr(witnesses, "DELAYS", (0.0,))
    found, one, _ = at_rest()
    back_at = found.log.away_until = found.world.now + LEASE
    one.kill()
    found.world.run(back_at)
    assert [] == certificates(found)
    found.world.run(back_at + LEASE / 10)
    assert 1 <= len(certificates(found))
