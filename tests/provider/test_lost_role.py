"""Tasks of a real installation lose their role: they end, whatever they are at, and are retried where it is led.

    host a, host b: an agent each, one group      first try --connection of the one--> killed, or stopped
                                                  next tries --connection of the other

One machine stands for both hosts: the template of the connection takes the place of queues that lead to their workers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents.processes import AgentProcess, agents, leader_of
from tests.support.servers.airflow import Airflow, AirflowApi, until

pytestmark = [pytest.mark.airflow, pytest.mark.process, pytest.mark.timeout(1800)]

DAGS = """
import subprocess, time
from datetime import timedelta
from airflow.sdk import DAG, task
from airflow_provider.operators.neli import LeaderShortCircuitOperator
from airflow_provider.retries import LeadershipRetryPolicy

HOST = "{{ dag_run.conf['first'] if ti.try_number == 1 else dag_run.conf['second'] }}"
GIVEN = {"role": 0, "neli_conn_id": HOST}
AGAIN = {
    "retries": 3,
    "retry_delay": timedelta(hours=1),
    "retry_policy": LeadershipRetryPolicy(),
    "push_term": True,
}

with DAG("lose", default_args=AGAIN):

    @task.leader(**GIVEN, when_not_leading="fail")
    def wait_for_a_process(lease, ti):
        if ti.try_number == 1:
            subprocess.run(["sleep", "600"], check=True)
        return [lease.member, lease.term]

    @task.leader(**GIVEN, when_not_leading="fail", end_within=1.0, retry_delay=1)
    def swallow(lease, ti):
        while ti.try_number == 1:
            try:
                time.sleep(600)
            except BaseException:
                print("not me")
        return lease.member

    wait_for_a_process()
    swallow()

# Airflow may take a task that waited, and goes on, for one that was killed, and a retry waits anew: where it waited.
HERE = {"role": 0, "neli_conn_id": "{{ dag_run.conf['first'] }}", "retries": 3, "retry_delay": timedelta(seconds=15)}

with DAG("wait"):
    LeaderShortCircuitOperator(task_id="short", **HERE)

    @task.leader(**HERE, when_not_leading="wait")
    def work(lease):
        return lease.member

    work()
"""


class Place:
    """An installation, and two agents."""

    def __init__(self, api: AirflowApi, both: list[AgentProcess]) -> None:
        self.api, self.both = api, both

    def trigger(self, dag_id: str, first: AgentProcess) -> str:
        (second,) = (agent for agent in self.both if agent is not first)
        return self.api.trigger(dag_id, conf={"first": f"host_{first.name}", "second": f"host_{second.name}"})

    def has_begun(self, run: str, task: str) -> bool:
        path = f"/dags/lose/dagRuns/{run}/taskInstances/{task}/xcomEntries"
        entries: list[dict[str, Any]] = self.api.call("GET", path)["xcom_entries"]
        return any(one["key"] == "neli_term" for one in entries)


@pytest.fixture(name="place")
def _place(installation: Airflow, tmp_path: Path) -> Iterator[Place]:
    # A lease that outlasts the start of tasks, which take both cores.
    with agents(tmp_path, "a", "b", lease=5.0) as both:
        for agent in both:
            if f"host_{agent.name}" in installation.api.connections():
                installation.api.call("DELETE", f"/connections/host_{agent.name}")
            installation.api.add_connection(f"host_{agent.name}", extra={"address": agent.address})
        (installation.dags / "lost_role.py").write_text(DAGS, encoding="utf-8")
        installation.api.await_dag("lose", "wait")
        yield Place(installation.api, both)


def test_a_task_that_loses_its_role_ends_and_its_retry_succeeds_where_the_role_is_led(place: Place) -> None:
    first, api = leader_of(0, place.both), place.api
    run = place.trigger("lose", first)
    tasks = ("wait_for_a_process", "swallow")
    for task in tasks:
        until(lambda task=task: place.has_begun(run, task), f"the beginning of {task}")  # type: ignore[misc]
    term = api.xcom("lose", run, "wait_for_a_process", key="neli_term")
    first.kill()
    (second,) = (agent for agent in place.both if agent is not first)
    assert "success" == api.await_run("lose", run), [api.log("lose", run, task) for task in tasks]
    member, later = api.xcom("lose", run, "wait_for_a_process")
    assert [second.name, second.name] == [member, api.xcom("lose", run, "swallow")]
    assert later > term
    lost = api.log("lose", run, "wait_for_a_process")
    assert "LeadershipLost" in lost
    assert "as a takeover takes at the usual lease" in lost, "the agent that knew the lease was killed"
    swallowed = api.log("lose", run, "swallow")
    assert "not me" in swallowed
    assert "THE TASK DID NOT STOP within 1 s" in swallowed


def test_a_task_waits_without_a_worker_until_its_role_is_led_here(place: Place) -> None:
    leader, api = leader_of(0, place.both), place.api
    (here,) = (agent for agent in place.both if agent is not leader)
    run = place.trigger("wait", here)
    api.await_state("wait", run, "work", "deferred")
    assert "success" == api.await_state("wait", run, "short", "success", "failed")
    assert api.xcom("wait", run, "short") is False
    with here.client() as client:
        client.pin(0, here.name)
    assert "success" == api.await_run("wait", run), api.log("wait", run, "work")
    assert here.name == api.xcom("wait", run, "work")
