"""One server process, which tests kill, freeze and restart.

begin(command) --> running --kill, stop--> ended --begin--> running ...
                      '--freeze (SIGSTOP)--> still there, says nothing --thaw (SIGCONT)--> running
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from neli_router.hosts.leash import leashed
from neli_router.lab.processes.group import send
from tests.support.waiting import PATIENCE

__all__ = ["Options", "ServerProcess", "free_port", "free_udp_ports", "until_asked_to_end"]

PORTS_FROM = 10_000
"""Lower ports belong to services of the machine."""

_claims: list[socket.socket] = []
"""Held for as long as this process lives."""

_udp_claims: deque[socket.socket] = deque()

UDP_CLAIMS_MAX = 256
"""Only the latest are held: peers end with their test, and each test adds some. Longer lists use more descriptors."""


def free_port() -> int:
    """A free port, which stays free until something listens on it: a server takes a while to start.

    The kernel hands out ports above its lowest one to programs that ask for any port, and to every connection. So this
    port is below that range, and no other test process gets it while this process lives.
    """
    port, claim = _claimed(socket.SOCK_STREAM)
    _claims.append(claim)
    return port


def free_udp_ports(count: int) -> list[int]:
    """The same for datagrams: that many ports, in order."""
    assert count <= UDP_CLAIMS_MAX
    ports = []
    for _ in range(count):
        port, claim = _claimed(socket.SOCK_DGRAM)
        ports.append(port)
        _udp_claims.append(claim)
        if len(_udp_claims) > UDP_CLAIMS_MAX:
            _udp_claims.popleft().close()
    return sorted(ports)


def _claimed(kind: socket.SocketKind) -> tuple[int, socket.socket]:
    """A port, and the claim that keeps all other test processes away from it."""
    while True:
        port = random.SystemRandom().randrange(PORTS_FROM, _ports_below())
        claim = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                claim.bind(f"\0neli-test-port-{port}")  # A name without a file, which vanishes with the process.
            with socket.socket(socket.AF_INET, kind) as trial:
                trial.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        return port, claim


def _ports_below() -> int:
    """The lowest port that the kernel hands out; if it hands out all ports, none is better than another."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except OSError:
        lowest = 49_152  # As on other systems.
    return lowest if lowest > PORTS_FROM else 65_536


@contextlib.contextmanager
def until_asked_to_end() -> Iterator[None]:
    """Let the block end, and clean up, when this program is asked to end: otherwise it would leave its servers behind.

    SIGINT counts even if a shell has set it to be ignored, which shells do for background programs.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        yield


class Options(TypedDict, total=False):
    """Callers may give any of them."""

    settings: Mapping[str, str]
    host: str
    prefix: tuple[str, ...]


class ServerProcess:
    """Its output goes to `log_file`, one life after another."""

    def __init__(self, log_file: Path) -> None:
        self._log = log_file
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        """Start it, in the environment of this process unless another is given."""
        assert self._process is None, "it runs already"
        assert threading.current_thread() is threading.main_thread(), "it would end with its thread"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                leashed(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """The end of its output."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def start(self) -> None:
        """Begin its command, and wait until it answers."""
        raise NotImplementedError

    def restart(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def reap(self) -> None:
        """Wait for its end, after another process has killed it."""
        process, self._process = self._process, None
        if process is not None:
            process.wait(PATIENCE)

    def freeze(self) -> None:
        send(signal.SIGSTOP, self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # The group, because a prefix such as `ip netns exec` may come before it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, how)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
