"""Changes: who owns each partition, now and from now on, from an agent or from a ledger, through all outages.

    agent --watch, one stream--> pending: partition -> newest owner --.
                                                                      v
    ledger --a reader's thread--> the feed's view ----------------> batches: {partition: OwnerView}
                                                                      |
    ASKING --answered--> FOLLOWING, which begins with all that is known, in one batch
       ^                     |
       '------ pause <-------'-- away: reported once, and again if the reason is of another kind

A follower acts on the state, not on single changes: a batch says who owns a partition, not what happened to it. So an
outage loses nothing, because the first batch after it contains all partitions again. A slow follower hears only of the
newest owner of each partition, so at most one entry per partition waits for it.

An agent that hangs does not end its stream. So after a silence, the agent is sent a request.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import NamedTuple

from neli_router.agent import AsyncClient
from neli_router.agent.client import calls
from neli_router.agent.owners import owner_view
from neli_router.agent.wire import OwnerView
from neli_router.errors import Closed, ConfigError, LookupFailed, NeliError, NoAgent
from neli_router.router.router import Router
from neli_router.router.table import NO_MEMBER, OVER, NoTable, Owner, Table, View

__all__ = ["Away", "Batch", "of_agent", "of_ledger"]

SILENCE_MAX = 15.0
"""Seconds without news before the agent is asked whether it is still there."""

PAUSE_MIN = 0.1
PAUSE_MAX = 5.0
"""Seconds between two attempts, doubled after each. A longer pause puts less load on an agent that comes back, but
notices its return later."""

Batch = Mapping[int, OwnerView]
"""Partition -> its owner, or a view without a name that gives the reason."""


class Away(NamedTuple):
    """The source cannot be asked now, for this reason. Its earlier answers may no longer be true."""

    error: NeliError


def of_agent(client: AsyncClient) -> AsyncGenerator[Batch | Away, None]:
    """All owners that the agent knows, then the changes. Never ends; raises ConfigError for a wrong address."""
    return _through_outages(partial(_told_by, client))


def of_ledger(opened: Callable[[], Router]) -> AsyncGenerator[Batch | Away, None]:
    """All owners in the ledger, then the changes. Raises Closed when the router is closed.

    `opened` opens the router, or returns the one that it opened before. It is called in a thread.
    """
    return _through_outages(partial(_read_by, opened))


async def _through_outages(follow: Callable[[], AsyncGenerator[Batch, None]]) -> AsyncGenerator[Batch | Away, None]:
    pause, told = PAUSE_MIN, None
    while True:
        try:
            async with aclosing(follow()) as batches:
                async for batch in batches:
                    pause, told = PAUSE_MIN, None
                    yield batch
        except (Closed, ConfigError):
            raise
        except NeliError as error:
            # Do not compare the text: it may say how long ago something was.
            if told != (type(error), error.remedy):
                told = type(error), error.remedy
                yield Away(error)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # So that the followers of a host spread out.
        pause = min(PAUSE_MAX, 2 * pause)


async def _read_by(opened: Callable[[], Router]) -> AsyncGenerator[Batch, None]:
    """The table of a router, as batches, the first of them complete. Raises the reason if it cannot be believed."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    router = await asyncio.to_thread(opened)  # A driver may take its time.
    feed = router.feed

    def show(_: View) -> None:
        with suppress(RuntimeError):  # The loop is closed, and this follower with it.
            loop.call_soon_threadsafe(changed.set)

    if isinstance(feed.view, NoTable) and feed.view.plight in OVER:
        await asyncio.to_thread(router.reopen, wait=False)
    before: tuple[Owner | None, ...] | None = None
    feed.show_to(show)
    try:
        while True:
            changed.clear()
            view, at = feed.view, feed.at
            if isinstance(view, Table):
                owners = view.partitions
            elif view.plight in NO_MEMBER:
                owners = (None,) * (feed.layout.partitions if feed.layout is not None else 0)
            elif before is None and view.plight not in OVER and await _rings(changed):
                continue  # A first table takes a moment, and so may the next one after an outage.
            else:
                raise view.explain("the owners of partitions were wanted")
            known, before = before, owners
            if known is None or len(known) != len(owners):
                yield {place: owner_view(view, place, None, at) for place in range(len(owners))}
            elif news := [place for place, owner in enumerate(owners) if owner != known[place]]:
                yield {place: owner_view(view, place, None, at) for place in news}
            await changed.wait()
    finally:
        feed.hide_from(show)


async def _told_by(client: AsyncClient) -> AsyncGenerator[Batch, None]:
    """One stream of the agent, as batches, the first of them complete. Raises the reason why it ended."""
    missing = (await client.call(calls.HERE)).layout.partitions
    try:
        await client.call(calls.owners([]))
    except LookupFailed as error:  # No owner is known, so the stream begins without owners.
        yield {partition: OwnerView(partition, None, why=error.found) for partition in range(missing)}
        missing = 0
    pending: dict[int, OwnerView] = {}
    heard, stream = asyncio.Event(), client.watch()

    async def listen() -> None:
        try:
            async for view in stream:
                pending[view.partition] = view
                heard.set()
        finally:
            heard.set()

    listening = asyncio.create_task(listen())
    try:
        while not listening.done():
            if not await _rings(heard):
                await client.call(calls.HERE)
                continue
            heard.clear()
            if pending and len(pending) >= missing:
                missing, batch = 0, dict(pending)
                pending.clear()
                yield batch
        await listening
        raise NoAgent(
            f"the agent at {client.address} was asked who owns the partitions",
            "it ended the conversation",
            "it may be leaving or restarting: ask again in a moment",
        )
    finally:
        listening.cancel()
        await stream.close()
        with suppress(asyncio.CancelledError, NeliError):
            await listening


async def _rings(event: asyncio.Event) -> bool:
    """Wait for `event`; False if the silence lasts too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SILENCE_MAX):
            return await event.wait()
    return False
