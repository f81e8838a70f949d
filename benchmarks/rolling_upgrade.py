"""Rows that a fenced Delta table loses while its writers are killed and upgraded, and each version adds a column.

Each host has one partition. It lands batches there, compacts now and then, and is killed again and again; one of them
also sweeps and maintains. Its next life has the next term, and mostly a newer version of the program. Each version adds
one column, while the other hosts write, compact and are killed. Some lives go back to the version before.

    refused       lives that ended by an error of the table
    lost          batches without a row at the end
    doubled       rows that are there twice
    wrong_nulls   rows without a value in a column of their version, or with one in a later column
    left          files that no version of the table ever named, after the last sweep
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.core.keyspace import Layout
from neli_router.fence.delta import FencedTable

__all__ = ["Options", "host", "run"]

ROOT = Path(__file__).parents[1]
LAYOUT = Layout(partitions=8)
FIRST = pa.schema([("batch", pa.int64()), ("version", pa.int64())])
COMPACT_EVERY = 8
WITHOUT_END = 10**9


class Options(BenchmarkOptions):
    hosts: int = option(4, "that write, each to one partition")
    versions: int = option(4, "of the program")
    kills: int = option(30, "of all hosts together")
    batches: int = option(20, "that each host lands after the last kill")
    life: float = option(1.5, "seconds, at most, until a host that has opened the table is killed")
    seed: int = 7


def run(options: Options) -> Figures:
    rng, started, refused = Random(options.seed), time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="neli-") as folder, ExitStack() as stack:
        table = FencedTable.create(Path(folder) / "table", FIRST, LAYOUT)
        lives = [_Life(table.path, partition, 1, 1, WITHOUT_END) for partition in range(options.hosts)]
        stack.callback(_end, lives)
        for kill in range(options.kills):
            partition = rng.randrange(options.hosts)
            refused += not lives[partition].kill(options.life * rng.random() ** 2)
            newest = 2 + kill * (options.versions - 1) // options.kills
            version = max(1, newest - (rng.random() < 0.25))
            lives[partition] = _Life(table.path, partition, kill + 2, version, WITHOUT_END)
        for partition in range(options.hosts):
            refused += not lives[partition].kill(0.0)
            last = table.progress([partition])[partition].batch + options.batches
            lives[partition] = _Life(table.path, partition, options.kills + 2, options.versions, last)
        refused += sum(not life.finishes() for life in lives)
        table.sweep()
        rows = DeltaTable(table.path).to_pyarrow_table().to_pylist()
        found = Counter((row["partition"], row["batch"]) for row in rows)
        wanted = {(one, batch) for one in range(options.hosts) for batch in range(table.progress([one])[one].batch + 1)}
        columns = DeltaTable(table.path).schema().fields
        return {
            "refused": refused,
            "lost": len(wanted - found.keys()),
            "doubled": found.total() - len(found),
            "wrong_nulls": sum(
                (row[f"v{version}"] is None) == (version <= row["version"])
                for row in rows
                for version in range(2, options.versions + 1)
            ),
            "left": len({*table.path.rglob("partition=*/*")} - _named(table)),
            "rows": len(rows),
            "columns_added": len(columns) - len(FIRST) - 1,
            "compactions": sum("replaced" in entry.read_text() for entry in table.path.glob("_delta_log/*.json")),
            "files": len(table.files()),
            "kills": options.kills + options.hosts,
            "hosts": options.hosts,
            "versions": options.versions,
            "lasted_s": time.monotonic() - started,
        }


def host(path: str, *numbers: str) -> None:
    """One life of a host: its partition, term, version of the program, and last batch."""
    partition, term, version, last = map(int, numbers)
    table, terms = FencedTable.create(path, FIRST, LAYOUT), {partition: term}
    print("opened", flush=True)
    columns = {f"v{later}": version for later in range(2, version + 1)}
    table.add_columns(pa.schema([(name, pa.int64()) for name in columns]))
    table.raise_terms(terms)
    for batch in range(table.progress(terms)[partition].batch + 1, last + 1):
        row = {"batch": batch, "version": version, "partition": partition, **columns}
        table.append(pa.Table.from_pylist([row]), terms, batch)
        if batch % COMPACT_EVERY == 0:
            table.compact(terms)
            if partition == 0:
                table.sweep()
                table.maintain()


class _Life:
    """A process that runs `host`."""

    def __init__(self, path: Path, *numbers: int) -> None:
        text = "import sys; from benchmarks.rolling_upgrade import host; host(*sys.argv[1:])"
        command = [sys.executable, "-c", text, str(path), *map(str, numbers)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def kill(self, after: float) -> bool:
        """Kill it some seconds `after` it has opened the table; return whether it was alive then."""
        assert self._process.stdout is not None
        self._process.stdout.readline()
        time.sleep(after)
        is_alive = self._process.poll() is None
        self.end()
        return is_alive

    def finishes(self) -> bool:
        return self._process.wait() == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _end(lives: list[_Life]) -> None:
    for life in lives:
        life.end()


def _named(table: FencedTable) -> set[Path]:
    """Every file that any version of the table has named."""
    lines = [line for entry in table.path.glob("_delta_log/*.json") for line in entry.read_text().splitlines()]
    return {table.path / action["add"]["path"] for action in map(json.loads, lines) if "add" in action}
