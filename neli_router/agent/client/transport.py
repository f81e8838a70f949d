"""The transport: where an agent is, and how calls and answers travel. All use of httpx by a client is here.

    Transport, AsyncTransport --Endpoint.request--> httpx's transport, a pool of connections --HTTP--> agent
        ^--- answered: a view, or the error that the agent raised ---- status, bytes <---------------'
        ^--- NoAgent: the reason why no answer came ------------------ an error of httpx

Both forms share the endpoint and the code that interprets an answer, so they cannot disagree. httpx's own client logs
each address, and with it a key. So ours are built on its transports, which do not.

A fork leaves the child with the parent's connections, and both would talk on them at the same time. So in the child a
transport forgets them and opens its own pool.
"""

import os
import socket
import threading
from typing import Any, Final, TypeVar
from weakref import WeakSet

import httpx

from neli_router.agent.client.calls import Call, answered, no_agent
from neli_router.agent.client.streams import AsyncStream, BaseStream, Stream
from neli_router.agent.wire import GUARDIAN
from neli_router.config.agent_address import Address, default_address, distrust, parse
from neli_router.config.token import token_problem
from neli_router.core.closing import AsyncClosing, Closing
from neli_router.errors import Closed, ConfigError, NoAgent

__all__ = ["AsyncTransport", "BaseTransport", "Endpoint", "Transport"]

LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=10, keepalive_expiry=3.0)
"""Each stream takes a connection of its own, so this bounds how many roles one client can wait for. The client drops an
idle connection long before the agent does, or a request could run into the agent's close."""

CAUSES_MAX = 10
"""How many nested errors to look through: httpx wraps httpcore's error, which wraps the system's."""

STALE = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""An idle connection may end just when it is used again. Every request here is safe to repeat."""

Answer = TypeVar("Answer")

_transports: "WeakSet[Transport]" = WeakSet()


class Endpoint:
    """Where the agent is, and how to build a request to it. The token is a secret and appears in no `repr`."""

    def __init__(self, address: str | None, token: str | None) -> None:
        self.address: Final[Address] = parse(default_address() if address is None else address)
        token = os.environ.get("NELI_TOKEN") if token is None else token
        if token and (problem := token_problem(token)):
            raise ConfigError([f"the agent's token {problem}"])
        if token and not self.address.is_loopback:
            raise ConfigError(
                [f"a token must not leave this host, and {self.address} is on another: ask its own agent"]
            )
        self.has_token = bool(token)
        self._url = self.address.url
        self._headers = [("Host", "agent" if self.address.path else self._url[7:]), ("Accept", "*/*")]
        if token and self.address.host:
            self._headers.append(("Authorization", f"Bearer {token}"))

        # Never through a proxy from the environment: this traffic stays within the host.
        # An agent speaks plain HTTP. With `verify`, httpx would load a file of certificates for every client.
        self.options: dict[str, Any] = {
            "uds": self.address.path or None,
            "limits": LIMITS,
            "trust_env": False,
            "verify": False,
        }
        """The arguments for an httpx transport."""

    def add_header(self, name: str, value: str) -> None:
        """Add it to each request from now on."""
        self._headers.append((name, value))

    def request(self, call: Call[Any], timeout: float, read: float | None) -> httpx.Request:
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
            self._url + call.target,
            headers=[*self._headers, ("Content-Type", "application/json")] if call.body else self._headers,
            content=call.body or None,
            extensions={"timeout": {"connect": timeout, "write": timeout, "pool": timeout, "read": read}},
        )


class BaseTransport:
    """Everything that both forms share."""

    def __init__(self, address: str | None, token: str | None, timeout: float) -> None:
        self._endpoint, self._timeout = Endpoint(address, token), timeout
        self._streams: WeakSet[BaseStream[Any]] = WeakSet()
        self._closed = False

    @property
    def address(self) -> Address:
        return self._endpoint.address

    @property
    def closed(self) -> bool:
        return self._closed

    def guarded_by(self, process: int) -> None:
        """Everything that acts on this client's leases ends before both this process and its child `process` have.

        Internal."""
        self._endpoint.add_header(GUARDIAN, f"{process}")

    def _answered(self, call: Call[Answer], status: int, content: bytes) -> Answer:
        return answered(call, self._endpoint.address, status, content, has_token=self._endpoint.has_token)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("an open client was needed", "this one was closed before", "make another")

    def _cut_streams(self) -> None:
        for stream in list(self._streams):
            stream.cut()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the agent at {self.address}{', closed' if self._closed else ''}>"


class Transport(BaseTransport, Closing):
    """Can be shared between threads, and used after a fork, where it opens new connections."""

    def __init__(self, address: str | None, token: str | None, timeout: float) -> None:
        super().__init__(address, token, timeout)
        self._lock = threading.Lock()
        self._pool: httpx.HTTPTransport | None = None
        self._forgotten: list[object] = []
        _transports.add(self)

    def call(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:
        """Ask, and decode the answer. Internal."""
        patience = timeout or call.timeout or self._timeout
        return self._read(call, self._send(self._endpoint.request(call, patience, patience)))

    def stream(self, call: Call[Answer]) -> Stream[Answer]:
        """Ask for a stream; returns once it is accepted. Internal."""
        # An agent may have nothing to say for days.
        response = self._send(self._endpoint.request(call, self._timeout, None))
        if response.status_code != 200:
            self._read(call, response)
            raise AssertionError("an answer that is not 200 is a refusal, and that was raised")
        stream = Stream(call, self._endpoint.address, response)
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
                self._pool = httpx.HTTPTransport(**self._endpoint.options)
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
            self._closed = True
            pool, self._pool = self._pool, None
        self._cut_streams()
        if pool is not None:
            pool.close()


class AsyncTransport(BaseTransport, AsyncClosing):
    """A Transport for one asyncio event loop; use it only there."""

    def __init__(self, address: str | None, token: str | None, timeout: float) -> None:
        super().__init__(address, token, timeout)
        self._pool: httpx.AsyncHTTPTransport | None = None

    async def call(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:  # noqa: ASYNC109 - as above.
        """Ask, and decode the answer. Internal."""
        patience = timeout or call.timeout or self._timeout
        return await self._read(call, await self._send(self._endpoint.request(call, patience, patience)))

    def stream(self, call: Call[Answer]) -> AsyncStream[Answer]:
        """A stream, which is requested when its first event is. Internal."""
        stream = AsyncStream(call, self._endpoint.address, self._accepted)
        self._streams.add(stream)
        return stream

    async def _accepted(self, call: Call[Answer]) -> httpx.Response:
        response = await self._send(self._endpoint.request(call, self._timeout, None))
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
        pool = self._pool = self._pool or httpx.AsyncHTTPTransport(**self._endpoint.options)
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
        self._closed = True
        self._cut_streams()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()


def _close_forgotten(error: httpx.TransportError) -> None:
    """Close the Unix socket of a failed connection: httpcore 1.0 forgets it, and Python would warn about it later."""
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        trace = cause.__traceback__ if cause is not None else None
        while trace is not None:
            if trace.tb_frame.f_code.co_name == "connect_unix_socket":
                forgotten = trace.tb_frame.f_locals.get("sock")
                if isinstance(forgotten, socket.socket):
                    forgotten.close()
            trace = trace.tb_next
        cause = cause and (cause.__cause__ or cause.__context__)


def _renew_all() -> None:
    for transport in list(_transports):
        transport.renew()


os.register_at_fork(after_in_child=_renew_all)
