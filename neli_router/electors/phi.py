"""Phi-accrual suspicion: how unlikely it is that a peer which lives has been silent for so long.

    signs of life   |  |   | |  |    |  |                 now
                    '------ window -----'------ gap -------'       phi = -log10 P(a longer gap than this one)

The intervals between the last signs are taken for draws of a *normal* distribution (Hayashibara and others, 2004). The
other usual choice, an exponential one, has no memory, so that a peer which is heard every interval like clockwork would
get phi = 8 only after eighteen intervals. That is longer than P need be. Signs of life that travel by gossip are not
memoryless: a peer speaks once an interval, and what is furthest behind is told first, so long gaps are rare.

A normal distribution has thin tails, and a window without variation would make any delay suspicious. So the deviation
counts as at least `deviation_min`. A false suspicion does little harm here: the favourite is not declared afresh until
it is heard again, and is given up only after P.

phi rises with the gap, so `phi >= phi_max` is the same as a gap above a limit: `mean + z * deviation`, where z follows
from `phi_max` alone. So nobody computes phi at each look.
"""

from functools import cache
from math import erfc, inf, log10, sqrt

__all__ = ["Accrual", "phi", "z_of"]


def phi(gap: float, mean: float, deviation: float) -> float:
    """How suspicious a gap is: 1 is wrong once in ten times, 8 once in a hundred millions."""
    chance = erfc((gap - mean) / deviation / sqrt(2)) / 2
    return -log10(chance) if chance > 0 else inf


@cache
def z_of(phi_max: float) -> float:
    """How many deviations above the mean a gap is when phi reaches `phi_max`."""
    low, high = -40.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if phi(middle, 0.0, 1.0) < phi_max else (low, middle)
    return high


class Accrual:
    """One peer's signs of life. Before the first interval, it is taken to be `mean_first` and no more regular."""

    __slots__ = ("_at", "_deviation_min", "_intervals", "_limit", "_squares", "_sum", "_window", "_z", "last")

    def __init__(self, *, phi_max: float, window: int, mean_first: float, deviation_min: float) -> None:
        self.last = -inf
        """When it was last heard of; never, before it was."""
        self._z, self._window, self._deviation_min = z_of(phi_max), window, deviation_min
        self._intervals = [mean_first]
        self._at = 1 % window
        self._sum, self._squares = mean_first, mean_first * mean_first
        self._limit: float | None = mean_first + self._z * max(mean_first, deviation_min)

    def sign(self, now: float) -> None:
        """It lives at `now`, which never goes back."""
        interval = now - self.last
        self.last = now
        if interval == inf:
            return
        intervals, at = self._intervals, self._at
        if len(intervals) < self._window:
            intervals.append(interval)
            self._sum += interval
            self._squares += interval * interval
        else:
            old = intervals[at]
            intervals[at] = interval
            self._sum += interval - old
            self._squares += interval * interval - old * old
        self._at = at = at + 1 if at + 1 < self._window else 0
        if not at:  # Rounding errors of a hundred thousand additions would add up.
            self._sum, self._squares = sum(intervals), sum(each * each for each in intervals)
        self._limit = None

    def is_alive(self, now: float) -> bool:
        """Whether phi is below its bound at `now`; not before the first sign."""
        return now < self.until

    @property
    def until(self) -> float:
        """When phi meets its bound, if nothing is heard; `-inf` before the first sign."""
        limit = self._limit
        if limit is None:
            mean = self._sum / len(self._intervals)
            variance = self._squares / len(self._intervals) - mean * mean
            deviation = max(sqrt(max(variance, 0.0)), self._deviation_min)
            limit = self._limit = mean + self._z * deviation
        return self.last + limit
