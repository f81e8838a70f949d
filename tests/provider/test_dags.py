"""The Dags of `dags/` run as they are, in this process."""

import warnings
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk import DAG

from tests.provider.conftest import BUNDLE
from tests.provider.given import DagTest

pytestmark = pytest.mark.airflow

DAGS = Path(__file__).resolve().parent.parent.parent / "dags"


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
