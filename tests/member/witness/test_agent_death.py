"""The agent's own death: its child reports it once no client may act any longer, or immediately if none may act.

client, neli run <--lease, until T-- agent --T--> its child witness      kill -9      Certify, after T --> ledger
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from neli_router.agent import Client
from neli_router.agent.server import server
from neli_router.core.clock import host_clock
from neli_router.hosts.descendants import children
from neli_router.member.witness.child_program import SharedPage
from neli_router.protocols.induction.records import Certify
from tests.member.witness.records_of import LedgerRecords, child_witness_of, pages_of
from tests.support.processes.forked import Program, lives, without_neli
from tests.support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the end of any process"),
]

LENT = 8.0
"""Seconds of a lease that tests wait for, first to get it. It must still hold after a test has looked."""

LONG = 600.0

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - it gives access to nothing.

NELI = "from neli_router.commands.cli import main; main(prog_name='neli')"


class RunningAgent(LedgerRecords):
    """An agent in a process of its own."""

    def __init__(self, process: Program, folder: Path) -> None:
        super().__init__(f"sqlite:{folder}/ledger.db")
        self.process, self.pid, self.socket, self.folder = process, process.pid, f"{folder}/agent.sock", folder

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def agent(folder: Path, *options: str, lease: float) -> Iterator[RunningAgent]:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    given = {
        "--ledger": f"sqlite:{folder}/ledger.db",
        "--name": "alpha",
        "--socket": f"{folder}/agent.sock",
        "--lease": f"{lease}",
        "--layout-partitions": "4",
        "--log-format": "console",
    }
    words = [word for option in given.items() for word in option]
    process = Program(NELI, "agent", *words, *options, folder=folder, environment=without_neli(), log=folder / "log")
    try:
        with RunningAgent(process, folder) as found:
            until(lambda: "member.joined" in found.log and "agent.started" in found.log)
            yield found
    finally:
        for pid in (*children(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.close()


def test_an_agent_that_has_lent_nothing_is_certified_at_once(tmp_path: Path) -> None:
    with agent(tmp_path, "--witness", "child", lease=LONG) as running:
        with Client(running.socket, timeout=PATIENCE) as client:  # A look-up is not an act.
            assert "alpha" == client.owner("customer-7").name
            assert "alpha" == client.status().agent
        running.kill()
        assert "witness of alpha" == running.first_certificate().by


@contextmanager
def command_under_a_lease(running: RunningAgent, role: int) -> Iterator[tuple[Program, int]]:
    """A `neli run` at this agent, killed at the end, and the number of its command."""
    said = running.folder / f"said.{role}"
    command = ("sh", "-c", 'echo $$ > "$0.part" && mv "$0.part" "$0" && exec sleep 1000', str(said))
    options = ("--partition", f"{role}", "--agent", running.socket)
    with Program(NELI, "run", *options, "--", *command, folder=running.folder) as run:
        until(said.exists)
        yield run, int(said.read_text())


def test_a_lease_of_neli_run_is_waited_for_as_long_as_it_or_its_guardian_lives(tmp_path: Path) -> None:
    """So its command has ended before any witness reports the death of its agent."""
    with (
        agent(tmp_path, "--witness", "child", lease=LENT) as running,
        command_under_a_lease(running, 0) as (run, pid),
        command_under_a_lease(running, 1) as (killed, pid_of_killed),
    ):
        guarded = [[one.pid, *children(one.pid)] for one in (run, killed)]
        page = page_of(child_witness_of(running.pid))
        assert (guarded, 0.0) == ([[number for number, _ in lent] for _, lent in page.lent()], page.until)
        page.close()
        running.kill()
        killed.kill()
        assert lives(pid)
        told = running.of(Certify)
        assert [] == told or not lives(pid)  # On a busy machine, this check may be late.
        running.first_certificate()
        assert [False, False] == [lives(pid), lives(pid_of_killed)]
        assert 75 == run.wait(PATIENCE)


def page_of(child: int) -> SharedPage:
    """The page that the agent's member left to this witness."""
    (page,) = pages_of(child)
    return SharedPage(os.open(page, os.O_RDWR))


ASKING = """
import sys
from neli_router.agent import Client
with Client(sys.argv[1], timeout=60) as client:
    client.guarded_by(int(sys.argv[2]))
    print(client.lease(0, within=60).remaining())
"""


def test_a_guardian_that_is_no_child_of_its_client_is_not_believed(tmp_path: Path) -> None:
    """A program that forwards a client's bytes may end while that client may still act."""
    with agent(tmp_path, "--witness", "child", lease=LENT) as running:
        asked_at = host_clock()
        asked, _ = Program(ASKING, running.socket, f"{os.getpid()}", folder=tmp_path).communicate()
        page = page_of(child_witness_of(running.pid))
        assert ([], True) == (page.lent(), page.until >= asked_at + float(asked))
        page.close()


def test_a_client_that_asked_once_at_the_door_is_waited_for_until_its_lease_has_ended(tmp_path: Path) -> None:
    listen = ("--listen", "127.0.0.1:0", "--token-file", f"{tmp_path}/token")
    with agent(tmp_path, "--witness", "child", *listen, lease=LENT) as running:
        (line,) = [line for line in running.log.splitlines() if "agent.started" in line]
        place = "http://" + line.partition("tcp=")[2].split()[0].strip("'\"")
        with Client(place, token=TOKEN, timeout=PATIENCE) as client:
            lease = client.lease(0, within=PATIENCE)
            assert lease is not None
            page = page_of(child_witness_of(running.pid))
            assert ([], True) == (page.lent(), page.until >= host_clock() + lease.remaining())
            page.close()


def test_no_module_of_the_agent_but_one_lets_a_lease_out() -> None:
    folder = Path(server.__file__).parent
    makers = [path.name for path in folder.glob("*.py") if re.search(r"(Lease|Share)View\(", path.read_text())]
    assert ["lender.py"] == makers
