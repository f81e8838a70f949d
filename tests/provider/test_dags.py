"""The Dags of `dags/` that need Spark or PostgreSQL run unchanged. `test_local_airflow.py` runs the others."""

import warnings
from pathlib import Path

import psycopg
import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk import DAG
from deltalake import DeltaTable

from neli_router import fence
from neli_router.fence.delta import FencedTable
from neli_router.lab.local_airflow import REPORTS
from neli_router.lab.pipeline.landing import commits_of
from tests.provider.conftest import BUNDLE
from tests.support.agents.running import Running
from tests.support.given import DagTest

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("spark_default")]

DAGS = Path(__file__).resolve().parent.parent.parent / "dags"


def dag_of(name: str) -> DAG:
    """The Dag of a file, as Airflow reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own warnings, like in `dag_test`.
        bag = BundleDagBag(DAGS / f"{name}.py", bundle_path=DAGS, bundle_name=BUNDLE)
    assert {} == bag.import_errors
    (dag,) = bag.dags.values()
    return dag


def test_each_shard_of_a_host_publishes_the_prices_of_its_partitions(tmp_path: Path, dag_test: DagTest) -> None:
    run = dag_test(dag_of("sharded_prices"), conf={"folder": str(tmp_path)})
    assert "success" == run.state
    (shards,) = (one for one in run.get_task_instances() if one.task_id == "shards")
    assert [[0, 2, 4, 6], [1, 3, 5, 7]] == shards.xcom_pull("shards")
    table = FencedTable(tmp_path / "prices")
    assert dict.fromkeys(range(8), 2) == {it: at.batch for it, at in table.progress().items()}
    even, odd = [0, 2, 4, 6], [1, 3, 5, 7]
    assert [even, even, odd, odd] == sorted(sorted(it.batches) for it in commits_of(table.path) if it.batches)
    assert 10_000 == sum(DeltaTable(str(table.path)).to_pyarrow_table()["ticks"].to_pylist())


def test_the_history_of_the_group_is_audited(tmp_path: Path, agent: Running, dag_test: DagTest) -> None:
    ledger = f"sqlite://{Path(agent.options.socket).parent}/ledger.db"
    assert "success" == dag_test(dag_of("audit_ownership"), conf={"ledger": ledger, "folder": str(tmp_path)}).state
    tenures = DeltaTable(str(tmp_path / "tables" / "tenures")).to_pyarrow_table()
    assert list(range(8)) == sorted(set(tenures["partition"].to_pylist()))
    assert {"a"} == set(tenures["member"].to_pylist())
    assert "<html" in (tmp_path / "report.html").read_text()


@pytest.mark.postgresql
def test_a_report_under_a_fence_is_written_once_and_never_by_a_deposed_leader(
    database: str, dag_test: DagTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_REPORTS", database)
    with psycopg.connect(database) as connection:
        fence.install(connection)
        connection.execute(REPORTS)
    run = dag_test(dag_of("fenced_report"))
    assert "success" == run.state
    with psycopg.connect(database) as connection:
        (row,) = connection.execute("TABLE reports").fetchall()
        assert (run.run_id, "a", run.get_task_instance("report").xcom_pull("report")) == row  # type: ignore[union-attr]
        fence.admit(connection, "reports", row[2] + 1)
    assert "failed" == dag_test(dag_of("fenced_report")).state
    with psycopg.connect(database) as connection:
        assert [row] == connection.execute("TABLE reports").fetchall()
