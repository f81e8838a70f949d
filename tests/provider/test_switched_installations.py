"""The switch on two installations with one ledger: each interval is done once, and no run is made where it must not be.

    host a: Airflow, whose scheduler has the agent as its child, and the switch --.
                                                                                  ledger, and one fenced table
    host b: the same Dags, a database of its own ---------------------------------'

The host that leads is killed three times: all of it; its agent alone; the main process of its scheduler alone, whose
workers live on. Then the ledger's record is asked whose the role was at the moment when each run was created.

`SWITCH_ROUNDS=10 pytest -s tests/provider/test_switched_installations.py` does so ten times over, and tells figures.
"""

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

import pytest

from neli_router import fence
from neli_router.agent import Client
from neli_router.clock import host_clock
from neli_router.errors import NeliError
from neli_router.keyspace import Layout
from neli_router.ledgers.addresses import open_ledger
from neli_router.status.annals import Annals
from neli_router.status.audit import audit
from neli_router.status.history import between
from tests.support.given import spelled
from tests.support.servers.airflow import Airflow, until

pytestmark = [pytest.mark.airflow, pytest.mark.process, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("SWITCH_ROUNDS", "1"))

ROLE = "orders"

LEASE = 6.0
"""Seconds. One that is kept while tasks start on both hosts, which takes all cores."""

PARTITIONS = 8

EVERY = timedelta(seconds=5)

PATIENCE = 600.0

CONFIG = """
ledger = "sqlite://{folder}/ledger.db"
name = "{name}"
lease = {lease}
drain_timeout = 20.0
[layout]
partitions = {partitions}
[agent]
socket = "{folder}/{name}.sock"
"""

SETTLE = """
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from airflow.sdk import DAG, task
from neli_router import fence

# A task that loses its role fails, and this host may lead again before the other one comes to that interval.
AGAIN = {{"retries": 100, "retry_delay": timedelta(seconds=2)}}

with DAG(
    "settle", default_args=AGAIN, schedule=timedelta(seconds={every}), start_date=datetime.fromisoformat("{start}"),
    catchup=True, tags=["neli:{role}"],
):

    @task.leader(role="{role}", when_not_leading="fail")
    def settle(lease, dag_run):
        row = (dag_run.logical_date.isoformat(), lease.member, lease.term)
        with closing(sqlite3.connect("{table}", timeout=60, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            fence.admit(database, "settled", lease.term)
            (known,) = database.execute("SELECT count(*) FROM settled WHERE interval = ?", row[:1]).fetchone()
            database.execute(f"INSERT INTO {{'repeated' if known else 'settled'}} VALUES (?, ?, ?)", row)
            database.execute("COMMIT")

    settle()
"""

KEPT = """
from datetime import datetime, timedelta
from airflow.sdk import DAG, task

with DAG(
    "kept", schedule=timedelta(seconds={every}), start_date=datetime.fromisoformat("{start}"), catchup=True, tags={tags}
):

    @task
    def never():
        raise AssertionError("a person paused this Dag")

    never()
"""

MAKE = """
CREATE TABLE settled (interval TEXT, member TEXT, term INTEGER);
CREATE TABLE repeated (interval TEXT, member TEXT, term INTEGER);
"""


class SwitchedHost:
    """An installation, and the agent that its scheduler brings."""

    def __init__(self, name: str, folder: Path, airflow: Airflow) -> None:
        self.name, self.airflow, self._socket = name, airflow, folder / f"{name}.sock"

    def leads(self) -> bool:
        with suppress(NeliError), Client(f"unix:{self._socket}") as client:
            return client.lease(ROLE) is not None
        return False

    def is_member(self) -> bool:
        with suppress(NeliError), Client(f"unix:{self._socket}") as client:
            return client.status().member == "member"
        return False

    def agent(self) -> int:
        """The process of the agent: a child of the scheduler."""
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with suppress(OSError):
                    parent = int((path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
                    command = (path / "cmdline").read_bytes().split(b"\0")
                    if parent == self.airflow.pid("scheduler") and b"agent" in command:
                        return int(path.name)
        raise AssertionError(f"the scheduler of {self.name} has no agent")

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """From the metadata database, which is there while the scheduler is not."""
        return rows(self.airflow.home / "airflow.db", query, *values)

    def is_paused(self, dag_id: str) -> bool:
        return self.rows("SELECT is_paused FROM dag WHERE dag_id = ?", dag_id) == [(1,)]

    def runs(self, dag_id: str) -> list[float]:
        """When each run was created."""
        found = self.rows("SELECT created_at FROM dag_run WHERE dag_id = ? ORDER BY created_at", dag_id)
        return [moment(text) for (text,) in found]

    def paused_after(self, moment: float) -> float | None:
        """When the switch did so first, after that moment."""
        return next((at for at, paused in self._acts() if paused and at > moment), None)

    def unpaused_after(self, moment: float) -> float | None:
        return next((at for at, paused in self._acts() if not paused and at > moment), None)

    def _acts(self) -> list[tuple[float, bool]]:
        found = self.rows("SELECT dttm, extra FROM log WHERE dag_id = 'settle' AND event = 'neli_switch' ORDER BY id")
        return [(moment(text), bool(json.loads(extra)["is_paused"])) for text, extra in found]


def rows(database: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        return connection.execute(query, values).fetchall()


def moment(text: str) -> float:
    """A time in SQLite, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.fixture(name="table", scope="module")
def _table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = tmp_path_factory.mktemp("switched") / "settled.db"
    with closing(sqlite3.connect(table)) as database, database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(MAKE)
        fence.install(database)
    return table


@contextmanager
def switched_hosts(folder: Path) -> Iterator[list[SwitchedHost]]:
    """Both, when their agents are members of one group."""
    names, environments = ("a", "b"), []
    for name in names:
        config = folder / f"{name}.toml"
        config.write_text(CONFIG.format(folder=folder, name=name, lease=LEASE, partitions=PARTITIONS), encoding="utf-8")
        environments.append(
            {
                "AIRFLOW_CONN_NELI_DEFAULT": spelled(address=f"unix:{folder}/{name}.sock"),
                "AIRFLOW__NELI__AGENT_IN": "scheduler",
                "AIRFLOW__NELI__AGENT_CONFIG": str(config),
                "AIRFLOW__NELI__SWITCH": "True",
            }
        )
    settings = {"CORE__DAGS_ARE_PAUSED_AT_CREATION": "True"}
    parts = ("api-server", "scheduler", "dag-processor")  # Nothing is deferred.
    with Airflow.all_started(environments, settings=settings, parts=parts) as installations:
        hosts = [SwitchedHost(name, folder, airflow) for name, airflow in zip(names, installations, strict=True)]
        until(lambda: all(host.is_member() for host in hosts), "both agents", patience=PATIENCE)
        yield hosts


def put(host: SwitchedHost, name: str, text: str) -> None:
    """As one step: a file that is half there has no Dag."""
    (host.airflow.dags / "new").write_text(text, encoding="utf-8")
    (host.airflow.dags / "new").rename(host.airflow.dags / f"{name}.py")


def kill_all(host: SwitchedHost) -> None:
    host.airflow.kill("scheduler")


def kill_the_agent(host: SwitchedHost) -> None:
    os.kill(host.agent(), signal.SIGKILL)


def kill_the_scheduler(host: SwitchedHost) -> None:
    host.airflow.kill("scheduler", alone=True)


KILLS: tuple[Callable[[SwitchedHost], None], ...] = (kill_all, kill_the_agent, kill_the_scheduler)


def test_each_interval_is_done_once_and_no_run_is_created_where_the_role_is_not_led(table: Path) -> None:
    with switched_hosts(table.parent) as both:
        begin(both, table)
        times: dict[str, list[float]] = {}
        for kill in KILLS * ROUNDS:
            take_over(both, table, kill, times)
        last = datetime.now(UTC).isoformat()
        until(lambda: not missing(table, last), "what is left to be made up for", patience=PATIENCE)

        intervals = [text for (text,) in rows(table, "SELECT interval FROM settled")]
        assert [] == [one for one, count in Counter(intervals).items() if count != 1]
        created = {host.name: host.runs("settle") for host in both}
        spans, shift = rights(table.parent / "ledger.db"), time.time() - host_clock()
        in_order = sorted((at - shift, name) for name, moments in created.items() for at in moments)
        outside = [(at, name) for at, name in in_order if not any(low <= at <= high for low, high in spans[name])]
        assert [] == outside, spans
        turns = [name for name, _ in groupby(name for _, name in in_order)]
        assert len(turns) <= sum(map(len, spans.values())), "hosts whose turns are mixed created runs at the same time"
        assert [True, True] == [host.is_paused("kept") for host in both]
        assert [[], []] == [host.runs("kept") for host in both]
        tell(created, spans, times, len(intervals), rows(table, "SELECT * FROM repeated"))


def begin(both: list[SwitchedHost], table: Path) -> None:
    """Both have the same Dags, and a person has paused one of them before it got its tag."""
    given = {"every": EVERY.total_seconds(), "start": datetime.now(UTC).isoformat(), "role": ROLE, "table": table}
    for host in both:
        put(host, "kept", KEPT.format(**given, tags="[]"))
    for host in both:
        host.airflow.api.await_dag("kept")
        host.airflow.api.pause("kept", paused=True)
        put(host, "kept", KEPT.format(**given, tags=f"['neli:{ROLE}']"))
        put(host, "settle", SETTLE.format(**given))


def take_over(
    both: list[SwitchedHost], table: Path, kill: Callable[[SwitchedHost], None], times: dict[str, list[float]]
) -> None:
    """Kill the leader, until the Dag runs again, and all that was killed is back."""
    until(lambda: all(host.is_member() for host in both), "both agents", patience=PATIENCE)
    (leader,) = until(lambda: running(both), "a host that runs the Dag", patience=PATIENCE)
    (other,) = (host for host in both if host is not leader)
    until(lambda: tries(table, leader), "an interval", patience=PATIENCE)
    # The agent that comes back in time under its name has the role again. So it may be either of them.
    heirs = both if kill is kill_the_agent else [other]
    tried, killed_at = sum(tries(table, host) for host in heirs), time.time()
    kill(leader)
    if kill is kill_the_agent:
        until(lambda: leader.paused_after(killed_at), "the pause", patience=PATIENCE)
        paused_at = leader.paused_after(killed_at) or inf
        assert not any(paused_at > (host.unpaused_after(killed_at) or inf) for host in heirs)
        times.setdefault(f"{kill.__name__}: paused after", []).append(paused_at - killed_at)
    until(lambda: any(host.unpaused_after(killed_at) for host in heirs), "the takeover", patience=PATIENCE)
    unpaused_at = min(filter(None, (host.unpaused_after(killed_at) for host in heirs)))
    times.setdefault(f"{kill.__name__}: unpaused after", []).append(unpaused_at - killed_at)
    until(lambda: sum(tries(table, host) for host in heirs) > tried, "the heir's work", patience=PATIENCE)
    if kill is not kill_the_agent:
        leader.airflow.begin("scheduler")


def tell(
    created: Mapping[str, list[float]],
    spans: Mapping[str, list[tuple[float, float]]],
    times: Mapping[str, list[float]],
    intervals: int,
    repeated: list[tuple[Any, ...]],
) -> None:
    runs, tenures = ({name: len(found) for name, found in one.items()} for one in (created, spans))
    print(f"\nruns {runs}, intervals {intervals}, repeated {len(repeated)}, tenures {tenures}")  # noqa: T201 - for -s.
    for name, found in times.items():
        print(f"{name} {', '.join(f'{seconds:.2f}' for seconds in found)} s")  # noqa: T201 - as above.


def running(both: list[SwitchedHost]) -> list[SwitchedHost]:
    return [host for host in both if host.leads() and not host.is_paused("settle")]


def tries(table: Path, host: SwitchedHost) -> int:
    """How often tasks of this host have come to the table."""
    both = "SELECT member FROM settled UNION ALL SELECT member FROM repeated"
    return int(rows(table, f"SELECT count(*) FROM ({both}) WHERE member = ?", host.name)[0][0])


def missing(table: Path, last: str) -> list[datetime]:
    """Intervals before `last` that are not done, between those that are."""
    found = [
        datetime.fromisoformat(text) for (text,) in rows(table, "SELECT interval FROM settled WHERE interval < ?", last)
    ]
    first, until_last = min(found), datetime.fromisoformat(last) - EVERY
    expected = (first + number * EVERY for number in range(int((until_last - first) / EVERY) + 1))
    return [one for one in expected if one not in found]


def rights(ledger: Path) -> dict[str, list[tuple[float, float]]]:
    """From when until when each host might act for the role, by the ledger's record, on this machine's clock."""
    annals, partition = Annals(one_clock=True), Layout(partitions=PARTITIONS).partition_of_role(ROLE)
    with closing(open_ledger(f"sqlite://{ledger}", create=False, patience=60.0)) as reader:
        annals.read(between(reader, reader.start(), reader.tip()))
        audit(annals)
    heard = {end.life.incarnation: end.heard for end in annals.ends}
    found: dict[str, list[tuple[float, float]]] = {}
    for held in annals.tenures[partition]:
        # A record lies between two Beats; one that ends a member that was killed comes when its lease is long over.
        ended = inf if held.last is None else annals.axis.when(held.last)[1]
        begun = max(annals.axis.when(held.first)[0], held.led_from - annals.beat)
        found.setdefault(held.member, []).append((begun, min(ended, heard.get(held.incarnation, inf) + LEASE)))
    return found
