"""Channels: server-sent events to one client, at that client's pace.

    hub, timers --put, ring--> [ event | event | ... ] --one task: wait, flush--> HTTP
                                at most QUEUE_MAX bytes; beyond that, the client is cut off

The hub never waits for a client: it puts its news into a queue and moves on. A client that does not read fills only its
own queue. Then it is cut off, because skipped events would leave it with a wrong picture; when it reconnects, it starts
from the present state.
"""

import asyncio
from collections import deque

import msgspec
from starlette.types import Send

from neli_router.agent.server.connections import Connection

__all__ = ["COMMENT", "Channel", "event"]

QUEUE_MAX = 4 * 2**20
"""Bytes that may wait for one client: a whole table of four thousand partitions, and a bit more."""

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

_encoder = msgspec.json.Encoder()


def event(name: str, view: msgspec.Struct) -> bytes:
    """One event. Its JSON is a single line, so it is a single line of the stream, too."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(view))


class Channel:
    """One stream of events. It belongs to the loop; one task does its waiting."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_over = False
        """Whether the client is gone, or was sent its last event."""
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._is_rung = False
        self._waiter: asyncio.Future[None] | None = None
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
        self._is_rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """Take no further events. Those in the queue are still sent if the client is there."""
        self.is_over = True
        self.ring()

    # For the one task

    async def begin(self, send: Send) -> None:
        await send(HEAD)

    async def wait(self) -> None:
        """Wait until there may be something to do."""
        while not self._is_rung:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._is_rung = False

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
