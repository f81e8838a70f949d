"""A stand-in for the agent: a real HTTP server on a real socket speaks the wire protocol, with answers set by a test.

    test --says--> StandIn --HTTP--> Client

The real agent answers from its group's state, so a test could not make it hang, break off or contradict itself at a
chosen moment. Normal conversations between client and agent are tested with the real agent.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from neli_router.agent.wire import (
    STATUS_OF,
    EventView,
    HistoryView,
    LeaseView,
    LoadAsked,
    LoadView,
    MembersView,
    MemberView,
    MovedView,
    MovesView,
    MoveView,
    OwnersAsked,
    OwnersView,
    OwnerView,
    PartitionView,
    Refusal,
    ShareView,
    StatusView,
    TableView,
    WishAsked,
    WishView,
)
from tests.support.waiting import PATIENCE, beside, until

__all__ = ["FOUNDED", "PATIENCE", "StandIn", "standing_in", "whenever"]

RENEWED_EVERY = 0.5


class StandIn:
    """Two partitions: `alpha` owns number 0, no member owns number 1. A test may set all attributes."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.wishes: list[tuple[str, WishAsked]] = []
        self.loads: list[LoadAsked] = []
        self.balance = (1.5, 1.02, 0.5)
        self.lease = LeaseView(0, False, "alpha", why="beta leads it")
        self.lease_ends: float | None = None
        """On `time.monotonic`: with it, the rest of the lease shrinks, like that of a real lease."""
        self.late = 0.0
        """How many seconds an answer about the lease takes."""
        self.share = ShareView("alpha", why="beta leads them")
        self.history = [FOUNDED]
        self.token = ""
        self.refusal: Refusal | None = None
        self.body: bytes | None = None
        self.hangs = False
        self.age = 0.1
        """The age of its news about the group."""
        self.held = 0
        """The number of open leadership streams."""
        self._streams: list[asyncio.Queue[tuple[str, msgspec.Struct] | None]] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    def leads(self, *, term: int = 7, remaining: float = 30.0, drain_timeout: float = 10.0) -> None:
        """From now on the stand-in's member leads; all that wait are notified."""
        self.lease = LeaseView(0, True, "alpha", term, remaining, drain_timeout)
        self.lease_ends = None  # Only now: a request in between would see the last term with a new end.
        self.say("acquired", self.lease)

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Inside, the lease is renewed again and again, like with a real agent."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(RENEWED_EVERY):
                self.say("renewed")

        with beside(renew, end=done.set):
            yield

    def say(self, name: str, view: msgspec.Struct | None = None, *, why: str = "") -> None:
        """Send an event to every stream."""
        said = (name, view or LeaseView(0, False, "alpha", self.lease.term, why=why))
        self._put(said)

    def hang_up(self) -> None:
        """Break off every stream, without a message."""
        self._put(None)

    def _put(self, said: tuple[str, msgspec.Struct] | None) -> None:
        assert self.loop is not None
        for stream in list(self._streams):
            self.loop.call_soon_threadsafe(stream.put_nowait, said)

    async def answer(self, request: Request) -> Response:
        self.requests.append(request.url.path)
        while self.hangs:  # noqa: ASYNC110 - the test sets it, on another thread.
            await asyncio.sleep(0.01)
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return _refused(Refusal("TokenWanted", "a token was wanted", "there is none", "give one"))
        if self.refusal is not None:
            return _refused(self.refusal)
        if self.body is not None:
            return Response(self.body)
        match request.url.path.removeprefix("/v1/"):
            case "owner":
                key = request.query_params.get("key") or request.query_params.get("key64") or ""
                return _json(_owner(key))
            case "owners":
                asked = msgspec.json.decode(await request.body(), type=OwnersAsked)
                return _json(OwnersView([_owner(key) for key in [*asked.keys, *asked.keys64]], 9, 0.1))
            case "lease":
                await asyncio.sleep(self.late)
                ends = self.lease_ends
                left = self.lease.remaining if ends is None else max(0.0, ends - monotonic())
                return _json(msgspec.structs.replace(self.lease, remaining=left))
            case "leadership/events":
                return StreamingResponse(self._events(self._leadership), media_type="text/event-stream")
            case "share":
                return _json(self.share)
            case "share/events":
                return StreamingResponse(self._events(self._shared), media_type="text/event-stream")
            case "watch":
                return StreamingResponse(self._events(lambda: ("owner", _owner(""))), media_type="text/event-stream")
            case "table":
                return _json(_TABLE)
            case "members":
                return _json(MembersView([_ALPHA], 9, self.age))
            case "moves":
                return _json(MovesView([MoveView(5, 60.0, [0], None, "beta", "expire", "beta")]))
            case "history":
                return _json(HistoryView(self.history, 9))
            case "history/events":
                return StreamingResponse(self._events(lambda: ("event", FOUNDED)), media_type="text/event-stream")
            case "status":
                table = msgspec.structs.replace(_TABLE, age=self.age)
                return _json(StatusView("alpha", "1", "exclusive", 3.0, "member", table, [_ALPHA], []))
            case "load":
                self.loads.append(msgspec.json.decode(await request.body(), type=LoadAsked))
                return _json(LoadView(not self.loads[-1].preview, [_MOVED], *self.balance))
            case wish:
                self.wishes.append((wish, msgspec.json.decode(await request.body(), type=WishAsked)))
                return _json(WishView(not self.wishes[-1][1].preview, [_MOVED]))

    def _leadership(self) -> tuple[str, msgspec.Struct]:
        return ("acquired" if self.lease.leads else "waiting", self.lease)

    def _shared(self) -> tuple[str, msgspec.Struct]:
        return ("acquired" if self.share.terms else "waiting", self.share)

    async def _events(self, first: Callable[[], tuple[str, msgspec.Struct]]) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[tuple[str, msgspec.Struct] | None] = asyncio.Queue()
        self._streams.append(queue)
        self.held += 1
        try:
            yield b":\n\n"
            # Only now: news from before `_put` knew this stream must be in its first event.
            said: tuple[str, msgspec.Struct] | None = first()
            while said is not None:
                yield b"event: %b\ndata: %b\n\n" % (said[0].encode(), msgspec.json.encode(said[1]))
                said = await queue.get()
            raise ConnectionError("the test breaks the stream off")
        finally:
            self._streams.remove(queue)
            self.held -= 1


@contextmanager
def standing_in(path: Path | None = None) -> Iterator[tuple[StandIn, str]]:
    """A stand-in that serves on a Unix socket below `path`, or on a free port of loopback; and its address."""
    agent = StandIn()
    app = Starlette(routes=[Route("/{rest:path}", agent.answer, methods=["GET", "POST"])])
    where: dict[str, Any] = {"host": "127.0.0.1", "port": 0} if path is None else {"uds": str(path / "agent.sock")}
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",
            ws="none",
            lifespan="off",
            loop="asyncio",
            timeout_graceful_shutdown=int(PATIENCE),  # A shutdown that is cut short leaves sockets open.
            **where,
        )
    )

    async def serve() -> None:
        agent.loop = asyncio.get_running_loop()
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        if path is not None:
            yield agent, f"unix:{path}/agent.sock"
        else:
            port = server.servers[0].sockets[0].getsockname()[1]
            yield agent, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        give_up_at = monotonic() + PATIENCE
        while thread.is_alive() and monotonic() < give_up_at:
            agent.hangs = False
            with suppress(RuntimeError):  # Its loop has just ended.
                agent.hang_up()  # Repeatedly: a client may come back before the server stops listening.
            thread.join(0.05)


@contextmanager
def whenever(ready: Callable[[], object], then: Callable[[], object]) -> Iterator[None]:
    """Inside, another thread does `then()` as soon as `ready()`."""

    def wait() -> None:
        until(ready)
        then()

    with beside(wait):
        yield


_ALPHA = MemberView("alpha", "http://alpha:1", "", 100, "i1", 1, 0.0, 2.5, 0, False, 3, witness="agent")
FOUNDED = EventView(1, 60.0, "join", "alpha", "alpha", [MovedView(None, "alpha", 100, [*range(100)])], last=1)
"""The oldest event of the stand-in's group. Each stream of events begins with it, as if it came both ways."""

_MOVED = MoveView(10, 0.0, [0], "alpha", "beta", "drain", "alpha")
_TABLE = TableView("memory://x", 16, [PartitionView(0, 4, 0), PartitionView(None, 0, None)], 9, 0.1)


def _owner(key: str) -> OwnerView:
    if "nobody" in key or key == "bm9ib2R5":
        return OwnerView(1, None, slot=1, at=9, why="no member is left")
    return OwnerView(0, "alpha", "http://alpha:1", 4, 0, 9, 0.1)


def _json(view: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json")


def _refused(refusal: Refusal) -> Response:
    return Response(msgspec.json.encode(refusal), status_code=STATUS_OF.get(refusal.kind, 503))
