"""The proofs: the demo, the simulator and the explorer.

neli demo          three processes share 256 partitions, one is killed, and its keys move
neli simulate      whole groups under faults, by seed
neli explore       every interleaving of a small group
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar, cast, get_args

import click

from neli_router.core.exit_codes import EXIT_BROKEN
from neli_router.lab import demo
from neli_router.lab.sim.consumer_group.miniature import ConsumerBounds
from neli_router.lab.sim.consumer_group.options import BorrowedProtocol, ConsumerWeather
from neli_router.lab.sim.consumer_group.simulate import ConsumerOutcome, simulate_consumers
from neli_router.lab.sim.consumer_group.steps import ConsumerMiniatures
from neli_router.lab.sim.electors.options import PEERS_MAX, ElectorProtocol, ElectorWeather
from neli_router.lab.sim.electors.simulate import ElectorOutcome, simulate_electors
from neli_router.lab.sim.explore import Miniatures, Report, explore, transcript
from neli_router.lab.sim.gossip.miniature import GossipBounds
from neli_router.lab.sim.gossip.steps import GossipMiniatures
from neli_router.lab.sim.induction.miniature import Bounds
from neli_router.lab.sim.induction.options import Weather
from neli_router.lab.sim.induction.simulate import Result, simulate
from neli_router.lab.sim.induction.steps import LedgerMiniatures
from neli_router.lab.sim.term.canon import ElectorCover
from neli_router.lab.sim.term.miniature import ElectorBounds
from neli_router.lab.sim.term.steps import ElectorMiniatures
from neli_router.protocols.protocol import Guarantee

__all__ = ["demo_command", "explore_command", "simulate_command"]

WorldT = TypeVar("WorldT")

AnyBounds = Bounds | ConsumerBounds | ElectorBounds | GossipBounds

PROFILES: dict[str, dict[str, tuple[AnyBounds, ...]]] = {
    "induction": {
        "test": (Bounds(slots=2, apart=2, lease=2),),
        "full": (
            Bounds(slots=2, apart=2, lease=3),
            Bounds(slots=3, apart=1, lease=1),
            Bounds(slots=2, apart=3, lease=1),
            Bounds(slots=3, apart=2, lease=1, leave=False, states_max=12_000_000),
        ),
    },
    "neli": {
        "test": (
            ConsumerBounds("neli", leave=False, crash=False),
            ConsumerBounds("neli", guarantee="available", leave=False, crash=False, states_max=12_000),
            ConsumerBounds("neli", zombies=True, leave=False, crash=False, states_max=4_000),
        ),
        "full": (
            ConsumerBounds("neli"),
            ConsumerBounds("neli", guarantee="available"),
            ConsumerBounds("neli", zombies=True, leave=False, crash=False),
            ConsumerBounds("neli", apart=2, leave=False, crash=False),
            ConsumerBounds("neli", partitions=2, leave=False, crash=False, states_max=300_000),
        ),
    },
    "fast-neli": {
        "test": (
            ConsumerBounds("fast-neli", leave=False, crash=False, states_max=12_000),
            ConsumerBounds("fast-neli", zombies=True, leave=False, crash=False, states_max=4_000),
        ),
        "full": (
            ConsumerBounds("fast-neli"),
            ConsumerBounds("fast-neli", zombies=True),
            ConsumerBounds("fast-neli", apart=2, leave=False, crash=False),
            ConsumerBounds("fast-neli", partitions=2, leave=False, crash=False, states_max=300_000),
        ),
    },
    "term": {
        "test": (
            ElectorBounds(terms=1, lease=2, restarts=1),
            ElectorBounds(terms=2),
            ElectorBounds(terms=2, restarts=1),
        ),
        "full": (
            ElectorBounds(terms=1, lease=2, wires=2, restarts=2),
            ElectorBounds(terms=2, lease=2, states_max=1_000_000),
            ElectorBounds(terms=2, lease=2, restarts=1, states_max=1_000_000),
            ElectorBounds(terms=3, cede=False, states_max=1_000_000),
        ),
    },
    "gossip": {
        "test": (
            GossipBounds(terms=2, rates=(1, 2, 1)),
            GossipBounds(terms=1, lease=1, rivals=False),
            GossipBounds(terms=2, lease=1, changes=1),
        ),
        "full": (
            GossipBounds(terms=2, wires=2, cede=True),
            GossipBounds(terms=3, rates=(1, 2, 1)),
            GossipBounds(terms=2, lease=3, rates=(1, 2, 1)),
            GossipBounds(terms=2, lease=1, restarts=1),
            GossipBounds(terms=1, rivals=False),
            GossipBounds(terms=2, lease=1, rivals=False),
            GossipBounds(terms=2, rates=(1, 1, 2), states_max=1_000_000),
            GossipBounds(terms=2, changes=1, states_max=1_000_000),
            GossipBounds(terms=2, lease=1, changes=1, separate=True, states_max=1_000_000),
            GossipBounds(terms=2, lease=1, changes=1, restarts=1, states_max=1_000_000),
            GossipBounds(terms=2, lease=1, changes=1, fickle=(1, 3), states_max=1_000_000),
            GossipBounds(terms=2, lease=1, changes=1, late=True, wires=2, states_max=1_000_000),
        ),
    },
}
"""The `test` profile of `induction` completes within minutes. `full` takes under two hours. Its last bounds, with three
incarnations, stop after twelve million worlds, which is what fits into eight gigabytes.

The `test` profile of a borrowed group takes seconds. Only the first bounds of `neli` are complete in it (16,914
worlds). In `full`, all bounds with one partition are complete: 24,000 to 205,000 worlds each, in one to ten minutes on
a busy machine. Those with two partitions stop after 300,000 worlds.

The `test` profile of `term` completes in 35 s of a quiet core: 5,916 worlds of one election with a restart and a lease
of 2 ticks, 4,616 of two elections with ceding, and 16,332 of two elections with ceding and a restart. Worlds that
another world covers are not counted. In `full`, one election with two restarts, two messages and a lease of two ticks
is complete: 27,287 worlds in half a minute. The others have not been run to the end.

The `test` profile of `gossip` is complete: 20,000 worlds with two elections among rivals and a fast voter, 17,000 with
one election where each place favours any other, and 32,000 with a change of the electorate and another place's election
before, during or after it (25 s of a processor). Each takes a minute or two on a busy machine. `full` has 24,000 with
ceding and older words, 59,000 with three elections, 68,000 with a P of 3, 419,000 with a restart of the voter, and
102,000 and 145,000 where each place favours any other: the last has two leaders, one after the other. It takes under
ten minutes."""

_KINDS_OF_BOUNDS: dict[str, type[Bounds | ElectorBounds | GossipBounds]] = {
    "induction": Bounds,
    "term": ElectorBounds,
    "gossip": GossipBounds,
}

WEATHERS: dict[str, tuple[str, ...]] = {
    "induction": get_args(Weather),
    **dict.fromkeys(get_args(BorrowedProtocol), get_args(ConsumerWeather)),
    **dict.fromkeys(get_args(ElectorProtocol), get_args(ElectorWeather)),
}
"""Protocol -> the kinds of faults its runs know."""

AnyOutcome = Result | ConsumerOutcome | ElectorOutcome

CHUNK = 5
"""Seeds a process takes at a time: enough to outweigh the cost of handing them over, few enough for smooth progress."""


@click.command("demo")
@click.option("--members", type=int, default=3, show_default=True, help="Processes, from 2 to 8.")
@click.option("--partitions", type=int, default=256, show_default=True, help="What they share.")
@click.option("--lease", type=float, default=0.5, show_default=True, help="How long a heartbeat proves anything, in s.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="How long it takes if all goes well.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides what happens to which member.")
@click.option("--live/--plain", default=None, help="A live view, or plain lines.  [default: live in a terminal]")
@click.option("--keep", type=click.Path(path_type=Path), help="An empty folder, to keep the ledger and the logs in.")
def demo_command(
    members: int, partitions: int, lease: float, seconds: float, seed: int, live: bool | None, keep: Path | None
) -> None:
    """Start real processes that share partitions; kill one, stop one, let one leave, and route keys throughout.

    Prints at the end what was measured and checked. Exits with 0 only if every check held; 1 if one failed or a process
    could not start; 2 if it cannot run with these options; 130 if it was interrupted.
    """
    raise SystemExit(
        demo.run(members=members, partitions=partitions, lease=lease, seconds=seconds, seed=seed, live=live, keep=keep)
    )


@click.command("explore")
@click.option(
    "--profile",
    type=click.Choice(["full", "test"]),
    help="A named set of bounds, instead of the options below except --protocol.",
)
@click.option(
    "--protocol", type=click.Choice(list(PROFILES)), default="induction", show_default=True, help="What the group runs."
)
@click.option("--slots", type=click.IntRange(1, 4), help="induction: incarnations at the same time.  [default: 2]")
@click.option(
    "--lease", type=click.IntRange(1, 6), help="induction, term, gossip: the lease, in ticks.  [default: 2; term: 1]"
)
@click.option("--births", type=click.IntRange(1), help="induction: incarnations over all time.  [default: any number]")
@click.option("--guarantee", type=click.Choice(["exclusive", "available"]), help="neli: what the group promises.")
@click.option("--partitions", type=click.IntRange(1, 2), help="neli, fast-neli: partitions.  [default: 1]")
@click.option("--error", type=click.IntRange(0, 1), help="neli: e, how far clocks may differ.  [default: 1]")
@click.option("--zombies", is_flag=True, default=None, help="neli, fast-neli: forgotten members go on fetching.")
@click.option("--session", type=click.IntRange(1, 9), help="fast-neli: the broker's, in ticks.  [default: as promised]")
@click.option(
    "--apart", type=click.IntRange(1, 6), help="Records between readers.  [default: 2; neli and fast-neli: 1]"
)
@click.option(
    "--leave/--no-leave", default=None, help="Except term: whether members may leave gracefully.  [default: leave]"
)
@click.option("--crash/--no-crash", default=None, help="Except term: whether processes may crash.  [default: crash]")
@click.option(
    "--certify/--no-certify",
    default=None,
    help="induction: whether witnesses certify processes that crashed.  [default: certify]",
)
@click.option(
    "--terms", type=click.IntRange(1, 6), help="term, gossip: how many over all time.  [default: 2; gossip: 1]"
)
@click.option("--restarts", type=click.IntRange(0, 9), help="term, gossip: how many over all time.  [default: 0]")
@click.option(
    "--forget",
    is_flag=True,
    default=None,
    help="A restarted process has forgotten its term (term) or the electorate (gossip).",
)
@click.option(
    "--wires",
    type=click.IntRange(1, 3),
    help="term: messages of a kind between two; gossip: words of a place.  [default: 1]",
)
@click.option(
    "--cede/--no-cede",
    default=None,
    help="term, gossip: whether leaders may cede.  [default: cede; gossip: no-cede]",
)
@click.option(
    "--voter-twice-as-fast",
    "rates",
    flag_value=(1, 2, 1),
    default=None,
    type=click.UNPROCESSED,
    help="gossip: the clock of one place, the voter, runs twice as fast, and all places know.",
)
@click.option(
    "--rival-twice-as-fast",
    "rates",
    flag_value=(1, 1, 2),
    default=None,
    type=click.UNPROCESSED,
    help="gossip: the same for one rival, so that the other rival's clock is slow.",
)
@click.option("--changes", type=click.IntRange(0, 2), help="gossip: how often a leader changes the electorate.")
@click.option("--separate", is_flag=True, default=None, help="gossip: electorates travel apart from declarations.")
@click.option("--late", is_flag=True, default=None, help="gossip, with changes: words are heard at any time.")
@click.option(
    "--both-voters-fickle",
    "fickle",
    flag_value=(1, 3),
    default=None,
    type=click.UNPROCESSED,
    help="gossip, with changes: the new voter, too, may favour either rival.",
)
@click.option(
    "--rivals/--any", default=None, help="gossip: two rivals and a voter, or each favours any.  [default: rivals]"
)
@click.option("--states", "states_max", type=click.IntRange(1), help="Stop after this many states.")
def explore_command(profile: str | None, protocol: str, **given: object) -> None:
    """Walk every interleaving of a small group, running the shipped protocol.

    Prints its bounds and how far it got. When a rule is broken, prints the shortest way there and exits with 1.
    """
    for bounds in PROFILES[protocol][profile] if profile else (_bounds(protocol, given),):
        click.echo(f"explore: {bounds}")
        match bounds:
            case Bounds():
                _explore(LedgerMiniatures(bounds))
            case ConsumerBounds():
                _explore(ConsumerMiniatures(bounds))
            case ElectorBounds():
                _explore(ElectorMiniatures(bounds), covers=ElectorCover().covers)
            case GossipBounds():
                _explore(GossipMiniatures(bounds))


def _bounds(protocol: str, given: dict[str, object]) -> AnyBounds:
    """The bounds asked for. An option of another protocol is refused: it would bound nothing."""
    asked = {name: value for name, value in given.items() if value is not None}
    known = {field.name for field in fields(_KINDS_OF_BOUNDS.get(protocol, ConsumerBounds))}
    known -= {"fast-neli": {"guarantee", "error"}, "neli": {"session"}}.get(protocol, set())
    if strange := sorted(asked.keys() - known):
        raise click.BadParameter(f"{protocol} has no such bound", param_hint=f"--{strange[0]}")
    if kind := _KINDS_OF_BOUNDS.get(protocol):
        return kind(**cast(dict[str, Any], asked))
    return ConsumerBounds(cast(BorrowedProtocol, protocol), **cast(dict[str, Any], asked))


def _explore(miniatures: Miniatures[WorldT], *, covers: Callable[[bytes], bool] = lambda key: False) -> None:
    progress, started = _Progress(), monotonic()

    def tell(report: Report[WorldT]) -> None:
        progress.tell(f"depth {report.depth}: {report.states:,} states, {report.steps:,} steps")

    report = explore(miniatures, tell, covers=covers)
    progress.end()
    verdict = "complete" if report.complete else "as far as it came"
    if report.trace is not None:
        verdict = "a rule is broken"
    click.echo(f"  {verdict}: {report.states:,} states, {report.steps:,} steps, {monotonic() - started:.0f} s")
    if report.trace is not None:
        for line in transcript(report):
            click.echo(line)
        raise SystemExit(EXIT_BROKEN)


@click.command("simulate")
@click.option("--seed", "first", type=str, help="Run this one seed (0x5eed or 24301) and print what happened.")
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many seeds to run.")
@click.option("--start", type=click.IntRange(0), default=0, show_default=True, help="The first of them.")
@click.option(
    "--protocol", type=click.Choice(list(WEATHERS)), default="induction", show_default=True, help="What the groups run."
)
@click.option("--guarantee", type=click.Choice(["exclusive", "available"]), help="Only groups with this guarantee.")
@click.option(
    "--weather",
    type=click.Choice(list(dict.fromkeys(weather for known in WEATHERS.values() for weather in known))),
    help="Only runs with this kind of faults.",
)
@click.option("--peers", type=click.IntRange(1, PEERS_MAX), help="term, priority, gossip: how many each group has.")
@click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Processes to use.  [default: one per core]"
)
def simulate_command(
    first: str | None,
    seeds: int,
    start: int,
    protocol: str,
    guarantee: str | None,
    weather: str | None,
    peers: int | None,
    jobs: int,
) -> None:
    """Run whole groups under faults in virtual time, and check every promise after every step.

    A seed decides everything about its run, and the same seed gives the same run anywhere: compare the hash of all
    traces, which is printed last. When a promise is broken, prints the run's options and its last events, and exits
    with 1.
    """
    if weather is not None and weather not in WEATHERS[protocol]:
        known = ", ".join(WEATHERS[protocol])
        raise click.BadParameter(f"{protocol} knows {known}, and not {weather}", param_hint="--weather")
    if protocol == "fast-neli" and guarantee == "available":
        raise click.BadParameter("fast-neli is exclusive, as goNELI is", param_hint="--guarantee")
    if protocol in get_args(ElectorProtocol) and guarantee == "available":
        raise click.BadParameter(f"{protocol} is exclusive: leaders have leases", param_hint="--guarantee")
    if protocol not in get_args(ElectorProtocol) and peers is not None:
        raise click.BadParameter(f"a group of {protocol} has no list of peers: members join it", param_hint="--peers")
    asked = _Asked(protocol, guarantee, weather, peers)
    if first is not None:
        result = asked.run(_seed(first))
        click.echo(_summary(result))
        if result.violation is not None:
            _show(result, asked)
            raise SystemExit(EXIT_BROKEN)
        return
    progress, started, traces = _Progress(), monotonic(), dict[int, str]()
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) as pool:
        chunks = [range(at, min(at + CHUNK, start + seeds)) for at in range(start, start + seeds, CHUNK)]
        futures = [pool.submit(asked.run_some, chunk) for chunk in chunks]
        for future in as_completed(futures):
            for result in future.result():
                traces[result.seed] = result.trace
                counts += result.counts
                if result.violation is not None:
                    pool.shutdown(cancel_futures=True)  # With wait=False, the end of `with` would undo it.
                    progress.end()
                    _show(result, asked)
                    raise SystemExit(EXIT_BROKEN)
            progress.tell(f"{len(traces)} of {seeds} seeds")
    progress.end()
    click.echo(f"simulate: {seeds} seeds from {start}: every promise held, {monotonic() - started:.0f} s")
    click.echo("  " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    every = "".join(trace for _, trace in sorted(traces.items()))
    click.echo(f"  traces {blake2b(every.encode(), digest_size=8).hexdigest()}")


def _seed(text: str) -> int:
    try:
        seed = int(text, 0)
    except ValueError:
        seed = -1
    if seed < 0:  # Python's generator takes -5 for 5.
        raise click.BadParameter(
            f"a whole number from 0 such as 24301 or 0x5eed was wanted, not {text!r}", param_hint="--seed"
        )
    return seed


@dataclass(frozen=True, slots=True)
class _Asked:
    """The kind of run asked for. Click has already checked its values."""

    protocol: str
    guarantee: str | None
    weather: str | None
    peers: int | None

    def run(self, seed: int) -> AnyOutcome:
        guarantee = cast(Guarantee | None, self.guarantee)
        if self.protocol == "induction":
            return simulate(seed, guarantee=guarantee, weather=cast(Weather | None, self.weather))
        if self.protocol in get_args(ElectorProtocol):
            elector = cast(ElectorProtocol, self.protocol)
            elector_weather = cast(ElectorWeather | None, self.weather)
            return simulate_electors(seed, protocol=elector, weather=elector_weather, size=self.peers)
        protocol, weather = cast(BorrowedProtocol, self.protocol), cast(ConsumerWeather | None, self.weather)
        return simulate_consumers(seed, protocol=protocol, guarantee=guarantee, weather=weather)

    def run_some(self, seeds: range) -> list[AnyOutcome]:
        return [self.run(seed) for seed in seeds]


def _show(result: AnyOutcome, asked: _Asked) -> None:
    click.echo(result.transcript)
    click.echo(str(result.options))
    # The options that force a kind of run are part of what the seed means.
    flags = [f"--seed {result.seed:#x}"]
    if asked.protocol != "induction":
        flags.append(f"--protocol {asked.protocol}")
    if asked.guarantee is not None or asked.weather is not None:
        if not isinstance(result, ElectorOutcome):  # Its groups have no other guarantee.
            flags.append(f"--guarantee {result.options.guarantee}")
        flags.append(f"--weather {result.options.weather}")
    if asked.peers is not None:
        flags.append(f"--peers {asked.peers}")
    click.echo(f"FAIL {result.violation} at t={result.time:.3f}; replay: neli simulate {' '.join(flags)}")


def _summary(result: AnyOutcome) -> str:
    verdict = "FAIL" if result.violation is not None else f"healed after {result.converged_after:.1f} {result.unit}"
    return f"seed={result.seed:#x} trace={result.trace}: {verdict}\n{result.options}"


class _Progress:
    """One line that changes in a terminal; elsewhere one line every ten seconds, so that a log shows it is alive."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._started = self._told = monotonic()

    def tell(self, text: str) -> None:
        now = monotonic()
        line = f"  {now - self._started:5.0f} s  {text}"
        if self._terminal:
            click.echo(f"\r{line:78}", nl=False)
        elif now > self._told + 10:
            self._told = now
            click.echo(line)

    def end(self) -> None:
        if self._terminal:
            click.echo(f"\r{'':78}\r", nl=False)
