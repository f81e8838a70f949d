"""Simulations of groups without a broker: one seed, one run, and a verdict.

    seed --> options --> phase one: faults --> healed --> phase two: converge --> calm: nothing moves --> an outcome
                              |                                 |                       |
                              '---- a broken promise -----------+-----------------------'--> Violation, transcript

The checkers judge every step (see `group`). This module also checks that the run ends well: within a stated time after
the last fault, one peer acts for each partition, and then no leader changes any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from neli_router.lab.sim.electors.faults import ElectorFaults
from neli_router.lab.sim.electors.group import ElectorGroup
from neli_router.lab.sim.electors.insight import Insight, insight_of
from neli_router.lab.sim.electors.options import ElectorOptions, ElectorProtocol, ElectorWeather
from neli_router.lab.sim.seed import Outcome, assemble, converge, require_calm, transcript_of, verdict_on
from neli_router.lab.sim.world import World

__all__ = ["ElectorOutcome", "run_electors", "simulate_electors"]

STEPS_MAX = 6000
"""The number of machine steps after which a run's faults end, if its time is not over before."""

CALM_LEASES = 4.0
CHECKS_PER_LEASE = 10

UNIT = "leases"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectorOutcome(Outcome[ElectorOptions]):
    """The verdict on a seed."""

    measured: Mapping[str, float]
    """The longest times of the run, in seconds."""


def simulate_electors(
    seed: int, *, protocol: ElectorProtocol | None = None, weather: ElectorWeather | None = None
) -> ElectorOutcome:
    """Run `seed`. Arguments override what the seed would draw; a replay must pass them, too."""
    world = World(seed)
    options = ElectorOptions.draw(seed, world.random, protocol=protocol, weather=weather)
    return run_electors(world, options, insight_of(options))


def run_electors(world: World, options: ElectorOptions, insight: Insight) -> ElectorOutcome:
    """Run a group by `options` in a fresh `world`."""
    group = ElectorGroup(world, options, insight)
    violation, took = verdict_on(lambda: _run(world, group, options))
    return ElectorOutcome(
        options=options,
        trace=world.trace,
        violation=violation,
        time=world.now,
        converged_after=took,
        unit=UNIT,
        counts=group.counts,
        measured=dict(group.measured),
        transcript=transcript_of(world, {}) if violation else "",
    )


def _run(world: World, group: ElectorGroup, options: ElectorOptions) -> float:
    random, lease = world.random, options.lease
    assemble(world, group, options.size, lease)
    faults = ElectorFaults(world, group, options)
    world.at(random.uniform(0.0, 4.0) * lease, faults.begin)
    while world.now < options.leases * lease and group.counts["steps"] < STEPS_MAX:
        world.run(world.now + lease)
    faults.stop()
    group.heal()
    machines = [process.machine for process in group.living]
    took = converge(
        world,
        group,
        lease,
        bound=(group.insight.converges_within + max(map(group.insight.patience, machines))) / lease,
        checks_per_unit=CHECKS_PER_LEASE,
        named=UNIT,
    )
    require_calm(world, group, lease, units=CALM_LEASES, checks_per_unit=CHECKS_PER_LEASE)
    return took
