"""The work of a Dag is shared out by ownership: in Dags that really run, with two agents."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow import settings
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.policies import hookimpl
from airflow.providers.common.compat.sdk import DAG, Asset, task
from airflow.sdk import PartitionedAssetTimetable, task_group

from airflow_provider.hooks.neli import NeliHook
from airflow_provider.partitions import SlotPartitionMapper
from airflow_provider.routing import owned_partitions, queue_of_owner
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from tests.provider.conftest import Group
from tests.support.agents.processes import PARTITIONS
from tests.support.forking import in_child
from tests.support.given import DagTest
from tests.support.waiting import until

pytestmark = pytest.mark.airflow

START = datetime(2026, 1, 1, tzinfo=UTC)
SYMBOLS = [f"PAIR{number}" for number in range(6)]

ENDING = """
import threading
from types import SimpleNamespace
from airflow_provider.routing import queue_of_owner

task = SimpleNamespace(dag=SimpleNamespace())
instance = SimpleNamespace(dag_id="d", task_id="t", queue="default", map_index=-1, task=task)
queue_of_owner(neli_conn_id="nowhere")(instance, SimpleNamespace(partition_key="0"))
(follower,) = (one for one in threading.enumerate() if one.name == "neli-routing[nowhere]")
threading.Thread(target=follower.join, args=(60.0,)).start()
print(instance.queue)
"""
"""A process that ends while its thread retries, and that must wait for another thread meanwhile."""

Route = Callable[[TaskInstance, DagRun | None], None]


@pytest.fixture(name="connected")
def _connected(group: Group, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a connection to the agent of this host, whose owners are already known.

    No other module uses it, because a thread follows it until the process ends.
    """
    monkeypatch.setenv("AIRFLOW_CONN_ROUTED", group.here.connection)
    until(lambda: queue_of("0") != "default", "the owners")
    return "routed"


def queue_of(role: str) -> str | None:
    made, run = instance(role)
    queue_of_owner(neli_conn_id="routed")(made, run)
    return made.queue


@pytest.fixture(name="put")
def _put(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Route], None]]:
    """Puts a function where Airflow keeps that of `airflow_local_settings`."""
    policies = settings.get_policy_plugin_manager()
    monkeypatch.setattr(settings.task_instance_mutation_hook, "is_noop", False)

    def put(route: Route) -> None:
        class Policy:
            @staticmethod
            @hookimpl
            def task_instance_mutation_hook(task_instance: TaskInstance, dag_run: DagRun | None) -> None:
                route(task_instance, dag_run)

        policies.register(Policy())

    before = set(policies.get_plugins())
    yield put
    for policy in set(policies.get_plugins()) - before:
        policies.unregister(policy)


def instance(role: str | None = None) -> tuple[TaskInstance, DagRun]:
    """A task instance that is not mapped, of a run for the partition `role`."""
    mapper: Any = SlotPartitionMapper(Layout(partitions=PARTITIONS))
    schedule = PartitionedAssetTimetable(assets=Asset("prices"), default_partition_mapper=mapper)
    with DAG("by_partition", start_date=START, schedule=schedule) as dag:

        @task
        def work() -> None: ...

        work()
    from airflow.serialization.serialized_objects import DagSerialization  # noqa: PLC0415 - it takes seconds.

    there: Any = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    made = TaskInstance(there.get_task("work"), run_id="one", dag_version_id=None)
    return made, DagRun(dag_id="by_partition", run_id="one", partition_key=role)


def owners(conn_id: str) -> list[str | None]:
    with NeliHook(conn_id) as hook:
        return [view.name for view in map(hook.owner_of_role, range(PARTITIONS))]


def test_a_task_is_mapped_over_what_its_host_owns(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    assert group.ours == owned_partitions()
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", group.other.connection)
    assert group.theirs == owned_partitions()


def test_a_mapped_task_gets_the_queue_of_the_owner_of_its_key(
    connected: str, dag_test: DagTest, put: Callable[[Route], None]
) -> None:
    """However it is mapped. The hook saw the same key as the task was given."""
    told: dict[tuple[str, int], str] = {}
    with DAG("routed", start_date=START) as dag:

        @task
        def found() -> list[str]:
            return SYMBOLS[:2]

        @task
        def work(symbol: str, amount: int = 0, *, ti: Any = None) -> None:
            told[ti.task_id, ti.map_index] = symbol

        @task_group
        def group(symbol: str) -> None:
            work.override(task_id="grouped")(symbol)

        work.expand(symbol=SYMBOLS, amount=[1, 2])  # Not in alphabetical order.
        work.override(task_id="each").expand_kwargs([{"symbol": symbol} for symbol in SYMBOLS])
        group.expand(symbol=SYMBOLS)
        work.override(task_id="later").expand(symbol=found())
        work.override(task_id="templates").expand(symbol=["{{ ds }}"])
    put(queue_of_owner(key_from="symbol", queue="host-{member}", neli_conn_id=connected))
    run = dag_test(dag)
    assert "success" == run.state
    queues = {(one.task_id, one.map_index): one.queue for one in run.get_task_instances()}
    with NeliHook(connected) as hook:
        expected = {
            place: "default" if place[0] in {"later", "templates"} else f"host-{hook.owner(symbol).name}"
            for place, symbol in told.items()
        }
    assert {**expected, ("found", -1): "default"} == queues
    assert {"default", "host-a", "host-b"} == set(queues.values())


def test_a_run_by_partition_gets_the_queue_of_its_owner(connected: str, caplog: pytest.LogCaptureFixture) -> None:
    route = queue_of_owner(queue=lambda member: f"prices of {member}", neli_conn_id=connected)
    made = [instance(str(role)) for role in range(PARTITIONS)]
    for one in made:
        route(*one)
        route(*one)  # Airflow calls it several times.
    assert [f"prices of {name}" for name in owners(connected)] == [one.queue for one, _ in made]
    without_run, _ = instance()
    route(without_run, None)
    assert ("default", "") == (without_run.queue, caplog.text)


@pytest.mark.usefixtures("connected")
def test_a_new_owner_is_followed(group: Group) -> None:
    role = str(group.elsewhere)
    until(lambda: queue_of(role) == group.other.name, "the route to the owner")
    group.pin(group.elsewhere, group.here)
    until(lambda: queue_of(role) == group.here.name, "the route to the new owner")


# From 3.12 on, Python warns of a fork in a process that has threads. That is what this test is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.usefixtures("connected")
def test_a_fork_follows_by_itself() -> None:
    assert in_child(lambda: until(lambda: queue_of("0") in {"a", "b"}, "a route in the child")) is True
    assert queue_of("0") in {"a", "b"}


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize(
    ("conn_id", "role", "queue", "why"),
    [
        ("nowhere", "0", "{member}", "the owners cannot be asked: the connection 'nowhere' was wanted"),
        ("routed", None, "{member}", "the run has no partition_key"),
        ("routed", "9" * 19, "{member}", "this text is none"),
        ("routed", "0", "q" * 300 + "{member}", "the queue's name would have 301 characters"),
        ("routed", "0", lambda member: member[99], "string index out of range"),
    ],
)
def test_a_task_whose_owner_is_not_known_keeps_its_queue_and_says_so_once(
    conn_id: str, role: str | None, queue: str | Callable[[str], str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    route = queue_of_owner(queue=queue, neli_conn_id=conn_id)
    made, run = instance(role)

    def is_told() -> bool:
        route(made, run)
        return why in caplog.text

    with caplog.at_level(logging.WARNING, "airflow_provider.routing"):
        until(is_told, "the reason")
        is_told()
    (told,) = [record.getMessage() for record in caplog.records if why in record.getMessage()]
    assert told.startswith("by_partition.work keeps its queue default: ")
    assert "default" == made.queue


def test_a_process_ends_without_a_word_from_its_thread() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (0, "default") == (ended.returncode, ended.stdout.splitlines()[-1])
    assert "Traceback" not in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"queue": "prices-{host}"}, "must be a pattern such as 'prices-{member}', or a function"),
        ({"queue": "prices-{"}, "must be a pattern"),
        ({"key_from": "symbol", "partition_from": "partition"}, "both were given"),
    ],
)
def test_what_cannot_be_used_is_refused_when_the_configuration_is_read(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        queue_of_owner(**arguments)
