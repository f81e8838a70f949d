"""The time until others lead a killed member's partitions, over the lease; and the number of wrong expiries.

    balanced --kill -9 at a random moment--> survivors expire it, wait its lease out, take over --> restarted, balanced
                      |<---------------- takeover: until the last partition is led ---->|

Real processes share one ledger: an SQLite file, or a Kafka, PostgreSQL or Redis that is started for the benchmark. A
takeover lasts from just before the kill until a survivor, by its own stamp, holds a lease for the last of the dead
member's partitions. All processes of a host share a clock. A referee reads each process's notes about its leases, and
looks for two that hold a lease for one partition at the same time.

Then no member is killed. The same group runs for minutes, next to one endless loop on each core, and every expiry is a
wrong one.

    takeover_over_lease_median@L    for the trials at lease L; without @L, for the lease where it is largest
    overlaps                        pairs of processes that might act for one partition together, in all of the above
    false_expiries                  in the run without kills; `trial_false_expiries` counts survivors of the trials

`--peers` runs a different measurement instead: the same kill of our members, and of three processes each that contend
for one role with etcd, ZooKeeper and a lock of redis-py, where available, all in one run. Each side uses the smallest
setting that gave no false expiry in a run without kills, `--seconds` long, next to one endless loop on each core: see
`_peers/ladder.py` for the rule and the figures. The search takes `--seconds` for each of the four, and more for every
setting that proves too small.

With `--witness`, the host's agent, a separate process, reports the members' deaths, so no lease has to run out. Kills
take turns on every available ledger, with a witnessed and an unwitnessed group each, all in one run; with `--peers`,
the rivals take part, too.

    takeover_ms_median@LEDGER       with the witness; without @LEDGER, for the ledger where it is longest
    lease_alone_ms_median@LEDGER    the same group without a witness
    peers_over_ours@LEDGER          the better median of etcd and ZooKeeper, over ours
    certified                       killed members that a certificate ended; `trials` if a lease was never waited for

The default takes about nine minutes, of which the run without kills takes five; `--quick` takes about one.
"""

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median

from benchmarks import BenchmarkOptions, Figures, option, spread, switch
from benchmarks._peers.ladder import compared, fitting, killed, told
from benchmarks._peers.ours import Ours, Sizes, balanced, busy_cores, takeover
from benchmarks._places import LEDGERS, missing, place
from neli_router.core.clock import host_clock
from neli_router.lab.moves import History, history_of
from neli_router.protocols.induction.records import Certify, Expire

__all__ = ["Options", "run"]

EXPIRY_LEASE = 0.3

PEERS_QUICK = 10.0
"""Seconds without a kill for each setting, with `--quick`: enough to see that it runs, not to choose by."""


@dataclass(frozen=True, slots=True)
class Trials:
    """The outcome of the trials at one lease."""

    takeovers: list[float]
    """Seconds."""
    overlaps: int
    false_expiries: int


class Options(BenchmarkOptions):
    lease: tuple[float, ...] = ()
    ledger: tuple[str, ...] = option((), "several with --witness, and then all by default", choices=LEDGERS)
    trials: int = 30
    members: int = 3
    partitions: int = 256
    seconds: float = option(300.0, "of the run without kills; 0 leaves it out")
    seed: int = 1
    peers: bool = switch("only compare with etcd, ZooKeeper and a Redis lock")
    witness: bool = switch("the host's agent reports deaths, on every --ledger")
    quick: bool = switch("5 kills at each lease, 20 seconds without any")

    def __post_init__(self) -> None:
        if self.members < 2:
            raise ValueError(f"--members {self.members}: one must survive, so at least 2 are needed")
        if self.witness and len(self.lease) > 1:
            raise ValueError("--witness takes one --lease: no takeover depends on it")
        if len(self.ledger) > 1 and not self.witness:
            raise ValueError("several of --ledger were given: only --witness measures them in one run")


def run(options: Options) -> Figures:
    leases = options.lease or ((1.0,) if options.witness else (1.0, 0.3, 0.1))
    ledgers = options.ledger or ([kind for kind in LEDGERS if not missing(kind)] if options.witness else ["sqlite"])
    trials, seconds = (5, 20.0) if options.quick else (max(1, options.trials), options.seconds)
    calibration, rng = min(seconds, PEERS_QUICK) if options.quick else seconds, random.Random(options.seed)
    sizes = Sizes(options.members, options.partitions)
    if options.witness:
        return _witnessed(sizes, leases[0], ledgers, trials, calibration if options.peers else None, rng)
    with place(ledgers[0]) as there:
        sizes = replace(sizes, there=there)
        return (
            compared(sizes, calibration, trials, rng)
            if options.peers
            else _measured(sizes, leases, trials, seconds, rng)
        )


def _witnessed(
    sizes: Sizes, lease: float, ledgers: Sequence[str], trials: int, calibration: float | None, rng: random.Random
) -> Figures:
    """Kills on each of `ledgers`; the rivals take part if there are seconds to find their settings."""
    rivals, figures = ([], {}) if calibration is None else fitting(calibration, lease)
    with ExitStack() as stack:
        groups: dict[str, Ours] = {}
        for ledger in ledgers:
            its = replace(sizes, there=stack.enter_context(place(ledger)))
            groups[ledger] = stack.enter_context(Ours(lease, its, is_witnessed=True))
            groups[f"{ledger} alone"] = stack.enter_context(Ours(lease, its))
        peers = {rival.name: stack.enter_context(rival.at(setting)) for rival, setting in rivals}
        took = killed({**groups, **peers}, trials, rng)
        ends = {name: group.leave() for name, group in groups.items()}
    best = min((median(took[name]) for name in ("etcd", "zookeeper") if name in took), default=None)
    ours: Figures = {
        "takeover_ms_median": 1e3 * max(median(took[ledger]) for ledger in ledgers),
        "takeover_ms_max": 1e3 * max(max(took[ledger]) for ledger in ledgers),
    }
    for ledger in ledgers:
        for figure, name in (("takeover", ledger), ("lease_alone", f"{ledger} alone")):
            ours |= {f"{figure}_ms_{each}@{ledger}": ms for each, ms in spread(took[name]).items()}
        if best is not None:
            ours[f"peers_over_ours@{ledger}"] = best / median(took[ledger])
    return {
        **ours,
        **told(rivals, took),
        **figures,
        "trials": trials * len(ledgers),
        "certified": sum(len(ends[ledger][0].departed_by(Certify)) for ledger in ledgers),
        "overlaps": sum(overlaps for _, overlaps in ends.values()),
        "lease_s": lease,
        "members": sizes.members,
        "partitions": sizes.partitions,
    }


def _measured(sizes: Sizes, leases: Sequence[float], trials: int, seconds: float, rng: random.Random) -> Figures:
    by_lease = {lease: _trials(lease, trials, sizes, rng) for lease in leases}
    medians = {lease: median(found.takeovers) / lease for lease, found in by_lease.items()}
    maxima = {lease: max(found.takeovers) / lease for lease, found in by_lease.items()}
    overlaps = sum(found.overlaps for found in by_lease.values())
    figures: Figures = {
        "takeover_over_lease_median": max(medians.values()),
        "takeover_over_lease_max": max(maxima.values()),
    }
    for lease, found in by_lease.items():
        figures[f"takeover_over_lease_median@{lease:g}"] = medians[lease]
        figures[f"takeover_over_lease_max@{lease:g}"] = maxima[lease]
        figures[f"takeover_ms_median@{lease:g}"] = 1e3 * median(found.takeovers)
    figures["trials"] = trials * len(by_lease)
    figures["trial_false_expiries"] = sum(found.false_expiries for found in by_lease.values())
    if seconds > 0:
        history, more_overlaps = _left_alone(seconds, sizes)
        overlaps += more_overlaps
        figures["false_expiries"] = len(history.departed_by(Expire))
        figures["expiry_records"] = history.state.at
        figures["expiry_seconds"] = seconds
        figures["expiry_lease"] = EXPIRY_LEASE
    return {**figures, "overlaps": overlaps, "members": sizes.members, "partitions": sizes.partitions}


def _trials(lease: float, trials: int, sizes: Sizes, rng: random.Random) -> Trials:
    """Kill a member, let it come back, and repeat."""
    with balanced(lease, sizes) as (group, copy):
        takeovers: list[float] = []
        for _ in range(trials):
            time.sleep(lease * rng.random())  # Beats are a sixth of that apart: any moment is equally likely.
            running = group.running
            victim = rng.choice(sorted(running))
            takeovers.append(takeover(group, running[victim]))
            group.start(victim)
            group.settle()
        group.leave()
        history, overlaps = history_of(copy.close()), len(group.verdict().overlaps)
    return Trials(takeovers, overlaps, len(history.departed_by(Expire)) - trials)


def _left_alone(seconds: float, sizes: Sizes) -> tuple[History, int]:
    """The history of a group that is left alone on a machine with every core busy; and overlaps."""
    with balanced(EXPIRY_LEASE, sizes) as (group, copy), busy_cores():
        end = host_clock() + seconds
        while host_clock() < end:
            group.read_notes()
            time.sleep(EXPIRY_LEASE)
        history, overlaps = history_of(copy.close()), len(group.verdict().overlaps)
    return history, overlaps
