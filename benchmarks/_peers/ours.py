"""Ours: a group that shares everything evenly, and how long a killed member's partitions have no leader.

with balanced(lease, sizes) as (group, copy):            real processes on one ledger, settled
    takeover(group, process)                             kill -9 ... a survivor holds a lease of the last partition
    with Ours(lease, sizes) as ours: ...                 the same interface as the peers', see `contest`

With `is_witnessed`, the host's agent is their witness; without it, they have none.
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

from benchmarks._places import options_at
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.errors import LedgerUnavailable
from neli_router.lab.moves import History, history_of
from neli_router.lab.processes.group import MemberProcess, ProcessGroup, led_elsewhere
from neli_router.router.router import Router
from tests.support.agents.processes import AgentProcess
from tests.support.processes.ledger_copy import LedgerCopy

__all__ = ["Ours", "Sizes", "await_led_elsewhere", "balanced", "busy_cores", "patient_read", "takeover", "witness_of"]

ROUNDS_PER_LEASE = 4
"""How often a worker checks its leases and acts; it acts immediately for what it acquires."""

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
    """The place of the ledger; see `place`."""


def witness_of(folder: Path, partitions: int, options: dict[str, Any]) -> AgentProcess:
    """The host's agent. A member that starts before it has no witness."""
    return AgentProcess("witness", folder, "--weight", "0", layout={"partitions": partitions}, **options)


@contextmanager
def balanced(lease: float, sizes: Sizes, *, is_witnessed: bool = False) -> Iterator[tuple[ProcessGroup, LedgerCopy]]:
    """A group that shares everything evenly, and a copy of its ledger."""
    with tempfile.TemporaryDirectory(prefix="neli-failover-") as folder, ExitStack() as stack:
        options = {"ledger": f"sqlite://{folder}/ledger.db", "lease": lease, **options_at(sizes.there, "failover")}
        environment: dict[str, str] = {}
        if is_witnessed:
            environment = stack.enter_context(witness_of(Path(folder), sizes.partitions, options)).environment
        options |= {"pause": lease / ROUNDS_PER_LEASE, "witness": "agent" if is_witnessed else "none"}
        group = stack.enter_context(
            ProcessGroup(Path(folder), partitions=sizes.partitions, environment=environment, **options)
        )
        copy = stack.enter_context(LedgerCopy(group.ledger))
        for number in range(sizes.members):
            group.start(f"m{number + 1}")
        group.settle()
        yield group, copy


def takeover(group: ProcessGroup, victim: MemberProcess) -> float:
    """Kill `victim`; return seconds until others lead the last of its partitions."""
    # On a busy machine, a short lease may have run out a moment ago.
    group.wait_until(lambda: bool(victim.life.held), f"{victim.life.label} was to lead something")
    leads = list(victim.life.held)
    killed_at = victim.kill()
    return await_led_elsewhere(group, victim, leads, killed_at) - killed_at


def await_led_elsewhere(group: ProcessGroup, victim: MemberProcess, partitions: list[int], since: float) -> float:
    """Wait until others act for all of `partitions`; return when the last began to, after `since`, on its clock."""

    def is_led() -> bool:
        others = (it.life for it in group.processes if it is not victim and it.is_running)
        return {*partitions} <= {partition for life in others for partition in life.held}

    group.wait_until(is_led, f"the partitions of {victim.life.label} were to be led by others")
    return led_elsewhere(group.lives, victim.life, partitions, since)


class Ours:
    """A group of ours, with the interface of a rival. `false_expiries` counts moves of partitions without a kill."""

    def __init__(self, lease: float, sizes: Sizes, *, is_witnessed: bool = False) -> None:
        self._lease, self._sizes, self._is_witnessed = lease, sizes, is_witnessed
        self._stack = ExitStack()
        self.false_expiries = 0

    def __enter__(self) -> Self:
        self._group, self._copy = self._stack.enter_context(
            balanced(self._lease, self._sizes, is_witnessed=self._is_witnessed)
        )
        # Nothing moves in a settled group unless a member is expired.
        router = self._stack.enter_context(Router(self._group.ledger))
        self._watch = router.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look(self) -> None:
        """Count the partitions that moved although no member was killed."""
        self._group.read_notes()
        while self._watch.take(0.0) is not None:
            self.false_expiries += 1

    def takeover(self, rng: random.Random) -> float:
        """Kill a member at a random moment; return seconds until another leads the last of its partitions."""
        self._group.read_notes()
        time.sleep(self._lease * rng.random())
        running = self._group.running
        victim = rng.choice(sorted(running))
        took = takeover(self._group, running[victim])
        self._group.start(victim)
        self._group.settle()
        return took

    def leave(self) -> tuple[History, int]:
        """Let all leave; return the group's history from the ledger, and how often two acted at the same time."""
        self._group.leave()
        return history_of(self._copy.close()), len(self._group.verdict().overlaps)


def patient_read(ledger: Ledger, timeout: float) -> list[Entry]:
    """The entries that can be read now; none while the ledger is unreachable, as on a machine that is far too busy."""
    try:
        return ledger.read(timeout)
    except LedgerUnavailable:
        return []


@contextmanager
def busy_cores() -> Iterator[None]:
    """Run an endless loop on each core, next to us."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
