"""Two installations with one ledger, and the same Dags: each interval is done once, whatever is killed on a host.

    host a: Airflow, whose scheduler has the agent as its child --.
                                                                  one PostgreSQL: a database for the metadata of each,
    host b: the same Dags ----------------------------------------'   and one for the ledger and a fenced table

Both hosts make a run for each interval. Where the role is led elsewhere, the run waits: `first` and `third` have the
tag of the role, and `second` has a sensor. The work of their last interval waits until a file is gone, so that its host
is killed in the middle of it.

During `first`, the agent of the host that leads is killed, and the main process of its scheduler, whose workers live
on; during `second`, everything that its scheduler started; during `third`, only its agent.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from neli_router import fence
from neli_router.agent import Client
from neli_router.core.keyspace import Layout
from neli_router.errors import NeliError
from tests.conftest import require
from tests.provider.submissions import processes
from tests.support.given import spelled
from tests.support.processes.forked import lives
from tests.support.servers.airflow import Airflow, awaited
from tests.support.servers.postgresql import DURABLE, Postgresql, missing

pytestmark = [pytest.mark.airflow, pytest.mark.process, pytest.mark.postgresql, pytest.mark.timeout(3600)]

ROLE = "orders"

LEASE = 10.0
"""Seconds. Long enough to be kept while tasks start on both hosts, which takes all cores; short enough to be waited
out."""

PARTITIONS = 8
PARTITION = Layout(partitions=PARTITIONS).partition_of_role(ROLE)

CONFIG = """
name = "{name}"
lease = {lease}
drain_timeout = 20.0
[layout]
partitions = {partitions}
[agent]
socket = "{folder}/{name}.sock"
"""

SETTLE = """
import os, psycopg, time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from airflow.sdk import DAG, task
from airflow_provider.retries import LeadershipRetryPolicy
from airflow_provider.sensors.neli import LeaderSensor
from neli_router import fence

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
LAST = START + timedelta(hours=1)

def settled(task):
    @task
    def settle(lease=None, dag_run=None):
        row = (dag_run.dag_id, dag_run.logical_date.isoformat(), lease.member, lease.term)
        with psycopg.connect("{tables}") as database:
            database.execute("INSERT INTO begun VALUES (%s, %s, %s, %s, %s)", (*row, os.getpid()))
        while dag_run.logical_date == LAST and Path("{hold}").exists():
            time.sleep(0.1)
        with psycopg.connect("{tables}") as database:
            fence.admit(database, "settled", lease)
            known = "SELECT count(*) FROM settled WHERE dag = %s AND interval = %s"
            table = "repeated" if database.execute(known, row[:2]).fetchone()[0] else "settled"
            database.execute(f"INSERT INTO {{table}} VALUES (%s, %s, %s, %s)", row)

    return settle()

# Airflow's delay of five minutes would apply to a task that a busy machine starts too late, for example.
soon = timedelta(seconds=5)
again = {{"retries": 9, "retry_delay": soon, "retry_policy": LeadershipRetryPolicy()}}
when = {{"schedule": "@hourly", "start_date": START, "end_date": LAST, "catchup": True, "default_args": again}}
for dag_id in ("first", "third"):
    with DAG(dag_id, tags=["neli:{role}"], **when):
        settled(task)
with DAG("second", **when):
    here = LeaderSensor(task_id="here", role="{role}", start_from_trigger=True)
    here >> settled(task.leader(role="{role}", when_not_leading="wait"))
"""

MAKE = """
CREATE TABLE settled (dag text, interval text, member text, term bigint);
CREATE TABLE repeated (dag text, interval text, member text, term bigint);
CREATE TABLE begun (dag text, interval text, member text, term bigint, pid bigint);
"""

INTERVALS = [f"2026-01-01T0{hour}:00:00+00:00" for hour in range(2)]
"""The intervals of each Dag. In the last one, something is killed."""


class Host:
    """An installation, and the agent that its scheduler starts."""

    def __init__(self, name: str, folder: Path, airflow: Airflow) -> None:
        self.name, self.airflow, self.api = name, airflow, airflow.api
        self._socket = folder / f"{name}.sock"

    def client(self) -> Client:
        return Client(f"unix:{self._socket}")

    def asked(self, question: Callable[[Client], bool]) -> bool:
        """The answer of its agent; False if no agent runs."""
        with suppress(NeliError), self.client() as client:
            return question(client)
        return False

    def leads(self) -> bool:
        return self.asked(lambda client: client.lease(ROLE) is not None)

    def agent(self) -> int:
        """The process of the agent: a child of the scheduler."""
        scheduler = self.airflow.pid("scheduler")
        (found,) = (pid for pid, parent, _, command in processes() if parent == scheduler and " agent " in command)
        return found


class Place:
    """Two hosts, and the table that both write to. It has no key: only the fence keeps work from landing twice."""

    def __init__(self, both: list[Host], tables: str, hold: Path) -> None:
        self.both, self.tables, self.hold = both, tables, hold

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.tables) as connection:
            return connection.execute(query.encode(), values).fetchall()

    def settled(self, dag_id: str) -> list[tuple[str, str, int]]:
        """Interval, member and term of everything that has landed."""
        return self.rows("SELECT interval, member, term FROM settled WHERE dag = %s ORDER BY interval", dag_id)

    def lead(self, leader: Host) -> Host:
        """Pin the role to this host, until it leads. Returns the other host."""
        awaited(lambda: all(host.asked(lambda it: it.status().member == "member") for host in self.both), "both agents")
        (other,) = (host for host in self.both if host is not leader)
        with other.client() as client:
            client.pin(PARTITION, leader.name)
        awaited(leader.leads, f"the role of {leader.name}")
        return other

    def hold_last(self, dag_id: str, leader: Host, other: Host) -> int:
        """Wait until the leader has done one interval, and the other host waits; return the process of the one left."""
        self.hold.touch()
        for host in self.both:
            host.api.pause(dag_id, paused=False)
        held = "SELECT pid FROM begun WHERE dag = %s AND interval = %s"
        ((pid,),) = awaited(lambda: self.rows(held, dag_id, INTERVALS[-1]), "the beginning of the last interval")
        awaited(lambda: self.settled(dag_id), "the other interval")
        for run in awaited(lambda: all_runs(other, dag_id), "the runs of the other host"):
            first, *rest = ("here", "settle") if dag_id == "second" else ("settle",)
            other.api.await_state(dag_id, run, first, "deferred")
            assert {first: "deferred", **dict.fromkeys(rest)} == other.api.states(dag_id, run)
        assert [(INTERVALS[0], leader.name)] == [row[:2] for row in self.settled(dag_id)]
        assert [(leader.name,)] == self.rows("SELECT DISTINCT member FROM begun WHERE dag = %s", dag_id)
        return int(pid)

    def require_each_once(self, dag_id: str, leader: Host, other: Host) -> None:
        """The other host's runs end, and each interval has landed once: the other host's interval under a later
        term."""
        self.require_success(dag_id, other)
        before, last = self.settled(dag_id)
        assert list(zip(INTERVALS, (leader.name, other.name), strict=True)) == [before[:2], last[:2]]
        assert last[2] > before[2]

    def require_success(self, dag_id: str, host: Host) -> None:
        for run in all_runs(host, dag_id):
            ended = host.api.await_run(dag_id, run)
            assert "success" == ended, host.api.log(dag_id, run, "settle")

    def is_frozen_at_rest(self, host: Host) -> bool:
        """Stop its scheduler, unless there is a transaction: killed in one, it would leave its locks for good to its
        workers, which have inherited its connection, and no scheduler would look at those runs again."""
        host.airflow.freeze("scheduler")
        open_ones = "SELECT FROM pg_stat_activity WHERE datname = %s AND xact_start IS NOT NULL"
        if self.rows(open_ones, host.name):
            host.airflow.thaw("scheduler")
            return False
        return True

    def take_over(self, dag_id: str, task: int, kill: Callable[[], object]) -> None:
        """Kill the leader of this task, and wait until the task has ended and its work was done."""
        kill()
        # Airflow may not end it: its scheduler is gone, and its worker is an orphan. The lease does.
        awaited(lambda: not lives(task), "the end of the task")
        self.hold.unlink()
        try:
            awaited(lambda: len(self.settled(dag_id)) == len(INTERVALS), "the heir's work")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.stories(dag_id)])) from None

    def stories(self, dag_id: str) -> Iterator[str]:
        """How the last run of each host went, and what its work said."""
        for host in self.both:
            run = all_runs(host, dag_id)[-1]
            yield f"{host.name}: {host.api.story(dag_id, run)}"
            yield from host.api.logs(dag_id, run, "settle")


def all_runs(host: Host, dag_id: str) -> list[str]:
    """The ids of the runs, once all intervals have one."""
    runs = host.api.runs(dag_id)
    return [run["dag_run_id"] for run in runs] if len(runs) == len(INTERVALS) else []


@pytest.fixture(name="server")
def _server() -> Iterator[Postgresql]:
    require(missing())
    with Postgresql.started(settings=DURABLE) as server:
        yield server


@pytest.fixture(name="place")
def _place(airflow_home: Path, server: Postgresql, tmp_path: Path) -> Iterator[Place]:
    """Both hosts, once their agents are members of one group, and they have the same Dags."""
    tables, hold, names, environments = server.database, tmp_path / "hold", ("a", "b"), []
    with psycopg.connect(tables) as database:
        database.execute(MAKE)
        fence.install(database)
    for name in names:
        server.ask(f"CREATE DATABASE {name}")
        config = tmp_path / f"{name}.toml"
        config.write_text(CONFIG.format(folder=tmp_path, name=name, lease=LEASE, partitions=PARTITIONS))
        metadata = f"postgresql+psycopg://{tables.partition('://')[2].rpartition('/')[0]}/{name}"
        ours = {
            "DATABASE__SQL_ALCHEMY_CONN": metadata,
            "DATABASE__SQL_ALCHEMY_CONN_ASYNC": metadata,
            "NELI__AGENT_IN": "scheduler",
            "NELI__AGENT_CONFIG": str(config),
            "NELI__LEDGER": "metadata?dbname=postgres",
        }
        connection = {"AIRFLOW_CONN_NELI_DEFAULT": spelled(address=f"unix:{tmp_path}/{name}.sock")}
        environments.append(connection | {f"AIRFLOW__{option}": value for option, value in ours.items()})
    (dags := tmp_path / "dags").mkdir()
    (dags / "settle.py").write_text(SETTLE.format(role=ROLE, tables=tables, hold=hold), encoding="utf-8")
    settings = {"CORE__DAGS_ARE_PAUSED_AT_CREATION": "True"}
    with Airflow.all_started(environments, dags=dags, settings=settings) as installations:
        both = [Host(name, tmp_path, airflow) for name, airflow in zip(names, installations, strict=True)]
        for host in both:
            host.api.await_dag("first", "second", "third")
        yield Place(both, tables, hold)


def test_each_interval_is_done_once_whatever_is_killed(place: Place) -> None:
    a, b = place.both

    def kill_the_agent_and_the_scheduler() -> None:
        awaited(lambda: place.is_frozen_at_rest(a), "the scheduler outside its transactions")
        os.kill(a.agent(), signal.SIGKILL)  # A running scheduler would start another.
        a.airflow.kill("scheduler", alone=True)

    assert b is place.lead(a)
    place.take_over("first", place.hold_last("first", a, b), kill_the_agent_and_the_scheduler)
    place.require_each_once("first", a, b)
    assert "LeadershipLost" in a.api.log("first", all_runs(a, "first")[-1], "settle")
    a.airflow.begin("scheduler")

    assert a is place.lead(b)
    place.take_over("second", place.hold_last("second", b, a), lambda: b.airflow.kill("scheduler"))
    place.require_each_once("second", b, a)
    b.airflow.begin("scheduler")

    place.lead(a)
    # The first host leads again, so its retry of the lost task goes on, too, and finds the work done.
    place.require_success("first", a)
    # An agent that comes back in time under its name has the role again. So the heir may be either of them.
    place.take_over("third", place.hold_last("third", a, b), lambda: os.kill(a.agent(), signal.SIGKILL))
    for dag_id in ("first", "second", "third"):
        assert INTERVALS == [interval for interval, *_ in place.settled(dag_id)]
