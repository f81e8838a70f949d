"""The leash: it holds when a parent is killed, for our own code and for any command, and if the parent is gone already.

test --starts--> parent --starts--> child, at the other end of a pipe, which ends when nothing of the two is left
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from neli_router.core.exit_codes import EXIT_INTERRUPTED
from tests.support.processes.forked import Program

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux notifies a process of its parent's end"),
]

PREAMBLE = """
import os, signal, subprocess, sys, time
from neli_router.hosts.leash import end_with_parent, leashed
"""

OWN = """
parent = os.getpid()
if os.fork() == 0:
    end_with_parent(parent)
    print("ready", flush=True)
    while True:
        time.sleep(1)
"""

COMMAND = """
script = "trap 'echo told; exit' TERM; echo ready; while :; do sleep 0.05; done"
subprocess.Popen(leashed(["sh", "-c", script], by={by}))
"""

SIMULATE = """
import os, signal, threading, time
from pathlib import Path
from neli_router.commands.cli import main
from neli_router.hosts.descendants import children
from neli_router.hosts.leash import end_with_parent

def works(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) > 10

def watch():
    while sum(map(works, children(os.getpid()))) < 2:
        time.sleep(0.01)
    print("ready", flush=True)

end_with_parent()
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job ignores it.
threading.Thread(target=watch, daemon=True).start()
main(["simulate", "--jobs", "2", "--seeds", "10000"])
"""


def parent(story: str, folder: Path) -> Program:
    """A process that runs `story` and then waits."""
    return Program(f"{PREAMBLE}{story}\nwhile True:\n    time.sleep(1)", folder=folder)


@pytest.mark.parametrize(
    ("story", "said"),
    [(OWN, ""), (COMMAND.format(by="signal.SIGKILL"), ""), (COMMAND.format(by="signal.SIGTERM"), "told\n")],
    ids=["own", "command", "command that is told"],
)
def test_a_child_ends_with_a_parent_that_is_killed(story: str, said: str, tmp_path: Path) -> None:
    with parent(story, tmp_path) as process:
        assert "ready\n" == process.stdout.readline()
        process.kill()
        assert said == process.stdout.read()


@pytest.mark.parametrize(
    ("send", "number", "code"),
    [(os.kill, signal.SIGKILL, -signal.SIGKILL), (os.killpg, signal.SIGINT, EXIT_INTERRUPTED)],
    ids=["killed", "Ctrl-C"],
)
def test_the_workers_of_a_simulator_end_with_it(send: Callable[[int, int], None], number: int, code: int) -> None:
    command = [sys.executable, "-c", SIMULATE]
    with subprocess.Popen(command, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        send(process.pid, number)
        assert [] == [line for line in process.stdout if " of 10000 seeds" not in line]
        assert code == process.wait()


def test_a_child_whose_parent_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    story = """
command = leashed(["echo", "begun"])
if os.fork():
    os._exit(0)
os.setsid()  # The pipe of the test stays open.
while os.getppid() == int(command[3]):
    time.sleep(0.01)
print(subprocess.run(command).returncode, flush=True)
os._exit(0)
"""
    with parent(story, tmp_path) as process:
        assert f"{128 + signal.SIGKILL}\n" == process.stdout.read()
