"""The Dags of the installation that the tests share: `tests/provider/test_installation.py` checks the result of each.

`neli_default` is the connection to the agent of this host, `host_a` and `host_b` are those to the agents of two hosts.
"""

import os
import sys
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Asset, task
from airflow.sdk import AssetWatcher, PartitionedAtRuntime

from airflow_provider.operators.neli import LeaderShortCircuitOperator
from airflow_provider.operators.spark import LeaderSparkSubmitOperator
from airflow_provider.retries import LeadershipRetryPolicy
from airflow_provider.sensors.neli import LeaderGateSensor, LeaderSensor, SlotOwnerSensor, leader_from
from airflow_provider.triggers.neli import OwnershipTrigger

ROLE = 3
IN_TRIGGERER: dict[str, Any] = {"start_from_trigger": True, "pool": "no_slots"}
GIVEN: dict[str, Any] = {"start_date": pendulum.datetime(2026, 1, 1), "schedule": None}

# Airflow's scheduler sometimes mistakes a task that resumes right after its deferral for a killed task.
ON_WORKER: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=15)}

with DAG("waits", params={"role": "nightly", "expect": "b"}, **GIVEN):
    here = LeaderSensor(task_id="here", role=ROLE, **IN_TRIGGERER)

    @task(retries=3, retry_delay=timedelta(seconds=15))
    def below(in_triggerer: object, on_worker: object) -> list[object]:
        """Both kinds of result, in the form in which a task reads them."""
        return [leader_from(in_triggerer), leader_from(on_worker)["leader"]]

    LeaderSensor(task_id="templated", role="{{ params.role }}", expect="{{ params.expect }}", **IN_TRIGGERER)
    LeaderSensor.partial(task_id="mapped", start_from_trigger=True, **ON_WORKER).expand(role=[ROLE])
    resumed = SlotOwnerSensor(task_id="resumed", key="nightly", deferrable=True, **ON_WORKER)
    below(here.output, resumed.output)

with DAG("gated", **GIVEN):

    @task.leader(role=ROLE, **ON_WORKER)
    def work(lease: Any) -> int:
        return int(lease.term)

    LeaderGateSensor(task_id="gate", role=ROLE, pool="no_slots") >> work()  # type: ignore[call-arg, misc]  # The task gives the rest.
    LeaderShortCircuitOperator(task_id="short", role=ROLE, **ON_WORKER)

with DAG("in_vain", **GIVEN):
    LeaderGateSensor(task_id="closed", when_not_leading="fail", role=ROLE, expect="nobody", pool="no_slots")

with DAG("of_partition", **{**GIVEN, "schedule": PartitionedAtRuntime()}):
    LeaderSensor(task_id="by_key_of_run", expect="anybody", **IN_TRIGGERER)

changed = Asset(
    "leader_that_waits",
    watchers=[AssetWatcher("leader_that_waits", trigger=OwnershipTrigger(role=ROLE, on=["acquired", "lost"]))],
)

with DAG("told", **{**GIVEN, "schedule": [changed]}):

    @task
    def tell() -> None:
        """The events are in the asset."""

    tell()

# One machine stands for both hosts: the connection's template takes the place of queues that lead to workers.
OF_HOST = "{{ dag_run.conf['hosts'][ti.try_number - 1] }}"

with DAG("submits", **GIVEN):
    LeaderSparkSubmitOperator(
        task_id="job",
        role=ROLE,
        neli_conn_id=OF_HOST,
        when_not_leading="wait",
        retries=3,
        retry_delay=timedelta(hours=1),
        retry_policy=LeadershipRetryPolicy(delay=0.5),
        application=os.environ.get("SPARK_JOB", ""),
        application_args=[
            "{{ dag_run.conf['folder'] }}/{{ ti.try_number }}",
            "{{ dag_run.conf['ways'][ti.try_number - 1] }}",
        ],
        driver_memory="512m",
        conf={"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"},
        env_vars={
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.environ.get("SPARK_JOB_PATH", ""),
        },
    )
