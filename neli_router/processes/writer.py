"""The writer: a worker's writes through the fence, into a database that keeps them in order.

    begin --admit(partition, term)--> insert into writes --> commit       one transaction a round
                |
                '--Refused--> that partition is left out, and told

The table `writes` keeps the order of the commits. So a reader can see whether a lower term was ever written after a
higher one, and need not trust the fence.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from neli_router import fence

__all__ = ["FencedWriter"]

LOCKED_MAX = 0.2
"""Seconds. A process that is stopped within its transaction keeps the others out; they write again next round."""


class FencedWriter:
    """Of one process, whose label is in each of its writes. For one thread at a time."""

    def __init__(self, path: Path, process: str) -> None:
        self._process = process
        # A process that is killed loses nothing that it committed; only a power cut would lose it.
        self._connection = sqlite3.connect(path, timeout=LOCKED_MAX, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = OFF")

    @staticmethod
    def install(path: Path) -> None:
        """Make the database, before the first write."""
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            with connection:
                connection.execute(
                    "CREATE TABLE writes (place INTEGER PRIMARY KEY AUTOINCREMENT, partition INTEGER, term INTEGER, "
                    "process TEXT)"
                )
                fence.install(connection)

    def write(self, terms: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Write for each partition under its term. Returns those that the fence let through and those that it refused;
        none of either if the database was locked."""
        written: dict[int, int] = {}
        refused: dict[int, int] = {}
        try:
            with self._connection:
                for partition, term in terms.items():
                    try:
                        fence.admit(self._connection, f"partition {partition}", term)
                    except fence.Refused:
                        refused[partition] = term
                    else:
                        self._connection.execute(
                            "INSERT INTO writes (partition, term, process) VALUES (?, ?, ?)",
                            (partition, term, self._process),
                        )
                        written[partition] = term
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            return {}, {}
        return written, refused
