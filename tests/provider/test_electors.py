"""Sensors and gates on an agent whose group elects among itself: they ask the agent, and need not know how it leads."""

from collections.abc import Iterator
from pathlib import Path

import pendulum
import pytest
from airflow.providers.common.compat.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator

from airflow_provider.operators.neli import LeaderGate
from airflow_provider.sensors.neli import LeaderSensor, SlotOwnerSensor
from neli_router.config import Config
from neli_router.keyspace import Layout
from neli_router.settings.agent_options import AgentOptions
from tests.member.test_peer_footing import Listed
from tests.support.agents.running import PARTITIONS, running
from tests.support.given import DagTest, spelled
from tests.support.waiting import until

pytestmark = pytest.mark.airflow

START = pendulum.datetime(2026, 1, 1)
LEASE = 8.0
"""Seconds. Importing Airflow, in this process, holds up the agent's threads for longer than a short lease lasts."""


@pytest.fixture(name="elected", params=["term", "gossip"])
def _elected(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The protocol of the agent that `elected` is a connection to: the only peer of its list, it leads everything."""
    layout, socket = Layout(partitions=PARTITIONS), str(tmp_path / "agent.sock")
    config = Config(Listed(tmp_path, 1).address(0), protocol=request.param, name="a", lease=LEASE, layout=layout)
    with running(config, AgentOptions(socket=socket)) as agent:
        until(lambda: len(agent.agent.member.led) == PARTITIONS)
        monkeypatch.setenv("AIRFLOW_CONN_ELECTED", spelled(address=f"unix:{socket}"))
        yield request.param


def test_sensors_and_gates_find_a_leader_that_its_peers_elected(elected: str, dag_test: DagTest) -> None:
    with DAG(f"elected_by_{elected}", start_date=START) as dag:
        LeaderSensor(task_id="leader", role="nightly", neli_conn_id="elected")
        SlotOwnerSensor(task_id="owner", key="EURUSD", neli_conn_id="elected")
        leads = LeaderGate(task_id="leads", role=3, neli_conn_id="elected")
        leads >> EmptyOperator(task_id="below")
        follows = LeaderGate(task_id="follows", role=3, expect="b", neli_conn_id="elected")
        follows >> EmptyOperator(task_id="beneath")
    found = {one.task_id: str(one.state) for one in dag_test(dag).get_task_instances()}
    good = dict.fromkeys(["leader", "owner", "leads", "below"], "success")
    assert {**good, "follows": "skipped", "beneath": "skipped"} == found
