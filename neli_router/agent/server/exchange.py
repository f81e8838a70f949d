"""Exchanges: what the door asks its agent, one request each, and the board, which asks once for all strangers.

    door --one end of a new pair of sockets, over the control socket--> agent, which serves it like any client
      |                                                                   |
      '--request--> the other end <--head, part, part ... , end-----------'
                          '-- either side closes in the middle --> the other side's connection is closed, too

Each exchange has a connection to itself. So a client that goes away takes its leases with it, like a client on the
agent's own socket. A connection whose answer was read to the end is reused for another exchange, because a new one
costs more than a look-up. Requests are written here, with a body of exactly the announced length, so nothing that one
client sends can be mistaken for part of another's. The sockets have no place in the file system, where they would need
a folder that only this user can write to. The answer is read only as fast as the client takes it. If the client does
not read, the agent sees a client that does not.

    stranger --GET /v1/status--.                   .--> at most one question to the agent at a time,
    stranger --GET /v1/status--+--> waiting for it +    followed by a rest of REST times as long as it took
                                                   '       '--> one answer, for all that waited when it was asked
    probe ----GET /health---------> the same, in its own lane
    stranger --GET /v1/events--> channel <--newest status-- one stream of the agent's, while there is a channel

An answer of the board is never older than its question, so a program that changes something and then looks sees the
change. However many strangers ask, the agent spends a tenth of its time on them: a flood delays only the *strangers'*
answers. Health and readiness never wait for other questions, because a late answer there gets the agent killed.
Questions with a query come last, because the number of different queries is unlimited.

Streams show the newest status; a client that reads slowly misses the ones in between. There are at most STREAMS_MAX of
them; one more ends the oldest, whose page then opens a new one.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import httptools
from starlette.types import Receive, Scope, Send

from neli_router.agent.server.connections import COMMENT, Channel, connection_of
from neli_router.agent.server.requests import RequestRefused, answer_bytes

__all__ = ["OPEN_PATHS", "RESTING_MAX", "STREAMS_MAX", "AgentLink", "AgentSilent", "Exchange", "PublicBoard"]

READ_MAX = 65536
"""Bytes that are read in one go, and that may wait to be taken."""

ANSWER_MAX = 16 * 2**20
"""Bytes of an answer that is read as a whole: the status of the largest group has two million."""

RESTING_MAX = 16
"""Connections that wait for reuse. Only streams need more than that at the same time, and each of them needs its
own."""

IDLE_MAX = 30.0
"""How many seconds a connection may have waited for reuse. The agent cuts it off after more than twice that, so never
just as we write."""

_BROKEN = OSError, RuntimeError, httptools.HttpParserError
"""The errors that a closed connection may raise; uvloop raises RuntimeError."""

STREAM = "/v1/events"

OPEN_PATHS = frozenset(
    {"/health", "/ready", "/metrics", "/v1/status", STREAM, "/v1/table", "/v1/members", "/v1/moves", "/v1/history"}
)
"""Paths that may be read over TCP without a token. Key look-ups are not among them: keys may be personal data."""

URGENT = frozenset({"/health", "/ready"})
"""Paths whose questions do not wait for any others."""

ANSWER_TIME_MAX = 5.0
"""Seconds that the agent may take for one answer. Probes do not wait that long, so a longer limit would help no one."""

REST = 9
"""A rest lasts this many times as long as the answer took: a tenth of the agent's time is for strangers."""

REST_MIN, REST_MAX, URGENT_REST_MAX = 0.01, 1.0, 0.1
"""Seconds. A probe waits for one second, and on a busy machine an answer may take long without costing much work."""

QUESTIONS_MAX = 64
"""Different questions that may wait. Ten have no query."""

STREAMS_MAX = 64
"""Streams without a token. Each gets a status every second."""


class AgentSilent(RequestRefused):
    """The agent gave no answer, or broke it off."""

    def __init__(self) -> None:
        super().__init__("NotReady", "an answer of the agent was wanted", "it gave none", "see its log; try again")


class _Pipe(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class AgentLink:
    """All connections of one door to its agent. Belongs to the loop."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._resting: list[tuple[float, _Pipe]] = []

    async def take(self) -> _Pipe:
        """A connection that is not in use. Raises OSError."""
        while self._resting:
            since, pipe = self._resting.pop()
            if self._loop.time() - since < IDLE_MAX and not pipe.reader.at_eof():
                return pipe
            pipe.writer.transport.abort()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # One byte for each, or the kernel would not carry it. It never waits: a full control socket means that
                # the agent is not reading.
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        ours.settimeout(0)
        return _Pipe(*await asyncio.open_unix_connection(sock=ours, limit=READ_MAX))

    def give_back(self, pipe: _Pipe) -> None:
        if len(self._resting) < RESTING_MAX:
            self._resting.append((self._loop.time(), pipe))
        else:
            pipe.writer.transport.abort()


class Exchange:
    """One request. Belongs to one task; `close` may be called from anywhere on the loop, and more than once."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._parser = httptools.HttpResponseParser(self)
        self._pipe: _Pipe | None = None
        self._is_closed = self._has_head = self._is_whole = self._is_bare = False
        self._body: list[bytes] = []
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """The headers of the answer, without those about this connection."""

    async def ask(self, method: str, target: bytes, *, body: bytes = b"") -> None:
        """Send the request, and wait for the head of its answer. Raises AgentSilent."""
        self._is_bare = method == "HEAD"  # Its answer gives the length of a body, but has no body.
        lines = [b"%b %b HTTP/1.1\r\nhost: agent\r\n" % (method.encode(), target)]
        if body:
            lines.append(b"content-length: %d\r\n" % len(body))
        try:
            self._pipe = await self._link.take()
            if self._is_closed:
                self._let_go(self._pipe)
                raise AgentSilent
            self._pipe.writer.write(b"".join([*lines, b"\r\n", body]))
            while not self._has_head:
                await self._read()
        except _BROKEN:
            raise AgentSilent from None

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises AgentSilent if it breaks off."""
        while True:
            if self._body:
                part = b"".join(self._body)
                self._body.clear()
                yield part
            elif self._is_whole or self._is_bare:
                return
            else:
                await self._read()

    async def whole(self) -> bytes:
        """The whole body."""
        found = bytearray()
        async for part in self.parts():
            found += part
            if len(found) > ANSWER_MAX:
                raise AgentSilent
        return bytes(found)

    def close(self) -> None:
        """Let go of the connection, and of anything the agent still sends on it."""
        self._is_closed = True
        if self._pipe is not None:
            self._let_go(self._pipe)

    def _let_go(self, pipe: _Pipe) -> None:
        self._pipe = None
        if self._is_whole and not self._is_bare and self._parser.should_keep_alive():
            self._link.give_back(pipe)
        else:
            pipe.writer.transport.abort()

    # For the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in {b"connection", b"transfer-encoding"}:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status, self._has_head = self._parser.get_status_code(), True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_whole = True

    async def _read(self) -> None:
        if self._pipe is None:
            raise AgentSilent  # It was closed, because the client is gone.
        try:
            said = await self._pipe.reader.read(READ_MAX)
            if not said:
                raise AgentSilent
            self._parser.feed_data(said)
        except _BROKEN:
            raise AgentSilent from None


class _Posting(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _Lane:
    """Questions that wait for the agent. They are asked one at a time; `rest_max` bounds the rest after each."""

    def __init__(self, link: AgentLink, rest_max: float) -> None:
        self._link, self._rest_max = link, rest_max
        self._waiting: dict[bytes, list[asyncio.Future[_Posting | None]]] = {}
        self._bell = asyncio.Event()
        self._asking = asyncio.create_task(self._ask_on())

    def close(self) -> None:
        self._asking.cancel()

    async def answer_to(self, target: bytes) -> _Posting | None:
        """The agent's answer, or None if it gives none."""
        if len(self._waiting) >= QUESTIONS_MAX and b"?" in target and target not in self._waiting:
            found = f"{QUESTIONS_MAX} different questions wait already"
            raise RequestRefused("Crowded", "an answer was wanted", found, "ask later, or with the token")
        waiter: asyncio.Future[_Posting | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(target, []).append(waiter)
        self._bell.set()
        return await waiter

    async def _ask_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._bell.wait()
            target = min(self._waiting, key=lambda target: b"?" in target)
            # Questions that arrive from now on wait for the next answer: this one may be made before they were asked.
            waiters, began = self._waiting.pop(target), loop.time()
            if not self._waiting:
                self._bell.clear()
            posting = await self._asked(target)
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(posting)
            await asyncio.sleep(min(self._rest_max, max(REST_MIN, REST * (loop.time() - began))))

    async def _asked(self, target: bytes) -> _Posting | None:
        exchange = Exchange(self._link)
        try:
            async with asyncio.timeout(ANSWER_TIME_MAX):
                await exchange.ask("GET", target)
                return _Posting(exchange.status, exchange.headers, await exchange.whole())
        except (AgentSilent, TimeoutError):
            return None
        finally:
            exchange.close()


class PublicBoard:
    """The board of one door, on its loop. `footnote` is appended to the agent's metrics."""

    def __init__(self, link: AgentLink, footnote: Callable[[], bytes]) -> None:
        self._link, self._footnote = link, footnote
        self._urgent, self._other = _Lane(link, URGENT_REST_MAX), _Lane(link, REST_MAX)
        self._channels: dict[Channel, None] = {}
        self._status = b""
        self._following: asyncio.Task[None] | None = None

    def close(self) -> None:
        self._urgent.close()
        self._other.close()
        if self._following is not None:
            self._following.cancel()

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to read one of OPEN_PATHS."""
        if scope["path"] == STREAM:
            if scope["method"] == "HEAD":
                raise RequestRefused("NotFound", "something to answer was wanted", "a stream has no end", "send GET")
            await self._stream(scope, send)
            return
        # Use the decoded path: one path has any number of encoded spellings.
        query = scope["query_string"]
        lane = self._urgent if scope["path"] in URGENT and not query else self._other
        posting = await lane.answer_to(scope["path"].encode() + (b"?" + query if query else b""))
        if posting is None:
            raise AgentSilent
        is_metrics = scope["path"] == "/metrics" and posting.status == 200
        body = posting.body + self._footnote() if is_metrics else posting.body
        headers = [header for header in posting.headers if header[0] != b"content-length"]
        await answer_bytes(send, body, headers, status=posting.status)

    # Streams

    async def _stream(self, scope: Scope, send: Send) -> None:
        channel, name, shown = Channel(connection_of(scope)), b"status", b""

        def look() -> None:
            nonlocal name, shown
            if shown is not self._status:
                shown = self._status
                # Built here and not on arrival: a slow client gets the newest status instead of all of them.
                channel.put(b"event: %b\n%b\n\n" % (name, shown))
                name = b"changed"

        with self._showing(channel):
            await channel.carry(send, look)

    @contextmanager
    def _showing(self, channel: Channel) -> Iterator[None]:
        if len(self._channels) >= STREAMS_MAX:
            oldest = next(iter(self._channels))
            del self._channels[oldest]
            oldest.connection.make_way()
        self._channels[channel] = None
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self._channels.pop(channel, None)
            if not self._channels and self._following is not None:
                self._following.cancel()
                self._following, self._status = None, b""

    async def _follow(self) -> None:
        """Read the agent's stream, and end ours when it ends."""
        exchange, rest = Exchange(self._link), b""
        try:
            await exchange.ask("GET", STREAM.encode())
            async for part in exchange.parts():
                *events, rest = (rest + part).split(b"\n\n")
                for event in events:
                    self._tell(event)
                if len(rest) > ANSWER_MAX:
                    break
        except AgentSilent:
            pass
        finally:
            exchange.close()
        self._following, self._status = None, b""
        for channel in list(self._channels):
            self._channels.pop(channel)
            channel.end()

    def _tell(self, event: bytes) -> None:
        _, _, status = event.partition(b"\n")
        if status.startswith(b"data: "):
            self._status = status
        for channel in self._channels:
            if status:
                channel.ring()
            else:
                channel.put(COMMENT)
