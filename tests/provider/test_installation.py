"""The provider in a real installation: found, listed, and without an error; and the installation itself, for tests."""

import json

import pytest

from tests.support.servers.airflow import Airflow, until

pytestmark = pytest.mark.airflow

DAG = """
from airflow.sdk import DAG, task
from airflow_provider.hooks.neli import NeliHook

with DAG("asks_the_agent"):
    @task
    def ask():
        with NeliHook() as hook, hook.leading("nightly", timeout=300.0) as lease:
            return [hook.member(), lease.partition]
    ask()
"""


@pytest.fixture(name="asked", scope="module")
def _asked(installation: Airflow) -> Airflow:
    (installation.dags / "asks_the_agent.py").write_text(DAG, encoding="utf-8")
    installation.api.await_dag("asks_the_agent")
    return installation


def test_a_task_asks_the_agent_of_its_host(asked: Airflow) -> None:
    run = asked.api.trigger("asks_the_agent")
    assert "success" == asked.api.await_run("asks_the_agent", run), asked.api.log("asks_the_agent", run, "ask")
    assert "a" == asked.api.xcom("asks_the_agent", run, "ask")[0]
    assert {"ask": "success"} == asked.api.states("asks_the_agent", run)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("providers", "list"), {"package_name": "neli-router"}),
        (
            ("providers", "hooks"),
            {
                "connection_type": "neli",
                "class": "airflow_provider.hooks.neli.NeliHook",
                "conn_id_attribute_name": "neli_conn_id",
            },
        ),
        (("connections", "get", "neli_default"), {"conn_id": "neli_default", "conn_type": "neli"}),
    ],
)
def test_airflow_lists_what_is_there(asked: Airflow, command: tuple[str, ...], expected: dict[str, str]) -> None:
    listed = asked.listed(*command)
    assert any(expected.items() <= row.items() for row in listed), listed


def test_no_dag_and_no_plugin_has_an_error(asked: Airflow) -> None:
    assert [] == asked.listed("dags", "list-import-errors")
    assert {} == asked.api.import_errors()
    assert [] == asked.api.call("GET", "/plugins/importErrors")["import_errors"]


def test_the_form_of_a_connection_has_our_fields(asked: Airflow) -> None:
    (found,) = (
        one for one in asked.api.call("GET", "/connections/hook_meta", below="/ui") if one["connection_type"] == "neli"
    )
    assert {"address", "ownership"} == set(found["extra_fields"])


def test_a_connection_can_be_tested_from_the_page(asked: Airflow) -> None:
    connection = json.loads(asked.environment["AIRFLOW_CONN_NELI_DEFAULT"])
    body = {"connection_id": "tried", "conn_type": "neli", "extra": json.dumps(connection["extra"])}
    answer = asked.api.call("POST", "/connections/test", body=body)
    assert answer["status"], answer
    assert "The agent a answers." in answer["message"]


def test_each_part_may_end_and_come_back(asked: Airflow) -> None:
    until(asked.is_healthy, "the health of all parts")
    before = asked.pid("triggerer")
    asked.kill("triggerer")
    assert before not in asked.processes()
    asked.begin("triggerer")
    assert before != asked.pid("triggerer")
