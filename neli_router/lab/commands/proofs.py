"""The proofs: the demo, the simulator and the explorer.

neli demo          three processes share 256 partitions, one is killed, and its keys move
neli simulate      whole groups under faults, by seed
neli explore       every interleaving of a small group
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, cast, get_args

import click

from neli_router.core.exit_codes import EXIT_BROKEN
from neli_router.hosts.leash import end_with_parent
from neli_router.lab import demo
from neli_router.lab.sim.cells import CELL_PROFILES, CellBounds, CellMiniatures
from neli_router.lab.sim.consumer_group.miniature import FAST_NELI_PROFILES, NELI_PROFILES, ConsumerBounds
from neli_router.lab.sim.consumer_group.options import BorrowedProtocol, ConsumerWeather
from neli_router.lab.sim.consumer_group.simulate import ConsumerOutcome, simulate_consumers
from neli_router.lab.sim.consumer_group.steps import ConsumerMiniatures
from neli_router.lab.sim.electors.options import ElectorProtocol, ElectorWeather
from neli_router.lab.sim.electors.simulate import ElectorOutcome, simulate_electors
from neli_router.lab.sim.explore import Miniatures, Profile, Report, explore, transcript
from neli_router.lab.sim.gossip.miniature import GOSSIP_PROFILES, GossipBounds
from neli_router.lab.sim.gossip.steps import GossipMiniatures
from neli_router.lab.sim.induction.miniature import INDUCTION_PROFILES, Bounds
from neli_router.lab.sim.induction.options import Weather
from neli_router.lab.sim.induction.simulate import Result, simulate
from neli_router.lab.sim.induction.steps import LedgerMiniatures
from neli_router.lab.sim.term.canon import ElectorCover
from neli_router.lab.sim.term.miniature import TERM_PROFILES, ElectorBounds
from neli_router.lab.sim.term.steps import ElectorMiniatures
from neli_router.protocols.protocol import Guarantee

__all__ = ["demo_command", "explore_command", "miniatures_of", "simulate_command"]

AnyBounds = Bounds | CellBounds | ConsumerBounds | ElectorBounds | GossipBounds

PROFILES: Mapping[str, Mapping[str, Profile[AnyBounds]]] = {
    "induction": INDUCTION_PROFILES,
    "neli": NELI_PROFILES,
    "fast-neli": FAST_NELI_PROFILES,
    "term": TERM_PROFILES,
    "gossip": GOSSIP_PROFILES,
    "cells": CELL_PROFILES,
}
"""Protocol -> what can be explored of it, by name."""

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
@click.option("--lease", type=float, default=0.5, show_default=True, help="How long a heartbeat proves anything, in s.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="How long it takes if all goes well.")
@click.option("--live/--plain", default=None, help="A live view, or plain lines.  [default: live in a terminal]")
@click.option("--keep", type=click.Path(path_type=Path), help="An empty folder, to keep the ledger and the logs in.")
def demo_command(members: int, lease: float, seconds: float, live: bool | None, keep: Path | None) -> None:
    """Start real processes that share partitions; kill one, stop one, let one leave, and route keys throughout.

    Prints at the end what was measured and checked. Exits with 0 only if every check held; 1 if one failed or a process
    could not start; 2 if it cannot run with these options; 130 if it was interrupted.
    """
    raise SystemExit(demo.run(members=members, lease=lease, seconds=seconds, live=live, keep=keep))


class _WithProfiles(click.Command):
    """Its help lists the profiles of one protocol, and how their bounds differ from the usual ones."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        protocol = ctx.params.get("protocol", "induction")
        profiles = PROFILES[protocol]
        usual = {it.name: it.default for it in fields(profiles["test"].bounds[0]) if it.name != "protocol"}
        rows = []
        for name, profile in profiles.items():
            rows.append((name, profile.about))
            for bounds in profile.bounds:
                given = {it: getattr(bounds, it) for it in usual}
                rows.append(("", f"[{_listed({it: given[it] for it in usual if given[it] != usual[it]})}]"))
        with formatter.section(f"Profiles of {protocol}"):
            formatter.write_text(f"The bounds are {_listed(usual)}, unless a profile changes them in brackets.")
            formatter.write_paragraph()
            formatter.write_dl(rows)


def _listed(bounds: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in bounds.items()) or "unchanged"


@click.command("explore", cls=_WithProfiles)
@click.option(
    "--protocol",
    type=click.Choice(list(PROFILES)),
    default="induction",
    show_default=True,
    is_eager=True,  # The help, which is eager, too, lists this protocol's profiles.
    help="What the group runs.",
)
@click.option(
    "--profile", metavar="NAME", default="test", show_default=True, help="What to explore, from the list below."
)
@click.option("--states", type=click.IntRange(1), help="Stop after this many states, whatever the profile says.")
def explore_command(protocol: str, profile: str, states: int | None) -> None:
    """Walk every interleaving of a small group, running the shipped protocol.

    Prints its bounds and how far it got. When a rule is broken, prints the shortest way there and exits with 1.

    `neli explore --protocol NAME --help` lists the profiles of another protocol.
    """
    if profile not in PROFILES[protocol]:
        known = ", ".join(PROFILES[protocol])
        raise click.BadParameter(f"{protocol} has {known}, and not {profile}", param_hint="--profile")
    for bounds in PROFILES[protocol][profile].bounds:
        _explore(bounds if states is None else replace(bounds, states_max=states))


def miniatures_of(bounds: AnyBounds) -> Miniatures[Any]:
    """All worlds within these bounds."""
    match bounds:
        case Bounds():
            return LedgerMiniatures(bounds)
        case CellBounds():
            return CellMiniatures(bounds)
        case ConsumerBounds():
            return ConsumerMiniatures(bounds)
        case ElectorBounds():
            return ElectorMiniatures(bounds)
        case GossipBounds():
            return GossipMiniatures(bounds)


def _explore(bounds: AnyBounds) -> None:
    click.echo(f"explore: {bounds}")
    progress, started = _Progress(), monotonic()

    def tell(report: Report[Any]) -> None:
        progress.tell(f"depth {report.depth}: {report.states:,} states, {report.steps:,} steps")

    covers = ElectorCover().covers if isinstance(bounds, ElectorBounds) else lambda key: False
    try:
        report = explore(miniatures_of(bounds), tell, covers=covers, states_max=bounds.states_max)
    finally:
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
    asked = _Asked(protocol, guarantee, weather)
    if first is not None:
        result = asked.run(_seed(first))
        click.echo(_summary(result))
        if result.violation is not None:
            _show(result, asked)
            raise SystemExit(EXIT_BROKEN)
        return
    progress, started, traces = _Progress(), monotonic(), dict[int, str]()
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs, initializer=_begin_worker) as pool:
        try:
            chunks = [range(at, min(at + CHUNK, start + seeds)) for at in range(start, start + seeds, CHUNK)]
            futures = [pool.submit(asked.run_some, chunk) for chunk in chunks]
            for future in as_completed(futures):
                for result in future.result():
                    traces[result.seed] = result.trace
                    counts += result.counts
                    if result.violation is not None:
                        progress.end()
                        _show(result, asked)
                        raise SystemExit(EXIT_BROKEN)
                progress.tell(f"{len(traces)} of {seeds} seeds")
        finally:
            progress.end()
            pool.shutdown(cancel_futures=True)  # The end of `with` would wait for all chunks, even after Ctrl-C.
    click.echo(f"simulate: {seeds} seeds from {start}: every promise held, {monotonic() - started:.0f} s")
    click.echo("  " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    every = "".join(trace for _, trace in sorted(traces.items()))
    click.echo(f"  traces {blake2b(every.encode(), digest_size=8).hexdigest()}")


def _begin_worker() -> None:
    """A worker ends with the command, and never on its own."""
    end_with_parent()  # It waits for the next chunk on a pipe of which it holds the other end, too.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


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

    def run(self, seed: int) -> AnyOutcome:
        guarantee = cast(Guarantee | None, self.guarantee)
        if self.protocol == "induction":
            return simulate(seed, guarantee=guarantee, weather=cast(Weather | None, self.weather))
        if self.protocol in get_args(ElectorProtocol):
            elector = cast(ElectorProtocol, self.protocol)
            elector_weather = cast(ElectorWeather | None, self.weather)
            return simulate_electors(seed, protocol=elector, weather=elector_weather)
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
