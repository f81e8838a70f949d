"""A real Airflow installation for tests: its own home, database, ports and secrets, on loopback, removed at the end.

    Airflow.started(dags) --db migrate--> airflow.db
        api-server      the page, the public API, and the API that tasks use          \\
        scheduler       with a LocalExecutor: starts tasks                             | each a process with a session
        dag-processor   reads dags/                                                    | of its own
        triggerer       what deferred tasks wait for                                  /

    with Airflow.started({"AIRFLOW_CONN_NELI_DEFAULT": spelled(...)}, dags=folder) as airflow:
        run = airflow.api.trigger("nightly")
        airflow.api.await_run("nightly", run)

`Airflow.all_started([environment, ...])` starts several together, like those of two hosts.

The four are started separately, not by `airflow standalone`, which leaves its children behind. Everything that they
start is in their sessions, except for processes with a session of their own, such as Spark jobs; those have the home in
their environment. So everything can be found in one of the two ways, and ended. If the test process is killed, a keeper
does that: the parts have a leash, but the workers of a scheduler live on.

To try things out by hand, `make airflow` starts an installation with agents.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import httpx

from neli_router.lab.local_airflow import PARTS, LocalAirflow
from tests.provider.submissions import processes
from tests.support.servers.process import ServerProcess, free_port
from tests.support.waiting import until

__all__ = ["ENDED", "PATIENCE", "Airflow", "AirflowApi", "awaited", "begin_with_migrated", "until"]

SETTINGS: Mapping[str, str] = {
    # How soon another triggerer takes the triggers of a killed one; 30 seconds by default.
    "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    # Never: the scheduler gives a deferred task whose time is over to a worker, unless its trigger has ended it first.
    # A triggerer that gets no core for that long would begin with the trigger too late.
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "86400",
    # A file is read when it appears and when it changes. Reading each file again and again, Airflow's default, takes a
    # whole core.
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "86400",
}

ROLES = {"admin": "admin", "viewer": "viewer", "neli": "user"}

START_MAX = 1200.0
"""Seconds. An installation alone on the machine takes 20; if all cores are busy, that becomes ten minutes."""

PATIENCE = 600.0
"""Seconds that a test waits for something. A task takes at least two seconds, and a minute on a very busy machine."""

ANSWER_MAX = 300.0
"""Seconds for one answer of the API. A server answers nothing while it imports what its first tasks need."""

CONNECTION, PATIENCE_WITH_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", 600.0
"""Seconds that a transaction waits for another to end, everywhere except in the API server. The API server may block
itself: a request waits for another request's transaction, and blocks the loop that the other request needs. It gives up
after a minute, and a scheduler that has waited that long must not fail because of it."""

LOOK_EVERY = 1.0
"""Seconds between two requests to the API: each answer takes as much processor time as an agent's whole Beat."""

DATABASE_BUSY = "Database error"
"""The API's message after it lost a race for the database."""

LINES_MAX, LINE_MAX = 40, 400
"""Limits for the scheduler's log and for each line, shown when a run did not go well: its lines are a page long."""

ENDED = ("success", "failed")

Answer = TypeVar("Answer")

MIGRATED = Path(sys.prefix, "airflow.db")
"""The database of a new installation. Creating it takes ten seconds, and all are the same. So it is part of the
environment, and is rebuilt with it."""


def begin_with_migrated(home: Path) -> None:
    """Put a copy of the database of a new installation there."""
    if not MIGRATED.exists():
        with tempfile.TemporaryDirectory(prefix=MIGRATED.name, dir=sys.prefix) as folder:
            airflow = Airflow(Path(folder), {}, {})
            airflow.command("db", "migrate")
            with closing(sqlite3.connect(made := airflow.home / MIGRATED.name)) as database:
                database.execute("PRAGMA journal_mode = DELETE")  # Now all of it is in this file.
            made.replace(MIGRATED)
    shutil.copy(MIGRATED, home)


def awaited(holds: Callable[[], Answer], what: str, *, patience: float = PATIENCE) -> Answer:
    """Like `until`, for requests to an installation: with more time, and fewer checks."""
    return until(holds, what, patience=patience, every=LOOK_EVERY)


class AirflowApi:
    """The public API, as one user."""

    def __init__(self, url: str, user: str, password: str, *, scheduler_log: Path) -> None:
        self._scheduler_log = scheduler_log
        self._client = httpx.Client(base_url=url, timeout=ANSWER_MAX, trust_env=False)
        answer = self._client.post("/auth/token", json={"username": user, "password": password})
        answer.raise_for_status()
        self.token: str = answer.json()["access_token"]
        self._client.headers["Authorization"] = f"Bearer {self.token}"

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, path: str, *, body: object = None, below: str = "/api/v2", **query: Any) -> Any:
        """The decoded answer from a path of the public API. A refusal fails the test."""

        def answered() -> httpx.Response | None:
            answer = self._client.request(method, f"{below}{path}", json=body, params=query or None)
            # SQLite does not wait for a lock if a transaction has read before it writes: it gives up immediately, and
            # nothing was done.
            return None if answer.status_code == 500 and DATABASE_BUSY in answer.text else answer

        answer = awaited(answered, f"an answer to {method} {path} that is no {DATABASE_BUSY!r}")
        assert answer is not None
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:1000]}"
        return answer.json() if answer.content else None

    def await_dag(self, *dag_ids: str) -> None:
        """Wait until the dag processor has read them."""

        def are_there() -> bool:
            errors = self.import_errors()
            assert not errors, errors
            return set(dag_ids) <= {dag["dag_id"] for dag in self.call("GET", "/dags", limit=1000)["dags"]}

        awaited(are_there, f"the Dags {', '.join(dag_ids)}")

    def import_errors(self) -> dict[str, str]:
        """Each file with an import error -> the end of its stack trace."""
        found = self.call("GET", "/importErrors", limit=100)["import_errors"]
        return {error["filename"]: error["stack_trace"][-2000:] for error in found}

    def pause(self, dag_id: str, paused: bool) -> None:
        self.call("PATCH", f"/dags/{dag_id}", body={"is_paused": paused})

    def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, partition_key: str | None = None) -> str:
        """Ask for a run; return its id."""
        body: dict[str, Any] = {"logical_date": None, "conf": conf or {}}
        if partition_key is not None:
            body["partition_key"] = partition_key
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body=body)["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """All of them, the oldest first."""
        return list(self.call("GET", f"/dags/{dag_id}/dagRuns", limit=1000, order_by="id")["dag_runs"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}"))

    def await_run(self, dag_id: str, run_id: str, *, patience: float = PATIENCE) -> str:
        """Wait until a run has ended; return its state."""

        def is_there() -> str:
            state = self.run(dag_id, run_id)["state"]
            return str(state) if state in ENDED else ""

        return self._await(is_there, f"the run {run_id} of {dag_id}", dag_id, run_id, patience)

    def _await(self, reached: Callable[[], str], what: str, dag_id: str, run_id: str, patience: float) -> str:
        """Wait for the state and return it. A timeout says how the run went; for a failed run, pytest shows it."""
        try:
            state = awaited(reached, what, patience=patience)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(dag_id, run_id)}") from None
        if state == "failed":
            sys.stderr.write(self.story(dag_id, run_id))  # pytest shows it if the test fails.
        return state

    def story(self, dag_id: str, run_id: str) -> str:
        """How a run went: its tasks, Airflow's record of what happened to them, and the scheduler's log about it."""
        lines = [f"{dag_id}, {run_id}: {self.run(dag_id, run_id)['state']}"]
        for task in self.task_instances(dag_id, run_id):
            name = f"{task['task_id']}[{task['map_index']}]" if task["map_index"] >= 0 else task["task_id"]
            times = ", ".join(f"{when} {task[f'{when}_when']}" for when in ("scheduled", "queued"))
            tries = f"try {task['try_number']} of {task['max_tries'] + 1}"
            lines.append(f"  {name}: {task['state']}, {tries}, {times}, {task['start_date']} to {task['end_date']}")
        rows = self.call("GET", "/eventLogs", dag_id=dag_id, run_id=run_id, order_by="-when", limit=LINES_MAX)
        lines.append("its events:")
        lines += [
            f"  {row['when']} {row['task_id']}: {row['event']} {row['extra'] or ''}"[:LINE_MAX]
            for row in reversed(rows["event_logs"])
        ]
        lines.append(f"{self._scheduler_log.name}:")
        said = self._scheduler_log.read_text(encoding="utf-8", errors="replace").splitlines()
        # Leave out the tasks' own output: tasks have logs of their own.
        of_run = [line for line in said if run_id in line and f"run_id={run_id} task_id=" not in line]
        lines += [f"  {line.strip()}"[:LINE_MAX] for line in of_run[-LINES_MAX:]]
        return "\n".join(lines) + "\n"

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        return list(self.call("GET", path, limit=1000)["task_instances"])

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Task -> its state; mapped tasks appear as `task[2]`."""
        return {
            task["task_id"] + (f"[{task['map_index']}]" if task["map_index"] >= 0 else ""): task["state"]
            for task in self.task_instances(dag_id, run_id)
        }

    def await_state(self, dag_id: str, run_id: str, task: str, *states: str) -> str:
        """Wait until the state of a task is one of `states`; return it."""

        def is_there() -> str:
            state = self.states(dag_id, run_id).get(task)
            return state if state is not None and state in states else ""

        what = f"the state {' or '.join(states)} of {task} in {run_id}"
        return self._await(is_there, what, dag_id, run_id, PATIENCE)

    def xcom(self, dag_id: str, run_id: str, task_id: str, *, key: str = "return_value", map_index: int = -1) -> Any:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.call("GET", path, map_index=map_index, deserialize="false")["value"]

    def log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1, map_index: int = -1) -> str:
        """The whole log of one try of a task."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        said = self.call("GET", path, map_index=map_index, full_content="true")["content"]
        return "\n".join(json.dumps(line) for line in said) if isinstance(said, list) else str(said)

    def logs(self, dag_id: str, run_id: str, task_id: str) -> Iterator[str]:
        """The log of each try that has begun."""
        (task,) = (one for one in self.task_instances(dag_id, run_id) if one["task_id"] == task_id)
        for number in range(1, task["try_number"] + 1):
            yield self.log(dag_id, run_id, task_id, try_number=number)

    def asset_events(self, name: str) -> list[dict[str, Any]]:
        """All of them, the oldest first."""
        (found,) = (it for it in self.call("GET", "/assets", limit=1000)["assets"] if it["name"] == name)
        return self._events("/assets/events", asset_id=int(found["id"]), limit=1000, order_by="timestamp")

    def events_of_run(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The events that started a run."""
        return self._events(f"/dags/{dag_id}/dagRuns/{run_id}/upstreamAssetEvents")

    def _events(self, path: str, **query: Any) -> list[dict[str, Any]]:
        def answer() -> httpx.Response | None:
            # A queued run has no start yet. If one of the events started such a run, Airflow's answer fails.
            found = self._client.get(f"/api/v2{path}", params=query or None)
            return None if found.status_code == httpx.codes.INTERNAL_SERVER_ERROR else found

        found = awaited(answer, f"an answer to {path}")
        assert found is not None
        assert found.is_success, f"{path}: {found.status_code} {found.text[:1000]}"
        return list(found.json()["asset_events"])


class Airflow(LocalAirflow):
    """One installation. Its components may be killed and restarted separately."""

    api: AirflowApi
    _to_keeper: IO[bytes]
    """For the number of each session of ours."""

    def __init__(self, folder: Path, environment: Mapping[str, str], settings: Mapping[str, str]) -> None:
        super().__init__(
            folder,
            folder / "dags",
            free_port(),
            roles=ROLES,
            environment=environment,
            settings={**SETTINGS, **settings},
        )
        self._processes = {name: ServerProcess(folder / f"{name}.log") for name in PARTS}
        self._sessions: set[int] = set()

    @classmethod
    @contextmanager
    def started(cls, environment: Mapping[str, str], *, dags: Path) -> Iterator[Self]:
        """A context with an installation whose components are all healthy, and a copy of the Dags in `dags`.

        `environment` is for all of its processes.
        """
        with cls.all_started([environment], dags=dags) as (airflow,):
            yield airflow

    @classmethod
    @contextmanager
    def all_started(
        cls, environments: Sequence[Mapping[str, str]], *, dags: Path, settings: Mapping[str, str] | None = None
    ) -> Iterator[list[Self]]:
        """An installation for each of `environments`; they start in parallel."""
        with ExitStack() as life:
            all_of_them = [life.enter_context(cls._laid_out(one, dags, settings or {})) for one in environments]
            for airflow in all_of_them:
                airflow._begin_all()
            for airflow in all_of_them:
                airflow._await_all()
            yield all_of_them

    @classmethod
    @contextmanager
    def _laid_out(cls, environment: Mapping[str, str], dags: Path, settings: Mapping[str, str]) -> Iterator[Self]:
        """Its folder, until everything in it has ended."""
        with (
            tempfile.TemporaryDirectory(prefix="neli-airflow-", ignore_cleanup_errors=True) as folder,
            subprocess.Popen(
                [sys.executable, "-m", __name__, folder], stdin=subprocess.PIPE, start_new_session=True
            ) as keeper,
        ):
            airflow = cls(Path(folder), environment, settings)
            assert keeper.stdin is not None
            airflow._to_keeper = keeper.stdin
            shutil.copytree(dags, airflow.dags)
            try:
                yield airflow
            except BaseException:
                sys.stderr.write(airflow.log())  # pytest shows it with the test that failed.
                raise
            finally:
                airflow.end()

    def _begin_all(self) -> None:
        if self._is_on_sqlite:
            begin_with_migrated(self.home)
        else:
            self.command("db", "migrate")
        for component in self._processes:
            self.begin(component)

    def _await_all(self) -> None:
        awaited(self.is_healthy, f"the health of all parts of {self.url}", patience=START_MAX)
        self.api = self.as_user("admin")

    def as_user(self, name: str) -> AirflowApi:
        """The API as `admin`, as `viewer`, which may change nothing, or as `neli`, which may pause Dags."""
        return AirflowApi(self.url, name, self.passwords[name], scheduler_log=self.home / "scheduler.log")

    def begin(self, component: str) -> None:
        """Start one part."""
        patience = {CONNECTION: f"sqlite:///{self.home}/airflow.db?timeout={PATIENCE_WITH_DATABASE:g}"}
        waits = self._is_on_sqlite and component != "api-server"
        environment = self.environment | (patience if waits else {})
        self._processes[component].begin(self.part(component), environment)
        self._sessions.add(self.pid(component))
        self._to_keeper.write(b"%d\n" % self.pid(component))
        self._to_keeper.flush()

    @property
    def _is_on_sqlite(self) -> bool:
        """Unless its environment names another database, which then is there and empty."""
        return self.environment[CONNECTION].startswith("sqlite:")

    def pid(self, component: str) -> int:
        """The main process of a part; its session has the same number."""
        return self._processes[component].pid

    def kill(self, component: str, *, alone: bool = False) -> None:
        """End a part by SIGKILL, with all tasks that it started, or just its main process if `alone`."""
        main = self.pid(component)
        _kill([main] if alone else [pid for pid, _, session, _ in processes() if session == main])
        self._processes[component].reap()

    def freeze(self, component: str) -> None:
        self._processes[component].freeze()

    def thaw(self, component: str) -> None:
        self._processes[component].thaw()

    def is_healthy(self) -> bool:
        """Whether all parts are up. A part that has ended fails the test."""
        ended = [name for name, process in self._processes.items() if not process.running]
        assert not ended, f"{', '.join(ended)} of {self.url} ended"
        return self.are_healthy(*self._processes)

    def command(self, *arguments: str) -> str:
        """The output of `airflow ARGUMENTS` in this installation. This takes seconds; the API is quicker."""
        ended = subprocess.run(
            self.command_line(*arguments),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_MAX,
            check=False,
        )
        assert ended.returncode == 0, f"airflow {' '.join(arguments)}: {ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
        return ended.stdout

    def log(self) -> str:
        """The end of each part's log."""
        said = (f"--- {name} of {self.url}\n{process.log()}" for name, process in self._processes.items())
        return "\n".join(said)

    def end(self) -> None:
        """Kill everything. The database is thrown away, so no clean shutdown is needed."""
        if hasattr(self, "api"):
            self.api.close()
        awaited(self._is_gone, f"the end of the processes of {self.url}")

    def _is_gone(self) -> bool:
        is_gone = _end_processes(self.home, self._sessions)
        for process in self._processes.values():
            process.reap()
        return is_gone


def _end_processes(home: Path, sessions: Collection[int]) -> bool:
    """Kill the parts, the tasks, and everything that tasks started; return whether there were none."""
    mark = f"AIRFLOW_HOME={home}".encode()
    left = [pid for pid, _, its, _ in processes() if its in sessions or mark in _environment(pid)]
    _kill(left)
    return not left


def _environment(pid: int) -> list[bytes]:
    with suppress(OSError):  # It has ended, or is another user's.
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _kill(pids: Collection[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    begun = {int(session) for session in sys.stdin.buffer}  # Until the test process ends.
    awaited(lambda: _end_processes(Path(sys.argv[1]), begun), f"the end of the processes of {sys.argv[1]}")
