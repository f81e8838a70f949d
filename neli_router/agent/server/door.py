"""The door: a separate process that serves the agent's port, so that no stranger ever costs the member its lease.

    agent (keeps the lease)  <--pairs of sockets, one for each exchange--  door  <--TCP-- clients of the port
         '--settings, the token-->                                          |
         '--ends, or is killed--> the door ends, too                        |-- Host does not name this host: refused
                                                                            |-- the right token: to the agent
                                                                            |-- OPEN_PATHS, to read: from the board
                                                                            |-- the page's files: from here
                                                                            '-- anything else: 401

Parsing takes time and memory, and a flood takes all that it can get. In the agent it would take them from the thread
that sends heartbeats. Here it takes them only from other strangers. The door knows nothing but the token, so it may be
killed at any time, and the agent starts it again.

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
"""

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import socket
import sys
import traceback
from collections import Counter
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.types import Receive, Scope, Send

from neli_router.agent.server import page
from neli_router.agent.server.connections import (
    SWEEP_EVERY,
    AgentTraffic,
    Connection,
    HttpServer,
    connection_of,
    room_for_connections,
)
from neli_router.agent.server.exchange import OPEN_PATHS, AgentLink, AgentSilent, Exchange, PublicBoard, silent
from neli_router.agent.server.requests import Guard, RequestRefused, bad_request, body_of
from neli_router.config.agent_address import is_loopback, parse_place
from neli_router.hosts.leash import end_with_parent

__all__ = ["STRANGERS_MAX", "Door", "DoorConnection", "DoorSettings", "main"]

STRANGERS_MAX = 256
"""Connections without the token. Each costs at most a head of a few hundred kilobytes."""

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


class DoorSettings(msgspec.Struct, frozen=True):
    """Everything that a door knows, as one line of JSON."""

    token: str | None
    any_host: bool
    """Whether to accept requests that use another name than this host's."""
    known_max: int
    """How many connections with the token the agent has room for."""


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
        """Let the agent answer. If the client goes away or the agent breaks off, the other side is broken off as
        well."""
        connection = connection_of(scope)
        assert isinstance(connection, DoorConnection), "only our own server calls our application"
        connection.know()
        # Read the whole body before involving the agent: a body that never arrives must not occupy a place there.
        body = await body_of(receive) if scope["method"] == "POST" else b""
        exchange = Exchange(self._link)
        connection.on_lost(exchange.close)
        try:
            try:
                query = scope["query_string"]  # Path and query, spelled as the client sent them.
                target = scope["raw_path"] + (b"?" + query if query else b"")
                await exchange.ask(scope["method"], target, body=body)
            except AgentSilent:
                raise silent() from None
            await send({"type": "http.response.start", "status": exchange.status, "headers": exchange.headers})
            try:
                async for part in exchange.parts():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except AgentSilent:
                connection.transport.abort()  # A proper end would claim that the answer was complete.
            else:
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
    lines = _Lines(control)
    settings = lines.first()
    if settings is None:
        return  # The agent has ended in the meantime.
    with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
        runner.get_loop().set_exception_handler(_tell_defect)
        runner.run(_serve(lines, listener, settings))


async def _serve(lines: "_Lines", listener: socket.socket, settings: DoorSettings) -> None:
    loop, door = asyncio.get_running_loop(), Door(lines.control, settings)
    guard = Guard(door, door.traffic)
    server = HttpServer(guard, partial(DoorConnection, door), asyncio.Event())

    def hear() -> None:
        for found in lines.more():
            if found is None:
                loop.remove_reader(lines.control)
                server.should_exit = True
            else:
                door.settings = found

    def sweep() -> None:
        door.traffic.sweep(loop.time())
        with contextlib.suppress(OSError):  # The agent is not reading now, so it misses nothing.
            lines.control.send(ALIVE)
        loop.call_later(SWEEP_EVERY, sweep)

    lines.control.settimeout(0)
    loop.add_reader(lines.control, hear)
    sweep()
    await server.serve(sockets=[listener])
    door.close()


def _beyond(sizes: dict[DoorConnection, int], most: int) -> list[DoorConnection]:
    """As few of the largest as it takes for the rest to have at most `most`."""
    total, found = sum(sizes.values()), []
    while total > most:
        largest = max(sizes, key=sizes.__getitem__)
        total -= sizes.pop(largest)
        found.append(largest)
    return found


class _Lines:
    """The settings that arrive over the control socket."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self._rest = b""

    def first(self) -> DoorSettings | None:
        while not (found := self.more()):
            pass
        return found[-1]

    def more(self) -> list[DoorSettings | None]:
        """The settings that have arrived; None marks the end."""
        try:
            said = self.control.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            said = b""
        if not said:
            return [None]
        *lines, self._rest = (self._rest + said).split(b"\n")
        return [msgspec.json.decode(line, type=DoorSettings) for line in lines]


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
