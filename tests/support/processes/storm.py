"""A storm: faults for a group of processes, one after another, drawn from a seed. A subclass has the faults.

A fault has begun when it is given to the storm, which undoes it when its time is over. At the end all faults are undone
together: what was stopped goes on, what was killed comes back. The seed fixes what is drawn. The result also depends on
the machine, so a seed that failed is a good place to look, but not a guarantee.

A process may end on its own while it cannot reach its ledger. Then another is started, like a supervisor would do, and
the logs of all such processes are kept for the test to judge.
"""

import heapq
import random
import time
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import NamedTuple

from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import MemberProcess, ProcessGroup

__all__ = ["BaseStorm", "Fault", "Injected"]

LATE_MAX = 180.0
"""Seconds by which a storm may last longer, until it has met every kind of fault and there was something to see: on a
busy machine, little happens, and servers that come back slowly hold up the faults that wait for them."""

ASK_EVERY = 2.0
"""Seconds between two checks whether there was. Each check judges all notes."""

LOOK_EVERY = 0.03
"""Seconds between two looks at notes, and at what is due."""


class Fault(NamedTuple):
    """It has begun, and ends after `seconds`, when everything in `undo` is called."""

    kind: str
    whom: str
    seconds: float
    undo: Sequence[Callable[[], object]]


class Injected(NamedTuple):
    """A fault after it has ended."""

    kind: str
    whom: str
    seconds: float


class BaseStorm:
    """`kinds` are those that must have occurred before the storm ends."""

    PAUSES = (0.5, 2.5)
    """The shortest and the longest time between two faults, in leases."""

    def __init__(
        self, group: ProcessGroup, names: Sequence[str], kinds: Collection[str], *, lease: float, seed: int
    ) -> None:
        self.lease = lease
        self.injected: list[Injected] = []
        self.ended: list[str] = []
        """The log of each process that ended on its own."""
        self._group, self._names, self._unmet = group, list(names), set(kinds)
        self._rng = random.Random(seed)
        self._present: dict[str, MemberProcess] = {}
        self._out: set[str] = set()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()  # Two actions due at the same time run in the order they were drawn.

    def start(self, name: str) -> None:
        raise NotImplementedError

    def _strike(self) -> None:
        """Begin a fault, if that is possible now."""
        raise NotImplementedError

    def _rage(self, seconds: float, seen: Callable[[], object]) -> None:
        """Strike for `seconds`, and longer until all kinds have occurred and the storm has `seen` something."""
        strike_at = host_clock()
        end = strike_at + seconds
        give_up_at = end + LATE_MAX
        try:
            while (now := host_clock()) < give_up_at:
                if now >= end:
                    if not self._unmet and seen():
                        break
                    end = now + ASK_EVERY
                if now >= strike_at:
                    self._strike()
                    strike_at = host_clock() + self.lease * self._rng.uniform(*self.PAUSES)
                self._look()
        finally:
            self._undo_all()

    def _end_later(self, fault: Fault, out: Collection[str]) -> None:
        began_at = host_clock()
        self._out.update(out)

        def end() -> None:
            for act in fault.undo:
                act()
            self._out.difference_update(out)
            self.injected.append(Injected(fault.kind, fault.whom, host_clock() - began_at))

        heapq.heappush(self._due, (began_at + fault.seconds, next(self._order), end))

    def _undo_all(self) -> None:
        while self._due:
            heapq.heappop(self._due)[2]()

    def _look(self) -> None:
        """Do what is due, read new notes, and restart processes that ended on their own."""
        while self._due and self._due[0][0] <= host_clock():
            heapq.heappop(self._due)[2]()
        self._group.read_notes()
        for name, process in self._present.items():
            if name not in self._out and not process.is_running:
                self.ended.append(f"{process.life.label} ended with {process.exit_code()}:\n{process.log}")
                self.start(name)
        time.sleep(LOOK_EVERY)
