"""The Dags of `dags/` run as they are: in this process, or where they need a scheduler, in a real installation."""

import shutil
import warnings
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk import DAG

from neli_router.keyspace import Layout
from tests.provider.conftest import BUNDLE
from tests.provider.given import DagTest
from tests.servers.airflow import Airflow, until

pytestmark = pytest.mark.airflow

DAGS = Path(__file__).resolve().parent.parent.parent / "dags"
EIGHT = Layout(partitions=8)
KEYS = [f"PAIR{number:02}" for number in range(100)]


def dags_of(name: str) -> list[DAG]:
    """The Dags of a file, as Airflow reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own, as in `dag_test`.
        bag = BundleDagBag(DAGS / f"{name}.py", bundle_path=DAGS, bundle_name=BUNDLE)
    assert {} == bag.import_errors
    return list(bag.dags.values())


@pytest.mark.parametrize("name", ["leader_only", "on_leadership_change"])
def test_a_dag_runs_as_it_is(name: str, dag_test: DagTest) -> None:
    (dag,) = dags_of(name)
    run = dag_test(dag)
    assert {"success"} == {str(one.state) for one in run.get_task_instances()}


def test_events_of_one_task_become_one_run_for_each_partition(installation: Airflow) -> None:
    api = installation.api
    shutil.copy(DAGS / "prices_by_partition.py", installation.dags)
    api.await_dag("ticks_arrive", "prices_by_partition", "prices_are_published")
    api.trigger("ticks_arrive")
    until(lambda: api.runs("prices_are_published"), "the roll-up", patience=240.0)
    (rolled,) = api.runs("prices_are_published")
    assert "success" == api.await_run("prices_are_published", rolled["dag_run_id"])
    runs = api.runs("prices_by_partition")
    assert [str(partition) for partition in range(8)] == sorted(run["partition_key"] for run in runs)
    told: list[str] = []
    for run in runs:
        published = api.xcom("prices_by_partition", run["dag_run_id"], "publish")
        assert run["partition_key"] == str(published["partition"])
        assert {published["partition"]} == {EIGHT.partition(key) for key in published["events"]}
        told += published["events"]
    assert KEYS == sorted(told)
    assert [str(partition) for partition in range(8)] == api.xcom("prices_are_published", rolled["dag_run_id"], "tell")
