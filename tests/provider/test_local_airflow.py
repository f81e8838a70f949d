"""`make airflow`: the steps that it prints for the user work, and none of its processes is left at its end.

Its processes are those that descend from it. Some of them overwrite their command line and environment, so neither
identifies them.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from airflow_provider.sensors.neli import leader_from
from neli_router.agent import Client
from neli_router.core.closing import Closing
from neli_router.core.keyspace import Layout
from tests.provider.submissions import processes
from tests.support.processes.forked import lives
from tests.support.servers.airflow import AirflowApi, awaited
from tests.support.servers.process import free_port
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.airflow

START_MAX = 900.0
"""Seconds until it reports that it is ready. Alone on the machine it takes 25."""

EIGHT = Layout(partitions=8)
ALL = {str(partition) for partition in range(8)}


class Program(Closing):
    """The program of `make airflow`, and its output so far."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.port, self.said = port or free_port(), ""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "neli_router.lab.local_airflow", "--port", str(self.port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def await_line(self, wanted: str) -> str:
        """The group in the first line that matches; it is an error if no line matches."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            if found := re.search(wanted, line):
                return found[found.re.groups]
        raise AssertionError(f"{wanted} was not said, but: {self.said}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def processes(self) -> dict[int, str]:
        """All current descendants, with their command lines."""
        ours = {one.pid for one in psutil.Process(self._process.pid).children(recursive=True)}
        return {pid: command for pid, _, _, command in processes() if pid in ours}

    def code(self) -> int:
        """The exit code, once it has ended."""
        said, _ = self._process.communicate(timeout=START_MAX)
        self.said += said
        return self._process.returncode

    def close(self) -> None:
        if self._process.poll() is None:
            self.send(signal.SIGTERM)
            self.code()


def heard_by(pids: Iterable[int]) -> set[tuple[str, int]]:
    """(address, port) of each socket on which these processes listen, for other machines or for this one."""
    found = set()
    for pid in pids:
        with suppress(psutil.Error):  # It has ended.
            sockets = psutil.Process(pid).net_connections()
            found |= {tuple(one.laddr) for one in sockets if one.status == psutil.CONN_LISTEN}
    return found


def segments() -> dict[int, int]:
    """The shared memory that the kernel keeps until someone deletes it: its number -> the process that made it."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return {int(row[1]): int(row[4]) for row in rows}


def test_what_it_says_to_do_works_and_nothing_is_left_when_it_is_killed() -> None:
    with Program() as program, ExitStack() as life:
        home = Path(program.await_line(r"the home is (.+?):"))
        url = program.await_line(r"ready at (\S+)")
        password, log = program.await_line(r"password (\S+)"), home / "scheduler.log"
        api = life.enter_context(closing(AirflowApi(url, "admin", password, scheduler_log=log)))
        bravo = int(program.await_line(r"kill -9 (\d+)"))
        program.await_line("Ctrl-C ends all of it")
        here = life.enter_context(Client(f"unix:{home / 'alpha.sock'}", timeout=PATIENCE))
        # On a busy machine it is ready before all Dags are read.
        api.await_dag("leader_only", "ticks_arrive", "prices_by_partition", "prices_are_published")
        api.await_dag("on_leadership_change")
        # 1
        assert "bravo" == here.owner_of_role("nightly").name
        skipped = api.trigger("leader_only")
        # 2
        mine = {partition for partition in ALL if here.owner_of_role(int(partition)).name == "alpha"}
        assert 4 == len(mine)
        api.trigger("ticks_arrive")
        assert "success" == api.await_run("leader_only", skipped)
        assert {"gate": "skipped", "report": "skipped"} == api.states("leader_only", skipped)
        awaited(lambda: len(api.runs("prices_by_partition")) == 8, "a run for each partition")
        awaited(lambda: done(api) == mine, "the end of the runs of alpha's partitions")
        assert [] == api.runs("prices_are_published")
        # 3
        os.kill(bravo, signal.SIGKILL)
        program.await_line("alpha leads all 8 partitions")
        run = api.trigger("leader_only")
        assert "success" == api.await_run("leader_only", run)
        assert {"gate": "success", "report": "success"} == api.states("leader_only", run)
        assert "alpha" == leader_from(api.xcom("leader_only", run, "gate"))["leader"]
        assert here.owner_of_role("nightly").term == api.xcom("leader_only", run, "report")
        (changed,) = awaited(lambda: api.runs("on_leadership_change"), "the run of the takeover")
        assert "success" == api.await_run("on_leadership_change", changed["dag_run_id"])
        awaited(lambda: api.runs("prices_are_published"), "the roll-up")
        require_each_event_once(api)
        assert {} == api.import_errors()
        # The end
        there = program.processes()
        assert {("127.0.0.1", program.port)} == heard_by(there)
        life.close()
        program.send(signal.SIGKILL)
        program.code()
        until(lambda: not any(map(lives, there)), "the end of all processes")
        assert len(there) > 6
        shutil.rmtree(home)


def done(api: AirflowApi) -> set[str]:
    """The partitions whose run has succeeded."""
    return {run["partition_key"] for run in api.runs("prices_by_partition") if run["state"] == "success"}


def require_each_event_once(api: AirflowApi) -> None:
    """Each of the hundred events started the run of its partition, and no other; one roll-up has all partitions."""
    runs = api.runs("prices_by_partition")
    assert sorted(ALL) == sorted(run["partition_key"] for run in runs)
    told: list[str] = []
    for run in runs:
        assert "success" == api.await_run("prices_by_partition", run["dag_run_id"])
        published = api.xcom("prices_by_partition", run["dag_run_id"], "publish")
        assert run["partition_key"] == str(published["partition"])
        assert {published["partition"]} == {EIGHT.partition(key) for key in published["events"]}
        told += published["events"]
    assert [f"PAIR{number:02}" for number in range(100)] == sorted(told)
    (rolled,) = api.runs("prices_are_published")
    assert "success" == api.await_run("prices_are_published", rolled["dag_run_id"])
    assert sorted(ALL) == api.xcom("prices_are_published", rolled["dag_run_id"], "tell")


@pytest.mark.parametrize(
    ("ledger", "is_killed", "code", "said"),
    [
        ("sqlite", False, 0, "all of it has ended\n"),
        ("sqlite", True, 1, "the process db-migrate was wanted to do its work, but it ended with code -9"),
        pytest.param("postgresql", False, 0, "all of it has ended\n", marks=pytest.mark.postgresql),
    ],
)
def test_all_of_it_ends_when_asked_or_when_a_part_ends(
    tmp_path: Path, ledger: str, is_killed: bool, code: int, said: str
) -> None:
    before = segments()  # Their makers may have ended, and their numbers may be given to new processes.
    with Program("--ledger", ledger, *(["--keep", str(tmp_path)] if is_killed else [])) as program:
        home = Path(program.await_line(r"the home is (.+?):"))
        program.await_line("making Airflow's database")
        migrating = "the migration"
        (migration,) = until(lambda: [pid for pid, it in program.processes().items() if "migrate" in it], migrating)
        there = program.processes()
        if is_killed:
            os.kill(migration, signal.SIGKILL)
        else:
            program.send(signal.SIGTERM)
        assert code == program.code()
    assert said in program.said
    assert is_killed is ("--- the end of the log of db-migrate" in program.said)
    assert ([], is_killed) == ([pid for pid in there if lives(pid)], (home / "db-migrate.log").exists())
    assert [] == [it for it, maker in segments().items() if it not in before and maker in there]
    if found := re.search("a PostgreSQL in (.+)", program.said):
        assert not Path(found[1]).exists()
    assert (found is not None) is (ledger == "postgresql")


def test_what_cannot_be_used_is_told_before_anything_starts(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    old.touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with Program("--dags", str(old), port=port) as program:
            assert 2 == program.code()
    assert f"the port {port} of 127.0.0.1 was wanted, but it cannot be had" in program.said
    assert "perhaps another `make airflow`" in program.said
    assert f"a folder of Dags was wanted, but {old} is none" in program.said
    with Program("--keep", str(tmp_path)) as keeping:
        assert 2 == keeping.code()
    assert "must be empty, and there is 'old.db' in it" in keeping.said
    assert "the home is" not in program.said + keeping.said
