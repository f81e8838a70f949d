"""Two installations, one ledger, the same Dag: one does the work, and the other one when the first is killed.

    host a: agent, Airflow   each interval: LeaderSensor --led here--> work, under the lease, into a fenced table
    host b: agent, Airflow   the same Dag:  LeaderSensor ... waits in the triggerer ... --> work: is it there already?

Both make a run for each interval. The work of the last one waits for a file to be gone, so that its host is killed in
the middle of it: once with all that its scheduler started, and once the scheduler alone, whose workers live on then.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from neli_router import fence
from tests.provider.hosts import Host, hosts
from tests.support.servers.airflow import until

pytestmark = [pytest.mark.airflow, pytest.mark.process, pytest.mark.timeout(3600)]

ROLE = 3

LEASE = 8.0
"""Seconds. One that is kept while tasks start on both hosts, which takes all cores, and that a test can wait out."""

PATIENCE = 600.0

DAGS = """
import os, socket, sqlite3, time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from airflow.sdk import DAG, task
from airflow_provider.retries import LeadershipRetryPolicy
from airflow_provider.sensors.neli import LeaderSensor
from neli_router import fence

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
LAST = START + timedelta(hours=3)
HOLD = Path(os.environ["SETTLED"] + ".hold")
AGAIN = {"retries": 3, "retry_policy": LeadershipRetryPolicy()}

def opened():
    return closing(sqlite3.connect(os.environ["SETTLED"], timeout=60, isolation_level=None))

for dag_id in ("first", "second"):
    with DAG(
        dag_id, schedule="@hourly", start_date=START, end_date=LAST, catchup=True, is_paused_upon_creation=True,
        default_args=AGAIN,
    ) as dag:

        @task.leader(role=ROLE, when_not_leading="wait")
        def settle(lease, dag_run):
            interval = dag_run.logical_date.isoformat()
            with opened() as database:
                begun = (dag_run.dag_id, interval, lease.member, lease.term, os.getpid())
                database.execute("INSERT INTO begun VALUES (?, ?, ?, ?, ?)", begun)
            while dag_run.logical_date == LAST and HOLD.exists():
                time.sleep(0.1)
            with opened() as database:
                database.execute("BEGIN IMMEDIATE")
                fence.admit(database, "settled", lease.term)
                done = "SELECT count(*) FROM settled WHERE dag = ? AND interval = ?"
                if database.execute(done, begun[:2]).fetchone() == (0,):
                    database.execute("INSERT INTO settled VALUES (?, ?, ?, ?)", begun[:4])
                database.execute("COMMIT")

        LeaderSensor(task_id="here", role=ROLE, start_from_trigger=True) >> settle()
""".replace("role=ROLE", f"role={ROLE}")

INTERVALS = [f"2026-01-01T0{hour}:00:00+00:00" for hour in range(4)]

MAKE = """
CREATE TABLE settled (dag TEXT, interval TEXT, member TEXT, term INTEGER);
CREATE TABLE begun (dag TEXT, interval TEXT, member TEXT, term INTEGER, pid INTEGER);
"""


class TwoHosts:
    """Two hosts, and the table that both write to. It has no key: only the fence keeps work from landing twice."""

    def __init__(self, both: list[Host], table: Path) -> None:
        self.both, self.table, self.hold = both, table, Path(f"{table}.hold")

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.table, timeout=60)) as database:
            return database.execute(query, values).fetchall()

    def lead(self, host: Host) -> None:
        """Let it lead the role, whoever comes and goes."""
        with host.agent.client() as client:
            client.pin(ROLE, host.name)
            until(lambda: client.lease(ROLE) is not None, f"the role of {host.name}")

    def begin(self, dag_id: str, leader: Host, other: Host) -> int:
        """Until all but one interval is done by the leader, and the other host waits; the process of the one left."""
        self.hold.touch()
        for host in self.both:
            host.api.pause(dag_id, paused=False)
        held = "SELECT pid FROM begun WHERE dag = ? AND interval = ?"
        until(lambda: self.rows(held, dag_id, INTERVALS[-1]), "the beginning of the last interval", patience=PATIENCE)
        until(lambda: len(self.settled(dag_id)) == 3, "the other intervals", patience=PATIENCE)
        for run in until(lambda: _all_runs(other, dag_id), "the runs of the other host", patience=PATIENCE):
            other.api.await_state(dag_id, run, "here", "deferred", patience=PATIENCE)
            assert {"here": "deferred", "settle": None} == other.api.states(dag_id, run)
        assert [(interval, leader.name) for interval in INTERVALS[:3]] == [row[:2] for row in self.settled(dag_id)]
        assert [(leader.name,)] == self.rows("SELECT DISTINCT member FROM begun WHERE dag = ?", dag_id)
        ((pid,),) = self.rows(held, dag_id, INTERVALS[-1])
        return int(pid)

    def settled(self, dag_id: str) -> list[tuple[str, str, int]]:
        """Interval, member and term of all that has landed."""
        return self.rows("SELECT interval, member, term FROM settled WHERE dag = ? ORDER BY interval", dag_id)

    def require_each_once(self, dag_id: str, leader: Host, other: Host) -> None:
        """The other host's runs come to their end, and each interval has landed once: its own under a later term."""
        self.require_success(dag_id, other)
        counted = "SELECT interval, count(*) FROM settled WHERE dag = ? GROUP BY interval ORDER BY interval"
        assert [(interval, 1) for interval in INTERVALS] == self.rows(counted, dag_id)
        *before, last = self.settled(dag_id)
        assert [leader.name] * 3 == [member for _, member, _ in before]
        assert other.name == last[1]
        assert last[2] > max(term for _, _, term in before)

    def require_success(self, dag_id: str, host: Host) -> None:
        for run in _all_runs(host, dag_id):
            ended = host.api.await_run(dag_id, run, patience=PATIENCE)
            assert "success" == ended, [host.api.log(dag_id, run, task) for task in ("here", "settle")]


def _all_runs(host: Host, dag_id: str) -> list[str]:
    """The ids of the runs, once all intervals have one."""
    runs = host.api.runs(dag_id)
    return [run["dag_run_id"] for run in runs] if len(runs) == len(INTERVALS) else []


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[TwoHosts]:
    table, dags = tmp_path / "settled.db", tmp_path / "dags"
    with closing(sqlite3.connect(table)) as database:
        database.executescript(MAKE)
        fence.install(database)
        database.commit()
    dags.mkdir()
    (dags / "settle.py").write_text(DAGS, encoding="utf-8")
    with hosts(tmp_path, "a", "b", dags=dags, lease=LEASE, environment={"SETTLED": str(table)}) as both:
        for host in both:
            host.api.await_dag("first", "second")
        yield TwoHosts(both, table)


def test_another_host_does_the_rest_when_the_leading_one_is_killed(place: TwoHosts) -> None:
    a, b = place.both
    place.lead(a)
    orphan = place.begin("first", a, b)
    a.agent.kill()
    a.airflow.kill("scheduler", alone=True)
    # Nothing of Airflow's ends this task: its scheduler is gone, and its worker is an orphan. The lease does.
    until(lambda: not Path(f"/proc/{orphan}").exists(), "the end of the orphan", patience=PATIENCE)
    place.hold.unlink()
    place.require_each_once("first", a, b)
    assert "LeadershipLost" in a.api.log("first", _all_runs(a, "first")[-1], "settle")

    a.agent.start()
    a.airflow.begin("scheduler")
    place.lead(b)
    killed = place.begin("second", b, a)
    b.agent.kill()
    b.airflow.kill("scheduler")
    until(lambda: not Path(f"/proc/{killed}").exists(), "the end of the task")
    place.hold.unlink()
    place.require_each_once("second", b, a)
    # The first host leads again, so its retry of the lost task goes on, too, and finds the work done.
    place.require_success("first", a)
    assert len(INTERVALS) == len(place.settled("first"))
