"""A companion of a process: it runs while the process lives, comes back after a crash, and ends with the process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider import listener
from neli_router.exit_codes import EXIT_USAGE
from tests.support.waiting import until

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parents[2]

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
from airflow_provider.listener import Companion
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


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    return False


def lines(file: Path) -> list[str]:
    """The pid of each life, and the good-byes."""
    return file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []


@contextmanager
def parent(*command: str, file: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process with a companion, once that has begun."""
    program = [sys.executable, "-c", PARENT, *(command or (sys.executable, "-c", COMMAND, str(file)))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        until(lambda: lines(file), "the start of the command")
        try:
            yield process
        finally:
            process.kill()


def test_a_command_that_dies_is_started_again_and_ends_in_good_order_when_the_process_is_killed(tmp_path: Path) -> None:
    with parent(file=tmp_path / "told") as process:
        (first,) = map(int, lines(tmp_path / "told"))
        os.kill(first, signal.SIGKILL)
        until(lambda: len(lines(tmp_path / "told")) == 2, "a second life")
        second = int(lines(tmp_path / "told")[1])
        assert is_alive(second)
        process.kill()
        until(lambda: not is_alive(second), "the end of the command")
    assert [str(first), str(second), "handed over"] == lines(tmp_path / "told")


def test_the_command_ends_in_good_order_when_it_is_stopped(tmp_path: Path) -> None:
    with parent(file=tmp_path / "told") as process:
        (command,) = map(int, lines(tmp_path / "told"))
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("stop\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stopped\n"
        assert not is_alive(command)
    assert [str(command), "handed over"] == lines(tmp_path / "told")


def test_a_command_that_is_not_usable_is_not_tried_again(tmp_path: Path) -> None:
    script = f"import sys; open({str(tmp_path / 'told')!r}, 'a').write('tried\\n'); sys.exit({EXIT_USAGE})"
    companion = listener.Companion([sys.executable, "-c", script])
    companion.start()
    until(lambda: not companion._thread.is_alive(), "the end of the trying")
    assert ["tried"] == lines(tmp_path / "told")


def test_nothing_starts_in_a_task_or_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["airflow", "scheduler"])
    listener.on_starting(component=type("Job", (), {})())
    monkeypatch.setenv("AIRFLOW__NELI__AGENT_IN", "scheduler")
    monkeypatch.setenv("AIRFLOW__NELI__SWITCH", "true")
    listener.on_starting(component=SimpleNamespace())  # A task of that scheduler has its command line.
    monkeypatch.setattr(sys, "argv", ["airflow", "dag-processor"])
    listener.on_starting(component=type("Job", (), {})())
    assert (None, None) == (listener._agent, listener._switch)


def test_a_place_that_there_is_not_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["airflow", "scheduler"])
    monkeypatch.setenv("AIRFLOW__NELI__AGENT_IN", "worker")
    with pytest.raises(
        SystemExit, match="agent_in was wanted to be scheduler or triggerer, or empty, but it is 'worker'"
    ):
        listener.on_starting(component=type("Job", (), {})())
