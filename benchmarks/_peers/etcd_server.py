"""A real etcd to measure ourselves against: Debian's etcd-server, one node on loopback.

    with Etcd.started() as etcd:
        etcd.address                 "127.0.0.1:4711", for its JSON gateway at /v3/...

Its shortest lease is one and a half times its election timeout, rounded up to whole seconds. With the default timeout
of a second, this is two seconds. Here the timeout is half a second, so leases of one second are granted.
"""

import http.client
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.support.servers.process import ServerProcess, free_port

__all__ = ["Etcd", "missing"]

START_MAX = 180.0
PAUSE = 0.02

ELECTION_MS = 500
HEARTBEAT_MS = 50


def missing() -> str:
    """Why etcd is not available here; empty if it is."""
    return "" if shutil.which("etcd") else "etcd cannot be found: apt-get install etcd-server"


class Etcd(ServerProcess):
    """One server, with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(folder / "log")
        peer = f"http://127.0.0.1:{free_port()}"
        self._command = [
            "etcd",
            *("--name", "one", "--data-dir", str(folder / "data")),
            *("--listen-client-urls", f"http://{self.address}", "--advertise-client-urls", f"http://{self.address}"),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
            *("--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS)),
        ]

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Self]:
        """A running server, which is stopped at the end."""
        with tempfile.TemporaryDirectory(prefix="neli-etcd-") as folder:
            etcd = cls(Path(folder))
            try:
                etcd.begin(etcd._command)
                etcd.wait()
                yield etcd
            finally:
                etcd.kill()

    def wait(self) -> None:
        """Wait until it reports that it is healthy."""
        host, _, port = self.address.partition(":")
        give_up_at = time.monotonic() + START_MAX
        while time.monotonic() < give_up_at and self.running:
            connection = http.client.HTTPConnection(host, int(port), timeout=1)
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/health")
                if connection.getresponse().status == http.client.OK:
                    connection.close()
                    return
            connection.close()
            time.sleep(PAUSE)
        raise AssertionError(f"etcd did not start within {START_MAX} s:\n{self.log()}")
