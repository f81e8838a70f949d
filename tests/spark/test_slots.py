"""Slots as a column: identical to those of the keyspace, for every key, and in any DataFrame."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, lit, lower

from neli_router.core.keyspace import SLOTS_MAX, Key, Layout
from neli_router.errors import BadKey, ConfigError
from neli_router.spark import (
    hot_keys,
    load_profile,
    owned,
    register_functions,
    repartition_by_key,
    with_partition,
    with_partition_of_role,
    with_slot,
)

pytestmark = pytest.mark.spark

LAYOUT = Layout()
TAGGED = Layout(slots=1001, partitions=64, tags=True)
"""A layout whose partitions do not divide its slots."""

EDGES: Sequence[str] = (
    *("", "\0", "\0\0\0\0", "a", "ab", "abc", "abcd", "abcde", "a\0", "a\0\0\0", "\0a", "abcd\0\0\0", "abc\0"),
    *("Zoë", "€", "日本語", "\U0001f600", "\U0010ffff", "é", "e\u0301", " ", "  a  ", "\n", "\ufeffa", "\x7f", "\x80"),
    *("{", "}", "{}", "{a}", "{a}b", "b{a}", "{}{a}", "{{a}}", "}{a}", "{a", "a}", "{\0}", "{Zoë}x", "a{b}{c}", "{a}}"),
    *("x" * length for length in range(70)),
    *("ÿ" * length for length in range(35)),
    *("a" * 4093, "b" * 100_001),
)
WIDTHS = (range(1, 0x80), range(0x80, 0x800), range(0x800, 0xD800), range(0xE000, 0x10000), range(0x10000, 0x110000))
"""The code points that take one, two, three, three and four bytes; the gap is the surrogates, which are not text."""


def random_texts(count: int, chance: random.Random) -> Iterator[str]:
    for _ in range(count):
        widths = chance.sample(WIDTHS, chance.randint(1, 5))
        yield "".join(chr(chance.choice(chance.choice([*widths, b"\0{}"]))) for _ in range(chance.randint(0, 64)))


def random_binaries(count: int, chance: random.Random) -> Iterator[bytes]:
    """Few of them are UTF-8. Half of them have braces, so that tags fall among broken characters."""
    for number in range(count):
        binary = chance.randbytes(chance.randint(0, 64))
        yield bytes(chance.choice(b"{}" + binary[:6]) for _ in binary) if number % 2 else binary


def assert_slots(df: DataFrame, keys: Sequence[Key], layout: Layout) -> None:
    both = df.transform(with_slot, "key", layout).transform(with_partition, "key", layout)
    register_functions(df.sparkSession, layout)
    found = both.selectExpr("slot", "partition", "neli_slot(key)", "neli_partition(key)").collect()
    assert [(layout.slot(key), layout.partition(key)) * 2 for key in keys] == [tuple(row) for row in found]


def frame(spark: SparkSession, keys: Sequence[Key], kind: str = "string") -> DataFrame:
    return spark.createDataFrame([(key,) for key in keys], f"key {kind}")


@contextmanager
def set_to(spark: SparkSession, **settings: str) -> Iterator[None]:
    before = {name: spark.conf.get(f"spark.sql.{name}") for name in settings}
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.{name}", value)
    try:
        yield
    finally:
        for name, was in before.items():
            spark.conf.set(f"spark.sql.{name}", str(was))


@pytest.mark.parametrize(
    "layout",
    [
        LAYOUT,
        TAGGED,
        Layout(slots=2**31, partitions=2**20),
        Layout(slots=2**31 + 1, partitions=2**31 + 1),
        Layout(slots=SLOTS_MAX, partitions=256),
    ],
    ids=Layout.spelled,
)
def test_every_text_and_any_bytes_have_the_slot_of_their_layout(spark: SparkSession, layout: Layout) -> None:
    chance = random.Random(layout.slots)
    texts = [*EDGES, *random_texts(500, chance)]
    assert_slots(frame(spark, texts), texts, layout)
    if layout in {LAYOUT, TAGGED}:
        binaries = [*(key.encode() for key in EDGES), *random_binaries(1000, chance)]
        assert_slots(frame(spark, binaries, "binary"), binaries, layout)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "ansi.enabled": "false",
            "function.concatBinaryAsString": "true",
            "legacy.collationAwareHashFunctions": "true",
            "subexpressionElimination.enabled": "false",
        },
        {"codegen.wholeStage": "false"},
        {"codegen.wholeStage": "false", "codegen.factoryMode": "NO_CODEGEN"},
    ],
)
def test_no_setting_of_spark_changes_a_slot(spark: SparkSession, settings: dict[str, str]) -> None:
    with set_to(spark, **settings):
        assert_slots(frame(spark, EDGES), EDGES, LAYOUT)


def test_text_counts_by_its_bytes_whatever_its_collation_or_kind(spark: SparkSession) -> None:
    keys = ["abc", "ABC", "Zoë", "ZOË", "a ", "a"]
    for collation in ("UTF8_LCASE", "UNICODE_CI_AI", "UTF8_BINARY_RTRIM"):
        assert_slots(frame(spark, keys).selectExpr(f"collate(key, '{collation}') AS key"), keys, LAYOUT)
    with set_to(spark, preserveCharVarcharTypeInfo="true"):
        df = spark.sql("SELECT CAST('ab' AS CHAR(4)) AS fixed, CAST('ab' AS VARCHAR(4)) AS varying")
        slots = df.transform(with_slot, "fixed", LAYOUT, name="a").transform(with_slot, "varying", LAYOUT, name="b")
        assert [Row(fixed="ab  ", varying="ab", a=LAYOUT.slot("ab  "), b=LAYOUT.slot("ab"))] == slots.collect()


def test_a_role_has_the_partition_of_its_number_or_of_its_name_and_no_key_has_none(spark: SparkSession) -> None:
    numbers = {0: 0, 1: 1, 99: 99, 100: None, -1: None, 2**31: None, 2**62: None}
    layout = Layout(partitions=100)
    df = spark.createDataFrame([(number,) for number in numbers], "role bigint")
    rows = df.transform(with_partition_of_role, "role", layout).collect()
    assert [Row(role=number, partition=partition) for number, partition in numbers.items()] == rows
    named = frame(spark, ["nightly"]).transform(with_partition_of_role, "key", layout).collect()
    assert [Row(key="nightly", partition=layout.partition_of_role("nightly"))] == named
    for one in (LAYOUT, Layout(tags=True)):
        df = frame(spark, ["a", None])  # type: ignore[list-item]
        both = df.transform(with_slot, "key", one).transform(with_partition, "key", one)
        assert [("a", one.slot("a"), one.partition("a")), (None,) * 3] == [tuple(row) for row in both.collect()]


def test_a_column_may_have_any_name_and_the_other_columns_are_left_as_they_are(spark: SparkSession) -> None:
    for name in ("a.b`c", "``", " ", "Größe", "select", "1", "*", "_neli", "_neli_hash"):
        df = spark.createDataFrame([("k", 1)], "key string, other int").toDF(name, "_NELI_size")
        slots = df.transform(with_slot, name, LAYOUT, name="slot.of `it`")
        assert [name, "_NELI_size", "slot.of `it`"] == slots.columns
        assert [("k", 1, LAYOUT.slot("k"))] == [tuple(row) for row in slots.collect()], name
    # Two columns with the same name, a struct, and a column with notes in its metadata.
    df = spark.sql("SELECT 'k' AS key, 1 AS twice, 2 AS twice, struct('x' AS key) AS inner")
    df = df.withMetadata("key", {"note": "a"})
    slots = df.transform(with_slot, "key", LAYOUT, name="s").transform(with_partition, "key", LAYOUT, name="p")
    assert df.schema.fields == slots.schema.fields[:4]
    expected = ("k", 1, 2, Row(key="x"), LAYOUT.slot("k"), LAYOUT.partition("k"))
    assert [expected] == [tuple(row) for row in slots.collect()]


def test_a_key_may_be_a_path_or_an_expression(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT 'KEY' AS key, 3 AS number, struct('inner' AS key, 'dotted' AS `a.b`, 2.5 AS weight) AS outer"
    )
    keys: list[tuple[Any, str]] = [("outer.key", "inner"), ("outer.`a.b`", "dotted"), ("KEY", "KEY")]
    for key, text in (*keys, (df["outer"]["key"], "inner"), (df["key"], "KEY")):
        assert LAYOUT.slot(text) == df.transform(with_slot, key, LAYOUT).head().slot, key  # type: ignore[union-attr]
    tags = Layout(tags=True)
    both = df.transform(with_slot, lower("key"), tags).transform(with_partition, lower("key"), tags)
    assert df.columns == both.columns[:-2]
    assert (tags.slot("key"), tags.partition("key")) == both.select("slot", "partition").head()
    assert 3 == with_partition_of_role(df, col("number"), LAYOUT).select("partition").head()[0]  # type: ignore[index]
    profile = load_profile(df, "outer.key", LAYOUT, weight="outer.weight")
    assert {LAYOUT.slot("inner"): 2.5} == profile.slots
    assert "key" == hot_keys(df, lower("key"), LAYOUT, [LAYOUT.slot("key")]).select("key").head()[0]  # type: ignore[index]
    laid = (
        df.transform(repartition_by_key, df["key"], LAYOUT)
        .drop("partition")
        .transform(repartition_by_key, lower("key"), LAYOUT)
    )
    assert [3] == [row.number for row in laid.transform(owned, lower("key"), range(256), LAYOUT).collect()]
    with pytest.raises(BadKey, match="string or binary, was wanted in 'weight', but found dec"):
        with_slot(df, "outer.weight", LAYOUT)
    with pytest.raises(AnalysisException, match="`other` cannot be resolved"):
        with_slot(df, lower("other"), LAYOUT)


def test_functions_are_a_part_of_sql(spark: SparkSession) -> None:
    register_functions(spark, TAGGED)
    register_functions(spark, LAYOUT)
    frame(spark, ["a", "b", "longer"]).createOrReplaceTempView("some_keys")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW some_slots AS SELECT key, neli_slot(key) AS slot FROM some_keys")
    joined = "SELECT x.key FROM some_slots x JOIN some_keys y ON x.slot = neli_slot(concat(y.key, ''))"
    ours = f"WHERE neli_partition(x.key) = {LAYOUT.partition('longer')} GROUP BY x.key, neli_slot(x.key)"
    assert [Row(key="longer")] == spark.sql(f"{joined} {ours}").collect()
    assert [Row(slot=None, number=LAYOUT.slot("7"))] == spark.sql(
        "SELECT neli_slot(NULL) AS slot, neli_slot(7) AS number"
    ).collect()
    assert {("slot", "int"), ("partition", "int")} == set(
        spark.sql("SELECT neli_slot('a') AS slot, neli_partition('a') AS partition").dtypes
    )


def test_a_column_is_found_as_spark_finds_it(spark: SparkSession) -> None:
    df = frame(spark, ["k"])
    assert [LAYOUT.slot("k")] == [row.slot for row in df.transform(with_slot, "KEY", LAYOUT).collect()]
    with set_to(spark, caseSensitive="true"):
        with pytest.raises(ConfigError, match="'KEY' is missing"):
            with_slot(df, "KEY", LAYOUT)
        both = df.withColumn("KEY", lit("other")).withColumn("Slot", lit(1)).transform(with_slot, "KEY", LAYOUT)
        assert [Row(key="k", KEY="other", Slot=1, slot=LAYOUT.slot("other"))] == both.collect()


def unread(spark: SparkSession) -> DataFrame:
    """A DataFrame that fails as soon as any of it is read."""
    return spark.sql("SELECT raise_error('read') AS key, 1 AS number, map('a', 1) AS map, 1.0D AS real, true AS truth")


def test_a_column_that_cannot_be_a_key_or_a_role_is_refused(spark: SparkSession) -> None:
    for name, kind in (("number", "int"), ("map", "map<string,int>"), ("real", "double")):
        for add in (with_slot, with_partition):
            with pytest.raises(BadKey) as caught:
                unread(spark).transform(add, name, LAYOUT)
            assert f"found {kind}" == caught.value.found
            assert "cast('string')" in caught.value.remedy
    with pytest.raises(BadKey):
        with_partition_of_role(unread(spark), "truth", LAYOUT)


def test_a_name_of_no_column_or_of_two_or_of_a_column_that_is_there_is_refused(spark: SparkSession) -> None:
    for name in ("key", "outer.other", "", "*", "outer.*"):
        with pytest.raises(ConfigError, match="is missing; there are 'outer'"):
            with_slot(spark.sql("SELECT struct('k' AS key) AS outer"), name, LAYOUT)
    with pytest.raises(ConfigError, match="is there 2 times"):
        with_slot(spark.sql("SELECT 'a' AS key, 'b' AS KEY"), "key", LAYOUT)
    df = frame(spark, ["k"]).withColumn("Slot", lit("mine")).withColumn("partition", lit("mine"))
    for add in (with_slot, with_partition, with_partition_of_role):
        with pytest.raises(ConfigError, match="is there already"):
            df.transform(add, "key", LAYOUT)


def test_spark_compiles_all_steps_into_one_stage_and_no_filter_or_join_repeats_them(spark: SparkSession) -> None:
    """Compiled operators are marked by a star and a number; an operator without them would split the stage."""
    plan = executed(spark.range(10).selectExpr("CAST(id AS STRING) AS key").transform(with_slot, "key", LAYOUT))
    assert "Project" in plan
    assert [] == [line for line in plan.splitlines() if line.strip() and "*(1)" not in line]
    df = spark.createDataFrame([("k",)], "key string").transform(with_slot, "key", LAYOUT)
    once = executed(df).count("hash(")
    assert once > 0
    join = df.join(spark.sql("SELECT 1 AS slot"), "slot")
    for query in (df.filter("slot = 1"), df.filter("slot IS NOT NULL"), join, df.groupBy("slot").count()):
        assert once == executed(query).count("hash(")


def executed(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())
