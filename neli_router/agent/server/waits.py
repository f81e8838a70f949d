"""Waits: the answers that take long. Each is one task that sleeps in its channel until the hub rings it.

    leadership         sleeps --led--> LeaseView
    leadership/events  waiting --led--> [ acquired  renewed*  revoked?  renewed* ] --lease lost--> fenced --> waiting
                                        '-- a block of the member: its handover waits for the end of the stream
    watch              owner*
    events             status  changed*

A client that streams `leadership/events` is a part of the member's program. As long as its stream is open, its work
under the lease counts as going on: a revoked role is handed over when the client closes the stream, or is gone, or
after `drain_timeout`. When the agent ends, each of these clients is told `ended`; watchers see their streams end.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from neli_router.agent.server import views
from neli_router.agent.server.channels import Channel, event
from neli_router.agent.server.connections import connection_of
from neli_router.agent.server.guard import answer
from neli_router.agent.server.hub import STREAMS_MAX, Hub
from neli_router.agent.server.requests import Place, RequestRefused, number, place, queried
from neli_router.agent.wire import LeaseView
from neli_router.config import Config
from neli_router.errors import LeaseLost, NeliError, NotLeading
from neli_router.member.async_leading import AsyncLease
from neli_router.member.async_member import AsyncMember

__all__ = ["TIMEOUT_DEFAULT", "TIMEOUT_MAX", "Waits"]

TIMEOUT_DEFAULT = 30.0

TIMEOUT_MAX = 3600.0
"""Seconds that one request may wait. A client that wants to wait for longer asks again, or opens a stream."""

EARLY = 0.9
"""A part of the time between two renewals: a ring that comes a little early renews, too."""


class Waits:
    """The endpoints that wait."""

    def __init__(self, config: Config, member: AsyncMember, hub: Hub, status: Callable[[str, int], bytes]) -> None:
        self._member, self._inner, self._hub, self._status = member, hub.member, hub, status
        self._drain_timeout = config.drain_timeout

    async def leadership(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = queried(scope["query_string"], ("role", "timeout"))
        where = place(found, self._member.layout)
        timeout = number(found, "timeout", default=TIMEOUT_DEFAULT, most=TIMEOUT_MAX)
        channel = self._channel(scope)
        partition = where.partition
        self._inner.require_open()
        is_late, connection = False, channel.connection

        def give_up() -> None:
            # A flag, not a look at a clock: by any clock but its own a timer may ring a little early, and a wait that
            # went on after it would never end.
            nonlocal is_late
            is_late = True
            channel.ring()

        timer = asyncio.get_running_loop().call_later(timeout, give_up)
        try:
            with self._hub.serving(channel, is_stream=False), self._hub.waiting(channel, partition, lambda: None):
                while not (is_late or self._is_settled(channel, partition)):
                    await channel.wait()
        finally:
            timer.cancel()
        connection.on_lost(None)
        if connection.is_lost:
            return
        lease = self._member.lease(where.role)
        if lease is None:
            self._inner.require_open()
            raise self._inner.not_leading(partition, timeout)
        await answer(send, views.led_view(lease, self._drain_timeout))

    async def leadership_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        where = place(queried(scope["query_string"], ("role",)), self._member.layout)
        channel = self._channel(scope)
        self._inner.require_open()
        with self._hub.serving(channel):
            await channel.begin(send)
            while not (channel.is_over or self._hub.is_ending):
                if await self._wait_to_lead(channel, where.partition, send):
                    await self._lead(channel, where, send)
        why = self._hub.why(where.partition)
        await channel.finish(send, event("ended", self._not_led(where.partition, why)))

    async def watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = queried(scope["query_string"], ("key", "key64", "role"))
        where = place(found, self._member.layout) if found else None
        channel = self._channel(scope)
        with self._hub.serving(channel):
            await channel.begin(send)
            with self._hub.watching(channel, None if where is None else where.partition):
                while not channel.is_over:
                    await channel.flush(send)
                    await channel.wait()
        await channel.finish(send)

    async def events(self, scope: Scope, receive: Receive, send: Send) -> None:
        queried(scope["query_string"], ())
        channel, name, shown = self._channel(scope), "status", -1
        with self._hub.serving(channel), self._hub.status.showing(channel):
            await channel.begin(send)
            while not channel.is_over:
                if shown != self._hub.status.version:
                    shown = self._hub.status.version
                    # Made now, and not when it changed: a slow client gets the newest status, and not all of them.
                    channel.put(self._status(name, shown))
                    name = "changed"
                await channel.flush(send)
                await channel.wait()
        await channel.finish(send)

    async def _wait_to_lead(self, channel: Channel, partition: int, send: Send) -> bool:
        """Whether it is led now; if not, the stream is over, or the member is."""
        told = ""

        def tell() -> None:
            nonlocal told
            why = self._hub.why(partition)
            if why != told and not self._is_settled(channel, partition):
                told = why
                channel.put(event("waiting", self._not_led(partition, why)))

        with self._hub.waiting(channel, partition, tell):
            tell()
            while not self._is_settled(channel, partition):
                await channel.flush(send)
                await channel.wait()
        return not channel.is_over and self._inner.leads(partition)

    async def _lead(self, channel: Channel, where: Place, send: Send) -> None:
        term = 0
        try:
            # It is led already, or not any more: all waiting is done in the hub, which has one timer for all.
            async with self._member.leading(where.role, timeout=0) as lease:
                term = lease.term
                await self._hold(channel, lease, send)
        except NotLeading:
            pass
        except LeaseLost as error:
            view = self._not_led(where.partition, error.found, term)
            channel.put(event("fenced", view))
            await channel.flush(send)
        except NeliError:
            if not self._hub.is_ending:
                raise

    async def _hold(self, channel: Channel, lease: AsyncLease, send: Send) -> None:
        """Tell the client of its lease until the stream is over. The member cancels this when the lease is lost."""
        loop, revoked, was_told = asyncio.get_running_loop(), lease.revoked, False
        channel.put(event("acquired", self._led(lease)))
        renewed_at = loop.time()
        with self._hub.leading(channel, lambda: revoked.is_set() and not was_told):
            while not channel.is_over:
                await channel.flush(send)
                await channel.wait()
                if revoked.is_set() and not was_told and lease.holds():
                    was_told = True
                    why = "this agent is being stopped" if self._hub.is_ending else "another member is to have it"
                    channel.put(event("revoked", self._led(lease, why)))
                if loop.time() - renewed_at >= EARLY * self._hub.renew_every:
                    renewed_at = loop.time()
                    channel.put(event("renewed", self._led(lease)))

    def _channel(self, scope: Scope) -> Channel:
        if self._hub.is_full:
            self._hub.traffic.crowded += 1
            found = f"{STREAMS_MAX} are open"
            raise RequestRefused("Crowded", "another stream was wanted", found, "close those that are not needed")
        return Channel(connection_of(scope))

    def _is_settled(self, channel: Channel, partition: int) -> bool:
        return channel.is_over or self._hub.is_ending or self._inner.leads(partition)

    def _led(self, lease: AsyncLease, why: str = "") -> LeaseView:
        return views.led_view(lease, self._drain_timeout, why)

    def _not_led(self, partition: int, why: str, term: int = 0) -> LeaseView:
        return views.lease_view(partition, self._member.name, why, term)
