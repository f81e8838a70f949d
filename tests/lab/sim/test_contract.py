"""Every simulator keeps the same contract, whatever its groups run: a seed gives the same run anywhere, every promise
holds, and a broken promise is shown with its replay. The other files cover what is particular to one protocol.
"""

import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from hashlib import blake2b
from os import environ
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from neli_router.commands.cli import main
from neli_router.lab.commands import proofs
from neli_router.lab.commands.proofs import WEATHERS, AnyOutcome
from neli_router.lab.sim.consumer_group import options as consumers
from neli_router.lab.sim.consumer_group.faults import ConsumerFaults
from neli_router.lab.sim.consumer_group.group import ConsumerGroup
from neli_router.lab.sim.consumer_group.options import ConsumerOptions
from neli_router.lab.sim.electors import options as electors
from neli_router.lab.sim.electors.faults import ElectorFaults
from neli_router.lab.sim.electors.group import ElectorGroup
from neli_router.lab.sim.electors.insight import insight_of
from neli_router.lab.sim.electors.options import ElectorOptions
from neli_router.lab.sim.induction import options as induction
from neli_router.lab.sim.induction.faults import Faults
from neli_router.lab.sim.induction.group import SimulatedGroup
from neli_router.lab.sim.induction.options import RunOptions
from neli_router.lab.sim.world import LINES_MAX, World
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.gossip.election import GossipElection
from neli_router.protocols.induction.tenure import Tenure
from neli_router.protocols.term.elector import TermElector

PROTOCOLS = list(WEATHERS)
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)

Kind = tuple[str, str, str]
"""A protocol, its guarantee and the weather."""

DRAWN: list[Kind] = [
    (protocol, guarantee, weather)
    for protocol, weathers in WEATHERS.items()
    for guarantee in ("exclusive", "available")[: 2 if protocol in {"induction", "neli"} else 1]
    for weather in weathers
    if weather not in {"amnesiac", "rolling"}  # No elector survives the former.
]

KINDS = [*DRAWN, *(("induction", guarantee, "rolling") for guarantee in ("exclusive", "available"))]
SEEDS = {kind: range(2 * place, 2 * place + 2) for place, kind in enumerate(KINDS, start=3)}
"""Two seeds of each kind. The very first seed is chosen so that every fault strikes and has its effects."""

AnyOptions = RunOptions | ConsumerOptions | ElectorOptions

FAMILIES: dict[type[AnyOptions], tuple[set[str], set[str], tuple[str, ...], tuple[str, ...]]] = {
    RunOptions: (
        set(induction.FAIR_FAULTS),
        set(induction.FOUL_FAULTS),
        ("loss", "failed", "tail", "read_failed"),
        (
            *("sent_genesis", "sent_join", "sent_beat", "sent_expire", "sent_handover", "sent_leave", "sent_snapshot"),
            *("sent_drain", "sent_undrain", "sent_pin", "sent_unpin", "sent_weigh", "sent_load", "sent_certify"),
            *("stopped_nonetype", "stopped_replaced", "stopped_groupmismatch", "stopped_ledgerrewound"),
            *("expired", "replaced", "rewound", "certificates", "certified", "lent"),
            *("older", "upgraded"),
        ),
    ),
    ConsumerOptions: (
        set(consumers.FAIR_FAULTS),
        set(consumers.FOUL_FAULTS),
        ("loss", "tail"),
        ("stopped_nonetype", "stopped_groupmismatch"),
    ),
    ElectorOptions: (
        set(electors.FAIR_STRIKES),
        set(electors.FOUL_STRIKES),
        ("loss", "tail"),
        ("datagrams_cut", "datagrams_doubled", "datagrams_lost", "stopped", "tenures"),
    ),
}
"""The faults of fair and of foul weather, the rates that are zero in fair weather, and what the first seeds show."""
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)


@cache
def run(seed: int, protocol: str, guarantee: str | None = None, weather: str | None = None) -> AnyOutcome:
    return proofs._Asked(protocol, guarantee, weather).run(seed)


def drawn(family: type[AnyOptions], seed: int, **forced: Any) -> AnyOptions:
    named = {"guarantee": None, "weather": None} if family is RunOptions else {"protocol": None, "weather": None}
    named |= {"guarantee": None} if family is ConsumerOptions else {}
    return family.draw(seed, Random(seed), **(named | forced))


def kind_of(options: AnyOptions) -> Kind:
    guarantee = "exclusive" if options.exclusive else "available"
    return getattr(options, "protocol", "induction"), guarantee, options.weather


def struck(counts: Counter[str]) -> set[str]:
    return {name.removeprefix("fault_") for name in counts if name.startswith("fault_")}


def neli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ("simulate", *arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_every_promise_is_held_in_the_first_seeds(kind: Kind) -> None:
    for seed in SEEDS[kind]:
        found = run(seed, *kind)
        assert found.violation is None, f"{found.violation}\n{found.options}\n{found.transcript}"
        assert (kind, "") == (kind_of(found.options), found.transcript)
        assert struck(found.counts) <= set(found.options.faults)
        rewound = kind[-1] == "rewound"  # Nothing leads on such a ledger, so the run cannot converge.
        assert (rewound, int(rewound)) == (found.converged_after == 0, found.counts["rewound"])


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        # A dead process's Join, in flight during the loss of records, replaced its successor.
        (0x10D, ("induction", "available", "rewound")),
        # In the calm phase; and a lost Handover had yet to be repeated.
        (0x2E3, ("induction", "available", "foul")),
        (0x1E, ("term",)),  # A lone leader was stepped twice at the same moment.
        (0x12F, ("priority",)),  # So was a leader whose own promises ended at its heartbeat.
        (0x37C, ("priority",)),  # A program was asked to finish, and then no peer wanted its partition.
    ],
)
def test_a_seed_that_failed_once_holds_every_promise(seed: int, kind: tuple[str, ...]) -> None:
    found = run(seed, *kind)
    assert found.violation is None, f"{found.violation}\n{found.transcript}"


def faults_of(options: AnyOptions) -> set[str]:
    world = World(1)
    match options:
        case RunOptions():
            return set(Faults(world, SimulatedGroup(world, options), options).kinds)
        case ConsumerOptions():
            return set(ConsumerFaults(world, ConsumerGroup(world, options), options).kinds)
        case ElectorOptions():
            return set(ElectorFaults(world, ElectorGroup(world, options, insight_of(options)), options).kinds)


@each_family
def test_the_first_seeds_strike_every_fault_with_all_its_effects(family: type[AnyOptions]) -> None:
    _, foul, _, effects = FAMILIES[family]
    runs = [run(seed, *kind) for kind, seeds in SEEDS.items() for seed in seeds]
    counts = sum((one.counts for one in runs if isinstance(one.options, family)), Counter())
    assert foul == faults_of(drawn(family, 1)) == struck(counts)
    assert [] == [effect for effect in effects if not counts[effect]]
    assert family is not ConsumerOptions or counts["givings"] > counts["fault_join"]


def test_a_seed_draws_every_kind_of_run_unless_told_and_its_settings_are_usable() -> None:
    kinds = set()
    for family in FAMILIES:
        for seed in range(300):
            options = drawn(family, seed)
            kinds.add(kind_of(options))
            assert options.weather != "rewound" or "misfit" not in options.faults  # It could found the ledger again.
            if isinstance(options, ElectorOptions):
                assert options.size == options.settings(options.size - 1).size
            else:
                assert "m1" == options.settings("m1").name
    assert set(DRAWN) == kinds


@each_family
def test_fair_weather_has_no_fault_that_excuses_anything_and_options_fit_on_one_line(family: type[AnyOptions]) -> None:
    fair, _, zero, _ = FAMILIES[family]
    for options in (drawn(family, seed, weather="fair") for seed in range(200)):
        away = {"outage"} if family is RunOptions and options.exclusive else set()
        assert set(options.faults) <= fair | away
        assert {0.0} == {getattr(options, name) for name in zero}
    line = str(drawn(family, 0x5EED))
    assert [field.name for field in fields(family)] == re.findall(r"(\w+)=", line)
    assert line.startswith("seed=0x5eed ")
    assert "\n" not in line


TOLD = "{0.trace} {0.time} {0.converged_after} {1} {0.options}"
"""Everything in which two runs can differ; the trace includes the bytes of the ledger."""

IN_ANOTHER_PROCESS = f"""
from neli_router.lab.commands.proofs import _Asked
for protocol in {PROTOCOLS[::-1]}:
    found = _Asked(protocol, None, None).run(0x5eed)
    print("{TOLD}".format(found, sorted(found.counts.items())))
"""


def told(found: AnyOutcome) -> str:
    return TOLD.format(found, sorted(found.counts.items()))


def test_a_seed_is_the_same_run_in_a_process_whose_hashes_differ_and_that_ran_others_before() -> None:
    hashes = "2" if environ.get("PYTHONHASHSEED") == "1" else "1"
    command, env = [sys.executable, "-c", IN_ANOTHER_PROCESS], {**environ, "PYTHONHASHSEED": hashes}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    here = {protocol: told(run(0x5EED, protocol)) for protocol in PROTOCOLS}
    assert [here[protocol] for protocol in PROTOCOLS[::-1]] == done.stdout.splitlines(), done.stderr


@each_protocol
def test_a_run_of_what_a_seed_draws_anyway_is_the_same_run_and_prints_verdict_and_options(protocol: str) -> None:
    """A violation is replayed with its guarantee and weather, and must then be the same."""
    found = run(0x5EED, protocol)
    _, guarantee, weather = kind_of(found.options)
    code, output = neli("--seed", "0x5eed", "--protocol", protocol, "--guarantee", guarantee, "--weather", weather)
    ended = f"healed after {found.converged_after:.1f} {found.unit}"
    assert (0, [f"seed=0x5eed trace={found.trace}: {ended}", str(found.options)]) == (code, output.splitlines())


def test_many_seeds_end_with_a_verdict_and_with_what_was_counted() -> None:
    kind = protocol, guarantee, weather = ("neli", "exclusive", "fair")
    (first, *_), asked = SEEDS[kind], ("--protocol", protocol, "--guarantee", guarantee, "--weather", weather)
    code, output = neli("--start", str(first), "--seeds", "2", "--jobs", "1", *asked)
    *_, verdict, counts, traces = output.splitlines()  # On a busy machine, its progress comes first.
    runs = [run(seed, *kind) for seed in SEEDS[kind]]
    expected = sum((it.counts for it in runs), Counter())
    assert (0, True) == (code, verdict.startswith(f"simulate: 2 seeds from {first}: every promise held, "))
    assert ", ".join(f"{name} {count:,}" for name, count in sorted(expected.items())) == counts.strip()
    every = "".join(it.trace for it in runs).encode()
    assert f"  traces {blake2b(every, digest_size=8).hexdigest()}" == traces


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--seed nonsense", "a whole number from 0 such as 24301 or 0x5eed was wanted, not 'nonsense'"),
        ("--protocol raft", "'raft' is not one of 'induction', 'neli', 'fast-neli'"),
        ("--weather beyond", "induction knows foul, fair, slow, rewound, rolling, and not beyond"),
        ("--protocol neli --weather rewound", "neli knows fair, foul, beyond, and not rewound"),
        ("--protocol term --weather beyond", "term knows fair, foul, amnesiac, and not beyond"),
        ("--protocol fast-neli --guarantee available", "fast-neli is exclusive, as goNELI is"),
        ("--protocol priority --guarantee available", "priority is exclusive: leaders have leases"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_was_wanted(arguments: str, complaint: str) -> None:
    code, output = neli(*arguments.split())
    assert (2, True) == (code, complaint in " ".join(output.replace("│", " ").split())), output


Fault = tuple[type, str, Callable[..., object]]

BROKEN: list[tuple[proofs._Asked, Fault | None, str]] = [
    (proofs._Asked("induction", None, None), (Tenure, "gave", lambda tenure, _: tenure), "told_before_sent"),
    (proofs._Asked("neli", "exclusive", "foul"), (NeliMachine, "_begins", lambda *_: -1e9), "at_most_one_acts"),
    (proofs._Asked("fast-neli", None, None), (FastNeliMachine, "_ends", lambda *_: 1e9), "keeps_its_word"),
    # A disk forgets: a peer votes, restarts at 0, and votes again.
    (proofs._Asked("term", None, "amnesiac"), None, "one_leader_a_term"),
    (proofs._Asked("term", None, "foul"), (TermElector, "_owed", lambda *_: 0.0), "at_most_one_acts"),
    (proofs._Asked("gossip", None, "foul"), (GossipElection, "is_free", lambda *_: True), "at_most_one_acts"),
]
"""The kind of runs, the code that is broken on purpose, and the rule that the first failing seed breaks."""


@pytest.mark.parametrize(("asked", "fault", "rule"), BROKEN)
def test_a_broken_promise_is_shown_with_its_last_events_and_its_replay(
    monkeypatch: pytest.MonkeyPatch, asked: proofs._Asked, fault: Fault | None, rule: str
) -> None:
    if fault is not None:
        monkeypatch.setattr(*fault)
    # Threads see patches on every platform; processes of a pool do not.
    monkeypatch.setattr(proofs, "ProcessPoolExecutor", ThreadPoolExecutor)
    found = next(one for seed in range(60) if (one := asked.run(seed)).violation is not None)
    assert found.violation is not None
    assert rule == found.violation.rule
    lines = found.transcript.splitlines()
    assert 0 < len(lines) <= LINES_MAX
    assert any(re.match(r" +\d+\.\d{6} m\d+#\d ", line) for line in lines)

    named = {"protocol": asked.protocol, "guarantee": asked.guarantee, "weather": asked.weather}
    flags = [f"--{name}={value}" for name, value in named.items() if value not in {None, "induction"}]
    code, output = neli("--seed", f"{found.seed:#x}", *flags)
    assert (1, f"seed={found.seed:#x} trace={found.trace}: FAIL") == (code, output.splitlines()[0])
    shown, replay = output.split("; replay: neli simulate ")
    assert shown.endswith(f"{found.transcript}\n{found.options}\nFAIL {found.violation} at t={found.time:.3f}")
    assert all(flag.replace("=", " ") in replay for flag in [f"--seed={found.seed:#x}", *flags])
    assert (1, output) == neli(*replay.split())
    code, one_of_many = neli("--start", str(found.seed), "--seeds", "1", "--jobs", "1", *flags)
    assert (1, output.splitlines()[-2:]) == (code, one_of_many.splitlines()[-2:])

    copy = pickle.loads(pickle.dumps(found))  # noqa: S301 - we wrote it ourselves, one call earlier.
    assert (str(found.violation), told(found), found.transcript) == (str(copy.violation), told(copy), copy.transcript)
