"""One real agent, real processes that it witnesses, and the ledger. The test gives the processes their seats.

    process --registers its life--> agent        test --Join of that life--> ledger <--Certify-- agent
       '--ends, in one way or another

So no member has to wait for a lease before it may join, and the lease can be so long that none ends in a test: only the
agent's certificate can take a seat back.
"""

import os
import textwrap
from contextlib import ExitStack
from pathlib import Path
from random import Random

from neli_router.core.closing import Closing
from neli_router.member.witness.base import OwnLife
from neli_router.protocols.induction.fold import FOLD_VERSIONS
from neli_router.protocols.induction.records import Certify, Join
from tests.member.witness.records_of import LedgerRecords
from tests.support.agents.processes import AgentProcess
from tests.support.processes.forked import Program
from tests.support.waiting import until

__all__ = ["LEASE", "WAITS", "WitnessedProcess", "Witnessing"]

LEASE = 1800.0

PRELUDE = """
import os, sys, threading, time
from neli_router.core.clock import host_clock
from neli_router.config.config import Config
from neli_router.member.witness.base import OwnLife
from neli_router.member.witness.registration import Registration

# Its notices do not go to the standard output: there they would stand before what a test waits for.
def tell(notice):
    print(notice, file=sys.stderr)

registration = Registration(Config(sys.argv[1]), "of-a-test", OwnLife(sys.argv[2]), tell, wanted=True)
while not registration.name:
    registration.look(None, "", host_clock())
    time.sleep(0.01)
"""

WAITS = """
print("ready", flush=True)
sys.stdin.read()
"""


class WitnessedProcess(Closing):
    """A process that has registered a life of its own, and then does what the script says."""

    def __init__(self, ledger: str, agent: str, script: str = WAITS) -> None:
        self.life = OwnLife.begin(Random(os.urandom(16)))
        code, environment = PRELUDE + textwrap.dedent(script), {**os.environ, "NELI_AGENT": agent}
        self.process = Program(
            code, ledger, self.life.secret, folder=Path("/"), environment=environment, own_group=True
        )
        assert "ready\n" == self.process.stdout.readline()

    def incarnation(self, number: int = 0) -> str:
        return f"{self.life.name}{number:04x}"

    def tell(self) -> None:
        """Let the process continue: its standard input ends."""
        self.process.stdin.close()

    def close(self) -> None:
        self.process.kill()
        self.process.close()  # Whatever it has forked reads the same standard input, up to its end.


class Witnessing(LedgerRecords):
    def __init__(self, folder: Path, *flags: str, lease: float = LEASE) -> None:
        super().__init__(f"sqlite://{folder}/ledger.db")
        self._stack = ExitStack()
        self.agent = self._stack.enter_context(AgentProcess("agent", folder, *flags, lease=lease, ledger=self.address))
        self._stack.callback(super().close)

    @property
    def pid(self) -> int:
        """The agent's."""
        assert self.agent._process is not None
        return self.agent._process.pid

    def start(self, script: str = WAITS, *, joined: bool = True) -> WitnessedProcess:
        process = self._stack.enter_context(WitnessedProcess(self.address, self.agent.address, script))
        if joined:
            self.join(process)
        return process

    def join(self, process: WitnessedProcess, number: int = 0) -> None:
        """Give it a seat."""
        incarnation = process.incarnation(number)
        self.append(Join(by=incarnation, name=incarnation, versions=FOLD_VERSIONS, at=self.read().at))

    @property
    def certified(self) -> list[str]:
        """The incarnations with a certificate."""
        return [certificate.incarnation for certificate in self.of(Certify)]

    def await_certificate(self, process: WitnessedProcess, number: int = 0) -> None:
        incarnation = process.incarnation(number)
        until(lambda: incarnation in self.certified, "a certificate")
        until(lambda: incarnation not in self.read().seats, "its end")

    def let_the_agent_look(self) -> None:
        """Return once the agent has noticed all earlier ends of processes: it reports one that ends later."""
        process = self.start()
        process.process.kill()
        self.await_certificate(process)

    def is_seated(self, process: WitnessedProcess) -> bool:
        return process.incarnation() in self.read().seats and process.incarnation() not in self.certified

    def close(self) -> None:
        self._stack.close()
