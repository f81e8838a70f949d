"""The cost of every key's slot in Spark, compared with `hash` and Python UDFs, and whether it equals mmh3's.

    cached keys --hash / with_slot / Arrow UDF / UDF--> noop sink     local[2], in turn, each between two runs of `hash`
    random texts, random bytes, edges --with_slot--= mmh3, one by one, or the benchmark fails

A ratio is the median of the rounds' ratios, so a machine that becomes busy halfway slows both sides down. There are so
many keys that each query takes a second or more. Planning comes on top, once a query: `planning_ms` is what our columns
add to it, measured with a single key.

`slot_over_fhash` has keys of 20 characters, like the other benchmarks. The length is a multiple of 4, so only the hash
is computed. A key of any other length is copied to append zeros, which are then removed from its hash:
`slot_over_fhash_21` has one character more, and `slot_over_fhash_random` has keys of 0 to 63. The UDFs are compared
with the first.

`owned` reads an eighth of a table's partitions: the figures are Spark's own counts of files. The time of a commit comes
from the benchmark `fenced_table`, and that of an append to an Iceberg table from `fenced_iceberg`.
"""

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import mmh3
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf

from benchmarks import BenchmarkOptions, Figures, fenced_iceberg, fenced_table, option
from neli_router.core.keyspace import SLOTS_MAX, Key, Layout, utf8
from neli_router.spark import files_read, owned, repartition_by_key, session, with_slot

__all__ = ["Options", "run"]

LAYOUT = Layout()
WHOLE = Layout(slots=SLOTS_MAX)
"""The slot is then the hash itself, with all 32 bits."""

TAGGED = Layout(tags=True)

LENGTH_MAX = 64
BATCH = 50_000

WARMING = 15
"""Runs of each until Java has compiled both the work on keys and Spark's planning. Planning takes four hundredths of a
second longer for our columns than for one `hash` at first, and one hundredth in the end."""

PLANNINGS = 25
"""Queries of a single key each."""

KEYS = {
    "": "concat('customer-', lpad(CAST(id AS STRING), 11, '0'))",
    "_21": "concat('customers-', lpad(CAST(id AS STRING), 11, '0'))",
    "_random": "left(sha2(CAST(id AS STRING), 512), CAST(conv(left(md5(CAST(id AS STRING)), 4), 16, 10) AS INT) & 63)",
}
"""Suffix of a figure -> how its keys are made from the numbers 0, 1, 2 ..."""


class Options(BenchmarkOptions):
    keys: int = 20_000_000
    rounds: int = 7
    random: int = option(1_000_000, "random keys, half text and half bytes")


def run(options: Options) -> Figures:
    settings = {"spark.driver.memory": "3g", "spark.log.level": "ERROR"}
    with session("benchmark", master="local[2]", settings=settings) as spark:
        mismatches = _mismatches(spark, options.random)
        assert mismatches == 0, f"{mismatches} keys hash differently in mmh3"
        figures: Figures = {"mismatches": mismatches, "random_keys": options.random // 2 * 2}
        for suffix, made in KEYS.items():
            figures |= _costs(spark, made, suffix, options.keys, options.rounds)
        figures |= _pruned(spark)
    commits = fenced_table.run(fenced_table.Options())
    figures |= {name: commits[name] for name in ("commit_ms_p50", "commit_ms_p50_at_few", "many_over_few")}
    with tempfile.TemporaryDirectory(prefix="neli-") as folder:
        lake = fenced_iceberg.ratio(Path(folder), fenced_iceberg.Options())
    figures |= {f"iceberg_{name}": lake[name] for name in ("append_over_plain", "append_ms_p50")}
    return {**figures, "keys": options.keys, "rounds": options.rounds}


def _costs(spark: SparkSession, made: str, suffix: str, count: int, rounds: int) -> Figures:
    keys = spark.range(0, count, 1, 2).selectExpr(f"{made} AS key").persist(StorageLevel.MEMORY_ONLY)
    keys.count()
    slots = LAYOUT.slots

    def over_arrow(column: pa.Array) -> pa.Array:
        return pa.array([mmh3.hash(key, signed=False) % slots for key in column.to_pylist()], pa.int32())

    arrow = arrow_udf(over_arrow, "int")  # type: ignore[call-overload] # It has a third argument, with a default.

    @sql.udf(returnType="int", useArrow=False)
    def pickled(key: str) -> int:
        return mmh3.hash(key, signed=False) % slots

    hashed = keys.select("key", sql.hash("key").alias("slot"))
    native = with_slot(keys, "key", LAYOUT)
    rivals = (
        {} if suffix else {"arrow": keys.select("key", arrow("key")), "pickled": keys.select("key", pickled("key"))}
    )
    for df in (hashed, native) * WARMING:
        _seconds(df)
    for df in rivals.values():
        _seconds(df)  # Until their Python workers have started.
    over_hash = [2 * took / (before + after) for before, took, after in _triples(hashed, native, rounds)]
    figures: Figures = {f"slot_over_fhash{suffix}": median(over_hash)}
    for name, rival in rivals.items():
        few = _triples(native, rival, max(1, rounds // 4))
        figures[f"{name}_over_slot"] = median([2 * took / (before + after) for before, took, after in few])
    took = median([_seconds(native) for _ in range(3)])
    figures[f"keys_per_second{suffix}"] = count / took
    keys.unpersist(blocking=True)
    if not suffix:
        one = spark.range(1).selectExpr(f"{made} AS key")
        more = _triples(one.select("key", sql.hash("key")), with_slot(one, "key", LAYOUT), PLANNINGS)
        figures["planning_ms"] = 1000 * median([took - (before + after) / 2 for before, took, after in more])
    return figures


def _triples(floor: DataFrame, df: DataFrame, rounds: int) -> Iterator[tuple[float, float, float]]:
    for _ in range(rounds):
        yield _seconds(floor), _seconds(df), _seconds(floor)


def _seconds(df: DataFrame) -> float:
    started = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


# Identity


EDGES: Sequence[str] = (
    *(
        "",
        "\0",
        "\0\0\0\0",
        "a",
        "ab",
        "abc",
        "abcd",
        "a\0",
        "\0a",
        "abc\0",
        "abcd\0\0\0",
        "Zoë",
        "€",
        "\U0010ffff",
        "\ufeff",
    ),
    *("x" * length for length in range(100)),
    *("ÿ" * length for length in range(100)),
    *("a" * 65_537, "b" * 1_000_001),
)
WIDTHS = (range(0x80), range(0x80, 0x800), range(0x800, 0xD800), range(0xE000, 0x10000), range(0x10000, 0x110000))
"""Characters of one, two, three, three and four bytes. Surrogates, in the gap between them, are not text."""


def _mismatches(spark: SparkSession, count: int) -> int:
    chance = random.Random(1)
    widths = [[chr(chance.choice(width)) for _ in range(20_000)] for width in WIDTHS]
    characters = [*(character for width in widths for character in width), *("\0{}" * 2_000)]

    def text() -> str:
        return "".join(chance.choices(characters, k=chance.randint(0, LENGTH_MAX)))

    def binary() -> bytes:
        return chance.randbytes(chance.randint(0, LENGTH_MAX))

    differing = _differing(spark, EDGES) + _differing(spark, [edge.encode() for edge in EDGES])
    for draw in (text, binary):
        for start in range(0, count // 2, BATCH):
            differing += _differing(spark, [draw() for _ in range(min(BATCH, count // 2 - start))])
    return differing


def _differing(spark: SparkSession, keys: Sequence[Key]) -> int:
    """How many of `keys`, all text or all bytes, hash differently in Spark, or get another slot with tags."""
    df = spark.createDataFrame(
        pa.table({"key": pa.array(keys, pa.string() if isinstance(keys[0], str) else pa.binary())})
    )
    both = (
        df.transform(with_slot, "key", WHOLE, name="hash").transform(with_slot, "key", TAGGED, name="tagged").toArrow()
    )
    assert both["key"].to_pylist() == list(keys), "Spark changed the keys"
    expected = ((mmh3.hash(utf8(key), signed=False), TAGGED.slot(key)) for key in keys)
    found = zip(both["hash"].to_pylist(), both["tagged"].to_pylist(), strict=True)
    return sum(one != other for one, other in zip(expected, found, strict=True))


# Pruning


def _pruned(spark: SparkSession) -> Figures:
    """The files that an owner of an eighth of the partitions reads, out of all files of the table."""
    mine = range(LAYOUT.partitions // 8)
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(100_000).selectExpr(f"{KEYS['']} AS key", "id")
        rows.transform(repartition_by_key, "key", LAYOUT).write.partitionBy("partition").parquet(f"{folder}/rows")
        table = spark.read.parquet(f"{folder}/rows")
        told = files_read(table, mine)
        read = _files_that_spark_read(owned(table, "key", mine, LAYOUT))
        assert (read, told.total) == (told.read, LAYOUT.partitions), f"Spark read {read} files, we reported {told}"
    return {"owned_files_read": read, "owned_files_total": told.total, "owned_over_all": read / told.total}


def _files_that_spark_read(df: DataFrame) -> int:
    df.collect()
    nodes = [df._jdf.queryExecution().executedPlan()]  # noqa: SLF001 - only the plan has the scan's own count.
    while nodes:
        node = nodes.pop()
        if node.metrics().contains("numFiles"):
            return int(node.metrics().apply("numFiles").value())
        nodes += [node.children().apply(at) for at in range(node.children().size())]
    raise AssertionError("the plan has no scan of files")
