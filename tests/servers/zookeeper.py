"""A real ZooKeeper to measure ourselves against: one node on loopback, from jars that Maven brings.

    zookeeper.xml --mvn--> .make/zookeeper-3.9.4/*.jar --ZooKeeperServerMain--> one server

    with ZooKeeper.started(session=0.3) as zookeeper:
        zookeeper.address            "127.0.0.1:4711"

By default no session is shorter than four seconds: two ticks of two seconds. `session` is the shortest that this one
grants, and its tick, which sessions' ends are rounded up to, is a fifth of that.
"""

import fcntl
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.servers.kafka import free_port

__all__ = ["VERSION", "ZooKeeper", "missing"]

VERSION = "3.9.4"
ROOT = Path(__file__).parents[2]
JARS = ROOT / ".make" / f"zookeeper-{VERSION}"

FETCH_MAX = 300.0
START_MAX = 60.0
STOP_MAX = 20.0
PAUSE = 0.05
HEAP = "128m"
TICKS_PER_SESSION = 5


def missing() -> str:
    """Why there can be no ZooKeeper here, or nothing."""
    if shutil.which("java") is None:
        return "java is not installed"
    if not (JARS / "ready").exists() and shutil.which("mvn") is None:
        return f"mvn is not installed, and {JARS} has no jars"
    return ""


def classpath() -> str:
    """The jars, fetched by the first who asks."""
    JARS.mkdir(parents=True, exist_ok=True)
    with (JARS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (JARS / "ready").exists():
            pom = Path(__file__).with_name("zookeeper.xml")
            made = subprocess.run(
                ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"],  # noqa: S607
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=FETCH_MAX,
                check=False,
            )
            assert made.returncode == 0, f"mvn could not bring ZooKeeper:\n{made.stdout[-2000:]}{made.stderr[-2000:]}"
            (JARS / "ready").touch()
    return f"{JARS}/*"


class ZooKeeper:
    """One server, with a folder of its own."""

    def __init__(self, folder: Path, session: float) -> None:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._log = folder / "log"
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
        """A server that answers, gone at the end."""
        with tempfile.TemporaryDirectory(prefix="neli-zookeeper-") as folder:
            zookeeper = cls(Path(folder), session)
            options = [f"-Xmx{HEAP}", f"-Xms{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
            main = "org.apache.zookeeper.server.ZooKeeperServerMain"
            command = ["java", *options, "-cp", classpath(), main, str(zookeeper._settings)]
            with zookeeper._log.open("wb") as log:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                zookeeper.wait(process)
                yield zookeeper
            finally:
                process.kill()
                process.wait(STOP_MAX)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until it says how it is; `srvr` is the one word that it answers by default."""
        give_up_at = time.monotonic() + START_MAX
        while time.monotonic() < give_up_at and process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as asking:
                asking.sendall(b"srvr")
                if asking.recv(100).startswith(b"Zookeeper version"):
                    return
            time.sleep(PAUSE)
        raise AssertionError(f"ZooKeeper did not start within {START_MAX} s:\n{self._log.read_text()[-3000:]}")
