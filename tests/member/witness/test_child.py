"""The child witness, with real processes: the end that it reports, and everything that is not an end.

    test --starts--> member's program --starts--> child --Certify--> a SQLite ledger --read--> test

Leases are so long that a test that waited for one would exceed its own time limit.
"""

import json
import math
import os
import re
import signal
import sqlite3
import sys
import textwrap
import threading
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from neli_router.config.config import Config
from neli_router.config.protocols import Induction
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.errors import ConfigError
from neli_router.hosts.descendants import children
from neli_router.lab.processes.group import send
from neli_router.member.member import Member
from neli_router.member.witness import child, child_program
from neli_router.member.witness.child_program import LENT_MAX, SharedPage, certify
from neli_router.protocols.induction.records import Certify, Expire, Join, Leave
from tests.member.witness.records_of import LedgerRecords, child_witness_of, command_of, open_files, pages_of
from tests.support.processes.forked import Program, lives
from tests.support.waiting import PATIENCE, beside, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the end of any process"),
]

LONG = 600.0
"""Seconds of a lease that no test waits for."""

PREAMBLE = """
import logging, os, signal, sys, threading, time
from neli_router.core.clock import host_clock
from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.member.member import Member

def ready(*said):
    print("ready", *said, flush=True)
    sys.stdin.readline()

def seated(config):
    member = Member(config)
    while member.incarnation not in member.state.seats:
        time.sleep(0.01)
    return member

logging.basicConfig()
options = {"name": "alpha", "layout": Layout(partitions=4), "witness": "child", **eval(sys.argv[2])}
config = Config.of({"ledger": sys.argv[1], **options})
"""

PLAIN = """
with seated(config) as member:
    ready()
"""


class Watched(LedgerRecords):
    """A member's program once it is ready, its child, and its ledger."""

    def __init__(self, folder: Path, story: str, *, ledger: str = "", **options: object) -> None:
        super().__init__(ledger or f"sqlite:{folder}/ledger.db")
        code, given, self._log = PREAMBLE + textwrap.dedent(story), repr({"lease": LONG, **options}), folder / "log"
        self.process = Program(code, self.address, given, folder=folder, log=self._log, own_group=True)
        self.pid = self.process.pid
        said = self.process.stdout.readline().split()
        if said[:1] != ["ready"]:
            self.process.kill()
            pytest.fail(self.log)
        self.said = said[-1]

    @property
    def child(self) -> int:
        return child_witness_of(self.pid)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def go_on(self, expected: str = "ready") -> None:
        """Send the line that the program waits for when it is ready, and wait for its next word."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert [expected] == self.process.stdout.readline().split()

    def kill(self, *, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def require_certificate(self) -> None:
        found = self.first_certificate()
        assert ("witness of alpha", self.of(Join)[-1].by) == (found.by, found.incarnation)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            if self.process.poll() is None:  # Otherwise, its number may be another's by now.
                os.killpg(self.pid, signal.SIGKILL)
        self.process.close()
        super().close()


def test_a_member_that_is_killed_with_its_process_group_is_certified_long_before_its_lease_ends(tmp_path: Path) -> None:
    """The child ignores signals from a terminal or a service manager, and does not show the ledger's address."""
    with Watched(tmp_path, PLAIN) as member:
        child = member.child
        assert "child" == member.of(Join)[0].witness
        assert b"ledger.db" not in command_of(child) + Path(f"/proc/{child}/environ").read_bytes()
        ignored = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
        until(lambda: ignored <= _ignored(child) and not children(member.pid))  # Its first process was collected.
        for number in ignored:
            os.kill(child, number)
        member.kill(group=True)
        member.require_certificate()
        until(lambda: not lives(child))


def _ignored(pid: int) -> set[int]:
    (mask,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigIgn" in line]
    return {number for number in range(1, 32) if int(mask, 16) >> (number - 1) & 1}


@pytest.mark.parametrize(
    "server", [pytest.param("kafka", marks=pytest.mark.kafka), pytest.param("redis", marks=pytest.mark.redis)]
)
def test_it_reports_a_death_to_a_server(server: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """It connects in advance: on a busy host, an import and a connection take longer than the rest of the lease."""
    ledger = f"{server}://{request.getfixturevalue(server).removeprefix('redis://')}/{uuid4().hex}"
    with Watched(tmp_path, PLAIN, ledger=ledger, accept_rewinds=True) as member:
        assert "child" == member.of(Join)[0].witness
        child = member.child
        until(lambda: sum("socket:" in path for path in open_files(child)) > 1)  # One is the line to its member.
        member.kill()
        member.require_certificate()


def test_a_program_that_waits_for_all_of_its_children_does_not_wait_for_it(tmp_path: Path) -> None:
    story = """
    with seated(config) as member:
        ready()
        try:
            while True:
                os.wait()
        except ChildProcessError:
            ready()
    """
    with Watched(tmp_path, story) as member:
        assert lives(member.child)
        member.go_on()


def test_members_of_one_process_share_a_child_which_forgets_those_that_leave(tmp_path: Path) -> None:
    story = """
    with seated(config):
        with seated(Config.of({"ledger": sys.argv[1], **options, "name": "beta"})):
            ready()
        ready()
    """
    with Watched(tmp_path, story, lease=0.5) as member:  # A newcomer waits for a lease before it joins.
        child = member.child
        until(lambda: 2 == len(pages_of(child)))
        member.go_on()
        assert member.of(Leave)
        member.kill()
        until(lambda: not lives(child))
        # On a busy machine, such a short lease may be lost, and then its member joins again.
        names = {join.by: join.name for join in member.of(Join)}
        assert {"alpha"} == {names[one.incarnation] for one in member.of(Certify)}


def test_a_member_whose_child_dies_with_it_is_expired_as_one_that_has_none(tmp_path: Path) -> None:
    config = Config(f"sqlite:{tmp_path}/ledger.db", name="beta", lease=1.0, layout=Layout(partitions=4))
    with Watched(tmp_path, PLAIN, lease=1.0) as member, Member(config) as beta:
        until(lambda: beta.incarnation in beta.state.seats)
        child = member.child
        send(signal.SIGSTOP, member.pid)  # Otherwise it might start another child before it is killed.
        os.kill(child, signal.SIGKILL)
        member.kill()
        until(lambda: 4 == len(beta.led))
        assert [] == member.of(Certify)
        assert beta.incarnation == member.of(Expire)[-1].by


def test_a_certificate_makes_no_ledger_and_may_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not certify(f"sqlite:{tmp_path}/ledger.db", ["0" * 16], by="witness of alpha", patience=1.0)
    assert [] == list(tmp_path.iterdir())
    monkeypatch.setattr(MemoryLedger, "acknowledged", lambda _: [])
    assert child_program._said(MemoryLedger(MemoryLog()), [b"one", b"two"])


def test_a_member_that_leaves_in_good_order_takes_its_child_along_and_nobody_certifies_it(tmp_path: Path) -> None:
    with Watched(tmp_path, f"{PLAIN}print('left')") as member:
        child = member.child
        member.go_on("left")
        assert 0 == member.process.wait(PATIENCE)
        until(lambda: not lives(child))
        assert (1, 0) == (len(member.of(Leave)), len(member.of(Certify)))


def test_a_member_whose_child_was_killed_says_so_and_gets_another(tmp_path: Path) -> None:
    with Watched(tmp_path, PLAIN, lease=20.0) as member:
        first = member.child
        os.kill(first, signal.SIGKILL)
        until(lambda: first != member.child)
        assert 1 == len(re.findall("witness.missing.*it ended unexpectedly", member.log))
        member.kill()
        member.require_certificate()


def test_a_child_of_the_member_that_lives_on_with_all_its_descriptors_hides_no_death(tmp_path: Path) -> None:
    story = """
    with seated(config) as member:
        fork = os.fork()
        while fork == 0:
            time.sleep(1)
        ready(fork)
    """
    with Watched(tmp_path, story) as member:
        assert lives(member.child)
        member.kill()
        member.require_certificate()
        assert lives(int(member.said))
        os.kill(int(member.said), signal.SIGKILL)


def test_a_member_that_became_another_program_is_not_certified_before_that_has_ended(tmp_path: Path) -> None:
    story = """
    member = seated(config)
    ready()
    os.execv("/bin/sh", ["sh", "-c", "echo become; read line"])
    """
    with Watched(tmp_path, story) as member:
        assert member.child  # If a program becomes another one before, nothing watches it.
        member.go_on("become")
        assert [] == member.of(Certify)
        member.kill()
        member.require_certificate()


def test_a_death_is_told_only_when_the_last_lease_that_was_lent_has_ended(tmp_path: Path) -> None:
    story = """
    with seated(config) as member:
        until = host_clock() + 4.0
        member.pledge(1.0)
        member.pledge(4.0)
        member.pledge(0.5)
        ready(until)
    """
    with Watched(tmp_path, story) as member:
        assert lives(member.child)
        member.kill()
        told = member.of(Certify)
        assert [] == told or host_clock() >= float(member.said)  # On a busy machine, this check may be late.
        member.first_certificate()
        assert host_clock() >= float(member.said)


def test_a_ledger_that_is_away_at_that_moment_is_told_when_it_is_back(tmp_path: Path) -> None:
    with Watched(tmp_path, PLAIN) as member:
        child = member.child
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            member.kill()
            until(lambda: any("ledger.db" in path for path in open_files(child)))
            threading.Event().wait(1.0)  # Longer than the child waits for a lock.
            assert lives(child)
            other.execute("ROLLBACK")
        member.require_certificate()


def test_a_fork_waits_for_the_start_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would inherit the pipe of that start, which would then wait until the fork ends."""
    begun, done = threading.Event(), threading.Event()

    def start(*_: object, **__: object) -> None:
        begun.set()
        done.wait(PATIENCE)
        raise OSError("no process was wanted")

    monkeypatch.setattr(child, "_child", child._Child())
    monkeypatch.setattr("subprocess.Popen", start)
    with closing(SharedPage.of("{}")) as page, beside(lambda: child._child.look(page, 0.0)):
        assert begun.wait(PATIENCE)
        threading.Timer(0.2, done.set).start()
        if (fork := os.fork()) == 0:
            os._exit(not done.is_set())
    assert 0 == os.waitpid(fork, 0)[1]


def test_a_lease_that_was_lent_has_ended_by_the_clock_of_its_holder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of two processes on one host may differ by a millisecond."""
    now = [10.0]
    monkeypatch.setattr("neli_router.core.clock.host_clock", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.append(now.pop() + seconds))
    with closing(SharedPage.of("{}")) as page:
        page.until = 12.0
        child_program._await_lent(page)
    assert now[0] >= 12.001


def test_the_page_keeps_the_last_two_incarnations_and_the_latest_pledge() -> None:
    with closing(SharedPage.of(json.dumps({"said": "of the end"}))) as page:
        assert ((), 0.0) == (page.incarnations, page.until)
        for number in range(3):
            page.begin(f"{'0' * 12}{number:04x}")
        page.until = 7.25
        with closing(SharedPage(os.dup(page.descriptor))) as twin:
            assert (("0000000000000002", "0000000000000001"), 7.25) == (twin.incarnations, twin.until)
            assert {"said": "of the end"} == json.loads(twin.text)


def test_the_page_keeps_what_is_lent_to_known_processes_and_reuses_what_is_over() -> None:
    with closing(SharedPage.of("{}")) as page:
        assert page.lend(5.0, [(7, 70), (8, 80)], now=1.0)
        assert page.lend(6.0, [(9, 90)], now=1.0)
        assert page.lend(9.0, [(7, 70), (8, 80)], now=2.0)
        assert page.lend(4.0, [(9, 90)], now=2.0)
        assert [(9.0, [(7, 70), (8, 80)]), (6.0, [(9, 90)])] == page.lent()
        for number in range(LENT_MAX - 2):
            assert page.lend(20.0, [(100 + number, 1)], now=3.0)
        assert not page.lend(20.0, [(10, 100)], now=6.0)
        assert page.lend(20.0, [(10, 100)], now=7.0)
        assert [(9.0, [(7, 70), (8, 80)]), (20.0, [(10, 100)])] == page.lent()[:2]
        assert not page.lend(20.0, [(1, 1), (2, 2), (3, 3)], now=100.0)


def test_what_was_lent_to_processes_is_waited_for_until_the_last_of_them_has_ended(tmp_path: Path) -> None:
    """The lease was lent for longer than this test lasts. One of the processes has ended before its member."""
    story = f"""
        import subprocess
        from neli_router.hosts.process import ProcessMark
        others = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
        with seated(config) as member:
            for lent in (others[:2], others[2:]):
                member.pledge({LONG}, processes=[ProcessMark.of(other.pid) for other in lent])
            others[2].kill()
            others[2].wait()
            ready(",".join(str(other.pid) for other in others[:2]))
    """
    with Watched(tmp_path, story) as member:
        child = member.child
        member.kill()
        first, last = map(int, member.said.split(","))
        os.kill(first, signal.SIGKILL)
        until(lambda: sum("pidfd" in path for path in open_files(child)) > 1, "that it waits for the last one")
        assert [] == member.of(Certify)
        os.kill(last, signal.SIGKILL)
        member.first_certificate()


@pytest.mark.parametrize("witness", ["auto", "agent"])
def test_a_pledge_that_no_witness_would_keep_is_refused(witness: str, tmp_path: Path) -> None:
    with Member(Config(f"sqlite:{tmp_path}/ledger.db", protocol=Induction(witness=witness))) as member:
        for seconds in (-1.0, math.nan, math.inf, 3601.0):
            with pytest.raises(ConfigError, match="a pledge is of 0 to 3600 seconds"):
                member.pledge(seconds)
        with pytest.raises(ConfigError, match=f"kept by witness='child', and this member has '{witness}'"):
            member.pledge(1.0)
