"""The leash: it holds when a parent is killed, for our own code and for any command, and if the parent is gone already.

test --starts--> parent --starts--> child, at the other end of a pipe, which ends when nothing of the two is left
"""

import signal
import sys
from pathlib import Path

import pytest

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
