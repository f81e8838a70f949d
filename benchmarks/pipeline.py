"""Exactly once on Spark: 1,000,000 ticks through three hosts' jobs, which are killed, stopped, and killed in a commit.

The scenario is that of `tests/spark/test_exactly_once.py`. One driver is killed -9 right after its commit; one host is
stopped just before its commit for longer than a lease, and then woken up; and one host is killed in mid-run.
Afterwards, each tick is looked up by its sequence number, and every bar is compared with one that other code computed.

`zombie_refusals` counts the partitions in which the fence refused the woken host. `takeover_s_*` is the time from the
fault until others had written rows to all partitions of that host: a lease, and the steps that are then under way.
"""

import tempfile
from pathlib import Path

from benchmarks import BenchmarkOptions, Figures, option
from tests.spark.takeovers import LEASE, play

__all__ = ["Options", "run"]


class Options(BenchmarkOptions):
    ticks: int = option(1_000_000, "how many go in")


def run(options: Options) -> Figures:
    with tempfile.TemporaryDirectory(prefix="neli-pipeline-") as folder:
        outcome = play(Path(folder), options.ticks)
    return {
        "ticks": outcome.count.made,
        "landed_once": outcome.count.landed - outcome.count.doubled,
        "duplicates": outcome.count.doubled,
        "missing": outcome.count.missing,
        "bars_equal": outcome.has_same_bars,
        "killed_after_its_commit": outcome.killed_at_commit,
        "zombie_files_landed": len(outcome.zombie_files),
        "zombie_refusals": outcome.log.count("table.refused"),
        "zombie_exit_code": outcome.zombie_code,
        "lease_s": LEASE,
        **{f"takeover_s_{name}": seconds for name, seconds in outcome.takeovers.items()},
        "seconds": outcome.seconds,
    }
