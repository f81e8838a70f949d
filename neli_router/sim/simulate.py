"""Simulate: one seed, one run of a whole group under faults, and a verdict.

    seed --> options --> phase one: faults --> healed --> phase two: converge --> calm: nothing moves --> Result
                              |                                 |                       |
                              '---- a broken promise -----------+-----------------------'--> Violation, transcript

The checkers look on after every step (see `group`). What this adds is that the run comes to a good end: within a stated
time after the last fault every partition is led by who is meant to own it, and then nothing moves any more.

A ledger that lost records that somebody had read has no good end: nothing leads on it, and people must look. There the
run goes on for as long as it takes to see that whoever could notice has stopped, and for no longer.
"""

import traceback
from collections import Counter
from dataclasses import dataclass, field

from neli_router.induction.records import Guarantee
from neli_router.sim.faults import Faults
from neli_router.sim.group import DOUBT, Group
from neli_router.sim.options import STEPS_MAX, Options, Weather
from neli_router.sim.world import Violation, World

__all__ = ["CONVERGED_LEASES_MAX", "Result", "simulate"]

CONVERGED_LEASES_MAX = 14.0
"""How long after the last fault all must be led: a newcomer's wait, a suspicion, a drain that times out, and each of
them once more, because a kill may come last."""

CALM_LEASES = 3.0
"""How long nothing may move then: whoever would accuse another wrongly does so after a lease of hearing itself."""

CHECKS_PER_LEASE = 4

TRANSCRIPT_LINES, DETAILS_MAX = 80, 300
"""As much as one reads before replaying the seed oneself."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a seed. `trace` is a hash of all that happened, the same wherever the seed is run."""

    seed: int
    options: Options
    trace: str
    violation: Violation | None
    time: float
    converged_after: float
    """In leases, from the last fault; 0 where the ledger lost records."""
    counts: Counter[str] = field(default_factory=Counter)
    transcript: str = ""
    """The last events before the violation, if there is one."""


def simulate(seed: int, *, guarantee: Guarantee | None = None, weather: Weather | None = None) -> Result:
    """Run `seed`; `guarantee` and `weather` force what it would else draw, and are then a part of what it means."""
    world = World(seed)
    options = Options.draw(seed, world.random, guarantee=guarantee, weather=weather)
    group = Group(world, options)
    violation, took = None, 0.0
    try:
        took = _run(world, group, options)
    except Violation as found:
        violation = found
    except Exception:  # noqa: BLE001 - whatever raised, it is the run that failed, and the seed that shows it.
        violation = Violation("never_crashes", traceback.format_exc())
    return Result(
        seed,
        options,
        world.trace,
        violation,
        world.now,
        took,
        group.counts,
        _transcript(world, group) if violation else "",
    )


def _run(world: World, group: Group, options: Options) -> float:
    random, lease = world.random, options.lease
    for member in range(options.members):
        world.at(random.choice((0.0, random.uniform(0.0, 3.0))) * lease, _start, group, f"m{member + 1}")
    world.at(random.uniform(0.0, options.leases / 2) * lease, _observe, group)
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


def _converge(world: World, group: Group, lease: float) -> float:
    """How many leases it takes until all is led; if everybody died, somebody is started first."""
    healed_at = world.now
    while world.now < healed_at + CONVERGED_LEASES_MAX * lease:
        if not group.living:
            group.start("m1").heal()
        world.run(world.now + lease / CHECKS_PER_LEASE)
        if group.converged:
            return (world.now - healed_at) / lease
    raise Violation("converges", f"not within {CONVERGED_LEASES_MAX:g} leases: {group.describe()}")


def _start(group: Group, name: str) -> None:
    group.start(name)


def _observe(group: Group) -> None:
    group.observe()


def _rewind(world: World, group: Group, options: Options) -> None:
    """Lose records that some have read and others, who lag behind, have not."""
    random, lease = world.random, options.lease
    for process in random.sample(group.living, min(len(group.living), random.randint(0, 2))):
        process.ledger.deaf_until = world.now + random.uniform(0.0, 1.5) * lease
    world.run(world.now + random.uniform(0.0, 0.8) * lease)
    count = len(group.log.offsets)
    lost = count if options.rewind == "anew" else min(count, random.randint(1, 40))
    group.rewind(count - lost)


def _transcript(world: World, group: Group) -> str:
    """The last events, with names that a person can tell apart."""
    lines = []
    for line in list(world.lines)[-TRANSCRIPT_LINES:]:
        details = " ".join(d.decode(errors="replace") if isinstance(d, bytes) else repr(d) for d in line.details)
        for inc, name in group.names.items():
            details = details.replace(inc, name)
        lines.append(f"{line.time:12.6f} {line.who:8} {line.what} {details[:DETAILS_MAX]}")
    return "\n".join(lines)
