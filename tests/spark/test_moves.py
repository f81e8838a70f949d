"""Partitions that move in mid-job, between two real agents: each step lands once, and each job ends as documented.

    patient    waits a minute for the end of work: its partitions are revoked, and the step is finished
    hasty      waits for a moment only: its partitions are fenced in the middle of a step, and the job is cancelled

A host is drained while Spark is at a step, and not between two: by the step itself, as it is made.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dags.jobs.publish_prices import BARS
from neli_router.agent import Client
from neli_router.agent.client.leading import LeadingBlock
from neli_router.agent.client.leases import AgentLease, Share
from neli_router.fence.delta import FencedTable
from neli_router.pipeline.feeds import TickFolder
from neli_router.pipeline.landing import commits_of
from neli_router.pipeline.source import TickSteps
from neli_router.pipeline.ticks import SCHEMA, Market
from neli_router.settings.agent_options import AgentOptions
from neli_router.spark import append_rows, guarded, run_job
from neli_router.spark.steps import StepLoop
from tests.spark.published import BAR_SECONDS, LAYOUT, LEASE, bars_made, require_whole
from tests.support.agents.running import PATIENCE, configured, running
from tests.support.waiting import until

pytestmark = pytest.mark.spark

INTERVALS, TICKS = 4, 400
DRAIN_TIMEOUTS = {"patient": 120.0, "hasty": 0.3}
OTHER = {"patient": "hasty", "hasty": "patient"}


class Watched(Client):
    """A client that remembers its last share, so that a test can wait for what becomes of it."""

    def share(self, partitions: Any = None, *, timeout: float | None = None) -> LeadingBlock[Share]:
        self.block = super().share(partitions, timeout=timeout)
        return self.block


Hosts = dict[str, Watched]
Event = Callable[[AgentLease], object]


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
    """Let all partitions go to this host. Returns as soon as the ledger says so; what works goes on."""
    hosts[name].undrain(name)
    hosts[name].drain(OTHER[name])


def leads_all(hosts: Hosts, name: str) -> bool:
    return all(hosts[name].lease(partition) is not None for partition in range(LAYOUT.partitions))


class Bench:
    """A feed, a table, and the jobs of both hosts over them."""

    def __init__(
        self, folder: Path, spark: SparkSession, hosts: Hosts, *, first_batch: int = 1, appended: int = INTERVALS
    ) -> None:
        self.market = list(Market(instruments=12, seconds=BAR_SECONDS).split(TICKS, INTERVALS))
        self.table = FencedTable.create(folder / "table", BARS, LAYOUT, first_batch=first_batch)
        self._hosts, self._spark, self._feed = hosts, spark, TickFolder(folder / "ticks")
        self.append = self._feed.append
        for interval in self.market[:appended]:
            self.append(interval)

    def loop(self, name: str, *, in_step_two: Callable[[], object] = int, **options: bool | int) -> StepLoop:
        """The job of a host. In the middle of its second step, something happens."""
        taken = 0

        def made(ticks: DataFrame, partitions: Sequence[int]) -> DataFrame:
            nonlocal taken
            taken += 1
            rows = bars_made(ticks, partitions)
            return rows if taken != 2 or in_step_two() != ENDLESS else endless(rows)

        steps = TickSteps(self._spark, str(self._feed.folder), LAYOUT)
        return StepLoop(self._spark, self._hosts[name], self.table, steps, made, **options)  # type: ignore[arg-type]

    def stream(self) -> DataStreamWriter:
        """The feed as a user would read it: an interval a batch."""
        schema = from_arrow_schema(SCHEMA)
        files = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self._feed.folder))
        return files.writeStream

    def reached(self) -> set[int]:
        return {at.batch for at in self.table.progress().values()}

    def require_whole(self) -> None:
        """Each step landed once in each partition, and each tick is there once."""
        landed = [(it, batch) for commit in commits_of(self.table.path) for it, batch in commit.batches.items()]
        batches = range(self.table.first_batch, self.table.first_batch + INTERVALS)
        assert [(it, batch) for it in range(LAYOUT.partitions) for batch in batches] == sorted(landed)
        require_whole(self.table, self.market)


ENDLESS = "endless"


def endless(rows: DataFrame) -> DataFrame:
    """As `rows`, but Spark does not come to the end of them in a year, and writes none; nor can it know so before."""
    return rows.crossJoin(rows.sparkSession.range(0, 10**15, 1, 2)).where("rand() + id < 0").drop("id")


def code_of(job: Callable[[], object]) -> object:
    """The exit code of a program of this job."""
    with pytest.raises(SystemExit) as caught:
        run_job(job, end_within=None)
    return caught.value.code


@pytest.mark.parametrize("streaming", [False, True])
def test_a_step_that_is_revoked_lands_and_one_that_is_fenced_does_not_and_the_next_host_goes_on_from_there(
    tmp_path: Path, spark: SparkSession, hosts: Hosts, capsys: pytest.CaptureFixture[str], *, streaming: bool
) -> None:
    bench = Bench(tmp_path, spark, hosts)

    def leave_hasty() -> str:
        move(hosts, "patient")
        return ENDLESS

    def leave_patient() -> None:
        move(hosts, "hasty")
        until(lambda: hosts["patient"].block.hold.revoked, "the revocation")

    move(hosts, "hasty")
    until(lambda: leads_all(hosts, "hasty"))
    assert 75 == code_of(bench.loop("hasty", in_step_two=leave_hasty, until=INTERVALS, streaming=streaming).run)
    assert "neli: LeaseLost: the leases of partitions 0, 1, 2, 3 were needed" in capsys.readouterr().err
    assert [{1}, []] == [bench.reached(), spark.streams.active]

    until(lambda: leads_all(hosts, "patient"))
    loop = bench.loop("patient", in_step_two=leave_patient, until=INTERVALS, streaming=streaming, reopen=False)
    assert 75 == code_of(loop.run)
    assert "partitions moved" in capsys.readouterr().err
    assert [{3}, []] == [bench.reached(), spark.streams.active]

    until(lambda: leads_all(hosts, "hasty"))
    assert 0 == code_of(bench.loop("hasty", until=INTERVALS, streaming=streaming, reopen=False).run)
    bench.require_whole()


def test_a_job_goes_on_with_what_comes_back_and_is_done_in_the_end(
    tmp_path: Path, spark: SparkSession, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.spark.steps.SHARE_MAX", 0.5)
    bench, codes = Bench(tmp_path, spark, hosts), list[object]()

    def leave() -> None:
        move(hosts, "hasty")
        until(lambda: hosts["patient"].block.hold.revoked, "the revocation")

    move(hosts, "patient")
    until(lambda: leads_all(hosts, "patient"))
    patient = bench.loop("patient", in_step_two=leave, until=INTERVALS)
    job = threading.Thread(target=lambda: codes.append(code_of(patient.run)))
    job.start()
    until(lambda: leads_all(hosts, "hasty"))
    assert {2} == bench.reached()
    assert bench.loop("hasty", until=INTERVALS - 1).run()
    move(hosts, "patient")
    job.join(PATIENCE)
    assert [0] == codes
    bench.require_whole()


def test_a_job_that_others_have_done_while_it_led_nothing_is_done(
    tmp_path: Path, spark: SparkSession, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.spark.steps.SHARE_MAX", 0.5)
    bench, codes = Bench(tmp_path, spark, hosts), list[object]()
    move(hosts, "hasty")
    until(lambda: leads_all(hosts, "hasty"))
    patient = bench.loop("patient", until=INTERVALS, reopen=False)
    job = threading.Thread(target=lambda: codes.append(code_of(patient.run)))
    job.start()
    assert bench.loop("hasty", until=INTERVALS, longest=INTERVALS).run()
    job.join(PATIENCE)
    assert [0] == codes


def test_a_job_that_shall_end_when_its_partitions_moved_says_that_it_is_not_done_when_it_gained_some(
    tmp_path: Path, spark: SparkSession, hosts: Hosts
) -> None:
    bench = Bench(tmp_path, spark, hosts)

    def gain() -> None:
        move(hosts, "patient")
        until(lambda: len(hosts["patient"].block.hold.more) == 2, "the others")

    for name, client in hosts.items():
        client.undrain(name)
    until(lambda: all(sum(client.lease(it) is not None for it in range(4)) == 2 for client in hosts.values()))
    assert 75 == code_of(bench.loop("patient", in_step_two=gain, until=INTERVALS, reopen=False).run)
    assert {0, 2} == bench.reached()


def test_a_query_goes_on_from_its_checkpoint_on_each_host_that_leads_its_role_and_lands_each_batch_once(
    tmp_path: Path, spark: SparkSession, hosts: Hosts
) -> None:
    """The batches are Spark's own, and their numbers are those of the one checkpoint, which the hosts share."""
    bench = Bench(tmp_path, spark, hosts, first_batch=0, appended=INTERVALS - 1)
    landings: list[tuple[str, int, bool]] = []

    def publish(name: str, *, at: int, before: Event = bool, after: Event = bool) -> object:
        """The exit code of a host's job, in whose batch number `at` something happens before or after its commit."""
        done = threading.Event()

        def job() -> None:
            with hosts[name].leading(0, timeout=PATIENCE) as lease, guarded(spark, lease, end_within=None):
                terms = dict.fromkeys(range(LAYOUT.partitions), lease.term)
                bench.table.raise_terms(terms)

                def land(ticks: DataFrame, batch: int) -> None:
                    rows = bars_made(ticks, range(LAYOUT.partitions))
                    if batch == at and before(lease) == ENDLESS:
                        rows = endless(rows)
                    landings.append((name, batch, bool(append_rows(rows, bench.table, terms, batch).landed)))
                    if batch == at and after(lease) == ENDLESS:
                        endless(rows).collect()
                    if batch == INTERVALS - 1:
                        done.set()

                query = bench.stream().foreachBatch(land).option("checkpointLocation", str(tmp_path / "state")).start()
                until(lambda: done.is_set() or not query.isActive, "the end of the query")
                query.stop()
                if (trouble := query.exception()) is not None:
                    raise trouble

        return code_of(job)

    def lose(_: object) -> str:
        move(hosts, "patient")
        return ENDLESS

    def leave(lease: AgentLease) -> None:
        move(hosts, "hasty")
        assert lease.revoked.wait(PATIENCE)

    move(hosts, "hasty")
    assert 75 == publish("hasty", at=1, after=lose)
    assert [("hasty", 0, True), ("hasty", 1, True)] == landings
    assert 75 == publish("patient", at=2, before=leave)
    assert [("patient", 1, False), ("patient", 2, True)] == landings[2:]
    bench.append(bench.market[-1])
    assert 75 == publish("hasty", at=INTERVALS - 1, before=lose)
    assert 0 == publish("patient", at=INTERVALS)
    assert ("patient", INTERVALS - 1, True) == landings[-1]
    bench.require_whole()
