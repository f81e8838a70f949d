"""The simulated program: it does what it is told, in its own time, and notices when it is told nonsense.

    Acquired --> working --Revoked--> finishing --after a while, or never--> Released
                    |                     |
                    '------- Fenced ------'--> stopped at once

A real program believes its events. So their order is a promise of its own, beside what the machine may do: nothing is
acquired twice under one term, nothing is lost that was not held, and once it is over nothing is held.
"""

from collections.abc import Callable, Mapping
from random import Random

from neli_router.protocol import Acquired, Effect, Fenced, Released, Revoked, Stopped
from neli_router.sim.options import Options
from neli_router.sim.world import Violation

__all__ = ["Program"]


class Program:
    """One process's program. `later(seconds, event)` posts an event to the machine after a while."""

    def __init__(self, label: str, options: Options, random: Random, later: Callable[[float, Released], None]) -> None:
        self.held: dict[int, int] = {}
        """Partition -> term, for all that it was told it may act for and has not stopped to act for."""
        self.prompt = False
        """Whether it answers at once and always: in phase two nobody dawdles."""
        self._label, self._options, self._random, self._later = label, options, random, later
        self._finishing: dict[int, int] = {}
        self._released: dict[int, int] = {}

    def hear(self, effect: Effect) -> None:
        """The pump tells `effect`."""
        match effect:
            case Acquired(terms):
                for partition, term in terms.items():
                    if self.held.get(partition, -1) >= term:
                        self._object(f"was told twice that it acquired {partition} under {term}", terms)
                self.held.update(terms)
                for partition in terms:
                    self._finishing.pop(partition, None)
                    self._released.pop(partition, None)
            case Revoked(terms):
                self._require_held("Revoked", terms)
                if not self._options.exclusive:  # Its successor was heard already, so there is nothing to wait for.
                    self._drop(terms)
                    return
                self._finishing.update(terms)
                if self.prompt or self._random.random() >= self._options.hang:
                    mean = 0.0 if self.prompt else self._options.answer * self._options.lease
                    self._later(self._random.expovariate(1 / mean) if mean else 0.0, Released(terms))
            case Fenced(terms):
                self._require_held("Fenced", {i: v for i, v in terms.items() if self._released.get(i) != v})
                self._drop(terms)
            case Stopped():
                if self.held:
                    self._object("was left in the belief that it holds these when its member ended", self.held)
            case _:
                pass

    def release(self, terms: Mapping[int, int]) -> Released:
        """It has finished what was revoked, unless it was fenced in the meantime. From here on it does nothing."""
        done = {i: term for i, term in terms.items() if self._finishing.get(i) == term}
        self._drop(done)
        self._released.update(done)
        return Released(terms)

    def _drop(self, terms: Mapping[int, int]) -> None:
        for partition, term in terms.items():
            if self.held.get(partition) == term:
                del self.held[partition]
                self._finishing.pop(partition, None)

    def _require_held(self, what: str, terms: Mapping[int, int]) -> None:
        if any(self.held.get(partition) != term for partition, term in terms.items()):
            self._object(f"was told {what} of what it did not hold", terms)

    def _object(self, message: str, terms: Mapping[int, int]) -> None:
        raise Violation("events_in_order", f"the program of {self._label} {message}: {dict(terms)}, held {self.held}")
