"""The subscription: one for each connection, for all triggers of a triggerer.

    NeliHook.changes --batches--> the picture: who owns each partition, or why that cannot be known
                                     |            '--read immediately by a trigger that starts
                                     |--Moment: "look again"--> Airflow's shared stream --> each trigger
                                     '<------ advance: all have looked, and their events are stored

    is_led(partition) --asked at most each FRESH seconds--> the agent
          not yet: a long poll, which ends when this host may act, and makes a Moment

A trigger acts on the state, not on the change: it judges the picture when it starts, and again at each Moment. So a
trigger that starts late, or restarts in another triggerer, misses nothing and reports nothing twice. A Moment carries
no news, so several changes can share one Moment: a subscriber's queue in Airflow is bounded, and an overflow fails its
task.

If a shared stream raises, Airflow ends all of its triggers. An agent that is away, or a connection that does not exist
yet, must not fail every sensor, and must not restart every watcher each second. So both are part of the picture, and
each trigger decides for itself.

A partition's owner may be unable to act yet: after a takeover it waits for the old owner's lease to end. Only its own
agent knows when it may act, and does not notify its watchers. So the agent is asked about each partition that a trigger
waits to lead.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider._compat import AdvanceItem, SharedStreamProducer
from airflow_provider.hooks._changes import Away
from airflow_provider.hooks.neli import NeliHook
from neli_router.agent.wire import OwnerView
from neli_router.errors import ConfigError, NeliError

if TYPE_CHECKING:
    from neli_router.core.keyspace import Layout

__all__ = ["Moment", "OnePerConnection", "Subscription", "current"]

PAUSE = 0.02
"""The minimum time between two Moments, in seconds. The queue of a trigger holds 1024 of them (Airflow's default), so a
trigger may be busy for twenty seconds before it overflows."""

FRESH = 0.05
"""Seconds for which the agent's answer that this host leads is believed. Five hundred triggers that start together send
one question for each partition, not five hundred."""

RETRY = 1.0
"""Seconds until a connection that could not be used is read again."""

WAIT_MAX = 60.0
"""Seconds of one long poll, which ends when this host may act for a partition that it owns. That takes about a
lease."""

log = logging.getLogger(__name__)

_shared: dict[str, "Subscription"] = {}
"""Connection -> the subscription that the triggerer's shared stream follows now."""


class Moment:
    """The picture of `subscription` has changed."""

    def __init__(self, subscription: "Subscription") -> None:
        self.subscription = subscription
        self._afterwards: list[Callable[[], Awaitable[None]]] = []

    def afterwards(self, do: Callable[[], Awaitable[None]]) -> None:
        """Call `do` when the events of this Moment are in Airflow's database."""
        self._afterwards.append(do)

    async def settle(self) -> None:
        for do in self._afterwards:
            try:
                await do()
            except Exception:
                # Raised here, it would end the stream for all. The next event writes the same memory again.
                log.exception("What an event was to leave behind could not be written")


class Subscription:
    """The current state of one connection: the picture. Belongs to one event loop."""

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id
        self.layout: Layout | None = None
        """How keys map to partitions; None until the source first answered."""
        self.member: str | None = None
        """The name of this host's member; None if the source is a ledger, which does not know this host."""
        self.owners: dict[int, OwnerView] = {}
        self.away: str | None = None
        """Why the source cannot be asked now."""
        self.wrong: str | None = None
        """Why the connection cannot be used until it is corrected."""
        self._changed = asyncio.Event()
        self._hook: NeliHook | None = None
        self._led: dict[int, tuple[float, bool]] = {}
        self._asking: dict[int, asyncio.Task[bool]] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}

    async def follow(self) -> AsyncGenerator[Moment]:
        """Yield a Moment when the picture is known, and after each change. Never ends."""
        listening = asyncio.create_task(self._listen(), name=f"neli-subscription[{self.conn_id}]")
        listening.add_done_callback(lambda _: self._changed.set())
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if listening.done():
                    await listening  # Raises what ended it: a bug of ours, which must not be hidden.
                yield Moment(self)
                await asyncio.sleep(PAUSE)
        finally:
            tasks = [listening, *self._asking.values(), *self._waiting.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def look_again(self) -> None:
        """Make a Moment, for a trigger that acts only at Moments."""
        if self.layout is not None:
            self._changed.set()

    async def is_led(self, partition: int) -> bool:
        """Whether this host may act for `partition`, which it owns. If not yet, a Moment follows when it may."""
        asked_at, is_led = self._led.get(partition, (-FRESH, False))
        if asyncio.get_running_loop().time() - asked_at < FRESH:
            return is_led
        if partition not in self._asking:
            self._asking[partition] = asyncio.create_task(self._ask(partition))
        # Shielded: the first trigger that asks may be cancelled while others wait for the same answer.
        return await asyncio.shield(self._asking[partition])

    async def _listen(self) -> None:
        while True:
            hook = NeliHook(self.conn_id)
            try:
                await self._hear(hook)  # Its changes never end.
            except (AirflowException, ConfigError) as error:
                self._trouble(wrong=str(error))
            except (NeliError, AirflowRuntimeError) as error:
                self._trouble(away=str(error))  # AirflowRuntimeError: Airflow could not look up the connection.
            finally:
                self._hook = None
                await hook.aclose()
            await asyncio.sleep(RETRY)

    async def _hear(self, hook: NeliHook) -> None:
        is_known = False
        async with aclosing(hook.changes()) as news:
            async for batch in news:
                if isinstance(batch, Away):
                    is_known = False
                    self._trouble(away=str(batch.error))
                    continue
                if is_known:
                    self.owners.update(batch)
                else:  # The first batch, also after an outage, is complete; the group may have changed.
                    layout, member = await hook.ahere()
                    # In one step: a trigger that starts meanwhile must not see one group's owners with another's
                    # layout.
                    self.layout, self.member, self.owners = layout, member, dict(batch)
                    self._hook = hook if member is not None else None
                    self.away = self.wrong = None
                    is_known = True
                self._led.clear()
                self._changed.set()

    def _trouble(self, *, away: str | None = None, wrong: str | None = None) -> None:
        if (away, wrong) != (self.away, self.wrong):
            self.away, self.wrong = away, wrong
            self._led.clear()
            self._changed.set()

    async def _ask(self, partition: int) -> bool:
        is_led, hook = False, self._hook
        try:
            if hook is not None:
                with suppress(NeliError):  # The batches report that, too.
                    is_led = await hook.aleads(partition)
                if not is_led and partition not in self._waiting:
                    self._waiting[partition] = asyncio.create_task(self._wait(hook, partition))
            self._led[partition] = asyncio.get_running_loop().time(), is_led
            return is_led
        finally:
            del self._asking[partition]

    async def _wait(self, hook: NeliHook, partition: int) -> None:
        """Wait until this host leads `partition`. The partition is not held, unlike by a stream of leadership: it may
        be lost again."""
        try:
            await hook.aleads(partition, within=WAIT_MAX)
        except NeliError:
            await asyncio.sleep(RETRY)
        finally:
            del self._waiting[partition]
        # In any case: triggers for which it is not led yet ask again, and only that starts the next wait.
        self._led.pop(partition, None)
        self._changed.set()


class OnePerConnection(SharedStreamProducer):
    """The subscription in the form of Airflow's shared streams, which report when the events of each Moment are
    stored."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    async def open_stream(self) -> AsyncIterator[tuple[Moment, Moment]]:
        subscription = _shared[self._conn_id] = Subscription(self._conn_id)
        try:
            async with aclosing(subscription.follow()) as moments:
                async for moment in moments:
                    yield moment, moment
        finally:
            # A trigger that arrived while this stream ended has opened the next one.
            if _shared.get(self._conn_id) is subscription:
                del _shared[self._conn_id]

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            moment: Any = item.broker_payload
            if not item.outcome.failed:
                await moment.settle()


def current(conn_id: str) -> Subscription | None:
    """The picture of `conn_id`'s shared stream; None if the stream has not begun, and then a Moment will follow."""
    return _shared.get(conn_id)
