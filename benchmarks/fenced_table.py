"""The time of a commit to a fenced Delta table, with 10 and with 1,000 commits in the table, and with many partitions.

    append(rows of one partition)   = stage a Parquet file + commit
    commit                          = look, place and flush the files, one entry of the log, look

A commit lists the log several times, so it takes longer with more entries there: this is the ratio. The two tables are
written in turn, so a machine that becomes busy slows both down. The small table is created again every ten commits.

`partitions_...` are steps of a whole host, with as many partitions together as it may hold. Each gets one row. These
figures do not measure how long writing the rows takes; `stage_ms` shows it separately.
"""

import os
import tempfile
import time
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.core.keyspace import Layout
from neli_router.fence.delta import FencedTable

__all__ = ["Options", "run"]

LAYOUT = Layout()
SCHEMA = pa.schema([("instrument", pa.string()), ("at", pa.timestamp("us", "UTC")), ("price", pa.float64())])
FEW = 10
TERM = 7


class Options(BenchmarkOptions):
    commits: int = option(1000, "in the large table")
    rounds: int = option(100, "commits that are timed")
    partitions: int = option(32, "in one step of a host that holds many")


def run(options: Options) -> Figures:
    with tempfile.TemporaryDirectory(prefix="neli-") as folder:
        home = Path(folder)
        large = _Filled(home / "large", options.commits, 1)
        small = _Filled(home / "small-0", FEW, 1)
        for number in range(options.rounds):
            if number % FEW == 0 and number:
                small = _Filled(home / f"small-{number}", FEW, 1, like=small)
            small.commit()
            large.commit()
        wide = _Filled(home / "wide", FEW, options.partitions)
        for _ in range(FEW):
            wide.commit()
    return {
        "commit_ms_p50": median(large.took),
        "commit_ms_p50_at_few": median(small.took),
        "many_over_few": median(large.took) / median(small.took),
        "commit_ms_max": max(large.took),
        "stage_ms_p50": median(large.staged),
        "partitions_commit_ms_p50": median(wide.took),
        "partitions_stage_ms_p50": median(wide.staged),
        "commits": options.commits,
        "few_commits": FEW,
        "partitions": options.partitions,
        "rounds": options.rounds,
        "busy": os.getloadavg()[0],
    }


class _Filled:
    """A table that has some commits already, and the milliseconds that further commits take."""

    def __init__(self, path: Path, commits: int, partitions: int, *, like: "_Filled | None" = None) -> None:
        self._table = FencedTable.create(path, SCHEMA, LAYOUT)
        self._terms = dict.fromkeys(range(partitions), TERM)
        self._rows = pa.table(
            {
                "instrument": ["NELI"] * partitions,
                "at": pa.array([0] * partitions, pa.timestamp("us", "UTC")),
                "price": [1.0] * partitions,
                "partition": range(partitions),
            }
        )
        self._batch = 0
        self.took: list[float] = []
        self.staged: list[float] = []
        self._table.raise_terms(self._terms)
        for _ in range(commits - 1):
            self.commit()
        self.took, self.staged = (like.took, like.staged) if like else ([], [])

    def commit(self) -> None:
        began = time.perf_counter()
        with self._table.stage(self._terms, self._batch) as staging:
            staging.write(self._rows)
            staged = time.perf_counter()
            self._table.commit(staging)
            committed = time.perf_counter()
        self._batch += 1
        self.staged.append((staged - began) * 1000)
        self.took.append((committed - staged) * 1000)
