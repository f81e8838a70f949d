"""Connections: HTTP as uvicorn speaks it, with bounds, so that no client can harm the others.

    connected --> HEAD --complete--> ANSWERING --complete--> HEAD --> ...
                   |                    |-- does not read for STALL_MAX --> cut off, counted
                   |                    '-- a third request while two are unanswered --> cut off
                   |-- unfinished after HEAD_TIME_MAX --> cut off
                   '-- longer than HEAD_MAX, or more than HEADERS_MAX lines --> 431, cut off
    one connection more than there is room for --> 503

    channel: hub, timers --put, ring--> [ event | event | ... ] --one task: wait, flush--> HTTP
                                         at most QUEUE_MAX bytes; beyond that --> cut off

uvicorn bounds neither the length of a head nor the time it takes. It accepts as many requests on a connection as a
client sends before reading answers, and waits forever for a client that does not read. An agent serves programs that
are stopped, killed and debugged. So one sweep over all connections, every second, cuts off those that make no progress.
One timer serves them all, because a thousand waiting clients must cost next to nothing.

A hundred bytes of request on the wire become some kilobytes of Python objects. So a third request is refused when its
first byte is parsed, not when it would be answered: a megabyte of small requests would take a gigabyte here.

The connection offers the application two things that ASGI lacks: it reports when it is lost, without a task for each
waiter, and it can be cut off. Closing would wait until a stalled client has read everything.

A *channel* is a stream of events to one client, at that client's pace. The hub never waits for a client: a client that
does not read fills only its own queue. Then it is cut off, because skipped events would leave it with a wrong picture;
when it reconnects, it starts from the present state.

Two processes use this: the agent for its own user's socket, and its door (door.py) for the port.
"""

import asyncio
import resource
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import uvicorn
from starlette.types import ASGIApp, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from neli_router.agent.server.sockets import BACKLOG
from neli_router.agent.wire import KEY_MAX, Refusal

__all__ = [
    "COMMENT",
    "FAREWELL_MAX",
    "SWEEP_EVERY",
    "AgentTraffic",
    "Channel",
    "Connection",
    "HttpServer",
    "connection_of",
    "descriptors_free",
    "event",
    "room_for_connections",
]

HEAD_MAX = 16 * KEY_MAX
"""Bytes of an address and its headers. A key of four-byte letters takes twelve times its length in an address."""

HEADERS_MAX = 100
"""Lines of a head, and of the trailer after a body. Each costs thirty times its bytes; a browser sends a dozen."""

PIPELINED_MAX = 1
"""Requests that may wait behind the one that is being answered. No client that we know of sends even one."""

HEAD_TIME_MAX = 20.0
"""How many seconds a request's head may take. Over a local socket it takes microseconds."""

KEEP_ALIVE_MAX = 75.0
"""How long a connection may stay idle between two requests. A longer time saves clients from reconnecting."""

STALL_MAX = 10.0
"""How long a client may read nothing while the buffers on the way to it are full. A longer time tolerates longer pauses
of a program; a shorter one frees its memory sooner."""

SWEEP_EVERY = 1.0

FAREWELL_MAX = 2
"""Seconds that clients have to read their last event, before their connections are closed."""

CONNECTIONS_MAX = 8192
"""An upper bound: the limit is lower if there are fewer file descriptors."""

DESCRIPTORS_KEPT = 64
"""Reserved for the ledger, logs and Python's own files: an agent that could not open its ledger would lose its
leases."""

QUEUE_MAX = 4 * 2**20
"""Bytes that may wait in one channel: a whole table of four thousand partitions, and a bit more."""

COMMENT = b":\n\n"
"""Carries nothing. It proves to both sides, and to proxies between them, that the other side is there."""

HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ],
}

FIELD = "neli.connection"


@dataclass(slots=True)
class AgentTraffic:
    """The connections of one agent, and counters of its work. Belongs to its loop; any thread may read the numbers."""

    room: int = CONNECTIONS_MAX
    """How many connections there may be, not counting those of the agent's own door."""
    counted: int = 0
    """How many of those there are now."""
    answers: Counter[str] = field(default_factory=Counter)
    """By HTTP status."""
    lookups: Counter[str] = field(default_factory=Counter)
    """Keys and roles that were looked up, by outcome: `owned`, or the error's kind."""
    refusals: Counter[str] = field(default_factory=Counter)
    """By kind."""
    streams: int = 0
    """Event streams that are open now."""
    waiting: int = 0
    """Long polls that wait now."""
    slow: int = 0
    """Clients cut off because they did not read."""
    idle: int = 0
    """Connections cut off because no complete request came."""
    crowded: int = 0
    """Connections and streams refused because there were too many."""
    connections: "set[Connection]" = field(default_factory=set)

    def outcomes(self) -> Counter[str]:
        """Requests that were answered, by HTTP status, and connections that were cut off, by the reason."""
        # A copy first: another thread may read while the loop counts a new status.
        return Counter(self.answers) + Counter(slow=self.slow, idle=self.idle, crowded=self.crowded)

    def sweep(self, now: float) -> None:
        """Cut off connections that make no progress."""
        for connection in list(self.connections):
            connection.look(now)


class Connection(HttpToolsProtocol):
    """One client. uvicorn creates it, on its loop. A connection that is not `counted` takes no room from the others."""

    def __init__(self, traffic: AgentTraffic, *, counted: bool = True, **rest: Any) -> None:
        super().__init__(**rest)
        self._traffic, self._is_counted = traffic, counted
        self.head_size = 0
        """Bytes of the unfinished request."""
        self._header_count = 0
        self._excess: tuple[int, str, str, str] | None = None
        self._is_whole, self._is_new = False, True
        self.resting_since = self.stalled_since = self.loop.time()
        self.is_stalled = False
        self._on_lost: Callable[[], None] | None = None
        self._running: Any = None
        self.is_lost = False

    # For the application

    def on_lost(self, tell: Callable[[], None] | None) -> None:
        """Call `tell` once when the client is gone, or immediately if it already is; None cancels that."""
        self._on_lost = tell
        if self.is_lost and tell is not None:
            tell()

    def cut(self) -> None:
        """The client does not read: drop it, and everything that was still to be sent."""
        self._traffic.slow += 1
        self.transport.abort()

    def excuse(self) -> None:
        """Drop the answer in progress: its client is gone. uvicorn would still send one."""
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def make_way(self) -> None:
        """Give up this connection, because another client needs the room."""
        self._traffic.crowded += 1
        self.transport.abort()

    # The sweep

    def look(self, now: float) -> None:
        if self.is_stalled:
            if now - self.stalled_since > STALL_MAX:
                self.cut()
        elif not self.is_answering:
            patience = HEAD_TIME_MAX if self.head_size or self._is_new else KEEP_ALIVE_MAX
            if now - self.resting_since > patience:
                self._traffic.idle += 1
                self.transport.abort()

    # For the loop and uvicorn's parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._is_counted and not self._has_room():
            self._traffic.crowded += 1
            self._refuse(503, "Crowded", f"{self._traffic.room} clients are connected", "close what is not needed")
        else:
            self._traffic.connections.add(self)
            self._traffic.counted += self._is_counted

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._traffic.connections:
            self._traffic.connections.discard(self)
            self._traffic.counted -= self._is_counted
        self.is_lost = True
        self.pipeline.clear()
        self.excuse()  # uvicorn notifies only the last request, which may be queued behind this one.
        super().connection_lost(exc)
        tell, self._on_lost = self._on_lost, None
        # uvicorn leaves reference cycles around this connection, and with them everything that its client sent. They
        # would stay until Python's cycle collector runs, which is seldom: a flood of clients would take a hundred
        # megabytes.
        self.url, self.headers = b"", []
        self.scope = self.cycle = self._running = cast("Any", None)
        if tell is not None:
            tell()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self.head_size:
            self.resting_since = self.loop.time()
        self._is_whole = False
        self.head_size += len(data)
        super().data_received(data)
        if self._is_whole:
            self.head_size = 0
        elif self.head_size > HEAD_MAX and not self.is_answering:
            self._refuse(431, "TooLarge", f"the head of this one is longer than {HEAD_MAX} bytes", "POST long keys")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            found = f"it came behind {1 + PIPELINED_MAX} that are not answered yet"
            self._give_up(400, "Pipelined", found, "wait for answers before you ask again")
        super().on_message_begin()
        self._header_count = 0
        cast("MutableMapping[str, Any]", self.scope)[FIELD] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > HEADERS_MAX:
            self._give_up(431, "TooLarge", f"the head of this one has more than {HEADERS_MAX} lines", "send fewer")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_whole, self._is_new = True, False
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.resting_since, self.head_size = self.loop.time(), 0
        super().on_response_complete()
        self._unset_keepalive_if_required()  # The sweep does this job. A timer would outlive a client that is gone.

    def pause_writing(self) -> None:
        self.is_stalled, self.stalled_since = True, self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.is_stalled = False
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        no_http = 400, "BadRequest", "these bytes are not HTTP", "speak HTTP/1.1, or use neli_router.agent.Client"
        self._refuse(*(self._excess or no_http))

    def _has_room(self) -> bool:
        return self._traffic.counted < self._traffic.room

    def _give_up(self, *refusal: Any) -> None:
        """Stop parsing: the parser turns any error of ours into its own, and that becomes a refusal."""
        self._excess = refusal
        raise ValueError

    @property
    def is_answering(self) -> bool:
        cycle: Any = self.cycle  # None until the first request, whatever uvicorn's types say.
        return cycle is not None and not cycle.response_complete

    def _refuse(self, status: int, kind: str, found: str, remedy: str) -> None:
        self._traffic.refusals[kind] += 1
        if self.is_answering:
            self.transport.abort()  # One answer has begun, so another cannot be sent.
            return
        body = msgspec.json.encode(Refusal(kind, "a request was wanted", found, remedy))
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


def connection_of(scope: MutableMapping[str, Any]) -> Connection:
    """The connection that a request came in on."""
    found = scope[FIELD]
    assert isinstance(found, Connection), "only our own server calls our application"
    return found


def event(name: str, view: msgspec.Struct) -> bytes:
    """One event. Its JSON is a single line, so it is a single line of the stream, too."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(view))


class Channel:
    """One stream of events. It belongs to the loop; one task does its waiting."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_over = False
        """Whether the client is gone, or was sent its last event."""
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._bell = asyncio.Event()
        connection.on_lost(self.end)

    # For the hub and its timers

    def put(self, said: bytes) -> None:
        """Send `said` when the client can take it. Never waits."""
        if self.is_over:
            return
        self._size += len(said)
        if self._size > QUEUE_MAX and self._queue:
            self.connection.cut()
            self.end()
            return
        self._queue.append(said)
        self.ring()

    def ring(self) -> None:
        """Wake the task, so that it looks."""
        self._bell.set()

    def end(self) -> None:
        """Take no further events. Those in the queue are still sent if the client is there."""
        self.is_over = True
        self.ring()

    # For the one task

    async def begin(self, send: Send) -> None:
        await send(HEAD)

    async def carry(self, send: Send, look: Callable[[], object] = lambda: None) -> None:
        """Send what is put into it until it is over, and end the answer. `look`, called at each ring, may put more."""
        await self.begin(send)
        while not self.is_over:
            look()
            await self.flush(send)
            await self.wait()
        await self.finish(send)

    async def wait(self) -> bool:
        """Wait for a ring. Returns whether the stream goes on."""
        await self._bell.wait()
        self._bell.clear()
        return not self.is_over

    async def flush(self, send: Send) -> None:
        """Send the queue. Waits while the client does not read."""
        if self._queue:
            said = b"".join(self._queue)
            self._queue.clear()
            self._size = 0
            await send({"type": "http.response.body", "body": said, "more_body": True})

    async def finish(self, send: Send, last: bytes = b"") -> None:
        """End the answer, after the queue and `last`."""
        self.connection.on_lost(None)
        self.is_over = True
        await self.flush(send)
        await send({"type": "http.response.body", "body": last, "more_body": False})


class HttpServer(uvicorn.Server):
    """Serves `app` on sockets. `connection` makes the protocol of one client; `told` is set once it listens."""

    def __init__(self, app: ASGIApp, connection: Callable[..., Connection], told: asyncio.Event) -> None:
        settings = uvicorn.Config(
            cast("Any", app),
            http=cast("type[asyncio.Protocol]", connection),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            # A client that sends garbage would fill the log, so it is only counted. We log errors of our own code.
            log_level="critical",
            access_log=False,  # Paths contain keys, which may be personal data.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=FAREWELL_MAX,
        )
        super().__init__(settings)
        self._told = told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._told.set()

    async def listen_also(self, listener: socket.socket) -> None:
        others = self.servers
        await super().startup([listener])
        self.servers += others

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the agent, which must drain before the server may end."""
        yield

    async def admit(self, client: socket.socket, traffic: AgentTraffic) -> None:
        """Serve one more client, whose connection was made elsewhere and takes no room from the others."""
        of_server = {"config": self.config, "server_state": self.server_state, "app_state": {}}
        make = partial(Connection, traffic, counted=False, **of_server)
        await asyncio.get_running_loop().connect_accepted_socket(make, client)


def descriptors_free() -> int:
    """How many file descriptors this process has left for clients."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    listing = Path("/proc/self/fd")
    open_now = sum(1 for _ in listing.iterdir()) if listing.is_dir() else DESCRIPTORS_KEPT
    unbounded = 4 * CONNECTIONS_MAX
    return unbounded if descriptors == resource.RLIM_INFINITY else descriptors - open_now - DESCRIPTORS_KEPT


def room_for_connections(kept: int = 0) -> int:
    """How many clients this process has file descriptors for, after setting `kept` aside."""
    return max(1, min(CONNECTIONS_MAX, descriptors_free() - kept))
