"""One Spark job, whatever is killed: each row lands once, and no driver writes after a later one.

    role 3: agent a, agent b               two hosts' agents on one SQLite ledger, with leases of 10 s
    attempt 1, 2 ... of one task           processes with Airflow's task runner and a metadata database (spark_attempt)
        '--spark-submit--> master, worker  a standalone cluster of Spark, in client and cluster mode
              driver, executor ------>     the sink: a fence, a table, and a witness of every write (row_sink)

Each place is a step of the job and what happens there: the process of the task, the driver or the agent is killed, the
task is cleared or moved, or its worker is stopped, and goes on when its successor is at work. Unless the step is the
job's end, the first job has one write under way meanwhile, and it arrives as late as possible: after the next job has
written. The test plays the scheduler: it starts the next attempt on the host that leads the role.

Not real: the scheduler, the API server and the triggerer. Attempts use the metadata database in their own process, and
the "triggerer" is a process that runs the trigger.

Run it by `make chaos`, or `NELI_TEST_SECONDS=600 pytest -rP tests/chaos/test_spark_submissions.py`. It takes about 20
minutes. `make test` skips it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest

from tests.chaos.row_sink import RowSink, Seen
from tests.provider.submissions import processes
from tests.support.agents.processes import AgentProcess, agents, is_settled, leader_of
from tests.support.draws import say
from tests.support.given import spelled
from tests.support.processes.forked import lives
from tests.support.servers.jars import LIGHT
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.servers.spark import Spark

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.timeout(7200),
    pytest.mark.skipif("NELI_TEST_SECONDS" not in os.environ, reason="it takes 20 minutes: see `make chaos`"),
]

ROOT = Path(__file__).parents[2]
ROLE, ROWS = 3, 12
LEASE = 10.0
"""Seconds. Long enough to be kept while Java starts, which takes all cores."""

PATIENCE = 300.0

GRACE = 5.0
"""Seconds from Airflow's SIGTERM to its SIGKILL."""

ATTEMPTS_MAX = 6

MODES = ("client", "cluster")


class Place(NamedTuple):
    """An event at a step. The first steps are points of the attempt, the others are requests to the sink."""

    what: str
    step: str

    @property
    def is_request(self) -> bool:
        return self.step in {"begin", "row", "wrote", "done"}


STEPS = {
    "worker": "submit starting begin submitted saved row wrote done ended",
    "driver": "begin row wrote done",
    "agent": "submit row done",
    "clear": "submit starting row",
    "move": "row",
    "freeze": "row",
    "triggerer": "waiting",
}
PLACES = [Place(what, step) for what, steps in STEPS.items() for step in steps.split()]


class Attempt:
    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.folder = pid, folder

    @property
    def points(self) -> list[str]:
        notes = self.folder / "points"
        return notes.read_text().split() if notes.exists() else []

    @property
    def has_ended(self) -> bool:
        return not lives(self.pid)

    @property
    def state(self) -> str:
        """The state of its task; "killed" if it could not say it."""
        file = self.folder / "state"
        return file.read_text() if file.exists() else "killed"

    def go(self) -> None:
        (self.folder / "go").touch()

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def await_end(self, what: str) -> None:
        until(lambda: self.has_ended, f"the end of the attempt, {what}", patience=PATIENCE)

    def end_like_airflow(self) -> None:
        """As its supervisor ends a task that was cleared."""
        self.kill(signal.SIGTERM)
        self.go()
        with suppress(AssertionError):
            until(lambda: self.has_ended, patience=GRACE)
        self.kill()
        self.await_end("which was cleared")


class Scene:
    """The group, the cluster, the sink, and the process that attempts are forked from."""

    def __init__(self, folder: Path, group: list[AgentProcess], spark: "Spark", sink: RowSink) -> None:
        self.folder, self.group, self.sink = folder, group, sink
        self._numbers = count(1)
        self._connections = dict[str, str]()
        for mode in MODES:
            where: dict[str, Any] = {"rest-port": spark.rest_port, "deploy-mode": mode}
            self._connections[f"AIRFLOW_CONN_{mode.upper()}"] = spelled("spark", host=spark.master, **where)
        (folder / "airflow").mkdir()
        with (folder / "worker.log").open("w") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.chaos.spark_attempt"],
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith("NELI_")},
                    "AIRFLOW_HOME": str(folder / "airflow"),
                    "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "airflow" / "dags"),
                    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                    "JAR": str(compiled(folder)),
                    "JAVA_OPTIONS": " ".join(LIGHT),
                    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
                    "ROLE": str(ROLE),
                    "ROWS": str(ROWS),
                    "SINK": sink.address,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Self]:
        from tests.support.servers.spark import Spark  # noqa: PLC0415 - this file is read where there is no PySpark, too.

        with (
            agents(folder, "a", "b", lease=LEASE, drain_timeout=2.0) as group,
            Spark.started(workers=1, cores=12) as spark,
            RowSink.started(folder) as sink,
        ):
            scene = cls(folder, group, spark, sink)
            try:
                assert scene.said() == "ready"
                yield scene
            finally:
                assert scene._worker.stdin is not None
                scene._worker.kill()
                scene._worker.communicate()

    def said(self) -> str:
        assert self._worker.stdout is not None
        line = self._worker.stdout.readline().strip()
        assert line, (self.folder / "worker.log").read_text()[-5000:]
        return line

    def attempt(self, dag: str, here: AgentProcess, *, way: str = "run", stop_at: str = "") -> Attempt:
        run = self.sink.run
        folder = self.folder / f"{run}-{next(self._numbers)}"
        folder.mkdir()
        told = {
            "dag": dag,
            "deferral": str(self.folder / f"{run}.deferral"),
            "environment": {**self._connections, "AIRFLOW_CONN_NELI_DEFAULT": here.connection},
            "folder": str(folder),
            "run": run,
            "stop_at": stop_at,
            "way": way,
        }
        assert self._worker.stdin is not None
        self._worker.stdin.write(f"{json.dumps(told)}\n")
        self._worker.stdin.flush()
        return Attempt(int(self.said()), folder)

    def leader(self) -> AgentProcess:
        return leader_of(ROLE, [agent for agent in self.group if agent.is_running])

    def settle(self) -> None:
        """Bring the group back to two members with their own partitions."""
        for agent in self.group:
            if not agent.is_running:
                agent.start()
        with self.group[0].client() as client:
            client.pin(ROLE, None)
        until(lambda: is_settled(self.group), "the balance of the group", patience=PATIENCE)


def compiled(folder: Path) -> Path:
    classes, jar = folder / "classes", folder / "rows.jar"
    found = find_spec("pyspark")
    assert found is not None
    jars, bin_ = Path(str(found.origin)).parent / "jars", Path(str(shutil.which("javac"))).parent
    source = Path(__file__).with_name("FencedRows.java")
    subprocess.run([bin_ / "javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(source)], check=True)
    subprocess.run([bin_ / "jar", "--create", "--file", str(jar), "-C", str(classes), "."], check=True)
    return jar


def submits(run: str) -> bool:
    """Whether spark-submit runs for the job of this run."""
    return any(f" {run} " in command and "deploy.SparkSubmit" in command for *_, command in processes())


class Round:
    """One run of the task, in which something happens at one place."""

    def __init__(self, scene: Scene, place: Place, mode: str, *, fenced: bool = True) -> None:
        self.scene, self.place, self.mode = scene, place, mode
        self.run = f"{mode}-{place.what}-{place.step}" + ("" if fenced else "-unfenced")
        # Each first job has a write under way, except one that is to end before anything happens.
        ends_first = place.step in {"ended", "waiting"} or (mode, place.step) == ("client", "submitted")
        scene.sink.begin(self.run, place.step if place.is_request else "" if ends_first else "row", fenced=fenced)
        self.attempts = list[Attempt]()

    def play(self) -> Seen:
        try:
            if self.place.what == "triggerer":
                self._defer()
            else:
                self._act(self._first())
            self._finish()
            seen = self.scene.sink.seen()
            jobs = f"{len(self.attempts)} attempts, {len(seen.jobs)} jobs, {seen.refused} requests refused"
            say(f"{self.run}: {jobs}, {seen.rows.total()} rows, {seen.overlaps} overlaps")
            return seen
        finally:
            self.scene.sink.release()
            for attempt in self.attempts:
                attempt.go()
                attempt.kill(signal.SIGCONT)
                attempt.kill()
            self.scene.settle()

    def _first(self) -> Attempt:
        first = self._attempt("fail", stop_at="" if self.place.is_request else self.place.step)
        step, sink = self.place.step, self.scene.sink

        def reached() -> bool:
            if step == "starting":
                return submits(self.run)
            return sink.held.is_set() if self.place.is_request else step in first.points

        until(lambda: reached() or first.has_ended, f"{step} of {self.run}", patience=PATIENCE)
        assert reached(), (first.folder / "log").read_text()[-5000:]
        return first

    def _act(self, first: Attempt) -> None:
        what, sink = self.place.what, self.scene.sink
        if what == "worker":
            first.kill()
        elif what == "driver":
            os.kill(sink.first_driver, signal.SIGKILL)
        elif what == "agent":
            self.scene.leader().kill()
            first.go()
        elif what == "clear":
            first.end_like_airflow()
            if self.place.is_request:
                until(lambda: not lives(sink.first_driver), "the end of the driver of a cleared task")
        elif what == "move":
            (other,) = set(self.scene.group) - {self.scene.leader()}
            with other.client() as client:
                client.pin(ROLE, other.name)
        elif what == "freeze":
            first.kill(signal.SIGSTOP)
            return
        first.await_end(what)

    def _defer(self) -> None:
        """The task waits on the host that does not lead, and the triggerer is killed before that changes."""
        (other,) = set(self.scene.group) - {self.scene.leader()}
        self._attempt("wait", here=other).await_end("which waits")
        assert self.attempts[-1].state == "deferred"
        killed, trigger = (self._attempt("wait", way="trigger", here=other) for _ in range(2))
        until(lambda: "waiting" in killed.points, "the trigger", patience=PATIENCE)
        killed.kill()
        until(lambda: "waiting" in trigger.points, "the other trigger", patience=PATIENCE)
        with other.client() as client:
            client.pin(ROLE, other.name)
        trigger.await_end("which was the triggerer")
        assert trigger.state == "fired", (trigger.folder / "log").read_text()[-5000:]
        leader_of(ROLE, [other])
        self._attempt("wait", way="resume", here=other)

    def _finish(self) -> None:
        """Try again until the task succeeds, and let the first job's write arrive."""
        sink = self.scene.sink
        for _ in range(ATTEMPTS_MAX):
            if self.place.what != "triggerer" or self.attempts[-1].has_ended:
                self._attempt("fail")
            latest = self.attempts[-1]

            def is_over(latest: Attempt = latest) -> bool:
                # If the attempt goes on with the first job, no second one begins.
                goes_on = "saved" in latest.points and "submit" not in latest.points
                if sink.has_successor or goes_on:
                    sink.release()
                return latest.has_ended

            until(is_over, f"the end of an attempt of {self.run}", patience=PATIENCE)
            if latest.state == "success":
                break
        sink.release()
        if self.place.what == "freeze":
            self.attempts[0].kill(signal.SIGCONT)
            self.attempts[0].await_end("which was stopped")
        assert "success" == self.attempts[-1].state, (self.attempts[-1].folder / "log").read_text()[-5000:]
        until(
            lambda: not any(map(lives, sink.seen().drivers)), f"the end of the drivers of {self.run}", patience=PATIENCE
        )

    def _attempt(self, dag: str, *, here: AgentProcess | None = None, way: str = "run", stop_at: str = "") -> Attempt:
        one = self.scene.attempt(f"{self.mode}_{dag}", here or self.scene.leader(), way=way, stop_at=stop_at)
        self.attempts.append(one)
        return one


@pytest.fixture(name="scene", scope="module")
def _scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene.started(tmp_path_factory.mktemp("s")) as scene:
        yield scene


@pytest.mark.parametrize("place", PLACES, ids="-".join)
@pytest.mark.parametrize("mode", MODES)
def test_each_row_lands_once_and_no_driver_writes_after_a_later_one(scene: Scene, mode: str, place: Place) -> None:
    if mode == "client" and place.step == "saved":
        pytest.skip("Airflow stores no id of such a job")
    seen = Round(scene, place, mode).play()
    assert Counter(range(ROWS)) == seen.rows
    assert 0 == seen.overlaps


UNFENCED = [("client", Place("freeze", "row")), ("cluster", Place("worker", "submitted"))]


@pytest.mark.parametrize(("mode", "place"), UNFENCED, ids=MODES)
def test_without_a_fence_the_witness_sees_two_writers(scene: Scene, mode: str, place: Place) -> None:
    seen = Round(scene, place, mode, fenced=False).play()
    assert seen.overlaps
    assert max(seen.rows.values()) > 1
