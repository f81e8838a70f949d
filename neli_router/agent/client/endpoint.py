"""The door: where an agent is, how one gets in, and the streams that come out.

    Door   --request--> httpx's transport --> response --> Stream --events--> whoever iterates
    Stream <--close---- any thread: the connection is shut down beneath whoever waits for the next event
           <--fork----- the child's copy of the connection is put away at once

For the agent a stream ends when its connection does, and with it the hold on a role. A thread that waits for the next
event cannot be asked to close it; shutting the connection down wakes that thread, and reaches the agent even if a
forked child has a copy of the socket. A child that outlives its parent must not keep the role: so it puts its copies
away, in such a manner that their numbers stay taken, because somebody will still close them by number.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakSet

import httpx

from neli_router.agent.address import Address, default_address, distrust, parse
from neli_router.agent.client.calls import Call, Events, event_of, no_agent
from neli_router.errors import ConfigError, NoAgent
from neli_router.settings.token import token_problem

__all__ = ["LIMITS", "Door", "Line", "Stream", "close_forgotten"]

LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=10, keepalive_expiry=3.0)
"""A stream has a connection to itself, so their number bounds how many roles one client can wait for. An idle
connection is given up long before the agent does that, or a request could run into its end."""

CAUSES_MAX = 10
"""How deep an error of httpx is looked into: it wraps httpcore's, which wraps the system's."""

Answer = TypeVar("Answer")

_lines: "WeakSet[Line]" = WeakSet()


class Door:
    """Where the agent is and how one gets in. The token is a secret: it stands in no `repr`."""

    def __init__(self, address: str | None, token: str | None) -> None:
        self.address: Address = parse(default_address() if address is None else address)
        token = os.environ.get("NELI_TOKEN") if token is None else token
        if token and (problem := token_problem(token)):
            raise ConfigError([f"the agent's token {problem}"])
        if token and not self.address.is_loopback:
            raise ConfigError(
                [f"a token must not leave this host, and {self.address} is on another: ask its own agent"]
            )
        self.has_token = bool(token)
        self._headers = [("Host", "agent" if self.address.path else self.address.url[7:]), ("Accept", "*/*")]
        if token and self.address.host:
            self._headers.append(("Authorization", f"Bearer {token}"))

        # Never through a proxy that the environment names: this is a conversation within the host.
        # An agent speaks plain HTTP. With `verify`, httpx would read a file of certificates for every client.
        self.options: dict[str, Any] = {
            "uds": self.address.path or None,
            "limits": LIMITS,
            "trust_env": False,
            "verify": False,
        }
        """What a transport of httpx needs to know."""

    def request(self, call: Call[Any], timeout: float, *, read: float | None) -> httpx.Request:
        """`call`, as httpx sends it; `read` bounds the wait for each piece of the answer."""
        # Before each: the folder may have been made by somebody else since.
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


def close_forgotten(error: httpx.TransportError) -> None:
    """Close the Unix socket of a failed connection: httpcore 1.0 forgets it, and Python warns about that later."""
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


class Line:
    """The connection beneath a stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._socket = response.extensions["network_stream"].get_extra_info("socket")
        _lines.add(self)

    def cut(self) -> None:
        """End it, for the agent and for whoever waits on it. Twice is fine."""
        with suppress(OSError):  # It has ended already.
            self._socket.shutdown(socket.SHUT_RDWR)

    def put_away(self, null: int) -> None:
        """Let go of it, in a forked child, without ending it for the parent."""
        number = self._socket.fileno()
        if number >= 0:
            os.dup2(null, number, inheritable=False)


class Stream(Generic[Answer]):
    """The events of one request, as they come. Iterating waits for the next; `close` ends it, from any thread."""

    def __init__(self, call: Call[Answer], response: httpx.Response, address: Address) -> None:
        self._call, self._response, self._address = call, response, address
        self._line, self.closed = Line(response), False

    def events(self) -> Iterator[tuple[str, Answer]]:
        """Name and data of each. Ends when the stream does; raises NoAgent if it breaks."""
        events, trouble = Events(), None
        try:
            for piece in self._response.iter_raw():
                for name, content in events.feed(piece):
                    yield name, event_of(self._call, content, self._address)
        except (httpx.TransportError, httpx.StreamError, ValueError) as error:
            trouble = no_agent(self._address, error)
        finally:
            self._response.close()
        if trouble is not None and not self.closed:
            raise trouble

    def __iter__(self) -> Iterator[Answer]:
        return (view for _, view in self.events())

    def close(self) -> None:
        """Want no more. Twice is fine."""
        self.closed = True
        self._line.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._response.close()


def _put_away() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for line in list(_lines):
        line.put_away(null)
    os.close(null)


os.register_at_fork(after_in_child=_put_away)
