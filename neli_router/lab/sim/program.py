"""A simulated program: it does what its member asks, in its own time, and believes every event.

    Acquired --> working --Revoked--> finishing --after a while, or never--> Released
                    |                     |
                    '------- Fenced ------'--> stopped immediately

A real program believes its events. So their order is a separate promise, on top of what the machine may do: nothing is
acquired twice under one term, nothing is lost that was not held, and once the member has stopped nothing is held. That
holds for every protocol.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol

from neli_router.lab.sim.world import Violation
from neli_router.protocols.protocol import Acquired, Fenced, News, Released, Revoked, Standby, Stopped

__all__ = ["Habits", "Program"]


class Habits(Protocol):
    """How programs answer Revoked in a run. Times are in the unit of each kind of run."""

    @property
    def answer(self) -> float: ...
    @property
    def hang(self) -> float: ...
    @property
    def exclusive(self) -> bool: ...


class Program:
    """One process's program. `later(seconds, event)` posts an event to the machine after a while."""

    def __init__(
        self, label: str, habits: Habits, unit: float, random: Random, later: Callable[[float, Released], None]
    ) -> None:
        self.held: dict[int, int] = {}
        """Partition -> term, for everything it acquired and has not stopped acting for."""
        self.asked: set[tuple[int, int]] = set()
        """Partition and term, for everything it was ever asked to let go of."""
        self.let_go: set[tuple[int, int]] = set()
        """The part of `asked` that it finished in time."""
        self.standby: tuple[int, ...] = ()
        """The partitions that it stands by for, by the latest event."""
        self.prompt = False
        """Whether it always answers immediately, as every program does in phase two."""
        self._label, self._habits, self._unit = label, habits, unit
        self._random, self._later = random, later
        self._finishing: dict[int, int] = {}
        self._released: dict[int, int] = {}

    def hear(self, news: News) -> None:
        """Take `news` from the pump."""
        match news:
            case Acquired(terms=terms):
                for partition, term in terms.items():
                    if self.held.get(partition, -1) >= term:
                        self._object(f"got Acquired twice for {partition} under {term}", terms)
                self.held.update(terms)
                for partition in terms:
                    self._finishing.pop(partition, None)
                    self._released.pop(partition, None)
            case Revoked(terms=terms):
                self._require_held("Revoked", terms)
                self.asked.update(terms.items())
                if not self._habits.exclusive:  # Its successor already leads: no need to wait.
                    self._drop(terms)
                    return
                self._finishing.update(terms)
                if self.prompt or self._random.random() >= self._habits.hang:
                    mean = 0.0 if self.prompt else self._habits.answer * self._unit
                    self._later(self._random.expovariate(1 / mean) if mean else 0.0, Released(terms))
            case Fenced(terms=terms):
                self._require_held("Fenced", {i: v for i, v in terms.items() if self._released.get(i) != v})
                self._drop(terms)
            case Standby(partitions):
                self.standby = partitions
            case Stopped():
                if self.held:
                    self._object("was left in the belief that it holds these when its member ended", self.held)
            case _:
                pass

    def release(self, terms: Mapping[int, int]) -> Released:
        """Finish what was revoked, unless it was fenced meanwhile. From here on the program does nothing for it."""
        done = {i: term for i, term in terms.items() if self._finishing.get(i) == term}
        self._drop(done)
        self.let_go.update(done.items())
        self._released.update(done)
        return Released(terms)

    def _drop(self, terms: Mapping[int, int]) -> None:
        for partition, term in terms.items():
            if self.held.get(partition) == term:
                del self.held[partition]
                self._finishing.pop(partition, None)

    def _require_held(self, what: str, terms: Mapping[int, int]) -> None:
        if any(self.held.get(partition) != term for partition, term in terms.items()):
            self._object(f"got {what} for what it does not hold", terms)

    def _object(self, message: str, terms: Mapping[int, int]) -> None:
        raise Violation("events_in_order", f"the program of {self._label} {message}: {dict(terms)}, held {self.held}")
