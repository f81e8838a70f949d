"""Jobs on a cluster: each row lands once when executors are killed, and when tasks run twice or fail after a write."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import redis as redis_py
from deltalake import DeltaTable

from neli_router import fence
from neli_router.core.keyspace import Layout
from neli_router.fence.delta import FencedTable, Progress
from tests.spark.cluster_job import PARTITIONS, ROWS, SECOND_PART, TABLE_ROWS, TERMS
from tests.support.servers.spark import Spark
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
ALL = list(range(PARTITIONS))


class Job:
    """The running job. Spark writes into its log."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log

    def told(self) -> object:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.said()[-5000:]
        return json.loads(line)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        def has_come() -> bool:
            assert self._process.poll() in {None, 0}, self.said()[-5000:]
            return holds()

        until(has_come, what, patience=PATIENCE)

    def ended(self) -> bool:
        return self._process.poll() == 0


@contextmanager
def job(folder: Path, *arguments: str) -> Iterator[Job]:
    with (
        (folder / "log").open("w") as said,
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "spark" / "cluster_job.py"), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        try:
            yield Job(process, folder / "log")
        finally:
            process.kill()


def executor_of(daemon: int) -> int:
    """The executor that started a daemon of Python workers."""
    parent = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{parent}/cmdline").read_bytes()
    return parent


@pytest.mark.postgresql
@pytest.mark.redis
def test_each_row_lands_once_when_tasks_run_twice_or_are_killed(database: str, redis: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE mishaps (batch INTEGER, instrument TEXT)")
        fence.install(connection)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = FencedTable.create(tmp_path / "table", schema, Layout(partitions=PARTITIONS))

    with Spark.started(workers=2) as cluster, job(tmp_path, cluster.master, str(tmp_path), database, redis) as at_work:
        # Both runs of a task write to the end, and neither fails.
        for number in range(2):
            for batch in (1, 2):
                assert [number, batch, ALL] == at_work.told()
        assert 4 == len([path for path in tmp_path.iterdir() if re.fullmatch("[01]-[12]", path.name)])

        # One executor is killed inside a transaction, then each task fails after its commit.
        note = tmp_path / "0-3"
        at_work.wait(lambda: note.exists() and note.read_text().endswith("\n"), "a task that waits to be killed")
        os.kill(executor_of(int(note.read_text())), signal.SIGKILL)
        assert [[0, 3, ALL], [0, 4, ALL]] == [at_work.told() for _ in range(2)]
        assert (tmp_path / "0-4").exists()

        # A newer owner appears.
        with psycopg.connect(database) as connection:
            fence.admit(connection, "mishaps/5", 200)
        at_work.go_on()
        assert ["mishaps/5", 105, 200] == at_work.told()

        # An executor is killed while it writes into a fenced table.
        at_work.wait(lambda: any(table.path.glob("_neli/*/rows/_temporary/0/_temporary/*/*")), "a write")
        os.kill(cluster.executors()[0], signal.SIGKILL)
        assert [ALL, ALL] == [at_work.told() for _ in range(2)]
        at_work.wait(at_work.ended, "the end of the job")
        first_part, _ = at_work.said().split(SECOND_PART)

    asked = "SELECT batch, count(*), count(DISTINCT instrument) FROM mishaps GROUP BY batch ORDER BY batch"
    once = [(batch, ROWS, ROWS) for batch in range(1, 5)]
    kept = ROWS - ROWS // PARTITIONS
    with psycopg.connect(database) as connection:
        assert [*once, (5, kept, kept)] == connection.execute(asked).fetchall()
    with closing(redis_py.Redis.from_url(redis)) as client:
        assert [[b"1"] * ROWS] * 2 == [client.hvals(f"{tmp_path}/{batch}") for batch in (1, 2)]
    lost = [line for line in first_part.splitlines() if "Lost task" in line]
    assert [] == [line for line in lost if "TaskKilled" not in line]  # Spark kills a run that is no longer needed.

    found = DeltaTable(str(table.path)).to_pyarrow_table(columns=["id"])
    assert (2 * TABLE_ROWS, TABLE_ROWS) == (found.num_rows, len(pc.unique(found["id"])))
    assert {partition: Progress(term, 1) for partition, term in TERMS.items()} == table.progress()
    until(lambda: not cluster.executors(), "the end of the last writers")
    table.sweep()
    assert set(table.files()) == {str(path) for path in table.path.rglob("*.parquet") if "_delta_log" not in path.parts}
