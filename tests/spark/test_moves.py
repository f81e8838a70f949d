"""Partitions that move in mid-job, between two real agents: each step lands once, and each job ends as documented.

    patient    waits a minute for the end of work: its partitions are revoked, and the step is finished
    hasty      waits only for a moment: its partitions are fenced in the middle of a step, and the job is cancelled

A host is drained while Spark is in a step, not between two steps: the step itself drains it while its rows are made.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dags.jobs.publish_prices import KEY
from neli_router.agent import Client
from neli_router.agent.client.leading import LeadingBlock
from neli_router.agent.client.leases import Share
from neli_router.config.agent_options import AgentOptions
from neli_router.lab.pipeline.ticks import SCHEMA, Market
from neli_router.spark import append_rows, guarded, run_job, with_partition
from neli_router.spark.feeds import NumberedFiles
from tests.spark.published import BAR_SECONDS, LAYOUT, LEASE, Bench, bars_made
from tests.support.agents.running import PATIENCE, configured, running
from tests.support.waiting import until

pytestmark = pytest.mark.spark

INTERVALS, TICKS = 4, 400
DRAIN_TIMEOUTS = {"patient": 120.0, "hasty": 0.3}
OTHER = {"patient": "hasty", "hasty": "patient"}


class Watched(Client):
    """A client that remembers its last share, so that a test can wait for what happens to it."""

    def share(self, partitions: Any = None, *, timeout: float | None = None) -> LeadingBlock[Share]:
        self.block = super().share(partitions, timeout=timeout)
        return self.block


Hosts = dict[str, Watched]


@pytest.fixture(name="hosts", scope="module")
def group_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder, hosts = tmp_path_factory.mktemp("moves"), {}
    with ExitStack() as stack:
        for name, drain_timeout in DRAIN_TIMEOUTS.items():
            options = AgentOptions(socket=str(folder / f"{name}.sock"))
            config = configured(folder, name, layout=LAYOUT, lease=LEASE, drain_timeout=drain_timeout)
            agent = stack.enter_context(running(config, options))
            agent.await_ready()
            hosts[name] = stack.enter_context(Watched(options.socket, timeout=PATIENCE))
        yield hosts


def move(hosts: Hosts, name: str) -> None:
    """Let all partitions go to this host. Returns as soon as the ledger says so; work in progress goes on."""
    hosts[name].drain(name, undo=True)
    hosts[name].drain(OTHER[name])


def move_all(hosts: Hosts, name: str) -> None:
    """Do the same, and wait until the host leads them all."""
    move(hosts, name)
    await_all(hosts, name)


def await_all(hosts: Hosts, name: str) -> None:
    client = hosts[name]
    until(lambda: all(client.lease(it) is not None for it in range(LAYOUT.partitions)), f"all partitions of {name}")


def leave(hosts: Hosts, name: str) -> None:
    """Let all partitions go to the other host, and wait until this host has heard of it."""
    move(hosts, OTHER[name])
    until(lambda: hosts[name].block.report.revoked, "the revocation")


class Moves(Bench):
    """A feed, and the jobs of both hosts over it."""

    def __init__(self, folder: Path, spark: SparkSession, hosts: Hosts, *, first_batch: int = 1) -> None:
        super().__init__(folder, spark, folder / "ticks", first_batch=first_batch)
        self.market = list(Market(instruments=12, seconds=BAR_SECONDS).split(TICKS, INTERVALS))
        self._hosts, self.feed = hosts, NumberedFiles(folder / "ticks")
        for interval in self.market:
            self.feed.append(interval)

    def job(self, name: str, in_step_two: Callable[[], object] = int, /, **options: int) -> Callable[[], bool]:
        """The job of a host. In the middle of its second step, `in_step_two` is called."""
        taken = 0

        def made(ticks: DataFrame) -> DataFrame:
            nonlocal taken
            taken += 1
            rows = bars_made(ticks)
            return rows if taken != 2 or in_step_two() != ENDLESS else endless(rows)

        return partial(self.run, self._hosts[name], made=made, **options)  # type: ignore[arg-type]

    def stream(self) -> DataStreamWriter:
        """The feed as a user would read it: one interval per batch."""
        schema = from_arrow_schema(SCHEMA)
        files = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.feed.folder))
        return files.writeStream

    def require_all(self) -> None:
        """Each step landed once in each partition, and each tick is there once."""
        landed = [pair for commit in self.landed() for pair in commit.items()]
        batches = range(self.table.first_batch, self.table.first_batch + INTERVALS)
        assert [(it, batch) for it in range(LAYOUT.partitions) for batch in batches] == sorted(landed)
        self.require_whole(self.market)


ENDLESS = "endless"


def endless(rows: DataFrame) -> DataFrame:
    """Like `rows`, but Spark would take more than a year to finish them, and writes none; nor can it know that in
    advance."""
    return rows.crossJoin(rows.sparkSession.range(0, 10**15, 1, 2)).where("rand() + id < 0").drop("id")


def code_of(job: Callable[[], object]) -> object:
    """The exit code of a program that runs this job."""
    with pytest.raises(SystemExit) as caught:
        run_job(job, end_within=None)
    return caught.value.code


def test_a_step_that_is_revoked_lands_and_one_that_is_fenced_does_not_and_the_next_host_goes_on_from_there(
    tmp_path: Path, spark: SparkSession, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    moves = Moves(tmp_path, spark, hosts)

    def lose() -> str:
        move(hosts, "patient")
        return ENDLESS

    move_all(hosts, "hasty")
    assert 75 == code_of(moves.job("hasty", lose, until=INTERVALS))
    assert "neli: LeaseLost: the leases of partitions 0, 1, 2, 3 were needed" in capsys.readouterr().err
    assert {1} == moves.reached()

    await_all(hosts, "patient")
    assert 75 == code_of(moves.job("patient", lambda: leave(hosts, "patient"), until=INTERVALS, reopen=False))
    assert "partitions moved" in capsys.readouterr().err
    assert {3} == moves.reached()

    await_all(hosts, "hasty")
    assert 0 == code_of(moves.job("hasty", until=INTERVALS, reopen=False))
    moves.require_all()


def test_a_job_goes_on_with_what_comes_back_and_is_done_in_the_end_also_if_others_did_the_rest(
    tmp_path: Path, spark: SparkSession, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.spark.steps.SHARE_MAX", 0.5)
    moves = Moves(tmp_path, spark, hosts)
    move_all(hosts, "patient")
    with ThreadPoolExecutor(1) as pool:
        patient = moves.job("patient", lambda: leave(hosts, "patient"), until=INTERVALS)
        job = pool.submit(code_of, patient)
        await_all(hosts, "hasty")
        assert {2} == moves.reached()
        assert moves.job("hasty", until=INTERVALS - 1)()
        move(hosts, "patient")
        assert 0 == job.result(PATIENCE)
        moves.require_all()

        moves = Moves(tmp_path / "others", spark, hosts)
        move_all(hosts, "hasty")
        job = pool.submit(code_of, moves.job("patient", until=INTERVALS, reopen=False))
        assert moves.job("hasty", until=INTERVALS, longest=INTERVALS)()
        assert 0 == job.result(PATIENCE)


def test_a_job_that_does_not_reopen_ends_when_it_gains(tmp_path: Path, spark: SparkSession, hosts: Hosts) -> None:
    moves = Moves(tmp_path, spark, hosts)

    def gain() -> None:
        move(hosts, "patient")
        until(lambda: len(hosts["patient"].block.report.more) == 2, "the others")

    for name, client in hosts.items():
        client.drain(name, undo=True)
    until(lambda: all(sum(client.lease(it) is not None for it in range(4)) == 2 for client in hosts.values()))
    assert 75 == code_of(moves.job("patient", gain, until=INTERVALS, reopen=False))
    assert {0, 2} == moves.reached()


def test_a_query_goes_on_on_the_host_that_leads_its_role(tmp_path: Path, spark: SparkSession, hosts: Hosts) -> None:
    """The batches are Spark's own, and their numbers come from the one checkpoint that the hosts share."""
    moves = Moves(tmp_path, spark, hosts, first_batch=0)
    landings: list[tuple[str, int, bool]] = []

    def publish(name: str, *, lose_after: int = INTERVALS) -> object:
        """The exit code of a host's job. It loses its role after the commit of its batch number `lose_after`."""
        done = threading.Event()

        def job() -> None:
            with hosts[name].leading(0, timeout=PATIENCE) as lease, guarded(spark, lease, end_within=None):
                terms = dict.fromkeys(range(LAYOUT.partitions), lease.term)
                moves.table.raise_terms(terms)

                def land(ticks: DataFrame, batch: int) -> None:
                    rows = bars_made(ticks.transform(with_partition, KEY, LAYOUT))
                    landings.append((name, batch, bool(append_rows(rows, moves.table, terms, batch).landed)))
                    if batch == lose_after:
                        move(hosts, OTHER[name])
                        endless(rows).collect()
                    if batch == INTERVALS - 1:
                        done.set()

                query = moves.stream().foreachBatch(land).option("checkpointLocation", str(tmp_path / "state")).start()
                until(lambda: done.is_set() or not query.isActive, "the end of the query")
                query.stop()
                if (trouble := query.exception()) is not None:
                    raise trouble

        return code_of(job)

    move(hosts, "hasty")
    assert 75 == publish("hasty", lose_after=1)
    assert [("hasty", 0, True), ("hasty", 1, True)] == landings
    assert 0 == publish("patient")
    assert [("patient", 1, False), ("patient", 2, True), ("patient", 3, True)] == landings[2:]
    moves.require_all()
