"""A member process that writes through a fence, into a database that keeps all writes in order.

    begin --admit(partition, term)--> insert into writes --> commit       one transaction per round
                |
                '--Refused--> insert into refusals

    python -m tests.chaos.fenced DATABASE ORDER        a worker (see `neli_router.lab.processes.worker`)

The table `writes` keeps the order of the commits. So a reader can see whether a lower term was ever written after a
higher one, without trusting the fence. A lease alone would have let each refused write through.
"""

import json
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from neli_router import fence
from neli_router.config.config import Config
from neli_router.core.closing import Closing
from neli_router.lab.processes import worker
from neli_router.protocols.electors.settings import GossipSettings, TermSettings
from neli_router.protocols.protocol import DRIFT_MAX

__all__ = ["FencedWriter", "Writes", "judged", "main", "writes_in"]

LOCKED_MAX = 0.2
"""Seconds. A process that is stopped in its transaction locks the others out; they write again in the next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftConfig(Config):
    """Members cannot configure how far clocks may be off: there is one bound for all. A storm that bends their clocks
    sets another bound, far above it, so that the effect of allowing for it becomes visible."""

    drift: float = DRIFT_MAX

    def peer_settings(self, me: int) -> TermSettings | GossipSettings:
        return msgspec.structs.replace(Config.peer_settings(self, me), drift=self.drift)


class FencedWriter(Closing):
    """The writer of one process; its label is in each write. Only one thread may use it at a time."""

    def __init__(self, path: Path, process: str) -> None:
        self._process = process
        # A killed process loses nothing that it committed; only a power cut would lose it.
        self._connection = sqlite3.connect(path, timeout=LOCKED_MAX, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = OFF")

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def install(path: Path) -> None:
        """Make the database, before the first write."""
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            with connection:
                columns = "(place INTEGER PRIMARY KEY AUTOINCREMENT, partition INTEGER, term INTEGER, process TEXT)"
                connection.execute(f"CREATE TABLE writes {columns}")
                connection.execute(f"CREATE TABLE refusals {columns}")
                fence.install(connection)

    def write(self, terms: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Write for each partition under its term. Returns the terms that the fence let through and those that it
        refused; both are empty if the database was locked."""
        written: dict[int, int] = {}
        refused: dict[int, int] = {}
        try:
            with self._connection:
                for partition, term in terms.items():
                    table, done = "writes", written
                    try:
                        fence.admit(self._connection, f"partition {partition}", term)
                    except fence.Refused:
                        table, done = "refusals", refused
                    done[partition] = term
                    row = (partition, term, self._process)
                    self._connection.execute(f"INSERT INTO {table} (partition, term, process) VALUES (?, ?, ?)", row)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            return {}, {}
        return written, refused


class Writes(NamedTuple):
    """The writes of all processes."""

    written: int
    refusals: list[tuple[str, int, int]]
    """The process, partition and term of each write that the fence refused."""
    zombies: list[str]
    """Every write that comes after a write for its partition under a higher term, in words."""


def writes_in(path: Path) -> Writes:
    with closing(sqlite3.connect(path, timeout=60)) as connection:  # Members may be writing.
        rows = connection.execute("SELECT partition, term, process FROM writes ORDER BY place").fetchall()
        refusals = connection.execute("SELECT process, partition, term FROM refusals ORDER BY place").fetchall()
    return judged(rows, refusals)


def judged(rows: Sequence[tuple[int, int, str]], refusals: list[tuple[str, int, int]]) -> Writes:
    """`rows` are partition, term and process of each write, in the order of the commits."""
    by_partition: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for partition, term, process in rows:
        by_partition[partition].append((term, process))
    zombies = [
        f"partition {partition}: {process} wrote under {term} after {before} under {higher}"
        for partition, writes in by_partition.items()
        for (higher, before), (term, process) in pairwise(writes)
        if term < higher
    ]
    return Writes(len(rows), refusals, zombies)


def main(database: str, order: str) -> int:
    """Be the member that `order` describes, and write for every partition that it leads."""
    told = json.loads(order)
    writer = FencedWriter(Path(database), Path(told["notes"]).stem)
    return worker.main(told, act=writer.write, config_type=DriftConfig)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
