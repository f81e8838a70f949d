"""Streams: server-sent events of the agent, one after the other, until one side ends them.

    Stream, AsyncStream --pieces of bytes--> Events --name, data--> decoded --> the caller, who iterates
           <--close----- any thread: shutting the connection down wakes the caller that waits for the next event
           <--fork------ the child immediately closes its copy of the connection

For the agent, a stream and its hold on a role end when the connection does. A thread that waits for the next event
cannot be asked to close the stream; shutting the connection down wakes that thread, and reaches the agent even if a
forked child has a copy of the socket. A child that outlives its parent must not keep the role, so it closes its copies.
Their descriptor numbers stay in use, because httpx will still close them by number.
"""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import httpx

from neli_router.agent.client.calls import Call, answered, no_agent
from neli_router.config.agent_address import Address
from neli_router.core.closing import AsyncClosing, Closing

__all__ = ["EVENT_MAX", "AsyncStream", "BaseStream", "Events", "Stream"]

EVENT_MAX = 1 << 24
"""Bytes of one event. The page's status of 4096 partitions takes a few hundred thousand; anything larger than this did
not come from an agent."""

BROKEN = (httpx.TransportError, httpx.StreamError, ValueError)
"""How a stream breaks: the connection fails, the stream is used after its end, or an event never ends."""

Answer = TypeVar("Answer")

_streams: "WeakSet[BaseStream[Any]]" = WeakSet()


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

    def put_away(self, null: int) -> None:
        """Let go of the connection, in a forked child, without ending it for the parent."""
        if (number := self.fileno()) >= 0:
            os.dup2(null, number, inheritable=False)

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
            raise trouble  # Outside the handler: the httpx error refers to the request, and so to a key.

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


def _put_away() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in list(_streams):
        stream.put_away(null)
    os.close(null)


os.register_at_fork(after_in_child=_put_away)
