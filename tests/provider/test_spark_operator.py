"""LeaderSparkSubmitOperator in this process: the command of spark-submit, retries, and refusals.

`tests/provider/test_installation.py` shows that nothing of a job is left behind.
"""

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pyspark
import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowNotFoundException, Context

from airflow_provider.exceptions import LeadershipLost
from airflow_provider.operators.spark import LeaderSparkSubmitOperator
from neli_router.agent import Client
from neli_router.core.exit_codes import EXIT_LOST
from neli_router.spark.runtime import SparkUnusable
from tests.provider.conftest import executable
from tests.provider.submissions import processes
from tests.support.agents.processes import agents, leader_of
from tests.support.agents.running import PARTITIONS, TOKEN, Running
from tests.support.given import DagTest, spelled
from tests.support.servers.spark import Spark
from tests.support.waiting import until

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.process,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("spark_default"),
]

ROLE = 3

LEASE = 10.0
"""Seconds. A starting JVM occupies a small machine completely, and an agent must not lose its roles because of that."""


def test_a_job_is_told_what_its_share_is_and_one_that_lost_it_raises_the_loss(
    tmp_path: Path, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = spelled(address=f"unix:{agent.options.socket}", password=TOKEN)
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", connection)
    record = 'printf "%s\\n" "$@" > words; env > environment'
    program = executable(tmp_path / "spark-submit", f"cd {tmp_path}\n{record}\nexit {EXIT_LOST}")
    given: dict[str, Any] = {"application": "job.py", "spark_binary": str(program)}
    told = []
    for right in ({"partitions": "led"}, {"partitions": "led"}, {"role": 3}):
        with pytest.raises(LeadershipLost, match="it ended because it had lost it"):
            LeaderSparkSubmitOperator(task_id="job", **right, **given).execute(Context())
        told.append((tmp_path / "words").read_text().splitlines())
    first, settings, one = (
        dict(word.split("=", 1) for word in words if word.startswith("spark.neli.")) for words in told
    )
    assert int(first["spark.neli.counter"]) < int(settings["spark.neli.counter"]), "two submissions"
    assert ("a", ",".join(map(str, range(PARTITIONS)))) == (
        settings["spark.neli.member"],
        settings["spark.neli.partitions"],
    )
    assert "spark.neli.term" not in settings
    assert json.loads(settings["spark.neli.terms"])["3"] == int(one["spark.neli.term"])
    environment = {line for line in (tmp_path / "environment").read_text().splitlines() if line.startswith("NELI_")}
    assert {f"NELI_AGENT=unix:{agent.options.socket}", f"NELI_TOKEN={TOKEN}"} == environment
    assert TOKEN not in str(told)


class Store(dict[str, Any]):
    """The store of a task, which refuses to keep the id of a job."""

    def set(self, key: str, value: object) -> None:
        if key == LeaderSparkSubmitOperator.external_id_key:
            raise ConnectionError("the API server is away")
        self[key] = value


@pytest.mark.parametrize(
    ("master", "said", "code", "error", "killed"),
    [
        ("spark://a:1,b:1", "driver-1-1", EXIT_LOST, LeadershipLost, "--master spark://a:1,b:1 --kill driver-1-1"),
        ("spark://a:1,b:1", "driver-1-1", 1, AirflowException, "--master spark://a:1,b:1 --kill driver-1-1"),
        ("spark://a:1,b:1", "driver-1-1", 0, ConnectionError, "--master spark://a:1,b:1 --kill driver-1-1"),
        ("yarn", "application_1_1", EXIT_LOST, LeadershipLost, "application -kill application_1_1"),
    ],
)
def test_a_job_on_a_cluster_is_killed_if_no_retry_will_know_it(
    tmp_path: Path,
    neli_default: str,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    said: str,
    code: int,
    error: type[Exception],
    killed: str,
) -> None:
    where: dict[str, Any] = {"deploy-mode": "cluster"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", spelled("spark", host=master, **where))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    script = f'case "$*" in *-[-]kill*|*" -kill "*) echo "$@" >> {tmp_path}/killed; exit;; esac\n'
    for name in ("spark-submit", "yarn"):
        executable(tmp_path / name, f"{script}echo {said}\nexit {code}\n")
    given: dict[str, Any] = {"application": "job.jar", "conn_id": "cluster", "durable": master != "yarn"}
    operator = LeaderSparkSubmitOperator(task_id="job", role=ROLE, **given)
    with pytest.raises(error):
        operator.execute(cast("Context", {"task_state_store": Store()}))
    assert {killed} == set((tmp_path / "killed").read_text().splitlines())


def test_a_killed_retry_kills_the_application_on_yarn_that_it_goes_on_with(
    agent: Running, neli_default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = []
    given: dict[str, Any] = {"deploy_mode": "cluster", "yarn_track_via_rm_api": True, "conn_id": "yarn"}
    operator = LeaderSparkSubmitOperator(task_id="job", role=ROLE, application="job.jar", **given)

    class Manager(BaseHTTPRequestHandler):
        """A resource manager. The task is killed while the manager answers its second question."""

        asked = 0

        def do_GET(self) -> None:
            Manager.asked += 1
            if Manager.asked == 2:
                operator.on_kill()
            self.answer({"app": {"state": "RUNNING" if Manager.asked < 2 else "KILLED", "finalStatus": "UNDEFINED"}})

        def do_PUT(self) -> None:
            killed.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.answer({})

        def answer(self, told: dict[str, Any]) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Manager) as server, Client(f"unix:{agent.options.socket}") as client:
        threading.Thread(target=server.serve_forever).start()
        where: dict[str, Any] = {"yarn_resourcemanager_webapp_address": f"http://127.0.0.1:{server.server_port}"}
        monkeypatch.setenv("AIRFLOW_CONN_YARN", spelled("spark", host="yarn", **where))
        store = Store(spark_job_id="application_1_1", neli_terms={str(ROLE): client.owner_of_role(ROLE).term})
        with pytest.raises(RuntimeError, match="KILLED"):
            operator.execute(cast("Context", {"task_state_store": store}))
        server.shutdown()
    assert ["/ws/v1/cluster/apps/application_1_1/state"] == killed


def test_a_task_that_is_killed_before_it_has_its_lease_submits_nothing(
    tmp_path: Path, neli_default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = executable(tmp_path / "spark-submit", f"touch {tmp_path}/submitted")
    operator = LeaderSparkSubmitOperator(task_id="job", role=ROLE, application="job.py", spark_binary=str(program))
    operator.on_kill()  # By Airflow, in a signal handler, after which the task goes on.
    with pytest.raises(AirflowException, match="the task was killed"):
        operator.execute(Context())
    assert not (tmp_path / "submitted").exists()


class CrashingOperator(LeaderSparkSubmitOperator):
    """Leaves its job on the cluster, like a worker that crashes."""

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        seen.append(external_id)
        if len(seen) < 3:
            raise RuntimeError("the worker crashes")


seen: list[str] = []
"""The jobs of its tries."""


def test_a_retry_goes_on_with_a_job_of_the_cluster_only_under_the_same_term(
    tmp_path: Path, neli_default: str, dag_test: DagTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agents(tmp_path, "a", "b", lease=LEASE, drain_timeout=0.3) as group, Spark.started(workers=1) as spark:
        here = leader_of(ROLE, group)
        (other,) = (agent for agent in group if agent is not here)
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", here.connection)

        def move(_: Any) -> None:
            if len(seen) == 2:
                monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", other.connection)
                here.kill()
                leader_of(ROLE, [other])

        where: dict[str, Any] = {"deploy-mode": "cluster", "rest-port": spark.rest_port}
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", spelled("spark", host=spark.master, **where))
        with DAG("resumes", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
            CrashingOperator(
                task_id="job",
                role=ROLE,
                conn_id="cluster",
                # A program that never ends. A cluster of this kind takes no driver in Python.
                java_class="org.apache.spark.deploy.ExternalShuffleService",
                application=str(next(Path(pyspark.__file__).parent.glob("jars/spark-core_*.jar"))),
                driver_memory="400m",
                conf={"spark.shuffle.service.port": "0", "spark.driver.extraJavaOptions": "-XX:+UseSerialGC"},
                retries=2,
                retry_delay=timedelta(0),
                on_retry_callback=move,
            )
        assert "success" == dag_test(dag).state
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
        operator = LeaderSparkSubmitOperator(task_id="job", role="no one asks", application="job.py", **options)
        with pytest.raises(error, match=text):
            operator.execute(Context())

    refused(AirflowNotFoundException, "'nowhere' was wanted, .* on YARN: add it", conn_id="nowhere")
    monkeypatch.setenv("AIRFLOW_CONN_BARE", spelled("spark"))
    refused(AirflowException, "its host is empty", conn_id="bare")
    refused(AirflowException, "it is not there: install PySpark", spark_binary="/nowhere/spark-submit")
    # The state that the installer leaves when it puts pyspark-client over PySpark.
    client = tmp_path / "site" / "pyspark_client-4.2.0.dist-info"
    client.mkdir(parents=True)
    (client / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-client\nVersion: 4.2.0\n")
    monkeypatch.syspath_prepend(client.parent)
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    refused(SparkUnusable, "pyspark-client 4.2.0 was installed over it")
