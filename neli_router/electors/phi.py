"""Phi-accrual suspicion: how unlikely it is that a peer which lives has been silent for so long.

    signs of life   |  |   | |  |    |  |                 now
                    '------ window -----'------ gap -------'       phi = -log10 P(a longer gap than this one)

The intervals between the last signs are taken for draws of a *normal* distribution (Hayashibara and others, 2004). The
other usual choice, an exponential one, has no memory, so that a peer which is heard every interval like clockwork would
get phi = 8 only after eighteen intervals. That is longer than P need be. Signs of life that travel by gossip are not
memoryless: a peer speaks once an interval, and what is furthest behind is told first, so long gaps are rare.

*An outage is not learned.* A gap goes into the window with its limit at most. If an hour's outage counted with its
hour, nobody would be suspected for hours thereafter. Gaps that stay long are learned all the same, step by step.

*No limit is above `limit_max`.* A network that fails again and again would teach, step by step, that its outages say
nothing, and a leader would stay everybody's favourite in each of them, though it leads no more.

A normal distribution has thin tails, and a window without variation would make any delay suspicious. So the deviation
counts as at least `deviation_min`. A false suspicion does little harm here: the favourite is not declared afresh until
it is heard again, and is given up only after P.

phi rises with the gap, so `phi >= phi_max` is the same as a gap above a limit: `mean + z * deviation`, where z follows
from `phi_max` alone. So nobody computes phi at each look. Nor is the limit computed with each sign: signs come by the
thousand, and few are asked about. A peer that was heard less than `z * deviation_min` ago needs no window at all. So
signs are only noted as they come, and go into their windows many at a time: a hundred windows fit into no cache.
"""

from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import erfc, inf, log10, sqrt

__all__ = ["Signs", "phi", "z_of"]

NOTED_MAX = 100
"""Times of signs that wait for their windows: with more, none is written any cheaper."""


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


class Signs:
    """Peers' signs of life. Before a peer's first interval, it is taken to be `mean_first` and no more regular."""

    def __init__(
        self, size: int, *, phi_max: float, window: int, mean_first: float, deviation_min: float, limit_max: float
    ) -> None:
        self.last = [-inf] * size
        """When each peer was last heard of; `-inf` before its first sign."""
        self._z, self._window, self._mean_first, self._deviation_min = z_of(phi_max), window, mean_first, deviation_min
        self._limit_max = limit_max
        self.least = min(self._z * deviation_min, limit_max)
        """Whoever was heard less than this ago seems alive, however regular it is."""
        self._times = [deque[float](maxlen=window + 1) for _ in range(size)]
        self._noted: list[tuple[float, Sequence[int]]] = []
        """When who was heard, as far as it is not in the windows yet."""
        self._limits = [(-inf, 0.0)] * size
        """Of each peer, a sign, and the limit that was computed when it was the last one."""

    def forget(self, place: int) -> None:
        """Another process runs at this place from now on."""
        self._write_down()
        self.last[place] = -inf
        self._times[place].clear()
        self._limits[place] = -inf, 0.0

    def sign(self, places: Sequence[int], now: float) -> None:
        """These live at `now`, which never goes back."""
        last = self.last
        for place in places:
            last[place] = now
        self._noted.append((now, places))
        if len(self._noted) == NOTED_MAX:
            self._write_down()

    def is_alive(self, place: int, now: float) -> bool:
        """Whether phi is below its bound at `now`; not before the first sign."""
        return now < self.last[place] + self.least or now < self.until(place)

    def until(self, place: int) -> float:
        """When phi meets its bound, if nothing is heard; `-inf` before the first sign."""
        last = self.last[place]
        computed_at, limit = self._limits[place]
        if computed_at != last:
            self._write_down()
            limit = self._limit(self._times[place])
            self._limits[place] = last, limit
        return last + limit

    def _write_down(self) -> None:
        windows, least = self._times, self.least
        for now, places in self._noted:
            for place in places:
                times = windows[place]
                if times and now > times[-1] + least and (excess := now - times[-1] - self._limit(times)) > 0:
                    times = windows[place] = deque((at + excess for at in times), maxlen=self._window + 1)
                times.append(now)
        self._noted.clear()

    def _limit(self, times: deque[float]) -> float:
        """The gap after these signs at which phi meets its bound."""
        intervals = [after - before for before, after in pairwise(times)]
        if len(intervals) < self._window:
            intervals.append(self._mean_first)
        mean = sum(intervals) / len(intervals)
        variance = sum((each - mean) ** 2 for each in intervals) / len(intervals)
        least = self._deviation_min if len(intervals) > 1 else max(self._mean_first, self._deviation_min)
        return min(mean + self._z * max(sqrt(variance), least), self._limit_max)
