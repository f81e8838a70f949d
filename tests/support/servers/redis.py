"""A real Redis for tests: Debian's redis-server, configured by each test, and killed, frozen and restarted.

    with Redis.started() as redis:                           on a free port of loopback and on a Unix socket
        redis.url("jobs")                                    "redis://127.0.0.1:4711/jobs"
        redis.kill()                                         SIGKILL; .freeze() SIGSTOP, .thaw() SIGCONT, .start() again
        redis.cli("GET", "key")                              what redis-cli prints
    Redis.started(settings={"appendonly": "yes"})            any setting of redis.conf
    Redis.started(tls=True)                                  with certificates of its own making: .url(), .ca
    with Sentinel.started() as group:                        a master, its replica and one sentinel
        group.url("jobs")                                    "redis+sentinel://127.0.0.1:4712/jobs?service=mymaster"

A restarted server keeps its port and its folder, and therefore its data, if its settings make it store any.

`python -m tests.support.servers.redis` starts one to experiment with, until Ctrl-C.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self, Unpack

from tests.support.servers.process import Options, ServerProcess, free_port, until_asked_to_end
from tests.support.waiting import until

__all__ = ["DURABLE", "Redis", "Sentinel", "missing"]

DURABLE: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "always"}
"""With these settings, a killed server loses nothing that it acknowledged."""

START_MAX = 180.0
PAUSE = 0.005


def missing() -> str:
    """Why Redis cannot run here; empty if it can."""
    absent = [program for program in ("redis-server", "redis-cli") if shutil.which(program) is None]
    return f"{' and '.join(absent)} cannot be found: apt-get install redis-server redis-tools" if absent else ""


class Redis(ServerProcess):
    """One server. It keeps its port, its socket and its folder when it is restarted.

    `prefix` goes before its command, such as `ip netns exec NAME`; the server then listens on `host` there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tls: bool = False,
        settings: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.tls, self.host, self.port, self._prefix = folder, tls, host, free_port(), prefix
        self.socket = str(folder / "redis.sock")
        self.ca = str(folder / "ca.crt")
        super().__init__(folder / "log")
        self._program = "redis-server"
        self.settings: dict[str, str] = {
            "bind": host,
            "protected-mode": "no",
            "port": "0" if tls else str(self.port),
            "unixsocket": self.socket,
            "dir": str(folder),
            "save": '""',
            "appendonly": "no",
            "daemonize": "no",
            **(settings or {}),
        }
        if tls:
            make_certificates(folder)
            self.settings |= {
                "tls-port": str(self.port),
                "tls-cert-file": str(folder / "server.crt"),
                "tls-key-file": str(folder / "server.key"),
                "tls-ca-cert-file": self.ca,
                "tls-auth-clients": "no",
            }

    @classmethod
    @contextmanager
    def started(cls, *, tls: bool = False, **options: Unpack[Options]) -> Iterator[Self]:
        """A context with a server that answers, made with these options; it is removed at the end."""
        # Not pytest's folder: a socket's path may have at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="neli-redis-") as folder:
            redis = cls(Path(folder), tls=tls, **options)
            try:
                redis.start()
                yield redis
            finally:
                redis.kill()

    def url(self, group: str, *, who: str = "") -> str:
        if self.tls:
            return f"rediss://{who}{self.host}:{self.port}/{group}?ca={self.ca}"
        return f"redis://{who}{self.host}:{self.port}/{group}"

    def unix_url(self, group: str, *, who: str = "") -> str:
        return f"redis+unix://{who}{self.socket}?group={group}"

    def start(self) -> None:
        lines = "".join(f"{name} {value}\n" for name, value in self.settings.items())
        configuration = self.folder / f"{self._program}.conf"
        if self._program == "redis-server" or not configuration.exists():  # A sentinel writes to its own configuration.
            configuration.write_text(lines)
        self.begin([*self._prefix, self._program, str(configuration)])
        self.wait()

    def wait(self) -> None:
        until(self._answers, "Redis", every=PAUSE)

    def _answers(self) -> bool:
        assert self.running, self.log()
        said = self.cli("PING", check=False)
        return "PONG" in said or "NOAUTH" in said

    def cli(self, *words: str, check: bool = True) -> str:
        """The output of redis-cli, over the Unix socket."""
        said = subprocess.run(
            ["redis-cli", *self._where(), *words],  # noqa: S607
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_MAX,
            check=check,
        )
        # It exits with 0 no matter what the server answers.
        assert not (check and said.stdout.startswith(("ERR", "NO", "WRONG"))), said.stdout
        return said.stdout.removesuffix("\n")

    def _where(self) -> list[str]:
        return ["-s", self.socket]


class _Watcher(Redis):
    """One redis-sentinel."""

    def __init__(self, folder: Path, master: Redis) -> None:
        super().__init__(folder)
        self._program = "redis-sentinel"
        for name in ("save", "appendonly", "unixsocket"):  # A sentinel knows none of these.
            del self.settings[name]
        name = "mymaster"
        self.settings |= {
            f"sentinel monitor {name}": f"127.0.0.1 {master.port} 1",
            f"sentinel down-after-milliseconds {name}": "500",
            f"sentinel failover-timeout {name}": "3000",
        }

    def _where(self) -> list[str]:
        return ["-p", str(self.port)]


class Sentinel:
    """A master, a replica that follows it, and a sentinel that promotes the replica when the master is away."""

    def __init__(self, folder: Path) -> None:
        # Synchronise without waiting for more replicas, or a test would have to wait.
        common = {"repl-diskless-sync-delay": "0"}
        self.master = Redis(folder / "master", settings=common)
        following = {**common, "replicaof": f"127.0.0.1 {self.master.port}"}
        self.replica = Redis(folder / "replica", settings=following)
        self.watcher = _Watcher(folder / "sentinel", self.master)

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Self]:
        with tempfile.TemporaryDirectory(prefix="neli-redis-") as folder, ExitStack() as stack:
            group = cls(Path(folder))
            for server in (group.master, group.replica):
                stack.callback(server.kill)
                server.start()
            until(lambda: "master_link_status:up" in group.replica.cli("INFO", "replication"))
            stack.callback(group.watcher.kill)
            group.watcher.start()
            until(lambda: "num-slaves\n1" in group.watcher.cli("SENTINEL", "MASTER", "mymaster"))
            yield group

    def url(self, group: str) -> str:
        return f"redis+sentinel://127.0.0.1:{self.watcher.port}/{group}?service=mymaster"

    def await_copies(self, *words: str) -> None:
        """Wait until this command has the same answer on both. WAIT does not help: it waits for its own client only."""
        until(lambda: self.replica.cli(*words) == self.master.cli(*words))

    def await_failover(self) -> None:
        """Wait until the replica is the master, and the sentinel reports it."""
        port = str(self.replica.port)
        until(lambda: port in self.watcher.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"))
        until(lambda: "role:master" in self.replica.cli("INFO", "replication"))


def make_certificates(folder: Path) -> None:
    """A certificate authority (ca.crt), and its certificate for 127.0.0.1 (server.crt, server.key)."""
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n"
    (folder / "names").write_text(f"{names}authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    commands = (
        f"req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=tests -addext keyUsage=critical,keyCertSign",
        f"req {key} -keyout server.key -out server.csr -subj /CN=127.0.0.1",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -out server.crt -days 2 -extfile names",
    )
    for command in commands:
        subprocess.run(
            ["openssl", *command.split()],  # noqa: S607
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )


def main() -> None:
    if why := missing():
        sys.exit(f"a Redis was wanted, but {why}")
    with until_asked_to_end(), Redis.started() as redis:
        print(f"Redis at {redis.url('jobs')} and {redis.unix_url('jobs')} (Ctrl-C ends it)", flush=True)  # noqa: T201
        signal.pause()


if __name__ == "__main__":
    main()
