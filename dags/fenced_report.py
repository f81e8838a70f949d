"""Fenced report: like `leader_only`, and the report is a row in PostgreSQL, which a deposed task cannot write.

    run --led here-------> report: one transaction --fence: no higher term was admitted--> the row, COMMIT
          '-led elsewhere-> waits in the triggerer

The lease ends `report` in time, unless its host is frozen. If it wakes up after another host took over, the database
refuses its term. `make airflow LEDGER=postgresql` makes the connection `reports` and both tables; `fence.install` makes
the one of the fence.
"""

from datetime import UTC, datetime
from typing import Any

import psycopg
from airflow.sdk import DAG, Connection, task

from airflow_provider.retries import LeadershipRetryPolicy
from neli_router import fence

ROLE = "nightly"

with DAG("fenced_report", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):

    @task.leader(role=ROLE, when_not_leading="wait", retries=3, retry_policy=LeadershipRetryPolicy())
    def report(lease: Any = None, dag_run: Any = None) -> int:
        with psycopg.connect(Connection.get("reports").get_uri()) as connection:
            fence.admit(connection, "reports", lease)
            row = (dag_run.run_id, lease.member, lease.term)
            connection.execute("INSERT INTO reports VALUES (%s, %s, %s)", row)
        return int(lease.term)

    report()
