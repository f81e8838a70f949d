"""A host's agent in a process of its own: the witness of the members that are started with its `environment`.

    start --> STARTING --it answers, and is a member--> READY --kill--> gone --start--> ...
                                                         | stop ... resume

Its weight is 0 if it is not told otherwise: it leads nothing, so the referee judges nothing of it. It ends with this
process, as all its like.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from neli_router.agent import Client
from neli_router.closing import Closing
from neli_router.errors import NeliError
from neli_router.leash import leashed

__all__ = ["HostAgent"]

NAME = "witness"

READY_MAX = 180.0
"""Seconds. It takes a lease and one second, and longer where the ledger is away."""

LOOK_EVERY = 0.02


class HostAgent(Closing):
    """Use `start` first. `config` is what the members of its group are given; `prefix` stands before its command, which
    it must become by `exec`. Started on the main thread, because the kernel ends it with the thread that started it."""

    def __init__(self, config: Mapping[str, Any], *, prefix: Sequence[str] = ()) -> None:
        # Not the test's folder: the path of a socket has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="neli-host-")
        self._log = Path(self._folder.name, "agent.log")
        self.socket = f"{self._folder.name}/agent.sock"
        self.environment = {"NELI_AGENT": self.socket}
        """Of the members that it is to watch."""
        named = {"name": NAME, "weight": 0, **config, "socket": self.socket}
        self._name = named["name"]
        arguments = [argument for option, value in named.items() for argument in _arguments(option, value)]
        # The prefix comes first, as it may be a program that the leash does not survive.
        self._command = [*prefix, *leashed([sys.executable, "-m", "neli_router", "agent", *arguments])]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and do not wait."""
        # What was set for the tests is no variable of an agent's, and it refuses such.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NELI_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log, process_group=0)

    def await_ready(self) -> None:
        """Until it is a member, and so can say what it sees."""
        give_up_at = time.monotonic() + READY_MAX
        while not self._is_member():
            assert self.is_running, f"the agent was to join, and has ended:\n{self.log}"
            assert time.monotonic() < give_up_at, f"the agent was to join:\n{self.log}"
            time.sleep(LOOK_EVERY)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a stopped process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it with kill -9. One that is gone is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Let it stand still."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was started"
        self._process.send_signal(number)

    def _is_member(self) -> bool:
        with suppress(NeliError), Client(self.socket) as client:
            return any(member.name == self._name for member in client.members().members)
        return False


def _arguments(option: str, value: object) -> list[str]:
    flag = f"--{option.replace('_', '-')}"
    if isinstance(value, Mapping):
        return [argument for inner, size in value.items() for argument in _arguments(f"{option}-{inner}", size)]
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, str(value)]
