"""Simulations: one seed, one run of a whole group, and a verdict.

    seed --> options --> phase one: faults --> healed --> phase two: converge --> calm: nothing moves --> Result
                              |                                 |                       |
                              '---- a broken promise -----------+-----------------------'--> Violation, transcript

    seed --> at rest --ledger away, 3 leases--> all fenced --ledger back--> at rest --> Outage

`simulate` runs a group under faults. The checkers judge every step (see `group`). This module also checks that the run
ends well: within a stated time after the last fault, the target of every partition leads it, and then nothing moves any
more. A ledger that lost records after a process had read them has no good end: nothing leads on it, and people must
look. That run ends as soon as every process that could notice the loss has had the time to stop.

`outage` takes the ledger away from a group at rest, for three leases by default, and reports what that costs. All
members have then been silent to each other for longer than a lease. If a member took that for death, the first member
to reach the ledger would expire the others, and every partition would move for nothing.
"""

from dataclasses import dataclass, replace
from random import Random

from neli_router.lab.sim.induction.faults import Faults
from neli_router.lab.sim.induction.group import DOUBT, SimulatedGroup
from neli_router.lab.sim.induction.options import STEPS_MAX, RunOptions, Weather
from neli_router.lab.sim.seed import Outcome, assemble, converge, transcript_of, verdict_on
from neli_router.lab.sim.world import Violation, World
from neli_router.protocols.protocol import Guarantee

__all__ = ["AWAY_LEASES", "CONVERGED_LEASES_MAX", "MEMBERS", "Outage", "Result", "outage", "simulate"]

CONVERGED_LEASES_MAX = 14.0
"""How long after the last fault everything must be led: a newcomer's wait, a suspicion, a drain that times out, and
each of them once more, because a kill may come last. A member that was expired again and again rests, too."""

CALM_LEASES = 3.0
"""How long nothing may move then: a member that wrongly accuses another does so after a lease of hearing itself."""

CHECKS_PER_LEASE = 4

UNIT = "leases"

MEMBERS, AWAY_LEASES = 8, 3.0
"""The group under an outage, and how long the outage lasts."""

REST_LEASES = 14.0
"""Long enough for that group to found itself, share its partitions and settle."""

OUTAGE_CHECKS_PER_LEASE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Outcome[RunOptions]):
    """The verdict on a seed."""


def simulate(seed: int, *, guarantee: Guarantee | None = None, weather: Weather | None = None) -> Result:
    """Run `seed`. `guarantee` and `weather` override what the seed would draw; a replay must pass them, too."""
    world = World(seed)
    options = RunOptions.draw(seed, world.random, guarantee=guarantee, weather=weather)
    group = SimulatedGroup(world, options)
    violation, took = verdict_on(lambda: _run(world, group, options))
    return Result(
        options=options,
        trace=world.trace,
        violation=violation,
        time=world.now,
        converged_after=took,
        unit=UNIT,
        counts=group.counts,
        transcript=transcript_of(world, group.names) if violation else "",
    )


def _run(world: World, group: SimulatedGroup, options: RunOptions) -> float:
    random, lease = world.random, options.lease
    assemble(world, group, options.members, lease)
    world.at(random.uniform(0.0, options.leases / 2) * lease, group.observe)
    faults = Faults(world, group, options)
    world.at(random.uniform(0.0, 4.0) * lease, faults.begin)
    while world.now < options.leases * lease and group.counts["steps"] < STEPS_MAX:
        world.run(world.now + lease)
    if options.rewind != "no":
        _rewind(world, group, options)
        world.run(world.now + random.uniform(0.0, 4.0) * lease)
    faults.stop()
    group.heal()
    if options.rewind != "no":
        world.run(world.now + (DOUBT + CALM_LEASES) * lease)
        return 0.0
    took = _converge(world, group, lease)
    group.calm = True
    world.run(world.now + CALM_LEASES * lease)
    if not group.converged:
        raise Violation("stays", group.describe())
    group.finish()
    return took


def _converge(world: World, group: SimulatedGroup, lease: float) -> float:
    bound = CONVERGED_LEASES_MAX + group.rest_after_an_expiry
    return converge(world, group, lease, bound=bound, checks_per_unit=CHECKS_PER_LEASE, named=UNIT)


def _rewind(world: World, group: SimulatedGroup, options: RunOptions) -> None:
    """Lose records that some processes have read but others, which lag behind, have not."""
    random, lease = world.random, options.lease
    for process in random.sample(group.living, min(len(group.living), random.randint(0, 2))):
        process.ledger.deaf_until = world.now + random.uniform(0.0, 1.5) * lease
    world.run(world.now + random.uniform(0.0, 0.8) * lease)
    count = len(group.log.offsets)
    lost = count if options.rewind == "anew" else min(count, random.randint(1, 40))
    group.rewind(count - lost)


@dataclass(frozen=True, slots=True)
class Outage:
    """The effects of an outage on a group."""

    seed: int
    expired: int
    """How many incarnations were members before the outage but not after it."""
    terms_changed: int
    moves: int
    back_after_leases: float
    """From when the ledger was reachable again until every partition was led by its owner."""


def outage(seed: int, *, leases: float = AWAY_LEASES) -> Outage:
    """Run an outage of `leases` leases; the seed decides partitions, clocks, delays and the times of all beats."""
    world = World(seed)
    options = _options(seed, world.random)
    group = SimulatedGroup(world, options)
    for member in range(MEMBERS):
        world.at(world.random.uniform(0.0, 2.0) * options.lease, group.start, f"m{member + 1}")
    world.run(REST_LEASES * options.lease)
    assert _at_rest(group), f"seed {seed:#x} did not settle before its outage: {group.describe()}"
    before = group.referee.state
    world.run(world.now + world.random.random() * options.lease)
    back_at = group.log.away_until = world.now + leases * options.lease
    world.run(back_at)
    while not _at_rest(group) and world.now < back_at + REST_LEASES * options.lease:
        world.run(world.now + options.lease / OUTAGE_CHECKS_PER_LEASE)
    back_after = (world.now - back_at) / options.lease
    world.run(world.now + 3 * options.lease)  # A member accuses another only after a lease of hearing itself.
    after = group.referee.state
    return Outage(
        seed,
        expired=len(before.seats.keys() - after.seats.keys()),
        terms_changed=sum(old != new for old, new in zip(before.terms, after.terms, strict=True)),
        moves=sum(old != new for old, new in zip(before.owners, after.owners, strict=True)),
        back_after_leases=back_after,
    )


def _options(seed: int, random: Random) -> RunOptions:
    drawn = RunOptions.draw(seed, random, guarantee="exclusive", weather="fair")
    return replace(drawn, members=MEMBERS, partitions=16, faults=(), leases=100.0)


def _at_rest(group: SimulatedGroup) -> bool:  # A function: type checkers assume a property is constant.
    return group.converged
