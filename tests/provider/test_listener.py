"""A companion of a process: it runs while the process lives, comes back after a crash, and ends with the process.

Airflow's database is the ledger of the agent that it starts: the address is translated, and no message shows a secret.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider._machinery import listener
from airflow_provider._machinery.metadata import ledger_address
from neli_router.core.exit_codes import EXIT_USAGE
from neli_router.drivers.ledgers.postgresql.address import PostgresqlAddress, parse
from tests.provider.conftest import executable
from tests.support.processes.forked import Program, lives
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.airflow

COMMAND = """
import os, signal, sys, time
def end(number, frame):
    with open(sys.argv[1], "a") as file:
        print("handed over", file=file)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
with open(sys.argv[1], "a") as file:
    print(os.getpid(), file=file)
while True:
    time.sleep(0.1)
"""

DATABASE = {"DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://airflow:hunter2@db/airflow"}

U = ("u", "p@+s/")

OF_AIRFLOW = "keepalives=1&connect_timeout=9&application_name=air&options=-csearch_path%3Dx&target_session_attrs=any"

PARENT = """
import os, sys
from airflow_provider._machinery.listener import Companion
companion = Companion(sys.argv[1:])
companion.start()
if os.fork() == 0:
    companion.stop()  # A copy, which must not touch it.
    sys.stdout.write("forked\\n")
    sys.stdout.flush()
    os._exit(0)
if sys.stdin.readline():
    companion.stop()
    print("stopped", flush=True)
"""


def lines(file: Path) -> list[str]:
    """The pid of each run of the command, and its good-byes."""
    return file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []


@contextmanager
def parent(file: Path) -> Iterator[Program]:
    """A process with a companion, once the companion has started."""
    with Program(PARENT, sys.executable, "-c", COMMAND, str(file), folder=file.parent) as process:
        assert process.stdout.readline() == "forked\n"
        until(lambda: lines(file), "the start of the command")
        yield process


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_command_that_dies_is_started_again_and_ends_in_good_order(tmp_path: Path, is_killed: bool) -> None:
    """When its process is killed, and when it is stopped."""
    with parent(tmp_path / "told") as process:
        (first,) = map(int, lines(tmp_path / "told"))
        os.kill(first, signal.SIGKILL)
        until(lambda: len(lines(tmp_path / "told")) == 2, "a second life")
        second = int(lines(tmp_path / "told")[1])
        assert lives(second)
        if is_killed:
            process.kill()
            until(lambda: not lives(second), "the end of the command")
        else:
            assert process.communicate("stop\n")[0].endswith("stopped\n")
            assert not lives(second)
    assert [str(first), str(second), "handed over"] == lines(tmp_path / "told")


def test_nothing_starts_in_a_task_or_by_default_or_at_an_unknown_place(monkeypatch: pytest.MonkeyPatch) -> None:
    job = type("Job", (), {})()
    monkeypatch.setattr(sys, "argv", ["airflow", "scheduler"])
    listener.on_starting(component=job)
    monkeypatch.setenv("AIRFLOW__NELI__AGENT_IN", "scheduler")
    listener.on_starting(component=SimpleNamespace())  # A task of that scheduler has the scheduler's command line.
    monkeypatch.setattr(sys, "argv", ["airflow", "dag-processor"])
    listener.on_starting(component=job)
    assert listener._agent is None
    monkeypatch.setenv("AIRFLOW__NELI__AGENT_IN", "worker")
    with pytest.raises(SystemExit, match="agent_in was wanted to be scheduler or triggerer, or empty, but it is 'work"):
        listener.on_starting(component=job)


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ("postgres+psycopg2://db/air", PostgresqlAddress("airflow", "air", (("db", 5432),))),
        ("postgresql://db/air", PostgresqlAddress("airflow", "air", (("db", 5432),))),
        (
            "postgresql+psycopg2://u:p%40+s%2F@db:6432/air%20flow?sslmode=verify-ca&sslrootcert=/my+ca&" + OF_AIRFLOW,
            PostgresqlAddress(
                *("airflow", "air flow", (("db", 6432),), "neli", ""),
                *U,
                {"sslmode": "verify-ca", "sslrootcert": "/my ca"},
            ),
        ),
        (
            "postgresql+psycopg://u:p%40+s/@/air?host=one:5433&host=two:5434",
            PostgresqlAddress("airflow", "air", (("one", 5433), ("two", 5434)), "neli", "", *U),
        ),
        (
            "postgresql://u@/air?host=/var/run/postgresql&port=5433",
            PostgresqlAddress("airflow", "air", (("/var/run/postgresql", 5433),), user="u"),
        ),
        ("postgresql+psycopg2://[::1]:6432/air", PostgresqlAddress("airflow", "air", (("::1", 6432),))),
        ("postgresql:///?service=air", PostgresqlAddress("airflow", service="air")),
    ],
)
def test_airflows_database_is_a_ledger_in_every_spelling_of_sqlalchemy(
    connection: str, expected: PostgresqlAddress
) -> None:
    assert (expected, []) == parse(*ledger_address("metadata", connection).split(":", 1))


def test_what_follows_metadata_counts_more_and_any_other_ledger_is_taken_as_it_is() -> None:
    address = ledger_address(
        "metadata?group=jobs&schema=x&dbname=jobs&password=a+b", "postgresql://u:p@db/air?service=s"
    )
    expected = PostgresqlAddress("jobs", "jobs", (("db", 5432),), "x", "s", "u", "a+b")
    assert (expected, []) == parse(*address.split(":", 1))
    assert "sqlite:jobs.db" == ledger_address("sqlite:jobs.db", "postgresql://u:p@db/air")


def test_the_agent_gets_its_ledger_in_its_environment_and_is_not_tried_again_if_that_is_not_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_agent", None)
    monkeypatch.setattr(sys, "argv", ["airflow", "triggerer"])
    script = f'echo "$*" >>{tmp_path}/said; echo $NELI_LEDGER >>{tmp_path}/said; exit {EXIT_USAGE}'
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "python", script)))
    for option, value in {"NELI__AGENT_IN": "triggerer", "NELI__LEDGER": "metadata", **DATABASE}.items():
        monkeypatch.setenv(f"AIRFLOW__{option}", value)
    listener.on_starting(component=type("Job", (), {})())
    assert listener._agent is not None
    listener._agent._thread.join(PATIENCE)
    assert not listener._agent._thread.is_alive()
    command, ledger = lines(tmp_path / "said")
    assert ledger_address("metadata", *DATABASE.values()) == ledger
    assert "neli_router agent" in command
    assert "hunter2" not in command


@pytest.mark.parametrize(
    ("ledger", "connection", "said"),
    [
        ("metadata", "sqlite:////airflow.db", "needs a PostgreSQL in [database] sql_alchemy_conn, and that is sqlite:"),
        ("metadata", "mysql+mysqldb://u:secret@db/air", "and that is mysql: name the ledger by its own address"),
        ("metadata", "postgresql://u:secret@db:secret/air", "an address that SQLAlchemy cannot read"),
        ("metadata", "postgresql://u:secret@db/air?sslpassword=secret", "is unknown in postgresql: did you mean"),
        ("metadata", "postgresql://u:secret@/air", "servers were wanted"),
        ("metadata?group=", "postgresql://u:secret@db/air", "a group was wanted"),
        ("metadata:jobs", "postgresql://u:secret@db/air", "[neli] metadata is not a known kind of ledger"),
        ("postgresql://u:secret@db/air", "sqlite:////airflow.db", "a group was wanted"),
    ],
)
def test_a_ledger_that_cannot_be_used_ends_the_process_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, ledger: str, connection: str, said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["airflow", "scheduler"])
    for option, value in {"NELI__AGENT_IN": "scheduler", "NELI__LEDGER": ledger}.items():
        monkeypatch.setenv(f"AIRFLOW__{option}", value)
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", connection)
    with pytest.raises(SystemExit, match=re.escape(said)) as ended:
        listener.on_starting(component=type("Job", (), {})())
    assert "secret" not in f"{ended.value} {ended.value.__cause__}"
