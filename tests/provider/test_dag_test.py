"""The house of these tests stands: a Dag runs in this process, and its task asks the agent through the hook."""

import pytest
from airflow.providers.common.compat.sdk import DAG, task

from airflow_provider.hooks.neli import NeliHook
from tests.support.given import DagTest

pytestmark = pytest.mark.airflow


def test_a_task_asks_the_agent_of_its_host(dag_test: DagTest) -> None:
    with DAG("asks") as dag:

        @task
        def ask() -> str:
            with NeliHook() as hook, hook.leading("nightly", timeout=300.0) as lease:
                return f"{hook.owner_of_role('nightly').name} {lease.term > 0}"

        ask()
    run = dag_test(dag)
    assert "success" == run.state
    (one,) = run.get_task_instances()
    assert "a True" == one.xcom_pull("ask")
