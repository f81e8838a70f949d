"""Simulate: one seed, one run of a whole group under faults, and a verdict.

seed --> options --> phase one: faults --> healed --> phase two: converge --> calm: nothing moves --> Result
                          |                                 |                       |
                          '---- a broken promise -----------+-----------------------'--> Violation, transcript
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from neli_router.induction.records import Guarantee
from neli_router.sim.faults import Faults
from neli_router.sim.group import Group
from neli_router.sim.options import Options, Weather
from neli_router.sim.world import Violation, World

__all__ = ["Result", "simulate"]

CONVERGED_LEASES_MAX = 14.0
CALM_LEASES = 3.0
CHECKS_PER_LEASE = 4


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    options: Options
    trace: str
    violation: Violation | None
    time: float
    converged_after: float
    counts: Counter[str] = field(default_factory=Counter)
    transcript: str = ""


def simulate(seed: int, *, guarantee: Guarantee | None = None, weather: Weather | None = None) -> Result:
    world = World(seed)
    options = Options.draw(seed, world.random, guarantee=guarantee, weather=weather)
    group = Group(world, options)
    violation, took = None, 0.0
    try:
        took = _run(world, group, options)
    except Violation as found:
        violation = found
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
        world.at(random.choice((0.0, random.uniform(0.0, 3.0))) * lease, group.start, f"m{member + 1}")
    world.at(random.uniform(0.0, options.leases / 2) * lease, group.observe)
    faults = Faults(world, group, options)
    world.at(random.uniform(0.0, 4.0) * lease, faults.begin)
    if options.rewind != "no":
        world.at(random.uniform(0.4, 0.9) * options.leases * lease, _rewind, world, group, options)
    world.run(options.leases * lease)
    faults.stop()
    group.heal()
    healed_at = world.now
    while world.now < healed_at + CONVERGED_LEASES_MAX * lease:
        if options.rewind != "no" and world.now > healed_at + 5*lease:
            return 0
        if not group.living and options.rewind == "no":
            group.start("m1").heal()
        world.run(world.now + lease / CHECKS_PER_LEASE)
        if group.converged:
            break
    else:
        raise Violation("converges", f"not within {CONVERGED_LEASES_MAX:g} leases: {group.describe()}")
    took = (world.now - healed_at) / lease
    if options.rewind != "no":
        return took
    group.calm = True
    world.run(world.now + CALM_LEASES * lease)
    if not group.converged:
        raise Violation("stays", group.describe())
    group.finish()
    return took


def _rewind(world: World, group: Group, options: Options) -> None:
    count = len(group.log.offsets)
    lost = 0 if options.rewind == "anew" else count - world.random.randint(1, min(count, 40)) if count else 0
    group.rewind(lost)


def _transcript(world: World, group: Group) -> str:
    lines = []
    for line in list(world.lines):
        details = " ".join(d.decode(errors="replace") if isinstance(d, bytes) else repr(d) for d in line.details)
        for inc, name in group.names.items():
            details = details.replace(inc, name)
        lines.append(f"{line.time:12.6f} {line.who:8} {line.what} {details[:300]}")
    return "\n".join(lines)
