"""The loop of a job, over a real agent, a real Spark and a real table: every step lands once, and then it ends.

Code without Spark judges the rows (`pipeline.landing`). `test_exactly_once` does the same with processes that are
killed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dags.jobs import publish_prices
from dags.jobs.publish_prices import KEY, TICK, last_prices, whole
from neli_router.agent import Client
from neli_router.config.agent_options import AgentOptions
from neli_router.core.keyspace import Layout
from neli_router.errors import NoAgent
from neli_router.fence import TableMismatch
from neli_router.lab.pipeline.feeds import TickTopic
from neli_router.lab.pipeline.landing import bars_of
from neli_router.lab.pipeline.ticks import Market
from neli_router.spark import KafkaSteps, ParquetSteps, StepLoop, read_table
from neli_router.spark.feeds import NumberedFiles
from neli_router.spark.steps import HELD
from tests.spark.published import BAR_SECONDS, LAYOUT, LEASE, Bench, bars_made, rows_of
from tests.support.agents.running import PATIENCE, configured, running
from tests.support.waiting import until

pytestmark = pytest.mark.spark

INTERVALS, TICKS = 3, 1000
IN_ORDER = [dict.fromkeys(range(LAYOUT.partitions), step) for step in range(1, INTERVALS + 1)]


@pytest.fixture(name="market", scope="module")
def made() -> list[pa.Table]:
    return list(Market(instruments=12, seconds=BAR_SECONDS).split(TICKS, INTERVALS))


@pytest.fixture(name="alone", scope="module")
def client_of_an_agent_that_leads_everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("alone")
    options = AgentOptions(socket=str(folder / "alone.sock"))
    config = configured(folder, "alone", layout=LAYOUT, lease=LEASE)
    with running(config, options), Client(options.socket, timeout=PATIENCE) as client:
        until(lambda: all(client.lease(partition) is not None for partition in range(LAYOUT.partitions)), "the lead")
        yield client


def test_what_is_in_a_folder_lands_once_and_a_later_run_goes_on_from_there_an_interval_a_step(
    tmp_path: Path, spark: SparkSession, alone: Client, market: list[pa.Table]
) -> None:
    feed = NumberedFiles(tmp_path / "ticks [1]")
    bench = Bench(tmp_path, spark, feed.folder)
    feed.append(market[0])
    behind: list[object] = []

    def made(rows: DataFrame) -> DataFrame:
        behind.append(alone.status().behind)
        return bars_made(rows)

    bench.run(alone, "now", made, longest=9)
    assert ({1}, [{"table": dict.fromkeys(range(4), 1)}], {}) == (bench.reached(), behind, alone.status().behind)
    for interval in market[1:]:
        feed.append(interval)
    for _ in range(2):
        bench.run(alone, INTERVALS)
        assert IN_ORDER == bench.landed()
    bench.require_whole(market)

    # A user of the job reads whole bars and last prices through Spark.
    parts = read_table(spark, bench.table)
    assert bars_of(pa.concat_tables(market), BAR_SECONDS).num_rows == whole(parts).count()
    newest = {tick["instrument"]: tick["price"] for tick in pa.concat_tables(market).to_pylist()}
    assert newest == {row["instrument"]: row["price"] for row in last_prices(parts).collect()}


def test_a_table_of_another_layout_is_refused_before_a_row_lands(
    tmp_path: Path, spark: SparkSession, alone: Client, market: list[pa.Table]
) -> None:
    feed = NumberedFiles(tmp_path / "ticks")
    feed.append(market[0])
    bench = Bench(tmp_path, spark, feed.folder, layout=Layout(partitions=8))
    with pytest.raises(TableMismatch, match="unequal: partitions"):
        bench.run(alone, "now")
    assert ({0}, []) == (bench.reached(), bench.table.files())


def test_a_loop_that_runs_again_is_for_the_partitions_that_its_task_holds_by_then(
    tmp_path: Path, spark: SparkSession, alone: Client, market: list[pa.Table]
) -> None:
    feed = NumberedFiles(tmp_path / "ticks")
    bench = Bench(tmp_path, spark, feed.folder)
    steps = ParquetSteps(feed.folder, KEY, schema=TICK)
    loop = StepLoop(steps, bars_made, bench.table, client=alone, spark=spark)
    feed.append(market[0])
    spark.conf.set(HELD, "0,3")
    try:
        assert loop.run("now")
    finally:
        spark.conf.unset(HELD)
    assert [{0: 1, 3: 1}] == bench.landed()
    assert loop.run("now")
    assert [{0: 1, 3: 1}, {1: 1, 2: 1}] == bench.landed()


def test_no_plan_shows_the_password_of_a_topic(spark: SparkSession) -> None:
    steps = KafkaSteps("kafka://anna:hidden@localhost:9092/ticks")
    assert "hidden" not in steps.frame(spark, LAYOUT, 0, 0, 1)._jdf.queryExecution().toString()


def test_a_job_asks_for_the_agent_before_it_starts_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_prices, "session", lambda *_, **__: pytest.fail("Spark was started"))
    options = {"agent": f"unix:{tmp_path}/none.sock", "ticks": tmp_path, "table": tmp_path / "table"}
    monkeypatch.setattr("sys.argv", ["publish_prices.py", *(f"--{name}={value}" for name, value in options.items())])
    with pytest.raises(NoAgent, match="there is no socket"):
        publish_prices.publish(publish_prices._options())


@pytest.mark.kafka
def test_a_topic_of_two_partitions_lands_in_steps_that_cut_bars_and_the_parts_make_the_bars(
    tmp_path: Path, spark: SparkSession, alone: Client, market: list[pa.Table], new_topic: Callable[[int], str]
) -> None:
    address = new_topic(2)
    feed, bench = TickTopic(address, LAYOUT), Bench(tmp_path, spark, address)
    for interval in market:
        feed.append(interval)
    bench.run(alone, "now", longest=350)
    ends = [feed.tip(lane, 0) for lane in range(2)]
    assert {it: ends[it % 2] for it in range(4)} == {it: at.batch for it, at in bench.table.progress().items()}
    bench.require_whole(market)
    assert rows_of(bench.table).num_rows > bars_of(pa.concat_tables(market), BAR_SECONDS).num_rows
