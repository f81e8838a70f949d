"""The door: a separate process that serves the agent's port, so that no stranger ever costs the member its lease.

    agent (keeps the lease)  <--pairs of sockets, one for each exchange--  door  <--TCP-- clients of the port
         '--settings, the token-->                                          |
         '--ends, or is killed--> the door ends, too                        |-- Host does not name this host: refused
                                                                            |-- the right token: to the agent
    start --settings--> serving --its control socket ends--> log, pause     |-- OPEN_PATHS, to read: from the board
      ^                                                         |           |-- the page's files: from here
      '-- PAUSE_MIN, twice as long each time, at most PAUSE_MAX-'           '-- anything else: 401

Parsing takes time and memory, and a flood takes all that it can get. In the agent it would take them from the thread
that sends heartbeats. Here it takes them only from other strangers. The door knows nothing but the token and the name
of the group, so it may be killed at any time, and the agent starts it again.

**Strangers and known clients.** A connection belongs to a stranger until a request with the right token arrives on it.
There is room for STRANGERS_MAX strangers. When another one connects, one makes way: the longest idle, else one that
does not read, or the one whose answer has taken longest. So clients that fill the door cannot keep others out, not
even a probe of /health. Clients with the token have room of their own, and each has at most one exchange at a time; the
agent reserves room for that many. The bytes of all strangers together are bounded, too: those of answers that they do
not read, and of heads that they do not finish. Beyond the bound, the connection with the most bytes is cut off.

**Why check Host.** A page from anywhere can make its own name resolve to 127.0.0.1, and a browser then lets its scripts
read from here as if from their own server. They cannot forge the Host header. For the same reason no answer carries a
header that would invite other origins, and every request that *changes* something needs a token, which a page of
another origin does not have. Tokens are compared in constant time, or a client could find one letter after another from
the timing.

**How it ends.** The door watches the control socket, which closes with the agent, however the agent ends. On Linux the
kernel also kills the door when the agent dies. The door ignores the signals that a terminal or a service manager sends
to all processes; they are for the agent, and the door must still carry what the agent sends to clients while it drains.

**While there is none.** The agent's end (`DoorProcess`) starts another. The listening socket stays with the agent: in
between, clients wait in the kernel's queue, and no other process can take the port. Leases of programs that came over
TCP end with their connections, as if the network had failed. A door that is stopped, or gets no processor time, keeps
its control socket open and answers no one. Its silence is logged, and it is not killed for it: on a busy machine,
another start is the last thing that helps.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.types import Receive, Scope, Send

from neli_router.agent import page
from neli_router.agent.server.connections import (
    FAREWELL_MAX,
    SWEEP_EVERY,
    AgentTraffic,
    Connection,
    HttpServer,
    connection_of,
    room_for_connections,
)
from neli_router.agent.server.exchange import OPEN_PATHS, AgentLink, Exchange, PublicBoard
from neli_router.agent.server.requests import Guard, RequestRefused, bad_request, body_of, require_group
from neli_router.config.agent_address import is_loopback, parse_place
from neli_router.core import logs
from neli_router.hosts.leash import end_with_parent

__all__ = ["KNOWN_MAX", "STRANGERS_MAX", "Door", "DoorConnection", "DoorProcess", "DoorSettings", "main"]

STRANGERS_MAX = 256
"""Connections without the token. Each costs at most a head of a few hundred kilobytes."""

KNOWN_MAX = 1024
"""Connections with the token. Each occupies one of the agent's streams, of which there are four times as many."""

UNSENT_MAX = UNFINISHED_MAX = 8 * 2**20
"""Bytes that all strangers together may occupy here: of answers that they do not read, and of unfinished heads."""

LONG = 4096
"""Bytes of an unfinished head beyond which it is checked against UNFINISHED_MAX."""

WRITE_BUFFER = 16384
"""Bytes that may wait for one client before its next answer has to wait, too."""

EXPENDABLE = 500
"""Added to this process's OOM score, so that the kernel kills it long before the agent when memory runs short."""

PLACES_MAX = 4
"""How many of the innermost calls a report of a defect names."""

OPEN_FOLDER = "/assets/"

ALIVE = b"."
"""Sent to the agent now and then. A connection that is handed over comes with a single byte, too."""

PAUSE_MIN, PAUSE_MAX = 0.1, 30.0
"""Seconds before it is started again. After a door that lived for PAUSE_MAX, the pause starts from PAUSE_MIN again."""

HANDED_MAX = 64
"""Connections that are taken from the door before other work gets its turn."""

SILENT_AFTER = 10.0
"""Seconds. A door sends something each second, and a busy machine may delay that by a few."""

LINE_MAX = 1000
"""Characters of its standard error that go into one log line."""


class DoorSettings(msgspec.Struct, frozen=True):
    """Everything that a door knows, as one line of JSON."""

    token: str | None
    any_host: bool
    """Whether to accept requests that use another name than this host's."""
    known_max: int
    """How many connections with the token the agent has room for."""
    group: str
    """The agent's group, as its clients spell it."""


class DoorProcess:
    """The door of one agent, on its loop. It is sent `settings`, and `admit` gets each connection that it makes."""

    def __init__(
        self, listener: socket.socket, settings: Callable[[], DoorSettings], admit: Callable[[socket.socket], None]
    ) -> None:
        self._listener, self._settings, self._admit = listener, settings, admit
        self._loop = asyncio.get_running_loop()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._gone = asyncio.Event()
        self._is_ending = self._was_heard = False
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process ID, while there is a process."""
        return None if self._process is None else self._process.pid

    def open(self) -> None:
        """Keep a door running from now on, until `close`."""
        self._keeping = asyncio.create_task(self._keep())

    def tell(self) -> None:
        """Send the current settings."""
        if self._control is None:
            return
        try:
            self._control.send(msgspec.json.encode(self._settings()) + b"\n")
        except OSError:
            self._kill()  # It does not listen. The next door starts with these settings.

    async def close(self) -> None:
        """Let it say farewell to its clients, with as much time as an agent gives its own, and end."""
        assert self._keeping is not None
        self._is_ending = True
        if self._control is None:
            self._keeping.cancel()
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), FAREWELL_MAX + 1)
        self._kill()
        await self._keeping

    async def _keep(self) -> None:
        log, pause = logs.logger(), PAUSE_MIN
        while True:
            began = self._loop.time()
            try:
                self._start()
            except OSError as error:
                why = error.strerror
            else:
                await self._watch()
                why = f"exit code {await self._reap()}"
            if self._is_ending:
                return
            pause = PAUSE_MIN if self._loop.time() - began > PAUSE_MAX else pause
            log.warning("agent.door_ended", why=why, again_in=f"{pause:g} s", lost="connections over TCP")
            await asyncio.sleep(pause)
            pause = min(PAUSE_MAX, 2 * pause)

    async def _watch(self) -> None:
        """Until it is gone, log when it falls silent and when it is heard again."""
        was_silent = False
        while True:
            self._was_heard = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), SILENT_AFTER)
            if self._gone.is_set():
                return
            if self._was_heard and was_silent:
                logs.logger().warning("agent.door_heard", pid=self.pid)
            elif not (self._was_heard or was_silent):
                logs.logger().warning(
                    "agent.door_silent",
                    pid=self.pid,
                    silent_for=f"{SILENT_AFTER:g} s",
                    lost="answers over TCP, and not those over the own socket",
                    remedy="see whether that process was stopped, or the machine has no time for it",
                )
            was_silent = not self._was_heard

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        program = [sys.executable, "-P", "-m", "neli_router.agent.server.door"]
        passed = theirs.fileno(), self._listener.fileno()
        # It imports what we import, but gets none of our options: its environment has neither a token nor a ledger.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NELI_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program, by the same interpreter.
                    [*program, *map(str, passed)],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=passed,
                    env=environment,
                )
            except OSError:
                ours.close()
                raise
        ours.settimeout(0)
        self._gone.clear()
        self._control = ours
        self._loop.add_reader(ours, self._hear)
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._loop.add_reader(self._process.stderr.fileno(), self._log)
        self.tell()

    def _hear(self) -> None:
        assert self._control is not None
        for _ in range(HANDED_MAX):
            try:
                said, handed, _, _ = socket.recv_fds(self._control, 1, 1)
            except BlockingIOError:
                return
            except OSError:
                said, handed = b"", []
            self._was_heard = True
            for descriptor in handed:
                self._admit(socket.socket(fileno=descriptor))
            if not said:
                self._loop.remove_reader(self._control)
                self._gone.set()
                return

    def _log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        try:
            said = os.read(self._process.stderr.fileno(), 65536)
        except BlockingIOError:
            return
        if not said:
            self._loop.remove_reader(self._process.stderr.fileno())
            return
        for line in said.decode("utf-8", "backslashreplace").splitlines():
            logs.logger().error("agent.door_said", line=line[:LINE_MAX])

    async def _reap(self) -> int:
        """Clean up after a door that has ended, or is about to."""
        process, control = self._process, self._control
        assert process is not None
        assert process.stderr is not None
        assert control is not None
        try:
            code = await asyncio.to_thread(process.wait, FAREWELL_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            code = await asyncio.to_thread(process.wait)
        self._log()
        self._loop.remove_reader(process.stderr.fileno())
        process.stderr.close()
        control.close()
        self._control = self._process = None
        return code

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()


class DoorConnection(Connection):
    """A client of the port."""

    def __init__(self, door: "Door", **rest: Any) -> None:
        super().__init__(door.traffic, **rest)
        self._door = door

    def know(self) -> None:
        """Record that it has shown the token. Raises RequestRefused if all places for such clients are taken."""
        strangers, traffic = self._door.strangers, self._traffic
        if self in strangers:
            known_max = self._door.settings.known_max
            if len(traffic.connections) - len(strangers) >= known_max:
                traffic.crowded += 1
                found = f"{known_max} clients with the token are connected"
                raise RequestRefused("Crowded", "a request was wanted", found, "close what is not needed")
            strangers.discard(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        super().connection_made(transport)
        if self in self._traffic.connections:
            self._door.strangers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.strangers.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.head_size > LONG and self in self._door.strangers and not self.is_answering:
            unfinished = {one: one.head_size for one in self._door.strangers if not one.is_answering}
            for one in _beyond(unfinished, UNFINISHED_MAX):
                one.make_way()

    def pause_writing(self) -> None:
        super().pause_writing()
        stalled = [one for one in self._door.strangers if one.is_stalled]
        for one in _beyond({one: one.transport.get_write_buffer_size() for one in stalled}, UNSENT_MAX):
            one.cut()

    def _has_room(self) -> bool:
        """Always true, because another connection makes way: otherwise clients that fill the door would keep a probe
        out."""
        others = [one for one in self._door.strangers if not one.transport.is_closing()]
        if len(others) >= self._door.strangers_max:
            min(others, key=DoorConnection.claim).make_way()
        return True

    def claim(self) -> tuple[int, float]:
        """How strong its claim to stay is. Older ones have less."""
        if not self.is_answering:
            return 0, self.resting_since
        return (1, self.stalled_since) if self.is_stalled else (2, self.resting_since)


class Door:
    """The application of the port, on its loop, and the clients that are connected to it."""

    def __init__(self, control: socket.socket, settings: DoorSettings) -> None:
        self.settings = settings
        # Each client with the token takes two descriptors: its own, and one for an exchange.
        self.strangers_max = min(STRANGERS_MAX, room_for_connections(2 * settings.known_max))
        self.strangers: set[DoorConnection] = set()
        self.traffic = AgentTraffic(self.strangers_max)
        self._link = AgentLink(control)
        self._assets = page.load()
        self._board = PublicBoard(self._link, self._footnote)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_host(scope)
        require_group(scope, self.settings.group)
        path, is_read = scope["path"], scope["method"] in {"GET", "HEAD"}
        found = self._token_fault(scope)
        if is_read and (path == "/" or path.startswith(OPEN_FOLDER)):
            if path not in self._assets:
                raise RequestRefused("NotFound", "a file of the page was wanted", "there is none at this path", "see /")
            await page.answer_asset(self._assets[path], scope, send)
        elif is_read and path in OPEN_PATHS and (found or path == "/metrics"):
            await self._board.show(scope, receive, send)
        elif found:
            raise RequestRefused(
                "TokenWanted",
                "over TCP, this needs the agent's token",
                found,
                "send `Authorization: Bearer TOKEN`, with --token-file, or use the Unix socket",
            )
        else:
            await self._hand_on(scope, receive, send)

    def close(self) -> None:
        self._board.close()

    def _check_host(self, scope: Scope) -> None:
        if self.settings.any_host:
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        place = parse_place(hosts[0].decode("latin-1"), 80) if len(hosts) == 1 else None
        if place is None or not is_loopback(place[0]):
            raise bad_request(
                "a request to this host by a name of its own was wanted",
                "the Host header names another, or none",
                "ask for http://127.0.0.1 or http://localhost",
            )

    def _token_fault(self, scope: Scope) -> str:
        """The reason why this request may not use everything that the agent offers; empty if it may."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if not given:
            return "none was given"
        kind, _, word = given[0].partition(b" ")
        token = self.settings.token
        # As bytes, because compare_digest refuses text that is not ASCII, and that error alone would give a hint.
        if kind.lower() == b"bearer" and token and hmac.compare_digest(word.strip(), token.encode()):
            return ""
        return "another one was given"

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the agent answer. If the client goes away or the agent breaks off, the other side is broken off as well:
        a proper end would claim that the answer was complete."""
        connection = connection_of(scope)
        assert isinstance(connection, DoorConnection), "only our own server calls our application"
        connection.know()
        # Read the whole body before involving the agent: a body that never arrives must not occupy a place there.
        body = await body_of(receive) if scope["method"] == "POST" else b""
        exchange = Exchange(self._link)
        connection.on_lost(exchange.close)
        try:
            query = scope["query_string"]  # Path and query, spelled as the client sent them.
            target = scope["raw_path"] + (b"?" + query if query else b"")
            await exchange.ask(scope["method"], target, body=body)
            await send({"type": "http.response.start", "status": exchange.status, "headers": exchange.headers})
            async for part in exchange.parts():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            connection.on_lost(None)
            exchange.close()

    def _footnote(self) -> bytes:
        """Metrics that the agent cannot count, because it never sees these requests."""
        traffic = self.traffic
        told = traffic.outcomes() + Counter(pipelined=traffic.refusals["Pipelined"])
        lines = [
            "# HELP neli_door_requests_total Requests to the port, by outcome.",
            "# TYPE neli_door_requests_total counter",
        ]
        lines += [f'neli_door_requests_total{{outcome="{name}"}} {count}' for name, count in sorted(told.items())]
        for name, help_text, value in (
            ("neli_door_strangers", "Connections to the port without the token.", len(self.strangers)),
            ("neli_door_connections", "Connections to the port.", len(traffic.connections)),
            ("neli_door_memory_bytes", "Memory that the port's process has now.", _memory()),
        ):
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join((*lines, "")).encode()


def main() -> None:
    """Be the door of the agent that started this process: `python -m neli_router.agent.server.door CONTROL LISTENER`,
    where both are descriptors."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _yield_to_agent()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)  # To standard error, which the agent logs.
    control, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
        runner.get_loop().set_exception_handler(_tell_defect)
        runner.run(_serve(control, listener))


async def _serve(control: socket.socket, listener: socket.socket) -> None:
    control.settimeout(0)
    # The writer is only kept, because its end would close the socket: we write to the socket itself, without waiting.
    lines, _writer = await asyncio.open_unix_connection(sock=control)
    settings = await lines.readline()
    if not settings:
        return  # The agent has ended in the meantime.
    loop, door = asyncio.get_running_loop(), Door(control, msgspec.json.decode(settings, type=DoorSettings))
    guard = Guard(door, door.traffic)
    server = HttpServer(guard, partial(DoorConnection, door), asyncio.Event())

    async def hear() -> None:
        with contextlib.suppress(OSError, msgspec.DecodeError):  # It broke off, perhaps in the middle of a line.
            async for line in lines:
                door.settings = msgspec.json.decode(line, type=DoorSettings)
        server.should_exit = True

    def sweep() -> None:
        door.traffic.sweep(loop.time())
        with contextlib.suppress(OSError):  # The agent is not reading now, so it misses nothing.
            control.send(ALIVE)
        loop.call_later(SWEEP_EVERY, sweep)

    hearing = asyncio.create_task(hear())
    sweep()
    await server.serve(sockets=[listener])
    hearing.cancel()
    door.close()


def _beyond(sizes: dict[DoorConnection, int], most: int) -> list[DoorConnection]:
    """As few of the largest as it takes for the rest to have at most `most`."""
    total, found = sum(sizes.values()), []
    while total > most:
        largest = max(sizes, key=sizes.__getitem__)
        total -= sizes.pop(largest)
        found.append(largest)
    return found


def _yield_to_agent() -> None:
    """Die with the agent, and before it where only one of the two can survive."""
    if sys.platform == "linux":
        # A hardened service may forbid any of these. Then the end of the control socket is enough.
        with contextlib.suppress(OSError, MemoryError):
            end_with_parent()
        with contextlib.suppress(OSError, ValueError):
            score = Path("/proc/self/oom_score_adj")
            score.write_text(f"{min(1000, int(score.read_text('ascii')) + EXPENDABLE)}", "ascii")


def _tell_defect(_: asyncio.AbstractEventLoop, context: MutableMapping[str, Any]) -> None:
    """Write to standard error, for the agent's log: only the kind and the places, because the rest may hold a key."""
    error = context.get("exception")
    frames = traceback.extract_tb(error.__traceback__) if isinstance(error, BaseException) else []
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-PLACES_MAX:]))
    sys.stderr.write(f"defect: {type(error).__name__} in {places or 'an unknown place'}\n")
    sys.stderr.flush()


def _memory() -> int:
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    main()
