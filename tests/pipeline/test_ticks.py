"""The market: ticks as the essay of `ticks` says that they are, and the same for the same seed."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from neli_router.errors import ConfigError
from neli_router.pipeline.ticks import OPENING, SCHEMA, Market

TICKS, INTERVALS, SECONDS = 20_000, 7, 60.0


def made(*, seed: int = 1, instruments: int = 50) -> list[pa.Table]:
    return list(Market(seed=seed, instruments=instruments, seconds=SECONDS).split(TICKS, INTERVALS))


@pytest.fixture(scope="module", name="intervals")
def of_one_seed() -> list[pa.Table]:
    return made()


@pytest.fixture(scope="module", name="ticks")
def together(intervals: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(intervals)


def test_the_same_seed_gives_the_same_ticks_and_another_one_gives_others(intervals: list[pa.Table]) -> None:
    assert intervals == made()
    assert intervals != made(seed=2)


def test_every_tick_is_made_in_intervals_that_differ_by_at_most_one(intervals: list[pa.Table]) -> None:
    sizes = [interval.num_rows for interval in intervals]
    assert (TICKS, INTERVALS, True) == (sum(sizes), len(sizes), max(sizes) - min(sizes) <= 1)
    assert all(interval.schema == SCHEMA for interval in intervals)


def test_each_instrument_counts_its_ticks_from_zero_without_a_gap_over_all_intervals(ticks: pa.Table) -> None:
    for name in ticks["instrument"].unique().to_pylist():
        counted = ticks.filter(pc.field("instrument") == name)["sequence"].to_pylist()
        assert list(range(len(counted))) == counted


def test_time_goes_on_and_an_interval_holds_its_own_minute_alone(intervals: list[pa.Table]) -> None:
    for number, interval in enumerate(intervals):
        at = interval["at"].cast(pa.int64()).to_pylist()
        begins = OPENING + round(number * SECONDS * 1e6)
        assert sorted(at) == at
        assert begins <= at[0] <= at[-1] < begins + SECONDS * 1e6


def test_a_trade_is_at_one_of_two_quotes_that_never_cross(ticks: pa.Table) -> None:
    for tick in ticks.to_pylist():
        assert 0 < tick["bid"] < tick["ask"]
        assert tick["price"] in (tick["bid"], tick["ask"])
        assert tick["size"] > 0


def test_prices_are_the_decimals_that_a_person_would_write(ticks: pa.Table) -> None:
    decimals = {"EUR/USD": 5, "USD/JPY": 3}
    for tick in ticks.to_pylist():
        shown = decimals.get(tick["instrument"], 3 if tick["instrument"].endswith("JPY") else 5)
        shown = shown if "/" in tick["instrument"] else 2
        assert round(tick["price"], shown) == tick["price"]


def test_a_price_walks_and_does_not_jump_between_intervals(ticks: pa.Table) -> None:
    prices = ticks.filter(pc.field("instrument") == "EUR/USD")["bid"].to_pylist()
    assert max(abs(now / before - 1) for before, now in pairwise(prices)) < 1e-3
    assert len(set(prices)) > 10


def test_a_few_instruments_make_most_of_the_ticks(ticks: pa.Table) -> None:
    counts = sorted((count["counts"] for count in pc.value_counts(ticks["instrument"]).to_pylist()), reverse=True)
    assert sum(counts[:5]) > TICKS / 2
    assert counts[0] > 20 * counts[-1]


def test_pairs_and_shares_are_among_the_busiest() -> None:
    busiest = Market(instruments=500).instruments[:10]
    assert (5, 5) == (sum("/" in name for name in busiest), sum("/" not in name for name in busiest))


@pytest.mark.parametrize("count", [1, 2, 3, 28, 57, 500])
def test_there_are_as_many_instruments_as_asked_for_each_with_a_name_of_its_own(count: int) -> None:
    names = Market(instruments=count).instruments
    assert (count, count) == (len(names), len(set(names)))


def test_an_interval_may_be_empty_and_the_market_goes_on() -> None:
    market = Market(instruments=3)
    assert [0, 5] == [market.interval(0).num_rows, market.interval(5).num_rows]


def test_a_market_without_instruments_or_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="instruments=0 and seconds=60 must be above 0"):
        Market(instruments=0)
