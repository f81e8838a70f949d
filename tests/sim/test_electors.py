"""Electors under the simulator: promises are held in many seeds, and its checkers see what they are for."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from random import Random
from typing import get_args

import pytest

from neli_router.electors.events import PeerEffect
from neli_router.electors.settings import PeerSettings
from neli_router.electors.voter import Voter
from neli_router.sim.electors.faults import ElectorFaults
from neli_router.sim.electors.group import ElectorGroup
from neli_router.sim.electors.insight import Insight
from neli_router.sim.electors.options import (
    FAIR_STRIKES,
    FOUL_STRIKES,
    ElectorOptions,
    ElectorProtocol,
    ElectorWeather,
)
from neli_router.sim.electors.simulate import ElectorOutcome, run_electors
from neli_router.sim.world import World
from tests.sim.toy_voter import ToyVoter

PROTOCOLS: tuple[ElectorProtocol, ...] = get_args(ElectorProtocol)
TOY_SEEDS = range(25)
SEARCHED = range(150)
"""Seeds among which a planted fault has to show."""


def drawn(seed: int, protocol: ElectorProtocol | None = None, weather: ElectorWeather | None = None) -> ElectorOptions:
    return ElectorOptions.draw(seed, Random(seed), protocol=protocol, weather=weather)


def toy(settings: PeerSettings, memory: bytes, now: float, rng: Random) -> Voter:
    return ToyVoter(settings, memory, now, rng=rng)


def run_toy(
    seed: int,
    build: Callable[[PeerSettings, bytes, float, Random], Voter] = toy,
    *,
    weather: ElectorWeather | None = None,
    size: int | None = None,
    faults: tuple[str, ...] | None = None,
) -> ElectorOutcome:
    world = World(seed)
    options = ElectorOptions.draw(seed, world.random, protocol="term", weather=weather)
    if size is not None:
        options = replace(options, size=size, replicas=size)
    if faults is not None:
        options = replace(options, faults=faults)
    return run_electors(world, options, Insight(options, build))


def broken_rules(runs: Iterator[ElectorOutcome]) -> Iterator[str]:
    return (one.violation.rule for one in runs if one.violation is not None)


# The simulator, over an elector that is small


def test_an_elector_that_is_right_keeps_every_promise() -> None:
    found = [run_toy(seed) for seed in TOY_SEEDS]
    assert [] == [f"{one.violation}\n{one.options}" for one in found if one.violation is not None]


def test_a_peer_that_promises_at_once_after_a_start_is_seen() -> None:
    """Its older self may have promised."""
    found = broken_rules(run_toy(seed, partial(_make, quiet=False), weather="foul") for seed in SEARCHED)
    assert "at_most_one_acts" == next(found)


def test_promises_that_are_shorter_than_the_lease_are_seen() -> None:
    found = broken_rules(run_toy(seed, partial(_make, share=0.3), weather="foul") for seed in SEARCHED)
    assert "at_most_one_acts" == next(found)


def test_disks_that_forget_give_a_term_twice() -> None:
    assert "terms_grow" == next(broken_rules(run_toy(seed, weather="amnesiac") for seed in SEARCHED))


def _make(
    settings: PeerSettings, memory: bytes, now: float, rng: Random, *, share: float = 1.0, quiet: bool = True
) -> Voter:
    return ToyVoter(settings, memory, now, rng=rng, share=share, quiet=quiet)


class _NeverStands(ToyVoter):
    def _due(self) -> float:
        return 1e9

    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        pass


def test_a_group_that_elects_nobody_is_seen() -> None:
    def build(settings: PeerSettings, memory: bytes, now: float, rng: Random) -> Voter:
        return _NeverStands(settings, memory, now, rng=rng)

    assert "led_in_time" == next(broken_rules(run_toy(seed, build, weather="fair") for seed in SEARCHED))
    assert "converges" == next(broken_rules(run_toy(seed, build, weather="foul") for seed in SEARCHED))


class _GivesUp(ToyVoter):
    """A leader that tires of leading, although all support it."""

    def tenures(self, now: float) -> dict[int, int]:
        acts = super().tenures(now)
        return acts if now % (8 * self._peer.lease) < 7 * self._peer.lease else {}


def test_a_leader_that_is_unseated_for_nothing_is_seen() -> None:
    def build(settings: PeerSettings, memory: bytes, now: float, rng: Random) -> Voter:
        return _GivesUp(settings, memory, now, rng=rng)

    assert "sticks" == next(broken_rules(run_toy(seed, build, weather="fair", size=3) for seed in SEARCHED))


# Seeds


def test_seeds_that_differ_are_runs_that_differ() -> None:
    assert len(TOY_SEEDS) == len({run_toy(seed).trace for seed in TOY_SEEDS})


def test_unless_told_a_seed_draws_every_protocol_and_every_weather_but_the_one_that_none_survives() -> None:
    options = [drawn(seed) for seed in range(200)]
    assert set(PROTOCOLS) == {one.protocol for one in options}
    assert {"fair", "foul"} == {one.weather for one in options}


def test_fair_weather_loses_nothing_and_delays_nothing() -> None:
    for options in (drawn(seed, weather="fair") for seed in range(200)):
        assert set(options.faults) <= set(FAIR_STRIKES)
        assert (0.0, 0.0) == (options.tail, options.loss)


def test_every_fault_that_is_drawn_is_one_that_can_be_struck() -> None:
    world, options = World(1), drawn(1)
    group = ElectorGroup(world, options, Insight(options, toy))
    assert set(FOUL_STRIKES) == ElectorFaults(world, group, options).kinds.keys()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_settings_of_every_run_are_usable(protocol: ElectorProtocol) -> None:
    for seed in range(300):
        options = drawn(seed, protocol)
        assert options.size == options.settings(options.size - 1).size


def test_the_line_of_options_names_every_one_of_them_on_one_line() -> None:
    line = str(drawn(0x5EED))
    assert [field.name for field in fields(ElectorOptions)] == [word.partition("=")[0] for word in line.split()]
    assert line.startswith("seed=0x5eed protocol=")
