"""A real ZooKeeper to measure ourselves against: one node on loopback, from the jars of `make fetch`.

    .make/zookeeper-3.9.4/*.jar --ZooKeeperServerMain--> one server

    with ZooKeeper.started(session=0.3) as zookeeper:
        zookeeper.address            "127.0.0.1:4711"

By default, no session is shorter than four seconds: two ticks of two seconds. `session` is the shortest session that
this server grants. Its tick, to which the ends of sessions are rounded up, is a fifth of that.
"""

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.support.servers.jars import ZOOKEEPER as JARS
from tests.support.servers.process import ServerProcess, free_port

__all__ = ["ZooKeeper", "missing"]


START_MAX = 240.0
PAUSE = 0.05
HEAP = "128m"
TICKS_PER_SESSION = 5


def missing() -> str:
    """Why ZooKeeper is not available here; empty if it is."""
    return JARS.missing()


class ZooKeeper(ServerProcess):
    """One server, with a folder of its own."""

    def __init__(self, folder: Path, session: float) -> None:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        super().__init__(folder / "log")
        settings = {
            "tickTime": max(1, round(1e3 * session / TICKS_PER_SESSION)),
            "minSessionTimeout": round(1e3 * session),
            "maxSessionTimeout": 60_000,
            "dataDir": folder / "data",
            "clientPortAddress": "127.0.0.1",
            "clientPort": self._port,
            "admin.enableServer": "false",
        }
        self._settings = folder / "zoo.cfg"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @classmethod
    @contextmanager
    def started(cls, session: float) -> Iterator[Self]:
        """A running server, which is stopped at the end."""
        with tempfile.TemporaryDirectory(prefix="neli-zookeeper-") as folder:
            zookeeper = cls(Path(folder), session)
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            try:
                zookeeper.begin(JARS.command(main, str(zookeeper._settings), heap=HEAP))
                zookeeper.wait()
                yield zookeeper
            finally:
                zookeeper.kill()

    def wait(self) -> None:
        """Wait until it reports its status; `srvr` is the only command that it answers by default."""
        give_up_at = time.monotonic() + START_MAX
        while time.monotonic() < give_up_at and self.running:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as asking:
                asking.sendall(b"srvr")
                if asking.recv(100).startswith(b"Zookeeper version"):
                    return
            time.sleep(PAUSE)
        raise AssertionError(f"ZooKeeper did not start within {START_MAX} s:\n{self.log()}")
