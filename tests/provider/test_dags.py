"""The Dags of `dags/` run as they are: in this process, or where they need a scheduler, in a real installation."""

import os
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk import DAG
from deltalake import DeltaTable

from neli_router.fence.delta import FencedTable
from neli_router.keyspace import Layout
from neli_router.pipeline.landing import commits_of
from tests.provider.conftest import BUNDLE
from tests.support.agents.running import Running
from tests.support.given import DagTest, spelled
from tests.support.servers.airflow import Airflow, until

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


@pytest.fixture(name="spark_default")
def _spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", spelled("spark", host="local[1]"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.mark.usefixtures("spark_default")
def test_each_shard_of_a_host_publishes_the_prices_of_its_partitions(tmp_path: Path, dag_test: DagTest) -> None:
    (dag,) = dags_of("sharded_prices")
    run = dag_test(dag, conf={"folder": str(tmp_path)})
    assert "success" == run.state
    (shards,) = (one for one in run.get_task_instances() if one.task_id == "shards")
    assert [[0, 2, 4, 6], [1, 3, 5, 7]] == shards.xcom_pull("shards")
    table = FencedTable(tmp_path / "prices")
    assert dict.fromkeys(range(8), 2) == {it: at.batch for it, at in table.progress().items()}
    even, odd = [0, 2, 4, 6], [1, 3, 5, 7]
    assert [even, even, odd, odd] == sorted(sorted(it.batches) for it in commits_of(table.path) if it.batches)
    assert 10_000 == sum(DeltaTable(str(table.path)).to_pyarrow_table()["ticks"].to_pylist())


@pytest.mark.usefixtures("spark_default")
def test_the_history_of_the_group_is_audited(tmp_path: Path, agent: Running, dag_test: DagTest) -> None:
    (dag,) = dags_of("audit_ownership")
    ledger = f"sqlite://{Path(agent.options.socket).parent}/ledger.db"
    assert "success" == dag_test(dag, conf={"ledger": ledger, "folder": str(tmp_path)}).state
    tenures = DeltaTable(str(tmp_path / "tables" / "tenures")).to_pyarrow_table()
    assert list(range(8)) == sorted(set(tenures["partition"].to_pylist()))
    assert {"a"} == set(tenures["member"].to_pylist())
    assert "<html" in (tmp_path / "report.html").read_text()


def test_events_of_one_task_become_one_run_for_each_partition(installation: Airflow) -> None:
    api = installation.api
    shutil.copy(DAGS / "prices_by_partition.py", installation.dags)
    api.await_dag("ticks_arrive", "prices_by_partition", "prices_are_published")
    api.trigger("ticks_arrive")
    until(lambda: api.runs("prices_are_published"), "the roll-up", patience=900.0)
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
