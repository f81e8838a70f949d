"""`neli run`: real commands in real process groups, none of which outlives the role."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from neli_router.agent.client.client import Client
from neli_router.core.clock import host_clock
from neli_router.hosts.descendants import children
from neli_router.hosts.guardian import margin_of
from neli_router.lab.processes.group import send_at_rest
from tests.support.agents.processes import AgentProcess, agents
from tests.support.agents.stand_in import PATIENCE, StandIn, standing_in
from tests.support.processes.forked import Program, lives
from tests.support.waiting import until

RUN = """
import os, signal, sys
from neli_router.commands.run import run_command
if user := int(sys.argv.pop(1)):
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
"""A command and its child, which both ignore every signal that can be ignored."""

AWAY = "setsid bash -c 'echo $$ >> pids; exec sleep 100' & "
"""Starts a process that leaves the process group."""

POLITE = "trap 'echo finished; exit 0' TERM INT; echo $$ >> pids; while :; do sleep 0.05; done"

FIRST = 10.0
"""Seconds of a lease that the test lets end."""

LATE = 0.5
"""Seconds that an answer about the lease takes: half of the margin."""


class Run(Program):
    """A `neli run` for the role "nightly", in a folder of its own."""

    def __init__(
        self, address: str, folder: Path, *command: str, options: Sequence[str] = (), user: int = 0, nohup: bool = False
    ) -> None:
        self.folder = folder
        arguments = ("--key", "nightly", "--agent", address, *options, "--", *command)
        super().__init__(RUN, str(user), "ignore" if nohup else "heed", *arguments, folder=folder)

    def end(self, *, said: str = "") -> tuple[int, str, str]:
        """Its exit code, output and errors, after `said` was written to its input."""
        out, error = self.communicate(said)
        return self.wait(), out, error

    def await_line(self, part: str) -> None:
        """Wait until standard error has `part`; earlier lines are dropped."""
        assert any(part in line for line in self.stderr), f"it ended without {part!r}"

    def pids(self, count: int) -> list[int]:
        """The process ids that the command and its children write down."""
        file = self.folder / "pids"
        until(lambda: file.exists() and len(file.read_text().split()) == count, f"{count} processes in {self.folder}")
        return [int(pid) for pid in file.read_text().split()]


class Runs:
    """Starts `neli run` against a stand-in."""

    def __init__(self, agent: StandIn, address: str, folder: Path) -> None:
        self.agent, self.address, self.folder = agent, address, folder
        self.started: list[Run] = []

    def start(self, *command: str, **different: Any) -> Run:
        folder = self.folder / str(len(self.started))
        folder.mkdir()
        folder.chmod(0o777)
        self.started.append(Run(self.address, folder, *command, **different))
        return self.started[-1]


@contextmanager
def runs_in(folder: Path, *, at_port: bool = False, renewing: bool = True) -> Iterator[Runs]:
    """With `renewing`, a program asks about its lease again if the first answer came too late on a busy machine."""
    with standing_in(None if at_port else folder) as (agent, address), agent.renewing() if renewing else nullcontext():
        runs = Runs(agent, address, folder)
        try:
            yield runs
        finally:
            for run in runs.started:
                run.kill()
                run.close()


@pytest.fixture(name="runs")
def _runs(tmp_path: Path) -> Iterator[Runs]:
    with runs_in(tmp_path) as runs:
        yield runs


def child_of(pid: int) -> int:
    """The only child: the guardian is the child of `neli run`, and the command the child of the guardian."""
    (child,) = children(pid)
    return child


def none_lives(pids: Sequence[int]) -> bool:
    return not any(map(lives, pids))


def test_the_command_runs_when_the_role_is_led_and_its_exit_code_is_passed_on(runs: Runs) -> None:
    run = runs.start("sh", "-c", "echo $NELI_ROLE $NELI_PARTITION $NELI_TERM $NELI_MEMBER; exit 7")
    waiting = "neli run: waiting for role nightly: beta leads it (beta has owned it since 20"
    assert run.stderr.readline().startswith(waiting)
    assert None is run.poll()
    until(lambda: runs.agent.held == 1)
    runs.agent.say("waiting", why="gamma leads it")
    run.await_line("gamma leads it")
    runs.agent.leads()
    assert (7, "nightly 0 7 alpha\n", "") == run.end()
    until(lambda: runs.agent.held == 0)


def test_a_command_whose_role_is_led_here_starts_without_a_word(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without permission it gains no privileges and gets no token."""
    monkeypatch.setenv("NELI_TOKEN", "correct-horse-battery")
    monkeypatch.setenv("NELI_LEASE", "0.5")
    runs.agent.leads()
    privileges, token = ("grep", "NoNewPrivs", "/proc/self/status"), ("sh", "-c", "echo ${NELI_TOKEN-none} $NELI_LEASE")
    cases = [
        ((), ("true",), (0, "")),
        (("--no-wait",), ("echo", "ran"), (0, "ran\n")),
        ((), ("sh", "-c", "kill -SEGV $$"), (128 + signal.SIGSEGV, "")),  # Like a shell.
        ((), privileges, (0, "NoNewPrivs:\t1\n")),
        (("--allow-new-privileges",), privileges, (0, "NoNewPrivs:\t0\n")),
        ((), token, (0, "none 0.5\n")),
        (("--pass-token",), token, (0, "correct-horse-battery 0.5\n")),
    ]
    started = [runs.start(*command, options=options) for options, command, _ in cases]
    assert [(*expected, "") for _, _, expected in cases] == [run.end() for run in started]


def test_a_role_that_is_not_led_in_time_is_given_up_with_a_code_of_its_own(runs: Runs) -> None:
    forever = runs.start("true")
    for options in (("--no-wait",), ("--wait", "0"), ("--wait", "0.2")):
        code, out, error = runs.start("echo", "ran", options=options).end()
        assert (69, "", True) == (code, out, "beta leads it" in error), options
    until(lambda: runs.agent.held == 1)
    forever.terminate()
    assert 128 + signal.SIGTERM == forever.end()[0], "a signal ends it while it waits"
    until(lambda: runs.agent.held == 0)


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
    expected = f"Error: a command was wanted, but {runs.folder}/odd .*{found}.*\n"
    ended, _, error = runs.start(f"{runs.folder}/odd").end()
    assert (code, True) == (ended, re.fullmatch(expected, error) is not None), error


def test_what_a_command_leaves_running_is_ended_before_the_role_is_given_back(runs: Runs) -> None:
    runs.agent.leads()
    script = "(echo $BASHPID >> pids; exec sleep 100) & while [ ! -e pids ]; do :; done; exit 4"
    child = runs.start("bash", "-c", script)
    script = "setsid sleep 100 > /dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done; echo $! > pids"
    daemon = runs.start("sh", "-c", script)
    assert 4 == child.end()[0]
    code, _, error = daemon.end()
    (pid,) = daemon.pids(1)
    assert (0, True) == (code, none_lives([pid, *child.pids(1)]))
    assert f"so what it left behind is ended, too ({pid} sleep): if that was to go on, let the command stay in" in error


def test_a_signal_that_is_ignored_from_the_beginning_stays_so(runs: Runs) -> None:
    """As under `nohup`, for this process and for the command."""
    runs.agent.leads()
    run = runs.start("sh", "-c", "kill -HUP $$; echo $$ > pids; read -r line; kill -HUP $$; echo $line", nohup=True)
    run.pids(1)
    run.send_signal(signal.SIGHUP)
    assert (0, "heard\n", "") == run.end(said="heard\n")


def test_a_signal_is_passed_on_and_the_group_gets_the_grace(runs: Runs) -> None:
    runs.agent.leads()
    polite = [(number, runs.start("bash", "-c", POLITE)) for number in (signal.SIGTERM, signal.SIGINT)]
    soon, late = (runs.start("bash", "-c", STUBBORN, options=("--grace", grace)) for grace in ("0.1", "3600"))
    pids = [*soon.pids(2), *late.pids(2)]
    for number, run in polite:
        run.pids(1)
        run.send_signal(number)
        assert (128 + number, "finished\n") == run.end()[:2]
    soon.terminate()
    code, _, error = soon.end()
    assert (128 + signal.SIGTERM, "neli run: the command did not end in time, and was killed\n") == (code, error)
    late.send_signal(signal.SIGINT)
    late.await_line("was asked to end by SIGINT, and has 3600 s for it, and another one kills it immediately")
    late.send_signal(signal.SIGINT)
    assert 128 + signal.SIGINT == late.end()[0]
    assert none_lives(pids)


def test_fenced_the_whole_group_and_what_left_it_is_killed_and_it_ends_only_when_that_is_gone(runs: Runs) -> None:
    runs.agent.leads()
    run = runs.start("bash", "-c", AWAY + STUBBORN)
    pids = run.pids(3)
    runs.agent.say("fenced", why="expired by beta")
    code, _, error = run.end()
    assert none_lives(pids)
    assert (75, True) == (code, "was lost (expired by beta)" in error)


GRACE = 12.0
"""Twice the lease: a command that had only the rest of its lease would be killed earlier. A shorter lease would be lost
while other tests take all cores."""


def test_revoked_the_command_may_finish_and_is_killed_after_the_grace(runs: Runs) -> None:
    """Without --grace, that is the drain timeout. The successor begins at its end, so the killing begins a margin
    before that."""
    runs.agent.leads(remaining=GRACE / 2, drain_timeout=GRACE)
    polite = runs.start("bash", "-c", POLITE)
    hasty, patient = (runs.start("bash", "-c", STUBBORN, options=options) for options in (("--grace", "0.3"), ()))
    pids = [*polite.pids(1), *hasty.pids(2), *patient.pids(2)]
    first_end = host_clock() + GRACE / 2
    until(lambda: host_clock() > first_end)
    assert all(map(lives, pids)), "their first lease is over, and it was renewed"
    revoked_at = host_clock()
    runs.agent.say("revoked", why="another member is to have it")
    code, out, error = polite.end()
    assert (75, "finished\n", True) == (code, out, "another member is to have it" in error)
    for stubborn, grace in ((hasty, 0.3), (patient, GRACE - margin_of(GRACE / 2))):
        assert 75 == stubborn.end()[0]
        assert host_clock() - revoked_at >= grace
    assert none_lives(pids)


def test_when_a_lease_runs_out_the_command_ends_whoever_of_its_processes_stands_still(tmp_path: Path) -> None:
    """The commands run side by side, because each waits for the end of a lease."""
    with runs_in(tmp_path, renewing=False) as runs:
        runs.agent.leads(remaining=FIRST)
        with runs.agent.renewing():
            alone, stopped = (runs.start("bash", "-c", STUBBORN) for _ in range(2))
            guarded = [runs.start("bash", "-c", AWAY + STUBBORN, options=(option,)) for option in ("--once", "--keep")]
            keeping = runs.start("bash", "-c", STUBBORN, options=("--keep", "--grace", "0"))
            first = keeping.pids(2)
            pids = [*first, *alone.pids(2), *stopped.pids(2), *(pid for run in guarded for pid in run.pids(3))]
        # All get their answers late, so they expect an earlier end than the agent does.
        runs.agent.late, asked = LATE, runs.agent.requests.count("/v1/lease")
        runs.agent.lease_ends = time.monotonic() + FIRST + LATE
        runs.agent.say("renewed")
        until(lambda: runs.agent.requests.count("/v1/lease") >= asked + len(runs.started))
        runs.agent.late = 0.0
        for run in guarded:
            os.kill(child_of(run.pid), signal.SIGSTOP)
        stopped.send_signal(signal.SIGSTOP)

        until(lambda: none_lives(pids), "the end of all")
        code, _, error = alone.end()
        assert (75, True) == (code, "without being renewed" in error)
        # It ends even with --keep: it has no other guardian to run the command under.
        assert [75, 75] == [run.end()[0] for run in guarded]

        # A command is killed a margin before its lease is over, and no other command begins in the rest of the lease.
        until(lambda: time.monotonic() > (runs.agent.lease_ends or 0.0))
        assert first == keeping.pids(2)
        runs.agent.leads(term=8)
        with runs.agent.renewing():
            keeping.pids(4)
        keeping.terminate()
        assert 128 + signal.SIGTERM == keeping.end()[0]


BECOMING_ROOT = """
"$0" --reuid=0 --regid=0 --clear-groups -- bash -c 'echo $$ >> pids; exec sleep 100 > /dev/null 2>&1'
"""


def test_a_process_that_became_root_is_told_of_and_does_not_hold_a_lost_role_up(tmp_path: Path, as_root: Path) -> None:
    tmp_path.chmod(0o777)
    with runs_in(tmp_path, at_port=True) as runs:
        runs.agent.leads()
        options = ("--allow-new-privileges", "--grace", "0")
        both = [runs.start("bash", "-c", BECOMING_ROOT, str(as_root), options=options, user=65534) for _ in range(2)]
        pids = [run.pids(1)[0] for run in both]
        until(lambda: all("sleep" in Path(f"/proc/{pid}/comm").read_text() for pid in pids), "both shells are sleeps")
        for run, pid in zip(both, pids, strict=True):
            run.terminate()
            run.await_line(f"PROCESS {pid} (sleep, of the user root) CANNOT BE ENDED")
        os.kill(pids[0], signal.SIGKILL)
        assert 128 + signal.SIGTERM == both[0].end()[0], "a process that ends on its own is waited for"
        assert None is both[1].poll(), "the role is held here, so it waits"
        runs.agent.say("fenced", why="expired by beta")
        assert 77 == both[1].end()[0]
        assert lives(pids[1])
        os.kill(pids[1], signal.SIGKILL)


def test_with_keep_it_outlives_its_agent_and_without_it_says_that_the_agent_is_gone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with standing_in(tmp_path) as (agent, address):
            runs = Runs(agent, address, tmp_path)
            command = ("bash", "-c", "echo $$ >> pids; exec sleep 100")
            keeping, once = (runs.start(*command, options=(option,)) for option in ("--keep", "--once"))
            for run in (keeping, once):
                stack.enter_context(run).await_line("waiting for role nightly: beta leads it")
            agent.leads(remaining=FIRST)
            with agent.renewing():  # On a busy machine, a start may take longer than a lease.
                pids = [*keeping.pids(1), *once.pids(1)]
        until(lambda: none_lives(pids))
        code, _, error = once.end()
        assert (75, True) == (code, f"was lost (the agent at {address} is gone, and the lease ran out)" in error)
        keeping.await_line("an agent was wanted")
        with standing_in(tmp_path) as (agent, _), agent.renewing():
            agent.leads()
            keeping.pids(2)
            keeping.terminate()
            assert 128 + signal.SIGTERM == keeping.end()[0]


EXCLUSIVE = """
import fcntl, os, signal, sys, time
folder, name = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: open(f"{folder}/asked.{name}", "a"))
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
"""A command that notes SIGTERM and goes on, as do its descendants, each in its own session. A kernel lock shows if it
runs twice."""

NELI = "from neli_router.commands.cli import main; main(prog_name='neli')"


class Host:
    """An agent, and `neli run` next to it."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent, self.folder, self.name = agent, agent.socket.parent, agent.name
        self.mark, self.asked = (self.folder / f"{it}.{self.name}" for it in ("started", "asked"))
        self.runs: list[Program] = []

    @property
    def run(self) -> Program:
        return self.runs[-1]

    def start(self) -> None:
        command = (sys.executable, "-c", EXCLUSIVE, str(self.folder), self.name)
        words = ("run", "--key", "nightly", "--agent", self.agent.address, "--", *command)
        self.runs.append(Program(NELI, *words, folder=self.folder, log=self.agent.log))

    @property
    def pids(self) -> list[int]:
        """Process ids of the command and its descendants, once all have written theirs."""
        lines = self.mark.read_text().splitlines() if self.mark.exists() else []
        return [int(line.split()[0]) for line in lines] if len(lines) == 9 else []

    def end(self) -> None:
        for run in self.runs:
            run.kill()
            run.close()


Settled = Callable[[float, float], list[Host]]


@pytest.fixture(name="settled")
def _settled(tmp_path: Path) -> Iterator[Settled]:
    """Starts two hosts, whose agents share the partitions. The command must never run on both."""
    with ExitStack() as stack:

        def settled(lease: float, drain_timeout: float) -> list[Host]:
            both = agents(tmp_path, "alpha", "beta", lease=lease, drain_timeout=drain_timeout)
            hosts = [Host(agent) for agent in stack.enter_context(both)]
            for host in hosts:
                stack.callback(host.end)
            return hosts

        yield settled
    assert not (tmp_path / "overlap").exists()


def with_a_command(hosts: Sequence[Host]) -> Sequence[Host]:
    """The hosts in order: the first leads the role and runs the command, the second waits for it."""
    for host in hosts:
        host.start()
    until(lambda: any(host.pids for host in hosts))
    return hosts if hosts[0].pids else hosts[::-1]


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_when_an_agent_ends_its_command_ends_before_another_begins(settled: Settled, number: signal.Signals) -> None:
    first, second = with_a_command(settled(1, 1))
    gone = first.pids
    send_at_rest(number, -first.agent.pid, first.folder / "ledger.db")
    until(lambda: second.pids)
    assert none_lives(gone)
    assert 75 == first.run.wait(PATIENCE)
    terms = [int(host.mark.read_text().split()[1]) for host in (first, second)]
    assert terms[0] < terms[1]


@pytest.mark.process
def test_a_role_moves_when_all_of_the_command_is_gone_whoever_was_killed(settled: Settled) -> None:
    """The kernel reports the death, so the drain timeout is not awaited: it is longer than this test.

    When `neli run` is killed, the guardian is slow, because it is stopped. The agent waits for a connection to end,
    which the guardian holds, too.
    """
    hosts = settled(5, 3 * PATIENCE)
    with hosts[0].agent.client() as client:
        client.drain("beta")
        hosts[0].start()
        role = client.owner_of_role("nightly").partition
        for killed, code in (("the command", 75), ("neli run", -signal.SIGKILL), ("the guardian", 75)):
            first, second = hosts
            until(lambda: hosts[0].pids)
            gone, guardian = first.pids, child_of(first.run.pid)
            pids = {"the command": child_of(guardian), "the guardian": guardian}
            second.start()
            try:
                client.drain(second.name, undo=True)
                if killed not in pids:
                    os.kill(guardian, signal.SIGSTOP)
                    first.run.kill()
                    first.run.wait()
                client.drain(first.name)
                # The command ignores the request to end, so the role stays until something is killed.
                until(lambda: is_leaving(client, role))
                if killed in pids:
                    until(first.asked.exists, "a command that was asked to end")
                assert all(map(lives, gone))
            finally:
                os.kill(guardian, signal.SIGCONT)  # Otherwise a failed test would leave it behind.
            if killed in pids:
                os.kill(pids[killed], signal.SIGKILL)
            until(lambda: hosts[1].pids)
            assert none_lives(gone), killed
            assert code == first.run.wait(PATIENCE)
            first.mark.unlink()
            first.asked.unlink(missing_ok=True)
            hosts.reverse()
    assert "the command was killed (its guardian was killed, or did not run)" in hosts[1].agent.log.read_text()


def is_leaving(client: Client, partition: int) -> bool:
    """Whether the owner of `partition` has released everything else, and so would have released this, too."""
    table = client.status().table.partitions
    return [number for number, one in enumerate(table) if one.owner != one.target] == [partition]
