"""A thousand asset events over a hundred keys, in a real installation: counted where Airflow keeps them.

    5 tasks at once, 2 feeds each, 100 keys a feed --1,000 events--> SlotPartitionMapper --> 8 runs, one a partition
                                                                                               |
                                                        1 run <-- AllPartitions <--8 events----'

A run wants an event of every feed, so no partition's run begins before the last task has reported, however the tasks
and the scheduler's rounds fall together. With one feed, or with any of several, events that trickle in would make
several runs of a partition, by Airflow's own rule.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from neli_router.keyspace import Layout
from tests.support.servers.airflow import Airflow, until

pytestmark = pytest.mark.airflow

EIGHT = Layout(partitions=8)
KEYS = [f"PAIR{number:02}" for number in range(100)]
FEEDS = 10

RUNS_MAX = 900.0
"""Seconds: fourteen tasks, four at a time, on a machine that may be busy."""

DAGS = """
from datetime import timedelta
from functools import reduce
from operator import and_

from airflow.sdk import DAG, Asset, FixedKeyMapper, PartitionedAssetTimetable, PartitionedAtRuntime, RollupMapper, task

from airflow_provider.partitions import AllPartitions, SlotPartitionMapper
from neli_router.keyspace import Layout

EIGHT = Layout(partitions=8)
KEYS = [f"PAIR{number:02}" for number in range(100)]
feeds = [Asset(f"feed-{number}") for number in range(10)]
reported = Asset("reported")

with DAG("feeds_arrive", schedule=PartitionedAtRuntime()):
    for first in range(0, 10, 2):
        outlets = feeds[first : first + 2]

        @task(task_id=f"arrive_{first}", outlets=outlets)
        def arrive(outlet_events=None, outlets=None):
            for feed in outlets:
                outlet_events[feed].add_partitions(KEYS)

        arrive()

by_slot = PartitionedAssetTimetable(assets=reduce(and_, feeds), default_partition_mapper=SlotPartitionMapper(EIGHT))
all_of_them = RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=AllPartitions(EIGHT))

with DAG("work_of_a_partition", schedule=by_slot):

    # Airflow may take a task that waited, and goes on, for one that was killed.
    @task.leader(outlets=[reported], when_not_leading="wait", retries=3, retry_delay=timedelta(seconds=15))
    def work(lease=None, triggering_asset_events=None):
        told = [event.partition_key for events in triggering_asset_events.values() for event in events]
        return [lease.partition, sorted(told)]

    work()

with DAG("all_have_worked", schedule=PartitionedAssetTimetable(assets=reported, default_partition_mapper=all_of_them)):

    @task
    def tell(triggering_asset_events=None):
        return sorted(event.partition_key for events in triggering_asset_events.values() for event in events)

    tell()
"""

EVENTS = """
    SELECT event.id, event.partition_key, log.target_partition_key, run.id, run.partition_key
    FROM asset_event AS event JOIN asset ON asset.id = event.asset_id
    LEFT JOIN partitioned_asset_key_log AS log ON log.asset_event_id = event.id AND log.target_dag_id = :dag
    LEFT JOIN dagrun_asset_event AS told ON told.event_id = event.id
    LEFT JOIN dag_run AS run ON run.id = told.dag_run_id AND run.dag_id = :dag
    WHERE asset.name LIKE :assets
"""
"""Each event of some assets, with the partition that it was mapped to and the run that was told of it. One that two
runs were told of comes twice."""


@pytest.fixture(name="counted", scope="module")
def _counted(installation: Airflow) -> Iterator[sqlite3.Connection]:
    """The metadata database, when the roll-up and all that came before it have ended."""
    api = installation.api
    (installation.dags / "partitioned_runs.py").write_text(DAGS, encoding="utf-8")
    api.await_dag("feeds_arrive", "work_of_a_partition", "all_have_worked")
    api.trigger("feeds_arrive")
    until(lambda: api.runs("all_have_worked"), "the roll-up", patience=RUNS_MAX)
    (rolled,) = api.runs("all_have_worked")
    assert "success" == api.await_run("all_have_worked", rolled["dag_run_id"])
    with closing(sqlite3.connect(f"file:{installation.home}/airflow.db?mode=ro", uri=True)) as database:
        yield database


def test_each_of_a_thousand_events_is_told_to_one_run_of_its_partition(
    installation: Airflow, counted: sqlite3.Connection
) -> None:
    rows = counted.execute(EVENTS, {"dag": "work_of_a_partition", "assets": "feed-%"}).fetchall()
    assert 1000 == len(rows) == len({event for event, *_ in rows})
    assert dict.fromkeys(KEYS, FEEDS) == Counter(key for _, key, *_ in rows)
    runs: dict[str, set[int]] = {}
    for _, key, mapped, run, partition in rows:
        assert (str(EIGHT.partition(key)),) * 2 == (mapped, partition)
        runs.setdefault(partition, set()).add(run)
    assert {str(partition): 1 for partition in range(8)} == {partition: len(ids) for partition, ids in runs.items()}
    told: list[str] = []
    for run in installation.api.runs("work_of_a_partition"):
        partition, keys = installation.api.xcom("work_of_a_partition", run["dag_run_id"], "work")
        assert (run["partition_key"], "success") == (str(partition), run["state"])
        assert {partition} == {EIGHT.partition(key) for key in keys}
        told += keys
    assert Counter(told) == dict.fromkeys(KEYS, FEEDS)


def test_a_roll_up_is_made_once_when_all_partitions_have_reported(
    installation: Airflow, counted: sqlite3.Connection
) -> None:
    rows = counted.execute(EVENTS, {"dag": "all_have_worked", "assets": "reported"}).fetchall()
    assert [(str(partition), "all") for partition in range(8)] == sorted((key, mapped) for _, key, mapped, *_ in rows)
    (rolled,) = installation.api.runs("all_have_worked")
    assert 8 == len({event for event, *_ in rows})
    assert [{"all"}, 1] == [{partition for *_, partition in rows}, len({run for _, _, _, run, _ in rows})]
    assert [str(partition) for partition in range(8)] == installation.api.xcom(
        "all_have_worked", rolled["dag_run_id"], "tell"
    )
