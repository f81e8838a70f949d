"""The trace, the world, its clocks and its witnesses, on which simulations rely; and an outage, which costs nothing."""

from random import Random

import pytest

from neli_router.lab.sim.induction import witnesses
from neli_router.lab.sim.induction.simulate import outage
from neli_router.lab.sim.world import LocalClock, World, draw_clock
from neli_router.protocols.induction.records import Certify, Join, decode
from tests.lab.sim.groups import LEASE, at_rest, incarnation


def test_the_trace_tells_bytes_times_and_actions_apart_and_one_time_keeps_the_order_of_asking() -> None:
    def trace(time: float = 1.0, who: str = "m1", what: str = "read", payload: bytes = b"beat", note: str = "") -> str:
        world = World(1)
        world.run(time)
        world.note(who, what, note)
        world.include(payload)
        return world.trace

    assert 5 == len({trace(), trace(time=2.0), trace(who="m2"), trace(what="sent"), trace(payload=b"join")})
    assert trace() == trace(note="only for people")
    world = World(1)
    happened: list[tuple[float, str]] = []
    for time, what in ((2.0, "b"), (1.0, "a"), (2.0, "c"), (-5.0, "now"), (3.0, "not yet")):
        world.at(time, lambda what=what: happened.append((world.now, what)))
    world.run(3.0)
    assert [(0.0, "now"), (1.0, "a"), (2.0, "b"), (2.0, "c")] == happened


def test_a_clock_shows_what_its_rates_add_up_to_and_knows_when() -> None:
    clock = LocalClock(100.0, [(0.0, 1.0), (10.0, 0.5), (20.0, 2.0)])
    times = (0.0, 10.0, 14.0, 20.0, 21.0)
    assert [100.0, 110.0, 112.0, 115.0, 117.0] == [clock.at(time) for time in times]
    assert list(times) == [clock.when(clock.at(time)) for time in times]


@pytest.mark.parametrize("stepping", [False, True])
def test_no_clock_is_off_by_more_than_its_drift(stepping: bool) -> None:
    for seed in range(50):
        clock = draw_clock(Random(seed), drift=0.09, stepping=stepping, horizon=100.0)
        rates = [clock.at(time + 1.0) - clock.at(time) for time in range(100)]
        assert 0.91 - 1e-9 <= min(rates) <= max(rates) <= 1.09 + 1e-9


@pytest.mark.parametrize(("seed", "leases"), [*enumerate((0.95, 1.05, 3.0))])
def test_an_outage_expires_no_member_changes_no_term_and_moves_nothing(seed: int, leases: float) -> None:
    found = outage(seed, leases=leases)
    assert (0, 0, 0) == (found.expired, found.terms_changed, found.moves)
    assert found.back_after_leases <= 1.0


@pytest.mark.parametrize("agents", [0.0, 1.0], ids=["children", "agents"])
def test_a_child_or_an_agent_certifies_a_process_when_it_ends(agents: float, monkeypatch: pytest.MonkeyPatch) -> None:
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
