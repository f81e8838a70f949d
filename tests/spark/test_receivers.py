"""Writes from executors to real databases: each batch of a partition once, and none under a lower term.

Tests with PostgreSQL, with tasks that run twice, and with lost executors, are in test_standalone.py: a local Spark
never retries a task.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from neli_router import fence
from neli_router.fence import FenceMisused, Refused
from neli_router.spark import Landing, RedisReceiver, SqlReceiver

pytestmark = pytest.mark.spark

TERMS = {partition: 100 + partition for partition in range(8)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "prices.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE prices (instrument TEXT, price REAL, partition INTEGER)")
        fence.install(connection)
        connection.commit()
    return path


@pytest.fixture
def prices(path: Path) -> SqlReceiver:
    return SqlReceiver("prices", lambda: sqlite3.connect(path, timeout=60))


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """100 prices in eight partitions, in an order and in tasks that are unrelated to the partitions."""
    rows = [(f"instrument {number}", number / 4, number % 8) for number in range(100)]
    return spark.createDataFrame(rows, "instrument STRING, price DOUBLE, partition INT").repartition(3)


# Nested functions, so that Spark sends them whole: its workers cannot import the tests.


def inserting() -> Callable[[Any, Iterator[Row]], None]:
    def insert(connection: Any, rows: Iterator[Row]) -> None:
        connection.executemany("INSERT INTO prices VALUES (?, ?, ?)", rows)

    return insert


def instruments(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT instrument FROM prices ORDER BY price")]


EACH_ONCE = [f"instrument {number}" for number in range(100)]
ROWS = {partition: 13 if partition < 4 else 12 for partition in range(8)}


def test_every_row_of_a_batch_lands_once(prices: SqlReceiver, frame: DataFrame, path: Path) -> None:
    """However often and however late it is written, and whatever the name of the partition column."""
    assert Landing(ROWS, frozenset()) == prices.write(frame, inserting(), terms=TERMS, batch=5)
    for batch in (5, 4):
        assert Landing({}, frozenset(TERMS)) == prices.write(frame, inserting(), terms=TERMS, batch=batch)
    assert EACH_ONCE == instruments(path)
    assert Landing({}, frozenset()) == prices.write(frame.where("false"), inserting(), terms=TERMS, batch=6)
    named = frame.toDF("instrument", "price", "part. `of` it")
    assert ROWS == prices.write(named, inserting(), terms=TERMS, batch=7, partition="part. `of` it").landed


def test_a_new_owner_raises_the_fence_and_learns_where_to_go_on(frame: DataFrame, prices: SqlReceiver) -> None:
    prices.write(frame.where("partition < 3"), inserting(), terms=TERMS, batch=7)
    newer = dict.fromkeys((1, 2, 3), 200)
    prices.raise_terms(newer)
    assert {1: 7, 2: 7, 3: None} == prices.progress(newer)
    with pytest.raises(Refused) as caught:
        prices.raise_terms({0: 100, 1: 101})
    assert ("prices/1", 101, 200) == (caught.value.resource, caught.value.term, caught.value.admitted)


def test_a_deposed_driver_still_writes_what_it_owns(prices: SqlReceiver, frame: DataFrame, path: Path) -> None:
    def fail(connection: Any, rows: Iterator[Row]) -> None:
        connection.executemany("INSERT INTO prices VALUES (?, ?, ?)", rows)
        raise RuntimeError("the write failed on purpose")

    with pytest.raises(Exception, match="the write failed on purpose"):
        prices.write(frame, fail, terms=TERMS, batch=1)
    assert [] == instruments(path)  # So the same batch may be tried again.
    prices.raise_terms({2: 200, 5: 201})
    with pytest.raises(Refused, match="term 102 was to be admitted to 'prices/2', but term 200 was already") as caught:
        prices.write(frame, inserting(), terms=TERMS, batch=1)
    assert ("prices/2", 102, 200) == (caught.value.resource, caught.value.term, caught.value.admitted)
    expected = "refused: the partitions 2, 5; of this batch, 6 partitions were written, and 0 were before"
    assert [expected] == caught.value.__notes__
    assert [one for number, one in enumerate(EACH_ONCE) if number % 8 not in {2, 5}] == instruments(path)
    kept = {partition: term for partition, term in TERMS.items() if partition not in {2, 5}}
    mine = frame.where("partition NOT IN (2, 5)")
    assert frozenset(kept) == prices.write(mine, inserting(), terms=kept, batch=1).before


def test_what_cannot_be_written_is_an_error(prices: SqlReceiver, frame: DataFrame, path: Path) -> None:
    with pytest.raises(FenceMisused, match=r"a column 'partition' .* found the columns instrument, price: add it by"):
        prices.write(frame.drop("partition"), inserting(), terms=TERMS, batch=1)
    with pytest.raises(FenceMisused, match="a term was wanted"):
        prices.write(frame, inserting(), terms={**TERMS, 1: -1}, batch=1)
    assert [] == instruments(path)
    terms = {partition: term for partition, term in TERMS.items() if partition != 3}
    with pytest.raises(FenceMisused, match="found rows of 1 partitions without one, such as 3: keep only rows"):
        prices.write(frame, inserting(), terms=terms, batch=1)
    nulls = frame.selectExpr("instrument", "price", "CAST(NULL AS INT) AS partition")
    with pytest.raises(FenceMisused, match="such as null"):
        prices.write(nulls, inserting(), terms=terms, batch=1)
    assert 87 == len(instruments(path))


@pytest.mark.redis
def test_it_writes_to_redis(frame: DataFrame, redis: str) -> None:
    redis_py = pytest.importorskip("redis")
    name = f"prices {uuid4().hex}"

    def commands(rows: Iterator[Row]) -> Iterator[tuple[str, str, str, float]]:
        return (("HINCRBYFLOAT", name, row.instrument, row.price) for row in rows)

    prices = RedisReceiver(name, lambda: redis_py.Redis.from_url(redis))
    assert ROWS == prices.write(frame, commands, terms=TERMS, batch=1).landed
    assert frozenset(TERMS) == prices.write(frame, commands, terms=TERMS, batch=1).before
    prices.raise_terms({2: 200})
    with pytest.raises(Refused, match="/2', but term 200 was already"):
        prices.write(frame, commands, terms=TERMS, batch=2)
    assert {1: 2, 2: 1} == prices.progress([1, 2])
    with closing(redis_py.Redis.from_url(redis)) as client:
        found = {key.decode(): float(price) for key, price in client.hgetall(name).items()}
    expected = {f"instrument {number}": number / 4 * (1 if number % 8 == 2 else 2) for number in range(100)}
    assert expected == found
