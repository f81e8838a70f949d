"""Sensors, gates and watchers on a real installation: they end without a worker, and a triggerer may be killed.

agent a, agent b: one group --b is the installation's host--> triggerer: one stream for all that waits there
"""

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider.sensors.neli import leader_from
from airflow_provider.triggers.neli import MEMORY
from neli_router.agent import Client
from tests.support.agents.processes import PARTITIONS, AgentProcess, agents
from tests.support.servers.airflow import Airflow, until

pytestmark = [pytest.mark.airflow, pytest.mark.process, pytest.mark.timeout(3600)]

ROLE = 3
DAGS = Path(__file__).parent / "dags_that_wait.py"
DAG_IDS = ("waits", "gated", "in_vain", "of_partition", "told")
ASSET = "leader_that_waits"

ON_WORKERS = {"mapped", "resumed", "below", "work", "tell"}

PATIENCE = 600.0

LEASE = 5.0
"""Seconds. Longer than agents stand still on a busy machine: a lease that is lost in between is an event of its own."""


class HostThatWaits:
    """An installation on the host of the agent `b`, and what moves its roles."""

    def __init__(self, airflow: Airflow, host: AgentProcess, group: Client) -> None:
        self.airflow, self.host, self.group = airflow, host, group
        self.api, self.logs = airflow.api, airflow.home / "logs"
        self.partitions = {ROLE, group.table().layout.partition("nightly")}  # type: ignore[union-attr]

    def give(self, name: str) -> int:
        """All that Dags wait for to the member `name`; the term of ROLE."""
        for partition in self.partitions:
            self.group.pin(partition, name)
        until(lambda: {name} == {self.group.owner_of_role(one).name for one in self.partitions}, f"the roles of {name}")
        return self.group.owner_of_role(ROLE).term

    def streams(self) -> int:
        """How many the agent of this host has open."""
        transport = httpx.HTTPTransport(uds=str(self.host.socket))
        with httpx.Client(transport=transport, base_url="http://agent", timeout=60.0) as client:
            lines = client.get("/metrics").text.splitlines()
        return next(int(float(line.split()[1])) for line in lines if line.startswith("neli_streams "))

    def await_deferred(self, dag_id: str, run: str, *tasks: str) -> None:
        for task in tasks:
            self.api.await_state(dag_id, run, task, "deferred", patience=PATIENCE)
        # A row of the database is no trigger yet; each says in the task's log that it begins.
        for task in tasks:
            name, _, number = task.rstrip("]").partition("[")
            index = int(number or -1)
            until(
                lambda name=name, index=index: "starting" in self.api.log(dag_id, run, name, map_index=index),  # type: ignore[misc]
                f"the trigger of {task}",
                patience=PATIENCE,
            )

    def require_success(self, dag_id: str, run: str) -> None:
        state = self.api.await_run(dag_id, run, patience=PATIENCE)
        if state != "success":  # The installation's logs go with it.
            ended = [one for one in self.api.task_instances(dag_id, run) if one["state"] != "success"]
            pytest.fail(
                "\n".join(
                    f"{one}\n{self.api.log(dag_id, run, one['task_id'], map_index=one['map_index'])}" for one in ended
                )
            )

    def require_no_worker(self, dag_id: str, run: str) -> None:
        """The tasks that need none were never queued, ran in no process, and are at their first try."""
        seen = 0
        for task in self.api.task_instances(dag_id, run):
            if task["task_id"] not in ON_WORKERS:
                assert [None, None, None] == [task["queued_when"], task["pid"], task["hostname"] or None], task
                assert 1 == task["try_number"], task
                said = self.logs.glob(f"dag_id={dag_id}/run_id={run}/task_id={task['task_id']}/*.log")
                assert all(".trigger." in path.name for path in said), task
                seen += 1
        assert seen
        assert 0 == self.api.call("GET", "/pools/no_slots")["slots"]

    # The asset

    def told(self) -> list[dict[str, Any]]:
        return [event["extra"]["payload"] for event in self.api.asset_events(self.api.asset_id(ASSET))]

    def await_told(self, term: int) -> None:
        """Until the watcher has told of `term`, and remembers that."""
        until(lambda: any(one["term"] == term for one in self.told()), f"the event of term {term}", patience=PATIENCE)
        until(lambda: str(term) in self.remembered(), f"the memory of term {term}", patience=PATIENCE)

    def remembered(self) -> str:
        with closing(sqlite3.connect(self.airflow.home / "airflow.db", timeout=60)) as database:
            rows = database.execute("SELECT value FROM asset_state_store WHERE key = ?", (MEMORY,)).fetchall()
        return json.dumps(rows)

    def consumed(self) -> Counter[tuple[str, int]]:
        """Each event, and how many runs it started."""
        found: Counter[tuple[str, int]] = Counter()
        for run in self.api.runs("told"):
            events = self.api.events_of_run("told", run["dag_run_id"])
            found.update((event["extra"]["payload"]["event"], event["extra"]["payload"]["term"]) for event in events)
        return found

    def restart_triggerer(self) -> None:
        self.airflow.kill("triggerer")
        self.airflow.begin("triggerer")


@pytest.fixture(name="place", scope="module")
def _place(installation: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostThatWaits]:
    api = installation.api
    with agents(tmp_path_factory.mktemp("group"), "a", "b", lease=LEASE) as (a, b), a.client() as group:
        api.add_connection("host_that_waits", extra={"address": b.address})
        api.add_connection("host_that_is_away", extra={"address": "unix:/nowhere/agent.sock"})
        api.call("POST", "/pools", body={"name": "no_slots", "slots": 0})
        place = HostThatWaits(installation, b, group)
        place.give("a")
        shutil.copy(DAGS, installation.dags)
        api.await_dag(*DAG_IDS)
        yield place
        for dag_id in DAG_IDS:  # Its watcher would go on asking an agent that is gone.
            api.pause(dag_id, paused=True)


def test_tasks_begin_and_end_in_the_triggerer_over_one_stream(place: HostThatWaits) -> None:
    place.give("a")
    waits = place.api.trigger("waits")
    elsewhere = place.api.trigger("gated")
    place.require_success("gated", elsewhere)
    assert {"gate": "skipped", "work": "skipped"} == place.api.states("gated", elsewhere)
    place.require_no_worker("gated", elsewhere)
    place.await_deferred("waits", waits, "here", "templated", "mapped[0]", "resumed")
    assert 1 == place.streams()
    place.give("b")
    place.require_success("waits", waits)
    place.require_no_worker("waits", waits)
    view = place.group.owner_of_role(ROLE)
    found = {"role": ROLE, "partition": ROLE, "leader": "b", "address": view.address, "term": view.term, "here": True}
    assert [found, "b"] == place.api.xcom("waits", waits, "below")
    here = place.api.trigger("gated")
    place.require_success("gated", here)
    assert {"gate": "success", "work": "success"} == place.api.states("gated", here)
    place.require_no_worker("gated", here)


def test_a_killed_triggerer_loses_and_doubles_nothing(place: HostThatWaits) -> None:
    place.await_told(place.give("a"))
    waits = place.api.trigger("waits")
    place.await_deferred("waits", waits, "here", "templated", "mapped[0]", "resumed")
    # Triggers run in a child of this process, which alone writes to the database: they fire, and nothing is stored.
    place.airflow.freeze("triggerer")
    term_of_b = place.give("b")
    place.restart_triggerer()
    place.require_success("waits", waits)
    place.require_no_worker("waits", waits)
    assert 1 == place.api.log("waits", waits, "here").count("Trigger fired event")
    place.await_told(term_of_b)
    # What was told is remembered: one that is built anew tells only what is new.
    place.restart_triggerer()
    term_of_a = place.give("a")
    place.await_told(term_of_a)
    told = Counter((one["event"], one["term"]) for one in place.told())
    assert {("acquired", term_of_b), ("lost", term_of_a)} <= told.keys()
    assert {1} == set(told.values())
    until(lambda: place.consumed().total() >= told.total(), "a run for each event", patience=PATIENCE)
    assert told == place.consumed()


def test_what_waits_in_vain_ends_in_the_triggerer_and_says_why(place: HostThatWaits) -> None:
    run = place.api.trigger("in_vain")
    assert "failed" == place.api.await_run("in_vain", run, patience=PATIENCE)
    why = {
        "late": "the task's time is over",
        "softly_late": "the task's time is over",
        "unnamed": "a template gave an empty text",
        "too_long": "this number has 19 characters",
        "of_no_partition": "a template gave an empty text",
        "nowhere": "airflow connections add nowhere",
        "away": "there is no socket",
        "away_for_long": "there is no socket",
        "closed": "led by 'nobody' was wanted, but",
    }
    assert {**dict.fromkeys(why, "failed"), "softly_late": "skipped"} == place.api.states("in_vain", run)
    place.require_no_worker("in_vain", run)
    for task, words in why.items():
        assert words in place.api.log("in_vain", run, task), task


def test_a_role_is_by_default_the_partition_key_of_the_run(place: HostThatWaits) -> None:
    run = place.api.trigger("of_partition", partition_key="EURUSD")
    place.require_success("of_partition", run)
    found = leader_from(place.api.xcom("of_partition", run, "by_key_of_run"))
    assert ("EURUSD", place.group.owner("EURUSD").partition) == (found["role"], found["partition"])
    assert found["partition"] < PARTITIONS
