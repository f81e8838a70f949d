"""The cost of strangers at an agent's port: to its lease, to a running `neli run`, to its memory and to its owner.

an agent with a port, lease 1 s, and a `neli run` that holds a role, in real processes on one SQLite ledger
this process        the owner: one look-up every few milliseconds, over a new connection to the agent's own socket;
                    and a probe: /health over the port each second, as Kubernetes asks
another process     strangers without the token, one kind after another: tests/support/agents/strangers.py

fenced              how often the member lost what it led: 0
runs_killed         how often `neli run` ended its command: 0
rss_mib_max         the memory of the agent and its door together
socket_ms_p99       the owner's look-ups: the worst of all kinds of attack; @calm is without an attack
probes_failed       probes of /health over the port without a 200 within a second
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import quantiles

from benchmarks import BenchmarkOptions, Figures, option
from tests.support.agents.strangers import ATTACKS, attack
from tests.support.waiting import PATIENCE, until

__all__ = ["Options", "run"]

LEASE = 1.0
PACE = 0.005
SAMPLE_EVERY = 0.1
PROBE_EVERY = 1.0
PROBE_MAX = 1.0
CALM = "calm"
TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - it opens nothing.
NELI = "from neli_router.commands.cli import main; main(prog_name='neli')"
LOOK_UP = b"GET /v1/owner?key=customer-7 HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n"


class Options(BenchmarkOptions):
    seconds: float = option(60.0, "of each kind of attack")
    kinds: str = option(",".join(ATTACKS), "those to try")
    partitions: int = option(256, "of the group: a status has 100 bytes for each")

    def __post_init__(self) -> None:
        if unknown := set(self.kinds.split(",")) - ATTACKS.keys():
            raise ValueError(f"unknown attack: {', '.join(sorted(unknown))}; known attacks: {', '.join(ATTACKS)}")


def run(options: Options) -> Figures:
    kinds = options.kinds.split(",")
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="neli-") as folder, _host(Path(folder), options.partitions) as host:
        for kind in (CALM, *kinds):
            seconds = min(10.0, options.seconds) if kind == CALM else options.seconds
            figures |= asyncio.run(host.measure(kind, seconds))
        fenced, killed = host.fenced(), host.killed
    attacked = [f"@{kind}" for kind in kinds]
    return {
        "fenced": fenced,
        "runs_killed": killed,
        "rss_mib_max": max(_number(figures, f"rss_mib{kind}") for kind in attacked),
        "socket_ms_p99": max(_number(figures, f"socket_ms_p99{kind}") for kind in attacked),
        "probes_failed": sum(_number(figures, f"probes_failed{kind}") for kind in attacked),
        **figures,
        "seconds": options.seconds,
        "partitions": options.partitions,
        "lease_s": LEASE,
    }


class AttackedHost:
    """The agent and the `neli run` of one host, and its owner."""

    def __init__(self, folder: Path, agent: int, port: int) -> None:
        self._folder, self._agent, self._port = folder, agent, port
        self._socket = f"{folder}/agent.sock"
        self._run: subprocess.Popen[bytes] | None = None
        self.killed = 0

    async def measure(self, kind: str, seconds: float) -> Figures:
        self._start_run()
        took: list[float] = []
        memory: list[int] = []
        failed: list[str] = []
        with self._attackers(kind):
            watches = [
                asyncio.create_task(watch) for watch in (self._own(took), self._probe(failed), self._weigh(memory))
            ]
            await asyncio.sleep(seconds)
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        self._look_at_run()
        return {
            f"socket_ms_p99@{kind}": 1e3 * quantiles(took, n=100)[98],
            f"socket_ms_max@{kind}": 1e3 * max(took),
            f"rss_mib@{kind}": max(memory) / 2**20,
            f"probes_failed@{kind}": len(failed),
        }

    def fenced(self) -> int:
        """How often the member was fenced, as the agent counts it."""
        with socket.socket(socket.AF_UNIX) as asker:
            asker.settimeout(PATIENCE)
            asker.connect(self._socket)
            asker.sendall(METRICS)
            said = b""
            while more := asker.recv(65536):
                said += more
        (line,) = [line for line in said.splitlines() if line.startswith(b"neli_fenced_total ")]
        return int(float(line.split()[1]))

    def _start_run(self) -> None:
        if self._run is None:
            begun = self._folder / "begun"
            begun.unlink(missing_ok=True)
            command = ("sh", "-c", f"echo > {begun}; exec sleep 100000")
            self._run = _neli("run", "--partition", "1", "--agent", self._socket, "--", *command)
            until(begun.exists, "the command of neli run")

    def _look_at_run(self) -> None:
        assert self._run is not None
        if self._run.poll() is not None:
            self.killed += 1
            self._run = None

    def stop_run(self) -> None:
        if self._run is not None:
            self._run.send_signal(signal.SIGTERM)
            self._run.wait(PATIENCE)

    @contextmanager
    def _attackers(self, kind: str) -> Iterator[None]:
        if kind == CALM:
            yield
            return
        with subprocess.Popen([sys.executable, "-m", "benchmarks.attack", kind, str(self._port)]) as strangers:
            try:
                yield
            finally:
                strangers.kill()

    async def _own(self, took: list[float]) -> None:
        while True:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(PATIENCE):
                    reader, writer = await asyncio.open_unix_connection(self._socket)
                    writer.write(LOOK_UP)
                    said = await reader.read()
                assert b"200 OK" in said, said
                writer.close()
            except (OSError, TimeoutError, AssertionError):
                took.append(PATIENCE)  # A refusal is as bad as no answer.
            else:
                took.append(time.perf_counter() - began)
            await asyncio.sleep(PACE)

    async def _probe(self, failed: list[str]) -> None:
        while True:
            try:
                async with asyncio.timeout(PROBE_MAX):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    writer.write(HEALTH)
                    said = await reader.read()
                if b" 200 " not in said[:20]:
                    failed.append(said[:40].decode("latin-1"))
                writer.transport.abort()
            except (OSError, TimeoutError) as error:
                failed.append(type(error).__name__)
            await asyncio.sleep(PROBE_EVERY)

    async def _weigh(self, memory: list[int]) -> None:
        while True:
            memory.append(sum(map(_memory, (self._agent, *_children(self._agent)))))
            await asyncio.sleep(SAMPLE_EVERY)


@contextmanager
def _host(folder: Path, partitions: int) -> Iterator[AttackedHost]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = folder / "token"
    token.write_text(TOKEN, "ascii")
    token.chmod(0o600)
    own = ("--socket", f"{folder}/agent.sock", "--listen", f"127.0.0.1:{port}", "--token-file", f"{token}")
    group = (
        "--ledger",
        f"sqlite:///{folder}/ledger.db",
        "--name",
        "agent",
        "--lease",
        f"{LEASE}",
        "--layout-partitions",
        f"{partitions}",
    )
    with ExitStack() as stack:
        agent = stack.enter_context(_neli("agent", *group, *own, "--log-level", "warning"))
        stack.callback(agent.terminate)
        until(Path(f"{folder}/agent.sock").exists, "the agent's socket")
        host = AttackedHost(folder, agent.pid, port)
        stack.callback(host.stop_run)
        yield host


def _neli(*words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", NELI, *words])


def _memory(process: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _children(process: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()]
    return []


def _number(figures: Figures, name: str) -> float:
    found = figures[name]
    assert isinstance(found, float | int)
    return found


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(attack(sys.argv[1], "127.0.0.1", int(sys.argv[2])))
