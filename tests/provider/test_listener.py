"""A companion of a process: it runs while the process lives, comes back after a crash, and ends with the process."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider._machinery import listener
from neli_router.core.exit_codes import EXIT_USAGE
from tests.support.processes.forked import Program, lives
from tests.support.waiting import until

pytestmark = pytest.mark.airflow

COMMAND = """
import os, signal, sys
def end(number, frame):
    with open(sys.argv[1], "a") as file:
        print("handed over", file=file)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
with open(sys.argv[1], "a") as file:
    print(os.getpid(), file=file)
while True:
    signal.pause()
"""

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


def test_a_command_that_is_not_usable_is_not_tried_again(tmp_path: Path) -> None:
    script = f"import sys; open({str(tmp_path / 'told')!r}, 'a').write('tried\\n'); sys.exit({EXIT_USAGE})"
    companion = listener.Companion([sys.executable, "-c", script])
    companion.start()
    until(lambda: not companion._thread.is_alive(), "the end of the trying")
    assert ["tried"] == lines(tmp_path / "told")


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
