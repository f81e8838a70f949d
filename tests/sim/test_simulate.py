"""The simulator as a tool: one seed is one run anywhere, what was asked for happens, and `neli` tells of it."""

import pickle
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from os import environ
from random import Random
from typing import get_args

import pytest
from click.testing import CliRunner

from neli_router.cli import main
from neli_router.commands import proofs
from neli_router.induction.tenure import Tenure
from neli_router.protocol import Guarantee
from neli_router.sim.faults import Faults
from neli_router.sim.group import SimulatedGroup
from neli_router.sim.options import FAIR_FAULTS, FOUL_FAULTS, RunOptions, Weather
from neli_router.sim.simulate import CONVERGED_LEASES_MAX, Result, outage, simulate
from neli_router.sim.world import LINES_MAX, LocalClock, World, draw_clock

GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)
WEATHERS: tuple[Weather, ...] = get_args(Weather)
SEEDS = range(32)

Fingerprint = tuple[str, float, float, list[tuple[str, int]]]


def fingerprint(result: Result) -> Fingerprint:
    """All that can tell two runs apart; the trace holds the bytes of the ledger, too."""
    return result.trace, result.time, result.converged_after, sorted(result.counts.items())


@cache
def run(seed: int, guarantee: Guarantee | None = None, weather: Weather | None = None) -> Result:
    return simulate(seed, guarantee=guarantee, weather=weather)


def neli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ("simulate", *arguments))
    return result.exit_code, result.output


# One seed is one run


def test_a_seed_is_the_same_run_in_processes_whose_hashes_differ() -> None:
    program = (
        "from neli_router.sim.simulate import simulate\n"
        "for seed in (3, 0x5eed, 20):\n"
        "    found = simulate(seed)\n"
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
    assert (3, one) == (one.count(b"\n"), other)


@pytest.mark.parametrize("weather", WEATHERS)
def test_a_seed_is_the_same_run_after_others_were_run(weather: Weather) -> None:
    first = simulate(7, weather=weather)
    simulate(8, weather=weather)
    simulate(9)
    assert fingerprint(first) == fingerprint(simulate(7, weather=weather))


def test_seeds_that_differ_are_runs_that_differ() -> None:
    assert len(SEEDS) == len({run(seed).trace for seed in SEEDS})


def test_what_is_forced_and_would_have_been_drawn_anyway_changes_nothing() -> None:
    """A violation is replayed with its guarantee and weather, and must then be the same."""
    drawn = run(5)
    assert fingerprint(drawn) == fingerprint(run(5, drawn.options.guarantee, drawn.options.weather))


def test_the_trace_tells_bytes_times_and_actions_apart() -> None:
    def trace(time: float, who: str, what: str, payload: bytes) -> str:
        world = World(1)
        world.run(time)
        world.note(who, what, "only for people")
        world.include(payload)
        return world.trace

    base = trace(1.0, "m1", "read", b"beat")
    others = [
        trace(2.0, "m1", "read", b"beat"),
        trace(1.0, "m2", "read", b"beat"),
        trace(1.0, "m1", "sent", b"beat"),
        trace(1.0, "m1", "read", b"join"),
    ]
    assert 5 == len({base, *others})
    assert base == trace(1.0, "m1", "read", b"beat")


# The world


def test_what_is_for_one_time_happens_in_the_order_of_asking() -> None:
    world = World(1)
    happened: list[tuple[float, str]] = []
    for time, what in ((2.0, "b"), (1.0, "a"), (2.0, "c"), (-5.0, "now"), (3.0, "not yet")):
        world.at(time, lambda what=what: happened.append((world.now, what)))
    world.run(3.0)
    assert [(0.0, "now"), (1.0, "a"), (2.0, "b"), (2.0, "c")] == happened


def test_only_the_last_lines_are_kept() -> None:
    world = World(1)
    for number in range(LINES_MAX + 5):
        world.note("m1", f"line {number}")
    assert (LINES_MAX, "line 5") == (len(world.lines), world.lines[0].what)


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


# The options


def drawn(seed: int, guarantee: Guarantee | None = None, weather: Weather | None = None) -> RunOptions:
    return RunOptions.draw(seed, Random(seed), guarantee=guarantee, weather=weather)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("weather", WEATHERS)
def test_a_run_has_the_guarantee_and_the_weather_that_were_asked_for(guarantee: Guarantee, weather: Weather) -> None:
    for seed in range(4):
        options = run(seed, guarantee, weather).options
        assert (guarantee, weather) == (options.guarantee, options.weather)
        assert (guarantee == "exclusive", weather == "fair") == (options.exclusive, options.fair)


def test_unless_told_a_seed_draws_every_guarantee_and_every_weather() -> None:
    options = [drawn(seed) for seed in range(200)]
    assert set(GUARANTEES) == {one.guarantee for one in options}
    assert set(WEATHERS) == {one.weather for one in options}


def test_fair_weather_has_no_fault_that_could_delay_a_record_of_an_available_group() -> None:
    for options in (drawn(seed, weather="fair") for seed in range(200)):
        assert set(options.faults) <= {*FAIR_FAULTS, *(["outage"] if options.exclusive else [])}
        assert (0.0, 0.0, 0.0, 0.0) == (options.loss, options.failed, options.tail, options.read_failed)


def test_only_rewound_weather_rewinds_and_then_never_by_a_misfit() -> None:
    for options in (drawn(seed) for seed in range(200)):
        assert (options.weather == "rewound") == (options.rewind != "no")
        assert not (options.weather == "rewound" and "misfit" in options.faults)


def test_the_line_of_options_names_every_one_of_them_on_one_line() -> None:
    line = str(drawn(0x5EED))
    assert [field.name for field in fields(RunOptions)] == re.findall(r"(\w+)=", line)
    assert line.startswith("seed=0x5eed weather=")
    assert "\n" not in line


# The course of a run


def counted() -> Counter[str]:
    """The counts of all runs of this module, of drawn weather and of fair."""
    drawn_weather, fair = (run(seed).counts for seed in SEEDS), (run(seed, weather="fair").counts for seed in SEEDS)
    return sum((*drawn_weather, *fair), start=Counter())


def test_every_promise_is_held_in_the_first_seeds() -> None:
    assert [] == [str(run(seed).violation) for seed in SEEDS if run(seed).violation is not None]


FELL: list[tuple[int, Guarantee, Weather]] = [
    # A Join of a dead process, in flight over the loss of records, replaced its follower.
    (0x10D, "available", "rewound"),
    # At peace, for all to see; and a Handover that was lost had yet to be repeated.
    (0x2E3, "available", "foul"),
]


@pytest.mark.parametrize(("seed", "guarantee", "weather"), FELL)
def test_a_seed_that_fell_once_stands(seed: int, guarantee: Guarantee, weather: Weather) -> None:
    assert None is run(seed, guarantee, weather).violation


def test_every_fault_has_its_method_and_is_struck_within_a_few_seeds() -> None:
    world = World(1)
    options = drawn(1)
    assert set(FOUL_FAULTS) == Faults(world, SimulatedGroup(world, options), options).kinds.keys()
    assert set(FOUL_FAULTS) == {name.removeprefix("fault_") for name in counted() if name.startswith("fault_")}


@pytest.mark.parametrize("seed", range(8))
def test_no_run_has_a_fault_that_its_options_do_not_name(seed: int) -> None:
    result = run(seed)
    struck = {name.removeprefix("fault_") for name in result.counts if name.startswith("fault_")}
    assert struck <= set(result.options.faults)


def test_faults_have_their_effects() -> None:
    counts = counted()
    effects = (
        *("sent_genesis", "sent_join", "sent_beat", "sent_expire", "sent_handover", "sent_leave", "sent_snapshot"),
        *("sent_drain", "sent_undrain", "sent_pin", "sent_unpin", "sent_weigh", "sent_load"),
        *("expired", "replaced", "rewound", "stopped_nonetype", "stopped_replaced", "stopped_groupmismatch"),
        *("stopped_ledgerrewound", "sent_certify", "certificates", "certified", "lent"),
    )
    assert [] == [effect for effect in effects if not counts[effect]]


def test_in_fair_weather_only_an_ended_process_is_expired() -> None:
    runs = [run(seed, weather="fair") for seed in SEEDS]
    assert [] == [str(result.violation) for result in runs if result.violation is not None]
    for counts in (result.counts for result in runs):
        ended = counts["fault_kill"] + sum(count for name, count in counts.items() if name.startswith("stopped_"))
        assert counts["expired"] <= ended
    assert any(result.counts["expired"] for result in runs)


def test_a_run_is_rewound_once_or_never() -> None:
    for seed in SEEDS:
        assert int(run(seed).options.weather == "rewound") == run(seed).counts["rewound"]


def test_after_the_last_fault_all_is_led_within_its_bound() -> None:
    for result in (run(seed) for seed in SEEDS):
        took = result.converged_after
        assert 0 < took <= CONVERGED_LEASES_MAX if result.options.rewind == "no" else 0 == took


def test_a_good_run_keeps_no_transcript() -> None:
    assert {""} == {run(seed).transcript for seed in SEEDS}


# An outage


@pytest.mark.parametrize("seed", range(30))
def test_an_outage_of_three_leases_expires_no_member_changes_no_term_and_moves_nothing(seed: int) -> None:
    found = outage(seed)
    assert (0, 0, 0) == (found.expired, found.terms_changed, found.moves)
    assert found.back_after_leases <= 1.0


@pytest.mark.parametrize("leases", [0.5, 0.7, 0.8, 0.9, 0.95, 1.05])
def test_an_outage_of_about_a_lease_expires_no_member_either(leases: float) -> None:
    for seed in range(5):
        assert 0 == outage(seed, leases=leases).expired


# The command line


def test_one_seed_prints_its_verdict_and_its_options_and_exits_with_0() -> None:
    code, output = neli("--seed", "0x11")
    verdict, options = output.splitlines()
    assert (0, str(run(0x11).options)) == (code, options)
    assert re.fullmatch(rf"seed=0x11 trace={run(0x11).trace}: healed after \d+\.\d leases", verdict)


def test_one_seed_is_run_with_the_guarantee_and_the_weather_that_were_asked_for() -> None:
    code, output = neli("--seed", "17", "--guarantee", "available", "--weather", "fair")
    assert (0, str(run(17, "available", "fair").options)) == (code, output.splitlines()[-1])


def test_many_seeds_end_with_a_verdict_and_with_what_was_counted() -> None:
    code, output = neli("--start", "2", "--seeds", "3", "--jobs", "1")
    *_, verdict, counts = output.splitlines()  # On a busy machine, its progress comes first.
    expected = run(2).counts + run(3).counts + run(4).counts
    assert (0, True) == (code, verdict.startswith("simulate: 3 seeds from 2: every promise held, "))
    assert ", ".join(f"{name} {count:,}" for name, count in sorted(expected.items())) == counts.strip()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--seed", "nonsense"), "a whole number from 0 such as 24301 or 0x5eed was wanted, not 'nonsense'"),
        (("--seed", "1.5"), "a whole number from 0 such as 24301 or 0x5eed was wanted, not '1.5'"),
        (("--seed", ""), "a whole number from 0 such as 24301 or 0x5eed was wanted, not ''"),
        (("--seeds", "0"), "0 is not in the range x>=1"),
        (("--seeds", "many"), "'many' is not a valid integer range"),
        (("--start", "-1"), "-1 is not in the range x>=0"),
        (("--jobs", "0"), "0 is not in the range x>=1"),
        (("--guarantee", "both"), "'both' is not one of 'exclusive', 'available'"),
        (("--weather", "sunny"), "'sunny' is not one of 'foul', 'fair', 'slow', 'rewound', 'beyond'"),
        (("--see", "1"), "No such option"),
        (("5",), "Got unexpected extra argument (5)"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_was_wanted(arguments: tuple[str, ...], complaint: str) -> None:
    code, output = neli(*arguments)
    assert (2, True) == (code, complaint in output), output


# A broken promise


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> int:
    """No member waits, nor heeds what it sent; the answer is the first seed that shows it."""
    monkeypatch.setattr(Tenure, "_free", lambda *_: True)
    # Threads see what is patched here on every platform; processes of a pool do not.
    monkeypatch.setattr(proofs, "ProcessPoolExecutor", ThreadPoolExecutor)
    return next(seed for seed in SEEDS if simulate(seed).violation is not None)


def test_a_violation_keeps_the_last_events_with_names_for_people(broken: int) -> None:
    result = simulate(broken)
    assert result.violation is not None
    assert fingerprint(result) == fingerprint(simulate(broken))
    lines = result.transcript.splitlines()
    assert 0 < len(lines) <= LINES_MAX
    assert any(re.match(r" +\d+\.\d{6} m\d#\d ", line) for line in lines)


def test_a_violation_comes_back_from_another_process_as_it_was(broken: int) -> None:
    result = simulate(broken)
    copy: Result = pickle.loads(pickle.dumps(result))  # noqa: S301 - we wrote it ourselves, one call earlier.
    assert copy.violation is not None
    assert result.violation is not None
    assert (result.violation.rule, result.violation.message) == (copy.violation.rule, copy.violation.message)
    assert (fingerprint(result), result.transcript) == (fingerprint(copy), copy.transcript)


def test_one_seed_that_breaks_a_promise_prints_its_last_events_and_exits_with_1(broken: int) -> None:
    result = simulate(broken)
    code, output = neli("--seed", str(broken))
    lines = output.splitlines()
    assert (1, f"seed={broken:#x} trace={result.trace}: FAIL") == (code, lines[0])
    assert output.endswith(
        f"{result.transcript}\n{result.options}\n"
        f"FAIL {result.violation} at t={result.time:.3f}; replay: neli simulate --seed {broken:#x}\n"
    )


@pytest.mark.parametrize("forced", [(), ("--weather", "foul"), ("--guarantee", "exclusive")])
def test_the_replay_that_many_seeds_print_is_the_run_that_failed(broken: int, forced: tuple[str, ...]) -> None:
    code, output = neli("--seeds", "32", "--jobs", "1", *forced)
    *_, options, fail = output.splitlines()
    replay = fail.partition("; replay: neli simulate ")[2].split()
    assert (1, bool(forced)) == (code, "--weather" in replay)
    code, again = neli(*replay)
    assert (1, [options, fail]) == (code, again.splitlines()[-2:])
