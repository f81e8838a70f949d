"""Simulations of borrowed consumer groups: one seed, one run, and a verdict.

    seed --> options --> phase one: faults --> healed --> phase two: converge --> calm: nothing moves --> an outcome
                              |                                 |                       |
                              '---- a broken promise -----------+-----------------------'--> Violation, transcript

The checkers judge every step (see `group`). This module adds that the run ends well: within a stated time after the
last fault each partition is led by the process that the broker gave it to, and then nothing moves any more.
"""

import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from neli_router.protocol import Guarantee
from neli_router.sim.consumers.faults import ConsumerFaults
from neli_router.sim.consumers.group import ConsumerGroup
from neli_router.sim.consumers.options import BorrowedProtocol, ConsumerOptions, ConsumerWeather
from neli_router.sim.world import Violation, World

__all__ = ["ConsumerOutcome", "simulate_consumers"]

STEPS_MAX = 4000
"""After how many steps of machines the faults of a run end, if that is before its time."""

CALM_SESSIONS = 3.0
CHECKS_PER_SESSION = 10

TRANSCRIPT_LINES, DETAILS_MAX = 80, 300
"""As much as one reads before replaying the seed oneself."""


@dataclass(frozen=True, slots=True)
class ConsumerOutcome:
    """The verdict on a seed. `trace` is a hash of all that happened, the same wherever the seed is run."""

    seed: int
    options: ConsumerOptions
    trace: str
    violation: Violation | None
    time: float
    converged_after: float
    """In sessions, from the last fault."""
    counts: Counter[str] = field(default_factory=Counter)
    measured: Mapping[str, float] = field(default_factory=dict)
    """The longest times of the run, in seconds."""
    transcript: str = ""
    """The last events before the violation, if there is one."""


def simulate_consumers(
    seed: int,
    *,
    protocol: BorrowedProtocol | None = None,
    guarantee: Guarantee | None = None,
    weather: ConsumerWeather | None = None,
) -> ConsumerOutcome:
    """Run `seed`. What is named replaces what it would draw; a replay must name it, too."""
    world = World(seed)
    options = ConsumerOptions.draw(seed, world.random, protocol=protocol, guarantee=guarantee, weather=weather)
    group = ConsumerGroup(world, options)
    violation, took = None, 0.0
    try:
        took = _run(world, group, options)
    except Violation as found:
        violation = found
    except Exception:  # noqa: BLE001 - wherever it was raised, this seed shows it again.
        violation = Violation("never_crashes", traceback.format_exc())
    return ConsumerOutcome(
        seed,
        options,
        world.trace,
        violation,
        world.now,
        took,
        group.counts,
        dict(group.measured),
        _transcript(world) if violation else "",
    )


def _run(world: World, group: ConsumerGroup, options: ConsumerOptions) -> float:
    random, session = world.random, options.session
    for member in range(options.members):
        world.at(random.choice((0.0, random.uniform(0.0, 3.0))) * session, group.start, f"m{member + 1}")
    faults = ConsumerFaults(world, group, options)
    world.at(random.uniform(0.0, 4.0) * session, faults.begin)
    while world.now < options.sessions * session and group.counts["steps"] < STEPS_MAX:
        world.run(world.now + session)
    faults.stop()
    group.heal()
    took = _converge(world, group, options)
    group.calm = True
    for _ in range(round(CALM_SESSIONS * CHECKS_PER_SESSION)):
        world.run(world.now + session / CHECKS_PER_SESSION)
        if not group.converged:
            raise Violation("stays", group.describe())
    return took


def _converge(world: World, group: ConsumerGroup, options: ConsumerOptions) -> float:
    """How many sessions it takes until all is led; if every process died, one is started first."""
    # The dead are forgotten after a session, and programs that hang after the broker's patience; each may come last.
    bound = 6.0 + 2 * options.poll_patience + 2 * options.drain_timeout + 4 * (options.current + options.error)
    healed_at = world.now
    while world.now < healed_at + bound * options.session:
        if not group.living:
            group.start("m1").heal()
        world.run(world.now + options.session / CHECKS_PER_SESSION)
        if group.converged:
            return (world.now - healed_at) / options.session
    raise Violation("converges", f"not within {bound:g} sessions: {group.describe()}")


def _transcript(world: World) -> str:
    lines = []
    for line in list(world.lines)[-TRANSCRIPT_LINES:]:
        details = " ".join(repr(one) for one in line.details)
        lines.append(f"{line.time:12.6f} {line.who:8} {line.what} {details[:DETAILS_MAX]}".rstrip())
    return "\n".join(lines)
