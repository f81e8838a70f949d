"""A stand-in for the agent: it serves the page, an invented group, and its events, with the views of the wire.

    StandIn().start() --> address --GET /, /assets/*--> the files that ship
                                  --GET /v1/events----> status, then changed each second, and at each `tell(view)`
                                  --POST /v1/drain ...-> what `moved` says, and what was asked stays in `asked`

A test may call `tell` from its own thread. `cut` ends all streams and refuses new ones, `mend` accepts them again.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from neli_router.agent import page
from neli_router.agent.wire import (
    EventView,
    MemberView,
    MovedView,
    MoveView,
    PartitionView,
    Refusal,
    StatusView,
    TableView,
    WishAsked,
    WishView,
)
from neli_router.protocols.protocol import Cause

__all__ = ["TOKEN", "StandIn", "after_takeover", "group"]

TOKEN = "a-token-for-tests"  # noqa: S105 (it opens nothing)
BASE = 1_760_000_000_000_000
START_MAX = 180.0
EVERY = 1.0
WISHES = ("drain", "undrain", "pin", "unpin", "weigh")
ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")


def group(members: int = 200, partitions: int = 4096, *, moves: bool = True, lease: float = 3.0) -> StatusView:
    """A group at rest: everything is owned, and a few things have happened."""
    past = _past(members, partitions) if moves else []
    moved = {place: event.last for event in past for move in event.moved for place in move.partitions}
    owned = [0] * members
    cells = []
    for place in range(partitions):
        owner = place * 7 % members
        owned[owner] += 1
        pinned = f"worker-{owner}" if place % 97 == 5 else None
        cells.append(PartitionView(owner, BASE + max(1 + owner, moved.get(place, 0)), owner, pinned, place % 5 / 2))
    return StatusView(
        agent=f"worker-{members - 1}",
        version="0.1.0",
        guarantee="exclusive",
        lease=lease,
        member="member",
        table=TableView("sqlite:///var/lib/neli/orders.db", 16384, cells, 9_412, 0.02),
        members=[
            MemberView(
                name=f"worker-{place}",
                address=f"10.0.{place // 250}.{place % 250 + 1}:7400",
                zone=ZONES[place % 3],
                weight=1 + (place % 11 == 4),
                incarnation=f"i{place}",
                partitions=owned[place],
                load=owned[place] * 0.8,
                lease_left=lease * (0.55 + 0.4 * (place * 37 % 100) / 100),
                lag=place % 4,
                drained=False,
                joined=1 + place,
                joined_ago=900.0 - 0.4 * place if place % 3 else None,
                witness=("agent", "child", "")[place % 3],
            )
            for place in range(members)
        ],
        history=past,
        led=owned[-1],
    )


def _past(members: int, partitions: int) -> list[EventView]:
    joins = [
        _event_of(
            1 + m,
            900.0 - 0.4 * m,
            "join",
            f"worker-{m}",
            {(None, f"worker-{m}"): [*range(m, partitions, members)][:20]},
        )
        for m in range(0, members, max(1, members // 12))
    ]
    drained = {("worker-1", f"worker-{n}"): [*range(n, min(72, partitions), 3)] for n in (0, 2)}
    drain = _event_of(5000, 420.0, "drain", "worker-1", drained, by="ops", last=5048, lasted=3.5)
    gone = {("worker-gone", f"worker-{n}"): [*range(n, partitions, 5 * members)][:7] for n in range(min(4, members))}
    expired = _event_of(9000, 95.0, "expire", "worker-gone", gone, by="worker-2")
    fenced = _event_of(9010, 90.0, "fence", "worker-gone", {})
    killed = {
        ("worker-killed", f"worker-{n}"): [*range(n + 1, partitions, 7 * members)][:5] for n in range(min(3, members))
    }
    certified = _event_of(9200, 40.0, "certify", "worker-killed", killed, by="worker-1")
    return [*joins, drain, expired, fenced, certified]


def _event_of(
    offset: int,
    ago: float,
    cause: Cause,
    member: str,
    moved: Mapping[Any, list[int]],
    *,
    by: str = "",
    last: int = 0,
    lasted: float = 0.0,
) -> EventView:
    views = [MovedView(source, target, len(places), places) for (source, target), places in moved.items()]
    last = last or offset
    term = BASE + last if moved else 0
    return EventView(offset, ago, cause, member, by or member, views, None, last, lasted, term=term)


def after_takeover(view: StatusView, dead: int, heir: int) -> StatusView:
    """`view` after the member at place `dead` was expired, and the member at `heir` received all its partitions."""
    offset, table = view.table.at + 1, view.table
    taken = [place for place, cell in enumerate(table.partitions) if cell.owner == dead]

    def shifted(place: int | None) -> int | None:
        place = heir if place == dead else place
        return place - 1 if place is not None and place > dead else place

    cells = [
        PartitionView(
            shifted(cell.owner),
            BASE + offset if cell.owner == dead else cell.term,
            shifted(cell.target),
            cell.pinned,
            cell.load,
        )
        for cell in table.partitions
    ]
    members = [
        msgspec.structs.replace(member, partitions=member.partitions + (len(taken) if place == heir else 0))
        for place, member in enumerate(view.members)
        if place != dead
    ]
    names = view.members[dead].name, view.members[heir].name
    event = _event_of(offset, 0.0, "expire", names[0], {names: taken}, by=view.agent)
    return msgspec.structs.replace(
        view,
        table=msgspec.structs.replace(table, partitions=cells, at=offset + 1),
        members=members,
        history=[*view.history, event],
    )


class StandIn:
    """Serves on a loopback port of its own, on a thread of its own, for as long as the `with` block."""

    def __init__(self, view: StatusView) -> None:
        self.begin(view)
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        self._assets = page.load()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        app = Starlette(
            routes=[
                Route("/v1/events", self._events),
                Route("/v1/lease", self._lease),
                *(Route(f"/v1/{wish}", self._wish, methods=["POST"]) for wish in WISHES),
                Route("/{file:path}", self._file),
            ]
        )
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1, access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="stand-in")
        self._loop = asyncio.new_event_loop()

    def begin(self, view: StatusView) -> None:
        """Make it as good as new."""
        self.view = view
        self.moved: list[MoveView] = []
        self.refusal: Refusal | None = None
        self.asked: list[tuple[str, WishAsked]] = []
        self.is_mute = False
        """Whether it reports nothing, like an agent that hangs."""
        self._is_cut = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._server.should_exit = True
        self._thread.join(START_MAX)
        self._socket.close()

    def tell(self, view: StatusView) -> None:
        """Send `view` to all open streams."""
        self.view = view
        self._each(_event("changed", view))

    def cut(self) -> None:
        self._is_cut = True
        self._each(None)

    def mend(self) -> None:
        self._is_cut = False

    def _each(self, chunk: bytes | None) -> None:
        def put() -> None:
            for stream in self._streams:
                stream.put_nowait(chunk)

        self._loop.call_soon_threadsafe(put)

    def _run(self) -> None:
        self._loop.run_until_complete(self._server.serve(sockets=[self._socket]))
        self._loop.close()

    async def _file(self, request: Request) -> Response:
        asset = self._assets.get(request.url.path)
        if asset is None:
            return Response(status_code=404)
        return Response(asset.body, headers={name.decode(): value.decode() for name, value in asset.headers})

    async def _events(self, request: Request) -> Response:
        if self._is_cut:
            return Response(status_code=503)
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams.add(stream)

        async def chunks() -> AsyncIterator[bytes]:
            try:
                yield _event("status", self.view)
                while (chunk := await self._next(stream)) is not None:
                    yield chunk
            finally:
                self._streams.discard(stream)

        return StreamingResponse(chunks(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _next(self, stream: "asyncio.Queue[bytes | None]") -> bytes | None:
        """The events that are sent; without new ones, the same one again each second, like the agent."""
        try:
            return await asyncio.wait_for(stream.get(), EVERY)
        except TimeoutError:
            return await stream.get() if self.is_mute else _event("changed", self.view)

    async def _lease(self, request: Request) -> Response:
        return self._barred(request) or Response(b"{}", media_type="application/json")

    def _barred(self, request: Request) -> Response | None:
        if request.headers.get("authorization") == f"Bearer {TOKEN}":
            return None
        refusal = Refusal("TokenWanted", "the agent's token was wanted", "another one was given", "give the right one")
        return Response(msgspec.json.encode(refusal), 401, media_type="application/json")

    async def _wish(self, request: Request) -> Response:
        if (barred := self._barred(request)) is not None:
            return barred
        if self.refusal is not None:
            return Response(msgspec.json.encode(self.refusal), 400, media_type="application/json")
        asked = msgspec.json.decode(await request.body(), type=WishAsked)
        self.asked.append((request.url.path, asked))
        answer = WishView(done=not asked.preview, moves=self.moved)
        return Response(msgspec.json.encode(answer), media_type="application/json")


def _event(kind: str, view: StatusView) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(view))
