"""Leader only: this Dag runs on each of several installations of Airflow, and one of them does the work.

    run --gate--led here-------> report, under the lease of the role; a term for what it writes
          '-----led elsewhere--> skipped, in the triggerer: no worker was used

The gate looks once. The role may move before `report` starts, or while it works. So `report` takes the lease itself,
and ends as soon as the lease is lost. Airflow then retries it, and by then the role may be led here again, or not at
all.
"""

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider.retries import LeadershipRetryPolicy
from airflow_provider.sensors.neli import LeaderGateSensor

ROLE = "nightly"

with DAG("leader_only", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    gate = LeaderGateSensor(task_id="gate", role=ROLE)

    @task.leader(role=ROLE, retries=3, retry_policy=LeadershipRetryPolicy())
    def report(lease: Any = None) -> int:
        lease.check()  # As often as you like. Put the term into what you write at the end: see docs/fencing.md.
        return int(lease.term)

    gate >> report()
