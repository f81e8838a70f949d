"""The triggers in the triggerer's real runner, with its shared streams, on real agents."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import TaskFailedEvent, TaskSkippedEvent, TaskSuccessEvent

from airflow_provider._arguments import spelled_layout
from airflow_provider._machinery.subscription import Subscription, current
from airflow_provider.hooks.neli import NeliHook
from airflow_provider.triggers.neli import LeaderTrigger, OwnershipTrigger
from neli_router.core.keyspace import Layout
from neli_router.errors import BadKey
from tests.provider.conftest import member, open_streams
from tests.provider.triggerer import Triggerer, triggerer
from tests.support.agents.running import PARTITIONS, Running
from tests.support.given import spelled
from tests.support.waiting import until_in_loop

pytestmark = pytest.mark.airflow


def play(story: Callable[[Triggerer], Awaitable[None]], *, settle: float = 0.0) -> None:
    async def told() -> None:
        async with triggerer(settle=settle) as one:
            await story(one)

    asyncio.run(told())


@pytest.fixture(name="second")
def _second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a connection to an agent "b", which the test starts."""
    monkeypatch.setenv("AIRFLOW_CONN_SECOND", spelled(address=f"{tmp_path}/b.sock"))
    return "second"


def picture(conn_id: str) -> Subscription:
    """The picture of `conn_id`'s shared stream; an empty one before the stream begins."""
    return current(conn_id) or Subscription(conn_id)


def payload(event: Any) -> dict[str, Any]:
    assert isinstance(event.payload, dict), event
    return event.payload


def test_triggers_fire_on_what_is_so_already_and_share_one_stream(agent: Running, neli_default: str) -> None:
    async def story(one: Triggerer) -> None:
        waiting = [await one.start(LeaderTrigger(role=role, expect="b")) for role in ("nightly", 3)]
        await until_in_loop(lambda: picture(neli_default).layout is not None)
        late = await one.start(LeaderTrigger(role="nightly"))
        event = payload(await one.event(late))
        with NeliHook() as hook:
            view = await asyncio.to_thread(hook.owner_of_role, "nightly")
        expected = {"outcome": "success", "why": "", "role": "nightly", "partition": view.partition, "leader": "a"}
        assert {**expected, "address": view.address, "term": view.term, "here": True} == event
        by_key = LeaderTrigger(key="Jane Doe", expect="anybody")  # A name that appears in no event and no repr.
        told = payload(await one.event(await one.start(by_key)))
        assert (False, False, False) == ("role" in told, "Jane" in str(told), "Jane" in repr(by_key))
        assert all(map(one.is_waiting, waiting))
        assert 1 == await asyncio.to_thread(open_streams, agent)
        for number in waiting:
            await one.stop(number)
        await until_in_loop(lambda: open_streams(agent) == 0)

    play(story)


@pytest.mark.usefixtures("neli_default")
def test_a_task_that_a_worker_resumes_stays_deferred_until_the_first_worker_has_ended() -> None:
    async def story(one: Triggerer) -> None:
        resumed = await one.start(LeaderTrigger(role="nightly", expect="anybody"))
        await one.event(await one.start(LeaderTrigger(role="nightly", expect="anybody", ends_task=True)))
        assert one.is_waiting(resumed)
        soon = datetime.now(UTC) + timedelta(seconds=10)
        hurried = await one.start(LeaderTrigger(role="nightly", expect="anybody"), timeout_after=soon)
        assert "success" == payload(await one.event(hurried))["outcome"]  # Before its task's time is over.

    play(story, settle=3600.0)


def test_a_takeover_fires_once_this_host_may_act_and_is_measured(
    tmp_path: Path, second: str, measured: Mapping[str, list[Any]]
) -> None:
    async def story(one: Triggerer) -> None:
        with ExitStack() as life:
            first = life.enter_context(member(tmp_path, "a"))
            life.enter_context(member(tmp_path, "b"))
            hook = life.enter_context(NeliHook(second))
            roles = await asyncio.to_thread(led_by, hook, "a")
            here = [await one.start(LeaderTrigger(role=role, neli_conn_id=second)) for role in roles]
            named = await one.start(LeaderTrigger(role=roles[0], expect="b", neli_conn_id=second))
            await until_in_loop(lambda: picture(second).layout is not None)
            assert all(map(one.is_waiting, [*here, named]))
            assert len(here) + 1 == measured["neli.waiting"][-1][0]
            first.stop()
            assert "b" == payload(await one.event(named))["leader"]
            for number, role in zip(here, roles, strict=True):
                event = payload(await one.event(number))
                assert ("b", True) == (event["leader"], event["here"])
                assert await asyncio.to_thread(hook.leads, role)
            assert len(here) + 1 == len(measured["neli.takeover"])
            assert 0 == measured["neli.waiting"][-1][0]

    play(story)


def led_by(hook: NeliHook, name: str) -> list[int]:
    """The partitions that `name` leads, once both members lead some and nothing moves."""
    while True:
        owners = [hook.owner_of_role(number).name for number in range(PARTITIONS)]
        if owners.count("a") == owners.count("b") == PARTITIONS // 2:
            return [number for number, owner in enumerate(owners) if owner == name]


@pytest.mark.parametrize(
    ("arguments", "outcome", "why"),
    [
        ({"expect": "anybody"}, TaskSuccessEvent, ""),
        ({"expect": "b", "otherwise": "skip"}, TaskSkippedEvent, ""),
        ({"expect": "b", "otherwise": "fail"}, TaskFailedEvent, "led by 'b' was wanted, but a leads, under term"),
        ({"expect": "b", "otherwise": "fail", "soft_fail": True}, TaskSkippedEvent, "was wanted, but a leads"),
        ({"neli_conn_id": "nowhere"}, TaskFailedEvent, "airflow connections add nowhere --conn-type neli"),
        ({"neli_conn_id": "wrong"}, TaskFailedEvent, "'wrong' is of the type 'http'"),
        ({"neli_conn_id": "ledger"}, TaskFailedEvent, "is to a ledger, which does not know this host"),
        ({"neli_conn_id": "ledger", "expect": "a"}, TaskSuccessEvent, ""),
        ({"neli_conn_id": "away", "when_away": "fail"}, TaskFailedEvent, "there is no socket"),
        ({"neli_conn_id": ""}, TaskFailedEvent, "the connection '' was wanted, but it is not there"),
        ({"layout": spelled_layout(Layout(partitions=PARTITIONS))}, TaskSuccessEvent, ""),
        ({"layout": spelled_layout(Layout(partitions=9))}, TaskFailedEvent, "but it has another"),
        ({"otherwise": "sleep"}, TaskFailedEvent, "`otherwise` was wanted to be wait or skip or fail"),
        ({"when_away": None}, TaskFailedEvent, "`when_away` was wanted to be wait or fail"),
        ({"expect": "None"}, TaskFailedEvent, "`expect` is empty, or None"),
        ({"role": None, "partition": "7"}, TaskSuccessEvent, ""),
        ({"role": None, "partition": "8"}, TaskFailedEvent, "from 0 to 7, but this number is none of them"),
        ({"role": "7"}, TaskFailedEvent, "may mean a key or a partition"),
    ],
)
@pytest.mark.usefixtures("neli_default", "ledger")
def test_a_task_ends_in_the_triggerer(
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    arguments: dict[str, Any],
    outcome: type,
    why: str,
) -> None:
    async def story(one: Triggerer) -> None:
        event = await one.event(await one.start(LeaderTrigger(**{"role": "nightly", "ends_task": True, **arguments})))
        assert outcome is type(event)
        if isinstance(event, TaskSuccessEvent):
            assert event.xcoms is not None
            assert "a" == event.xcoms["return_value"]["leader"]  # type: ignore[index, call-overload]

    play(story)
    assert why in caplog.text + "".join(capfd.readouterr())


def test_a_task_ends_before_its_own_deadline_and_says_why(
    neli_default: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(one: Triggerer) -> None:
        deadline = datetime.now(UTC) + timedelta(seconds=1)
        tasks = [
            await one.start(LeaderTrigger(role=1, expect="b", ends_task=True, **given), timeout_after=deadline)
            for given in ({}, {"soft_fail": True}, {"neli_conn_id": "away"})
        ]
        ends = [type(await one.event(task)) for task in tasks]
        assert [TaskFailedEvent, TaskSkippedEvent, TaskFailedEvent] == ends

    play(story)
    said = caplog.text + "".join(capfd.readouterr())
    assert "the task's time is over" in said
    assert "there is no socket" in said


def test_a_source_that_is_away_fails_only_who_wants_that_and_a_connection_may_be_made_later(
    tmp_path: Path, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SECOND")

    async def story(one: Triggerer) -> None:
        watcher = await one.start(OwnershipTrigger(role="nightly", neli_conn_id=second))
        await until_in_loop(lambda: picture(second).wrong is not None)
        monkeypatch.setenv("AIRFLOW_CONN_SECOND", spelled(address=f"{tmp_path}/b.sock"))
        await until_in_loop(lambda: picture(second).away is not None)
        waiting = await one.start(LeaderTrigger(role="nightly", neli_conn_id=second))
        failing = await one.start(LeaderTrigger(role="nightly", neli_conn_id=second, when_away="fail"))
        assert "failed" == payload(await one.event(failing))["outcome"]
        for _ in range(2):  # It starts, stops and starts again.
            with ExitStack() as life:
                await asyncio.to_thread(life.enter_context, member(tmp_path, "b"))
                assert "b" == payload(await one.event(waiting))["leader"]
                assert "acquired" == payload(await one.event(watcher))["event"]
                waiting = await one.start(LeaderTrigger(role="nightly", expect="c", neli_conn_id=second))
            failing = await one.start(LeaderTrigger(role="nightly", expect="c", neli_conn_id=second, when_away="fail"))
            assert "failed" == payload(await one.event(failing))["outcome"]
            assert one.is_waiting(waiting)
            await one.stop(waiting)
            waiting = await one.start(LeaderTrigger(role="nightly", neli_conn_id=second))

    play(story)


def test_a_watcher_tells_each_new_owner_once(tmp_path: Path, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FIRST", spelled(address=f"{tmp_path}/a.sock"))

    async def story(one: Triggerer) -> None:
        with ExitStack() as life:
            first = life.enter_context(member(tmp_path, "a"))
            watcher = await one.start(OwnershipTrigger(neli_conn_id="first"))
            born = payload(await one.event(watcher))
            assert ("acquired", None, "a", "a") == tuple(born[name] for name in ("event", "from", "to", "member"))
            assert list(range(PARTITIONS)) == born["partitions"]
            life.enter_context(member(tmp_path, "b"))
            known: dict[str, set[int]] = {"lost": set(), "moved": set()}
            while any(len(told) < PARTITIONS // 2 for told in known.values()):
                event = payload(await one.event(watcher))
                assert ("a", "b") == (event["from"], event["to"])
                assert max(event["terms"]) == event["term"] > born["term"]
                assert not known[event["event"]] & set(event["partitions"])
                known[event["event"]] |= set(event["partitions"])
            assert known["lost"] == known["moved"]
            late = await one.start(OwnershipTrigger(neli_conn_id=second, on=["acquired"]))
            assert known["moved"] == set(payload(await one.event(late))["partitions"])
            first.stop()
            event = payload(await one.event(late))
            assert ("acquired", "a", "b") == (event["event"], event["from"], event["to"])

    play(story)


@pytest.mark.usefixtures("neli_default")
def test_a_watcher_of_a_partition_that_the_group_has_not_says_so_and_goes_on(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []

    def is_said() -> bool:
        said.append(caplog.text + "".join(capfd.readouterr()))
        return f"from 0 to {PARTITIONS - 1}, but this number is none of them" in "".join(said)

    async def story(one: Triggerer) -> None:
        watcher = await one.start(OwnershipTrigger(role=PARTITIONS))
        await until_in_loop(is_said)
        assert one.is_waiting(watcher)

    play(story)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"role": ""}, {"role": "7"}, {"role": "nightly", "partitions": [1]}, {"partitions": []}),
        *({"partitions": [-1]}, {"partitions": ["x"]}, {"on": []}, {"on": ["won"]}),
    ],
)
def test_a_watcher_with_odd_arguments_fails_where_the_dag_is_read(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadKey):
        OwnershipTrigger(**arguments)


@pytest.mark.parametrize(
    "trigger",
    [
        LeaderTrigger(role="nightly", expect="b", otherwise="skip", when_away="fail", ends_task=True, soft_fail=True),
        LeaderTrigger(key="EURUSD", neli_conn_id="other", layout=spelled_layout(Layout())),
        OwnershipTrigger(role="nightly", on="lost"),
        OwnershipTrigger(partitions=(3, 1, 1), member="b", neli_conn_id="other"),
    ],
)
def test_a_trigger_is_made_anew_from_its_arguments(trigger: Any) -> None:
    classpath, arguments = trigger.serialize()
    again = type(trigger)(**arguments)
    assert (classpath, arguments) == again.serialize()
    assert trigger.hash(classpath, arguments) == trigger.hash(*again.serialize())  # Airflow knows a watcher by it.
