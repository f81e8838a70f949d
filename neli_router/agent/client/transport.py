"""The transport: where an agent is, and how calls, answers and streams of events travel. All use of httpx is here.

    Transport, AsyncTransport --request--> httpx's transport, a pool of connections --HTTP--> agent
        ^--- answered: a view, or the error that the agent raised ---- status, bytes <---'
        ^--- NoAgent: the reason why no answer came ------------------ an error of httpx
    Stream, AsyncStream --pieces of bytes--> Events --name, data--> decoded --> the caller, who iterates
           <--close----- any thread: shutting the connection down wakes the caller that waits for the next event

httpx's own client logs each address, and with it a key. So ours are built on its transports, which do not.

For the agent, a stream and its hold on a role end when the connection does. A thread that waits for the next event
cannot be asked to close the stream; shutting the connection down wakes that thread, and reaches the agent even if a
forked child has a copy of the socket.

A fork leaves the child with the parent's connections, and both would talk on them at the same time. So in the child a
transport forgets them and opens its own pool. A child that outlives its parent must not keep the role, so it closes its
copies of the streams. Their descriptor numbers stay in use, because httpx will still close them by number.
"""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote
from weakref import WeakSet

import httpx

from neli_router.agent.client.calls import TIMEOUT, Call, answered, causes, no_agent
from neli_router.agent.client.leases import AgentReport
from neli_router.agent.wire import GROUP, GUARDIAN
from neli_router.config.agent_address import Address, distrust, parse, token_problem
from neli_router.core.closing import AsyncClosing, Closing
from neli_router.errors import Closed, ConfigError, NoAgent

__all__ = ["EVENT_MAX", "AsyncStream", "AsyncTransport", "BaseStream", "BaseTransport", "Events", "Stream", "Transport"]

LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=10, keepalive_expiry=3.0)
"""Each stream takes a connection of its own, so this bounds how many roles one client can wait for. The client drops an
idle connection long before the agent does, or a request could run into the agent's close."""

STALE = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""An idle connection may end just when it is used again. Every request here is safe to repeat."""

EVENT_MAX = 1 << 24
"""Bytes of one event. The page's status of 4096 partitions takes a few hundred thousand; no agent sends more."""

BROKEN = (httpx.TransportError, httpx.StreamError, ValueError)
"""How a stream breaks: the connection fails, the stream is used after its end, or an event never ends."""

Answer = TypeVar("Answer")

_transports: "WeakSet[Transport]" = WeakSet()
_streams: "WeakSet[BaseStream[Any]]" = WeakSet()


class BaseTransport:
    """Everything that both forms share. The token is a secret and appears in no `repr`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        ledger: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        group = ""
        if address is None or ledger is not None:
            # An address needs no configuration, and Airflow, which has one, parses Dags every few seconds.
            from neli_router.config.resolve import asked_agent  # noqa: PLC0415

            address, group = asked_agent(address, ledger)
        self.address: Final[Address] = parse(address)
        token = os.environ.get("NELI_TOKEN") if token is None else token
        if token and (problem := token_problem(token)):
            raise ConfigError([f"the agent's token {problem}"])
        if token and not self.address.is_loopback:
            raise ConfigError(
                [f"a token must not leave this host, and {self.address} is on another: ask its own agent"]
            )
        self.closed = False
        self._has_token, self._timeout = bool(token), timeout
        self._headers = [("Host", "agent" if self.address.path else self.address.url[7:]), ("Accept", "*/*")]
        if token and self.address.host:
            self._headers.append(("Authorization", f"Bearer {token}"))
        if group:
            self._headers.append((GROUP, quote(group)))
        # Never through a proxy from the environment: this traffic stays within the host.
        # An agent speaks plain HTTP. With `verify`, httpx would load a file of certificates for every client.
        self._options: dict[str, Any] = {
            "uds": self.address.path or None,
            "limits": LIMITS,
            "trust_env": False,
            "verify": False,
        }
        self._streams: WeakSet[BaseStream[Any]] = WeakSet()
        self.reports: WeakSet[AgentReport] = WeakSet()
        """The reports of all blocks of work that hold something through this transport."""
        self.followers: WeakSet[asyncio.Task[None]] = WeakSet()
        """The tasks that keep these reports up to date, if there is an event loop."""

    def guarded_by(self, process: int) -> None:
        """Everything that acts on this client's leases ends before both this process and its child `process` have.

        Internal."""
        self._headers.append((GUARDIAN, f"{process}"))

    def _request(self, call: Call[Any], timeout: float, read: float | None) -> httpx.Request:
        """`call` as an httpx request; `read` bounds the wait for each piece of the answer."""
        # Before each request: another user may have created the folder in the meantime.
        if why := distrust(self.address):
            raise NoAgent(
                f"an agent was wanted at {self.address}",
                why,
                "have the agent listen elsewhere, and say with --agent or NELI_AGENT where",
            )
        return httpx.Request(
            call.method,
            self.address.url + call.target,
            headers=[*self._headers, ("Content-Type", "application/json")] if call.body else self._headers,
            content=call.body or None,
            extensions={"timeout": {"connect": timeout, "write": timeout, "pool": timeout, "read": read}},
        )

    def _answered(self, call: Call[Answer], status: int, content: bytes) -> Answer:
        return answered(call, self.address, status, content, has_token=self._has_token)

    def _require_open(self) -> None:
        if self.closed:
            raise Closed("an open client was needed", "this one was closed before", "make another")

    def _let_go(self) -> None:
        for report in list(self.reports):  # Before its stream ends: after that, another host may lead.
            report.lose("its client was closed")
        for stream in list(self._streams):
            stream.cut()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the agent at {self.address}{', closed' if self.closed else ''}>"


class Transport(BaseTransport, Closing):
    """Can be shared between threads, and used after a fork, where it opens new connections."""

    def __init__(self, address: str | None = None, **rest: Any) -> None:
        super().__init__(address, **rest)
        self._lock = threading.Lock()
        self._pool: httpx.HTTPTransport | None = None
        self._forgotten: list[object] = []
        _transports.add(self)

    def call(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:
        """Ask, and decode the answer. Internal."""
        patience = timeout or call.timeout or self._timeout
        return self._read(call, self._send(self._request(call, patience, patience)))

    def stream(self, call: Call[Answer]) -> "Stream[Answer]":
        """Ask for a stream; returns once it is accepted. Internal."""
        # An agent may have nothing to say for days.
        response = self._send(self._request(call, self._timeout, None))
        if response.status_code != 200:
            self._read(call, response)
            raise AssertionError("an answer that is not 200 is a refusal, and that was raised")
        stream = Stream(call, self.address, response)
        self._streams.add(stream)
        return stream

    def _read(self, call: Call[Answer], response: httpx.Response) -> Answer:
        try:
            content = response.read()
        except httpx.TransportError as error:
            trouble = no_agent(self.address, error)
        else:
            return self._answered(call, response.status_code, content)
        finally:
            response.close()
        raise trouble  # Outside the handler: the httpx error refers to the request, and so to a key.

    def _send(self, request: httpx.Request) -> httpx.Response:
        pool = self._pool or self._opened()
        try:
            try:
                return pool.handle_request(request)
            except STALE:
                return pool.handle_request(request)
        except httpx.TransportError as error:
            _close_forgotten(error)
            trouble = no_agent(self.address, error)
        self._require_open()
        raise trouble

    def _opened(self) -> httpx.HTTPTransport:
        with self._lock:
            self._require_open()
            if self._pool is None:
                self._pool = httpx.HTTPTransport(**self._options)
            return self._pool

    def renew(self) -> None:
        """After a fork: start without connections. The thread that held the locks may not exist here."""
        self._lock = threading.Lock()
        # Keep the old pool alive: collecting it would close sockets, and warn about it, in the middle of other work.
        self._forgotten.append(self._pool)
        self._pool = None
        self._streams = WeakSet()

    def close(self) -> None:
        """Close all connections; blocks of `leading` lose their lease. Safe to call twice."""
        with self._lock:
            self.closed = True
            pool, self._pool = self._pool, None
        self._let_go()
        if pool is not None:
            pool.close()


class AsyncTransport(BaseTransport, AsyncClosing):
    """A Transport for one asyncio event loop; use it only there."""

    _pool: httpx.AsyncHTTPTransport | None = None

    async def call(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:  # noqa: ASYNC109 - as above.
        """Ask, and decode the answer. Internal."""
        patience = timeout or call.timeout or self._timeout
        return await self._read(call, await self._send(self._request(call, patience, patience)))

    def stream(self, call: Call[Answer]) -> "AsyncStream[Answer]":
        """A stream, which is requested when its first event is. Internal."""
        stream = AsyncStream(call, self.address, self._accepted)
        self._streams.add(stream)
        return stream

    async def _accepted(self, call: Call[Answer]) -> httpx.Response:
        response = await self._send(self._request(call, self._timeout, None))
        if response.status_code != 200:
            await self._read(call, response)
            raise AssertionError("an answer that is not 200 is a refusal, and that was raised")
        return response

    async def _read(self, call: Call[Answer], response: httpx.Response) -> Answer:
        try:
            content = await response.aread()
        except httpx.TransportError as error:
            trouble = no_agent(self.address, error)
        else:
            return self._answered(call, response.status_code, content)
        finally:
            await response.aclose()
        raise trouble

    async def _send(self, request: httpx.Request) -> httpx.Response:
        self._require_open()
        pool = self._pool = self._pool or httpx.AsyncHTTPTransport(**self._options)
        try:
            try:
                return await pool.handle_async_request(request)
            except STALE:
                return await pool.handle_async_request(request)
        except httpx.TransportError as error:
            trouble = no_agent(self.address, error)
        raise trouble

    async def close(self) -> None:
        """Close all connections; blocks of `leading` lose their lease. Safe to call twice."""
        self.closed = True
        self._let_go()
        if followers := list(self.followers):
            for follower in followers:
                follower.cancel()
            await asyncio.wait(followers)
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()


class Events:
    """Splits the pieces of bytes that arrive into server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """The name and the data of each event that `piece` completes. Raises ValueError for one that never ends."""
        # Replace and split the rest together with the piece: a piece may end between the two characters.
        *whole, self._rest = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > EVENT_MAX:
            raise ValueError(f"an event of at most {EVENT_MAX} bytes was wanted")
        return [event for event in map(_event, whole) if event[1]]


def _event(block: bytes) -> tuple[str, bytes]:
    name, lines = "message", []
    for line in block.split(b"\n"):
        word, _, value = line.partition(b":")
        if word == b"event":
            name = value.strip().decode("ascii", "replace")
        elif word == b"data":
            lines.append(value.removeprefix(b" "))
    return name, b"\n".join(lines)


class BaseStream(Generic[Answer]):
    """All that both forms share: the events of one request, and the connection beneath them."""

    def __init__(self, call: Call[Answer], address: Address) -> None:
        self._call, self._address, self._events = call, address, Events()
        self._socket: Any = None
        self.closed = False
        _streams.add(self)

    def cut(self) -> None:
        """End it, for the agent and for the caller that waits on it. Safe to call twice."""
        self.closed = True
        if self._socket is not None:
            with suppress(OSError):  # It has ended already.
                self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        """The descriptor of the connection, or -1 if there is none (any more)."""
        return -1 if self._socket is None else int(self._socket.fileno())

    def _take(self, response: httpx.Response) -> None:
        self._socket = response.extensions["network_stream"].get_extra_info("socket")

    def _decoded(self, piece: bytes) -> list[tuple[str, Answer]]:
        decoded = self._events.feed(piece)
        return [(name, answered(self._call, self._address, 200, content, has_token=True)) for name, content in decoded]


class Stream(BaseStream[Answer], Closing):
    """The events of one request, as they arrive. Iterating waits for the next; `close` ends it, from any thread."""

    def __init__(self, call: Call[Answer], address: Address, response: httpx.Response) -> None:
        super().__init__(call, address)
        self._response = response
        self._take(response)

    def events(self) -> Iterator[tuple[str, Answer]]:
        """The name and data of each event. Ends when the stream does; raises NoAgent if it breaks."""
        trouble = None
        try:
            for piece in self._response.iter_raw():
                yield from self._decoded(piece)
        except BROKEN as error:
            trouble = None if self.closed else no_agent(self._address, error)
        finally:
            self._response.close()
        if trouble is not None:
            raise trouble  # Outside the handler, as above.

    def __iter__(self) -> Iterator[Answer]:
        return (view for _, view in self.events())

    def close(self) -> None:
        """End it. Safe to call twice."""
        self.cut()

    def __exit__(self, *failure: object) -> None:
        self.cut()
        self._response.close()


class AsyncStream(BaseStream[Answer], AsyncClosing):
    """The events of one request, as they arrive. `async for` waits for the next; `async with` closes it."""

    def __init__(
        self, call: Call[Answer], address: Address, ask: Callable[[Call[Answer]], Awaitable[httpx.Response]]
    ) -> None:
        super().__init__(call, address)
        self._ask = ask

    async def events(self) -> AsyncIterator[tuple[str, Answer]]:
        """The name and data of each event. Ends when the stream does; raises NoAgent if it breaks."""
        response = await self._ask(self._call)
        self._take(response)
        trouble = None
        try:
            async for piece in response.aiter_raw():
                for event in self._decoded(piece):
                    yield event
        except BROKEN as error:
            trouble = None if self.closed else no_agent(self._address, error)
        finally:
            self.cut()
            await response.aclose()
        if trouble is not None:
            raise trouble

    async def __aiter__(self) -> AsyncIterator[Answer]:
        async for _, view in self.events():
            yield view

    async def close(self) -> None:
        """End it. Safe to call twice."""
        self.cut()


def _close_forgotten(error: httpx.TransportError) -> None:
    """Close the Unix socket of a failed connection: httpcore 1.0 forgets it, and Python would warn about it later."""
    for cause in causes(error):
        trace = cause.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_name == "connect_unix_socket":
                forgotten = trace.tb_frame.f_locals.get("sock")
                if isinstance(forgotten, socket.socket):
                    forgotten.close()
            trace = trace.tb_next


def _begin_child() -> None:
    """In a forked child, let go of the parent's connections without ending them for the parent."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in list(_streams):
        if (number := stream.fileno()) >= 0:
            os.dup2(null, number, inheritable=False)
    os.close(null)
    for transport in list(_transports):
        transport.renew()


os.register_at_fork(after_in_child=_begin_child)
