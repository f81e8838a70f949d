"""The loop of a job, over a real agent, a real Spark and a real table: every step lands once, and then it ends.

The rows are judged by code that knows no Spark (`pipeline.landing`). `test_exactly_once` does the same with processes
that are killed.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from dags.jobs.publish_prices import BARS, KEY, bars, last_prices, whole
from neli_router.agent import Client
from neli_router.exit_codes import EXIT_NO_AGENT
from neli_router.fence.delta import FencedTable
from neli_router.keyspace import Layout
from neli_router.pipeline.feeds import TickFolder, TickTopic
from neli_router.pipeline.landing import bars_of, commits_of, counted, same_bars
from neli_router.pipeline.source import TickSteps
from neli_router.pipeline.ticks import Market
from neli_router.settings.agent_options import AgentOptions
from neli_router.spark import read_table, with_partition
from neli_router.spark.steps import STEP, InputStep, StepLoop
from tests.support.agents.running import PATIENCE, configured, running
from tests.support.waiting import until

pytestmark = pytest.mark.spark

JOB = Path(__file__).parents[2] / "dags" / "jobs" / "publish_prices.py"
LAYOUT = Layout(partitions=4)
LEASE = 15.0
"""Seconds. Spark keeps both cores busy for seconds now and then, and shorter leases would be lost by it."""

SECONDS, INTERVALS, TICKS = 60, 4, 2000


@pytest.fixture(name="market", scope="module")
def made() -> list[pa.Table]:
    return list(Market(instruments=12, seconds=SECONDS).split(TICKS, INTERVALS))


class Bench:
    """One host's job on one table."""

    def __init__(self, folder: Path, spark: SparkSession, client: Client, address: str) -> None:
        self.table = FencedTable.create(folder / "table", BARS, LAYOUT, first_batch=1)
        self._spark, self._client, self._address = spark, client, address

    def client(self) -> Client:
        """Another one."""
        return Client(str(self._client.address), timeout=PATIENCE)

    def run(self, **options: bool | int) -> None:
        steps = TickSteps(self._spark, self._address, LAYOUT)
        StepLoop(self._spark, self._client, self.table, steps, self._made, **options).run()  # type: ignore[arg-type]

    def _made(self, ticks: DataFrame, partitions: Sequence[int]) -> DataFrame:
        mine = ticks.transform(with_partition, KEY, LAYOUT).where(sql.col("partition").isin(*partitions))
        return bars(mine, seconds=SECONDS)

    def reached(self) -> set[int]:
        return {at.batch for at in self.table.progress().values()}

    def rows(self) -> pa.Table:
        return dataset.dataset(self.table.files(), format="parquet").to_table()

    def require_whole(self, ticks: pa.Table) -> None:
        made = {it["values"]: it["counts"] for it in ticks["instrument"].value_counts().to_pylist()}
        assert counted(self.rows(), made).is_exact
        assert same_bars(self.rows(), ticks, SECONDS)


@contextmanager
def alone(folder: Path, spark: SparkSession, address: str) -> Iterator[Bench]:
    """A host that leads everything."""
    options = AgentOptions(socket=str(folder / "alone.sock"))
    config = configured(folder, "alone", layout=LAYOUT, lease=LEASE)
    with running(config, options), Client(options.socket, timeout=PATIENCE) as client:
        until(lambda: client.lease(0) is not None, "the lead")
        yield Bench(folder, spark, client, address)


def test_every_interval_of_a_folder_lands_once_as_a_step(
    tmp_path: Path, spark: SparkSession, market: list[pa.Table]
) -> None:
    feed = TickFolder(tmp_path / "ticks")
    for interval in market:
        feed.append(interval)
    with alone(tmp_path, spark, str(feed.folder)) as bench:
        bench.run(until=INTERVALS)
        bench.require_whole(pa.concat_tables(market))
        landed = [set(it.batches.values()) for it in commits_of(bench.table.path) if it.batches]
        assert [{1}, {2}, {3}, {4}] == landed
        bench.run(until=INTERVALS)
        assert landed == [set(it.batches.values()) for it in commits_of(bench.table.path) if it.batches]
        assert_prices(bench, spark, market)


def assert_prices(bench: Bench, spark: SparkSession, market: list[pa.Table]) -> None:
    """What a user of the job reads: whole bars and last prices, through Spark."""
    parts = read_table(spark, bench.table)
    assert bars_of(pa.concat_tables(market), SECONDS).num_rows == whole(parts).count()
    newest: dict[str, float] = {}
    for tick in pa.concat_tables(market).to_pylist():
        newest[tick["instrument"]] = tick["price"]
    assert newest == {row["instrument"]: row["price"] for row in last_prices(parts).collect()}


def test_once_ends_with_what_there_is_and_goes_on_from_there_the_next_time(
    tmp_path: Path, spark: SparkSession, market: list[pa.Table]
) -> None:
    feed = TickFolder(tmp_path / "ticks [1]")
    with alone(tmp_path, spark, str(feed.folder)) as bench:
        for interval in market[:2]:
            feed.append(interval)
        bench.run(once=True, longest=9)
        assert {2} == bench.reached()
        for interval in market[2:]:
            feed.append(interval)
        bench.run(once=True, longest=9)
        assert {4} == bench.reached()
        bench.require_whole(pa.concat_tables(market))


def test_a_stream_lands_what_comes_as_the_steps_that_a_batch_would_land(
    tmp_path: Path, spark: SparkSession, market: list[pa.Table]
) -> None:
    feed = TickFolder(tmp_path / "ticks")
    feed.append(market[0])
    with alone(tmp_path, spark, str(feed.folder)) as bench:

        def feed_on() -> None:
            for number, interval in enumerate(market[1:], start=1):
                until(lambda number=number: bench.reached() == {number}, f"step {number}")  # type: ignore[misc]
                feed.append(interval)

        feeder = threading.Thread(target=feed_on)
        feeder.start()
        bench.run(until=INTERVALS, streaming=True)
        feeder.join()
        bench.require_whole(pa.concat_tables(market))
        assert [{1}, {2}, {3}, {4}] == [set(it.batches.values()) for it in commits_of(bench.table.path) if it.batches]
        assert [] == spark.streams.active


def test_no_plan_shows_the_password_of_a_topic(spark: SparkSession) -> None:
    steps = TickSteps(spark, "kafka://anna:hidden@localhost:9092/ticks", LAYOUT)
    for rows in (steps.frame(InputStep(0, 0, 1, (0,))), steps.stream(0, 0, 1)):
        assert "hidden" not in rows._jdf.queryExecution().toString()


class SecondLaneBroken:
    """Two lanes without steps, of which only the first can be streamed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def lanes(self) -> int:
        return 2

    def tip(self, lane: int, known: int) -> int:
        return known

    def frame(self, step: InputStep) -> DataFrame:
        raise AssertionError("there is none")

    def stream(self, lane: int, after: int, longest: int) -> DataFrame:
        if lane:
            raise RuntimeError("the second lane is broken")
        return self._spark.readStream.format("rate").option("rowsPerSecond", 1).load().withColumn(STEP, sql.lit(0))


def test_no_query_goes_on_when_that_of_another_lane_cannot_begin(tmp_path: Path, spark: SparkSession) -> None:
    with alone(tmp_path, spark, str(tmp_path / "ticks")) as bench, bench.client() as client:
        loop = StepLoop(
            spark, client, bench.table, SecondLaneBroken(spark), lambda ticks, _: bars(ticks, seconds=1), streaming=True
        )
        with pytest.raises(RuntimeError, match="the second lane is broken"):
            loop.run()
        assert [] == spark.streams.active


def test_a_job_asks_for_the_agent_before_it_starts_spark(tmp_path: Path) -> None:
    """Spark would refuse this master, seconds later."""
    options = {"agent": f"unix:{tmp_path}/none.sock", "ticks": tmp_path, "table": tmp_path / "table", "master": "wrong"}
    ended = subprocess.run(
        [sys.executable, str(JOB), *(f"--{name}={value}" for name, value in options.items())],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert EXIT_NO_AGENT == ended.returncode, ended.stderr
    assert "there is no socket" in ended.stderr


@pytest.mark.kafka
def test_a_topic_of_two_partitions_lands_in_steps_that_cut_bars_and_the_parts_make_the_bars(
    tmp_path: Path, spark: SparkSession, market: list[pa.Table], new_topic: Callable[[int], str]
) -> None:
    address = new_topic(2)
    feed = TickTopic(address, LAYOUT)
    for interval in market:
        feed.append(interval)
    with alone(tmp_path, spark, address) as bench:
        bench.run(once=True, longest=700)
        ends = [feed.tip(lane, 0) for lane in range(2)]
        assert {it: ends[it % 2] for it in range(4)} == {it: at.batch for it, at in bench.table.progress().items()}
        bench.require_whole(pa.concat_tables(market))
        assert bench.rows().num_rows > bars_of(pa.concat_tables(market), SECONDS).num_rows
