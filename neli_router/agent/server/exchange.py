"""An exchange: one request of the door to its agent, and the answer as it arrives.

    door --one end of a new pair of sockets, over the control socket--> agent, which serves it like any client
      |                                                                   |
      '--request--> the other end <--head, part, part ... , end-----------'
                          '-- either side closes in the middle --> the other side's connection is closed, too

Each exchange has a connection to itself. So a client that goes away takes its leases with it, like a client on the
agent's own socket. A connection whose answer was read to the end is reused for another exchange, because a new one
costs more than a look-up. Requests are written here, with a body of exactly the announced length, so nothing that one
client sends can be mistaken for part of another's. The sockets have no place in the file system, where they would need
a folder that only this user can write to.

The answer is read only as fast as the client takes it. If the client does not read, the agent sees a client that does
not.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

import httptools
from starlette.types import Scope

__all__ = ["ANSWER_MAX", "RESTING_MAX", "AgentLink", "AgentSilent", "Exchange", "target_of"]

READ_MAX = 65536
"""Bytes that are read in one go, and that may wait to be taken."""

ANSWER_MAX = 16 * 2**20
"""Bytes of an answer that is read as a whole: the status of the largest group has two million."""

RESTING_MAX = 16
"""Connections that wait for reuse. Only streams need more than that at the same time, and each of them needs its
own."""

REST_MAX = 30.0
"""How many seconds a connection may have waited. The agent cuts it off after more than twice that, so never just as we
write."""

_BROKEN = OSError, RuntimeError, httptools.HttpParserError
"""The errors that a closed connection may raise; uvloop raises RuntimeError."""


class AgentSilent(Exception):
    """The agent gave no answer, or broke it off."""


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
            if self._loop.time() - since < REST_MAX and not pipe.reader.at_eof():
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

    async def ask(
        self, method: str, target: bytes, *, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b""
    ) -> None:
        """Send the request, and wait for the head of its answer. Raises AgentSilent."""
        self._is_bare = method == "HEAD"  # Its answer gives the length of a body, but has no body.
        lines = [b"%b %b HTTP/1.1\r\nhost: agent\r\n" % (method.encode(), target)]
        lines += [b"%b: %b\r\n" % header for header in headers or []]
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


def target_of(scope: Scope) -> bytes:
    """The path and query of a request, spelled as the client sent them."""
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path
