"""The board: public pages and probes, fetched from the agent once for all clients that ask.

    stranger --GET /v1/status--.                   .--> at most one question to the agent at a time,
    stranger --GET /v1/status--+--> waiting for it +    followed by a rest of REST times as long as it took
                                                   '       '--> one answer, for all that waited when it was asked
    probe ----GET /health---------> the same, in its own lane
    stranger --GET /v1/events--> channel <--newest status-- one stream of the agent's, while there is a channel

An answer is never older than its question, so a program that changes something and then looks sees the change. However
many strangers ask, the agent spends a tenth of its time on them: a flood delays only the *strangers'* answers. Health
and readiness never wait for other questions, because a late answer there gets the agent killed. Questions with a query
come last, because the number of different queries is unlimited.

Streams show the newest status; a client that reads slowly misses the ones in between. There are at most STREAMS_MAX of
them; one more ends the oldest, whose page then opens a new one.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from neli_router.agent.server.connections import COMMENT, Channel, connection_of
from neli_router.agent.server.exchange import ANSWER_MAX, AgentSilent, Exchange
from neli_router.agent.server.requests import RequestRefused, answer_bytes, not_ready

__all__ = ["OPEN_PATHS", "PublicBoard", "silent"]

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


class _Posting(NamedTuple):
    """An answer of the agent's."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _Lane:
    """Questions that wait for the agent. They are asked one at a time; `rest_max` bounds the rest after each."""

    def __init__(self, exchange: Callable[[], Exchange], rest_max: float) -> None:
        self._exchange, self._rest_max = exchange, rest_max
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
            target = min(self._waiting, key=_has_query)
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
        exchange = self._exchange()
        try:
            async with asyncio.timeout(ANSWER_TIME_MAX):
                await exchange.ask("GET", target)
                return _Posting(exchange.status, exchange.headers, await exchange.whole())
        except (AgentSilent, TimeoutError):
            return None
        finally:
            exchange.close()


class PublicBoard:
    """The board of one door, on its loop. `exchange` opens an exchange with the agent; `footnote` is appended to its
    metrics."""

    def __init__(self, exchange: Callable[[], Exchange], footnote: Callable[[], bytes]) -> None:
        self._exchange, self._footnote = exchange, footnote
        self._urgent, self._other = _Lane(exchange, URGENT_REST_MAX), _Lane(exchange, REST_MAX)
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
            raise silent()
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
        await channel.finish(send)

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
        exchange, rest = self._exchange(), b""
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


def silent() -> RequestRefused:
    """The refusal of a request that the agent does not answer."""
    return not_ready("an answer of the agent was wanted", "it gave none", "see its log; try again")


def _has_query(target: bytes) -> bool:
    return b"?" in target
