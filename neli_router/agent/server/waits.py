"""Waits: the answers that take long. Each is one task that sleeps in its channel until the hub rings it.

    leadership         sleeps --led--> LeaseView
    leadership/events  waiting --led--> [ acquired  renewed*  revoked?  renewed* ] --all lost--> fenced --> waiting
    share/events       the same         '-- held partitions of the member: the handover waits for the end of the stream
    watch              owner*
    history/events     event*
    events             status  changed*

A client that streams `leadership/events` or `share/events` counts as part of the member's program. As long as its
stream is open, its work under the leases counts as in progress: a revoked role is handed over when the client closes
the stream, when the client is gone, or after `drain_timeout`. When the agent ends, each of these clients gets `ended`;
watchers just see their streams end. A role is treated as a share of one partition, with its own views.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from starlette.types import Receive, Scope, Send

from neli_router.agent.server import views
from neli_router.agent.server.channels import Channel, event
from neli_router.agent.server.connections import connection_of
from neli_router.agent.server.guard import answer
from neli_router.agent.server.hub import STREAMS_MAX, Hub
from neli_router.agent.server.lender import Lender, borrowers
from neli_router.agent.server.requests import RequestRefused, number, partitions, place, queried
from neli_router.agent.wire import LeaseView
from neli_router.core.clock import host_clock
from neli_router.member.async_member import AsyncMember
from neli_router.member.held_partitions import HeldPartitions
from neli_router.member.lease import Lease
from neli_router.status.causes import SETTLED

__all__ = ["TIMEOUT_DEFAULT", "TIMEOUT_MAX", "Waits"]

TIMEOUT_DEFAULT = 30.0

TIMEOUT_MAX = 3600.0
"""Seconds that one request may wait. A client that wants to wait longer asks again, or opens a stream."""

EARLY = 0.9
"""A fraction of the time between two renewals, so that a ring that comes a little early renews, too."""

Spell = Callable[[Sequence[Lease], str], msgspec.Struct]
"""Makes the view of an event from the leases that it is about, and the reason if there is one."""


class Waits:
    """The endpoints that wait."""

    def __init__(self, member: AsyncMember, hub: Hub, lender: Lender, status: Callable[[str, int], bytes]) -> None:
        self._member, self._inner, self._hub, self._status = member, hub.member, hub, status
        self._lender = lender

    async def leadership(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = queried(scope["query_string"], ("role", "timeout"))
        where = place(found, self._member.layout)
        timeout = number(found, "timeout", default=TIMEOUT_DEFAULT, most=TIMEOUT_MAX)
        channel = self._channel(scope)
        wanted = (where.partition,)
        self._inner.require_open()
        is_late, connection = False, channel.connection

        def give_up() -> None:
            # A flag, and no look at a clock: measured by another clock, a timer may ring a little early, and a wait
            # that continued after the ring would never end.
            nonlocal is_late
            is_late = True
            channel.ring()

        timer = asyncio.get_running_loop().call_later(timeout, give_up)
        try:
            with self._hub.serving(channel, is_stream=False), self._hub.waiting(channel, wanted, lambda: None):
                while not (is_late or self._is_settled(channel, wanted)):
                    await channel.wait()
        finally:
            timer.cancel()
        connection.on_lost(None)
        if connection.is_lost:
            return
        lease = self._member.lease(where.role)
        if lease is None:
            self._inner.require_open()
            raise self._inner.not_leading(where.partition, timeout)
        await answer(send, self._lender.lease(lease))

    async def leadership_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        partition = place(queried(scope["query_string"], ("role",)), self._member.layout).partition
        processes = borrowers(scope)  # Found now, because one of them may end before the connection does.

        def spell(leases: Sequence[Lease], why: str) -> LeaseView:
            if leases:
                return self._lender.lease(leases[0], why, processes)
            return self._lender.nothing(partition, why)

        await self._leadership_events(self._channel(scope), (partition,), spell, send)

    async def share_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = tuple(partitions(queried(scope["query_string"], ("partitions",)), self._member.layout))
        await self._leadership_events(self._channel(scope), wanted, self._lender.share, send)

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
                    # Built here and not on change: a slow client gets the newest status instead of all of them.
                    channel.put(self._status(name, shown))
                    name = "changed"
                await channel.flush(send)
                await channel.wait()
        await channel.finish(send)

    async def history_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        queried(scope["query_string"], ())
        channel, chronicle, is_growing = self._channel(scope), self._hub.chronicle, False
        events = chronicle.group.events
        told = {one.offset: one.last for one in events}  # /v1/history answers for the past.
        with self._hub.serving(channel), self._hub.status.showing(channel):
            await channel.begin(send)
            while not channel.is_over:
                if is_growing or events is not chronicle.group.events:
                    events, now = chronicle.group.events, host_clock()
                    for one in events:
                        known = told.get(one.offset)
                        # A growing event is sent when it begins and when it has settled, not 256 times in between.
                        if known is None or (known < one.last and now - one.last_at >= SETTLED):
                            told[one.offset] = one.last
                            channel.put(event("event", views.event_view(one, now)))
                    told = {one.offset: told[one.offset] for one in events}
                    is_growing = any(told[one.offset] < one.last for one in events)
                await channel.flush(send)
                await channel.wait()
        await channel.finish(send)

    async def _leadership_events(self, channel: Channel, wanted: Sequence[int], spell: Spell, send: Send) -> None:
        self._inner.require_open()
        with self._hub.serving(channel):
            await channel.begin(send)
            while not (channel.is_over or self._hub.is_ending):
                await self._wait_to_lead(channel, wanted, spell, send)
                with self._inner.hold(wanted) as holding:
                    await self._hold(channel, holding, spell, send)
        await channel.finish(send, event("ended", spell([], self._why(wanted))))

    async def _wait_to_lead(self, channel: Channel, wanted: Sequence[int], spell: Spell, send: Send) -> None:
        told = ""

        def tell() -> None:
            nonlocal told
            why = self._why(wanted)
            if why != told and not self._is_settled(channel, wanted):
                told = why
                channel.put(event("waiting", spell([], why)))

        with self._hub.waiting(channel, wanted, tell):
            tell()
            while not self._is_settled(channel, wanted):
                await channel.flush(send)
                await channel.wait()

    async def _hold(self, channel: Channel, holding: HeldPartitions, spell: Spell, send: Send) -> None:
        """Report its leases to the client until all are lost, or the stream is over."""
        if not holding.leases:
            return  # They are lost again already, or the stream is over.
        loop = asyncio.get_running_loop()
        channel.put(event("acquired", spell(holding.leases, "")))
        renewed_at = loop.time()
        with self._hub.leading(channel, holding.has_news):
            while holding.leases and not channel.is_over:
                await channel.flush(send)
                await channel.wait()
                for why, lost in holding.lost().items():
                    channel.put(event("fenced", spell(lost, why)))
                if revoked := holding.revoked():
                    why = "this agent is being stopped" if self._hub.is_ending else "another member is to have it"
                    channel.put(event("revoked", spell(revoked, why)))
                if more := holding.more():
                    channel.put(event("more", spell(more, "")))
                if holding.leases and loop.time() - renewed_at >= EARLY * self._hub.renew_every:
                    renewed_at = loop.time()
                    channel.put(event("renewed", spell(holding.leases, "")))
        await channel.flush(send)

    def _channel(self, scope: Scope) -> Channel:
        if self._hub.is_full:
            self._hub.traffic.crowded += 1
            found = f"{STREAMS_MAX} are open"
            raise RequestRefused("Crowded", "another stream was wanted", found, "close those that are not needed")
        return Channel(connection_of(scope))

    def _is_settled(self, channel: Channel, wanted: Sequence[int]) -> bool:
        return channel.is_over or self._hub.is_ending or self._hub.leads_any(wanted)

    def _why(self, wanted: Sequence[int]) -> str:
        first = self._hub.why(wanted[0])
        if len(wanted) == 1 or self._hub.is_ending:
            return first
        return f"none of {len(wanted)} partitions is led here; partition {wanted[0]}: {first}"
