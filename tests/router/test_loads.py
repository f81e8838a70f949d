"""Load profiles: what they count, and what they refuse. benchmarks/tests shows that they even a skewed load out."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.router.loads import SLOTS_KEPT, LoadProfile

LAYOUT = Layout(slots=64, partitions=8)
KEYS = ["a", "b", "a", None, "customer-7"]


def profile(keys: Sequence[Any] = KEYS, layout: Layout = LAYOUT) -> LoadProfile:
    return LoadProfile.of_columns(pl.Series(keys, dtype=pl.String), layout)


@pytest.mark.parametrize("make", [pl.Series, pa.array, pd.Series, lambda keys: pa.chunked_array([keys])])
def test_a_key_counts_as_one_or_as_its_weight(make: Any) -> None:
    slots = [LAYOUT.slot(key) for key in ("a", "b", "customer-7")]
    counted = LoadProfile.of_columns(make(KEYS), LAYOUT)
    assert dict(zip(slots, [2.0, 1.0, 1.0], strict=True)) == counted.slots
    assert (slots[0], 2.0) == counted.hottest(1)[0]
    weighed = LoadProfile.of_columns(make(KEYS), LAYOUT, weights=make([1, 5, 2, 100, 0]))
    assert dict(zip(slots, [3.0, 5.0, 0.0], strict=True)) == weighed.slots
    assert [(slots[1], 5.0), (slots[0], 3.0)] == weighed.hottest(2)


@given(
    st.lists(st.tuples(st.text("ab{}", max_size=3), st.integers(0, 1000)), max_size=30),
    st.builds(Layout, slots=st.integers(8, 40), partitions=st.integers(1, 8), tags=st.booleans()),
)
def test_slots_and_partitions_have_the_loads_of_their_keys(rows: list[tuple[str, int]], layout: Layout) -> None:
    keys, weights = [key for key, _ in rows], [weight for _, weight in rows]
    found = LoadProfile.of_columns(pl.Series(keys, dtype=pl.String), layout, weights=pl.Series(weights, dtype=pl.Int64))
    partitions = [0.0] * layout.partitions
    slots: dict[int, float] = {}
    for key, weight in rows:
        partitions[layout.partition(key)] += weight
        slots[layout.slot(key)] = slots.get(layout.slot(key), 0.0) + weight
    assert (partitions, slots, sum(weights)) == (found.partitions, found.slots, found.total)


def test_only_the_hottest_slots_are_kept_but_all_are_counted() -> None:
    wide = Layout(slots=2**20, partitions=2)
    found = LoadProfile.of(wide, [(slot, 1.0 + slot) for slot in range(SLOTS_KEPT + 9)], {0: 5.0})
    assert (SLOTS_KEPT, (SLOTS_KEPT + 8, float(SLOTS_KEPT + 9))) == (len(found.slots), found.hottest(1)[0])
    assert [5.0, 0.0] == found.partitions


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([-1.0, None], "2 weights are missing, negative or not finite"),
        ([1.0, math.nan], "1 weights are missing, negative or not finite"),
        ([1.0, math.inf], "1 weights are missing, negative or not finite"),
        (["1", "2"], "the weights are of type String"),
        ([1.0], "2 keys have 1 weights"),
    ],
)
def test_weights_that_are_none_are_refused(weights: list[Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        LoadProfile.of_columns(pl.Series(["a", "b"]), LAYOUT, weights=pl.Series(weights))


def test_every_partition_is_told_with_a_load_above_zero_that_a_ledger_takes() -> None:
    """Otherwise a partition without a load would count as the mean of the others."""
    told = profile(["a"]).loads()
    assert {LAYOUT.partition("a"): 1.0} == {partition: load for partition, load in told.items() if load > 1e-6}
    assert (8, True) == (len(told), min(told.values()) > 0)
    told = LoadProfile.of(LAYOUT, [], {0: 4e20, 1: 1e20}).loads()
    assert (1e15, 2.5e14) == (told[0], told[1])
    with pytest.raises(ConfigError, match="the profile has no load in it"):
        profile([]).loads()


def test_a_file_is_read_as_it_was_saved_and_holds_no_key(tmp_path: Path) -> None:
    saved = LoadProfile.of_columns(pl.Series(["secret", *KEYS]), LAYOUT, weights=pl.Series([1 / 3] * 6))
    saved.save(tmp_path / "profile.json")
    saved.save(tmp_path / "profile.json")
    assert saved == LoadProfile.read(tmp_path / "profile.json")
    assert ["profile.json"] == [path.name for path in tmp_path.iterdir()]
    assert "secret" not in repr(saved) + (tmp_path / "profile.json").read_text()


GOOD = {
    "version": 1,
    "layout": {"slots": 64, "partitions": 8, "tags": False},
    "partitions": [1.0] * 8,
    "slots": {"3": 1.0},
}


@pytest.mark.parametrize(
    ("slip", "problem"),
    [
        ({"partitions": [1.0] * 9}, "it has the loads of 9 partitions, and its layout 8"),
        ({"partitions": [-1.0] * 8}, "Expected `float` >= 0.0 - at `$.partitions[0]`"),
        ({"partitions": ["1"] * 8}, "Expected `float`, got `str`"),
        ({"slots": {"64": 1.0}}, "it has the load of slot 64, and its layout only 64 slots"),
        ({"slots": {"-1": 1.0}}, "Expected `int` >= 0"),
        ({"slots": {"3": -1.0}}, "Expected `float` >= 0.0"),
        ({"layout": {"slots": 4}}, "partitions=256 must be at most slots=4"),
        ({"version": 2}, "it has version 2, and this release reads version 1: measure again"),
        ({"keys": {}}, "unknown field `keys`"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(slip: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**GOOD, **slip}))
    with pytest.raises(ConfigError) as raised:
        LoadProfile.read(path)
    assert [True] == [problem in one and str(path) in one for one in raised.value.problems]


def test_a_file_that_is_no_json_or_not_there_or_far_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        LoadProfile.read(path)
    for text in ("", "{", '{"partitions": [NaN]}', '{"layout"', "\udcff"):
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ConfigError, match="is not JSON"):
            LoadProfile.read(path)
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ConfigError, match="has more than 64 MiB"):
        LoadProfile.read(path)
