"""The guardian: what it does when `neli run` says nothing more, or speaks too late."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.stand_in import eventually
from tests.commands.test_run import STUBBORN, lives

PREAMBLE = """
import os, select, signal, sys, time
from neli_router.clock import host_clock
from neli_router.commands.guardian import guardian

def until_gone(guard):
    said = []
    while not any("gone" in one for one in said):
        said += guard.heard()
    return said

guard = guardian()
"""


def play(folder: Path, story: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `story` in a process of its own, which a guardian is forked from."""
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + story, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text().split()]


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "guard.close()"])
def test_a_run_that_is_gone_without_having_listened_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    """What the guardian said is unread then, and its connection is reset instead of closed."""
    play(
        tmp_path,
        f"""
guard.start(["bash", "-c", sys.argv[1]], dict(os.environ), until=host_clock() + 60)
while not os.path.exists("pids") or open("pids").read().count("\\n") < 2:
    time.sleep(0.01)
{end}
""",
        STUBBORN,
    )
    assert 2 == len(pids(tmp_path))
    eventually(lambda: not any(map(lives, pids(tmp_path))))


def test_a_guardian_that_is_killed_before_it_said_that_the_command_runs_leaves_nothing_behind(tmp_path: Path) -> None:
    """A busy machine lets the command run for a while before its guardian runs again."""
    found = play(
        tmp_path,
        """
import subprocess

class Fatal(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        while not os.path.exists("pids") or open("pids").read().count("\\n") < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

subprocess.Popen = Fatal
guard = guardian()
guard.start(["bash", "-c", sys.argv[1]], dict(os.environ), until=host_clock() + 60)
try:
    until_gone(guard)
except EOFError:
    guard.avenge()
    print("avenged")
""",
        "exec > /dev/null 2>&1" + STUBBORN,
    )
    left = [pid for pid in pids(tmp_path) if lives(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert ("avenged\n", []) == (found.stdout, left)


def test_a_command_whose_lease_is_over_is_not_started(tmp_path: Path) -> None:
    found = play(
        tmp_path,
        """
guard.start(["touch", "started"], dict(os.environ), until=host_clock() - 0.001)
print(until_gone(guard)[0])
guard.start(["touch", "later"], dict(os.environ), until=host_clock() + 60)
print(until_gone(guard)[-2])
guard.close()
""",
    )
    assert ("{'ended': -9, 'killed': True}\n{'ended': 0, 'killed': False}\n", "") == (found.stdout, found.stderr)
    assert [False, True] == [(tmp_path / name).exists() for name in ("started", "later")]


def test_a_stopped_command_hears_that_it_is_to_finish(tmp_path: Path) -> None:
    found = play(
        tmp_path,
        """
script = "trap 'echo finished; exit 0' TERM; kill -STOP $$; while :; do sleep 0.05; done"
guard.start(["bash", "-c", script], dict(os.environ), until=host_clock() + 60)
pid = guard.heard()[0]["started"]
while ") T " not in open(f"/proc/{pid}/stat").read():
    time.sleep(0.01)
guard.finish(signal.SIGTERM, 50.0)
print(until_gone(guard)[0])
""",
    )
    assert "finished\n{'ended': 0, 'killed': False}\n" == found.stdout


def test_a_lease_that_is_extended_lets_the_command_go_on_and_then_ends_it(tmp_path: Path) -> None:
    found = play(
        tmp_path,
        """
start = host_clock()
guard.start(["sleep", "100"], dict(os.environ), until=start + 5)
guard.extend(start + 5.3)
print(until_gone(guard)[-2], host_clock() >= start + 5.3)
""",
    )
    assert "{'ended': -9, 'killed': True} True\n" == found.stdout


def test_arguments_and_variables_arrive_as_they_were_given(tmp_path: Path) -> None:
    found = play(
        tmp_path,
        r"""
odd = os.fsdecode(b"\xc3\xbf\n'\"")
guard.start(["printf", "%s|", odd, ""], {"PATH": os.environ["PATH"], "ODD": odd}, until=host_clock() + 60)
until_gone(guard)
guard.start(["printenv", "ODD"], {"PATH": os.environ["PATH"], "ODD": "a\nb"}, until=host_clock() + 60)
until_gone(guard)
guard.close()
sys.stdout.flush()
""",
    )
    assert "\u00ff\n'\"||a\nb\n" == found.stdout
