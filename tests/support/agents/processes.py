"""Agents as real processes, which tests kill and drain, and which notice the deaths of members on their host."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from neli_router.agent import Client
from neli_router.core.closing import Closing
from neli_router.errors import NeliError
from neli_router.hosts.leash import leashed
from neli_router.lab.processes.group import send
from tests.support.given import spelled
from tests.support.waiting import PATIENCE, until

__all__ = ["PARTITIONS", "AgentProcess", "agents", "is_settled", "leader_of"]

PARTITIONS = 8

LEASE = 5.0
"""Seconds. A busy machine may leave an agent without a core for the length of a shorter lease, which is then lost."""

SERVE = "from neli_router.commands.cli import main; main()"


class AgentProcess(Closing):
    """`neli agent`, in a process group of its own, below a leash. `options` are its configuration.

    It is a member once created, unless it is to be `begun` later. `prefix` goes before its command, which the prefix
    must become by `exec`.
    """

    def __init__(
        self, name: str, folder: Path, *flags: str, prefix: Sequence[str] = (), begun: bool = True, **options: Any
    ) -> None:
        self.name, self.socket, self.log = name, folder / f"{name}.sock", folder / f"{name}.log"
        self.environment = {"NELI_AGENT": str(self.socket)}
        """The environment variables of the members that it watches."""
        chosen = {
            "ledger": f"sqlite://{folder}/ledger.db",
            "lease": LEASE,
            "drain_timeout": 5.0,
            "layout": {"partitions": PARTITIONS},
            **options,
            "name": name,
            "socket": self.socket,
        }
        words = [word for option, value in chosen.items() for word in _words(option, value)]
        # The prefix comes first, because the leash may not survive that program.
        self._command = [*prefix, *leashed([sys.executable, "-P", "-c", SERVE, "agent", *words, *flags])]
        self._process: subprocess.Popen[bytes] | None = None
        if begun:
            self.start()

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    @property
    def connection(self) -> str:
        """The text for AIRFLOW_CONN_NELI_DEFAULT."""
        return spelled(address=self.address)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def client(self) -> Client:
        return Client(self.address, timeout=PATIENCE)

    def start(self) -> None:
        self.begin()
        try:
            self.await_member()
        except BaseException:
            self.close()  # Otherwise it would outlive the test and cost later tests a core.
            raise

    def begin(self) -> None:
        """Start it, without waiting."""
        assert threading.current_thread() is threading.main_thread(), "it would end with its thread"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NELI_")}
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def await_member(self) -> None:
        until(self._is_member, f"the membership of the agent {self.name}")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a stopped process counts as running."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it as if the host had lost its power. Does nothing if it is already gone."""
        if self._process is not None and self.is_running:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Stop it, so that it stands still."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def leave(self) -> int:
        """Ask it to end; return its exit code."""
        self.signal(signal.SIGTERM)
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        send(number, -self.pid)

    def close(self) -> None:
        self.kill()

    def _is_member(self) -> bool:
        assert self.is_running, self.log.read_text()
        try:
            with self.client() as client:
                return client.status().member == "member"
        except NeliError:
            return False


def _words(option: str, value: object) -> list[str]:
    """An option of the command line."""
    flag = f"--{option.replace('_', '-')}"
    if isinstance(value, Mapping):
        return [word for inner, size in value.items() for word in _words(f"{option}-{inner}", size)]
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, str(value)]


@contextmanager
def agents(folder: Path, *names: str, lease: float = LEASE, drain_timeout: float = 5.0) -> Iterator[list[AgentProcess]]:
    """That many agents, once each partition is led by the member that should lead it."""
    with ExitStack() as stack:
        all_of_them = [
            stack.enter_context(AgentProcess(name, folder, lease=lease, drain_timeout=drain_timeout)) for name in names
        ]
        until(lambda: is_settled(all_of_them), "the balance of the group")
        yield all_of_them


def leader_of(role: int, group: list[AgentProcess]) -> AgentProcess:
    """The agent that leads `role` now."""

    def leads(agent: AgentProcess) -> bool:
        with agent.client() as client:
            return client.lease(role) is not None

    return until(lambda: list(filter(leads, group)), f"a leader of role {role}")[0]


def is_settled(group: list[AgentProcess]) -> bool:
    """Whether, by what each agent has read, all have their share, and each partition is led."""
    led: set[int] = set()
    for agent in group:
        with agent.client() as client:
            table = client.table().partitions
            owners = {one.owner for one in table}
            if None in owners or len(owners) < len(group) or any(one.owner != one.target for one in table):
                return False
            led |= {partition for partition in range(len(table)) if client.lease(partition) is not None}
    return len(led) == PARTITIONS
