"""Ours: a group that shares everything evenly, and how long a member's partitions are led by nobody after its end.

with balanced(lease, sizes) as (group, chronicle):       real processes on one ledger, settled
    takeover(group, life)                                kill -9 ... a survivor holds a lease of the last partition
    with Ours(lease, sizes) as ours: ...                 the same as the peers are asked, see `contest`
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks._processes.chronicle import Chronicle
from benchmarks._processes.group import Group, Life
from benchmarks._processes.notes import Acts
from benchmarks._processes.places import options_at
from neli_router.errors import LedgerUnavailable
from neli_router.ledgers.base import Entry, Ledger
from neli_router.router.router import Router

__all__ = ["Ours", "Sizes", "balanced", "busy_cores", "led_elsewhere", "patient_read", "takeover"]

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
class Sizes:
    members: int
    partitions: int
    there: str = ""
    """Where the ledger is to be; see `place`."""


@contextmanager
def balanced(lease: float, sizes: Sizes, **how: Any) -> Iterator[tuple[Group, Chronicle]]:
    """A group that shares everything evenly, and a reader of its ledger. `how` is for each start of a process."""
    with tempfile.TemporaryDirectory(prefix="neli-failover-") as folder:
        pause = lease / ROUNDS_PER_LEASE
        options = options_at(sizes.there, "failover")
        with Group(Path(folder), partitions=sizes.partitions, pause=pause, lease=lease, **options) as group:
            chronicle = Chronicle(group.ledger)
            try:
                for number in range(sizes.members):
                    group.start(f"m{number + 1}", **how)
                group.settle()
                yield group, chronicle
            finally:
                chronicle.close()


def takeover(group: Group, victim: Life) -> float:
    """Kill `victim`; seconds until somebody else leads the last of its partitions."""
    group.read_notes()
    leads = dict(victim.leads)
    killed_at = victim.kill()
    return led_elsewhere(group, victim, leads) - killed_at


def led_elsewhere(group: Group, victim: Life, leads: dict[int, int]) -> float:
    """Wait until others act for all of `leads`, partition -> term; when the last of them began to, by its clock."""
    led_at: dict[int, float] = {}
    for fresh in group.watch(f"the partitions of {victim.label} were to be led by others"):
        acts = [note for label, notes in fresh.items() if label != victim.label for note in notes]
        for note in acts:
            if isinstance(note, Acts):
                for partition in note.terms.keys() & leads.keys():
                    if note.terms[partition] > leads[partition]:
                        led_at.setdefault(partition, note.since)
        if led_at.keys() >= leads.keys():
            break
    return max(led_at.values())


class Ours:
    """A group of ours, asked as the peers are. `false_expiries` counts partitions that moved without a kill."""

    def __init__(self, lease: float, sizes: Sizes) -> None:
        self._lease, self._sizes = lease, sizes
        self._stack = ExitStack()
        self.false_expiries = 0

    def __enter__(self) -> Self:
        self._group, _ = self._stack.enter_context(balanced(self._lease, self._sizes))
        self._present = {life.name: life for life in self._group.lives}
        # Nothing moves in a settled group unless somebody is expired.
        router = self._stack.enter_context(Router(self._group.ledger))
        self._watch = router.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look(self) -> None:
        """Count what moved although nobody was killed."""
        self._group.read_notes()
        while self._watch.take(0.0) is not None:
            self.false_expiries += 1

    def takeover(self, rng: random.Random) -> float:
        """Kill a member at a random moment; seconds until the last of its partitions is led by another."""
        self._group.read_notes()
        time.sleep(self._lease * rng.random())
        victim = rng.choice(sorted(self._present))
        took = takeover(self._group, self._present[victim])
        self._present[victim] = self._group.start(victim)
        self._group.settle()
        return took


def patient_read(ledger: Ledger, timeout: float) -> list[Entry]:
    """What can be read now; nothing while the ledger is away, as on a machine that is far too busy."""
    try:
        return ledger.read(timeout)
    except LedgerUnavailable:
        return []


@contextmanager
def busy_cores() -> Iterator[None]:
    """An endless loop beside us on each core."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
