"""`neli run`: real commands in real process groups, and that nothing of them outlives the role."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from neli_router.agent.client.client import Client
from neli_router.agent.wire import LeaseView
from neli_router.cli import main
from neli_router.clock import host_clock
from neli_router.commands.descendants import children
from neli_router.commands.guardian import margin_of
from neli_router.errors import NoAgent
from neli_router.processes.group import send_at_rest
from tests.support.agents.stand_in import PATIENCE, StandIn, standing_in
from tests.support.waiting import until

RUN = """
import os, signal, sys
import encodings.idna, httpcore, stringprep, neli_router.agent.client.client
from neli_router.commands.run import run_command
if user := int(sys.argv.pop(1)):  # Not before: another user may not read the folder of this Python.
    os.setgid(user)
    os.setgroups([])
    os.setuid(user)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # These tests may run in the background of a shell, which ignores it.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv.pop(1) == "ignore" else signal.SIG_DFL)
run_command(prog_name="neli run")
"""

STUBBORN = """
trap '' TERM INT HUP
(trap '' TERM INT HUP; echo $BASHPID >> pids; while :; do sleep 0.05; done) &
echo $$ >> pids
while :; do sleep 0.05; done
"""
"""A command, and a child of it, that ignore every signal that can be ignored."""


FIRST = 10.0
"""Seconds of a lease that is to end: within them the command must have started, on a busy machine, too."""


class Runs:
    """Starts `neli run` against a stand-in, in a folder of its own."""

    def __init__(self, agent: StandIn, address: str, folder: Path) -> None:
        self.agent, self.address, self.folder = agent, address, folder
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, *command: str, options: tuple[str, ...] = (), user: int = 0, nohup: bool = False
    ) -> "subprocess.Popen[str]":
        arguments = ("--role", "nightly", "--agent", self.address, *options, "--", *command)
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(user), "ignore" if nohup else "heed", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self, process: "subprocess.Popen[str]", *, said: str = "") -> tuple[int, str, str]:
        """`said` to it before."""
        out, error = process.communicate(said, timeout=PATIENCE)
        return process.returncode, out, error

    def await_line(self, process: "subprocess.Popen[str]", part: str) -> None:
        """Until it has said so on standard error; what it said before is gone."""
        assert process.stderr is not None
        assert any(part in line for line in process.stderr), f"it ended without {part!r}"

    def pids(self, count: int) -> list[int]:
        """Of the command and its child, which write them down."""
        file = self.folder / "pids"
        until(lambda: file.exists() and len(file.read_text().split()) == count)
        return [int(pid) for pid in file.read_text().split()]


@pytest.fixture(name="runs")
def _runs(tmp_path: Path) -> Iterator[Runs]:
    with standing_in(tmp_path) as (agent, address):
        runs = Runs(agent, address, tmp_path)
        yield runs
        for process in runs.started:
            process.kill()
            process.communicate()


def lives(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        # A zombie is over: what would reap it may be the init of a container that does not.
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def test_the_command_runs_when_the_role_is_led_and_its_exit_code_is_passed_on(runs: Runs) -> None:
    process = runs.start("sh", "-c", "echo $NELI_ROLE $NELI_PARTITION $NELI_TERM $NELI_MEMBER; exit 7")
    until(lambda: runs.agent.held == 1)
    assert None is process.poll()
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("neli run: waiting for role nightly: beta leads it (beta has owned it since 20")
    runs.agent.leads()
    assert (7, "nightly 0 7 alpha\n", "") == runs.end(process)
    until(lambda: runs.agent.held == 0)


def test_a_command_whose_role_is_led_here_starts_without_a_word(runs: Runs) -> None:
    runs.agent.leads()
    assert (0, "", "") == runs.end(runs.start("true"))


def test_the_member_that_leads_the_role_meanwhile_is_told_when_that_changes(runs: Runs) -> None:
    process = runs.start("true")
    runs.await_line(process, "beta leads it")
    runs.agent.say("waiting", why="gamma leads it")
    runs.await_line(process, "gamma leads it")
    runs.agent.leads()
    assert 0 == runs.end(process)[0]


@pytest.mark.parametrize("options", [("--no-wait",), ("--wait", "0"), ("--wait", "0.2")])
def test_a_role_that_is_not_led_in_time_is_given_up_with_a_code_of_its_own(
    runs: Runs, options: tuple[str, ...]
) -> None:
    code, out, error = runs.end(runs.start("echo", "ran", options=options))
    assert (69, "") == (code, out)
    assert "beta leads it" in error
    until(lambda: runs.agent.held == 0)


def test_a_role_that_is_led_now_is_not_waited_for(runs: Runs) -> None:
    runs.agent.leads()
    assert (0, "ran\n", "") == runs.end(runs.start("echo", "ran", options=("--no-wait",)))


def test_a_command_that_a_signal_ended_is_told_as_a_shell_tells_it(runs: Runs) -> None:
    runs.agent.leads()
    assert 128 + signal.SIGSEGV == runs.end(runs.start("sh", "-c", "kill -SEGV $$"))[0]


def test_a_command_that_is_not_there_is_said_before_the_role_is_waited_for(runs: Runs) -> None:
    code, _, error = runs.end(runs.start("no-such-command"))
    assert (127, True) == (code, "no-such-command was not found" in error)
    (runs.folder / "plain").write_text("")
    code, _, error = runs.end(runs.start("./plain"))
    assert (126, True) == (code, "may be executed" in error)


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [
        ("neither a script nor a program", 126, "its first line names no interpreter: begin it with one, such as"),
        ("#!/bin/sh\r\necho\r\n", 127, "is there, but the interpreter that its first line names is not"),
    ],
)
def test_a_file_that_cannot_be_run_is_told_with_the_remedy(runs: Runs, text: str, code: int, found: str) -> None:
    (runs.folder / "odd").write_bytes(text.encode())
    (runs.folder / "odd").chmod(0o755)
    runs.agent.leads()
    expected = f"Error: a command was wanted, but ./odd .*{found}.*\n"
    ended, _, error = runs.end(runs.start("./odd"))
    assert (code, True) == (ended, re.fullmatch(expected, error) is not None), error


def test_a_command_that_makes_itself_a_daemon_is_ended_and_that_is_said(runs: Runs) -> None:
    runs.agent.leads()
    script = "setsid sleep 100 > /dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done; echo $! > pids"
    code, _, error = runs.end(runs.start("sh", "-c", script))
    (pid,) = runs.pids(1)
    assert (0, False) == (code, lives(pid))
    assert f"so what it left behind is ended, too ({pid} sleep): if that was to go on, let the command stay in" in error


def test_a_signal_that_is_ignored_from_the_beginning_stays_so(runs: Runs) -> None:
    """As `nohup` has it, for this process and for the command."""
    runs.agent.leads()
    process = runs.start("sh", "-c", "kill -HUP $$; echo $$ > pids; read -r line; kill -HUP $$; echo $line", nohup=True)
    runs.pids(1)
    process.send_signal(signal.SIGHUP)
    assert (0, "heard\n", "") == runs.end(process, said="heard\n")


def test_a_command_that_does_not_end_is_told_of_and_a_second_interrupt_kills_it(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start("bash", "-c", STUBBORN, options=("--grace", "3600"))
    pids = runs.pids(2)
    process.send_signal(signal.SIGINT)
    runs.await_line(process, "was told to end by SIGINT, and has 3600 s for it, and another one kills it at once")
    process.send_signal(signal.SIGINT)
    assert 128 + signal.SIGINT == runs.end(process)[0]
    assert [False, False] == [lives(pid) for pid in pids]


def test_a_command_that_is_killed_when_its_grace_is_over_is_said_to_be(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start("bash", "-c", STUBBORN, options=("--grace", "0.1"))
    runs.pids(2)
    process.terminate()
    code, _, error = runs.end(process)
    assert (128 + signal.SIGTERM, "neli run: the command did not end in time, and was killed\n") == (code, error)


def test_a_killed_guardian_is_told_as_the_cause(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start("bash", "-c", "echo $$ > pids; exec sleep 100")
    runs.pids(1)
    (guardian,) = children(process.pid)
    os.kill(guardian, signal.SIGKILL)
    code, _, error = runs.end(process)
    assert (75, True) == (code, "the command was killed (its guardian was killed, or did not run), and role" in error)


def test_without_an_agent_it_says_so(tmp_path: Path) -> None:
    runs = Runs(StandIn(), f"{tmp_path}/none.sock", tmp_path)
    code, _, error = runs.end(runs.start("true"))
    assert (4, True, False) == (code, "start one with `neli agent`" in error, "Traceback" in error)


def test_fenced_the_whole_group_is_killed_and_it_ends_only_when_that_is_gone(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start("bash", "-c", STUBBORN)
    pids = runs.pids(2)
    runs.agent.say("fenced", why="expired by beta")
    code, _, error = runs.end(process)
    assert [False, False] == [lives(pid) for pid in pids]
    assert (75, True) == (code, "was lost (expired by beta)" in error)


def test_revoked_the_command_may_finish_and_then_the_role_is_given_back(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start(
        "bash", "-c", "trap 'echo finished; exit 0' TERM; echo $$ >> pids; while :; do sleep 0.05; done"
    )
    runs.pids(1)
    runs.agent.say("revoked", why="another member is to have it")
    code, out, error = runs.end(process)
    assert (75, "finished\n", True) == (code, out, "another member is to have it" in error)


def test_revoked_a_command_that_ignores_it_is_killed_after_the_grace(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start("bash", "-c", STUBBORN, options=("--grace", "0.3"))
    pids = runs.pids(2)
    runs.agent.say("revoked")
    assert 75 == runs.end(process)[0]
    assert [False, False] == [lives(pid) for pid in pids]


def test_a_lease_that_is_not_renewed_ends_the_command(runs: Runs) -> None:
    runs.agent.leads(remaining=FIRST)
    process = runs.start("bash", "-c", STUBBORN)
    pids = runs.pids(2)
    code, _, error = runs.end(process)
    assert (75, True) == (code, "without being renewed" in error)
    assert [False, False] == [lives(pid) for pid in pids]


def test_a_renewed_lease_goes_on(runs: Runs) -> None:
    runs.agent.leads(remaining=FIRST)
    process = runs.start("bash", "-c", "echo $$ >> pids; while [ ! -e stop ]; do sleep 0.05; done; exit 3")
    runs.pids(1)
    runs.agent.lease = LeaseView(0, True, "alpha", 7, 60.0, 10.0)
    asked = runs.agent.requests.count("/v1/lease")
    runs.agent.say("renewed")
    until(lambda: runs.agent.requests.count("/v1/lease") > asked)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(FIRST + 0.5)
    (runs.folder / "stop").touch()
    assert 3 == runs.end(process)[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_group_gets_the_grace(runs: Runs, number: signal.Signals) -> None:
    runs.agent.leads()
    script = "trap 'echo heard; exit 0' TERM INT; echo $$ >> pids; while :; do sleep 0.05; done"
    process = runs.start("bash", "-c", script)
    runs.pids(1)
    process.send_signal(number)
    assert (128 + number, "heard\n") == runs.end(process)[:2]


def test_a_signal_while_it_waits_ends_it(runs: Runs) -> None:
    process = runs.start("true")
    until(lambda: runs.agent.held == 1)
    process.terminate()
    assert 128 + signal.SIGTERM == runs.end(process)[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_stopped_itself_it_leaves_no_command_behind(runs: Runs, number: signal.Signals) -> None:
    runs.agent.leads(remaining=60.0 if number == signal.SIGKILL else FIRST)
    process = runs.start("bash", "-c", STUBBORN)
    pids = runs.pids(2)
    process.send_signal(number)
    until(lambda: not any(map(lives, pids)))


def test_what_left_the_group_is_killed_with_it(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start("bash", "-c", "setsid bash -c 'echo $$ >> pids; exec sleep 100' & echo $$ >> pids; wait")
    pids = runs.pids(2)
    runs.agent.say("fenced")
    assert 75 == runs.end(process)[0]
    assert [False, False] == [lives(pid) for pid in pids]


def test_what_a_command_leaves_running_is_killed_before_the_role_is_given_back(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start(
        "bash", "-c", "(echo $BASHPID >> pids; exec sleep 100) & while [ ! -e pids ]; do :; done; exit 4"
    )
    assert 4 == runs.end(process)[0]
    assert [False] == [lives(pid) for pid in runs.pids(1)]


@pytest.mark.parametrize("option", ["--once", "--keep"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_when_its_guardian_is_killed_or_stopped_all_of_the_command_is_killed(
    runs: Runs, number: signal.Signals, option: str
) -> None:
    """With --keep, too, it ends then: it has no other guardian to run the command under."""
    runs.agent.leads(remaining=60.0 if number == signal.SIGKILL else FIRST)
    away = "setsid bash -c 'echo $$ >> pids; exec sleep 100' & "
    process = runs.start("bash", "-c", "ps -o ppid= -p $$ > guardian; " + away + STUBBORN, options=(option,))
    pids = runs.pids(3)
    os.kill(int((runs.folder / "guardian").read_text()), number)
    assert 75 == runs.end(process)[0]
    assert [False, False, False] == [lives(pid) for pid in pids]


@pytest.mark.parametrize(("options", "expected"), [((), "1"), (("--allow-new-privileges",), "0")])
def test_a_command_gains_no_privileges_unless_it_is_allowed_to(
    runs: Runs, options: tuple[str, ...], expected: str
) -> None:
    runs.agent.leads()
    code, out, error = runs.end(runs.start("grep", "NoNewPrivs", "/proc/self/status", options=options))
    assert (0, f"NoNewPrivs:\t{expected}\n", "") == (code, out, error)


@pytest.mark.parametrize(("options", "expected"), [((), "none"), (("--pass-token",), "correct-horse-battery")])
def test_a_command_gets_no_token_unless_it_is_to_have_it(
    runs: Runs, options: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NELI_TOKEN", "correct-horse-battery")
    monkeypatch.setenv("NELI_LEASE", "0.5")
    runs.agent.leads()
    command = ("sh", "-c", "echo ${NELI_TOKEN-none} $NELI_LEASE")
    assert (0, f"{expected} 0.5\n", "") == runs.end(runs.start(*command, options=options))


BECOMING_ROOT = """
echo $PPID > guardian
"$0" --reuid=0 --regid=0 --clear-groups -- bash -c 'echo $$ >> pids; exec sleep 100 > /dev/null 2>&1'
"""


def test_a_process_that_became_root_is_told_of_and_does_not_hold_a_lost_role_up(tmp_path: Path, as_root: Path) -> None:
    with standing_in() as (agent, address):
        runs = Runs(agent, address, tmp_path)
        tmp_path.chmod(0o777)
        agent.leads()
        process = runs.start("bash", "-c", BECOMING_ROOT, str(as_root), options=("--allow-new-privileges",), user=65534)
        (pid,) = runs.pids(1)
        process.terminate()
        runs.await_line(process, f"PROCESS {pid} (sleep, of the user root) CANNOT BE ENDED")
        assert None is process.poll(), "the role is held here, so it waits"
        agent.say("fenced", why="expired by beta")
        assert 77 == runs.end(process)[0]
        assert lives(pid)
        os.kill(pid, signal.SIGKILL)


def test_a_process_that_became_root_and_ends_by_itself_is_waited_for(tmp_path: Path, as_root: Path) -> None:
    with standing_in() as (agent, address):
        runs = Runs(agent, address, tmp_path)
        tmp_path.chmod(0o777)
        agent.leads()
        process = runs.start("bash", "-c", BECOMING_ROOT, str(as_root), options=("--allow-new-privileges",), user=65534)
        (pid,) = runs.pids(1)
        process.terminate()
        runs.await_line(process, "CANNOT BE ENDED")
        os.kill(pid, signal.SIGKILL)
        assert 128 + signal.SIGTERM == runs.end(process)[0]


def test_with_keep_it_waits_for_the_role_again(runs: Runs) -> None:
    runs.agent.leads()
    process = runs.start("bash", "-c", STUBBORN, options=("--keep", "--grace", "0"))
    runs.pids(2)
    runs.agent.lease = LeaseView(0, False, "alpha", 7)
    runs.agent.say("fenced")
    until(lambda: runs.agent.requests.count("/v1/leadership/events") == 2)
    runs.agent.leads(term=8)
    assert 4 == len(runs.pids(4))
    process.terminate()
    assert 128 + signal.SIGTERM == runs.end(process)[0]


def test_with_keep_nothing_begins_in_what_is_left_of_a_lease_that_a_command_was_killed_for(runs: Runs) -> None:
    runs.agent.lease_ends = time.monotonic() + FIRST
    runs.agent.leads(remaining=FIRST)
    process = runs.start("bash", "-c", STUBBORN, options=("--keep",))
    first = runs.pids(2)
    until(lambda: not any(map(lives, first)))
    # The lease is not over yet: the command is killed a margin before.
    until(lambda: time.monotonic() > (runs.agent.lease_ends or 0.0))
    assert first == runs.pids(2)
    runs.agent.lease_ends = None
    runs.agent.leads(term=8)
    runs.pids(4)
    process.terminate()
    assert 128 + signal.SIGTERM == runs.end(process)[0]


def test_with_keep_it_says_again_that_it_waits(runs: Runs) -> None:
    process = runs.start("bash", "-c", STUBBORN, options=("--keep", "--grace", "0"))
    runs.await_line(process, "waiting for role nightly: beta leads it")
    runs.agent.leads()
    runs.pids(2)
    runs.agent.lease = LeaseView(0, False, "alpha", 7, why="beta leads it")
    runs.agent.say("fenced", why="beta leads it")
    runs.await_line(process, "waiting for role nightly: beta leads it")
    process.terminate()
    assert 128 + signal.SIGTERM == runs.end(process)[0]


def test_with_keep_it_outlives_its_agent(tmp_path: Path) -> None:
    with standing_in(tmp_path) as (agent, address):
        runs = Runs(agent, address, tmp_path)
        agent.leads(remaining=FIRST)
        process = runs.start("bash", "-c", "echo $$ >> pids; exec sleep 100", options=("--keep",))
        runs.pids(1)
    until(lambda: not any(map(lives, runs.pids(1))))
    runs.await_line(process, "an agent was wanted")
    with standing_in(tmp_path) as (agent, _):
        agent.leads()
        runs.pids(2)
        process.terminate()
        code, _, _ = runs.end(process)
    assert 128 + signal.SIGTERM == code


def test_when_its_agent_is_gone_it_says_so_and_not_why_it_once_waited(tmp_path: Path) -> None:
    with standing_in(tmp_path) as (agent, address):
        runs = Runs(agent, address, tmp_path)
        process = runs.start("bash", "-c", "echo $$ >> pids; exec sleep 100")
        runs.await_line(process, "waiting for role nightly: beta leads it")
        agent.leads(remaining=FIRST)
        runs.pids(1)
    code, _, error = runs.end(process)
    assert (75, True) == (code, f"was lost (the agent at {address} is gone, and the lease ran out)" in error)


def test_with_keep_it_waits_on_while_its_agent_is_started_anew(tmp_path: Path) -> None:
    with standing_in(tmp_path) as (agent, address):
        runs = Runs(agent, address, tmp_path)
        process = runs.start("sh", "-c", "echo $NELI_TERM", options=("--keep",))
        until(lambda: agent.held == 1)
    with standing_in(tmp_path) as (agent, _):
        agent.leads()
        code, out, error = runs.end(process)
    assert (0, "7\n", True) == (code, out, "an agent was wanted" in error)


# Two hosts: an agent each, and what runs on both

EXCLUSIVE = """
import fcntl, os, signal, sys, time
folder, name = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = open(f"{folder}/lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{folder}/overlap", "a").write(name)
for _ in range(8):  # Each has the lock, too, until it is gone.
    if os.fork():
        break
    os.setsid()
open(f"{folder}/started.{name}", "a").write(f"{os.getpid()} {os.environ['NELI_TERM']}\\n")
while True:
    time.sleep(1)
"""
"""It and its descendants, each in a session of its own, ignore SIGTERM, and notice by a lock of the kernel if it runs
twice."""


class Host:
    """An agent in a process of its own, and `neli run` beside it."""

    def __init__(self, folder: Path, name: str, *, lease: float = 1, drain_timeout: float = 1) -> None:
        self.folder, self.name = folder, name
        self.socket, self.mark, self.ledger = f"{folder}/{name}.sock", folder / f"started.{name}", folder / "ledger.db"
        ledger = ("--ledger", f"sqlite:///{self.ledger}", "--layout-slots", "16", "--layout-partitions", "4")
        times = ("--lease", str(lease), "--drain-timeout", str(drain_timeout))
        self.agent = self._neli("agent", *ledger, *times, "--name", name, "--socket", self.socket)
        self.run: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = (sys.executable, "-c", EXCLUSIVE, str(self.folder), self.name)
        self.run = self._neli("run", "--role", "nightly", "--agent", self.socket, *options, "--", *command)

    def is_settled(self) -> bool:
        """Whether its agent answers, and sees nothing but what is owned for good, by two members."""
        with suppress(NoAgent), Client(self.socket) as client:
            status = client.status()
            return len(status.members) == 2 and all(p.owner == p.target is not None for p in status.table.partitions)
        return False

    @property
    def pids(self) -> list[int]:
        """Of the command and its descendants, once all have said so."""
        lines = self.mark.read_text().splitlines() if self.mark.exists() else []
        return [int(line.split()[0]) for line in lines] if len(lines) == 9 else []

    def end(self) -> None:
        for process in filter(None, (self.run, self.agent)):
            process.kill()
            process.wait()

    def _neli(self, *arguments: str) -> "subprocess.Popen[bytes]":
        code = "from neli_router.cli import main; main(prog_name='neli')"
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )


@pytest.fixture(name="hosts")
def _hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """The first leads the role and runs the command, the second waits for it."""
    hosts = Host(tmp_path, "alpha"), Host(tmp_path, "beta")
    try:
        until(lambda: all(host.is_settled() for host in hosts))  # Or the command would move once, and not again.
        for host in hosts:
            host.start()
        until(lambda: any(host.pids for host in hosts))
        yield hosts if hosts[0].pids else hosts[::-1]
    finally:
        for host in hosts:
            host.end()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_when_an_agent_ends_in_any_way_the_command_ends_here_and_only_then_begins_elsewhere(
    hosts: tuple[Host, Host], number: signal.Signals, tmp_path: Path
) -> None:
    first, second = hosts
    gone = first.pids
    send_at_rest(first.agent, number, first.ledger)
    until(lambda: second.pids)
    assert not any(map(lives, gone))
    assert not (tmp_path / "overlap").exists()
    assert first.run is not None
    assert 75 == first.run.wait(PATIENCE)
    terms = [int(host.mark.read_text().split()[1]) for host in hosts]
    assert terms[0] < terms[1]


@pytest.mark.process
def test_when_all_of_a_hosts_processes_but_the_command_are_killed_it_is_killed_as_well(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    first, second = hosts
    gone = first.pids
    assert first.run is not None
    first.agent.kill()
    first.run.kill()
    until(lambda: not any(map(lives, gone)))
    until(lambda: second.pids)
    assert not (tmp_path / "overlap").exists()


@pytest.mark.process
def test_neli_run_that_is_killed_while_it_is_to_hand_over_does_so_only_when_all_is_gone(tmp_path: Path) -> None:
    """The agent waits for a connection to end, and the guardian has it, too. Here it is slow, because it is stopped."""
    hosts = [Host(tmp_path, name, lease=5, drain_timeout=60) for name in ("alpha", "beta")]
    stopped: list[int] = []
    try:
        until(lambda: all(host.is_settled() for host in hosts))
        for host in hosts:
            host.start()
        until(lambda: any(host.pids for host in hosts))
        first, second = hosts if hosts[0].pids else hosts[::-1]
        with Client(second.socket, timeout=PATIENCE) as client:
            assert first.run is not None
            stopped += children(first.run.pid)
            (guardian,) = stopped
            os.kill(guardian, signal.SIGSTOP)
            first.run.kill()
            first.run.wait()
            client.drain(first.name)

            def kept() -> list[int]:
                status = client.status()
                owners = enumerate(one.owner for one in status.table.partitions)
                return [number for number, owner in owners if owner is None or status.members[owner].name == first.name]

            # It hands over in one step what it may, so by then it would have handed over this one, too.
            until(lambda: len(kept()) < 2)
            assert [client.owner_of_role("nightly").partition] == kept()
            assert all(map(lives, first.pids))
            os.kill(guardian, signal.SIGCONT)
            until(lambda: second.pids)
        assert not any(map(lives, first.pids))
        assert not (tmp_path / "overlap").exists()
    finally:
        for guardian in stopped:
            with suppress(ProcessLookupError):
                os.kill(guardian, signal.SIGCONT)  # Or it would stay for ever, if something above fails.
        for host in hosts:
            host.end()


@pytest.mark.process
def test_a_role_that_is_to_go_elsewhere_does_so_when_all_of_the_command_is_gone_whoever_was_killed(
    tmp_path: Path,
) -> None:
    """The kernel has told, so the drain timeout is not waited for: it is longer than this test."""
    hosts = [Host(tmp_path, name, lease=5, drain_timeout=3 * PATIENCE) for name in ("alpha", "beta")]

    def kill_run(host: Host) -> None:
        assert host.run is not None
        host.run.kill()

    def guardian_of(host: Host) -> int:
        assert host.run is not None
        (guardian,) = children(host.run.pid)
        return guardian

    def kill_guardian(host: Host) -> None:
        os.kill(guardian_of(host), signal.SIGKILL)

    def kill_command(host: Host) -> None:
        (command,) = children(guardian_of(host))
        os.kill(command, signal.SIGKILL)

    try:
        until(lambda: all(host.is_settled() for host in hosts))
        with Client(hosts[0].socket, timeout=PATIENCE) as client:
            client.drain("beta")
            hosts[0].start()
            role = client.owner_of_role("nightly").partition
            for kill in (kill_command, kill_run, kill_guardian):
                first, second = hosts
                until(lambda: hosts[0].pids)
                gone = first.pids
                second.start()
                client.undrain(second.name)
                client.drain(first.name)
                # The command ignores that it is to end, so until something is killed the role stays.
                until(lambda: _is_leaving(client, role))
                assert all(map(lives, gone))
                kill(first)
                until(lambda: hosts[1].pids)
                assert not any(map(lives, gone))
                assert first.run is not None
                first.run.wait(PATIENCE)
                first.mark.unlink()
                hosts.reverse()
        assert not (tmp_path / "overlap").exists()
    finally:
        for host in hosts:
            host.end()


def _is_leaving(client: Client, partition: int) -> bool:
    """Whether the member that owns `partition` has let go of all else, and so would have let go of this, too."""
    table = client.status().table.partitions
    return [number for number, one in enumerate(table) if one.owner != one.target] == [partition]


GRACE = 12.0
"""Twice the lease: a command that had only the rest of its lease would be killed before. A shorter lease would be lost
while other tests take all cores."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("drain_timeout", "options", "least"),
    [(GRACE, (), GRACE - margin_of(GRACE / 2)), (60.0, ("--grace", str(GRACE)), GRACE)],
)
def test_revoked_a_command_has_its_whole_grace_and_is_killed_at_the_end_of_it(
    drain_timeout: float, options: tuple[str, ...], least: float, tmp_path: Path
) -> None:
    """At the end of the drain timeout the successor begins, and so killing begins a margin before that."""
    first, second = (Host(tmp_path, name, lease=GRACE / 2, drain_timeout=drain_timeout) for name in ("alpha", "beta"))
    try:
        until(lambda: all(host.is_settled() for host in (first, second)))
        with Client(second.socket, timeout=PATIENCE) as client:
            client.drain(second.name)
            first.start(*options)
            until(lambda: first.pids)
            gone = first.pids
            began_at = host_clock()
            client.undrain(second.name)
            client.drain(first.name)
            second.start(*options)
            assert first.run is not None
            assert 75 == first.run.wait(PATIENCE)
            assert host_clock() - began_at >= least
        assert not any(map(lives, gone))
        until(lambda: second.pids)
        assert not (tmp_path / "overlap").exists()
    finally:
        for host in (first, second):
            host.end()


def test_a_role_that_is_a_negative_number_is_refused_and_not_taken_for_a_name() -> None:
    result = CliRunner().invoke(main, ["run", "--role", "-1", "--agent", "/nowhere.sock", "--", "true"])
    assert (2, True) == (result.exit_code, "roles count from 0, found -1: give a number from 0" in result.output)
