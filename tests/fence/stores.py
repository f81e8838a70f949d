"""Real stores that member processes write to through a fence. Each keeps all writes in the order in which they landed.

    a worker --admit(partition, term), and a row--> writes          SQLite: one transaction; Redis: one step
                  '--Refused----------------------> refusals
    a test   <------------------------------------- Writes

    python -m tests.fence.stores ADDRESS ORDER      a worker that writes (see `neli_router.lab.processes.worker`)

ADDRESS is the path of an SQLite file, or `unix://...` as redis-py spells it. Both are files, so processes reach them
from any network namespace. The worker's program is the worst possible: it never checks its lease again, and goes on
under each term that it was given until the fence refuses it.
"""

import json
import os
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from neli_router import fence
from neli_router.core.closing import Closing
from neli_router.fence import redis as redis_fence
from neli_router.lab.processes import worker
from neli_router.lab.processes.group import MemberProcess
from tests.chaos.fenced import FencedWriter, Writes, judged, writes_in

__all__ = ["FencedStore", "Heedless", "store_at"]


class FencedStore(Closing, ABC):
    """One store, as used by a process called `process`."""

    _opened: Any
    """The connection, from its first use on."""

    def __init__(self, address: str, process: str) -> None:
        self.address, self._process = address, process

    @abstractmethod
    def install(self) -> None:
        """Make what the writes need, before the first write."""

    @abstractmethod
    def write(self, terms: Mapping[int, int]) -> dict[int, int]:
        """Write for each partition under its term. Returns the terms that the fence refused, by partition."""

    @abstractmethod
    def admit(self, term: int) -> None:
        """Raise the fence of partition 0, like a new owner. Raises Refused."""

    @abstractmethod
    def admitted(self) -> int:
        """The highest term of partition 0; 0 if there was none."""

    @property
    @abstractmethod
    def writes(self) -> Writes:
        """All writes that have landed, and all that were refused."""

    def close(self) -> None:
        if "_opened" in self.__dict__:
            self._opened.close()

    def stop_between_writes(self, process: MemberProcess) -> None:
        """Stop the process with no write half done: otherwise that write's lock would keep its successor waiting."""
        process.stop()
        # The signal is on its way. Only the kernel knows when the last thread has stopped.
        os.waitid(os.P_PID, process.life.pid, os.WSTOPPED | os.WNOWAIT)


class SqliteStore(FencedStore):
    """A store in a file."""

    def install(self) -> None:
        FencedWriter.install(Path(self.address))

    def write(self, terms: Mapping[int, int]) -> dict[int, int]:
        return self._writer.write(terms)[1]

    def admit(self, term: int) -> None:
        with self._opened:
            fence.admit(self._opened, "partition 0", term)

    def admitted(self) -> int:
        return fence.admitted(self._opened, "partition 0") or 0

    @property
    def writes(self) -> Writes:
        return writes_in(Path(self.address))

    def stop_between_writes(self, process: MemberProcess) -> None:
        self._opened.execute("BEGIN IMMEDIATE")  # No other process writes from here on.
        super().stop_between_writes(process)
        self._opened.rollback()

    @cached_property
    def _writer(self) -> FencedWriter:
        return FencedWriter(Path(self.address), self._process)

    @cached_property
    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self.address, timeout=60)


class RedisStore(FencedStore):
    """A server in which each write is one step, whatever happens to the process that requested it."""

    def install(self) -> None:
        pass

    def write(self, terms: Mapping[int, int]) -> dict[int, int]:
        refused = {}
        for number, term in terms.items():
            row = json.dumps((number, term, self._process))
            try:
                redis_fence.admit(self._opened, f"partition {number}", term, ("RPUSH", "writes", row))
            except fence.Refused:
                refused[number] = term
                self._opened.rpush("refusals", json.dumps((self._process, number, term)))
        return refused

    def admit(self, term: int) -> None:
        redis_fence.admit(self._opened, "partition 0", term)

    def admitted(self) -> int:
        return redis_fence.admitted(self._opened, "partition 0") or 0

    @property
    def writes(self) -> Writes:
        rows = [tuple(json.loads(row)) for row in self._opened.lrange("writes", 0, -1)]
        return judged(rows, [tuple(json.loads(row)) for row in self._opened.lrange("refusals", 0, -1)])

    @cached_property
    def _opened(self) -> Any:
        import redis  # noqa: PLC0415 - a worker that writes elsewhere does not need it.

        return redis.Redis.from_url(self.address)


class Heedless:
    """A program that goes on under each term that it was given, until the fence refuses it."""

    def __init__(self, store: FencedStore) -> None:
        self._store = store
        self._terms: dict[int, int] = {}

    def write(self, terms: Mapping[int, int]) -> None:
        self._terms.update(terms)
        for number in self._store.write(self._terms):
            del self._terms[number]


def store_at(address: str, process: str = "test") -> FencedStore:
    return (RedisStore if address.startswith("unix:") else SqliteStore)(address, process)


def main(address: str, order: str) -> int:
    """Be the member that `order` describes, and write for every partition that it ever led."""
    told = json.loads(order)
    with store_at(address, Path(told["notes"]).stem) as store:
        return worker.main(told, act=Heedless(store).write)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
