"""The lender: the one place where leases leave the agent, so that its death is certified only when they have ended.

    client --lease? share?--> how long is left --pledged to the member's witness--> then the view, and the answer

    lease, share       the answer, immediately
    leadership         sleeps --led--> LeaseView
    leadership/events  waiting --led--> [ acquired  renewed*  revoked?  renewed* ] --all lost--> fenced --> waiting
    share/events       the same         '-- held partitions of the member: the handover waits for the end of the stream

**What lasts** is one task that sleeps in its channel until the hub rings it. A client that streams counts as part of
the member's program: as long as its stream is open, its work under the leases counts as in progress (see `wire`). A
role is treated as a share of one partition, with its own views.

**Why each lease is pledged.** A client continues under its lease after the agent has died; a `neli run` continues until
its guardian ends it. If a successor heard of the agent's death immediately, both would act at the same time. So before
a client gets a lease, the agent's own witness records until when it holds, and certifies the death only after that. An
agent that dies between the two has given no client anything. An answer may still lie in the buffers of the door when
the agent dies; it was pledged before it was sent. A client counts the time left from before it asked, and so never
longer than was pledged. Looking up an owner gives no right to act.

**A `neli run` ends whatever acts on its lease** before it ends itself, or its guardian does. So when both processes
have ended, everything that acted on the lease has ended, too, and nothing needs to wait for the lease. `neli run` names
its guardian (`wire.GUARDIAN`), which is believed if the kernel confirms that it is a child of the process that made the
connection. A program that passes bytes on has no such child. Other clients name no guardian, because a process that
they started may act on after them.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
from starlette.types import Scope, Send

from neli_router.agent.server.connections import Channel, connection_of, event
from neli_router.agent.server.hub import Hub
from neli_router.agent.server.requests import Request, answer, number, partitions, place
from neli_router.agent.wire import GUARDIAN, LeaseView, ShareView
from neli_router.core.clock import host_clock
from neli_router.hosts.process import ProcessMark, peer_number
from neli_router.member.held_partitions import HeldPartitions
from neli_router.member.leases import BaseLease
from neli_router.member.membership import Lease

__all__ = ["Lender"]

TIMEOUT_DEFAULT = 30.0

TIMEOUT_MAX = 3600.0
"""Seconds that one request may wait. A client that wants to wait longer asks again, or opens a stream."""

EARLY = 0.9
"""A fraction of the time between two renewals, so that a ring that comes a little early renews, too."""

Spell = Callable[[Sequence[Lease], str], msgspec.Struct]
"""Makes the view of an event from the leases that it is about, and the reason if there is one."""


class Lender:
    """The endpoints that lend the leases of the agent's member."""

    def __init__(self, hub: Hub) -> None:
        self._member, self._membership, self._hub = hub.member, hub.membership, hub
        self._drain_timeout = hub.config.drain_timeout

    async def lease(self, request: Request) -> None:
        """One partition. A revoked one is not led but still shows the time left on its lease: its holder may finish."""
        self._hub.demand.once()
        where = place(request.asked, self._member.layout)
        leads = self._member.lease(where.role) is not None
        why = "" if leads else self._hub.why(where.partition)
        held = self._standing([where.partition], _borrowers(request.scope))
        term, left = held.terms.get(where.partition, 0), held.remaining
        await answer(request.send, LeaseView(where.partition, leads, held.member, term, left, held.drain_timeout, why))

    async def share(self, request: Request) -> None:
        self._hub.demand.once()
        await answer(request.send, self._standing(partitions(request.asked, self._member.layout)))

    async def leadership(self, request: Request) -> None:
        where = place(request.asked, self._member.layout)
        timeout = number(request.asked, "timeout", default=TIMEOUT_DEFAULT, most=TIMEOUT_MAX)
        wanted = (where.partition,)
        self._membership.require_open()
        with (
            self._hub.serving(request.scope, is_stream=False) as channel,
            self._hub.demand.lasting(),
            self._hub.waiting(channel, wanted, lambda: None),
            suppress(TimeoutError),
        ):
            async with asyncio.timeout(timeout):
                while not self._is_settled(channel, wanted):
                    await channel.wait()
        channel.connection.on_lost(None)
        if channel.connection.is_lost:
            return
        lease = self._member.lease(where.role)
        if lease is None:
            self._membership.require_open()
            raise self._membership.not_leading(where.partition, timeout)
        await answer(request.send, self._lease(lease))

    async def leadership_events(self, request: Request) -> None:
        partition = place(request.asked, self._member.layout).partition
        processes = _borrowers(request.scope)  # Found now, because one of them may end before the connection does.

        def spell(leases: Sequence[Lease], why: str) -> LeaseView:
            if leases:
                return self._lease(leases[0], why, processes)
            return LeaseView(partition, leads=False, member=self._member.name, why=why)

        await self._leadership_events(request, (partition,), spell)

    async def share_events(self, request: Request) -> None:
        await self._leadership_events(request, tuple(partitions(request.asked, self._member.layout)), self._share)

    async def _leadership_events(self, request: Request, wanted: Sequence[int], spell: Spell) -> None:
        send = request.send
        self._membership.require_open()
        with self._hub.serving(request.scope) as channel, self._hub.demand.lasting():
            await channel.begin(send)
            last = b""
            while not (channel.is_over or self._hub.is_ending):
                await self._wait_to_lead(channel, wanted, spell, send)
                with HeldPartitions(self._membership, wanted) as holding:
                    await self._hold(channel, holding, spell, send)
                    last = _fenced(holding, spell)  # The stream may have been ended before they were looked at.
        await channel.finish(send, last + event("ended", spell([], self._why(wanted))))

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
                if not await channel.wait():
                    break
                if fenced := _fenced(holding, spell):
                    channel.put(fenced)
                if revoked := holding.revoked():
                    why = "this agent is being stopped" if self._hub.is_ending else "another member is to have it"
                    channel.put(event("revoked", spell(revoked, why)))
                if more := holding.more():
                    channel.put(event("more", spell(more, "")))
                if holding.leases and loop.time() - renewed_at >= EARLY * self._hub.renew_every:
                    renewed_at = loop.time()
                    channel.put(event("renewed", spell(holding.leases, "")))
        await channel.flush(send)

    def _is_settled(self, channel: Channel, wanted: Sequence[int]) -> bool:
        return channel.is_over or self._hub.is_ending or self._hub.leads_any(wanted)

    def _why(self, wanted: Sequence[int]) -> str:
        first = self._hub.why(wanted[0])
        if len(wanted) == 1 or self._hub.is_ending:
            return first
        return f"none of {len(wanted)} partitions is led here; partition {wanted[0]}: {first}"

    # The views, each of which is pledged

    def _lease(self, lease: BaseLease, why: str = "", processes: Sequence[ProcessMark] = ()) -> LeaseView:
        """A lease that this member was given, with the time it has left now. `processes` are its borrowers."""
        left = self._lent(lease.remaining(), processes)
        return LeaseView(lease.partition, left > 0, lease.member, lease.term, left, self._drain_timeout, why)

    def _share(self, leases: Sequence[BaseLease], why: str = "") -> ShareView:
        """Leases that this member was given, under one common end."""
        terms = {lease.partition: lease.term for lease in leases}
        left = self._lent(min((lease.remaining() for lease in leases), default=0.0))
        return ShareView(self._member.name, terms, left, self._drain_timeout, why)

    def _standing(self, partitions: Iterable[int], processes: Sequence[ProcessMark] = ()) -> ShareView:
        """Those of `partitions` that this member may act for, even if only to finish."""
        standing, now = self._membership.standing, host_clock()
        led = {i: term for i in partitions if (term := standing.terms.get(i)) is not None}
        rests = {i: rest for i, term in led.items() if (rest := standing.end(i, term) - now) > 0}
        # A partition that is about to be taken from its holder must not shorten the leases of the others.
        least = standing.until - now
        left = min((rest for rest in rests.values() if rest >= least), default=min(rests.values(), default=0.0))
        left = self._lent(left, processes)
        sooner = {i: rest for i, rest in rests.items() if rest < left}
        terms = {i: led[i] for i in rests}
        return ShareView(self._member.name, terms, left, self._drain_timeout, rests=sooner, layout=self._member.layout)

    def _lent(self, left: float, processes: Sequence[ProcessMark] = ()) -> float:
        if left > 0:
            self._member.pledge(left, processes=processes)
        return left


def _fenced(holding: HeldPartitions, spell: Spell) -> bytes:
    """An event for each reason why leases were lost since the last call."""
    return b"".join(event("fenced", spell(lost, why)) for why, lost in holding.lost().items())


def _borrowers(scope: Scope) -> Sequence[ProcessMark]:
    """Processes that outlive everything that acts on this client's leases, at least one of them; empty if unknown."""
    told = next((value for name, value in scope["headers"] if name == GUARDIAN.encode()), b"")
    connection = cast("Any", connection_of(scope).transport.get_extra_info("socket"))
    if not told.isdigit() or connection.family != socket.AF_UNIX:
        return ()
    try:
        client = peer_number(connection)
        return (ProcessMark.of(client), ProcessMark.of(int(told[:20]), parent=client))
    except OSError:
        return ()
