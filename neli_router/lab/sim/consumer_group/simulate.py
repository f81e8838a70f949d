"""Simulations of borrowed consumer groups: one seed, one run, and a verdict.

    seed --> options --> phase one: faults --> healed --> phase two: converge --> calm: nothing moves --> an outcome
                              |                                 |                       |
                              '---- a broken promise -----------+-----------------------'--> Violation, transcript

The checkers judge every step (see `group`). This module also checks that the run ends well: within a stated time after
the last fault, each partition is led by the process that the broker gave it to, and then nothing moves any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from neli_router.lab.sim.consumer_group.faults import ConsumerFaults
from neli_router.lab.sim.consumer_group.group import ConsumerGroup
from neli_router.lab.sim.consumer_group.options import BorrowedProtocol, ConsumerOptions, ConsumerWeather
from neli_router.lab.sim.seed import Outcome, assemble, converge, require_calm, transcript_of, verdict_on
from neli_router.lab.sim.world import World
from neli_router.protocols.protocol import Guarantee

__all__ = ["ConsumerOutcome", "simulate_consumers"]

STEPS_MAX = 4000
"""The number of machine steps after which a run's faults end, if its time is not over before."""

CALM_SESSIONS = 3.0
CHECKS_PER_SESSION = 10

UNIT = "sessions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOutcome(Outcome[ConsumerOptions]):
    """The verdict on a seed."""

    measured: Mapping[str, float]
    """The longest times of the run, in seconds."""


def simulate_consumers(
    seed: int,
    *,
    protocol: BorrowedProtocol | None = None,
    guarantee: Guarantee | None = None,
    weather: ConsumerWeather | None = None,
) -> ConsumerOutcome:
    """Run `seed`. Arguments override what the seed would draw; a replay must pass them, too."""
    world = World(seed)
    options = ConsumerOptions.draw(seed, world.random, protocol=protocol, guarantee=guarantee, weather=weather)
    group = ConsumerGroup(world, options)
    violation, took = verdict_on(lambda: _run(world, group, options))
    return ConsumerOutcome(
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


def _run(world: World, group: ConsumerGroup, options: ConsumerOptions) -> float:
    random, session = world.random, options.session
    assemble(world, group, options.members, session)
    faults = ConsumerFaults(world, group, options)
    world.at(random.uniform(0.0, 4.0) * session, faults.begin)
    while world.now < options.sessions * session and group.counts["steps"] < STEPS_MAX:
        world.run(world.now + session)
    faults.stop()
    group.heal()
    took = _converge(world, group, options)
    require_calm(world, group, session, units=CALM_SESSIONS, checks_per_unit=CHECKS_PER_SESSION)
    return took


def _converge(world: World, group: ConsumerGroup, options: ConsumerOptions) -> float:
    # The dead are forgotten after a session, and hung programs after the broker's patience; either may come last.
    bound = 6.0 + 2 * options.poll_patience + 2 * options.drain_timeout + 4 * (options.current + options.error)
    return converge(world, group, options.session, bound=bound, checks_per_unit=CHECKS_PER_SESSION, named=UNIT)
