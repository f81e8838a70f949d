"""How soon a killed member's partitions are led again over a slow ledger, with delays from a tenth of a lease up.

    members --half a round trip--> an SQLite ledger --half a round trip--> members      one is killed with -9

Real processes and a real ledger, which the members see from a distance (`benchmarks._distant_worker.py`). Below five
sixths of a lease, all lead, and a killed member must be taken over. Above, the first member leads for moments and can
expire no other, the others wait outside the group, and each must log this.

    takeovers_over_lease_max@T      the longest of the trials at a round trip of T leases
    not_taken_over                  kills below five sixths of a lease after which partitions stayed unled; must be 0
    too_slow_told                   the share of the members above that logged this; must be 1
    overlaps                        pairs of processes that might act for one partition together; must be 0

The default takes about six minutes.
"""

import tempfile
from math import inf
from pathlib import Path

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import ProcessGroup, led_elsewhere

__all__ = ["Options", "run"]


class Options(BenchmarkOptions):
    lease: float = 2.0
    trials: int = 3
    below: tuple[float, ...] = option(
        (0.1, 0.25, 0.3, 0.36, 0.45, 0.6, 0.7, 0.75, 0.8), "round trips, in leases", nargs="*"
    )
    above: tuple[float, ...] = option((0.87, 0.95, 1.5), "round trips, in leases", nargs="*")
    members: int = 3
    partitions: int = 32


def run(options: Options) -> Figures:
    figures: Figures = {"lease": options.lease, "trials": options.trials * len(options.below)}
    missed = overlaps = 0
    for trip in options.below:
        with tempfile.TemporaryDirectory(prefix="neli-band-") as folder:
            takeovers, more = _below(_group(Path(folder), trip, options), options)
        figures[f"takeovers_over_lease_max@{trip:g}"] = max(takeovers, default=inf) / options.lease
        missed += options.trials - len(takeovers)
        overlaps += more
    told = 0
    for trip in options.above:
        with tempfile.TemporaryDirectory(prefix="neli-band-") as folder:
            told += _above(_group(Path(folder), trip, options), options)
    possible = len(options.above) * options.members
    figures["too_slow_told"] = told / possible if possible else None
    return {**figures, "not_taken_over": missed, "overlaps": overlaps, "members": options.members}


def _group(folder: Path, trip: float, options: Options) -> ProcessGroup:
    lease = options.lease
    program = ("benchmarks._distant_worker", str(trip * lease))
    return ProcessGroup(folder, partitions=options.partitions, pause=lease / 20, program=program, lease=lease)


def _below(group: ProcessGroup, options: Options) -> tuple[list[float], int]:
    """The takeover times in seconds, for kills that had one; and overlaps."""
    takeovers: list[float] = []
    with group:
        for number in range(options.members):
            group.start(f"m{number + 1}")
        group.settle()
        for trial in range(options.trials):
            victim = group.running[f"m{trial % options.members + 1}"]
            lost = list(victim.life.held)
            killed_at = victim.kill()
            try:
                group.settle()
            except TimeoutError:
                break
            takeovers.append(led_elsewhere(group.lives, victim.life, lost, killed_at) - killed_at)
            group.start(victim.life.name)
            group.settle()
        return takeovers, len(group.verdict().overlaps)


def _above(group: ProcessGroup, options: Options) -> int:
    """How many members logged that they can expire no other, or that they wait outside."""
    with group:
        members = [group.start(f"m{number + 1}") for number in range(options.members)]
        give_up_at = host_clock() + 60 * options.lease

        def told() -> int:
            return sum("member.powerless" in member.log or "member.waits" in member.log for member in members)

        group.wait_until(lambda: told() == len(members) or host_clock() > give_up_at, "the members were to say so")
        return told()
