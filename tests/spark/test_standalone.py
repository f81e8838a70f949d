"""One job, unchanged, on this machine and on a cluster, where an executor is killed and tasks run twice."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis as redis_py

from neli_router import fence
from tests.spark.prices_job import PARTITIONS, ROWS
from tests.spark.twice_job import ROWS as TWICE
from tests.support.servers.postgresql import postgresql
from tests.support.servers.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.postgresql, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
ALL = list(range(PARTITIONS))


@pytest.fixture
def address() -> Iterator[str]:
    with postgresql() as address:
        with psycopg.connect(address) as connection:
            connection.execute("CREATE TABLE prices (batch INTEGER, instrument TEXT, price REAL)")
            fence.install(connection)
        yield address


@pytest.fixture(scope="module")
def cluster() -> Iterator[Spark]:
    with Spark.started(workers=2) as started:
        yield started


@contextmanager
def job(log: Path, *arguments: str, program: str = "prices_job.py") -> Iterator[subprocess.Popen[str]]:
    """The job under way; what Spark says goes into `log`."""
    with (
        log.open("w") as said,
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "spark" / program), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str], log: Path) -> object:
    assert process.stdout is not None
    told = process.stdout.readline()
    assert told, log.read_text()[-5000:]
    return json.loads(told)


def landed(address: str) -> dict[int, tuple[int, int]]:
    """Batch -> its rows in the table, and its instruments: each row landed once if both are ROWS."""
    with psycopg.connect(address) as connection:
        asked = "SELECT batch, count(*), count(DISTINCT instrument) FROM prices GROUP BY batch"
        return {batch: (rows, instruments) for batch, rows, instruments in connection.execute(asked).fetchall()}


def take_over(address: str, partition: int) -> None:
    with psycopg.connect(address) as connection:
        fence.admit(connection, f"prices/{partition}", 200)


def executor_of(daemon: str) -> int:
    """The executor that started a daemon of Python workers."""

    def asked(column: str, process: str) -> str:
        ps = shutil.which("ps")
        assert ps, "Spark's own scripts need it"
        return subprocess.check_output([ps, "-ww", "-o", f"{column}=", "-p", process], text=True).strip()

    parent = asked("ppid", daemon)
    command = asked("args", parent)
    assert "CoarseGrainedExecutorBackend" in command, command
    return int(parent)


def test_the_job_runs_on_this_machine_alone(address: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with job(log, "local[2]", address) as process:
        for batch in range(1, 4):
            assert {str(batch): ALL} == line(process, log)
        take_over(address, 5)
        process.communicate("go on\n", timeout=PATIENCE)
    kept = ROWS - ROWS // PARTITIONS
    assert {1: (ROWS, ROWS), 2: (ROWS, ROWS), 3: (ROWS, ROWS), 4: (kept, kept)} == landed(address)


def test_on_a_cluster_whose_executors_die_and_whose_tasks_run_twice_every_row_lands_once(
    cluster: Spark, address: str, tmp_path: Path
) -> None:
    log, mishaps = tmp_path / "log", tmp_path / "mishaps"
    mishaps.mkdir()
    with job(log, cluster.master, address, str(mishaps)) as process:
        os.kill(executor_of(written(mishaps / "process", process, log)), signal.SIGKILL)
        for batch in range(1, 4):
            assert {str(batch): ALL} == line(process, log)
        assert {"again", "failed", "process"} == {path.name for path in mishaps.iterdir()}
        assert {1: (ROWS, ROWS), 2: (ROWS, ROWS), 3: (ROWS, ROWS)} == landed(address)
        take_over(address, 5)
        told, _ = process.communicate("go on\n", timeout=PATIENCE)
        assert ["prices/5", 105, 200] == json.loads(told)
        kept = ROWS - ROWS // PARTITIONS
        assert (kept, kept) == landed(address)[4]


def written(path: Path, process: subprocess.Popen[str], log: Path) -> str:
    """The first line of a file, once it is there."""
    give_up_at = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text().endswith("\n")):
        assert process.poll() is None, log.read_text()[-5000:]
        assert time.monotonic() < give_up_at, log.read_text()[-5000:]
        time.sleep(0.02)
    return path.read_text().strip()


@pytest.mark.redis
def test_when_both_runs_of_a_task_write_to_the_end_each_row_lands_once_and_neither_fails(
    cluster: Spark, address: str, redis: str, tmp_path: Path
) -> None:
    log, file = tmp_path / "log", tmp_path / "prices.db"
    made = "CREATE TABLE twice (batch INTEGER, instrument TEXT)"
    with closing(sqlite3.connect(file)) as sqlite, psycopg.connect(address) as postgres:
        sqlite.execute("PRAGMA journal_mode = WAL")
        sqlite.execute(made)
        postgres.execute(made)
        fence.install(sqlite)
        sqlite.commit()
    with job(log, cluster.master, str(tmp_path), str(file), address, redis, program="twice_job.py") as process:
        told = [line(process, log) for _ in range(6)]
        assert process.wait(PATIENCE) == 0, log.read_text()[-5000:]
    assert [[number, batch, ALL] for number in range(3) for batch in (1, 2)] == told
    assert 6 == len([path for path in tmp_path.iterdir() if re.fullmatch("[0-2]-[12]", path.name)])
    once = [(batch, TWICE, TWICE) for batch in (1, 2)]
    asked = "SELECT batch, count(*), count(DISTINCT instrument) FROM twice GROUP BY batch ORDER BY batch"
    with closing(sqlite3.connect(file)) as sqlite, psycopg.connect(address) as postgres:
        assert once == sqlite.execute(asked).fetchall()
        assert once == postgres.execute(asked).fetchall()
    with closing(redis_py.Redis.from_url(redis)) as client:
        landed = [client.hvals(f"{tmp_path}/{batch}") for batch in (1, 2)]
    assert [[b"1"] * TWICE] * 2 == landed
    lost = [text for text in log.read_text().splitlines() if "Lost task" in text]
    assert [] == [text for text in lost if "TaskKilled" not in text]  # Spark kills a run that is not needed any more.
