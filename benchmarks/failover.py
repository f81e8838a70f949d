"""How long it takes until a killed member's partitions are led by others, over the lease; and who is expired wrongly.

    balanced --kill -9 at a random moment--> survivors expire it, wait its lease out, take over --> restarted, balanced
                      |<---------------- takeover: until the last partition is led ---->|

Real processes on one SQLite ledger. A takeover counts from just before the kill to the moment at which a survivor, by
its own stamp, holds a lease of the last of the partitions that the dead one led; the processes of a host share a clock.
A referee reads what each process notes about its leases and looks for two that hold one partition's at once.

Then nobody is killed. The same group runs for minutes, beside one endless loop on each core, and every member that is
expired was expired wrongly.

    takeover_over_lease_median@L    of the trials at lease L; without @L, of the lease where it is largest
    overlaps                        pairs of processes that might act for one partition at once, in all of the above
    false_expiries                  in the run without kills; `trial_false_expiries` counts survivors of the trials

The default takes about nine minutes, five of which are the run without kills; `--quick` takes about one.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import Figures
from benchmarks._processes.chronicle import Chronicle, History, history_of
from benchmarks._processes.group import Group, Life
from benchmarks._processes.notes import Acts
from neli_router.clock import host_clock
from neli_router.induction.records import Expire

__all__ = ["run"]

LEASES = (1.0, 0.3, 0.1)
EXPIRY_LEASE = 0.3
ROUNDS_PER_LEASE = 4
"""How often a worker checks its leases and acts; what it acquires, it acts for at once."""

BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10_000_000):
        pass
"""


@dataclass(frozen=True, slots=True)
class Trials:
    """What the trials at one lease showed."""

    takeovers: list[float]
    """Seconds."""
    overlaps: int
    false_expiries: int


@dataclass(frozen=True, slots=True)
class Sizes:
    members: int
    partitions: int


def run(options: Sequence[str]) -> Figures:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lease", type=float, nargs="+", default=LEASES, help="seconds; several are tried in turn")
    parser.add_argument("--trials", type=int, default=30, help="kills at each lease")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the run without kills; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=1, help="draws who is killed, and when")
    parser.add_argument("--quick", action="store_true", help="5 kills at each lease, 20 seconds without any")
    chosen = parser.parse_args(options)
    if chosen.members < 2:
        parser.error(f"--members {chosen.members}: somebody must survive, so at least 2 are needed")
    trials, seconds = (5, 20.0) if chosen.quick else (max(1, chosen.trials), chosen.seconds)
    sizes = Sizes(chosen.members, chosen.partitions)
    rng = random.Random(chosen.seed)
    by_lease = {lease: _trials(lease, trials, sizes, rng) for lease in chosen.lease}
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
    """Kill a member, let it come back, and again."""
    with _group(lease, sizes) as (group, chronicle):
        present = {life.name: life for life in group.lives}
        takeovers: list[float] = []
        for _ in range(trials):
            time.sleep(lease * rng.random())  # Beats are a sixth of that apart: any moment between two is as likely.
            victim = rng.choice(sorted(present))
            takeovers.append(_takeover(group, present[victim]))
            present[victim] = group.start(victim)
            group.settle()
        group.leave()
        history, overlaps = history_of(chronicle.close()), len(group.referee.verdict().overlaps)
    return Trials(takeovers, overlaps, len(history.departed_by(Expire)) - trials)


def _takeover(group: Group, victim: Life) -> float:
    """Kill `victim`; seconds until somebody else leads the last of its partitions."""
    group.read_notes()
    killed_at = victim.kill()
    led_at: dict[int, float] = {}
    for fresh in group.watch(f"the partitions of {victim.label} were to be led by others"):
        acts = [note for label, notes in fresh.items() if label != victim.label for note in notes]
        for note in acts:
            if isinstance(note, Acts):
                for partition in note.terms.keys() & victim.leads.keys():
                    led_at.setdefault(partition, note.since)
        if led_at.keys() >= victim.leads.keys():
            break
    return max(led_at.values()) - killed_at


def _left_alone(seconds: float, sizes: Sizes) -> tuple[History, int]:
    """What the ledger says of a group that nobody touches, on a machine whose every core is busy; and overlaps."""
    with _group(EXPIRY_LEASE, sizes) as (group, chronicle), _busy_cores():
        end = host_clock() + seconds
        while host_clock() < end:
            group.read_notes()
            time.sleep(EXPIRY_LEASE)
        history, overlaps = history_of(chronicle.close()), len(group.referee.verdict().overlaps)
    return history, overlaps


@contextmanager
def _group(lease: float, sizes: Sizes) -> Iterator[tuple[Group, Chronicle]]:
    """A group that shares everything evenly, and a reader of its ledger."""
    with tempfile.TemporaryDirectory(prefix="neli-failover-") as folder:
        pause = lease / ROUNDS_PER_LEASE
        with Group(Path(folder), partitions=sizes.partitions, pause=pause, lease=lease) as group:
            chronicle = Chronicle(group.ledger)
            try:
                for number in range(sizes.members):
                    group.start(f"m{number + 1}")
                group.settle()
                yield group, chronicle
            finally:
                chronicle.close()


@contextmanager
def _busy_cores() -> Iterator[None]:
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
