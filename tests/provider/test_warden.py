"""The warden of a Spark job also holds the task's role: no other host begins while any of the job is still there.

task, with a real agent --killed--> its connection to the agent is closed; the warden and its guardian have copies
     '--> warden --> guardian --> a job that ignores signals
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.test_run import STUBBORN
from tests.provider.conftest import executable, open_streams
from tests.provider.submissions import Submission
from tests.support.agents.running import Running
from tests.support.processes.forked import Program, state_of
from tests.support.waiting import until

pytestmark = [pytest.mark.airflow, pytest.mark.process]

TASK = """
import os
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow_provider.hooks.neli import NeliHook
from airflow_provider._machinery.leases import holding
from airflow_provider.operators.spark import LeaderSparkSubmitHook

made = SparkSubmitHook(conn_id="spark_default")
with NeliHook("neli_default") as neli, (held := holding(neli, 3)) as right:
    LeaderSparkSubmitHook(made, held, right, {}).submit(os.path.abspath("job.py"))
"""


@pytest.fixture(name="task")
def _task(
    tmp_path: Path, agent: Running, neli_default: str, spark_default: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    """A task whose job is at work. Nothing else holds a stream of the agent, although other tests have used it."""
    until(lambda: open_streams(agent) == 0, "the end of all other streams")
    executable(tmp_path / "spark-submit", STUBBORN)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    pids = tmp_path / "pids"  # The job and its child write their numbers down.
    with Program(TASK, folder=tmp_path) as process:
        until(lambda: process.poll() or (pids.exists() and len(pids.read_text().split()) == 2), "a job at work")
        assert process.poll() is None
        yield process


def await_state(pid: int, state: str) -> None:
    """Wait for the state of a process that was sent a signal."""
    until(lambda: state_of(pid) == state, f"state {state} of process {pid}")


@pytest.mark.parametrize("guardian_dies", [False, True])
def test_the_role_of_a_task_that_is_killed_is_held_until_its_job_is_gone(
    agent: Running, task: Program, tmp_path: Path, *, guardian_dies: bool
) -> None:
    job = Submission(tmp_path)
    warden, guardian = job.wardens
    held = [open_streams(agent)]
    for pid in (warden, guardian):
        os.kill(pid, signal.SIGSTOP)
        await_state(pid, "T")
    task.kill()
    task.wait()
    held.append(open_streams(agent))
    if guardian_dies:
        os.kill(guardian, signal.SIGKILL)
        await_state(guardian, "Z")
        held.append(open_streams(agent))
    for pid in (guardian, warden):
        os.kill(pid, signal.SIGCONT)
    until(lambda: open_streams(agent) == 0, "the end of the hold")
    assert ({1}, []) == (set(held), job.left)


def test_nothing_is_left_of_a_job_when_its_task_s_process_group_is_killed(task: Program, tmp_path: Path) -> None:
    """Airflow does that when a person ends the task. Only the warden is in the group of the task."""
    job = Submission(tmp_path)
    warden, guardian = job.wardens
    # The rest of the job's session is in no group of another session.
    assert os.getpgid(task.pid) not in {os.getpgid(pid) for pid in (guardian, job.session)}
    for pid in (task.pid, warden):
        os.kill(pid, signal.SIGKILL)
    job.await_end()


def test_a_task_that_ends_leaves_nothing_of_its_job_though_the_guardian_is_stopped(
    task: Program, tmp_path: Path
) -> None:
    job = Submission(tmp_path)
    _, guardian = job.wardens
    os.kill(guardian, signal.SIGSTOP)
    await_state(guardian, "T")
    task.send_signal(signal.SIGINT)
    task.wait()
    assert [] == job.left
