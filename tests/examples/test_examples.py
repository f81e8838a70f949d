"""The programs of `examples/` with their real frameworks, whose leader is killed, frozen and stopped.

Each process runs the example itself; only its job, and how often it runs, are replaced. NELI_TEST_KILLS=20 kills more.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import neli_router
from examples.client import ask
from neli_router import Router
from neli_router.errors import NoOwner
from neli_router.lab.processes.group import send_at_rest
from tests.examples.record import KILLS, Record
from tests.support.servers.process import free_port
from tests.support.waiting import PATIENCE, beside, until

pytestmark = pytest.mark.process

ROOT = Path(neli_router.__file__).parents[1]
JOB = "import os, sys, time, asyncio\nfrom tests.examples.record import recorded\n"


def owners(router: Router) -> set[str]:
    with suppress(NoOwner):  # They may still be starting.
        return {owner.name for owner in router.table.partitions if owner is not None}
    return set()


def term_of(router: Router, role: str) -> int:
    with suppress(NoOwner):
        return router.owner(role).term
    return 0


class Fleet:
    """Three processes of one group in `folder`, whose program is `code`, and those that replace them."""

    def __init__(self, folder: Path, code: str, *arguments: str, **environment: str) -> None:
        (folder / "program.py").write_text(JOB + code, encoding="utf-8")
        self.record = Record(folder / "record")
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.folder, self._arguments = folder, arguments
        self.environment = {
            **os.environ,
            "NELI_LEASE": "0.4",
            "NELI_LEDGER": f"sqlite://{folder}/ledger.db",
            "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, ROOT / "examples"))),
            "RECORD": str(self.record.path),
            **environment,
        }

    def begin(self, *arguments: str, **environment: str) -> None:
        command = [sys.executable, *(arguments or self._arguments)]
        with (self.folder / "log").open("ab") as log:
            environ = {**self.environment, **environment}
            process = subprocess.Popen(command, cwd=self.folder, env=environ, stdout=log, stderr=log)
        self.processes[process.pid] = process

    def strike(self, role: str, begin: Callable[[], object]) -> None:
        """The process that runs the job is killed, again and again, then frozen, then stopped: each time, another goes
        on. A frozen one does no harm when it wakes up after it has lost its lease."""
        until((self.folder / "ledger.db").exists, "a ledger")
        with Router(self.environment["NELI_LEDGER"], timeout=PATIENCE) as router:
            until(lambda: len(owners(router)) == 3, "three members")
            known = owners(router)
            for _ in range(KILLS):
                with self.record.runs_elsewhere(lambda pid: os.kill(pid, signal.SIGKILL)):
                    begin()
                known.update(until(lambda: owners(router) - known, "a new member"))
            with self.record.runs_elsewhere(self._freeze) as (term, frozen):
                until(lambda: term_of(router, role) > term, "another owner")
                os.kill(frozen, signal.SIGCONT)  # It may hold a lock on the example's own database.
            with self.record.runs_elsewhere(lambda pid: os.kill(pid, signal.SIGTERM)):
                pass

    def _freeze(self, pid: int) -> None:
        send_at_rest(signal.SIGSTOP, pid, self.folder / "ledger.db")

    def end(self) -> None:
        """SIGTERM for all that live, and each ends in good order."""
        for process in self.processes.values():
            process.terminate()
        codes = {process.wait(PATIENCE) for process in self.processes.values()} - {-signal.SIGKILL}
        assert codes <= {0, -signal.SIGTERM}, (self.folder / "log").read_text(encoding="utf-8")  # uvicorn: the latter.
        self.record.check()


@contextmanager
def fleet(folder: Path, code: str, *arguments: str, **environment: str) -> Iterator[Fleet]:
    begun = Fleet(folder, code, *arguments, **environment)
    try:
        yield begun
    except BaseException as error:
        for name in ("record", "log"):
            error.add_note((folder / name).read_text(encoding="utf-8"))
        raise
    finally:
        for process in begun.processes.values():
            process.kill()
            process.wait()


ORDERS = """
import orders

async def remind(lease):
    with recorded(lease.term):
        await asyncio.sleep(0.05)
        lease.check()

orders.remind, orders.REMIND_EVERY, orders.LINGER = remind, 0.05, 0.1
app = orders.app
"""


def test_fastapi(tmp_path: Path) -> None:
    """A client that follows 421 meanwhile gets an answer each time, under terms that only grow."""
    addresses, answers, over = list[str](), list[int](), False

    with fleet(tmp_path, ORDERS, POD_IP="127.0.0.1") as servers:

        def begin() -> None:
            port = str(free_port())
            addresses.append(f"127.0.0.1:{port}")
            servers.begin("-m", "uvicorn", "program:app", "--port", port, POD_NAME=f"server-{port}", PORT=port)

        def ask_on() -> None:
            while not over:
                answers.append(ask("customer-7", addresses, patience=PATIENCE).json()["term"])

        for _ in range(3):
            begin()
        with beside(ask_on):
            try:
                servers.strike("reminders", begin)
                heard = len(answers)
                until(lambda: len(answers) > heard + 1, "an answer")
            finally:
                over = True
        servers.end()
    assert answers == sorted(answers)


def test_gunicorn(tmp_path: Path) -> None:
    """Workers that share a port, and are killed: gunicorn begins others, and each is asked at its own port."""
    shared = [f"127.0.0.1:{free_port()}"]
    arguments = ("--config", str(ROOT / "examples" / "gunicorn_conf.py"), "--workers", "3", "--bind", *shared)
    with fleet(tmp_path, ORDERS, POD_IP="127.0.0.1", POD_NAME="a") as servers:
        servers.begin("-m", "gunicorn", *arguments, "program:app")
        servers.strike("reminders", lambda: None)
        assert len({ask(f"customer-{number}", shared, patience=PATIENCE).json()["server"] for number in range(20)}) > 1
        servers.end()


def test_celery_beat(tmp_path: Path) -> None:
    """Its runs are in the order in which their times are written: a message may still be on its way when the next beat
    sends one. The messages are those of Celery's own broker in a folder."""
    code = """
import celery_beat
app = celery_beat.app
queue = {"data_folder_in": "queue", "data_folder_out": "queue"}
app.conf.update(broker_url="filesystem://", broker_transport_options=queue)
app.conf.beat_schedule["report"]["schedule"] = 0.2

class LeaderScheduler(celery_beat.LeaderScheduler):
    def __init__(self, *arguments, lazy=False, **options):
        super().__init__(*arguments, lazy=lazy, **options)
        if not lazy:
            self.runs.set_trace_callback(self.trace)

    def trace(self, statement):
        if statement.startswith("UPDATE runs"):
            with recorded(self.lease.term):
                pass
"""
    beat = ("-m", "celery", "--app", "program", "beat", "--scheduler", "program:LeaderScheduler", "--loglevel", "INFO")
    (tmp_path / "queue").mkdir()
    with fleet(tmp_path, code, *beat) as beats:
        for _ in range(3):
            beats.begin()
        beats.strike("celery-beat", beats.begin)
        beats.end()
        messages = [path.read_text(encoding="utf-8") for path in (tmp_path / "queue").glob("*.msg")]
        headers = [json.loads(text)["headers"] for text in messages if text]  # A killed beat may leave an empty one.
        sent = {(str(it["neli_term"]), it["origin"].removeprefix("gen").partition("@")[0]) for it in headers}
        assert sent
        assert sent <= {(term, pid) for _, term, pid in beats.record.lines()}


SCHEDULER = """
import apscheduler_jobs as example
from neli_router import run

def report():
    example.lease.check()
    with recorded(example.lease.term):
        time.sleep(0.05)
        example.lease.check()

report.__module__ = "apscheduler_jobs"
example.report, example.EVERY = report, 0.1
run(example.main)
"""

COMMAND = """
import django_lead as example
from django.conf import settings
from django.core.management import call_command

def report(lease):
    with recorded(lease.term):
        time.sleep(0.05)
        lease.check()

settings.configure(NELI_LEDGER=os.environ["NELI_LEDGER"], NELI_LEASE=0.4)
example.report, example.EVERY = report, 0.05
call_command(example.Command())
"""


@pytest.mark.parametrize(
    ("code", "role"), [(SCHEDULER, "scheduler"), (COMMAND, "reports")], ids=["apscheduler", "django"]
)
def test_a_program_of_its_own(tmp_path: Path, code: str, role: str) -> None:
    with fleet(tmp_path, code, "program.py", JOBS=f"sqlite:///{tmp_path}/schedule.db?timeout=60") as programs:
        for _ in range(3):
            programs.begin()
        programs.strike(role, programs.begin)
        programs.end()
