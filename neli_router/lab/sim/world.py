"""The world of a simulation: the only clock, the only dice, and a list of what happens next.

    events, by time --run--> action(...) --note--> transcript (the last lines) and trace (a hash of all lines)
         ^                      |
         '---------- at --------'                  member's clock = offset + rate * time, the rate within the drift

Nothing in a simulation asks the host for the time, for randomness or for the order of a set. So a seed always gives the
same run, on any machine, and every violation can be reproduced as often as needed. The trace proves it: two runs of one
seed that differ anywhere end with different hashes, and a test compares them across processes.

Members never see `now`. Each has a `LocalClock`; only its rate is promised to them, and only within bounds.
"""

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from random import Random
from typing import NamedTuple

__all__ = ["LINES_MAX", "LocalClock", "TraceLine", "Violation", "World", "draw_clock"]

LINES_MAX = 400
"""How many lines of a run are kept for a transcript. The cause of a violation is rarely further back than this."""

OFFSET_MAX = 100_000.0
"""Members' clocks start anywhere below this, so that a comparison across hosts fails visibly."""


class Violation(Exception):
    """A promise was broken. `rule` names the checker that noticed."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule, self.message = rule, message

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        return type(self), (self.rule, self.message)


class TraceLine(NamedTuple):
    """One thing that happened. `details` are rendered only when the line is printed."""

    time: float
    who: str
    what: str
    details: tuple[object, ...]


class World:
    """Virtual time. `random` is for the simulation only: each machine gets its own Random, drawn from it."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.lines: deque[TraceLine] = deque(maxlen=LINES_MAX)
        self._events: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._scheduled = 0
        self._trace = hashlib.blake2b(digest_size=8)

    @property
    def trace(self) -> str:
        """The hash of everything noted so far."""
        return self._trace.hexdigest()

    def at(self, time: float, action: Callable[..., object], *arguments: object) -> None:
        """Call `action` at `time`, or now if that has passed. Actions of the same time run in the order of calls."""
        self._scheduled += 1
        heappush(self._events, (max(time, self.now), self._scheduled, action, arguments))

    def run(self, until: float) -> None:
        """Run everything that is due before `until`."""
        while self._events and self._events[0][0] < until:
            self.now, _, action, arguments = heappop(self._events)
            action(*arguments)
        self.now = until

    def note(self, who: str, what: str, *details: object) -> None:
        """Record that `who` did `what`. Both go into the trace; `details` only explain it to people."""
        self.lines.append(TraceLine(self.now, who, what, details))
        self._trace.update(f"{self.now!r} {who} {what}\n".encode())

    def include(self, payload: bytes) -> None:
        """Add `payload` to the trace."""
        self._trace.update(payload)


class LocalClock:
    """One host's clock: a line with kinks. `rates` are pairs of a time and the rate from then on, the first at 0."""

    def __init__(self, offset: float, rates: Sequence[tuple[float, float]]) -> None:
        self._starts = [start for start, _ in rates]
        self._rates = [rate for _, rate in rates]
        passed = ((after[0] - before[0]) * before[1] for before, after in pairwise(rates))
        self._readings = list(accumulate(passed, initial=offset))

    def at(self, time: float) -> float:
        """The clock's reading at `time`."""
        piece = bisect_right(self._starts, time) - 1
        return self._readings[piece] + (time - self._starts[piece]) * self._rates[piece]

    def when(self, reading: float) -> float:
        """The time at which the clock shows `reading`."""
        piece = max(0, bisect_right(self._readings, reading) - 1)
        return self._starts[piece] + (reading - self._readings[piece]) / self._rates[piece]


def draw_clock(random: Random, *, drift: float, stepping: bool, horizon: float) -> LocalClock:
    """A clock whose rate is off by at most `drift`. Often it is off by exactly that much, because there it hurts."""
    starts = [0.0]
    if stepping:
        starts += sorted(random.uniform(0.0, horizon) for _ in range(random.randint(1, 5)))
    rates = [1.0 + drift * random.choice((-1.0, 1.0, random.uniform(-1.0, 1.0))) for _ in starts]
    return LocalClock(random.uniform(0.0, OFFSET_MAX), list(zip(starts, rates, strict=True)))
