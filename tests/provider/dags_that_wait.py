"""Dags that wait, for an installation: `tests/provider/test_waiting.py` says what should come of each."""

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Asset, task
from airflow.sdk import AssetWatcher, PartitionedAtRuntime

from airflow_provider.operators.neli import LeaderGate
from airflow_provider.sensors.neli import LeaderSensor, SlotOwnerSensor, leader_from
from airflow_provider.triggers.neli import OwnershipTrigger

START = pendulum.datetime(2026, 1, 1)
ROLE = 3
HOST = "host_that_waits"
IN_TRIGGERER: dict[str, Any] = {"start_from_trigger": True, "pool": "no_slots"}
GIVEN: dict[str, Any] = {"start_date": START, "schedule": None, "default_args": {"neli_conn_id": HOST}}

# Airflow's scheduler now and then takes a task that was deferred, and is resumed at once, for one that was killed.
ON_WORKER: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=15)}

with DAG("waits", params={"role": "nightly", "expect": "b"}, **GIVEN):
    here = LeaderSensor(task_id="here", role=ROLE, **IN_TRIGGERER)

    @task(retries=3, retry_delay=timedelta(seconds=15))
    def below(in_triggerer: object, on_worker: object) -> list[object]:
        """Both kinds of result, as a task reads them."""
        return [leader_from(in_triggerer), leader_from(on_worker)["leader"]]

    LeaderSensor(task_id="templated", role="{{ params.role }}", expect="{{ params.expect }}", **IN_TRIGGERER)
    LeaderSensor.partial(task_id="mapped", start_from_trigger=True, **ON_WORKER).expand(role=[ROLE])
    resumed = SlotOwnerSensor(task_id="resumed", key="nightly", **ON_WORKER)
    below(here.output, resumed.output)

with DAG("gated", **GIVEN):

    @task
    def work() -> None:
        """Nothing, but on a worker."""

    LeaderGate(task_id="gate", role=ROLE, pool="no_slots") >> work()

with DAG("in_vain", params={"nothing": "", "role": "7" * 19}, **GIVEN):
    late: dict[str, Any] = {"role": ROLE, "expect": "nobody", "timeout": 6, **IN_TRIGGERER}
    LeaderSensor(task_id="late", **late)
    LeaderSensor(task_id="softly_late", soft_fail=True, **late)
    LeaderSensor(task_id="unnamed", role="{{ params.nothing }}", **IN_TRIGGERER)
    LeaderSensor(task_id="too_long", role="{{ params.role }}", **IN_TRIGGERER)
    LeaderSensor(task_id="of_no_partition", **IN_TRIGGERER)
    LeaderSensor(task_id="nowhere", role=ROLE, **{**IN_TRIGGERER, "neli_conn_id": "nowhere"})
    away: dict[str, Any] = {"role": ROLE, **IN_TRIGGERER, "neli_conn_id": "host_that_is_away"}
    LeaderSensor(task_id="away", when_away="fail", **away)
    LeaderSensor(task_id="away_for_long", timeout=6, **away)
    LeaderGate(task_id="closed", when_not_leading="fail", role=ROLE, expect="nobody", pool="no_slots")

with DAG("of_partition", **{**GIVEN, "schedule": PartitionedAtRuntime()}):
    LeaderSensor(task_id="by_key_of_run", expect="anybody", **IN_TRIGGERER)

watched = OwnershipTrigger(role=ROLE, on=["acquired", "lost"], neli_conn_id=HOST)
changed = Asset("leader_that_waits", watchers=[AssetWatcher(name="leader_that_waits", trigger=watched)])

with DAG("told", **{**GIVEN, "schedule": [changed]}):

    @task
    def tell() -> None:
        """The events are in the asset."""

    tell()
