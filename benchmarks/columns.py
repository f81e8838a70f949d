"""The cost of a column of keys compared with `router.owners(list)`, and whether its hashes equal mmh3's.

    keys as a column of polars, Arrow, pandas --partitions_of--> partitions     `keys_per_second` of the first one
    the same keys as a list ------------------router.owners----> owners         the floor of `over_list`
    random texts and bytes of every length ---partitions_of--= mmh3, one by one, or the benchmark fails

All kinds of columns are timed repeatedly between two runs over the list, and a ratio is the median over all rounds. So
a machine that becomes busy halfway slows both down. Keys per second are those of the fastest round, because the other
rounds are slowed down by other programs. `owners_of` is timed as well as `partitions_of`, because it answers the same
question as the list. The keys are in random order, as in `lookup`.

The routers' table is static: neither a ledger nor a member takes part in a look-up.
"""

import gc
import time
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

import mmh3
import pandas as pd
import polars as pl
import pyarrow as pa

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.core.keyspace import SLOTS_MAX, Layout
from neli_router.router.columns import owners_of, partitions_of
from neli_router.router.router import Router
from neli_router.router.table import Owner

__all__ = ["Options", "run"]

LENGTH_MAX = 80  # Twenty blocks of murmur3, with each possible length of the tail.
EVERYTHING = Layout(slots=SLOTS_MAX, partitions=SLOTS_MAX)  # A partition is then the whole hash.

Ask = Callable[[], object]


class Options(BenchmarkOptions):
    keys: int = 1_000_000
    rounds: int = 15
    random: int = option(1_000_000, "random texts, and bytes, to compare with mmh3")


def run(options: Options) -> Figures:
    mismatches = _mismatches(options.random)
    assert mismatches == 0, f"{mismatches} of {2 * options.random} random keys hash differently in mmh3"
    keys = [f"customer-{n:011d}" for n in range(options.keys)]
    Random(1).shuffle(keys)
    layout = Layout()
    owners = [Owner(f"member-{p % 4}", f"10.0.0.{p % 4}:80", p, 1 + p) for p in range(layout.partitions)]
    router = Router.static(owners, layout)
    polars, pandas = pl.Series(keys), pd.Series(keys)
    columns: dict[str, Any] = {
        "polars": polars,
        "arrow": pa.array(keys),
        "pandas": pandas,
        "pandas_objects": pandas.astype("object"),
        "polars_bytes": polars.cast(pl.Binary),
    }
    asks: dict[str, Ask] = {}
    for name, column in columns.items():
        asks[name] = lambda column=column: partitions_of(column, layout)  # type: ignore[misc]
        asks[f"{name}_owners"] = lambda column=column: owners_of(column, router)  # type: ignore[misc]

    def listed() -> object:
        return router.owners(keys)

    seconds: dict[str, list[float]] = {name: [] for name in ("list", *asks)}
    ratios: dict[str, list[float]] = {name: [] for name in asks}
    gc.collect()
    gc.disable()
    try:
        for _ in range(max(1, options.rounds)):
            before, *took, after = (_seconds(ask) for ask in (listed, *asks.values(), listed))
            for name, each in zip(asks, took, strict=True):
                ratios[name].append((before + after) / 2 / each)
                seconds[name].append(each)
            seconds["list"] += before, after
    finally:
        gc.enable()
    return {
        "keys_per_second": options.keys / min(seconds["polars"]),
        "over_list": median(ratios["polars"]),
        "list_keys_per_second": options.keys / min(seconds["list"]),
        **{f"{name}_keys_per_second": options.keys / min(seconds[name]) for name in asks if name != "polars"},
        **{f"{name}_over_list": median(ratios[name]) for name in asks if name != "polars"},
        "random_keys_equal": 2 * options.random,
        "mismatches": mismatches,
        "keys": options.keys,
        "rounds": max(1, options.rounds),
    }


def _mismatches(count: int) -> int:
    """How many of `count` random texts and `count` random bytes hash differently in a column than in mmh3."""
    random = Random(7)
    some_bytes = [random.randbytes(n % LENGTH_MAX) for n in range(count)]
    # From every plane of Unicode, without surrogates, which have no UTF-8 form; also NUL, and ASCII.
    planes = [(0, 1), (1, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    letters = [chr(random.randrange(*random.choice(planes))) for _ in range(100_003)]
    texts = ["".join(random.choices(letters, k=n % LENGTH_MAX)) for n in range(count)]
    wrong = 0
    for column, keys in (
        (pl.Series(texts, dtype=pl.String), [text.encode() for text in texts]),
        (pl.Series(some_bytes, dtype=pl.Binary), some_bytes),
    ):
        found = partitions_of(column, EVERYTHING)
        wrong += sum(one != mmh3.hash(key, 0, signed=False) for one, key in zip(found, keys, strict=True))
    return wrong


def _seconds(ask: Ask) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started
