"""The guardian: its reaction when `neli run` goes silent, or speaks too late."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from neli_router.hosts.descendants import Cgroup, Descendants
from neli_router.hosts.guardian import margin_of
from tests.commands.test_run import AWAY, STUBBORN
from tests.support.processes.forked import Program, lives, state_of
from tests.support.waiting import until

PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
from neli_router.core.clock import host_clock
from neli_router.hosts.descendants import Cgroup
from neli_router.hosts.guardian import guardian

def start(*command, lease=60, **options):
    guard.start(list(command), dict(os.environ), until=host_clock() + lease, **options)

def await_pids(count):
    while not os.path.exists("pids") or len(open("pids").read().split()) < count:
        time.sleep(0.01)

def kill():
    guard.kill()
    guard.overdue_at = host_clock() + 60

def until_gone():
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
"""A process that replaces itself every moment, in a new session: each has the lock, one after the other."""

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
"""64 sessions, each of which keeps starting processes."""


def play(folder: Path, story: str, *arguments: str) -> tuple[str, str]:
    """The output and the errors of `story`, in its own process, from which a guardian is forked."""
    return Program(PREAMBLE + story, *arguments, folder=folder).communicate()


def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text().split()]


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "guard.close()"])
def test_a_run_that_is_gone_without_having_listened_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    """Then the guardian's messages are unread, and its connection is reset instead of closed."""
    story = f"""
start("bash", "-c", sys.argv[1])
await_pids(2)
{end}
"""
    play(tmp_path, story, STUBBORN)
    assert 2 == len(pids(tmp_path))
    until(lambda: not any(map(lives, pids(tmp_path))))


def test_a_guardian_that_is_killed_before_it_said_that_the_command_runs_leaves_nothing_behind(tmp_path: Path) -> None:
    """On a busy machine the command may run for a while before its guardian runs again."""
    story = """
import subprocess

class Fatal(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        await_pids(2)
        os.kill(os.getpid(), signal.SIGKILL)

subprocess.Popen = Fatal
guard.close()  # It knows the other Popen, and one that has children already takes no orphans.
guard = guardian()
start("bash", "-c", sys.argv[1])
try:
    until_gone()
except EOFError:
    guard.avenge()
    print("avenged")
"""
    said, _ = play(tmp_path, story, "exec > /dev/null 2>&1" + STUBBORN)
    left = [pid for pid in pids(tmp_path) if lives(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert ("avenged\n", []) == (said, left)


def test_a_command_starts_within_its_lease_and_ends_with_the_last_extension(tmp_path: Path) -> None:
    story = """
start("touch", "started", lease=-0.001)
print(until_gone()[0])
start("touch", "later")
print(until_gone()[-2])
guard.close()
"""
    expected = "{'ended': -9, 'killed': True}\n{'ended': 0, 'killed': False}\n"
    assert (expected, "") == play(tmp_path, story)
    assert [False, True] == [(tmp_path / name).exists() for name in ("started", "later")]
    story = """
start = host_clock()
guard.start(["sleep", "100"], dict(os.environ), until=start + 5)
guard.extend(start + 5.3)
print(until_gone()[-2], host_clock() >= start + 5.3 - guard.margin)
"""
    assert "{'ended': -9, 'killed': True} True\n" == play(tmp_path, story)[0]


def test_a_stopped_command_hears_that_it_is_to_finish(tmp_path: Path) -> None:
    story = """
script = "trap 'echo finished; exit 0' TERM; kill -STOP $$; while :; do sleep 0.05; done"
start("bash", "-c", script)
pid = guard.heard()[0]["started"]
while ") T " not in open(f"/proc/{pid}/stat").read():
    time.sleep(0.01)
guard.finish(signal.SIGTERM, 50.0)
print(until_gone()[0])
"""
    assert "finished\n{'ended': 0, 'killed': False}\n" == play(tmp_path, story)[0]


def test_arguments_and_variables_arrive_as_they_were_given_and_a_guardian_has_a_name_of_its_own(tmp_path: Path) -> None:
    story = r"""
odd = os.fsdecode(b"\xc3\xbf\n'\"")
guard.start(["printf", "%s|", odd, ""], {"PATH": os.environ["PATH"], "ODD": odd}, until=host_clock() + 60)
until_gone()
guard.start(["printenv", "ODD"], {"PATH": os.environ["PATH"], "ODD": "a\nb"}, until=host_clock() + 60)
until_gone()
guard.close()
sys.stdout.flush()
"""
    assert "\u00ff\n'\"||a\nb\n" == play(tmp_path, story)[0]
    # So a `pkill neli` or a `pkill -f 'neli run'` that ends `neli run` spares it, and it ends the command.
    story = """
start("sleep", "100")
guard.heard()
print(repr([open(f"/proc/{guard.number}/{name}").read().strip("\\n\\0") for name in ("comm", "cmdline")]))
guard.close()
"""
    assert "['guardian', 'guardian']\n" == play(tmp_path, story)[0]


@pytest.mark.parametrize("cgroup", ["a cgroup", "no cgroup"])
@pytest.mark.parametrize(("program", "begun"), [(FLEEING, 1), (BRANCHING, 64)], ids=["fleeing", "branching"])
def test_what_flees_into_new_sessions_is_ended(tmp_path: Path, program: str, begun: int, cgroup: str) -> None:
    story = """
import fcntl

if sys.argv[3] == "no cgroup":
    guard.close()
    Cgroup.make = lambda name: None
    guard = guardian()
start(sys.executable, "-c", sys.argv[1])
await_pids(int(sys.argv[2]))
kill()
said = until_gone()
with open("lock", "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("nothing holds the lock")
"""
    assert ("nothing holds the lock\n", "") == play(tmp_path, story, program, str(begun), cgroup)


def test_a_process_that_got_the_number_of_a_child_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, the list of this process's children names a process of another parent."""
    with Program("print('ready', flush=True); input()", folder=tmp_path) as stranger:
        assert "ready\n" == stranger.stdout.readline()
        told = {os.getpid(): [stranger.pid]}
        monkeypatch.setattr("neli_router.hosts.descendants.children", lambda pid: told.get(pid, []))
        Descendants(None).kill(0)
        until(lambda: "S" == state_of(stranger.pid), "that it waits")


def test_all_is_frozen_before_any_is_killed_and_stays_so_until_it_is_dead(tmp_path: Path) -> None:
    """Any process that is not frozen continues while the others die. And a parent's death wakes its stopped children in
    other groups (SIGHUP and SIGCONT), so the parent must not die first."""
    story = """
from tests.support.processes.forked import state_of

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
start(sys.executable, "-c", sys.argv[1])
await_pids(2)
kill()
until_gone()
print(os.path.exists("acted"))
"""
    program = """
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
"""
    assert ("False\n", "") == play(tmp_path, story, program)


def test_the_command_runs_as_neli_run_does_while_the_guardian_hurries(tmp_path: Path) -> None:
    schedule = "import os; print(os.sched_getscheduler(0), os.sched_getparam(0), os.getpriority(0, 0), flush=True)"
    story = """
os.nice(2)
exec(sys.argv[1])
guard.close()
guard = guardian()
start(sys.executable, "-c", sys.argv[1])
until_gone()
"""
    ours, its = play(tmp_path, story, schedule)[0].splitlines()
    assert ours == its


@pytest.mark.parametrize(
    ("lease", "expected"), [(0.02, 0.005), (0.1, 0.025), (0.2, 0.03), (0.5, 0.075), (3.0, 0.45), (60.0, 1.0)]
)
def test_the_margin_is_a_part_of_the_lease(lease: float, expected: float) -> None:
    assert pytest.approx(expected) == margin_of(lease)


def test_a_guardian_without_neli_run_says_itself_what_goes_on(tmp_path: Path, as_root: Path) -> None:
    story = """
guard.close()
os.setgid(65534)
os.setgroups([])
os.setuid(65534)
guard = guardian()
script = 'exec "$0" --reuid=0 --regid=0 --clear-groups -- sh -c "exec sleep 100 > /dev/null 2>&1"'
start("sh", "-c", script, sys.argv[1], allow_new_privileges=True)
pid = [one["started"] for one in guard.heard() if "started" in one][0]
while "sleep" not in open(f"/proc/{pid}/comm").read():
    time.sleep(0.01)
guard.close()
print(pid)
"""
    pid, errors = play(tmp_path, story, str(as_root))
    os.kill(int(pid), signal.SIGKILL)
    assert f"PROCESS {int(pid)} (sleep, of the user root) CANNOT BE ENDED" in errors


def test_a_guardian_that_is_told_that_the_lease_is_over_has_the_time_to_end_its_command(tmp_path: Path) -> None:
    """Its owner, which would take its place, may be killed in that moment. Then no process would end the command."""
    story = """
start("bash", "-c", sys.argv[1])
await_pids(2)
guard.extend(host_clock() - 1)
print(guard.patience() > 0, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert "True\n" == play(tmp_path, story, AWAY + "echo $$ >> pids; wait")[0]
    until(lambda: not any(map(lives, pids(tmp_path))))


@pytest.mark.parametrize("way", ["stopped", "frozen"])
def test_a_command_ends_with_its_lease_although_no_guardian_can_end_it(tmp_path: Path, way: str) -> None:
    """As by `docker pause`: no process runs that could end the command. When all go on, it must not act once more."""
    story = """
cgroup = Cgroup(Path(sys.argv[1]))
cgroup.enter()
guard.close()
guard = guardian()  # In that cgroup.
start(sys.executable, "-c", "import os, time; open('pids', 'w').write(f'{os.getpid()} '); time.sleep(1000)", lease=3)
await_pids(1)
print(guard.number, flush=True)
time.sleep(1000)
"""
    together = Cgroup.make(f"neli-test-{os.getpid()}")
    if way == "frozen" and together is None:
        pytest.skip("cgroups of version 2 cannot be made here")
    folder = "/nowhere" if together is None else str(together.folder)
    run = Program(PREAMBLE + story, folder, folder=tmp_path)
    guardian = int(run.stdout.readline())
    try:
        if way == "frozen":
            Path(folder, "cgroup.freeze").write_text("1")
        else:
            os.kill(run.pid, signal.SIGSTOP)
            os.kill(guardian, signal.SIGSTOP)
        until(lambda: not any(map(lives, pids(tmp_path))))
        assert lives(run.pid)
    finally:
        for pid in filter(lives, (run.pid, guardian, *pids(tmp_path))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.close()
        if together is not None:
            Path(folder, "cgroup.freeze").write_text("0")
            together.remove()


def test_earlier_children_of_neli_run_survive_a_killed_guardian_and_its_cgroup_is_removed(tmp_path: Path) -> None:
    """A shell that becomes `neli run` by `exec` leaves it such children."""
    story = """
import subprocess
guard.close()
before = subprocess.Popen(["sleep", "100"])
guard = guardian()
start("bash", "-c", "echo $$ >> pids; exec sleep 100")
await_pids(1)
os.kill(guard.number, signal.SIGKILL)
try:
    until_gone()
except EOFError:
    guard.avenge()
print(before.poll())
before.kill()
before.wait()
again = guardian()
print((again._cgroup is None) == (guard._cgroup is None))  # It has the same name, and that must be free again.
again.close()
"""
    assert ("None\nTrue\n", "") == play(tmp_path, story)
    assert [False] == [lives(pid) for pid in pids(tmp_path)]
