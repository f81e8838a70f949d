"""Rows by owner: the files of a table, the files that an owner reads, and the tasks that rows go to."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, input_file_name, lit, spark_partition_id

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.fence import TableMismatch
from neli_router.spark import FilesRead, files_read, owned, repartition_by_key, repartition_by_owner, with_partition

pytestmark = pytest.mark.spark

LAYOUT = Layout(partitions=8)
KEYS = 200


def customers(spark: SparkSession) -> DataFrame:
    return spark.range(KEYS).selectExpr("concat('customer-', id) AS key", "id AS number")


def keys_of(partitions: Sequence[int], layout: Layout = LAYOUT) -> list[str]:
    keys = [f"customer-{number}" for number in range(KEYS)]
    return sorted(key for key in keys if layout.partition(key) in partitions)


def keys(df: DataFrame) -> list[str]:
    return sorted(row.key for row in df.select("key").collect())


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of eight partitions, laid out by us."""
    path = tmp_path_factory.mktemp("lake") / "customers"
    written(customers(spark).transform(repartition_by_key, "key", LAYOUT), path)
    return path


@pytest.fixture
def table(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.parquet(str(folder))


def written(df: DataFrame, path: Path, *, column: str = "partition") -> None:
    df.write.partitionBy(column).parquet(str(path))


def without_notes(table: DataFrame) -> DataFrame:
    """The same files as if a program other than ours had written them."""
    return table.select(*(col(name).alias(name, metadata={}) for name in table.columns))


def files_that_spark_read(df: DataFrame) -> int:
    """Spark's own count at the first execution: a plan that runs again counts nothing."""
    df.collect()
    plan = df._jdf.queryExecution().executedPlan()
    scans = [node for node in nodes(plan) if "FileSourceScan" in node.getClass().getSimpleName()]
    assert 1 == len(scans)
    return int(scans[0].metrics().apply("numFiles").value())


def nodes(plan: Any) -> list[Any]:
    children = plan.children()
    return [plan, *(node for at in range(children.size()) for node in nodes(children.apply(at)))]


def test_each_partition_has_one_file_no_file_holds_two_and_all_have_the_note(table: DataFrame, folder: Path) -> None:
    assert 8 == len(list(folder.glob("partition=*/part-*.parquet"))) == len(list(folder.rglob("*.parquet")))
    rows = table.select("key", "partition", input_file_name().alias("file")).collect()
    assert [LAYOUT.partition(row.key) for row in rows] == [row.partition for row in rows]
    assert 8 == len({row.file for row in rows}) == len({(row.file, row.partition) for row in rows})
    for file in folder.rglob("*.parquet"):
        metadata = parquet.read_schema(file).metadata
        fields = json.loads(metadata[b"org.apache.spark.sql.parquet.row.metadata"])["fields"]
        expected = {"neli.layout": {"slots": 16384, "partitions": 8, "tags": False}}
        assert [expected, {}] == [field["metadata"] for field in fields]


def test_fewer_tasks_still_hold_whole_partitions_and_no_row_without_a_key(spark: SparkSession, tmp_path: Path) -> None:
    rows = customers(spark).transform(repartition_by_key, "key", LAYOUT, tasks=3)
    assert {number: {number % 3} for number in range(8)} == tasks(rows)
    df = customers(spark).unionByName(spark.sql("SELECT CAST(NULL AS STRING) AS key, 1L AS number"))
    with pytest.raises(PySparkException, match="column 'key' has a row without a key"):
        written(repartition_by_key(df, "key", LAYOUT), tmp_path / "refused")


def test_an_owner_of_a_fourth_of_the_partitions_reads_a_fourth_of_the_files(table: DataFrame) -> None:
    mine = owned(table, "key", (3, 5), LAYOUT)
    assert keys_of((3, 5)) == keys(mine)
    assert FilesRead(2, 8) == files_read(table, (3, 5))
    assert "2 of 8 files" == str(files_read(table, (3, 5)))
    assert [2, 8] == [files_that_spark_read(mine), files_that_spark_read(table)]
    assert table.columns == mine.columns
    # All together read every row once, and a member without partitions reads nothing.
    shares = [owned(table, "key", range(member, 8, 3), LAYOUT) for member in range(3)]
    assert keys_of(range(8)) == sorted(key for share in shares for key in keys(share))
    assert [] == keys(owned(table, "key", [], LAYOUT))
    assert {3} == {row.partition for row in owned(table, "key", {3: 7}, LAYOUT).collect()}


def test_filters_of_the_users_prune_and_reach_the_files_as_well(table: DataFrame) -> None:
    mine = owned(table, "key", range(4), LAYOUT).filter("partition = 3 AND number = 7")
    assert 1 == files_that_spark_read(mine)
    assert "EqualTo(number,7)" in mine._jdf.queryExecution().executedPlan().toString()


def test_a_table_that_is_not_laid_out_is_filtered_by_its_keys(spark: SparkSession) -> None:
    df = customers(spark).unionByName(spark.sql("SELECT CAST(NULL AS STRING) AS key, 1L AS number"))
    mine = df.transform(owned, "key", (3, 5), LAYOUT, stored=None)
    assert keys_of((3, 5)) == keys(mine)
    assert df.columns == mine.columns
    assert keys_of(range(8)) == keys(df.transform(owned, "key", range(8), LAYOUT, stored=None))
    assert FilesRead(0, 0) == files_read(df.withColumn("partition", lit(1)), (3, 5))


def test_columns_may_have_any_names(spark: SparkSession, tmp_path: Path) -> None:
    name = "a.b `c` ö=%"
    df = customers(spark).withColumnRenamed("key", "the.key")
    written(df.transform(repartition_by_key, "the.key", LAYOUT, name=name), tmp_path / "odd", column=name)
    table = spark.read.parquet(str(tmp_path / "odd"))
    mine = owned(table, "the.key", (3,), LAYOUT, stored=name)
    assert 1 == files_that_spark_read(mine)
    assert keys_of((3,)) == sorted(row["the.key"] for row in mine.collect())
    assert FilesRead(1, 8) == files_read(table, (3,), stored=name)


def test_a_table_of_another_layout_is_refused_before_it_is_read(spark: SparkSession, table: DataFrame) -> None:
    table.createOrReplaceTempView("noted")
    for noted in (table, spark.table("noted")):
        for layout in (Layout(partitions=4), Layout(partitions=16), Layout(slots=512, partitions=8)):
            with pytest.raises(TableMismatch) as caught:
                owned(noted, "key", (3,), layout)
            assert layout.spelled() in caught.value.wanted
            assert "'partitions': 8" in caught.value.found
    # Without this check, half of the rows of partition 1 would be missing, and no row would show it.
    with pytest.raises(TableMismatch, match="it has the partitions 2, 3, 4, 5, 6 and 1 more"):
        owned(without_notes(table), "key", (1,), Layout(partitions=2))


def test_rows_of_another_partition_stop_the_job_and_a_new_partition_column_has_its_own_note(table: DataFrame) -> None:
    mine = owned(without_notes(table), "key", (3,), Layout(partitions=16))
    with pytest.raises(PySparkException, match="has a key of another partition, or none: read it with the layout"):
        mine.collect()
    with pytest.raises(PySparkException, match="has a key of another partition"):
        mine.agg(count("*")).collect()
    other = Layout(partitions=4)
    again = table.drop("partition").transform(with_partition, "key", other)
    assert keys_of((3,), other) == keys(owned(again, "key", (3,), other))
    with pytest.raises(TableMismatch):
        owned(again, "key", (3,), LAYOUT)


def test_what_cannot_be_owned_is_refused(table: DataFrame) -> None:
    with pytest.raises(ConfigError, match="column 'day' is missing"):
        owned(table, "key", (3,), LAYOUT, stored="day")
    with pytest.raises(ConfigError, match="must hold numbers of partitions, and holds string"):
        owned(table, "key", (3,), LAYOUT, stored="key")
    with pytest.raises(ConfigError, match="from 0 to 7, and have -1, 8"):
        owned(table, "key", (-1, 3, 8), LAYOUT)


def tasks(df: DataFrame) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for row in df.select("partition", spark_partition_id().alias("task")).distinct().collect():
        found.setdefault(row.partition, set()).add(row.task)
    return found


def test_all_rows_of_a_partition_come_to_a_task_of_its_own_or_of_its_owner(spark: SparkSession) -> None:
    rows = customers(spark).transform(with_partition, "key", LAYOUT)
    assert {number: {number} for number in range(8)} == tasks(repartition_by_owner(rows, range(8)))
    mine = rows.filter("partition IN (3, 7, 6)").transform(repartition_by_owner, {6: 1, 3: 1, 7: 2})
    assert {3: {0}, 6: {1}, 7: {2}} == tasks(mine)
    assert 3 == mine.rdd.getNumPartitions()
    few = rows.transform(repartition_by_owner, range(8)).filter("partition IN (3, 7)")
    assert {3: {3}, 7: {7}} == tasks(few)
    owners = {number: ("alpha", "bravo", "charlie")[number % 3] for number in range(8)}
    by_owner = repartition_by_owner(rows, range(8), owners=owners)
    assert {number: {number % 3} for number in range(8)} == tasks(by_owner)
    assert keys_of(range(8)) == keys(by_owner)


def test_a_row_that_has_no_task_fails_the_job_and_a_task_is_wanted_for_something(spark: SparkSession) -> None:
    rows = customers(spark).transform(with_partition, "key", LAYOUT)
    for df in (rows, rows.withColumn("partition", lit(None).cast("int")), rows.withColumn("partition", lit(-1))):
        with pytest.raises(PySparkException, match="a row of a partition that is not among those wanted"):
            repartition_by_owner(df, (3, 7)).collect()
    with pytest.raises(ConfigError, match="must be one or more"):
        repartition_by_owner(rows, [])
    with pytest.raises(ConfigError, match="has none for 3"):
        repartition_by_owner(rows, (2, 3), owners={2: "alpha"})
