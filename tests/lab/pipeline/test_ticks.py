"""The market: ticks are as the docstring of `ticks` promises, and the same for the same seed."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from neli_router.errors import ConfigError
from neli_router.lab.pipeline.ticks import OPENING, SCHEMA, Market

TICKS, INTERVALS, SECONDS = 20_000, 7, 60.0


def made(seed: int) -> list[pa.Table]:
    return list(Market(seed=seed, instruments=50, seconds=SECONDS).split(TICKS, INTERVALS))


@pytest.fixture(scope="module", name="intervals")
def of_one_seed() -> list[pa.Table]:
    return made(1)


@pytest.fixture(scope="module", name="ticks")
def together(intervals: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(intervals)


def test_the_same_seed_gives_the_same_ticks_and_another_one_gives_others(intervals: list[pa.Table]) -> None:
    assert intervals == made(1)
    assert intervals != made(2)


def test_intervals_differ_by_at_most_one_tick_and_each_holds_its_own_minute_alone(intervals: list[pa.Table]) -> None:
    sizes = [interval.num_rows for interval in intervals]
    assert (TICKS, INTERVALS, True) == (sum(sizes), len(sizes), max(sizes) - min(sizes) <= 1)
    for number, interval in enumerate(intervals):
        assert interval.schema == SCHEMA
        at = interval["at"].cast(pa.int64()).to_pylist()
        begins = OPENING + round(number * SECONDS * 1e6)
        assert sorted(at) == at
        assert begins <= at[0] <= at[-1] < begins + SECONDS * 1e6
    assert [0, 5] == [Market(instruments=3).interval(size).num_rows for size in (0, 5)]  # One may be empty.


def test_each_instrument_counts_its_ticks_from_zero_without_a_gap_and_a_few_make_most_of_them(ticks: pa.Table) -> None:
    for name in ticks["instrument"].unique().to_pylist():
        counted = ticks.filter(pc.field("instrument") == name)["sequence"].to_pylist()
        assert list(range(len(counted))) == counted
    counts = sorted((count["counts"] for count in pc.value_counts(ticks["instrument"]).to_pylist()), reverse=True)
    assert sum(counts[:5]) > TICKS / 2
    assert counts[0] > 20 * counts[-1]


def test_a_trade_is_at_one_of_two_quotes_that_never_cross_in_decimals_that_people_write(ticks: pa.Table) -> None:
    for tick in ticks.to_pylist():
        assert 0 < tick["bid"] < tick["ask"]
        assert tick["price"] in (tick["bid"], tick["ask"])
        assert tick["size"] > 0
        shown = (3 if tick["instrument"].endswith("JPY") else 5) if "/" in tick["instrument"] else 2
        assert round(tick["price"], shown) == tick["price"]


def test_a_price_walks_and_does_not_jump_between_intervals(ticks: pa.Table) -> None:
    prices = ticks.filter(pc.field("instrument") == "EUR/USD")["bid"].to_pylist()
    assert max(abs(now / before - 1) for before, now in pairwise(prices)) < 1e-3
    assert len(set(prices)) > 10


def test_there_are_as_many_instruments_as_asked_for_each_with_a_name_of_its_own() -> None:
    for count in (1, 2, 3, 28, 57, 500):
        names = Market(instruments=count).instruments
        assert (count, count) == (len(names), len(set(names)))
    assert 5 == sum("/" in name for name in Market().instruments[:10])  # Pairs and shares are among the busiest.
    with pytest.raises(ConfigError, match="instruments=0 and seconds=60 must be above 0"):
        Market(instruments=0)
