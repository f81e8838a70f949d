"""The agent's own death: its child reports it once no client may act any longer, or immediately if none may act.

client, neli run <--lease, until T-- agent --T--> its child witness      kill -9      Certify, after T --> ledger
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neli_router.agent import Client
from neli_router.agent.server import server
from neli_router.core.clock import host_clock
from neli_router.hosts.descendants import children
from neli_router.member.witness.child_program import SharedPage
from neli_router.protocols.induction.records import Certify
from tests.member.witness.records_of import child_witness_of, pages_of
from tests.member.witness.witnessing import LEASE, Witnessing
from tests.support.agents.running import TOKEN
from tests.support.processes.forked import Program, lives
from tests.support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the end of any process"),
]

LENT = 8.0
"""Seconds of a lease that tests wait for, first to get it. It must still hold after a test has looked."""

NELI = "from neli_router.commands.cli import main; main(prog_name='neli')"


def agent(folder: Path, *flags: str, lease: float = LENT) -> Witnessing:
    """An agent in a process of its own, with a child witness."""
    return Witnessing(folder, "--witness", "child", "--log-format", "console", *flags, lease=lease)


def test_an_agent_that_has_lent_nothing_is_certified_at_once(tmp_path: Path) -> None:
    with agent(tmp_path, lease=LEASE) as running:
        with running.agent.client() as client:  # A look-up is not an act.
            assert "agent" == client.owner("customer-7").name == client.status().agent
        running.agent.kill()
        assert "witness of agent" == running.first_certificate().by


@contextmanager
def command_under_a_lease(running: Witnessing, folder: Path, role: int) -> Iterator[tuple[Program, int]]:
    """A `neli run` at this agent, killed at the end, and the number of its command."""
    said = folder / f"said.{role}"
    command = ("sh", "-c", 'echo $$ > "$0.part" && mv "$0.part" "$0" && exec sleep 1000', str(said))
    options = ("--partition", f"{role}", "--agent", running.agent.address)
    with Program(NELI, "run", *options, "--", *command, folder=folder) as run:
        until(said.exists)
        yield run, int(said.read_text())


def test_a_lease_of_neli_run_is_waited_for_as_long_as_it_or_its_guardian_lives(tmp_path: Path) -> None:
    """So its command has ended before any witness reports the death of its agent."""
    with (
        agent(tmp_path) as running,
        command_under_a_lease(running, tmp_path, 0) as (run, pid),
        command_under_a_lease(running, tmp_path, 1) as (killed, pid_of_killed),
    ):
        guarded = [[one.pid, *children(one.pid)] for one in (run, killed)]
        page = page_of(running)
        assert (guarded, 0.0) == ([[number for number, _ in lent] for _, lent in page.lent()], page.until)
        page.close()
        running.agent.kill()
        killed.kill()
        assert lives(pid)
        told = running.of(Certify)
        assert [] == told or not lives(pid)  # On a busy machine, this check may be late.
        running.first_certificate()
        assert [False, False] == [lives(pid), lives(pid_of_killed)]
        assert 75 == run.wait(PATIENCE)


def page_of(running: Witnessing) -> SharedPage:
    """The page that the agent's member left to its witness."""
    (page,) = pages_of(child_witness_of(running.pid))
    return SharedPage(os.open(page, os.O_RDWR))


ASKING = """
import sys
from neli_router.agent import Client
from tests.support.waiting import PATIENCE
with Client(sys.argv[1], timeout=PATIENCE) as client:
    client.guarded_by(int(sys.argv[2]))
    print(client.lease(0, within=PATIENCE).remaining())
"""


def test_a_guardian_that_is_no_child_of_its_client_is_not_believed(tmp_path: Path) -> None:
    """A program that forwards a client's bytes may end while that client may still act."""
    with agent(tmp_path) as running:
        asked_at = host_clock()
        asked, _ = Program(ASKING, running.agent.address, f"{os.getpid()}", folder=tmp_path).communicate()
        page = page_of(running)
        assert ([], True) == (page.lent(), page.until >= asked_at + float(asked))
        page.close()


def test_a_client_that_asked_once_at_the_door_is_waited_for_until_its_lease_has_ended(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    with agent(tmp_path, "--listen", "127.0.0.1:0", "--token-file", str(token)) as running:
        (place,) = until(lambda: re.findall(r"agent.started .*tcp=\W?([\d.:]+)", running.agent.log.read_text()))
        with Client(f"http://{place}", token=TOKEN, timeout=PATIENCE) as client:
            lease = client.lease(0, within=PATIENCE)
            assert lease is not None
            page = page_of(running)
            assert ([], True) == (page.lent(), page.until >= host_clock() + lease.remaining())
            page.close()


def test_no_module_of_the_agent_but_one_lets_a_lease_out() -> None:
    folder = Path(server.__file__).parent
    makers = [path.name for path in folder.glob("*.py") if re.search(r"(Lease|Share)View\(", path.read_text())]
    assert ["lender.py"] == makers
