"""Ticks as an exchange sends them: quotes and trades of currency pairs and shares. The same seed gives the same ticks.

    seed --> instruments, busy ones and quiet ones --> interval 1 --> interval 2 --> ...     a minute of trading each

| column | meaning |
| --- | --- |
| instrument | `EUR/USD`, `QXLM`: the key by which owners are found |
| sequence | counts the ticks of one instrument from 0 without a gap, as exchanges do: a lost or a doubled tick shows |
| at | the time of the event, in microseconds, UTC |
| bid, ask | the best quotes |
| price, size | the trade, at one of the two quotes |

Activity follows Zipf's law: a few instruments make most of the ticks. Prices are random walks, rounded to the
instrument's increment. Sizes are whole numbers, and prices are only ever compared, never added up: so two results can
be compared exactly.
"""

import string
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations

import numpy as np
import pyarrow as pa

from neli_router.errors import ConfigError

__all__ = ["SCHEMA", "Market"]

SCHEMA = pa.schema(
    [
        pa.field("instrument", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("bid", pa.float64(), nullable=False),
        pa.field("ask", pa.float64(), nullable=False),
        pa.field("price", pa.float64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
    ]
)

OPENING = int(datetime(2026, 1, 5, 8, tzinfo=UTC).timestamp()) * 1_000_000
"""When trading begins: a Monday morning, in microseconds."""

ZIPF = 1.1
"""The n-th busiest instrument has 1/n**ZIPF of the ticks of the busiest. Raising it concentrates ticks on fewer."""

CURRENCIES = ("EUR", "GBP", "AUD", "NZD", "USD", "CAD", "CHF", "JPY")
"""In the order in which the market names pairs: EUR/USD, never USD/EUR."""

DOLLAR, YEN = "USD", "JPY"
SHARE_LETTERS = 4

VOLATILITY = 2e-5
"""The standard deviation of one tick's price change, as a fraction of the price."""

NARROW = 0.6
"""The chance of each quote to be one increment from the middle; otherwise two, with the same chance, and so on."""

MIDDLE_MIN = 2
"""The lowest middle price, in increments: below it, a bid would not fit."""


class Market:
    """One market, from its opening on. Each call of `interval` continues where the last one ended. Not thread-safe."""

    def __init__(self, *, seed: int = 1, instruments: int = 500, seconds: float = 60.0) -> None:
        if instruments < 1 or seconds <= 0:
            raise ConfigError([f"instruments={instruments} and seconds={seconds:g} must be above 0"])
        self._random = np.random.default_rng(seed)
        self._seconds = seconds
        self.instruments = _names(self._random, instruments)
        """Busiest first."""
        self.intervals = 0
        """Number of intervals made so far."""
        are_pairs = np.array(["/" in name for name in self.instruments])
        are_yen = np.array([name.endswith(YEN) for name in self.instruments])
        self._decimals = np.where(are_yen, 3, np.where(are_pairs, 5, 2))
        first = np.where(are_yen, 150.0, np.where(are_pairs, 1.1, np.exp(self._random.normal(4, 1, instruments))))
        self._walks = np.log(first * self._random.uniform(0.8, 1.25, instruments))
        self._lots = np.where(are_pairs, 100_000, 1)
        self._counts = np.zeros(instruments, dtype=np.int64)
        shares = 1 / np.arange(1, instruments + 1) ** ZIPF
        self._shares = shares / shares.sum()

    def interval(self, ticks: int) -> pa.Table:
        """The next interval: `ticks` ticks, ordered by time."""
        random = self._random
        chosen = random.choice(len(self._shares), size=ticks, p=self._shares)
        begins = OPENING + round(self.intervals * self._seconds * 1e6)
        at = begins + np.sort(random.integers(0, max(1, round(self._seconds * 1e6)), ticks))
        changes = random.normal(0, VOLATILITY, ticks)
        # Group the ticks by instrument, ordered by time within each: a walk is then one sum along the column.
        order = np.argsort(chosen, kind="stable")
        sizes = np.bincount(chosen, minlength=len(self._shares))
        starts = np.cumsum(sizes) - sizes
        walked = np.cumsum(changes[order])
        before = np.concatenate(([0.0], walked))[starts]
        rank, walk = np.empty(ticks, dtype=np.int64), np.empty(ticks)
        rank[order] = np.arange(ticks) - np.repeat(starts, sizes)
        walk[order] = walked - np.repeat(before, sizes)
        walk += self._walks[chosen]
        sequence = self._counts[chosen] + rank
        self._walks += np.concatenate(([0.0], walked))[starts + sizes] - before
        self._counts += sizes
        self.intervals += 1

        # A whole number divided by a power of ten is exactly the float that the decimal number is parsed as.
        unit = 10.0 ** self._decimals[chosen]
        middle = np.maximum(np.rint(np.exp(walk) * unit), MIDDLE_MIN)
        bid = np.maximum(middle - random.geometric(NARROW, ticks), 1) / unit
        ask = (middle + random.geometric(NARROW, ticks)) / unit
        size = self._lots[chosen] * np.ceil(random.lognormal(1, 1, ticks)).astype(np.int64)
        columns = [
            pa.array(self.instruments).take(pa.array(chosen)),
            pa.array(sequence),
            pa.array(at, pa.timestamp("us", "UTC")),
            pa.array(bid),
            pa.array(ask),
            pa.array(np.where(random.random(ticks) < 0.5, bid, ask)),
            pa.array(size),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def split(self, ticks: int, intervals: int) -> Iterator[pa.Table]:
        """Make `ticks` ticks in all, in `intervals` intervals of equal size, up to rounding."""
        for number in range(intervals):
            yield self.interval(ticks * (number + 1) // intervals - ticks * number // intervals)


def _names(random: np.random.Generator, count: int) -> list[str]:
    """`count` instruments: pairs and shares alternate, dollar pairs first, until the pairs run out."""
    pairs = sorted(
        (f"{one}/{other}" for one, other in combinations(CURRENCIES, 2)), key=lambda pair: DOLLAR not in pair
    )
    pairs = pairs[: (count + 1) // 2]
    shares: dict[str, None] = {}
    while len(shares) < count - len(pairs):
        shares["".join(random.choice(list(string.ascii_uppercase), SHARE_LETTERS))] = None
    paired = [name for both in zip(pairs, shares, strict=False) for name in both]
    return [*paired, *pairs[len(shares) :], *list(shares)[len(pairs) :]]
