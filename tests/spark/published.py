"""The rows that `publish_prices` makes of ticks. Code that knows no Spark judges whether each is in the table once."""

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import dataset
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from dags.jobs.publish_prices import KEY, bars
from neli_router.fence.delta import FencedTable
from neli_router.keyspace import Layout
from neli_router.pipeline.landing import counted, same_bars
from neli_router.spark import with_partition

__all__ = ["BAR_SECONDS", "LAYOUT", "LEASE", "bars_made", "require_whole", "rows_of"]

LAYOUT = Layout(partitions=4)
LEASE = 15.0
"""Seconds. Spark keeps both cores busy for seconds now and then, and shorter leases would be lost by it."""

BAR_SECONDS = 60


def bars_made(ticks: DataFrame, partitions: Sequence[int]) -> DataFrame:
    mine = ticks.transform(with_partition, KEY, LAYOUT).where(sql.col("partition").isin(*partitions))
    return bars(mine, seconds=BAR_SECONDS)


def rows_of(table: FencedTable) -> pa.Table:
    return dataset.dataset(table.files(), format="parquet").to_table()


def require_whole(table: FencedTable, intervals: Sequence[pa.Table]) -> None:
    ticks = pa.concat_tables(intervals)
    made = {it["values"]: it["counts"] for it in ticks["instrument"].value_counts().to_pylist()}
    assert counted(rows_of(table), made).is_exact
    assert same_bars(rows_of(table), ticks, BAR_SECONDS)
