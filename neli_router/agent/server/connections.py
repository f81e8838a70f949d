"""Connections: HTTP as uvicorn speaks it, with bounds, so that no client can harm the others.

    connected --> HEAD --complete--> ANSWERING --complete--> HEAD --> ...
                   |                    '-- does not read for STALL_MAX --> cut off, counted
                   |-- unfinished after HEAD_TIME_MAX --> cut off
                   '-- longer than HEAD_MAX --> 431, cut off         one connection more than there is room for --> 503

uvicorn bounds neither the length of a head nor the time that it takes, and waits for ever for a client that does not
read. An agent serves programs that are stopped, killed and debugged. So one sweep over all connections, every second,
cuts off those that stand still: one timer for all, because a thousand waiting clients must cost next to nothing.

The connection also tells the application three things that ASGI has no words for: whether it came over the socket of
this user alone, when it is lost (without a task for each waiter), and how to cut it off at once; closing would wait
until the client has read everything, and this client does not read.
"""

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from neli_router.agent.wire import KEY_MAX, Refusal

__all__ = ["KEEP_ALIVE_MAX", "SWEEP_EVERY", "AgentTraffic", "Connection", "connection_of", "room_for_connections"]

HEAD_MAX = 16 * KEY_MAX
"""Bytes of an address and its headers. A key of letters that take four bytes each comes to twelve times its length."""

HEAD_TIME_MAX = 20.0
"""How long a request's head may take, in seconds. Over a local socket it takes microseconds."""

KEEP_ALIVE_MAX = 75.0
"""How long a connection may rest between two requests. Longer spares clients from connecting anew."""

STALL_MAX = 10.0
"""How long a client may read nothing while the buffers on the way to it are full. Longer forgives longer pauses of a
program; shorter gives back its memory sooner."""

SWEEP_EVERY = 1.0

CONNECTIONS_MAX = 8192
"""As many as there are file descriptors for, if those are fewer."""

DESCRIPTORS_KEPT = 64
"""For the ledger, logs and Python's own files: an agent that could not open its ledger would lose its leases."""

FIELD = "neli.connection"


@dataclass(slots=True)
class AgentTraffic:
    """The connections of one agent, and counts of its work. Belongs to its loop; any thread may read the numbers."""

    room: int = CONNECTIONS_MAX
    """How many connections there may be."""
    answers: Counter[str] = field(default_factory=Counter)
    """By HTTP status."""
    lookups: Counter[str] = field(default_factory=Counter)
    """Keys and roles that were looked up, by outcome: `owned`, or the error's kind."""
    refusals: Counter[str] = field(default_factory=Counter)
    """By kind."""
    streams: int = 0
    """Streams of events that are open now."""
    waiting: int = 0
    """Long polls now."""
    slow: int = 0
    """Clients cut off because they did not read."""
    idle: int = 0
    """Connections cut off because no whole request came."""
    crowded: int = 0
    """Connections and streams refused because there were too many."""
    connections: "set[Connection]" = field(default_factory=set)

    def sweep(self, now: float) -> None:
        """Cut off the connections that stand still."""
        for connection in list(self.connections):
            connection.look(now)


class Connection(HttpToolsProtocol):
    """One client. Made by uvicorn, on its loop."""

    def __init__(self, traffic: AgentTraffic, **rest: Any) -> None:
        super().__init__(**rest)
        self._traffic = traffic
        self._head_size = 0
        self._is_whole, self._is_new = False, True
        self._resting_since = self._stalled_since = self.loop.time()
        self._is_stalled = False
        self._on_lost: Callable[[], None] | None = None
        self.is_own = False
        """Whether it came over the Unix socket, which only its user can reach."""
        self.is_lost = False

    # For the application

    def on_lost(self, tell: Callable[[], None] | None) -> None:
        """Call `tell` once when the client is gone, at once if it is already; None takes that back."""
        self._on_lost = tell
        if self.is_lost and tell is not None:
            tell()

    def cut(self) -> None:
        """The client does not read: let go of it, and of all that was to be sent."""
        self._traffic.slow += 1
        self.transport.abort()

    # The sweep

    def look(self, now: float) -> None:
        if self._is_stalled:
            if now - self._stalled_since > STALL_MAX:
                self.cut()
        elif not self._is_answering:
            patience = HEAD_TIME_MAX if self._head_size or self._is_new else KEEP_ALIVE_MAX
            if now - self._resting_since > patience:
                self._traffic.idle += 1
                self.transport.abort()

    # For the loop and uvicorn's parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.is_own = transport.get_extra_info("socket").family == socket.AF_UNIX
        if len(self._traffic.connections) >= self._traffic.room:
            self._traffic.crowded += 1
            self._refuse(503, "Crowded", f"{self._traffic.room} clients are connected", "close what is not needed")
        else:
            self._traffic.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._traffic.connections.discard(self)
        self.is_lost = True
        super().connection_lost(exc)
        if self._on_lost is not None:
            self._on_lost()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._head_size:
            self._resting_since = self.loop.time()
        self._is_whole = False
        self._head_size += len(data)
        super().data_received(data)
        if self._is_whole:
            self._head_size = 0
        elif self._head_size > HEAD_MAX and not self._is_answering:
            self._refuse(431, "TooLarge", f"the head of this one is longer than {HEAD_MAX} bytes", "POST long keys")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("MutableMapping[str, Any]", self.scope)[FIELD] = self

    def on_headers_complete(self) -> None:
        self._is_whole, self._is_new = True, False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._resting_since, self._head_size = self.loop.time(), 0
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._is_stalled, self._stalled_since = True, self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_stalled = False
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "BadRequest", "these bytes are no HTTP", "speak HTTP/1.1, or use neli_router.agent.Client")

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None until the first request, whatever uvicorn's types say.
        return cycle is not None and not cycle.response_complete

    def _refuse(self, status: int, kind: str, found: str, remedy: str) -> None:
        self._traffic.refusals[kind] += 1
        if self._is_answering:
            self.transport.abort()  # In the middle of an answer there is no place for another.
            return
        body = msgspec.json.encode(Refusal(kind, "a request was wanted", found, remedy))
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


def connection_of(scope: MutableMapping[str, Any]) -> Connection:
    """The connection that a request came by."""
    found = scope[FIELD]
    assert isinstance(found, Connection), "only our own server calls our application"
    return found


def room_for_connections() -> int:
    """How many clients this process has file descriptors for."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    listing = Path("/proc/self/fd")
    open_now = sum(1 for _ in listing.iterdir()) if listing.is_dir() else DESCRIPTORS_KEPT
    free = CONNECTIONS_MAX if descriptors == resource.RLIM_INFINITY else descriptors - open_now - DESCRIPTORS_KEPT
    return max(1, min(CONNECTIONS_MAX, free))
