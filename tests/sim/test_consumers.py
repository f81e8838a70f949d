"""Borrowed groups under the simulator: promises are held in many seeds, and one seed is one run."""

import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from functools import cache
from os import environ
from random import Random
from typing import get_args

import pytest
from click.testing import CliRunner

from neli_router.cli import main
from neli_router.consumer_group.neli import Neli
from neli_router.protocol import Guarantee
from neli_router.sim.consumers.faults import ConsumerFaults
from neli_router.sim.consumers.group import ConsumerGroup
from neli_router.sim.consumers.options import (
    FAIR_FAULTS,
    FOUL_FAULTS,
    BorrowedProtocol,
    ConsumerOptions,
    ConsumerWeather,
)
from neli_router.sim.consumers.simulate import ConsumerOutcome, simulate_consumers
from neli_router.sim.world import World

KINDS: list[tuple[BorrowedProtocol, Guarantee]] = [
    ("neli", "exclusive"),
    ("neli", "available"),
    ("fast-neli", "exclusive"),
]
WEATHERS: tuple[ConsumerWeather, ...] = get_args(ConsumerWeather)
SEEDS = range(5)


@cache
def run(seed: int, protocol: BorrowedProtocol, guarantee: Guarantee, weather: ConsumerWeather) -> ConsumerOutcome:
    return simulate_consumers(seed, protocol=protocol, guarantee=guarantee, weather=weather)


def neli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ("simulate", *arguments))
    return result.exit_code, result.output


def drawn(seed: int, weather: ConsumerWeather | None = None) -> ConsumerOptions:
    return ConsumerOptions.draw(seed, Random(seed), protocol=None, guarantee=None, weather=weather)


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize(("protocol", "guarantee"), KINDS)
def test_every_promise_is_held_in_the_first_seeds(
    protocol: BorrowedProtocol, guarantee: Guarantee, weather: ConsumerWeather
) -> None:
    found = [run(seed, protocol, guarantee, weather) for seed in SEEDS]
    assert [] == [f"{one.violation}\n{one.options}" for one in found if one.violation is not None]
    assert {(protocol, guarantee, weather)} == {
        (one.options.protocol, one.options.guarantee, one.options.weather) for one in found
    }
    assert {""} == {one.transcript for one in found}


def test_faults_are_struck_and_have_their_effects() -> None:
    counts: Counter[str] = Counter()
    for weather in WEATHERS:
        for protocol, guarantee in KINDS:
            for seed in SEEDS:
                counts += run(seed, protocol, guarantee, weather).counts
    world, options = World(1), drawn(1)
    assert set(FOUL_FAULTS) == ConsumerFaults(world, ConsumerGroup(world, options), options).kinds.keys()
    assert set(FOUL_FAULTS) == {name.removeprefix("fault_") for name in counts if name.startswith("fault_")}
    assert counts["stopped_nonetype"]
    assert counts["stopped_groupmismatch"]
    assert counts["givings"] > counts["fault_join"]


def test_two_act_together_only_under_available_and_then_after_a_silence_more_briefly() -> None:
    available = [run(seed, "neli", "available", "fair").measured for seed in SEEDS]
    assert max(one["overlap"] for one in available) > max(one["overlap_after_silence"] for one in available)
    for seed in SEEDS:
        assert run(seed, "neli", "exclusive", "fair").measured["overlap"] == 0


def test_a_seed_is_the_same_run_in_processes_whose_hashes_differ() -> None:
    program = (
        "from neli_router.sim.consumers.simulate import simulate_consumers\n"
        "for seed in (3, 0x5eed):\n"
        "    found = simulate_consumers(seed)\n"
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
    assert (2, one) == (one.count(b"\n"), other)


def test_seeds_that_differ_are_runs_that_differ() -> None:
    assert len(SEEDS) == len({run(seed, "neli", "exclusive", "foul").trace for seed in SEEDS})


def test_unless_told_a_seed_draws_every_protocol_guarantee_and_weather() -> None:
    options = [drawn(seed) for seed in range(200)]
    assert set(KINDS) == {(one.protocol, one.guarantee) for one in options}
    assert set(WEATHERS) == {one.weather for one in options}


def test_fair_weather_keeps_every_assumption() -> None:
    for options in (drawn(seed, "fair") for seed in range(200)):
        assert set(options.faults) <= set(FAIR_FAULTS)
        assert (0.0, 0.0, True) == (options.tail, options.loss, options.fenced_fetch)


def test_settings_of_every_run_are_usable() -> None:
    for seed in range(300):
        assert drawn(seed).settings("m1").session_timeout > 0


def test_the_line_of_options_names_every_one_of_them_on_one_line() -> None:
    line = str(drawn(0x5EED))
    assert [field.name for field in fields(ConsumerOptions)] == [word.partition("=")[0] for word in line.split()]
    assert line.startswith("seed=0x5eed protocol=")


# The command line


def test_one_seed_prints_its_verdict_and_its_options_and_exits_with_0() -> None:
    found = simulate_consumers(0x11, protocol="neli")
    code, output = neli("--seed", "0x11", "--protocol", "neli")
    verdict, options = output.splitlines()
    assert (0, str(found.options)) == (code, options)
    assert verdict == f"seed=0x11 trace={found.trace}: healed after {found.converged_after:.1f} sessions"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--protocol", "neli", "--weather", "rewound"), "neli knows fair, foul, beyond, and not rewound"),
        (("--weather", "beyond"), "induction knows foul, fair, slow, rewound, and not beyond"),
        (("--protocol", "fast-neli", "--guarantee", "available"), "fast-neli is exclusive, as goNELI is"),
        (("--protocol", "raft"), "'raft' is not one of 'induction', 'neli', 'fast-neli'"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_was_wanted(arguments: tuple[str, ...], complaint: str) -> None:
    code, output = neli(*arguments)
    assert (2, True) == (code, complaint in " ".join(output.replace("│", " ").split())), output


def test_a_broken_promise_is_shown_with_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """No new leader waits."""
    monkeypatch.setattr(Neli, "_begins", lambda *_: -1e9)
    forced = ("--protocol", "neli", "--guarantee", "exclusive", "--weather", "foul")
    seed = next(s for s in range(60) if neli("--seed", str(s), *forced)[0] == 1)
    code, output = neli("--seed", str(seed), *forced)
    *_, options, fail = output.splitlines()
    assert (1, True) == (code, fail.startswith("FAIL at_most_one_acts: "))
    again = fail.partition("; replay: neli simulate ")[2].split()
    assert (1, [options, fail]) == (neli(*again)[0], neli(*again)[1].splitlines()[-2:])


def test_a_violation_comes_back_from_another_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neli, "_begins", lambda *_: -1e9)
    found = next(
        one
        for one in (simulate_consumers(s, protocol="neli", guarantee="exclusive", weather="foul") for s in range(60))
        if one.violation is not None
    )
    copy: ConsumerOutcome = pickle.loads(pickle.dumps(found))  # noqa: S301 - we wrote it ourselves, one call earlier.
    assert (str(found.violation), found.transcript) == (str(copy.violation), copy.transcript)
