"""Real processes end in every possible way, and a real agent records it in the ledger: then, and not earlier.

The lease is half an hour. So only a certificate can take a seat back here.
"""

import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.member.member import Member
from neli_router.protocols.induction.records import Certify, Expire
from tests.member.witness.records_of import LedgerRecords
from tests.member.witness.witnessing import LEASE, WAITS, WitnessedProcess, Witnessing
from tests.support.agents.running import configured, running
from tests.support.processes.forked import state_of
from tests.support.waiting import until

pytestmark = pytest.mark.process

PTRACE_SEIZE = 0x4206


@pytest.fixture(name="host", scope="module")
def one_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witnessing]:
    with Witnessing(tmp_path_factory.mktemp("host")) as host:
        yield host


def test_a_fork_that_has_its_connection_and_lives_on_does_not_hide_the_end(host: Witnessing) -> None:
    process = host.start("if os.fork() == 0: sys.stdin.read()\nprint('ready', flush=True)\nsys.stdin.read()")
    process.process.kill()
    host.await_certificate(process)


BECOMES = """
then = "print('ready', flush=True); import sys; sys.stdin.read(); print('ready', flush=True)"
become = lambda: os.execv(sys.executable, [sys.executable, "-c", then])
"""

ALIVE = {
    "it closed its connection": f"registration.close()\n{WAITS}",
    "it became another program": f"{BECOMES}\nbecome()",
    "another thread let it become another program": (
        f"{BECOMES}\nthreading.Thread(target=become).start()\nthreading.Event().wait()"
    ),
    "its first thread has ended": """
        import ctypes
        def linger():
            print("ready", flush=True)
            sys.stdin.read()
            os._exit(0)
        threading.Thread(target=linger).start()
        ctypes.CDLL(None).pthread_exit(None)  # The first thread alone.
    """,
    "it is stopped": WAITS,
}


def test_a_process_is_certified_when_it_has_ended_and_not_before_whatever_it_does(host: Witnessing) -> None:
    processes = {what: host.start(script) for what, script in ALIVE.items()}
    of_one_thread, stopped = processes["its first thread has ended"], processes["it is stopped"]
    stopped.process.send_signal(signal.SIGSTOP)
    until(lambda: "T" == state_of(stopped.process.pid), "its stop")
    until(lambda: "Z" == state_of(of_one_thread.process.pid), "the end of its first thread")
    host.let_the_agent_look()
    assert [] == [what for what, process in processes.items() if not host.is_seated(process)]
    stopped.process.kill()
    for process in processes.values():
        process.tell()  # The process ends with the other program, or with its last thread.
        host.await_certificate(process)


def test_a_traced_process_is_certified_when_it_is_killed_and_not_before(host: Witnessing) -> None:
    process = host.start()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, process.process.pid, None, None) != 0:
        pytest.skip(f"this process may trace no other: {os.strerror(ctypes.get_errno())}")
    host.let_the_agent_look()
    assert host.is_seated(process)
    process.process.send_signal(signal.SIGKILL)
    host.await_certificate(process)
    os.waitpid(process.process.pid, 0)  # Its tracer, which is this thread, has to wait for it, too.


def test_another_process_that_gets_the_number_of_a_dead_one_lives_for_itself(
    tmp_path: Path, namespace: Sequence[str]
) -> None:
    """In a namespace of its own: elsewhere, other programs may still mean a dead process by the number given away."""
    command = [*namespace, sys.executable, "-m", __name__, str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[3], check=True)


def test_a_join_that_comes_after_the_end_of_its_process_is_certified(host: Witnessing) -> None:
    process = host.start(joined=False)
    process.close()
    host.let_the_agent_look()
    host.join(process)
    host.await_certificate(process)


def test_an_expired_incarnation_is_left_alone_and_the_next_one_of_the_life_is_certified(host: Witnessing) -> None:
    process = host.start()
    (agent, *_), joined = host.read().seats, host.read().last_beats[process.incarnation()]
    host.append(Expire(by=agent, last_beats={process.incarnation(): joined}))
    host.join(process, 1)
    host.let_the_agent_look()  # It has read of the end of the first.
    process.process.kill()
    host.await_certificate(process, 1)
    assert process.incarnation(0) not in host.certified


def test_a_certificate_is_written_again_until_the_ledger_is_back(host: Witnessing) -> None:
    process = host.start()
    until(lambda: process.incarnation() in host.read().owners, "its share")
    with closing(sqlite3.connect(host.address.removeprefix("sqlite://"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # Blocks all appends.
        before = len(host.agent.log.read_text())
        process.process.kill()
        until(lambda: "ledger.unavailable" in host.agent.log.read_text()[before:], "a failed append")
        assert process.incarnation() not in host.certified
        other.execute("ROLLBACK")
    host.await_certificate(process)


def test_two_processes_that_show_one_secret_must_both_have_ended(host: Witnessing) -> None:
    """A fork has its parent's memory, and therefore its secret."""
    script = """
        if (child := os.fork()) == 0:
            again = Registration(Config(sys.argv[1]), "of-a-fork", OwnLife(sys.argv[2]), print, wanted=True)
            while not again.name:  # On a busy machine, an answer takes longer than a start may wait.
                again.look(None, "", host_clock())
                time.sleep(0.01)
            print("ready", flush=True)
            sys.stdin.read()
            os._exit(0)
        os.waitpid(child, 0)
        threading.Event().wait()
    """
    process = host.start(script)
    process.tell()  # To the child, which ends.
    host.let_the_agent_look()
    assert host.is_seated(process)
    process.process.kill()
    host.await_certificate(process)


def test_the_dead_leave_room_for_the_living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that keeps dying and never joins is remembered for a while, for as many lives as there is room."""
    monkeypatch.setattr("neli_router.agent.server.server.LIVES_MAX", 1)
    options = AgentOptions(socket=str(tmp_path / "agent.sock"))
    config = configured(tmp_path, lease=LEASE)
    with running(config, options) as agent:
        lives = agent.agent.lives
        for _ in range(4):
            with WitnessedProcess(config.ledger, options.socket):
                assert 1 == agent.on_loop(lambda: lives.witnessed)
                timer: Any = lives._timer
            until(lambda: 0 == agent.on_loop(lambda: lives.witnessed), "its end")
            assert timer.cancelled() or lives._loop.time() >= timer.when(), "two looks are due"
        assert 2 == agent.on_loop(lambda: len(lives))
        monkeypatch.setattr("neli_router.agent.server.lives.LEASES_KEPT", 0)
        until(lambda: 0 == agent.on_loop(lambda: len(lives)), "that they are forgotten")


def test_an_agent_that_is_yet_to_join_certifies_by_its_name(tmp_path: Path) -> None:
    ledger = f"sqlite:{tmp_path}/ledger.db"
    with Member(Config(ledger, name="first", lease=30.0)) as first:
        until(lambda: first.incarnation in first.state.seats, "the first member")
        with Member(Config(ledger, name="second", lease=30.0)) as second, LedgerRecords(ledger) as records:
            for member in (second, first):
                member.engine.certify("0" * 16)
            until(lambda: len(records.of(Certify)) == 2, "both certificates")
            assert {"second", first.incarnation} == {record.by for record in records.of(Certify)}


if __name__ == "__main__":  # In a namespace.
    with Witnessing(Path(sys.argv[1])) as its:
        first = its.start()
        first.close()
        its.await_certificate(first)
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.process.pid - 1), encoding="ascii")
        second = its.start()
        assert first.process.pid == second.process.pid
        its.let_the_agent_look()
        assert its.is_seated(second)
        second.process.kill()
        its.await_certificate(second)
