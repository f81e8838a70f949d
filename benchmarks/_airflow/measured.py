"""Dags for the benchmark `airflow`: sensors that wait, sensors that fire, and a task that measures its own gate."""

import time

import pendulum
from airflow.providers.common.compat.sdk import DAG, BaseOperator, Context

from airflow_provider.operators.leader import LeaderMixin
from airflow_provider.sensors.neli import LeaderSensor
from benchmarks._airflow.sizes import FIRING, GATES, HELD_HERE, ROLE, WAITED_FOR, WAITING

START = pendulum.datetime(2026, 1, 1)

with DAG("waiting", start_date=START, schedule=None, max_active_runs=100, max_active_tasks=10_000):
    for number in range(WAITING):
        role = WAITED_FOR[number % len(WAITED_FOR)]
        LeaderSensor(task_id=f"waits_{number}", role=role, start_from_trigger=True)

with DAG("firing", start_date=START, schedule=None):
    for number in range(FIRING):
        LeaderSensor(task_id=f"fires_{number}", role=ROLE, start_from_trigger=True)


class Work(BaseOperator):
    """Takes no time."""

    def execute(self, context: Context) -> None:
        return None


class GatedWork(LeaderMixin, Work):
    """The same, under the lease of a role."""


class MeasuredGate(GatedWork):
    """Milliseconds that the gate adds, and those of one XCom, measured repeatedly in a real worker's process."""

    def execute(self, context: Context) -> list[list[float]]:  # type: ignore[override]
        added, pushed = [], []
        for number in range(GATES):
            started = time.perf_counter()
            Work.execute(self, context)
            worked = time.perf_counter()
            super().execute(context)
            gated = time.perf_counter()
            context["ti"].xcom_push(key="of_its_own", value=number)
            added.append(1e3 * ((gated - worked) - (worked - started)))
            pushed.append(1e3 * (time.perf_counter() - gated))
        return [added, pushed]


with DAG("gated", start_date=START, schedule=None):
    MeasuredGate(task_id="measure", role=HELD_HERE)
