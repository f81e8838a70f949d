"""A real installation of Airflow, on the host of an agent: tests that need its real processes.

    agent a, agent b: one group --b is this host's--> scheduler, its tasks; triggerer; API server, with the page

All tests share it, and the Dags of `installed_dags`. Tests that kill something start it again.
"""

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from selenium import webdriver
from selenium.webdriver.common.by import By

from airflow_provider.sensors.neli import leader_from
from airflow_provider.triggers.neli import MEMORY
from neli_router.agent import Client
from neli_router.core.keyspace import Layout
from neli_router.errors import NoAgent
from neli_router.fence.delta import FencedTable
from neli_router.lab.processes.group import send
from tests.provider.conftest import open_streams
from tests.provider.submissions import Submission, resume
from tests.status.conftest import one_browser as _browser  # noqa: F401 - the fixture `browser`.
from tests.support.agents.processes import PARTITIONS, AgentProcess, agents, is_settled, leader_of
from tests.support.browsing import Page
from tests.support.given import spelled
from tests.support.servers.airflow import ENDED, Airflow, awaited, until

pytestmark = [pytest.mark.airflow, pytest.mark.process, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent
ROLE = 3

LEASE = 10.0
"""Seconds. Long enough to be kept while tasks and a JVM start, which take both cores; short enough to be waited out."""

ON_WORKERS = {"mapped", "resumed", "below", "work", "short", "tell"}

PATHS = ("/neli/", "/neli/assets/main.js", "/neli/v1/events", "/neli/v1/status", "/neli/nothing", "/neli//")


class Place:
    """The installation, the agents of its host and of another one, and what moves their roles."""

    def __init__(self, airflow: Airflow, a: AgentProcess, b: AgentProcess, group: Client) -> None:
        self.airflow, self.api, self.a, self.b, self.group = airflow, airflow.api, a, b, group
        self.partitions = {ROLE, Layout(partitions=PARTITIONS).partition("nightly")}

    def give(self, name: str) -> int:
        """Give everything that Dags wait for to the member `name`; return the term of ROLE."""
        for partition in self.partitions:
            self.group.pin(partition, name)
        until(lambda: {name} == {self.group.owner_of_role(one).name for one in self.partitions}, f"the roles of {name}")
        return self.group.owner_of_role(ROLE).term

    def rest(self) -> AgentProcess:
        """Leave ROLE to the balance of the group, and wait for it: another test may have killed an agent. Return the
        leader."""
        self.group.pin(ROLE, None)
        until(lambda: is_settled([self.a, self.b]), "the balance of the group")
        return leader_of(ROLE, [self.a, self.b])

    # Runs

    def await_deferred(self, run: str) -> None:
        """Wait until all tasks in `waits` that wait for a leader are deferred."""
        tasks = {"here": -1, "templated": -1, "mapped": 0, "resumed": -1}
        for name, index in tasks.items():
            self.api.await_state("waits", run, name if index < 0 else f"{name}[{index}]", "deferred")
        # The trigger begins some time after its row is in the database, and logs that in the task's log.
        for name, index in tasks.items():
            awaited(
                lambda name=name, index=index: "starting" in self.api.log("waits", run, name, map_index=index),  # type: ignore[misc]
                f"the trigger of {name}",
            )

    def require(self, state: str, dag_id: str, run: str) -> None:
        if state != self.api.await_run(dag_id, run):  # A failure shows the installation's logs.
            tasks = self.api.task_instances(dag_id, run)
            logs = [self.api.log(dag_id, run, one["task_id"], map_index=one["map_index"]) for one in tasks]
            pytest.fail("\n".join(f"{one}\n{log}" for one, log in zip(tasks, logs, strict=True)))

    def require_no_worker(self, dag_id: str, run: str) -> None:
        """The tasks that need no worker were never queued, ran in no process, and are at their first try."""
        for task in self.api.task_instances(dag_id, run):
            if task["task_id"] not in ON_WORKERS:
                assert [None, None, None] == [task["queued_when"], task["pid"], task["hostname"] or None], task
                assert 1 == task["try_number"], task
                logs = self.airflow.home / f"logs/dag_id={dag_id}/run_id={run}/task_id={task['task_id']}"
                assert all(".trigger." in path.name for path in logs.glob("*.log")), task
        assert 0 == self.api.call("GET", "/pools/no_slots")["slots"]

    def await_links(self, dag_id: str, run: str, role: int | str, *tasks: str) -> None:
        """The worker stores the link after the state, and Airflow shows no link of a running task."""
        links = {"Who leads": f"/plugin/neli#partition={Layout(partitions=PARTITIONS).partition_of_role(role)}"}
        for task in tasks:
            path = f"/dags/{dag_id}/dagRuns/{run}/taskInstances/{task}/links"
            awaited(
                lambda path=path: self.api.call("GET", path)["extra_links"] == links,  # type: ignore[misc]
                f"the link of {task}",
            )

    # The asset

    def told(self) -> Counter[tuple[str, int]]:
        """Each change of the leader, and how many events the watcher has made of it."""
        return changes_in(self.api.asset_events("leader_that_waits"))

    def consumed(self) -> Counter[tuple[str, int]]:
        """Each change, and how many runs it has started."""
        runs = self.api.runs("told")
        return changes_in([one for run in runs for one in self.api.events_of_run("told", run["dag_run_id"])])

    def await_told(self, term: int) -> None:
        """Wait until the watcher has made an event of `term`, and remembers that."""

        def remembered() -> str:
            with closing(sqlite3.connect(self.airflow.home / "airflow.db", timeout=60)) as database:
                return str(database.execute("SELECT value FROM asset_state_store WHERE key = ?", (MEMORY,)).fetchall())

        awaited(lambda: any(told == term for _, told in self.told()), f"the event of term {term}")
        awaited(lambda: str(term) in remembered(), f"the memory of term {term}")


def changes_in(events: Sequence[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter((one["extra"]["payload"]["event"], one["extra"]["payload"]["term"]) for one in events)


@pytest.fixture(name="installed", scope="module")
def _installed(airflow_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("installation")
    (folder / "dags").mkdir()
    shutil.copy(HERE / "installed_dags.py", folder / "dags")
    with agents(folder, "a", "b", lease=LEASE, drain_timeout=0.3) as (a, b), a.client() as group:
        environment = {
            "AIRFLOW_CONN_NELI_DEFAULT": b.connection,
            "AIRFLOW_CONN_HOST_A": a.connection,
            "AIRFLOW_CONN_HOST_B": b.connection,
            "AIRFLOW_CONN_SPARK_DEFAULT": spelled("spark", host="local[1]"),
            "SPARK_JOB": str(HERE / "spark_job.py"),
            "SPARK_JOB_PATH": os.pathsep.join(path for path in sys.path if path),
        }
        with Airflow.started(environment, dags=folder / "dags") as airflow:
            place = Place(airflow, a, b, group)
            place.api.await_dag("submits")
            # While the API server imports what its first task needs, nothing else may write to the database.
            first, *_ = awaited(lambda: place.api.runs("told"), "the watcher's first word")
            place.api.await_run("told", first["dag_run_id"])
            place.give("a")
            place.api.call("POST", "/pools", body={"name": "no_slots", "slots": 0})
            yield place


@pytest.fixture(name="place")
def _place(installed: Place) -> Iterator[Place]:
    """The installation with both agents: an agent that a test has killed is started again."""
    yield installed
    for agent in (installed.a, installed.b):
        try:
            with agent.client() as client:
                client.status()
        except NoAgent:
            agent.start()


def test_airflow_shows_the_provider_and_no_error(place: Place) -> None:
    assert {} == place.api.import_errors()
    assert [] == place.api.call("GET", "/plugins/importErrors")["import_errors"]
    hooks = place.api.call("GET", "/connections/hook_meta", below="/ui")
    (ours,) = (hook for hook in hooks if hook["connection_type"] == "neli")
    assert {"address", "ownership"} == set(ours["extra_fields"])
    body = {"connection_id": "tried", "conn_type": "neli", "extra": json.dumps({"address": place.b.address})}
    answer = place.api.call("POST", "/connections/test", body=body)
    assert answer["status"], answer
    assert "The agent b answers." in answer["message"]


def test_tasks_begin_and_end_in_the_triggerer_over_one_stream(place: Place) -> None:
    api = place.api
    place.give("a")
    waits, elsewhere, in_vain = (api.trigger(dag_id) for dag_id in ("waits", "gated", "in_vain"))
    of_partition = api.trigger("of_partition", partition_key="EURUSD")
    place.require("success", "gated", elsewhere)
    assert dict.fromkeys(("gate", "work"), "skipped") | {"short": "success"} == api.states("gated", elsewhere)
    assert api.xcom("gated", elsewhere, "short") is False
    place.require_no_worker("gated", elsewhere)
    place.await_deferred(waits)
    place.await_links("waits", waits, "nightly", "resumed")

    # A task that never finds its leader ends there, too, and its log says why.
    place.require("failed", "in_vain", in_vain)
    place.require_no_worker("in_vain", in_vain)
    # The triggerer may write the log after the state.
    awaited(lambda: "led by 'nobody' was wanted, but" in api.log("in_vain", in_vain, "closed"), "the reason in the log")

    # The key is by default the partition key of the run.
    place.require("success", "of_partition", of_partition)
    found = leader_from(api.xcom("of_partition", of_partition, "by_key_of_run"))
    assert place.group.owner("EURUSD").partition == found["partition"]

    assert 1 == open_streams(place.b)
    place.give("b")
    place.require("success", "waits", waits)
    place.require_no_worker("waits", waits)
    view = place.group.owner_of_role(ROLE)
    leader = {"role": ROLE, "partition": ROLE, "leader": "b", "address": view.address, "term": view.term, "here": True}
    assert [leader, "b"] == api.xcom("waits", waits, "below")
    here = api.trigger("gated")
    place.require("success", "gated", here)
    assert dict.fromkeys(("gate", "work", "short"), "success") == api.states("gated", here)
    assert view.term == api.xcom("gated", here, "work")
    place.require_no_worker("gated", here)
    place.await_links("waits", waits, ROLE, "here")
    place.await_links("waits", waits, "nightly", "templated", "resumed")
    place.await_links("gated", elsewhere, ROLE, "gate", "short")
    place.await_links("gated", here, ROLE, "gate", "work", "short")


def test_a_killed_triggerer_loses_and_doubles_nothing(place: Place) -> None:
    place.await_told(place.give("a"))
    waits = place.api.trigger("waits")
    place.await_deferred(waits)
    # Triggers run in a child of this process, and only this process writes to the database: they fire, and nothing is
    # stored.
    place.airflow.freeze("triggerer")
    term_of_b = place.give("b")
    place.airflow.kill("triggerer")
    place.airflow.begin("triggerer")
    place.require("success", "waits", waits)
    place.require_no_worker("waits", waits)
    fired = awaited(lambda: place.api.log("waits", waits, "here").count("Trigger fired event"), "the event in the log")
    assert 1 == fired
    place.await_told(term_of_b)
    # A new triggerer remembers the events before it, and makes none of them again.
    term_of_a = place.give("a")
    place.await_told(term_of_a)
    told = place.told()
    assert {("acquired", term_of_b), ("lost", term_of_a)} <= told.keys()
    assert {1} == set(told.values())
    awaited(lambda: place.consumed().total() >= told.total(), "a run for each event")
    assert told == place.consumed()


def test_the_page_is_for_those_who_are_logged_in_and_changes_nothing(place: Place) -> None:
    given: dict[str, Any] = {"base_url": place.airflow.url, "timeout": 300.0, "trust_env": False}
    with httpx.Client(**given) as stranger:
        for path in PATHS:
            for method in ("GET", "HEAD", "POST", "OPTIONS"):
                assert 401 == stranger.request(method, path).status_code, (method, path)
            for wrong in ({"Authorization": "Bearer x"}, {"Cookie": "_token=x"}):
                assert stranger.get(path, headers=wrong).status_code in {401, 403}, (path, wrong)
    with closing(place.airflow.as_user("viewer")) as api:
        login = {"Authorization": f"Bearer {api.token}"}
    with httpx.Client(**given, headers=login) as viewer:
        shown = viewer.get("/neli/")
        assert 200 == shown.status_code
        assert "frame-ancestors 'self'" in shown.headers["content-security-policy"]
        assert "text/javascript" in viewer.get("/neli/assets/main.js").headers["content-type"]
        assert 304 == viewer.get("/neli/", headers={"If-None-Match": shown.headers["etag"]}).status_code
        for path in ("/neli/v1/owner?key=EURUSD", "/neli/v1/lease?partition=0", "/neli/nothing", "/neli//"):
            assert 404 == viewer.get(path).status_code, path
        for path in ("/neli/v1/drain", "/neli/v1/events", "/neli/"):
            assert 405 == viewer.post(path, json={"name": "a"}).status_code, path


@pytest.mark.browser
def test_the_link_of_a_task_opens_the_page_and_it_follows_a_takeover(place: Place, browser: webdriver.Chrome) -> None:
    page, airflow = Page(browser), place.airflow
    for partition in place.partitions:
        place.group.pin(partition, None)
    browser.get(airflow.url)
    browser.delete_all_cookies()  # Another test's login.
    with closing(airflow.as_user("viewer")) as api:
        browser.add_cookie({"name": "_token", "value": api.token})
    run = place.api.runs("gated")[0]["dag_run_id"]
    browser.get(f"{airflow.url}/dags/gated/runs/{run}/tasks/gate/details")
    until(lambda: browser.find_elements(By.LINK_TEXT, "Who leads"), "the link")[0].click()
    (frame,) = until(lambda: browser.find_elements(By.TAG_NAME, "iframe"), "the frame of the page")
    browser.switch_to.frame(frame)
    page.run("window.isTheSame = true")
    until(lambda: Counter(page.owners()) == {"a": PARTITIONS // 2, "b": PARTITIONS // 2}, "two fair shares")
    assert not page.is_shown("#unlock")
    assert f"Partition {ROLE}" in page.text("#detail")
    place.a.kill()
    until(lambda: page.owners() == ["b"] * PARTITIONS, "the takeover")
    assert "a was expired by b \u2192 b 4 partitions" in page.text("#moves li")
    assert page.was_never_reloaded
    browser.switch_to.default_content()
    assert browser.current_url.startswith(f"{airflow.url}/plugin/neli")
    page.close()


def test_nothing_is_left_of_the_job_of_a_task_that_a_person_ends(place: Place, tmp_path: Path) -> None:
    run = submitted(place, tmp_path, (place.rest(), "linger"))
    job = at_work(place, tmp_path, run, 1)
    # Airflow sends SIGTERM to the task's process group, and then SIGKILL. The job is in another group.
    place.api.call("PATCH", f"/dags/submits/dagRuns/{run}/taskInstances/job", body={"new_state": "failed"})
    job.await_end()


def submitted(place: Place, folder: Path, *tries: tuple[AgentProcess, str]) -> str:
    """Request a run; each of its tries has a host and a way of the job. Returns its id."""
    for number in range(len(tries)):
        (folder / str(number + 1)).mkdir(parents=True)
    hosts, ways = [f"host_{agent.name}" for agent, _ in tries], [way for _, way in tries]
    return place.api.trigger("submits", conf={"folder": str(folder), "hosts": hosts, "ways": ways})


def at_work(place: Place, folder: Path, run: str, number: int) -> Submission:
    """The job of a try, once it works. Airflow and a JVM start slowly."""
    file = folder / str(number) / "worker"
    awaited(lambda: file.exists() or place.api.run("submits", run)["state"] in ENDED, f"the work of try {number}")
    assert file.exists(), place.api.log("submits", run, "job", try_number=number)
    return Submission(file.parent)


def test_a_job_that_loses_its_role_is_refused_and_retried_where_it_is_led(place: Place, tmp_path: Path) -> None:
    first = place.rest()
    (second,) = {place.a, place.b} - {first}
    folder = tmp_path / "run"
    run = submitted(place, folder, (first, "linger"), (second, "late"), (first, "commit"))

    # The role moves while the job works and ignores every signal.
    drained = at_work(place, folder, run, 1)
    drained.require_spark()
    with second.client() as client:
        client.drain(first.name)
    drained.await_end()

    # The host of the second try fails: its agent is dead, and everything else stands still. (A stopped agent may be
    # within a transaction of the ledger's file, and hold up the other one.) The new owner's job begins, like this one
    # does.
    frozen = at_work(place, folder, run, 2)
    guards, job = (frozen.task, *frozen.wardens), frozen.left
    for pid in (*guards, *job):
        send(signal.SIGSTOP, pid)
    with second.client() as client:
        client.drain(first.name, undo=True)
    second.kill()
    assert first is leader_of(ROLE, [first])
    table = FencedTable.create(
        folder / "table", pa.schema({"member": pa.string()}), Layout(partitions=PARTITIONS), first_batch=1
    )
    with first.client() as client, client.leading(ROLE) as lease:
        table.raise_terms({ROLE: lease.term})
    # The job wakes up first, when nothing is there yet that could end it.
    (folder / "2" / "now").touch()
    resume(job)
    until((folder / "2" / "late").exists, "the late commit")
    assert "Refused" == (folder / "2" / "late").read_text()
    resume(guards)
    frozen.await_end()

    place.require("success", "submits", run)
    for number in (1, 2):
        assert "LeadershipLost" in place.api.log("submits", run, "job", try_number=number)
    assert [first.name] == DeltaTable(str(table.path)).to_pyarrow_table()["member"].to_pylist()
