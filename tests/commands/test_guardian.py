"""The guardian: what it does when `neli run` says nothing more, or speaks too late."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neli_router.commands.guardian import margin_of
from tests.commands.test_run import STUBBORN, lives
from tests.support.agents.stand_in import PATIENCE
from tests.support.waiting import until

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

FLEEING = """
import fcntl, os
lock = open("lock", "a")
fcntl.flock(lock, fcntl.LOCK_EX)
open("pids", "w").write("begun")
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""A process that is a new one every moment, in a session of its own: each has the lock, one after the other."""

BRANCHING = """
import fcntl, os, time
lock = open("lock", "a")
fcntl.flock(lock, fcntl.LOCK_EX)
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
open("pids", "a").write("begun ")
while True:
    if os.fork() == 0:
        time.sleep(0.05)
        os._exit(0)
    os.wait()
"""
"""64 sessions, and each goes on to start processes."""


def play(folder: Path, story: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `story` in a process of its own, which a guardian is forked from."""
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + story, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
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
    until(lambda: not any(map(lives, pids(tmp_path))))


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
guard.close()  # It knows the other Popen, and one that has children already takes no orphans.
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
print(until_gone(guard)[-2], host_clock() >= start + 5.3 - guard.margin)
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


@pytest.mark.parametrize("has_cgroup", [True, False])
@pytest.mark.parametrize(("program", "begun"), [(FLEEING, 1), (BRANCHING, 64)], ids=["fleeing", "branching"])
def test_what_flees_into_new_processes_and_sessions_is_ended(
    tmp_path: Path, program: str, begun: int, *, has_cgroup: bool
) -> None:
    found = play(
        tmp_path,
        """
import fcntl
from neli_router.commands.descendants import Cgroup

if sys.argv[3] == "no":
    guard.close()
    Cgroup.make = lambda name: None
    guard = guardian()
guard.start([sys.executable, "-c", sys.argv[1]], dict(os.environ), until=host_clock() + 60)
while not os.path.exists("pids") or open("pids").read().count("begun") < int(sys.argv[2]):
    time.sleep(0.01)
guard.kill()
guard.overdue_at = host_clock() + 60
said = until_gone(guard)
with open("lock", "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("nothing holds the lock")
""",
        program,
        str(begun),
        "yes" if has_cgroup else "no",
    )
    assert ("nothing holds the lock\n", "") == (found.stdout, found.stderr)


def test_all_is_frozen_before_any_is_killed_and_stays_so_until_it_is_dead(tmp_path: Path) -> None:
    """What is not frozen goes on while the others die. And a parent's death wakes its stopped children in other groups
    (SIGHUP and SIGCONT), so it must not come first."""
    found = play(
        tmp_path,
        """
from neli_router.commands.descendants import Cgroup

def state_of(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"

def settle():
    # All stand still, or are dead. One that was woken up says so.
    give_up_at = time.monotonic() + 30
    while not os.path.exists("acted") and not all(state_of(pid) in "TZX" for pid in begun()):
        if time.monotonic() > give_up_at:
            open("acted", "w")
        time.sleep(0.001)

def closely_watched(send):
    def kill(target, number):
        if number == signal.SIGKILL:
            settle()
        send(target, number)
        if number == signal.SIGKILL:
            settle()
    return kill

def begun():
    return open("pids").read().split() if os.path.exists("pids") else []

guard.close()
Cgroup.make = lambda name: None
os.kill, os.killpg = closely_watched(os.kill), closely_watched(os.killpg)
guard = guardian()
guard.start([sys.executable, "-c", sys.argv[1]], dict(os.environ), until=host_clock() + 60)
while len(begun()) < 2:
    time.sleep(0.01)
guard.kill()
guard.overdue_at = host_clock() + 60
until_gone(guard)
print(os.path.exists("acted"))
""",
        """
import os, signal, time
def wake(*_):
    open("acted", "w")
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCONT, wake)
open("pids", "a").write(f"{os.getpid()}\\n")
while True:
    time.sleep(1)
""",
    )
    assert ("False\n", "") == (found.stdout, found.stderr)


def test_the_command_runs_as_neli_run_does_while_the_guardian_hurries(tmp_path: Path) -> None:
    os_calls = "import os; print(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, os.getpriority(0, 0))"
    found = play(
        tmp_path,
        """
os.nice(2)
print(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, os.getpriority(0, 0), flush=True)
guard.close()
guard = guardian()
guard.start([sys.executable, "-c", sys.argv[1]], dict(os.environ), until=host_clock() + 60)
until_gone(guard)
""",
        os_calls,
    )
    ours, its = found.stdout.splitlines()
    assert ours == its


@pytest.mark.parametrize(
    ("lease", "expected"), [(0.02, 0.005), (0.1, 0.025), (0.2, 0.03), (0.5, 0.075), (3.0, 0.45), (60.0, 1.0)]
)
def test_the_margin_is_a_part_of_the_lease(lease: float, expected: float) -> None:
    assert pytest.approx(expected) == margin_of(lease)


AS_ANOTHER_USER = """
import shutil
guard.close()
os.setgid(65534)
os.setgroups([])
os.setuid(65534)
guard = guardian()
script = 'exec "$0" --reuid=0 --regid=0 --clear-groups -- sh -c "exec sleep 100 > /dev/null 2>&1"'
command = ["sh", "-c", script, sys.argv[1]]
guard.start(command, dict(os.environ), until=host_clock() + 60, allow_new_privileges=sys.argv[2] == "allow")
"""


def test_a_command_cannot_become_root_unless_it_is_allowed_to(tmp_path: Path, as_root: Path) -> None:
    story = AS_ANOTHER_USER + "print([one['ended'] for one in until_gone(guard) if 'ended' in one][0] != 0)"
    found = play(tmp_path, story, str(as_root), "refuse")
    assert ("True\n", True) == (found.stdout, "Operation not permitted" in found.stderr)


def test_a_process_of_another_user_is_named_as_one_that_cannot_be_ended(tmp_path: Path, as_root: Path) -> None:
    story = """
while "sleep" not in open(f"/proc/{pid}/comm").read():
    time.sleep(0.01)
guard.kill()
guard.overdue_at = host_clock() + 60
left = []
while not left:
    left = [one["left"] for one in guard.heard() if "left" in one]
print(pid, left)
guard.close()
print(open(f"/proc/{pid}/comm").read())
"""
    started = 'pid = [one["started"] for one in guard.heard() if "started" in one][0]'
    found = play(tmp_path, AS_ANOTHER_USER + started + story, str(as_root), "allow")
    said, comm = found.stdout.split("\n", 1)
    pid = int(said.split()[0])
    os.kill(pid, signal.SIGKILL)
    assert f"{pid} [[LeftProcess(pid={pid}, name='sleep', user='root')]]" == said
    assert "sleep" == comm.strip(), "it goes on, and its guardian is gone"
    assert "" == found.stderr, "neli run was told, and says it"


def test_a_guardian_without_neli_run_says_itself_what_goes_on(tmp_path: Path, as_root: Path) -> None:
    story = """
while "sleep" not in open(f"/proc/{pid}/comm").read():
    time.sleep(0.01)
guard.close()
print(pid)
"""
    started = 'pid = [one["started"] for one in guard.heard() if "started" in one][0]'
    found = play(tmp_path, AS_ANOTHER_USER + started + story, str(as_root), "allow")
    os.kill(int(found.stdout), signal.SIGKILL)
    assert f"PROCESS {int(found.stdout)} (sleep, of the user root) CANNOT BE ENDED" in found.stderr


def test_a_guardian_that_is_told_that_the_lease_is_over_has_the_time_to_end_its_command(tmp_path: Path) -> None:
    """Its owner, which would take its place, may be killed in that moment. Then nobody ends the command."""
    found = play(
        tmp_path,
        """
guard.start(["bash", "-c", sys.argv[1]], dict(os.environ), until=host_clock() + 60)
while not os.path.exists("pids") or open("pids").read().count("\\n") < 2:
    time.sleep(0.01)
guard.extend(host_clock() - 1)
print(guard.patience() > 0, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""",
        "(exec setsid bash -c 'echo $$ >> pids; exec sleep 100') & echo $$ >> pids; wait",
    )
    assert "True\n" == found.stdout
    for pid in pids(tmp_path):
        until(lambda pid=pid: not lives(pid))  # type: ignore[misc]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_guardian_that_is_killed_or_stopped_is_replaced_by_neli_run(tmp_path: Path, number: signal.Signals) -> None:
    """Also for what left the group, and for its leader's orphans."""
    found = play(
        tmp_path,
        """
guard.start(["bash", "-c", sys.argv[1]], dict(os.environ), until=host_clock() + 5)
while not os.path.exists("pids") or open("pids").read().count("\\n") < 2:
    time.sleep(0.01)
os.kill(guard.number, int(sys.argv[2]))
try:
    while guard.patience():
        if select.select([guard], [], [], guard.patience())[0]:
            guard.heard()
except EOFError:
    pass
print(guard.avenge())
guard.close()
""",
        "(exec setsid bash -c 'echo $$ >> pids; exec sleep 100') & echo $$ >> pids; wait",
        str(int(number)),
    )
    assert ("[]\n", "") == (found.stdout, found.stderr)
    assert [False, False] == [lives(pid) for pid in pids(tmp_path)]


def test_children_that_it_had_before_are_spared_when_the_guardian_is_killed_and_its_cgroup_is_removed(
    tmp_path: Path,
) -> None:
    """A shell that becomes `neli run` by `exec` leaves it such."""
    found = play(
        tmp_path,
        """
import subprocess
guard.close()
before = subprocess.Popen(["sleep", "100"])
guard = guardian()
guard.start(["bash", "-c", "echo $$ >> pids; exec sleep 100"], dict(os.environ), until=host_clock() + 60)
while not os.path.exists("pids") or not open("pids").read():
    time.sleep(0.01)
os.kill(guard.number, signal.SIGKILL)
try:
    until_gone(guard)
except EOFError:
    guard.avenge()
print(before.poll())
before.kill()
before.wait()
again = guardian()
print((again._cgroup is None) == (guard._cgroup is None))  # It has the same name, and that must be free again.
again.close()
""",
    )
    assert ("None\nTrue\n", "") == (found.stdout, found.stderr)
    assert [False] == [lives(pid) for pid in pids(tmp_path)]
