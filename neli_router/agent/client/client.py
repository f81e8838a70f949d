"""The client: asks the agent of this host, which is a member, so that short-lived programs need not be members.

    with Client() as client:                              finds the agent by NELI_AGENT or by its group
        client.owner("customer-7").address                one request: under a millisecond on a Unix socket
        with client.leading("nightly") as lease:          waits until this host leads, and holds the role
            while work():
                lease.check()                             raises as soon as another member may lead
                database.write(..., term=lease.term)      a write that cannot be checked again carries the term
        with client.share() as share:                     all partitions that this host leads, held together
            work(share.terms)                             partition -> term
            share.check()

    async with AsyncClient() as client:                   the same API; waiting never blocks the event loop
        await client.owner("customer-7")
        async with client.leading("nightly") as lease:
            await work(term=lease.term)                   cancelled as soon as the lease is lost;
                                                          the block then raises LeaseLost

    caller --question--> calls --transport, a pool of connections--> agent
    caller --leading---> LeadingBlock, a thread or a task --stream--> agent

After a fork a client opens its own connections; blocks of `leading` belong to the parent.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

from neli_router.agent import wire
from neli_router.agent.client import calls
from neli_router.agent.client.calls import layout_awaited, named
from neli_router.agent.client.leading import AsyncLeadingBlock, LeadingBlock
from neli_router.agent.client.leases import AgentLease, AgentReport, AsyncAgentLease, AsyncShare, Share
from neli_router.agent.client.transport import AsyncStream, AsyncTransport, Stream, Transport
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Key, Layout, Role
from neli_router.errors import NotLeading

__all__ = ["AsyncClient", "Client"]

LOOK_EVERY = 0.5
"""Seconds between two questions for a layout."""


class Client(Transport):
    """Asks one agent. Can be shared between threads, and used after a fork, where it opens new connections.

    `address` and `token` come from NELI_AGENT and NELI_TOKEN unless given; `timeout` is in seconds, for each request.
    `ledger` names the group: its own agent is asked, and an agent of another group refuses with GroupMismatch. Without
    `address` and `ledger`, the group comes from NELI_LEDGER or neli.toml, as for the commands. If they name none, this
    user's only agent is asked; ConfigError if there are several.
    No connection is opened before the first request. Raises NoAgent if no agent answers, and otherwise the error that
    the agent raised.
    """

    # Questions

    def owner(self, key: Key) -> wire.OwnerView:
        """The owner of `key`. Raises NoOwner, StaleTable, BadKey."""
        return named(self.call(calls.owner(key)))

    def owner_of_role(self, role: Role) -> wire.OwnerView:
        """The member that leads `role`: a key, or the number of a partition."""
        return named(self.call(calls.owner_of_role(role)))

    def owners(self, keys: Iterable[Key]) -> list[wire.OwnerView]:
        """The owner of each of `keys`, in order. Without an owner, a view has no `name`, but the reason."""
        return [view for batch in calls.batches(keys) for view in self.call(calls.owners(batch)).owners]

    def table(self) -> wire.TableView:
        return self.call(calls.TABLE)

    def layout(self, *, timeout: float = 60.0) -> Layout:
        """The group's layout. Waits while the agent knows none yet: it reads for a lease before it joins."""
        give_up_at = host_clock() + timeout
        while (layout := self.table().layout) is None:
            layout_awaited(give_up_at)
            time.sleep(LOOK_EVERY)
        return layout

    def members(self) -> wire.MembersView:
        return self.call(calls.MEMBERS)

    def peers(self) -> wire.PeersView:
        """Which peers answer and which lead, in a group without a broker. Raises BeyondProtocol in any other group."""
        return self.call(calls.PEERS)

    def moves(self, *, limit: int = 100) -> wire.MovesView:
        """The most recent moves of partitions, newest last."""
        return self.call(calls.moves(limit))

    def history(self, *, limit: int = 50) -> wire.HistoryView:
        """The most recent member events and the most recent other events, `limit` of each, newest last."""
        return self.call(calls.history(limit))

    def follow(self) -> Stream[wire.EventView]:
        """Each event of the group from now on. Iterate and close it. One that grows is repeated with its offset."""
        return self.stream(calls.HISTORY_EVENTS)

    def status(self) -> wire.StatusView:
        """All of it at one moment: table, members, history."""
        return self.call(calls.STATUS)

    def watch(self, role: Role | None = None) -> Stream[wire.OwnerView]:
        """The owner of `role`, or of every partition, now and after each change. Iterate and close it."""
        return self.stream(calls.watch(role))

    # Leading

    def lease(self, role: Role, *, within: float = 0.0) -> AgentLease | None:
        """The lease of `role`, if this host leads it now, or starts to lead it `within` that many seconds, at most
        3600.

        The lease is not renewed, and no member waits for it to end: see `leading`.
        """
        if within:
            with suppress(NotLeading):
                self.call(calls.led_within(role, within))
        asked_at = host_clock()  # After the wait: the time left on a lease counts from before it was asked for.
        report = AgentReport.of(self.call(calls.lease(role)), asked_at)
        return AgentLease(role, report, partial(report.wait, time.sleep)) if report.is_held else None

    def leading(self, role: Role, *, timeout: float | None = None) -> LeadingBlock[AgentLease]:
        """A block of work for `role`: waits until this host leads it, and holds up its handover until the block ends.

        Raises NotLeading if that takes longer than `timeout` seconds; LeaseLost at the end of a block whose lease no
        longer holds, unless the block itself raised an error; NoAgent if the agent ends while this waits.
        """
        question = calls.lease(role)
        return LeadingBlock(self, calls.leadership(role), lambda _: question, partial(AgentLease, role), timeout)

    def share(self, partitions: Iterable[int] | None = None, *, timeout: float | None = None) -> LeadingBlock[Share]:
        """A block of work for all partitions that this host leads, or for those of them that are in `partitions`.

        Waits until the host leads at least one, and then holds everything it leads, in one stream, under the terms of
        that moment. A share never grows: partitions that the host starts to lead later are in `share.more`, and a new
        share includes them. When a partition is revoked, `share.ending` becomes true: finish your work and leave the
        block, because the successor waits for that, at most `drain_timeout`. When a partition is fenced, the share as a
        whole is lost.

        Raises NotLeading, LeaseLost and NoAgent like `leading`.
        """
        return LeadingBlock(self, calls.share_events(partitions), calls.share, Share, timeout)

    # Operators' wishes. Each returns when the ledger shows it; with `preview` it only returns what it would move.

    def progress(self, table: str, behind: Mapping[int, int]) -> wire.ProgressView:
        """Report how many steps of its input a job on `table` has yet to land in each partition, for metrics and the
        page. Repeat it within half of `kept`, and with an empty `behind` when the partitions are given back."""
        return self.call(calls.progress(table, behind))

    def rebalance(self, to: str | None = None, partitions: Iterable[int] | None = None) -> wire.RebalanceView:
        """Ask the agent's member to pass what it leads to the preferred peers, or ask for the peer `to` to lead
        `partitions` (None for all). Raises BeyondProtocol where leaders are not elected among peers."""
        return self.call(calls.rebalance(to, partitions))

    def drain(self, name: str, *, undo: bool = False, preview: bool = False) -> wire.DrainView:
        """Let the member `name` own no partitions except those that are pinned to it; `undo` takes a drain back.

        With the protocol `term`, `name` must be the agent's own member, which then leads only while no other peer
        can."""
        return self.call(calls.drain(name, undo=undo, preview=preview))

    def pin(self, partition: int, name: str | None, *, preview: bool = False) -> wire.WishView:
        """Let `partition` belong to the member `name`; None takes a pin back."""
        return self.call(calls.pin(partition, name, preview=preview))

    def weigh(self, name: str, weight: int | None, *, preview: bool = False) -> wire.WishView:
        """Let `name` count with `weight` from now on; None restores its own weight."""
        return self.call(calls.weigh(name, weight, preview=preview))

    def load(self, loads: Mapping[int, float], *, layout: Layout | None = None, preview: bool = False) -> wire.LoadView:
        """Partition -> how much work it is, in any unit that is the same for all; 0 forgets it.

        Only some partitions move at a time: the protocol says how many. To move more, send the loads again after those
        are handed over. With a `layout`, the call is refused if the group has another.
        """
        return self.call(calls.load(wire.LoadAsked(dict(loads), layout, preview)))


class AsyncClient(AsyncTransport):
    """A Client for one asyncio event loop; use it only there. Client documents the methods."""

    # Questions

    async def owner(self, key: Key) -> wire.OwnerView:
        return named(await self.call(calls.owner(key)))

    async def owner_of_role(self, role: Role) -> wire.OwnerView:
        return named(await self.call(calls.owner_of_role(role)))

    async def owners(self, keys: Iterable[Key]) -> list[wire.OwnerView]:
        return [view for batch in calls.batches(keys) for view in (await self.call(calls.owners(batch))).owners]

    async def table(self) -> wire.TableView:
        return await self.call(calls.TABLE)

    async def layout(self, *, timeout: float = 60.0) -> Layout:  # noqa: ASYNC109 - as in Client.
        give_up_at = host_clock() + timeout
        while (layout := (await self.table()).layout) is None:
            layout_awaited(give_up_at)
            await asyncio.sleep(LOOK_EVERY)
        return layout

    async def members(self) -> wire.MembersView:
        return await self.call(calls.MEMBERS)

    async def peers(self) -> wire.PeersView:
        return await self.call(calls.PEERS)

    async def moves(self, *, limit: int = 100) -> wire.MovesView:
        return await self.call(calls.moves(limit))

    async def history(self, *, limit: int = 50) -> wire.HistoryView:
        return await self.call(calls.history(limit))

    def follow(self) -> AsyncStream[wire.EventView]:
        return self.stream(calls.HISTORY_EVENTS)

    async def status(self) -> wire.StatusView:
        return await self.call(calls.STATUS)

    def watch(self, role: Role | None = None) -> AsyncStream[wire.OwnerView]:
        return self.stream(calls.watch(role))

    # Leading

    async def lease(self, role: Role, *, within: float = 0.0) -> AsyncAgentLease | None:
        if within:
            with suppress(NotLeading):
                await self.call(calls.led_within(role, within))
        asked_at = host_clock()
        report = AgentReport.of(await self.call(calls.lease(role)), asked_at)
        return AsyncAgentLease(role, report, partial(report.wait_async, asyncio.sleep)) if report.is_held else None

    def leading(self, role: Role, *, timeout: float | None = None) -> AsyncLeadingBlock[AsyncAgentLease]:
        """`async with` it: a block of work, which is cancelled when its lease is lost and then raises LeaseLost."""
        question, make = calls.lease(role), partial(AsyncAgentLease, role)
        return AsyncLeadingBlock(self, calls.leadership(role), lambda _: question, make, timeout)

    def share(
        self, partitions: Iterable[int] | None = None, *, timeout: float | None = None
    ) -> AsyncLeadingBlock[AsyncShare]:
        """`async with` it: a block of work, which is cancelled when one of its partitions is lost."""
        return AsyncLeadingBlock(self, calls.share_events(partitions), calls.share, AsyncShare, timeout)

    # Wishes

    async def progress(self, table: str, behind: Mapping[int, int]) -> wire.ProgressView:
        return await self.call(calls.progress(table, behind))

    async def rebalance(self, to: str | None = None, partitions: Iterable[int] | None = None) -> wire.RebalanceView:
        return await self.call(calls.rebalance(to, partitions))

    async def drain(self, name: str, *, undo: bool = False, preview: bool = False) -> wire.DrainView:
        return await self.call(calls.drain(name, undo=undo, preview=preview))

    async def pin(self, partition: int, name: str | None, *, preview: bool = False) -> wire.WishView:
        return await self.call(calls.pin(partition, name, preview=preview))

    async def weigh(self, name: str, weight: int | None, *, preview: bool = False) -> wire.WishView:
        return await self.call(calls.weigh(name, weight, preview=preview))

    async def load(
        self, loads: Mapping[int, float], *, layout: Layout | None = None, preview: bool = False
    ) -> wire.LoadView:
        return await self.call(calls.load(wire.LoadAsked(dict(loads), layout, preview)))
