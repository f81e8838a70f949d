"""Appends to a fenced Iceberg table: what the fence costs, whom it refuses, and whether all rows are there once.

    fenced, plain, fenced, plain ...     append_over_plain: append / pyiceberg's own append to a table of the same kind
    zombie |== commit ==.....SIGSTOP.....................SIGCONT==>  Refused
    successor                 raise_terms, append
    fenced appender next to a plain one, on one table: every row of both is there once

The two tables of a ratio are written in turn, so a machine that becomes busy slows both down. A zombie stops itself
at a random call of a Python function within its commit. One that had landed by then is replaced by another zombie, and
so is one that holds SQLite's lock: it blocks all others until it goes on or dies.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.core.keyspace import Layout
from neli_router.fence import Refused, TableUnavailable
from neli_router.fence.iceberg import FencedIcebergTable

__all__ = ["Options", "append_plainly", "be_zombie", "ratio", "run"]

ROOT = Path(__file__).parents[1]
LAYOUT = Layout(partitions=8)
SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.float64())])
FENCED, PLAIN = "lake.fenced", "lake.plain"
TERM = 7


class Options(BenchmarkOptions):
    rounds: int = option(100, "pairs of appends")
    batch: int = option(1000, "rows of an append that is timed")
    zombies: int = option(20, "that stop within a commit and wake up after their successor")
    rows: int = option(1_000_000, "next to a plain appender")
    batches: int = option(50, "that bring these rows")
    seed: int = 7


def run(options: Options) -> Figures:
    with tempfile.TemporaryDirectory(prefix="neli-") as folder:
        figures = ratio(Path(folder) / "ratio", options)
        for name, part in (("zombies", _zombies), ("once", _once)):
            with _table(Path(folder) / name) as table:
                figures |= part(Path(folder) / name, table, options)
    return {**figures, "busy": os.getloadavg()[0]}


def ratio(folder: Path, options: Options) -> Figures:
    rows, took = _rows(0, options.batch, 1), list[tuple[float, float]]()
    with _table(folder) as fenced:
        FencedIcebergTable.create(PLAIN, SCHEMA, LAYOUT, fenced.catalog)
        plain = fenced.catalog.load_table(PLAIN)
        for batch in range(options.rounds):
            began = time.perf_counter()
            fenced.append(rows, {1: TERM}, batch)
            between = time.perf_counter()
            plain.append(rows)
            took.append((between - began, time.perf_counter() - between))
    return {
        "append_over_plain": median(ours / theirs for ours, theirs in took),
        "append_ms_p50": median(ours for ours, _ in took) * 1000,
        "plain_append_ms_p50": median(theirs for _, theirs in took) * 1000,
        "rounds": options.rounds,
    }


def _zombies(folder: Path, table: FencedIcebergTable, options: Options) -> Figures:
    rng = Random(options.seed)
    refused = landed = replaced = batch = 0
    term = TERM
    while refused + landed < options.zombies:
        numbers = (str(term), str(batch), str(rng.randrange(10**9)))
        with _program("be_zombie", str(folder), *numbers) as zombie:
            os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            there = table.progress([1])[1].batch
            term, batch = term + 2, there + 1
            if there > int(numbers[1]) + 1:
                replaced += 1
                continue
            try:
                table.append(_rows(batch, 1, 1), {1: term - 1}, batch)
            except TableUnavailable:
                replaced += 1
                continue
            batch += 1
            zombie.send_signal(signal.SIGCONT)
            said = zombie.communicate()[0]
        refused += said == "refused\n"
        landed += said != "refused\n"
    ids = table.catalog.load_table(FENCED).scan().to_arrow()["id"]
    return {
        "zombies_refused": refused,
        "zombies_landed": landed,
        "zombies_replaced": replaced,
        "doubled_batches": len(ids) - len(pc.unique(ids)),
    }


def be_zombie(folder: str, *numbers: str) -> None:
    """Land two batches, and stop within the commit of the next one. The first loads modules, the second is counted."""
    term, batch, seed = map(int, numbers)
    table, calls, stop_at = FencedIcebergTable(FENCED, folder), 0, 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"
        if calls == stop_at:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGSTOP)

    for number in range(batch, batch + 3):
        with table.stage({1: term}, number) as staging:
            staging.write(_rows(number, 1, 1))
            stop_at, calls = Random(seed).randint(1, calls) if number == batch + 2 else 0, 0
            sys.setprofile(count)
            try:
                table.commit(staging)
                sys.setprofile(None)
            except Refused:
                print("refused")


def _once(folder: Path, table: FencedIcebergTable, options: Options) -> Figures:
    each = options.rows // options.batches
    terms = dict.fromkeys(range(LAYOUT.partitions), TERM)
    with _program("append_plainly", str(folder)) as plain:
        assert plain.stdout is not None
        plain.stdout.readline()
        began = time.perf_counter()
        for batch in range(options.batches):
            table.append(_rows(batch * each, each, LAYOUT.partitions), terms, batch)
        took = time.perf_counter() - began
        theirs = int(plain.communicate()[0])
    ids = table.catalog.load_table(FENCED).scan().to_arrow()["id"]
    ours = ids.filter(pc.greater_equal(ids, 0))
    return {
        "rows": len(ours),
        "rows_once": len(pc.unique(ours)),
        "plain_rows": theirs,
        "plain_rows_there": len(ids) - len(ours),
        "plain_rows_once": len(pc.unique(ids)) - len(pc.unique(ours)),
        "rows_s": took,
    }


def append_plainly(folder: str) -> None:
    """Append a row with a negative id, again and again, until standard input ends; print how many landed."""
    table, count = FencedIcebergTable(FENCED, folder).catalog.load_table(FENCED), 0
    print("appending", flush=True)
    while select.select([sys.stdin], [], [], 0)[0] == []:
        with suppress(CommitFailedException):  # It has tried five times.
            table.append(_rows(-1 - count, 1, 1))
            count += 1
            continue
        table.refresh()
    print(count)


@contextmanager
def _table(folder: Path) -> Iterator[FencedIcebergTable]:
    table = FencedIcebergTable.create(FENCED, SCHEMA, LAYOUT, folder)
    with closing(table.catalog):
        yield table


@contextmanager
def _program(name: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    text = f"import sys; from benchmarks.fenced_iceberg import {name}; {name}(*sys.argv[1:])"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", text, *words], cwd=ROOT, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _rows(first: int, count: int, partitions: int) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    partition = pa.array([1 if partitions == 1 else number % partitions for number in range(count)], pa.int32())
    return pa.table({"id": ids, "price": pc.cast(ids, pa.float64()), "partition": partition})
