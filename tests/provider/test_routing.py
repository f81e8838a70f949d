"""The work of a Dag is shared out by ownership: in a Dag that really runs, on one of two agents."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, task

from airflow_provider.routing import owned_partitions
from tests.provider.agents import PARTITIONS, AgentProcess, agents
from tests.provider.conftest import LEASE
from tests.provider.given import DagTest

pytestmark = pytest.mark.airflow


@pytest.fixture(name="two", scope="module")
def _two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentProcess, AgentProcess]]:
    with agents(tmp_path_factory.mktemp("agents"), "a", "b", lease=LEASE) as (a, b):
        yield a, b


def test_tasks_are_mapped_over_what_their_host_owns(
    two: tuple[AgentProcess, AgentProcess], dag_test: DagTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[int]] = {agent.name: [] for agent in two}
    for agent in two:
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", agent.connection)
        with DAG(f"shared_out_{agent.name}", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

            @task
            def mine() -> list[int]:
                return owned_partitions()

            @task.leader(role="{{ task.op_kwargs['partition'] }}")
            def work(partition: int, lease: Any) -> None:
                assert partition == lease.partition
                told[lease.member].append(partition)

            work.expand(partition=mine())
        assert "success" == dag_test(dag).state
    assert list(range(PARTITIONS)) == sorted(told["a"] + told["b"])
    assert all(told.values())
