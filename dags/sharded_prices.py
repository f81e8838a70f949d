"""Sharded prices: this host's partitions in shards, and a Spark job for each shard, which ends when the shard is lost.

    market -------------- ticks to try it on, if there are none yet
       |
    shards -------------- [[0, 2, 4, 6], [1, 3, 5, 7]]: the partitions that this host leads, dealt out
       |
    prices, prices ------ a Spark job for each, under the leases of its partitions: bars of their instruments
       |
    one fenced table, of all shards and all hosts

Each installation runs this Dag for its own partitions. A job holds all partitions of its shard together. When one of
them is lost, the whole job ends, and is retried with the partitions that are left; the new owner's runs have the
others. The table knows how far each partition has come, so each tick lands once, on whichever host.

Each job is a Java process of its own: use as many shards as the host has memory for.
"""

from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider.operators.spark import LeaderSparkSubmitOperator
from airflow_provider.retries import LeadershipRetryPolicy
from airflow_provider.routing import owned_partitions

SHARDS = 2

JOB = Path(__file__).parent / "jobs" / "publish_prices.py"

with DAG(
    "sharded_prices",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,  # It needs the cores and the memory of two Spark jobs: unpause it to try it.
    params={"folder": str(Path(gettempdir()) / "neli-prices")},  # In production, a folder that all hosts see.
):

    @task
    def market(params: dict[str, Any] | None = None) -> None:
        # Inside the task: these imports take a second, and Airflow reads this file again and again.
        from neli_router.lab.pipeline.ticks import Market  # noqa: PLC0415
        from neli_router.spark.feeds import NumberedFiles  # noqa: PLC0415

        assert params is not None, "Airflow gives them"
        feed = NumberedFiles(Path(params["folder"]) / "ticks")
        if not feed.tip(0, 0):
            for ticks in Market(seconds=3600.0).split(10_000, 2):
                feed.append(ticks)

    @task
    def shards() -> list[list[int]]:
        owned = owned_partitions()
        return [shard for number in range(SHARDS) if (shard := owned[number::SHARDS])]

    # The job ends when it has landed what is there now, or when a partition must move. If the host no longer leads any
    # of the partitions, the job is skipped.
    prices = LeaderSparkSubmitOperator.partial(
        task_id="prices",
        application=str(JOB),
        application_args=[
            *("--ticks", "{{ params.folder }}/ticks", "--table", "{{ params.folder }}/prices"),
            *("--once", "--when-revoked", "stop"),
        ],
        # Spark's own page would be open to all who reach this host.
        conf={"spark.ui.enabled": "false", "spark.log.level": "WARN"},
        retries=3,
        retry_policy=LeadershipRetryPolicy(),
    ).expand(partitions=shards())

    market() >> prices
