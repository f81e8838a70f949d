"""@task.leader_pyspark with a real Spark, in the test's own process: losing the role ends Java, and a retry starts a
new one."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG
from pyspark import SparkContext

from airflow_provider.decorators.leader_pyspark import leader_pyspark_task
from airflow_provider.retries import LeadershipRetryPolicy
from tests.support.agents.processes import agents, leader_of
from tests.support.given import DagTest
from tests.support.processes.forked import lives
from tests.support.waiting import beside

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

ROLE = 3


def test_java_is_ended_with_the_role_and_the_retry_counts_where_it_is_led(
    tmp_path: Path, neli_default: str, spark_default: None, dag_test: DagTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    javas: list[int] = []
    at_work = threading.Event()
    told: dict[str, Any] = {}
    settings = {"spark.driver.memory": "512m", "spark.master": "local[1]", "spark.ui.enabled": "false"}
    # A lease that outlasts the start of Spark, which takes all cores.
    with agents(tmp_path, "a", "b", lease=12.0, drain_timeout=0.3) as group:
        here = leader_of(ROLE, group)
        (other,) = (agent for agent in group if agent is not here)
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", here.connection)

        def lose() -> None:
            assert at_work.wait(600)
            monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", other.connection)  # The retry runs there.
            here.kill()
            leader_of(ROLE, [other])

        with DAG("counts", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

            @leader_pyspark_task(
                role=ROLE,
                when_not_leading="fail",
                retries=200,  # The takeover takes a lease, because this process could have gone on until then.
                retry_policy=LeadershipRetryPolicy(delay=0.5),
                config_kwargs=settings,
            )
            def count(spark: Any, lease: Any, rows: int, ti: Any = None) -> int:
                if ti.try_number == 1:
                    java: Any = SparkContext._gateway
                    javas.append(java.proc.pid)
                    at_work.set()
                    assert not threading.Event().wait(600)
                told.update(gone=not lives(javas[0]), member=lease.member)
                told["term"] = int(spark.conf.get("spark.neli.term")) == lease.term
                return int(spark.range(rows).count())

            count(rows=1000)  # type: ignore[call-arg, misc]  # The task gives the rest.
        with beside(lose):
            run = dag_test(dag)
    assert "success" == run.state
    assert {"gone": True, "member": other.name, "term": True} == told
    assert [1000] == [one.xcom_pull("count") for one in run.get_task_instances()]
