"""The rows that `publish_prices` makes of ticks. Code without Spark judges whether each is in the table once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession

from dags.jobs.publish_prices import KEY, TICK, bars, from_messages
from neli_router.agent import Client
from neli_router.core.keyspace import Layout
from neli_router.fence.delta import FencedTable
from neli_router.lab.pipeline.landing import commits_of, counted, same_bars
from neli_router.spark import KafkaSteps, ParquetSteps, StepLoop

__all__ = ["BARS", "BAR_SECONDS", "LAYOUT", "LEASE", "Bench", "bars_made", "rows_of"]

LAYOUT = Layout(partitions=4)
LEASE = 15.0
"""Seconds. Spark now and then keeps both cores busy for seconds, and shorter leases would be lost."""

BAR_SECONDS = 60


BARS = pa.schema(
    {
        "instrument": pa.string(),
        "begins": pa.timestamp("us", "UTC"),
        **dict.fromkeys(["open", "high", "low"], pa.float64()),
        "volume": pa.int64(),
        **dict.fromkeys(["close", "bid", "ask"], pa.float64()),
        "last_at": pa.timestamp("us", "UTC"),
        **dict.fromkeys(["ticks", "first_sequence", "last_sequence"], pa.int64()),
    }
)
"""The columns that the job gives."""


def bars_made(rows: DataFrame) -> DataFrame:
    return bars(from_messages(rows) if "offset" in rows.columns else rows, seconds=BAR_SECONDS)


def rows_of(table: FencedTable) -> pa.Table:
    return dataset.dataset(table.files(), format="parquet").to_table()


class Bench:
    """A table, and the jobs of hosts that fill it from one feed of ticks."""

    def __init__(
        self, folder: Path, spark: SparkSession, address: str | Path, *, first_batch: int = 1, layout: Layout = LAYOUT
    ) -> None:
        self.table = FencedTable.create(folder / "table", BARS, layout, first_batch=first_batch)
        self._spark, self._address = spark, str(address)

    def run(
        self,
        client: Client,
        until: int | Literal["now"],
        made: Callable[[DataFrame], DataFrame] = bars_made,
        *,
        longest: int = 1,
        reopen: bool = True,
    ) -> bool:
        topic = self._address.startswith("kafka:")
        steps = (
            KafkaSteps(self._address, longest=longest)
            if topic
            else ParquetSteps(self._address, KEY, schema=TICK, longest=longest)
        )
        return StepLoop(steps, made, self.table, client=client, spark=self._spark).run(until, reopen=reopen)

    def reached(self) -> set[int]:
        return {at.batch for at in self.table.progress().values()}

    def landed(self) -> list[dict[int, int]]:
        """Partition -> batch, for each commit."""
        return [dict(it.batches) for it in commits_of(self.table.path) if it.batches]

    def require_whole(self, intervals: Sequence[pa.Table]) -> None:
        """Each tick of `intervals` is there once."""
        ticks, rows = pa.concat_tables(intervals), rows_of(self.table)
        made = {it["values"]: it["counts"] for it in ticks["instrument"].value_counts().to_pylist()}
        assert counted(rows, made).is_exact
        assert same_bars(rows, ticks, BAR_SECONDS)
