"""The switch, on a real metadata database and with real agents: which Dags it pauses, and whose pauses it leaves."""

import asyncio
import gc
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dag import DagModel, DagTag
from airflow.models.log import Log
from airflow.utils.session import create_session
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from airflow_provider._machinery import switch
from airflow_provider._machinery.switch import Switch
from tests.provider.conftest import BUNDLE
from tests.support.agents.processes import AgentProcess, agents
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.airflow

ROLE = 0


class Place:
    """Two hosts. The switch under test is host a's."""

    def __init__(self, both: list[AgentProcess]) -> None:
        self.a, self.b = both

    def lead(self, agent: AgentProcess, role: int = ROLE) -> None:
        """Make the agent lead the role, and wait for that. The pin is sent to the same agent each time, which has the
        pins recorded in this order: a pin that the group already shows may be recorded late."""
        with self.a.client() as client:
            client.pin(role, agent.name)
        with agent.client() as client:
            until(lambda: client.lease(role) is not None, f"the leadership of {agent.name}")


@pytest.fixture(name="place", scope="module")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    # A long drain: a handover must wait for the switch, without a timeout on a busy machine. And a lease that lasts
    # there: if one is lost in between, the switch acts once more.
    with agents(tmp_path_factory.mktemp("switch"), "a", "b", lease=8.0, drain_timeout=120.0) as both:
        yield Place(both)


@pytest.fixture(name="_clean", autouse=True)
def _clean(airflow_home: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", place.a.connection)
    with create_session() as session:
        others = set(session.scalars(select(DagModel.dag_id)))
    yield
    with create_session() as session:
        for table in (Log, DagTag, DagModel):  # Only this test's Dags: the others have runs, and belong to other tests.
            ours = delete(table).where(table.dag_id.not_in(others))
            session.execute(ours.execution_options(synchronize_session=False))


@contextmanager
def switched() -> Iterator[None]:
    one = Switch("neli_default")
    one.start()
    try:
        yield
    finally:
        one.stop()
        assert not one._thread.is_alive()


def add(dag_id: str, *tags: str, paused: bool = True) -> None:
    with create_session() as session:
        session.add(DagModel(dag_id=dag_id, bundle_name=BUNDLE, is_paused=paused))  # type: ignore[no-untyped-call]
        session.flush()
        session.add_all(DagTag(name=tag, dag_id=dag_id) for tag in tags)


def is_paused(*dag_ids: str) -> bool:
    """Whether all of them are paused."""
    with create_session() as session:
        found = session.scalars(select(DagModel.is_paused).where(DagModel.dag_id.in_(dag_ids))).all()
        assert len(dag_ids) == len(found)
        return all(found)


def await_paused(dag_id: str, paused: bool) -> None:
    until(lambda: is_paused(dag_id) is paused, f"{dag_id} to be {'' if paused else 'un'}paused")


def await_unpaused(*dag_ids: str) -> None:
    for dag_id in dag_ids:
        await_paused(dag_id, paused=False)


def set_paused(dag_id: str, paused: bool, *, event: str | None = "patch_dag", owner: str = "neli") -> None:
    """Pause like Airflow's API does for a user: first the row in the audit log, which says who, and then the Dag."""
    with create_session() as session:
        if event is not None:
            extra = json.dumps({"is_paused": paused, "method": "PATCH"})
            session.add(Log(event=event, owner=owner, dag_id=dag_id, extra=extra))
    with create_session() as session:
        dag = session.get(DagModel, dag_id)
        assert dag is not None
        dag.is_paused = paused


def acts(dag_id: str) -> list[tuple[str, bool]]:
    """The switch's recorded acts, and the role that each names, oldest first."""
    with create_session() as session:
        rows = session.scalars(select(Log).where(Log.dag_id == dag_id, Log.event == "neli_switch").order_by(Log.id))
        found: list[dict[str, Any]] = [json.loads(row.extra or "") for row in rows]
        assert all(one["why"].endswith("led by this host") for one in found)
        return [("pause" if one["is_paused"] else "unpause", "not led" in one["why"]) for one in found]


PAUSE, UNPAUSE = ("pause", True), ("unpause", False)


def test_a_dag_runs_where_its_role_is_led_and_the_audit_log_says_who_did_it(place: Place) -> None:
    place.lead(place.b)
    add("prices", f"neli:partition={ROLE}", "other")
    add("untagged", "other", paused=False)
    with switched():
        place.lead(place.a)
        await_paused("prices", paused=False)
        place.lead(place.b)
        assert is_paused("prices")
        set_paused("prices", paused=False)  # By a user, where its role is not led.
        await_paused("prices", paused=True)
        place.lead(place.a)
        await_paused("prices", paused=False)
    assert is_paused("prices"), "a scheduler that ends leaves no Dag that would run"
    assert [UNPAUSE, PAUSE, PAUSE, UNPAUSE, PAUSE] == acts("prices")
    assert not is_paused("untagged")
    assert [] == acts("untagged")


def test_all_are_paused_or_the_scheduler_does_not_start(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add("prices", f"neli:partition={ROLE}", paused=False)
    one = Switch("away")
    monkeypatch.setattr(one._thread, "start", lambda: None)
    with closing(sqlite3.connect(airflow_home / "airflow.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patched:
            patched.setattr(switch, "START_MAX", 0.0)
            with pytest.raises(SystemExit, match=r"to be paused before the scheduler starts.*locked.*turn .* off"):
                Switch("away").start()
        other.execute("ROLLBACK")
    one.start()
    assert is_paused("prices")


def test_a_pause_of_a_person_stands_over_takeovers_and_restarts(place: Place) -> None:
    place.lead(place.a)
    theirs = ("before", "during", "by_a_command", "again")
    for dag_id in (*theirs, "control"):
        add(dag_id, f"neli:partition={ROLE}", paused=dag_id != "control")
    set_paused("before", paused=True)
    with switched():
        await_unpaused(*theirs[1:], "control")
        set_paused("during", paused=True)
        set_paused("by_a_command", paused=True, event=None)
        place.lead(place.b)
        set_paused("again", paused=True)  # The switch has already paused it.
        place.lead(place.a)
        await_unpaused("control")
    with switched():
        await_unpaused("control")
        assert is_paused(*theirs)
        for dag_id in theirs:
            set_paused(dag_id, paused=False)
        place.lead(place.b)
        assert is_paused(*theirs)
        place.lead(place.a)
        await_unpaused(*theirs)


def test_a_dag_of_two_roles_runs_where_both_are_led(place: Place) -> None:
    place.lead(place.a, 1)
    place.lead(place.b, 2)
    add("both", "neli:partition=1", "neli:partition=2")
    add("one", "neli:partition=1")
    with switched():
        await_unpaused("one")
        assert is_paused("both")
        place.lead(place.a, 2)
        await_unpaused("both")
        place.lead(place.b, 1)
        assert is_paused("both", "one")


def test_tags_that_come_are_followed_and_those_that_go_leave_the_dag_as_it_is(place: Place) -> None:
    place.lead(place.a)
    add("first", f"neli:partition={ROLE}")
    add("of_no_role", "neli:7", paused=False)
    # If a Dag was deleted and is read again, the switch owns its pause, although a user had paused it.
    add("read_again", f"neli:partition={ROLE}")
    with create_session() as session:
        session.add(Log(event="patch_dag", owner="admin", dag_id="read_again", extra='{"is_paused": true}'))
        session.add(Log(event="delete_dag", owner="admin", dag_id="read_again"))
    with switched():
        await_paused("first", paused=False)
        await_paused("read_again", paused=False)
        assert is_paused("of_no_role")
        add("second", f"neli:partition={ROLE}")
        await_paused("second", paused=False)
        with create_session() as session:
            session.execute(delete(DagTag).where(DagTag.dag_id == "first"))
        place.lead(place.b)
        assert is_paused("second")
        assert not is_paused("first")


def test_a_role_is_let_go_when_what_was_open_at_the_pause_has_ended(place: Place) -> None:
    place.lead(place.a)
    add("prices", f"neli:partition={ROLE}")
    with switched(), create_session(scoped=False) as scheduling, place.a.client() as a, place.b.client() as b:
        await_unpaused("prices")
        scheduling.execute(select(DagModel.dag_id).where(DagModel.is_paused.is_(False))).all()
        a.pin(ROLE, "b")
        await_paused("prices", paused=True)
        assert b.lease(ROLE, within=2.0) is None, "a scheduler that has read the Dag still creates its run"
        scheduling.rollback()
        until(lambda: b.lease(ROLE) is not None, "the leadership of b")


def test_a_forgotten_transaction_holds_nothing_up() -> None:
    others = switch._Transactions()
    others.follow()
    session = Session()
    session.begin()
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(others.ended(), 0.5))
    del session
    gc.collect()
    asyncio.run(others.ended())


def test_dags_are_paused_on_a_fault_and_without_an_agent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise ValueError("a fault of ours")

    place.lead(place.a)
    add("prices", f"neli:partition={ROLE}")
    with switched():
        await_unpaused("prices")
        with monkeypatch.context() as patched:
            patched.setattr(switch, "_is_ours", broken)
            add("second", f"neli:partition={ROLE}")
            await_paused("prices", paused=True)
        await_unpaused("prices", "second")
        place.a.kill()
        await_paused("prices", paused=True)
        place.a.start()
        place.lead(place.a)
        await_unpaused("prices")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_no_fork_falls_into_a_question_to_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of the driver would stay held in the child."""
    monkeypatch.setattr(switch, "FORK_MAX", PATIENCE)
    asked, forking, is_asked = threading.Event(), threading.Event(), False

    def question(_: Session) -> dict[str, Any]:
        nonlocal is_asked
        is_asked = True
        asked.set()
        forking.wait(PATIENCE)
        time.sleep(0.2)  # A fork that does not wait happens within it.
        is_asked = False
        return {}

    monkeypatch.setattr(switch, "_tagged", question)
    os.register_at_fork(before=forking.set)  # Called before the switch's own, which was registered earlier.
    asking = threading.Thread(target=Switch("neli_default").act)
    asking.start()
    asked.wait(PATIENCE)
    child = os.fork()
    if not child:  # pragma: no cover - counted in another process.
        os._exit(is_asked or not switch._asking.acquire(blocking=False))
    asking.join()
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
