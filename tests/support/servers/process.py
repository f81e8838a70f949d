"""One process of a server, which tests kill, freeze and start again.

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

from neli_router.hosts.leash import leashed

__all__ = ["ServerProcess", "free_port", "free_udp_ports", "until_asked_to_end"]

STOP_MAX = 20.0

PORTS_FROM = 10_000
"""Below, services of the machine have their places."""

_claims: list[socket.socket] = []
"""Kept for as long as this process lives."""

_udp_claims: deque[socket.socket] = deque()

UDP_CLAIMS_MAX = 256
"""Kept are the latest: peers end with their test, and each test has some more. Longer lists take more descriptors."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free, and stays so until it is listened at: a server takes a while to start.

    The kernel gives ports above its lowest to all that ask for any, and to every connection that is made. So it is one
    from below; and no other process of the tests is given it while this one lives.
    """
    port, claim = _claimed(socket.SOCK_STREAM, host)
    _claims.append(claim)
    return port


def free_udp_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """The same for datagrams: so many ports, in order."""
    assert count <= UDP_CLAIMS_MAX
    ports = []
    for _ in range(count):
        port, claim = _claimed(socket.SOCK_DGRAM, host)
        ports.append(port)
        _udp_claims.append(claim)
        if len(_udp_claims) > UDP_CLAIMS_MAX:
            _udp_claims.popleft().close()
    return sorted(ports)


def _claimed(kind: socket.SocketKind, host: str) -> tuple[int, socket.socket]:
    """A port, and what keeps it from all other processes of the tests."""
    while True:
        port = random.SystemRandom().randrange(PORTS_FROM, _ports_below())
        claim = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                claim.bind(f"\0neli-test-port-{port}")  # A name without a file, which ends with the process.
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as trial:
                trial.bind((host, port))
        except OSError:
            claim.close()
            continue
        return port, claim


def _ports_below() -> int:
    """The lowest port that the kernel gives out; where it gives out all of them, there is none better than others."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except OSError:
        lowest = 49_152  # As on other systems.
    return lowest if lowest > PORTS_FROM else 65_536


@contextlib.contextmanager
def until_asked_to_end() -> Iterator[None]:
    """What is inside ends, and cleans up, when this program is asked to end: it alone would leave its servers behind.

    SIGINT counts also where a shell has it ignored, as it does for what it starts in the background.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        yield


class ServerProcess:
    """What it says goes into `log_file`, each life after the other."""

    def __init__(self, log_file: Path) -> None:
        self._log = log_file
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        """Start it, with the environment of this process unless another is given."""
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
        """The end of what it said."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def reap(self) -> None:
        """Another has killed it: wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            process.wait(STOP_MAX)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # The group, because a prefix such as `ip netns exec` may stand before it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, how)
        try:
            process.wait(STOP_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_MAX)
