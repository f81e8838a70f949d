"""The simulated witnesses report what they saw. The runs in test_contract show that they do so under all faults."""

import pytest

from neli_router.lab.sim.induction import witnesses
from neli_router.protocols.induction.records import Certify, Join, decode
from tests.lab.sim.groups import LEASE, at_rest, incarnation


@pytest.mark.parametrize("agents", [0.0, 1.0], ids=["children", "agents"])
def test_a_child_or_an_agent_that_a_join_names_certifies_a_process_in_the_moment_of_its_end(
    agents: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents are asked first, or children. The very first process has no agent to ask, and has a child."""
    for name, value in (("AGENT", agents), ("DELAYS", (0.0,)), ("DIES_TOO", 0.0), ("AGAIN", 0.0)):
        monkeypatch.setattr(witnesses, name, value)
    found, one, other = at_rest(witnessed=1.0)
    dead = incarnation(other)
    other.kill()
    found.world.run(found.world.now + 0.1 * LEASE)
    records = [decode(payload) for payload in found.log.payloads]
    (certificate,) = [record for record in records if isinstance(record, Certify)]
    assert (dead, agents > 0) == (certificate.incarnation, certificate.by == incarnation(one))
    named = {record.name: record.witness for record in records if isinstance(record, Join)}
    assert {"m1": "child", "m2": "agent" if agents else "child"} == named
    assert {incarnation(one)} == set(found.referee.state.owners)
    assert found.converged
