"""Audit ownership: every hour, one of the hosts copies what is new in the group's ledger, and audits all of it.

    ledger --new records--> archive --fold--> audit --> tables of tenures, moves and takeovers, and a report
                            grows with each run

Members trim their ledger, so its history survives only if it is copied in time. On several installations with this Dag,
the installation that leads the role copies, and the others skip. Two may still copy at the same time, if one of them
was stopped and does not know that it was deposed. Then the archive has some records twice, and the audit counts each
once.

If no installation runs in an hour, the next run catches up: a run copies all that the archive lacks. The task fails if
the group has broken a promise; the report says which.
"""

from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir

from airflow.sdk import DAG

from airflow_provider.operators.spark import LeaderSparkSubmitOperator
from airflow_provider.retries import LeadershipRetryPolicy

JOB = Path(__file__).parent / "jobs" / "audit_ownership.py"

with DAG(
    "audit_ownership",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,  # It runs a Spark job each hour: unpause it to try it.
    params={
        # The agent's ledger. An address with a password does not belong here: all who see the Dag can read it.
        "ledger": f"sqlite://{gettempdir()}/jobs.db",
        "folder": str(Path(gettempdir()) / "neli-audit"),  # In production, a folder that all hosts see.
    },
):
    LeaderSparkSubmitOperator(
        task_id="audit",
        role="audit_ownership",
        application=str(JOB),
        application_args=[
            *("{{ params.ledger }}", "--archive", "{{ params.folder }}/archive"),
            *("--table", "{{ params.folder }}/tables", "--report", "{{ params.folder }}/report.html"),
        ],
        # Spark's own page would be open to all who reach this host.
        conf={"spark.ui.enabled": "false", "spark.log.level": "WARN"},
        retries=3,
        retry_policy=LeadershipRetryPolicy(),
    )
