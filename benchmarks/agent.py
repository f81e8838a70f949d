"""The cost of an agent's answers: look-ups, changes for waiting clients, a thousand such clients, and registrations.

    this process: clients --raw HTTP over the Unix socket--> an agent in its own process, on one core
         '---- a member "other" of the same group, which gives partitions to the agent and takes them back

The clients are bare sockets and write the same bytes each time, so they cost little compared with the agent. They run
on the other cores, if there are any.

    owner_request_ms_p50        one client, one look-up after another
    requests_per_second         look-ups by fifty clients, each with one in flight
    hurt                        p95 of a good client among slow and broken ones, over its p95 without them
    idle_core_share             the agent's share of a core, with a thousand waiting clients: a third each long polls,
                                streams of leadership, and watches; nothing happens
    bare_core_share             the same without waiting clients
    change_ms_p95               from the append of the Handover to the `owner` event of a client that watches,
    acquired_ms_p95             to the `acquired` of one that waits to lead, by a stream,
    polled_ms_p95               and to the answer of a long poll; all while the thousand others wait
    registering_ms_p50          a member of this host asks the agent to report its death, until the answer: this is the
                                extra time of a start with a witness
    start_ms_p50, unwitnessed_start_ms_p50    a Member until its constructor returns, with and without that, in turn
    looking_ns                  the cost for each step of a witnessed member
    more_threads                extra threads of a witnessed member
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import cast

import uvicorn

from benchmarks import BenchmarkOptions, Figures, option
from benchmarks._agent import LEASE, PARTITIONS, configured
from benchmarks._handle import Handle
from neli_router.config.config import Config
from neli_router.config.protocols import Induction
from neli_router.core.clock import host_clock
from neli_router.drivers.ledgers.base import Ledger
from neli_router.member.member import Member
from neli_router.member.runtime import Runtime
from neli_router.member.witness.base import OwnLife
from neli_router.member.witness.registration import Registration
from neli_router.protocols.induction.fold import State
from tests.support.waiting import PATIENCE, until

__all__ = ["REQUEST", "Options", "processor_seconds", "run", "started_agent", "until_ready"]

CLIENTS = 50

ROLE = 0
"""This role moves back and forth. All other roles that clients wait for are pinned to the other member."""
WAITED_FOR = range(1, 33)

PACE = 0.001
"""Seconds between two look-ups of the good client among bad ones."""

SLOW, DEAF, BROKEN = 30, 10, 20
"""Clients that send a byte now and then; that ask for much and do not read it; that send garbage and hang up."""
LOOK_UP = b"GET /v1/owner?key=customer-7 HTTP/1.1\r\nhost: agent\r\n\r\n"
REQUEST = b"GET %b HTTP/1.1\r\nhost: agent\r\n\r\n"


class Stamped(Handle):
    """Remembers when the last Handover was appended: the moment before, on the host's clock."""

    handed_over_at = 0.0

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        now = host_clock()
        super().append(payloads, lasting=lasting)
        if any(b'"kind":"handover"' in payload for payload in payloads):
            self.handed_over_at = now


class Stamping(Runtime):
    """The production runtime, with such a ledger."""

    stamped: Stamped

    def ledger(self, config: Config) -> Ledger:
        self.stamped = Stamped(super().ledger(config))
        return self.stamped


class Options(BenchmarkOptions):
    requests: int = option(3000, "look-ups by the one client")
    seconds: float = option(5.0, "of look-ups by fifty clients")
    changes: int = option(60, "changes of owner that clients wait for")
    waiting: int = option(1000, "clients that wait while nothing happens")
    registrations: int = option(200, "members that ask for a report of their death")
    idle_seconds: float = option(10.0, "for how long nothing happens")


def run(options: Options) -> Figures:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    with tempfile.TemporaryDirectory(prefix="neli-") as folder, started_agent(folder, cores[-1]) as process:
        if len(cores) > 1:
            os.sched_setaffinity(0, set(cores[:-1]))
        loop = uvicorn.Config("", log_config=None).get_loop_factory()
        with asyncio.Runner(loop_factory=loop) as runner:
            figures = runner.run(_measure(f"{folder}/agent.sock", folder, process, options))
        if len(cores) > 1:
            os.sched_setaffinity(0, set(cores))
    return {**figures, "clients": CLIENTS, "partitions": PARTITIONS, "lease_s": LEASE}


@contextmanager
def started_agent(folder: str, core: int) -> Iterator[int]:
    """Yields the agent's process number."""
    program = [sys.executable, "-m", "benchmarks._agent", folder, str(core)]
    with subprocess.Popen(program, cwd=Path(__file__).resolve().parent.parent) as process:
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


async def _measure(path: str, folder: str, process: int, options: Options) -> Figures:
    await until_ready(path)
    registering = await asyncio.to_thread(_register, path, folder, max(2, options.registrations))
    one = await _alone(path, options.requests)
    many = await _together(path, options.seconds)
    hurt = await _hurt(path, options.requests)
    runtime = Stamping()
    with await asyncio.to_thread(Member, configured(folder, "other"), runtime=runtime) as other:
        await asyncio.to_thread(_gather, other)
        bare = await _core_share(process, options.idle_seconds)
        async with AsyncExitStack() as stack:
            for number in range(options.waiting):
                stack.callback((await _wait(path, number)).close)
            await asyncio.sleep(1.0)
            waiting = await _waiting(path)
            idle = await _core_share(process, options.idle_seconds)
            changes = [await _change(path, other, runtime) for _ in range(options.changes)]
    watched, acquired, polled = ([1e3 * took[kind] for took in changes] for kind in range(3))
    return {
        "owner_request_ms_p50": 1e3 * median(one),
        "owner_request_ms_p99": 1e3 * quantiles(one, n=100)[98],
        "requests_per_second": many,
        "hurt": hurt,
        "idle_core_share": idle,
        "bare_core_share": bare,
        "change_ms_p50": median(watched),
        "change_ms_p95": quantiles(watched, n=20)[18],
        "acquired_ms_p95": quantiles(acquired, n=20)[18],
        "polled_ms_p95": quantiles(polled, n=20)[18],
        "waiting": waiting,
        **registering,
    }


async def until_ready(path: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            await asyncio.sleep(0.05)
            try:
                reader, writer = await asyncio.open_unix_connection(path)
            except OSError:
                continue
            writer.write(REQUEST % b"/ready")
            line = await reader.readline()
            writer.close()
            if b" 200 " in line:
                return


def _register(path: str, folder: str, registrations: int) -> Figures:
    asked: list[float] = []
    started: list[float] = []
    unwitnessed: list[float] = []
    environment, count, more = {"NELI_AGENT": path}, threading.active_count(), 0
    for _ in range(registrations):
        began_at = time.perf_counter()
        registration = _registered(folder, environment)
        asked.append(1e3 * (time.perf_counter() - began_at))
        more = max(more, threading.active_count() - count)
        registration.close()
    registration, steps = _registered(folder, environment), 100_000
    began_at = time.perf_counter()
    for _ in range(steps):
        registration.look(State(), "", 0.0)
    looking = (time.perf_counter() - began_at) / steps
    registration.close()
    os.environ.update(environment)
    for _ in range(registrations // 4 + 1):
        for witness, took in (("agent", started), ("none", unwitnessed)):
            config = replace(configured(folder, "starting"), name=None, protocol=Induction(witness=witness))
            began_at = time.perf_counter()
            member = Member(config)
            took.append(1e3 * (time.perf_counter() - began_at))
            member.close()
    return {
        "registering_ms_p50": median(asked),
        "registering_ms_p99": quantiles(asked, n=100)[98],
        "start_ms_p50": median(started),
        "unwitnessed_start_ms_p50": median(unwitnessed),
        "looking_ns": 1e9 * looking,
        "more_threads": more,
    }


def _registered(folder: str, environment: Mapping[str, str]) -> Registration:
    life = OwnLife.begin(Random(os.urandom(16)))
    config = configured(folder, "registering")
    registration = Registration(config, "registering", life, lambda _: None, wanted=False, environment=environment)
    registration.await_answer(PATIENCE)  # Without this, a member continues after a tenth of a second.
    assert registration.name
    return registration


async def _alone(path: str, requests: int, pace: float = 0.0) -> list[float]:
    reader, writer = await asyncio.open_unix_connection(path)
    took = []
    for _ in range(requests):
        started = time.perf_counter()
        writer.write(LOOK_UP)
        answer = await _answer(reader)
        took.append(time.perf_counter() - started)
        assert answer.startswith(b'{"partition"'), answer
        if pace:
            await asyncio.sleep(pace)
    writer.close()
    return took


async def _hurt(path: str, requests: int) -> float:
    """The p95 of a good client among bad ones, over its p95 without."""
    before = await _alone(path, requests, PACE)
    kinds = [*[_be_slow] * SLOW, *[_be_deaf] * DEAF, *[_be_broken] * BROKEN]
    bad = [asyncio.create_task(_again_and_again(kind, path)) for kind in kinds]
    await asyncio.sleep(2.0)  # Until all of them are busy.
    beside = await _alone(path, requests, PACE)
    for task in bad:
        task.cancel()
    await asyncio.gather(*bad, return_exceptions=True)
    return quantiles(beside, n=20)[18] / quantiles(before, n=20)[18]


async def _again_and_again(kind: Callable[[asyncio.StreamWriter], Awaitable[None]], path: str) -> None:
    while True:
        _, writer = await asyncio.open_unix_connection(path)
        with suppress(OSError):
            await kind(writer)
        writer.transport.abort()


async def _be_slow(writer: asyncio.StreamWriter) -> None:
    for place in range(len(LOOK_UP)):
        writer.write(LOOK_UP[place : place + 1])
        await asyncio.sleep(0.1)


async def _be_deaf(writer: asyncio.StreamWriter) -> None:
    body = b'{"keys":[%b]}' % b",".join(b'"%d"' % number for number in range(5000))
    writer.write(b"POST /v1/owners HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    writer.transport.pause_reading()  # type: ignore[attr-defined] # A stream's transport reads, too.
    await asyncio.sleep(10.0)


async def _be_broken(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\0\xff nonsense\r\n\r\n" if id(writer) % 2 else LOOK_UP[:30])
    await asyncio.sleep(0.2)


async def _together(path: str, seconds: float) -> float:
    clients = [await _Asker.connected(path) for _ in range(CLIENTS)]
    await asyncio.sleep(1.0)  # Until all of them are busy.
    before, started = sum(client.answers for client in clients), time.perf_counter()
    await asyncio.sleep(seconds)
    answers, took = sum(client.answers for client in clients) - before, time.perf_counter() - started
    for client in clients:
        client.transport.close()
    return answers / took


class _Asker(asyncio.Protocol):
    """Asks again on each answer. All answers are alike, so it finds their end without parsing them."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.answers = 0
        self._said = b""

    @classmethod
    async def connected(cls, path: str) -> "_Asker":
        _, asker = await asyncio.get_running_loop().create_unix_connection(cls, path)
        return asker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport is one in all but name.
        self.transport.write(LOOK_UP)

    def data_received(self, data: bytes) -> None:
        self._said += data
        if self._said.endswith(b"}"):
            assert self._said.startswith(b"HTTP/1.1 200"), self._said
            self.answers += 1
            self._said = b""
            self.transport.write(LOOK_UP)


async def _wait(path: str, number: int) -> asyncio.StreamWriter:
    """One client that waits for a partition led elsewhere, or for a change of its leader."""
    kinds = (
        b"/v1/leadership?timeout=3600&partition=%d",
        b"/v1/leadership/events?partition=%d",
        b"/v1/watch?partition=%d",
    )
    role = WAITED_FOR[number % len(WAITED_FOR)]
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(REQUEST % (kinds[number % 3] % role))
    if number % 3:
        assert b" 200 " in await reader.readline()
    return writer


async def _waiting(path: str) -> int:
    """The number of waiting clients, as the agent counts them."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(REQUEST % b"/metrics")
    told = (await _answer(reader)).splitlines()
    writer.close()
    return sum(
        int(float(line.split()[1])) for line in told if line.startswith((b"neli_waiting_clients ", b"neli_streams "))
    )


async def _core_share(process: int, seconds: float) -> float:
    before, started = processor_seconds(process), time.perf_counter()
    await asyncio.sleep(seconds)
    return (processor_seconds(process) - before) / (time.perf_counter() - started)


def processor_seconds(process: int) -> float:
    """The processor time that a process has used, with all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _gather(other: Member) -> None:
    """Wait until both are members, and the other one leads everything that clients wait for."""
    for partition in (ROLE, *WAITED_FOR):
        other.operator.pin(partition, "other")
    _until_led(other, {ROLE, *WAITED_FOR})


def _until_led(other: Member, partitions: set[int]) -> None:
    until(lambda: partitions <= set(other.led), "the other member's lead of what is pinned to it")


async def _change(path: str, other: Member, runtime: Stamping) -> tuple[float, float, float]:
    """One change of leader: seconds until a watcher, a stream of leadership and a long poll knew of it."""
    clients = []
    for kind in (
        b"/v1/watch?partition=%d",
        b"/v1/leadership/events?partition=%d",
        b"/v1/leadership?timeout=60&partition=%d",
    ):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(REQUEST % (kind % ROLE))
        clients.append((reader, writer))
    (watching, _), (streaming, _), (polling, _) = clients
    await watching.readuntil(b'"name":"other"')
    await streaming.readuntil(b"event: waiting")

    async def told(reader: asyncio.StreamReader, what: bytes) -> float:
        await reader.readuntil(what)
        return host_clock()

    waits = asyncio.gather(
        told(watching, b'"name":"agent"'), told(streaming, b"event: acquired"), told(polling, b'"leads":true')
    )
    async with asyncio.timeout(PATIENCE):
        await asyncio.to_thread(other.operator.pin, ROLE, "agent")
        watched, acquired, polled = (at - runtime.stamped.handed_over_at for at in await waits)
        clients[1][1].close()  # Otherwise the agent would not hand it over.
        await asyncio.to_thread(other.operator.pin, ROLE, "other")
        await watching.readuntil(b'"name":"other"')
        await asyncio.to_thread(_until_led, other, {ROLE})
    for _, writer in clients:
        writer.close()
    return watched, acquired, polled


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)
