"""@task.leader and LeaderOperator, in Dags that `dag.test()` runs on real agents."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import DAG, get_current_context
from airflow.sdk import task

from airflow_provider.exceptions import LeadershipLost
from airflow_provider.operators.neli import LeaderShortCircuitOperator
from airflow_provider.partitions import asked_role
from airflow_provider.retries import LeadershipRetryPolicy
from neli_router.errors import BadKey
from neli_router.fence import Refused
from tests.support.agents.processes import PARTITIONS, AgentProcess, agents, leader_of
from tests.support.agents.running import PATIENCE
from tests.support.given import DagTest, spelled

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

pytestmark = pytest.mark.airflow

LONG = 10 * PATIENCE
SYMBOLS = ["EURUSD", "7", "USDJPY", "none"]


@pytest.fixture(name="both", scope="module")
def _both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AgentProcess]]:
    with agents(tmp_path_factory.mktemp("agents"), "a", "b", drain_timeout=0.3) as both:
        yield both


@pytest.fixture(name="here")
def _here(both: list[AgentProcess], neli_default: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentProcess]:
    """The agent of this host, which leads role 0."""
    here = leader_of(0, both)
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", here.connection)
    yield here
    with here.client() as client:
        for role in range(PARTITIONS):
            client.unpin(role)


@pytest.fixture(name="dag")
def _dag(request: pytest.FixtureRequest) -> DAG:
    name = re.sub(r"[^a-z_]+", "_", request.node.name)
    return DAG(name, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))


def states(run: "DagRun") -> dict[str, str]:
    return {
        one.task_id if one.map_index < 0 else f"{one.task_id}[{one.map_index}]": str(one.state)
        for one in run.get_task_instances()
    }


def elsewhere(both: list[AgentProcess], here: AgentProcess) -> int:
    """A role that the other agent leads."""
    with here.client() as client:
        return next(role for role in range(PARTITIONS) if client.owner_of_role(role).name != here.name)


def bring(role: int, here: AgentProcess) -> None:
    with here.client() as client:
        client.pin(role, here.name)


@contextmanager
def meanwhile(act: Callable[[], object], *, after: str) -> Iterator[None]:
    """Do it when Airflow's log has had this text."""
    heard = threading.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if after in record.getMessage():
                heard.set()

    def wait() -> None:
        if heard.wait(PATIENCE):
            act()

    ear, thread = Ear(), threading.Thread(target=wait)
    logging.getLogger().addHandler(ear)
    thread.start()
    try:
        yield
    finally:
        heard.set()
        thread.join()
        logging.getLogger().removeHandler(ear)


def told_of(run: "DagRun", task_id: str) -> Any:
    """The value that the task returned."""
    (one,) = (one for one in run.get_task_instances() if one.task_id == task_id)
    return one.xcom_pull(task_ids=task_id)


def test_a_function_runs_under_the_lease_of_its_role(dag: DAG, dag_test: DagTest, here: AgentProcess) -> None:
    told: dict[str, Any] = {}

    with dag:

        @task.leader(role=0, push_term=True)
        def work(lease: Any = None, number: int = 0) -> str:
            told.update(partition=lease.partition, member=lease.member, number=number)
            told.update(holds=lease.holds(), same=get_current_context().get("lease") is lease)
            return f"term {lease.term}"

        @task.leader(role=0, when_not_leading="fail")
        def after(text: Any, ti: Any = None) -> None:
            told.update(text=text == f"term {ti.xcom_pull(task_ids='work', key='neli_term')}")

        after(work(number=7))

    assert {"work": "success", "after": "success"} == states(dag_test(dag))
    assert {"partition": 0, "member": here.name, "number": 7, "holds": True, "same": True, "text": True} == told


def test_a_function_that_takes_no_lease_runs_under_one_all_the_same(
    dag: DAG, dag_test: DagTest, here: AgentProcess
) -> None:
    with dag:

        @task.leader(role="{{ 5 - 5 }}")
        def work() -> bool:
            return get_current_context()["lease"].holds()  # type: ignore[typeddict-item, no-any-return]

        work()

    run = dag_test(dag)
    assert {"work": "success"} == states(run)


def test_each_mapped_task_holds_the_lease_of_its_own(dag: DAG, dag_test: DagTest, here: AgentProcess) -> None:
    told: dict[str, int] = {}

    with dag:

        @task.leader(when_not_leading="skip", key="{{ task.op_kwargs['symbol'] }}")
        def work(symbol: str, lease: Any) -> None:
            told[symbol] = lease.partition

        work.expand(symbol=SYMBOLS)

    run = dag_test(dag)
    with here.client() as client:
        owners = {symbol: client.owner(symbol) for symbol in SYMBOLS}
    mine = {symbol: owner.partition for symbol, owner in owners.items() if owner.name == here.name}
    assert mine == told
    assert sorted(["success"] * len(mine) + ["skipped"] * (len(SYMBOLS) - len(mine))) == sorted(states(run).values())


@pytest.fixture
def _loop() -> Iterator[None]:
    """Airflow runs coroutines on the thread's loop, and leaves one open that it had to make."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield
        asyncio.set_event_loop(None)


@pytest.mark.usefixtures("_loop")
def test_a_coroutine_runs_under_the_lease_of_its_role(dag: DAG, dag_test: DagTest, here: AgentProcess) -> None:
    told = []

    with dag:

        @task.leader(role=0)
        async def work(lease: Any = None) -> None:
            await asyncio.sleep(0)
            told.append(lease.holds())

        work()

    assert {"work": "success"} == states(dag_test(dag))
    assert [True] == told


# Led elsewhere


@pytest.mark.parametrize(("way", "state"), [("skip", "skipped"), ("fail", "failed")])
def test_a_task_whose_role_is_led_elsewhere_does_not_run(
    dag: DAG, dag_test: DagTest, both: list[AgentProcess], here: AgentProcess, way: Any, state: str
) -> None:
    role = elsewhere(both, here)
    with dag:

        @task.leader(role=role, when_not_leading=way)
        def work() -> None:
            pytest.fail("it ran")

        @task.leader(role=0)
        def below() -> None:
            pytest.fail("it ran")

        work() >> below()

    assert {"work": state, "below": "skipped" if way == "skip" else "upstream_failed"} == states(dag_test(dag))


def test_a_task_waits_until_its_role_is_led_here(
    dag: DAG, dag_test: DagTest, both: list[AgentProcess], here: AgentProcess
) -> None:
    role = elsewhere(both, here)

    with dag:

        @task.leader(role=role, when_not_leading="wait")
        def work(lease: Any = None) -> int:
            return int(lease.partition)

        work()

    with meanwhile(lambda: bring(role, here), after="running trigger in line"):
        assert {"work": "success"} == states(dag_test(dag))


def test_a_task_is_rescheduled_until_its_role_is_led_here(
    dag: DAG, dag_test: DagTest, both: list[AgentProcess], here: AgentProcess
) -> None:
    role = elsewhere(both, here)

    with dag:

        @task.leader(role=role, when_not_leading="reschedule", poke_interval=0.5)
        def work(lease: Any = None) -> int:
            return int(lease.partition)

        work()

    with meanwhile(lambda: bring(role, here), after="No tasks to run"):
        assert {"work": "success"} == states(dag_test(dag))


def test_a_task_that_was_rescheduled_for_too_long_fails(
    dag: DAG, dag_test: DagTest, both: list[AgentProcess], here: AgentProcess
) -> None:
    with dag:

        @task.leader(role=elsewhere(both, here), when_not_leading="reschedule", poke_interval=0.1, timeout=0.1)
        def work() -> None:
            pytest.fail("it ran")

        work()

    assert {"work": "failed"} == states(dag_test(dag))


def test_a_task_fails_if_the_agent_is_away_and_says_why(
    dag: DAG, dag_test: DagTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", spelled(address=f"unix:{tmp_path}/none.sock"))
    why: list[str] = []

    with dag:

        @task.leader(role=0, on_failure_callback=lambda context: why.append(str(context["exception"])))
        def work() -> None:
            pytest.fail("it ran")

        work()

    assert {"work": "failed"} == states(dag_test(dag))
    assert ["there is no socket" in one for one in why] == [True]


def test_a_task_waits_for_an_agent_that_is_away(
    dag: DAG, dag_test: DagTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agents(tmp_path, "a") as [agent]:
        agent.kill()
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", agent.connection)
        # One that has just started leads a moment after it answers: a long one, where other tests take all cores.
        monkeypatch.setattr("airflow_provider.leases.START_MAX", PATIENCE)

        with dag:

            @task.leader(role=0, when_away="wait", poke_interval=0.5)
            def work(lease: Any = None) -> None:
                lease.check()

            work()

        with meanwhile(agent.start, after="No tasks to run"):
            assert {"work": "success"} == states(dag_test(dag))


# The loss


def test_a_task_that_loses_its_role_ends_and_is_retried_where_the_role_is_led(
    dag: DAG, dag_test: DagTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts, each with a worker: the second try runs on the host that took the role over."""
    errors: list[BaseException] = []
    with agents(tmp_path, "a", "b") as both:
        first = leader_of(0, both)
        second = next(agent for agent in both if agent is not first)
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", first.connection)

        def after_the_loss(context: Any) -> None:
            errors.append(context["exception"])
            monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", second.connection)

        dag.default_args.update(retries=2, retry_delay=3600, retry_policy=LeadershipRetryPolicy())
        with dag:

            @task.leader(role=0, when_not_leading="fail", on_retry_callback=after_the_loss)
            def work(lease: Any = None, ti: Any = None) -> str:
                if ti.try_number == 1:
                    first.kill()
                    time.sleep(LONG)
                return str(lease.member)

            work()

        run = dag_test(dag)
        assert {"work": "success"} == states(run)
        assert second.name == told_of(run, "work")
    assert LeadershipLost is type(errors[0])


@pytest.mark.usefixtures("_loop")
def test_a_coroutine_that_loses_its_role_is_cancelled(
    dag: DAG, dag_test: DagTest, both: list[AgentProcess], here: AgentProcess
) -> None:
    (other,) = (agent for agent in both if agent is not here)
    told: list[BaseException | str] = []

    with dag:

        @task.leader(role=0, on_failure_callback=lambda context: told.append(context["exception"]))
        async def work() -> None:
            bring(0, other)
            try:
                await asyncio.sleep(LONG)
            finally:
                await asyncio.sleep(0)
                told.append("cleaned up")

        work()

    assert {"work": "failed"} == states(dag_test(dag))
    assert ["cleaned up", LeadershipLost] == [one if isinstance(one, str) else type(one) for one in told]


def test_a_task_that_a_fence_refused_is_not_retried(dag: DAG, dag_test: DagTest, here: AgentProcess) -> None:
    tries = []

    with dag:

        @task.leader(role=0, retries=3, retry_delay=3600, retry_policy=LeadershipRetryPolicy())
        def work(lease: Any = None) -> None:
            tries.append(lease.term)
            raise Refused.of("prices", lease.term, lease.term + 1)

        work()

    assert {"work": "failed"} == states(dag_test(dag))
    assert len(tries) == 1


def test_a_task_that_is_told_to_finish_succeeds(
    dag: DAG, dag_test: DagTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agents(tmp_path, "a", "b", drain_timeout=PATIENCE) as both:
        here = leader_of(0, both)
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", here.connection)

        with dag:

            @task.leader(role=0)
            def work(lease: Any = None) -> None:
                with here.client() as client:
                    client.drain(here.name)
                assert lease.revoked.wait(PATIENCE)

            work()

        assert {"work": "success"} == states(dag_test(dag))
        assert leader_of(0, both) is not here


# The short circuit


def test_a_short_circuit_lets_only_the_leader_go_on(
    dag: DAG, dag_test: DagTest, both: list[AgentProcess], here: AgentProcess
) -> None:
    told: list[Any] = []

    with dag:

        @task
        def below(lease: Any) -> None:
            told.append(lease)

        for name, role in (("here", "{{ 0 }}"), ("there", elsewhere(both, here))):
            gate = LeaderShortCircuitOperator(task_id=name, role=role)
            gate >> below.override(task_id=f"below_{name}")(gate.output)

    expected = {"here": "success", "below_here": "success", "there": "success", "below_there": "skipped"}
    assert expected == states(dag_test(dag))
    assert [(0, here.name)] == [(lease["partition"], lease["member"]) for lease in told]


# What a Dag may say


@pytest.mark.parametrize(
    ("role", "key", "partition_key", "expected"),
    [
        (7, None, None, (7, None)),
        (-1, None, None, (-1, None)),
        ("7", None, None, (7, None)),
        ("nightly", None, None, ("nightly", None)),
        (None, "7", None, (None, "7")),
        (None, None, "EURUSD", ("EURUSD", None)),
        (None, None, "12", (12, None)),
    ],
)
def test_a_role_is_a_number_or_a_name_and_by_default_the_partition(
    role: Any, key: Any, partition_key: str | None, expected: tuple[object, object]
) -> None:
    assert expected == asked_role(role, key, partition_key=partition_key)


@pytest.mark.parametrize(
    ("role", "key", "found"),
    [
        (None, None, "neither was given, and this run has no partition_key"),
        (7, "EURUSD", "both were given"),
        ("", None, "gave an empty text"),
        ("None", None, "gave an empty text, or None"),
        (None, "  ", "gave an empty text"),
        (True, None, "gave a bool"),
        (7.0, None, "gave a float"),
        (None, ["EURUSD"], "gave a list"),
    ],
)
def test_what_is_no_role_is_refused(role: Any, key: Any, found: str) -> None:
    with pytest.raises(BadKey, match=found):
        asked_role(role, key)


def test_a_task_says_what_its_choices_are(dag: DAG, dag_test: DagTest, here: AgentProcess) -> None:
    why: list[str] = []

    with dag:

        @task.leader(
            role=0,
            when_not_leading="leave",
            on_failure_callback=lambda context: why.append(str(context["exception"])),
        )
        def work() -> None:
            pytest.fail("it ran")

        work()

    assert {"work": "failed"} == states(dag_test(dag))
    assert ["'skip' or 'fail' or 'wait' or 'reschedule', but 'leave' was given" in one for one in why] == [True]


def test_a_lease_that_a_dag_gives_itself_is_refused_at_its_parse(dag: DAG) -> None:
    with dag:

        @task.leader(role=0)
        def work(lease: Any = None) -> None: ...

        with pytest.raises(ValueError, match="wanted from the task itself"):
            work(lease=7)
