"""The load of slots and partitions, measured by Spark where the data is.

    rows --slot of the key--> sum of weights by slot --persisted--> by partition --.
                                     |                                             |--> LoadProfile, for `neli load`
                                     '---------------the hottest slots-------------'
    rows of some slots --sum of weights by slot and key--> the hottest keys, for those who may see keys

The rows are read once: the sums by slot are at most as many as the slots, so Spark keeps them for the two queries that
follow. Only the results come to the driver: a number for each partition, and one for each of the hottest slots.

Keys never leave the executors for a profile. `hot_keys` is called on purpose, and returns a DataFrame.
"""

from collections.abc import Iterable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sql
from pyspark.sql.types import NumericType

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.router.loads import SLOTS_KEPT, LoadProfile
from neli_router.spark.slots import Key, quoted, resolved, with_slot

__all__ = ["hot_keys", "load_profile"]

SLOT, LOAD = "_neli_slot", "_neli_load"  # No column of keys has a name like this.
KEYS_SHOWN = 10
"""Keys shown for each slot. One or two keys make a slot hot; if it had many of them, it would not be hot."""


def load_profile(df: DataFrame, key: Key, layout: Layout, *, weight: Key | None = None) -> LoadProfile:
    """The load of each slot and each partition of `layout`, according to the rows of `df`.

    A row counts as 1, or as the value of its column `weight`: a number of at least 0. A row whose key is null counts
    for nothing. Reads `df` once, and returns when that is done. Raises BadKey for a column of a type other than string
    and binary, and ConfigError for a missing column and for weights that are null, negative or not finite.
    """
    rows = _rows(df, key, layout, weight)
    load = sql.col(LOAD)
    is_bad = load.isNull() | sql.isnan(load) | (load < 0) | (load == float("inf"))
    sums = rows.groupBy(SLOT).agg(sql.sum(load).alias("load"), sql.count_if(is_bad).alias("bad")).persist()
    try:
        partition = sql.pmod(SLOT, sql.lit(layout.partitions)).alias("partition")
        partitions = sums.groupBy(partition).agg(sql.sum("load").alias("load"), sql.sum("bad").alias("bad")).collect()
        if bad := sum(row["bad"] for row in partitions):
            raise ConfigError(
                [f"{bad} rows have a {weight!r} that is missing, negative or not finite: give numbers of at least 0"]
            )
        known = sums.where(sql.col(SLOT).isNotNull()).orderBy(sql.desc("load"), SLOT)
        slots = [(row[SLOT], row["load"]) for row in known.limit(SLOTS_KEPT).collect()]
    finally:
        sums.unpersist()
    return LoadProfile.of(
        layout, slots, {row["partition"]: row["load"] for row in partitions if row["partition"] is not None}
    )


def hot_keys(
    df: DataFrame,
    key: Key,
    layout: Layout,
    slots: Iterable[int],
    *,
    weight: Key | None = None,
    count: int = KEYS_SHOWN,
) -> DataFrame:
    """The `count` hottest keys of each of `slots`, hottest first: columns `slot`, `key`, `load`.

    `profile.hottest(5)` names slots to pass. Keys may be personal data: mind where you show them. Nothing is read
    before the result is. Raises the errors of `load_profile`, but does not check the weights.
    """
    rows = _rows(df, key, layout, weight).where(sql.col(SLOT).isin(*slots))
    named = sql.col(quoted(rows.columns[0])).alias("key")
    loads = rows.groupBy(sql.col(SLOT).alias("slot"), named).agg(sql.sum(LOAD).alias("load"))
    order = Window.partitionBy("slot").orderBy(sql.desc("load"), "key")
    ranked = loads.withColumn("rank", sql.row_number().over(order)).where(sql.col("rank") <= count)
    return ranked.drop("rank").orderBy(sql.desc("load"), "slot", "key")


def _rows(df: DataFrame, key: Key, layout: Layout, weight: Key | None) -> DataFrame:
    """The keys under their own name, which a message may quote, with their loads and slots."""
    load = sql.lit(1.0)
    if weight is not None:
        load, field = resolved(df, weight)
        if not isinstance(field.dataType, NumericType):
            raise ConfigError(
                [f"column {field.name!r} is of type {field.dataType.simpleString()}: a number was wanted as weight"]
            )
        load = load.cast("double")
    column, field = resolved(df, key)
    rows = df.select(column.alias(field.name), load.alias(LOAD))
    return with_slot(rows, field.name, layout, name=SLOT)
