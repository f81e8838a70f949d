"""The sensors and the gate in Dags that really run: `dag.test()`, in this process, on a real agent."""

from datetime import timedelta
from typing import Any

import pendulum
import pytest
from airflow.models.dagrun import DagRun
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowSkipException,
    Asset,
    Context,
    TaskDeferred,
)
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import PartitionedAssetTimetable
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider.links import NeliLink
from airflow_provider.operators.leader import LeaderMixin
from airflow_provider.partitions import SlotPartitionMapper
from airflow_provider.sensors.neli import LeaderGateSensor, LeaderSensor, SlotOwnerSensor
from airflow_provider.triggers.neli import LEADER_KEY, LeaderTrigger
from neli_router.core.keyspace import Layout
from neli_router.errors import BadKey
from tests.provider.conftest import states
from tests.support.given import DagTest

pytestmark = pytest.mark.airflow

START = pendulum.datetime(2026, 1, 1)


def returned(run: DagRun, task_id: str, key: str = "return_value") -> Any:
    instance: Any = run.get_task_instance(task_id)
    return instance.xcom_pull(task_ids=task_id, key=key)


def test_sensors_of_each_kind_return_the_leader_or_end(dag_test: DagTest) -> None:
    late: dict[str, Any] = {"deferrable": False, "poke_interval": 0.1, "timeout": 0.2}
    with DAG("sensors", start_date=START, params={"role": "nightly"}) as dag:
        LeaderSensor(task_id="here", role="{{ params.role }}")
        LeaderSensor(task_id="poked", role="nightly", expect="a", deferrable=False, poke_interval=0.1)
        LeaderSensor(task_id="number", partition="3")
        LeaderSensor(task_id="triggered", role=3, expect="anybody", start_from_trigger=True)
        LeaderSensor.partial(task_id="mapped", start_from_trigger=True).expand(role=["nightly", 3])
        SlotOwnerSensor(task_id="owner", key="EURUSD")
        LeaderSensor(task_id="rescheduled", role="nightly", deferrable=False, mode="reschedule")
        LeaderSensor(task_id="soft", role="nightly", neli_conn_id="away", when_away="fail", soft_fail=True)
        LeaderSensor(task_id="hard", role="nightly", neli_conn_id="away", when_away="fail")
        LeaderSensor(task_id="unnamed")
        LeaderSensor(task_id="late", role="nightly", expect="b", **late)
        LeaderSensor(task_id="softly_late", role="nightly", expect="b", soft_fail=True, **late)
        LeaderSensor(task_id="late_and_away", role="nightly", neli_conn_id="away", **late)
    run = dag_test(dag)
    good = ["here", "poked", "number", "triggered", "mapped[0]", "mapped[1]", "owner", "rescheduled"]
    bad = dict.fromkeys(["hard", "unnamed", "late", "late_and_away"], "failed")
    assert {**dict.fromkeys(good, "success"), **bad, "soft": "skipped", "softly_late": "skipped"} == states(run)
    for task in ("here", "poked", "triggered", "owner"):
        leader = returned(run, task)
        assert {"partition", "leader", "address", "term", "here"} == leader.keys() - {"role"}
        assert ("a", True) == (leader["leader"], leader["here"])
        assert f"/plugin/neli#partition={leader['partition']}" == returned(run, task, NeliLink().xcom_key)


def test_gates_decide_for_the_tasks_below(dag_test: DagTest) -> None:
    gates: dict[str, tuple[dict[str, Any], str, str]] = {
        "leads": ({}, "success", "success"),
        "follows": ({"expect": "b"}, "skipped", "skipped"),
        "fails": ({"expect": "b", "when_not_leading": "fail"}, "failed", "upstream_failed"),
        "asks": ({"expect": "b", "deferrable": False}, "skipped", "skipped"),
    }
    with DAG("gated", start_date=START) as dag:
        for name, (arguments, _, _) in gates.items():
            LeaderGateSensor(task_id=name, role="nightly", **arguments) >> EmptyOperator(task_id=f"below_{name}")
        # None of these can be decided immediately, so they go on in a trigger.
        HastyGate(task_id="deferred", role="nightly")
        HastyGate(task_id="deferred_away", role="nightly", neli_conn_id="nowhere")
        HastyGate(task_id="deferred_follows", role="nightly", expect="b")
    run = dag_test(dag)
    found = states(run)
    assert {name: (gate, below) for name, (_, gate, below) in gates.items()} == {
        name: (found[name], found[f"below_{name}"]) for name in gates
    }
    assert ("success", "failed") == (found["deferred"], found["deferred_away"])
    for skipped in ("follows", "asks", "deferred_follows"):
        leader = returned(run, skipped, LEADER_KEY)
        assert ("nightly", "a", True) == (leader["role"], leader["leader"], leader["here"])


class HastyGate(LeaderGateSensor):
    """A gate that found nothing at its first look, as if everything had changed since."""

    def _first_look(self, context: Context) -> None:
        return None


def test_an_instance_starts_in_the_triggerer_and_its_class_does_not() -> None:
    with DAG("started", start_date=START) as dag:
        LeaderSensor(task_id="plain", role="{{ params.role }}", start_from_trigger=True, timeout=60)
        LeaderSensor(task_id="waits", role="nightly")
        LeaderGateSensor(task_id="gate", role="nightly")
        first = EmptyOperator(task_id="first")
        LeaderSensor(task_id="of_output", role=first.output, start_from_trigger=True)  # type: ignore[arg-type]
        LeaderGateSensor.partial(task_id="mapped").expand(role=["nightly"])
    assert LeaderSensor.start_trigger_args is None
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    started = {task.task_id: task.start_from_trigger and task.start_trigger_args is not None for task in read.tasks}
    expected = {"plain": True, "waits": False, "gate": True, "first": False, "of_output": False, "mapped": False}
    assert expected == started
    plain: Any = dag.get_task("plain")
    arguments = plain.start_trigger_args.trigger_kwargs
    names = {name for name in plain.template_fields if name in arguments and hasattr(LeaderTrigger(**arguments), name)}
    assert set(plain.template_fields) == names  # Otherwise Airflow would not render them in the triggerer.


@pytest.mark.parametrize("configured", [True, False])
def test_airflow_s_configuration_says_what_is_deferrable(configured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(configured))
    assert configured is LeaderSensor(task_id="sensor", role="nightly").deferrable
    assert configured is not SlotOwnerSensor(task_id="owner", deferrable=not configured).deferrable
    assert LeaderGateSensor(task_id="gate", role="nightly").start_from_trigger


@pytest.mark.parametrize(
    ("kind", "arguments", "found"),
    [
        (LeaderSensor, {"role": "None"}, "a role was wanted"),
        (LeaderSensor, {"expect": ""}, "`expect`"),
        (LeaderSensor, {"expect": 7}, "`expect`"),
        (LeaderSensor, {"when_away": "sleep"}, "`when_away`"),
        (LeaderSensor, {"partition": 3}, "role and partition were given"),
        (LeaderSensor, {"role": "nigthly"}, "did you mean 'nightly'"),
        (LeaderGateSensor, {"role": 256}, "a partition below 256 was wanted"),
        (LeaderGateSensor, {"when_not_leading": "maybe"}, "`when_not_leading` was wanted to be skip or fail"),
        (LeaderMixin, {"role": ""}, "a role was wanted"),
        (LeaderMixin, {"key": "EURUSD"}, "role and key were given"),
        (LeaderMixin, {"when_not_leading": "maybe"}, "`when_not_leading` was wanted"),
        (LeaderMixin, {"timeout": timedelta()}, "timeout must be seconds or a timedelta, and more than 0 s"),
    ],
)
def test_what_makes_no_sense_is_an_import_error(
    kind: Any, arguments: dict[str, Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__NELI__ROLES", "nightly, hourly")
    kind(task_id="judged_once_rendered", role="{{ params.role }}")
    with pytest.raises((BadKey, ValueError), match=found):
        kind(task_id="task", **{"role": "nightly", **arguments})


def test_a_sensor_without_an_agent_gives_its_worker_back_and_nonsense_or_a_wrong_connection_ends_it() -> None:
    with pytest.raises(TaskDeferred) as deferred:  # Its worker is free immediately; the trigger waits for the agent.
        LeaderSensor(task_id="deferred", role="nightly", neli_conn_id="away", timeout=0.2).execute(Context())
    assert timedelta(seconds=0.2) == deferred.value.timeout
    with pytest.raises(AirflowException, match="is of the type 'http'"):
        LeaderSensor(task_id="hard", role="nightly", neli_conn_id="wrong").execute(Context())
    with pytest.raises(AirflowSkipException, match="is of the type 'http'"):
        LeaderSensor(task_id="soft", role="nightly", neli_conn_id="wrong", soft_fail=True).execute(Context())
    rendered = LeaderSensor(task_id="rendered", role="nightly", expect="{{ params.leader }}")
    rendered.expect = ""
    with pytest.raises(AirflowException, match="`expect`"):
        rendered.execute(Context())


def test_a_run_that_another_layout_made_is_refused(neli_default: str) -> None:
    mapper: Any = SlotPartitionMapper(Layout(partitions=9))
    schedule = PartitionedAssetTimetable(assets=Asset("prices"), default_partition_mapper=mapper)
    with DAG("by_partition", schedule=schedule) as dag:
        sensor = LeaderSensor(task_id="sensor", partition="3")
        gate: Any = LeaderGateSensor(task_id="gate", partition="3")
    with pytest.raises(AirflowException, match="partitions=9"):
        sensor.poke(Context())
    layout = gate.start_trigger_args.trigger_kwargs["layout"]
    assert {"slots": 16384, "partitions": 9, "tags": False} == layout
    DagSerialization.from_dict(DagSerialization.to_dict(dag))
