"""@task.leader and LeaderMixin, in Dags that `dag.test()` runs on real agents."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from airflow.exceptions import AirflowClusterPolicyViolation
from airflow.providers.common.compat.sdk import DAG, Asset, BaseOperator, Context, TaskDeferred, get_current_context
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import PartitionedAssetTimetable, task
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_provider._arguments import asked_role
from airflow_provider._machinery import leases
from airflow_provider._machinery.subscription import current
from airflow_provider.exceptions import LeadershipLost, NotLeadingHere
from airflow_provider.hooks.neli import NeliHook
from airflow_provider.operators.leader import FACET, LeaderMixin
from airflow_provider.operators.neli import LeaderShortCircuitOperator
from airflow_provider.partitions import SlotPartitionMapper
from airflow_provider.policy import task_policy
from airflow_provider.retries import LeadershipRetryPolicy
from airflow_provider.sensors.neli import LeaderSensor
from airflow_provider.triggers.neli import LeaderTrigger
from neli_router.core.keyspace import Layout
from neli_router.errors import BadKey
from neli_router.fence import Refused
from tests.provider.conftest import Group, member, states
from tests.provider.triggerer import triggerer
from tests.support.agents.processes import leader_of
from tests.support.agents.running import PATIENCE
from tests.support.agents.stand_in import whenever
from tests.support.given import DagTest, spelled
from tests.support.waiting import until, until_in_loop

pytestmark = pytest.mark.airflow

LONG = 10 * PATIENCE


class WaitingTask(LeaderMixin, PythonOperator): ...


class TwoParts(BaseOperator):
    """Like an operator of another provider: it defers, and its `role` means something else."""

    def __init__(self, *, role: str = "arn:aws", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.role = role

    def execute(self, context: Any) -> None:
        assert context["lease"].holds()
        self.defer(trigger=TimeDeltaTrigger(timedelta()), method_name="end")

    def end(self, context: Any, event: Any = None) -> str:
        return f"{self.role} {context['lease'].partition}"


MAPPER: Any = SlotPartitionMapper(Layout())
BY_PARTITION = DAG(
    "by_partition", schedule=PartitionedAssetTimetable(assets=Asset("prices"), default_partition_mapper=MAPPER)
)
SYMBOLS = ["EURUSD", "7", "USDJPY", "none"]


@pytest.fixture(name="dag")
def _dag(request: pytest.FixtureRequest) -> DAG:
    name = re.sub(r"[^a-z_]+", "_", request.node.name)
    return DAG(name, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def _loop() -> Iterator[None]:
    """Airflow runs coroutines on the thread's loop; if it had to make one, it leaves it open."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield
        asyncio.set_event_loop(None)


@pytest.mark.usefixtures("_loop")
def test_a_function_runs_under_the_lease_of_its_role(dag: DAG, dag_test: DagTest, group: Group) -> None:
    here = group.here
    told: dict[str, Any] = {}
    partitions: dict[str, int] = {}
    with dag:

        @task.leader(role=0, push_term=True)
        def work(lease: Any = None, number: int = 0) -> str:
            told.update(partition=lease.partition, member=lease.member, number=number)
            told.update(holds=lease.holds(), same=get_current_context().get("lease") is lease)
            return f"term {lease.term}"

        @task.leader(partition="{{ 5 - 5 }}", when_not_leading="fail")
        def after(text: Any, ti: Any = None) -> None:
            told.update(text=text == f"term {ti.xcom_pull(task_ids='work', key='neli_term')}")
            told.update(taken=get_current_context()["lease"].holds())  # type: ignore[typeddict-item]

        @task.leader(role=0)
        async def coroutine(lease: Any = None) -> None:
            await asyncio.sleep(0)
            told.update(in_loop=lease.holds())

        @task.leader(when_not_leading="skip", key="{{ task.op_kwargs['symbol'] }}")
        def mapped(symbol: str, lease: Any) -> None:
            partitions[symbol] = lease.partition

        @task
        def below(lease: Any) -> None:
            told.update(short=(lease["partition"], lease["member"]))

        after(work(number=7))
        coroutine()
        mapped.expand(symbol=SYMBOLS)
        for name, role in (("here", 0), ("there", group.elsewhere)):
            gate = LeaderShortCircuitOperator(task_id=name, role=role)
            gate >> below.override(task_id=f"below_{name}")(gate.output)
        one = LeaderShortCircuitOperator(task_id="one", role=group.elsewhere, ignore_downstream_trigger_rules=False)
        one >> coroutine.override(task_id="next")() >> coroutine.override(task_id="last", trigger_rule="all_done")()

    found = states(dag_test(dag))
    with here.client() as client:
        owners = [client.owner(symbol) for symbol in SYMBOLS]
    mine = {symbol: owner.partition for symbol, owner in zip(SYMBOLS, owners, strict=True) if owner.name == here.name}
    assert mine == partitions
    for number, symbol in enumerate(SYMBOLS):
        assert ("success" if symbol in mine else "skipped") == found.pop(f"mapped[{number}]")
    good = dict.fromkeys(["work", "after", "coroutine", "here", "below_here", "there", "one", "last"], "success")
    assert {**good, "below_there": "skipped", "next": "skipped"} == found
    under = {"partition": 0, "member": here.name, "number": 7, "holds": True, "same": True, "text": True, "taken": True}
    assert {**under, "in_loop": True, "short": (0, here.name)} == told


def test_a_task_does_not_run_where_its_role_is_not_led(dag: DAG, dag_test: DagTest, group: Group) -> None:
    role, why, tries = group.elsewhere, dict[str, str](), list[int]()

    def say(context: Any) -> None:
        why[context["ti"].task_id] = str(context["exception"])

    dag.default_args.update(on_failure_callback=say)
    with dag:

        @task.leader(role=0)
        def work() -> None:
            pytest.fail("it ran")

        @task.leader(role=0, retries=3, retry_delay=3600, retry_policy=LeadershipRetryPolicy())
        def refused(lease: Any = None) -> None:
            tries.append(lease.term)
            raise Refused.of("prices", lease.term, lease.term + 1)

        given: dict[str, dict[str, Any]] = {
            "skips": {"role": role},
            "fails": {"role": role, "when_not_leading": "fail"},
            "late": {"role": role, "when_not_leading": "reschedule", "poke_interval": 0.1, "timeout": 0.1},
            "away": {"neli_conn_id": "away"},
        }
        for name, arguments in given.items():
            work.override(task_id=name, **arguments)() >> work.override(task_id=f"below_{name}")()
        refused()

    failed = dict.fromkeys(["fails", "late", "away", "refused"], "failed")
    below = {f"below_{name}": "upstream_failed" for name in given}
    run = dag_test(dag)
    assert {**failed, **below, "skips": "skipped", "below_skips": "skipped"} == states(run)
    assert "there is no socket" in why["away"]
    skipped: Any = run.get_task_instance("skips")
    with group.here.client() as client:
        led_by = client.owner_of_role(role)
    told = skipped.xcom_pull("skips", key="neli_leader")
    assert (led_by.name, led_by.term, role) == (told["leader"], told["term"], told["partition"])
    assert len(tries) == 1, "what a fence refused is not retried"


def test_each_task_of_a_tagged_dag_runs_under_the_lease_of_the_dag_s_role(
    dag: DAG, dag_test: DagTest, group: Group
) -> None:
    dag.tags = {"mine", "neli:partition=0"}
    with dag:

        @task
        def work(number: int = 0, lease: Any = None) -> int:
            lease.check()
            return int(lease.partition)

        work()
        work.override(task_id="mapped").expand(number=[1, 2])
        two = TwoParts(task_id="two")
        TwoParts.partial(task_id="twos").expand(role=["a", "b"])
        own = LeaderShortCircuitOperator(task_id="own", role=group.elsewhere)
        own >> work.override(task_id="skipped")()
    for one in dag.tasks:
        task_policy(one)
    run = dag_test(dag)
    good = ["work", "mapped[0]", "mapped[1]", "two", "twos[0]", "twos[1]", "own"]
    assert {**dict.fromkeys(good, "success"), "skipped": "skipped"} == states(run)
    ended: Any = run.get_task_instance("two")
    assert "arn:aws 0" == ended.xcom_pull("two")
    assert ("TwoParts", __name__) == (two.task_type, type(two).__module__), "what Airflow stores and shows"


def test_a_tagged_task_waits_for_its_role_and_a_part_of_it_fails_where_the_role_is_not_led(group: Group) -> None:
    dag = DAG("tagged", schedule=None, tags=[f"neli:partition={group.elsewhere}"])
    two = TwoParts(task_id="two", dag=dag)
    task_policy(two)
    context = Context(ti=SimpleNamespace(get_first_reschedule_date=lambda _: None))  # type: ignore[typeddict-item]
    with pytest.raises(TaskDeferred) as raised:
        two.execute(context)
    assert isinstance(raised.value.trigger, LeaderTrigger)
    with pytest.raises(NotLeadingHere):
        two.resume_execution("end", {}, context)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        (["neli:7"], "may mean a key or a partition"),
        (["neli:"], "the text is empty"),
        (["neli:a", "neli:b"], "one tag that begins with 'neli:' was wanted, but the Dag 'tagged' has a, b"),
    ],
)
def test_a_tag_that_names_no_role_is_an_import_error(tags: list[str], found: str) -> None:
    with pytest.raises(AirflowClusterPolicyViolation, match=found):
        task_policy(TwoParts(task_id="two", dag=DAG("tagged", schedule=None, tags=tags)))


def test_a_task_that_no_host_leads_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every host skipped it, no host would do it. A member leads nothing until a lease is over."""
    monkeypatch.setattr(NeliHook, "takeover_max", lambda _: 0.0)
    monkeypatch.setattr(leases, "START_MIN", 0.0)
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", spelled(address=f"unix:{tmp_path}/alone.sock"))
    with member(tmp_path, "alone", lease=LONG), pytest.raises(NotLeadingHere):
        WaitingTask(task_id="task", role=0, python_callable=lambda: None).execute(Context())


def test_a_task_waits_until_its_role_is_led_here_and_its_agent_is_there(
    dag: DAG,
    dag_test: DagTest,
    group: Group,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    later = tmp_path / "later.sock"
    monkeypatch.setenv("AIRFLOW_CONN_LATER", spelled(address=f"unix:{later}"))
    with dag:

        @task.leader(role=0)
        def work(lease: Any = None) -> int:
            lease.check()
            return int(lease.partition)

        work.override(task_id="waits", role=group.elsewhere, when_not_leading="wait")()
        rescheduled: dict[str, Any] = {"when_not_leading": "reschedule", "poke_interval": 0.5}
        work.override(task_id="rescheduled", role=group.theirs[1], **rescheduled)()
        work.override(task_id="later", neli_conn_id="later", when_away="wait", poke_interval=0.5)()

    def bring_both() -> None:
        group.pin(group.theirs[1], group.here)
        later.symlink_to(group.here.socket)

    with (
        whenever(lambda: "running trigger in line" in caplog.text, lambda: group.pin(group.elsewhere, group.here)),
        whenever(lambda: "No tasks to run" in caplog.text, bring_both),
    ):
        assert dict.fromkeys(["waits", "rescheduled", "later"], "success") == states(dag_test(dag))


def test_a_task_waits_for_its_worker_s_host_whatever_the_triggerer_s_host_leads(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The triggerer's own host leads. The trigger used to fire for that, and the worker to defer again and again."""
    role = group.elsewhere
    context = Context(ti=SimpleNamespace(get_first_reschedule_date=lambda _: None))  # type: ignore[typeddict-item]
    waits: list[Any] = [
        LeaderSensor(task_id="sensor", role=role),
        WaitingTask(task_id="task", role=role, when_not_leading="wait", python_callable=lambda: None),
    ]

    async def fired(triggers: list[LeaderTrigger]) -> list[Any]:
        async with triggerer() as one:
            numbers = [await one.start(trigger) for trigger in triggers]
            await until_in_loop(lambda: (picture := current("neli_default")) is not None and picture.layout is not None)
            assert all(map(one.is_waiting, numbers))
            await asyncio.to_thread(group.pin, role, group.here)
            return [(await one.event(number)).payload for number in numbers]

    triggers = []
    for waiting in waits:
        with pytest.raises(TaskDeferred) as raised:
            waiting.execute(context)
        triggers.append(raised.value.trigger)
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", group.other.connection)
    events = asyncio.run(fired(triggers))
    assert [("success", group.here.name)] * 2 == [(event["outcome"], event["leader"]) for event in events]
    for waiting, resume, event in zip(waits, ("execute_complete", "resume"), events, strict=True):
        with pytest.raises(AirflowRescheduleException):  # Resumed on a worker of the other host: it comes back later.
            getattr(waiting, resume)(context, event)
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", group.here.connection)
    leader_of(role, [group.here])  # The other host may have heard of its lead first.
    assert group.here.name == waits[0].execute_complete(context, events[0])["leader"]


@pytest.mark.usefixtures("_loop")
def test_a_coroutine_that_loses_its_role_is_cancelled(
    dag: DAG, dag_test: DagTest, group: Group, measured: Mapping[str, list[Any]]
) -> None:
    told: list[BaseException | str] = []

    with dag:

        @task.leader(role=0, on_failure_callback=lambda context: told.append(context["exception"]))
        async def work() -> None:
            group.take_away()
            try:
                await asyncio.sleep(LONG)
            finally:
                await asyncio.sleep(0)
                told.append("cleaned up")

        work()

    assert {"work": "failed"} == states(dag_test(dag))
    assert ["cleaned up", LeadershipLost] == [one if isinstance(one, str) else type(one) for one in told]
    tags = {"dag_id": dag.dag_id, "task_id": "work"}
    until(lambda: [(1, tags)] == measured["neli.lost"], "the count of the loss")
    assert [tags] == [its_tags for _, its_tags in measured["neli.wait"]]


def test_openlineage_hears_of_the_lease_and_of_no_key(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    openlineage = pytest.importorskip("airflow.providers.openlineage.utils.utils")
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__CUSTOM_RUN_FACETS", FACET)
    with group.here.client() as client:
        address = client.table().address
        key = next(key for key in map("Jane {}".format, range(100)) if client.owner(key).name == group.here.name)
        view = client.owner(key)
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [({"key": key}, {}), ({"role": key}, {"role": key})]
    for given, role in cases:
        task = WaitingTask(task_id="task", python_callable=lambda: None, **given)
        assert {} == openlineage.get_user_provided_run_facets(SimpleNamespace(task=task), "running")
        task.execute(Context())
        ((name, facet),) = openlineage.get_user_provided_run_facets(SimpleNamespace(task=task), "success").items()
        expected = {"group": address, "member": group.here.name, "partition": view.partition, "term": view.term}
        shown = {field: told for field, told in attrs.asdict(facet).items() if not field.startswith("_")}
        assert ("neli_leadership", {**expected, **role}) == (name, shown)


@pytest.mark.parametrize(
    ("given", "context", "expected"),
    [
        ({"role": 7}, {}, 7),
        ({"role": "nightly"}, {}, "nightly"),
        ({}, {"partition_key": "12"}, "12"),
        ({}, {"partition_key": "12", "dag": BY_PARTITION}, 12),
    ],
)
def test_a_role_is_a_name_or_a_number_and_by_default_the_run_s_key_or_partition(
    given: Any, context: Any, expected: int | str
) -> None:
    assert expected == asked_role(**given, context=context)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "none was given, and this run has no partition_key"),
        ({"key": "  "}, "the text is empty"),
        ({"role": True}, "gave a bool"),
        ({"key": ["EURUSD"]}, "gave a list"),
    ],
)
def test_what_is_no_role_is_refused(given: Any, found: str) -> None:
    with pytest.raises(BadKey, match=found):
        asked_role(**given)


def test_a_lease_that_a_dag_gives_itself_is_refused_at_its_parse(dag: DAG) -> None:
    with dag:

        @task.leader(role=0)
        def work(lease: Any = None) -> None: ...

        with pytest.raises(ValueError, match="wanted from the task itself"):
            work(lease=7)
