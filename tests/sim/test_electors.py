"""Electors under the simulator: promises are held in many seeds, and its checkers see what they are for."""

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache, partial
from os import environ
from random import Random
from typing import get_args

import msgspec
import pytest
from click.testing import CliRunner

from neli_router.cli import main
from neli_router.electors.ballot import Ballot
from neli_router.electors.events import PeerEffect
from neli_router.electors.settings import PeerSettings
from neli_router.electors.term import TermElector
from neli_router.electors.voter import Voter
from neli_router.errors import NeliError
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
from neli_router.sim.electors.simulate import ElectorOutcome, run_electors, simulate_electors
from neli_router.sim.world import World
from tests.sim.toy_voter import ToyVoter

PROTOCOLS: tuple[ElectorProtocol, ...] = get_args(ElectorProtocol)
WEATHERS: tuple[ElectorWeather, ...] = ("fair", "foul")
SEEDS = range(15)
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


@cache
def run(seed: int, protocol: ElectorProtocol, weather: ElectorWeather | None = None) -> ElectorOutcome:
    return simulate_electors(seed, protocol=protocol, weather=weather)


def neli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ("simulate", *arguments))
    return result.exit_code, result.output


# The shipped electors


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_promise_is_held_in_the_first_seeds(protocol: ElectorProtocol, weather: ElectorWeather) -> None:
    found = [run(seed, protocol, weather) for seed in SEEDS]
    assert [] == [f"{one.violation}\n{one.options}" for one in found if one.violation is not None]
    assert {(protocol, weather, "")} == {(one.options.protocol, one.options.weather, one.transcript) for one in found}


@pytest.mark.parametrize(
    ("protocol", "seed"),
    [
        ("term", 0x1E),  # A lone leader was stepped twice at one moment.
        ("priority", 0x12F),  # A leader whose own promises ended at its heartbeat was, too.
        ("priority", 0x37C),  # A program was asked to finish, and then nobody wanted its partition any more.
    ],
)
def test_a_seed_that_failed_once_holds_every_promise(protocol: ElectorProtocol, seed: int) -> None:
    found = run(seed, protocol)
    assert found.violation is None, f"{found.violation}\n{found.transcript}"


def test_faults_are_struck_and_have_their_effects() -> None:
    counts: Counter[str] = Counter()
    for protocol in PROTOCOLS:
        for weather in WEATHERS:
            for seed in SEEDS:
                counts += run(seed, protocol, weather).counts
    assert set(FOUL_STRIKES) == {name.removeprefix("fault_") for name in counts if name.startswith("fault_")}
    effects = ("datagrams_cut", "datagrams_doubled", "datagrams_lost", "stopped", "tenures")
    assert all(counts[effect] for effect in effects)


def test_a_disk_that_forgets_its_terms_is_seen() -> None:
    """A peer votes, restarts at 0, and votes again: two lead under one term, or terms fall."""
    found = broken_rules(run(seed, "term", "amnesiac") for seed in SEARCHED)
    assert next(found) in {"one_leader_a_term", "terms_grow"}


def test_a_supporter_that_owes_nothing_to_the_last_leader_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TermElector, "_owed", lambda *_: 0.0)
    found = broken_rules(simulate_electors(seed, protocol="term", weather="foul") for seed in SEARCHED)
    assert "at_most_one_acts" == next(found)


def test_a_gossiper_that_changes_its_favourite_at_once_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ballot, "is_free", lambda *_: True)
    found = broken_rules(simulate_electors(seed, protocol="gossip", weather="foul") for seed in SEARCHED)
    assert "at_most_one_acts" == next(found)


def test_peers_that_do_not_scout_unseat_leaders_that_a_majority_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """BlazingMQ's stories, found by chance."""
    monkeypatch.setattr(ElectorOptions, "settings", _without_scouting(ElectorOptions.settings))
    found = broken_rules(simulate_electors(seed, protocol="term", weather="fair") for seed in SEARCHED)
    assert "sticks" == next(found)


def _without_scouting(
    settings: Callable[[ElectorOptions, int], PeerSettings],
) -> Callable[[ElectorOptions, int], PeerSettings]:
    return lambda options, place: msgspec.structs.replace(settings(options, place), scouting=False)


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
    assert "stays" in broken_rules(run_toy(seed, build, weather="foul", size=3) for seed in SEARCHED)


class _Quits(ToyVoter):
    """Ends by itself."""

    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        super()._turn(now, effects)
        if self._term > 2:
            self._end(None, now, effects)


class _Fails(ToyVoter):
    """Ends with an error when it is told to end."""

    def _end(self, error: NeliError | None, now: float, effects: list[PeerEffect]) -> None:
        super()._end(NeliError("a farewell was to be said", "nobody was there", "start it again"), now, effects)


@pytest.mark.parametrize("kind", [_Quits, _Fails])
def test_a_member_that_ends_without_cause_is_seen(kind: type[ToyVoter]) -> None:
    def build(settings: PeerSettings, memory: bytes, now: float, rng: Random) -> Voter:
        return kind(settings, memory, now, rng=rng)

    runs = (run_toy(seed, build, weather="fair", faults=("close",)) for seed in SEARCHED)
    assert "stops_for_a_reason" == next(broken_rules(runs))


class _AllLead(Insight):
    def led_by(self, machine: Voter) -> list[tuple[int, int]]:
        return [(0, 7)]


def test_two_leaders_of_one_term_are_seen_though_none_acts() -> None:
    world = World(1)
    options = replace(ElectorOptions.draw(1, world.random, protocol="term", weather="fair"), size=3, replicas=3)
    assert ["one_leader_a_term"] == list(broken_rules(iter([run_electors(world, options, _AllLead(options, toy))])))


# Seeds


def test_a_seed_is_the_same_run_in_processes_whose_hashes_differ() -> None:
    program = (
        "from neli_router.sim.electors.simulate import simulate_electors\n"
        f"for protocol in {PROTOCOLS}:\n"
        "    found = simulate_electors(0x5eed, protocol=protocol)\n"
        "    print(found.trace, found.time, found.converged_after, sorted(found.counts.items()), found.options)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program], env={**environ, "PYTHONHASHSEED": hashes}, stdout=subprocess.PIPE
        )
        for hashes in ("1", "2")
    ]
    one, other = (process.communicate()[0] for process in started)
    assert [0, 0] == [process.returncode for process in started]
    assert (len(PROTOCOLS), one) == (one.count(b"\n"), other)


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


# The command line


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_seed_prints_its_verdict_and_its_options_and_exits_with_0(protocol: ElectorProtocol) -> None:
    found = run(0x11, protocol)
    code, output = neli("--seed", "0x11", "--protocol", protocol)
    verdict, options = output.splitlines()
    assert (0, str(found.options)) == (code, options)
    assert verdict == f"seed=0x11 trace={found.trace}: healed after {found.converged_after:.1f} leases"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--protocol", "term", "--weather", "beyond"), "term knows fair, foul, amnesiac, and not beyond"),
        (("--protocol", "priority", "--guarantee", "available"), "priority is exclusive: leaders have leases"),
        (("--protocol", "neli", "--peers", "5"), "a group of neli has no list of peers: members join it"),
        (("--protocol", "gossip", "--peers", "201"), "201 is not in the range 1<=x<=200"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_was_wanted(arguments: tuple[str, ...], complaint: str) -> None:
    code, output = neli(*arguments)
    assert (2, True) == (code, complaint in " ".join(output.replace("│", " ").split())), output


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_groups_have_as_many_peers_as_are_asked_for(protocol: ElectorProtocol) -> None:
    code, output = neli("--seed", "0x11", "--protocol", protocol, "--peers", "9")
    assert (0, True) == (code, " size=9 " in output), output


@pytest.mark.parametrize("peers", [(), ("--peers", "3")])
def test_a_broken_promise_is_shown_with_its_replay(peers: tuple[str, ...]) -> None:
    forced = ("--protocol", "term", "--weather", "amnesiac", *peers)
    seed = next(s for s in SEARCHED if neli("--seed", str(s), *forced)[0] == 1)
    code, output = neli("--seed", str(seed), *forced)
    *_, options, fail = output.splitlines()
    again = fail.partition("; replay: neli simulate ")[2].split()
    assert (1, ["--seed", f"{seed:#x}", *forced]) == (code, again)
    assert (1, [options, fail]) == (neli(*again)[0], neli(*again)[1].splitlines()[-2:])


def test_a_violation_comes_back_from_another_process_as_it_was() -> None:
    found = next(one for s in SEARCHED if (one := run(s, "term", "amnesiac")).violation is not None)
    copy: ElectorOutcome = pickle.loads(pickle.dumps(found))  # noqa: S301 - we wrote it ourselves, one call earlier.
    assert (str(found.violation), found.transcript) == (str(copy.violation), copy.transcript)
