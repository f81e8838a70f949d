"""Phi-accrual suspicion: how unlikely it is that a living peer has been silent for this long.

    signs of life   |  |   | |  |    |  |                 now
                    '------ window -----'------ gap -------'       phi = -log10 P(a longer gap than this one)

The intervals between the last signs are treated as samples of a *normal* distribution (Hayashibara and others, 2004).
The other usual choice, an exponential one, has no memory, so a peer that is heard every interval like clockwork would
reach phi = 8 only after eighteen intervals. That is longer than P need be. Signs of life that travel by gossip are not
memoryless: a peer speaks once an interval, and the states furthest behind are sent first, so long gaps are rare.

*An outage is not learned.* A gap enters the window capped at its limit. If an outage of an hour counted in full, no
peer would be suspected for hours afterwards. Gaps that stay long are learned all the same, step by step.

*No limit is above `limit_max`.* A network that fails repeatedly would teach, step by step, that its outages mean
nothing. A leader would then stay every member's favourite during each outage, although it no longer leads.

A normal distribution has thin tails, and a window without variation would make any delay suspicious. So the deviation
counts as at least `deviation_min`. A false suspicion does little harm here: the favourite is not declared again until
it is heard again, and it is given up only after P.

phi rises with the gap, so `phi >= phi_max` is the same as a gap above a limit: `mean + z * deviation`, where z follows
from `phi_max` alone. So phi need not be computed at each look. The limit is not computed at each sign, either: signs
come by the thousand, and few are asked about. A peer that was heard less than `z * deviation_min` ago needs no window
at all. A gap is compared with the limit that was computed last, and with the present one only if it is longer.
"""

from collections import deque
from collections.abc import Iterable
from functools import cache
from math import dist, erfc, inf, log10, sqrt

__all__ = ["Signs", "phi", "z_of"]


def phi(gap: float, mean: float, deviation: float) -> float:
    """How suspicious a gap is: 1 is wrong once in ten times, 8 once in a hundred million."""
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
    """Peers' signs of life. Before its first interval, a peer is assumed to have `mean_first`, at most as regular."""

    def __init__(
        self, size: int, *, phi_max: float, window: int, mean_first: float, deviation_min: float, limit_max: float
    ) -> None:
        self.last = [-inf] * size
        """When each peer was last heard; `-inf` before its first sign."""
        self._z, self._window, self._mean_first, self._deviation_min = z_of(phi_max), window, mean_first, deviation_min
        self._limit_max = limit_max
        self.least = min(self._z * deviation_min, limit_max)
        """A peer that was heard less than this ago seems alive, however regular it is."""
        self._times = [deque[float](maxlen=window + 1) for _ in range(size)]
        self._limits = [self.least] * size
        """For each peer, the limit that was computed last."""

    def forget(self, place: int) -> None:
        """Another process runs at this place from now on."""
        self.last[place], self._limits[place] = -inf, self.least
        self._times[place].clear()

    def sign(self, places: Iterable[int], now: float) -> None:
        """These peers are alive at `now`, which never goes back."""
        last, limits, times = self.last, self._limits, self._times
        for place in places:
            gap = now - last[place]
            if gap > limits[place] and times[place] and (excess := gap - self._limit(place)) > 0:
                times[place] = deque((at + excess for at in times[place]), maxlen=self._window + 1)
            last[place] = now
            times[place].append(now)

    def is_alive(self, place: int, now: float) -> bool:
        """Whether phi is below its bound at `now`; False before the first sign."""
        return now < self.last[place] + self.least or now < self.until(place)

    def until(self, place: int) -> float:
        """When phi reaches its bound if nothing is heard; `-inf` before the first sign."""
        return self.last[place] + self._limit(place) if self._times[place] else -inf

    def _limit(self, place: int) -> float:
        """The gap after its last sign at which phi reaches its bound."""
        at = list(self._times[place])
        number, total, squares = len(at) - 1, at[-1] - at[0], dist(at[1:], at[:-1]) ** 2
        if number < self._window:
            number, total, squares = number + 1, total + self._mean_first, squares + self._mean_first**2
        mean = total / number
        least = self._deviation_min if number > 1 else max(self._mean_first, self._deviation_min)
        deviation = sqrt(max(squares / number - mean**2, least**2))
        self._limits[place] = limit = min(mean + self._z * deviation, self._limit_max)
        return limit
