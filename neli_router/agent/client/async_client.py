"""The client for programs with an event loop: the same names, and nothing that waits holds up the loop.

    async with AsyncClient() as client:
        await client.owner("customer-7")
        async with client.leading("nightly") as lease:      waits until this host leads
            await work(term=lease.term)                     cancelled at once if the lease is lost,
                                                            and then the block raises LeaseLost

What is asked and what is made of the answers is the same code as for the sync form; see `calls.py`, and for streams
`async_following.py`.
"""

from collections.abc import Iterable
from typing import TypeVar
from weakref import WeakSet

import httpx

from neli_router.agent.address import Address
from neli_router.agent.client import calls
from neli_router.agent.client.async_following import AsyncBlock, AsyncStream, idle
from neli_router.agent.client.calls import TIMEOUT, Call, answered, named, no_agent
from neli_router.agent.client.endpoint import Door
from neli_router.agent.client.leases import AsyncAgentLease, Hold
from neli_router.agent.wire import MembersView, MovesView, OwnerView, StatusView, TableView, WishAsked, WishView
from neli_router.closing import AsyncClosing
from neli_router.errors import Closed
from neli_router.keyspace import Key, Role

__all__ = ["AsyncClient"]

Answer = TypeVar("Answer")


class AsyncClient(AsyncClosing):
    """A Client for one event loop of asyncio, to which all of it belongs. For what is not said here, see Client."""

    def __init__(self, address: str | None = None, *, token: str | None = None, timeout: float = TIMEOUT) -> None:
        self._door, self._timeout = Door(address, token), timeout
        self._pool: httpx.AsyncHTTPTransport | None = None
        self._blocks: WeakSet[AsyncBlock] = WeakSet()
        self._closed = False

    @property
    def address(self) -> Address:
        return self._door.address

    @property
    def closed(self) -> bool:
        return self._closed

    # Questions

    async def owner(self, key: Key) -> OwnerView:
        return named(await self.call(calls.owner(key)))

    async def owner_of_role(self, role: Role) -> OwnerView:
        return named(await self.call(calls.owner_of_role(role)))

    async def owners(self, keys: Iterable[Key]) -> list[OwnerView]:
        return [view for batch in calls.batches(keys) for view in (await self.call(calls.owners(batch))).owners]

    async def table(self) -> TableView:
        return await self.call(calls.table())

    async def members(self) -> MembersView:
        return await self.call(calls.members())

    async def moves(self, *, limit: int = 100) -> MovesView:
        return await self.call(calls.moves(limit))

    async def status(self) -> StatusView:
        return await self.call(calls.status())

    def watch(self, key: Key | None = None, *, role: Role | None = None) -> AsyncStream[OwnerView]:
        return AsyncStream(self, calls.watch(key, role))

    # Leading

    async def lease(self, role: Role) -> AsyncAgentLease | None:
        hold = Hold(role)
        asked_at = hold.clock()
        view = await self.call(calls.lease(role))
        hold.told("acquired", view)
        hold.confirmed(view, asked_at)
        return AsyncAgentLease(hold, idle) if view.leads and hold.is_held else None

    def leading(self, role: Role, *, timeout: float | None = None) -> AsyncBlock:
        """`async with` it: a block of work, which is cancelled when its lease is lost and then raises LeaseLost."""
        block = AsyncBlock(self, role, timeout)
        self._blocks.add(block)
        return block

    # Wishes

    async def drain(self, name: str, *, preview: bool = False) -> WishView:
        return await self.call(calls.wish("drain", WishAsked(name=name, preview=preview)))

    async def undrain(self, name: str, *, preview: bool = False) -> WishView:
        return await self.call(calls.wish("undrain", WishAsked(name=name, preview=preview)))

    async def pin(self, partition: int, name: str, *, preview: bool = False) -> WishView:
        return await self.call(calls.wish("pin", WishAsked(name=name, partition=partition, preview=preview)))

    async def unpin(self, partition: int, *, preview: bool = False) -> WishView:
        return await self.call(calls.wish("unpin", WishAsked(partition=partition, preview=preview)))

    async def weigh(self, name: str, weight: int | None, *, preview: bool = False) -> WishView:
        return await self.call(calls.wish("weigh", WishAsked(name=name, weight=weight, preview=preview)))

    # How

    async def call(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:  # noqa: ASYNC109 - as in Client.
        """Ask, and decode the answer. Not for programs."""
        patience = timeout or call.timeout or self._timeout
        return await self._read(call, await self._send(self._door.request(call, patience, read=patience)))

    async def open(self, call: Call[Answer]) -> httpx.Response:
        """Ask for a stream; returns once it was accepted. Not for programs."""
        response = await self._send(self._door.request(call, self._timeout, read=None))
        if response.status_code != 200:
            await self._read(call, response)
            raise AssertionError("what is not 200 is a refusal, and that was raised")
        return response

    async def _read(self, call: Call[Answer], response: httpx.Response) -> Answer:
        try:
            content = await response.aread()
        except httpx.TransportError as error:
            trouble = no_agent(self.address, error)
        else:
            return answered(call, self.address, response.status_code, content, has_token=self._door.has_token)
        finally:
            await response.aclose()
        raise trouble

    async def _send(self, request: httpx.Request) -> httpx.Response:
        if self._closed:
            raise Closed("an open client was needed", "this one was closed before", "make another")
        if self._pool is None:
            self._pool = httpx.AsyncHTTPTransport(**self._door.options)
        try:
            try:
                return await self._pool.handle_async_request(request)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # A connection that idled may end just as it is used again. Everything here may be asked twice.
                return await self._pool.handle_async_request(request)
        except httpx.TransportError as error:
            trouble = no_agent(self.address, error)
        raise trouble

    # The end

    async def close(self) -> None:
        self._closed = True
        for block in list(self._blocks):
            await block.release("its client was closed")
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the agent at {self.address}{', closed' if self._closed else ''}>"
