"""LeaderSparkSubmitOperator with the real spark-submit: what a job is told, and that nothing of it is left behind.

host a, host b: an agent each, one group      each try of a task has the connection to one of them, and a way of
                                              the job: see `spark_job`
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowNotFoundException, Context
from deltalake import DeltaTable

from airflow_provider.operators.spark import LeaderSparkSubmitOperator
from neli_router.fence.delta import FencedTable
from neli_router.keyspace import Layout
from neli_router.spark.runtime import SparkUnusable
from tests.support.agents.processes import PARTITIONS, AgentProcess, agents, leader_of
from tests.support.agents.running import TOKEN
from tests.support.given import DagTest, spelled
from tests.support.servers.airflow import ENDED, Airflow, AirflowApi, until
from tests.support.servers.spark import Spark

pytestmark = [pytest.mark.airflow, pytest.mark.process, pytest.mark.timeout(1800)]

JOB = str(Path(__file__).with_name("spark_job.py"))
ROLE = 3

LEASE = 10.0
"""Seconds. A JVM that starts takes a small machine for itself, and an agent must not lose its roles by that."""

START = datetime(2026, 1, 1, tzinfo=UTC)

WORK_MAX = 600.0
"""Seconds until a job of Spark is at work, or has ended. Alone on the machine it takes ten."""


@pytest.fixture(autouse=True)
def _spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", spelled("spark", host="local[1]"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.fixture(name="both")
def _both(
    tmp_path: Path, neli_default: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[AgentProcess, AgentProcess]]:
    """Two hosts: this one, which leads ROLE, and another. After `neli_default`, which is another agent's."""
    with agents(tmp_path, "a", "b", lease=LEASE, drain_timeout=0.3) as group:
        here = leader_of(ROLE, group)
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", here.connection)
        (other,) = (agent for agent in group if agent is not here)
        yield here, other


SMALL: dict[str, Any] = {
    "driver_memory": "512m",
    "conf": {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        # The C1 compiler alone starts sooner and leaves the cores to the tests.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    },
    "env_vars": {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    },
}
"""A Spark for one small job, with the modules of this process."""


def job(folder: Path, way: str, **options: Any) -> dict[str, Any]:
    """The arguments of an operator."""
    return {"application": JOB, "application_args": [str(folder), way], **SMALL, **options}


TABLE = pa.schema({"member": pa.string()})

DAG_FILE = f"""
from datetime import timedelta
from airflow.sdk import DAG
from airflow_provider.operators.spark import LeaderSparkSubmitOperator
from airflow_provider.retries import LeadershipRetryPolicy

NOW = "[ti.try_number - 1] }}}}"
FOLDER = "{{{{ dag_run.conf['folder'] }}}}/{{{{ ti.try_number }}}}"

with DAG("submits"):
    LeaderSparkSubmitOperator(
        task_id="job",
        role={ROLE},
        neli_conn_id="{{{{ dag_run.conf['hosts']" + NOW,
        when_not_leading="wait",
        retries=2,
        retry_delay=timedelta(hours=1),
        retry_policy=LeadershipRetryPolicy(delay=0.5),
        conn_id="spark_of_tests",
        application={JOB!r},
        application_args=[FOLDER, "{{{{ dag_run.conf['ways']" + NOW],
        **{SMALL!r},
    )
"""


class Submission:
    """The processes of one job that runs, as /proc has them."""

    def __init__(self, folder: Path) -> None:
        """Of the job whose folder this is: the name of no other process has it."""
        found = {pid: (parent, command) for pid, parent, _, command in processes() if str(folder) in command}
        self.wardens = sorted(pid for pid, (_, command) in found.items() if "airflow_provider.warden" in command)
        (self.task,) = {found[pid][0] for pid in self.wardens} - set(self.wardens)
        (self.session,) = {pid for pid, (parent, _) in found.items() if parent in self.wardens} - set(self.wardens)
        commands = " ".join(command for _, _, session, command in processes() if session == self.session)
        for part in ("org.apache.spark.deploy.SparkSubmit", "spark_job.py", "pyspark.daemon"):
            assert part in commands, commands

    @property
    def left(self) -> list[int]:
        """Those of spark-submit's session, whatever they are: Java, the driver, pyspark.daemon, its workers."""
        return [pid for pid, _, session, _ in processes() if session == self.session]

    def await_end(self) -> None:
        wardens = set(self.wardens)
        until(
            lambda: not self.left and not wardens & {pid for pid, *_ in processes()},
            "the end of all of the job's processes",
        )


def processes() -> Iterator[tuple[int, int, int, str]]:
    """All that live: its number, its parent's, its session, and its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It has ended.
            state, parent, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                yield int(folder.name), int(parent), int(session), (folder / "cmdline").read_text().replace("\0", " ")


def send(number: signal.Signals, *pids: int) -> None:
    for pid in pids:
        os.kill(pid, number)


class Place:
    """A real installation, two hosts' agents, and the Dag `submits`."""

    def __init__(self, api: AirflowApi, both: list[AgentProcess]) -> None:
        self.api, self.both = api, both

    def trigger(self, folder: Path, tries: list[tuple[AgentProcess, str]]) -> str:
        """Ask for a run, of which each try has a host and a way of the job; its id."""
        for number in range(len(tries)):
            (folder / str(number + 1)).mkdir(parents=True)
        hosts, ways = [f"host_{agent.name}" for agent, _ in tries], [way for _, way in tries]
        return self.api.trigger("submits", conf={"folder": str(folder), "hosts": hosts, "ways": ways})

    def await_work(self, run: str, folder: Path) -> Submission:
        """The job of a try, once a Python worker of Spark is at it. Airflow and a JVM start slowly."""
        until(lambda: (folder / "worker").exists() or self.has_ended(run), f"the work of {run}", patience=WORK_MAX)
        assert (folder / "worker").exists(), self.api.log("submits", run, "job", try_number=int(folder.name))
        return Submission(folder)

    def has_ended(self, run: str) -> bool:
        return self.api.run("submits", run)["state"] in ENDED


@pytest.fixture(name="place")
def _place(installation: Airflow, tmp_path: Path) -> Iterator[Place]:
    api = installation.api
    with agents(tmp_path, "a", "b", lease=LEASE, drain_timeout=0.3) as both:
        for agent in both:
            if f"host_{agent.name}" in api.connections():
                api.call("DELETE", f"/connections/host_{agent.name}")
            api.add_connection(f"host_{agent.name}", extra={"address": agent.address})
        if "spark_of_tests" not in api.connections():
            api.add_connection("spark_of_tests", "spark", host="local[1]")
        (installation.dags / "submits.py").write_text(DAG_FILE, encoding="utf-8")
        api.await_dag("submits")
        yield Place(api, both)


def test_a_job_that_loses_its_role_is_gone_and_refused_and_its_retry_succeeds_where_the_role_is_led(
    place: Place, tmp_path: Path
) -> None:
    first = leader_of(ROLE, place.both)
    (second,) = (agent for agent in place.both if agent is not first)
    folder = tmp_path / "run"
    run = place.trigger(folder, [(first, "linger"), (second, "late"), (first, "commit")])

    # The role moves while the job, deaf as it is, works.
    drained = place.await_work(run, folder / "1")
    with second.client() as client:
        client.drain(first.name)
    drained.await_end()

    # The host of the second try fails: its agent is dead, and all else stands still. (An agent that stands still may be
    # within a transaction of the ledger's file, and hold up the other one.) The new owner's job begins, as this does.
    frozen = place.await_work(run, folder / "2")
    guards, job = (frozen.task, *frozen.wardens), frozen.left
    send(signal.SIGSTOP, *guards, *job)
    with second.client() as client:
        client.undrain(first.name)
    second.kill()
    assert first is leader_of(ROLE, [first])
    table = FencedTable.create(folder / "table", TABLE, Layout(partitions=PARTITIONS), first_batch=1)
    with first.client() as client, client.leading(ROLE) as lease:
        table.raise_terms({ROLE: lease.term})
    # The job wakes up first, and nothing is there yet that could end it.
    (folder / "2" / "now").touch()
    send(signal.SIGCONT, *job)
    until((folder / "2" / "late").exists, "the late commit")
    assert "Refused" == (folder / "2" / "late").read_text()
    send(signal.SIGCONT, *guards)
    frozen.await_end()

    assert "success" == place.api.await_run("submits", run, patience=WORK_MAX)
    for number in (1, 2):
        assert "LeadershipLost" in place.api.log("submits", run, "job", try_number=number)
    told = json.loads((folder / "3" / "told.json").read_text())["settings"]
    assert first.name == told["spark.neli.member"]
    assert int(told["spark.neli.term"]) == table.progress([ROLE])[ROLE].term
    assert [first.name] == DeltaTable(str(table.path)).to_pyarrow_table()["member"].to_pylist()


def test_nothing_is_left_of_the_job_of_a_task_that_is_killed(place: Place, tmp_path: Path) -> None:
    here = leader_of(ROLE, place.both)
    by_a_person, by_the_kernel = tmp_path / "person", tmp_path / "kernel"
    runs = [place.trigger(folder, [(here, "linger")]) for folder in (by_a_person, by_the_kernel)]
    failed, killed = (
        place.await_work(run, folder / "1") for run, folder in zip(runs, (by_a_person, by_the_kernel), strict=True)
    )
    # Airflow sends SIGTERM to the task's group, and then SIGKILL. The job is in another one.
    path = f"/dags/submits/dagRuns/{runs[0]}/taskInstances/job"
    place.api.call("PATCH", path, body={"new_state": "failed"})
    send(signal.SIGKILL, killed.task)
    failed.await_end()
    killed.await_end()
    place.api.call("PATCH", f"/dags/submits/dagRuns/{runs[1]}", body={"state": "failed"})


def states(run: Any) -> dict[str, str]:
    return {one.task_id: str(one.state) for one in run.get_task_instances()}


def test_a_job_is_told_for_what_it_works_and_the_token_stands_on_no_command_line(
    tmp_path: Path, both: tuple[AgentProcess, AgentProcess], dag_test: DagTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = both
    with here.client() as client, client.share(timeout=60) as share:
        led = sorted(share.terms)
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", spelled(address=here.address, password=TOKEN))
    failures: list[BaseException] = []
    for name in ("one", "lost"):
        (tmp_path / name).mkdir()
    with DAG("told", start_date=START) as dag:
        LeaderSparkSubmitOperator(task_id="one", role=ROLE, **job(tmp_path / "one", "tell"))
        LeaderSparkSubmitOperator(
            task_id="lost",
            partitions="led",
            on_failure_callback=lambda context: failures.append(context["exception"]),
            **job(tmp_path / "lost", "lose"),
        )
    assert {"one": "success", "lost": "failed"} == states(dag_test(dag))
    one, lost = (json.loads((tmp_path / name / "told.json").read_text()) for name in ("one", "lost"))
    assert {"NELI_AGENT": here.address, "NELI_TOKEN": TOKEN} == one["environment"]
    assert TOKEN not in one["command"]
    assert "spark.neli.term=" in one["command"]
    settings = one["settings"]
    assert Layout(partitions=PARTITIONS) == Layout(**json.loads(settings["spark.neli.layout"]))
    assert (here.name, str(ROLE)) == (settings["spark.neli.member"], settings["spark.neli.partitions"])
    assert {str(ROLE): int(settings["spark.neli.term"])} == json.loads(settings["spark.neli.terms"])
    assert ",".join(map(str, led)) == lost["settings"]["spark.neli.partitions"]
    assert set(map(str, led)) == json.loads(lost["settings"]["spark.neli.terms"]).keys()
    assert "spark.neli.term" not in lost["settings"]
    assert ["LeadershipLost"] == [type(failure).__name__ for failure in failures]


class CrashingOperator(LeaderSparkSubmitOperator):
    """Leaves its job on the cluster, as a worker that crashes does."""

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        seen.append(external_id)
        if len(seen) < 3:
            raise RuntimeError("the worker crashes")


seen: list[str] = []
"""The jobs of its tries."""


def test_a_retry_goes_on_with_a_job_of_the_cluster_only_under_the_same_term(
    tmp_path: Path, both: tuple[AgentProcess, AgentProcess], dag_test: DagTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = both

    def move(_: Any) -> None:
        if len(seen) == 2:
            monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", other.connection)
            here.kill()
            leader_of(ROLE, [other])

    with Spark.started(workers=1) as spark:
        where: dict[str, Any] = {"deploy-mode": "cluster", "rest-port": spark.rest_port}
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", spelled("spark", host=spark.master, **where))
        with DAG("resumes", start_date=START) as dag:
            CrashingOperator(
                task_id="job",
                role=ROLE,
                conn_id="cluster",
                # A program that goes on for ever. A cluster of this kind takes no driver in Python.
                java_class="org.apache.spark.deploy.ExternalShuffleService",
                application=str(next(Path(pyspark.__file__).parent.glob("jars/spark-core_*.jar"))),
                driver_memory="400m",
                conf={"spark.shuffle.service.port": "0"},
                retries=2,
                retry_delay=timedelta(0),
                on_retry_callback=move,
            )
        assert {"job": "success"} == states(dag_test(dag))
        first, again, anew = seen
        assert again == first
        assert anew != first
        until(lambda: "KILLED" == spark.driver_state(first), "the end of the job of the deposed owner")
        until(lambda: "RUNNING" == spark.driver_state(anew), "the job of the new owner")
        (driver,) = (pid for pid, _, _, command in processes() if f"/{anew}/" in command)
        told = {one.partition(b"=")[0] for one in Path(f"/proc/{driver}/environ").read_bytes().split(b"\0")}
        assert not told & {b"NELI_AGENT", b"NELI_TOKEN"}, "it is on the host of another agent"


def test_a_spark_that_is_not_there_is_refused_before_anything_runs(
    tmp_path: Path, neli_default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(error: type[Exception], text: str, **options: Any) -> None:
        operator = LeaderSparkSubmitOperator(task_id="job", role="no one asks", **{**job(tmp_path, "tell"), **options})
        with pytest.raises(error, match=text):
            operator.execute(Context())

    refused(AirflowNotFoundException, "'nowhere' was wanted, .* on YARN: add it", conn_id="nowhere")
    monkeypatch.setenv("AIRFLOW_CONN_BARE", spelled("spark"))
    refused(AirflowException, "its host is empty", conn_id="bare")
    refused(AirflowException, "it is not there: install PySpark", spark_binary="/nowhere/spark-submit")
    # As the installer leaves it that puts pyspark-client over PySpark.
    client = tmp_path / "site" / "pyspark_client-4.2.0.dist-info"
    client.mkdir(parents=True)
    (client / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-client\nVersion: 4.2.0\n")
    monkeypatch.syspath_prepend(client.parent)
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    refused(SparkUnusable, "pyspark-client 4.2.0 was installed over it")
