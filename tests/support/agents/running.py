"""An agent on a thread of this process: a real server on a real socket, over a real SQLite file."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn

from neli_router.agent.client.leading import BaseLeadingBlock
from neli_router.agent.server.server import Agent
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.config.reload import Reload
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.member.member import Member
from tests.support.waiting import PATIENCE, until

__all__ = [
    "BEARER",
    "DRAIN",
    "LEASE",
    "PARTITIONS",
    "PATIENCE",
    "STEADY",
    "TOKEN",
    "Events",
    "Running",
    "configured",
    "on_both_sockets",
    "over_once_told",
    "over_unix",
    "paired",
    "rest",
    "running",
]

LEASE = 0.4
STEADY = 5.0
"""A lease for tests that expect an exact sequence: a lease of 0.4 s is sometimes lost when tests take all cores."""
DRAIN = 20.0
"""Seconds that a successor waits for a program: longer than the work of a program that outlasts a STEADY lease."""

PARTITIONS = 8
TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - it gives access to nothing.
BEARER = {"authorization": f"Bearer {TOKEN}"}

Answer = TypeVar("Answer")
Block = TypeVar("Block", bound=BaseLeadingBlock[Any])


def configured(folder: Path, name: str = "a", **options: Any) -> Config:
    ledger = f"sqlite://{folder}/ledger.db"
    chosen: dict[str, Any] = {"lease": LEASE, "layout": Layout(partitions=PARTITIONS), "drain_timeout": DRAIN}
    return Config.of({"ledger": ledger, "name": name, **chosen, **options})


def on_both_sockets(folder: Path) -> AgentOptions:
    """The options of an agent with a Unix socket in `folder`, and a port that wants TOKEN."""
    return AgentOptions(socket=str(folder / "agent.sock"), listen="127.0.0.1:0", token=TOKEN)


def over_unix(path: str | None, **options: Any) -> httpx.Client:
    """A client of the agent at `path`, without certificates: loading them would take longer than most requests."""
    transport = httpx.HTTPTransport(uds=path, verify=False)
    return httpx.Client(transport=transport, base_url="http://agent", timeout=PATIENCE, **options)


def rest(client: socket.socket) -> bytes:
    """Everything that arrives until the connection ends, no matter how."""
    found = b""
    with suppress(ConnectionError):
        while more := client.recv(65536):
            found += more
    return found


class Events:
    """A stream of events, read as it arrives."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.read()
        self._lines = answer.iter_lines()

    def next(self) -> tuple[str, dict[str, Any]]:
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        return "", {}

    def next_called(self, *names: str) -> dict[str, Any]:
        """The next event with one of these names; others are skipped."""
        while True:
            name, view = self.next()
            assert name, f"the stream ended, and none of {names} came"
            if name in names:
                return view


class Running:
    """One agent, its loop and its thread."""

    def __init__(self, config: Config, options: AgentOptions, reload: Reload | None = None) -> None:
        self._config, self.options, self._reload = config, options, reload
        self._ready = threading.Event()
        self.error: BaseException | None = None
        self.agent: Agent
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=f"agent-{config.name}")

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def stop(self) -> None:
        """Ask it to stop, like SIGTERM. It ends when it is done."""
        with suppress(RuntimeError):  # It has ended, and its loop with it.
            self.loop.call_soon_threadsafe(self.agent.stop)

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def on_loop(self, ask: Callable[[], Answer]) -> Answer:
        async def asked() -> Answer:
            return ask()

        return asyncio.run_coroutine_threadsafe(asked(), self.loop).result(PATIENCE)

    @property
    def address(self) -> str:
        """The address of its port."""
        return f"http://{self.agent.tcp_address}"

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = (self.agent.tcp_address or "").rpartition(":")
        return host, int(port)

    def client(self, **options: Any) -> httpx.Client:
        """A client that connects over the Unix socket."""
        return over_unix(self.options.socket, **options)

    def stranger(self, **options: Any) -> httpx.Client:
        """A client that connects over TCP."""
        transport = httpx.HTTPTransport(verify=False)
        return httpx.Client(transport=transport, base_url=self.address, timeout=PATIENCE, **options)

    @contextmanager
    def connected(self, kind: str = "unix") -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as client:
            client.settimeout(PATIENCE)
            client.connect(self.options.socket or "" if kind == "unix" else self.place)
            yield client

    @contextmanager
    def events(self, path: str, **query: Any) -> Iterator[Events]:
        with self.client() as client, client.stream("GET", path, params=query or None) as answer:
            yield Events(answer)

    def is_ready(self) -> bool:
        with self.client() as client:
            return client.get("/ready").status_code == 200

    def await_ready(self) -> None:
        until(self.is_ready, "the agent's readiness")

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.agent = Agent(self._config, self.options, reload=self._reload)
            serving = asyncio.create_task(self.agent.serve())
            started = asyncio.create_task(self.agent.started.wait())
            await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():  # If it has ended, no test may begin: its error is raised.
                self._ready.set()
            started.cancel()
            await serving

        try:
            with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
                runner.run(main())
        except BaseException as error:  # noqa: BLE001 - for the test to look at.
            self.error = error
        finally:
            self._ready.set()


@contextmanager
def running(config: Config, options: AgentOptions, *, reload: Reload | None = None) -> Iterator[Running]:
    one = Running(config, options, reload)
    one.start()
    try:
        if one.error is not None:
            raise one.error
        yield one
    finally:
        if one.error is None:
            one.stop()
            one.stop()  # Do not wait for anything that a failed test has left open.
        one.join()


@contextmanager
def paired(folder: Path, **options: Any) -> Iterator[tuple[Running, Member]]:
    """The agent of a drained member "a", which leads nothing, and a member "b" that leads all and can hand it over."""
    config, its = (configured(folder, name, **{"lease": STEADY, **options}) for name in ("a", "b"))
    with Member(its) as other:
        other.operator.drain("a", timeout=PATIENCE)
        with running(config, AgentOptions(socket=f"{folder}/agent.sock")) as agent:
            until(lambda: PARTITIONS == len(other.led), "the lead of all partitions")  # Both wait for the same lease.
            agent.await_ready()
            yield agent, other


def over_once_told(block: Block) -> Block:
    """The timeout of `block` ends as soon as it knows why it waits, except for a ledger that is locked for a moment. A
    fixed short timeout could end before that on a busy machine, and the error would not say why."""
    hours = count(1)

    def clock() -> float:
        why = block.report.why
        return host_clock() + (3600.0 * next(hours) if why and "out of reach" not in why else 0.0)

    block.report.clock = clock
    return block
