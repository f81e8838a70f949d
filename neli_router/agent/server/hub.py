"""The hub: it hears every change once, and notifies everyone that waits for it.

    member's changes --.                                  .-> clients that wait to lead: the partitions led now
    feed.show_to ------+--> wake: one call into the loop -+-> clients that lead: leases that are revoked or lost
    its thread turns --'    however many changes it was   +-> clients that watch: owners that differ, encoded once
                                                          '-> clients that show the status: there is a newer one
    one clock -----------> comments, renewals, status, the sweep of connections

A member's own way of waiting polls four times a second, and thousands of waiters would take a whole core. Here no
waiter polls: when nothing happens, only the clock runs.

A look-up that follows news must agree with the news. So the hub announces changes of the feed's table, which look-ups
use, and not the newest records of the ledger.

A status is large, and a takeover of many partitions is many records. So a change only signals that there is a newer
status, and changes that come together are shown together. Remaining lease times and ages change with time alone: the
clock has them shown, and less often if there are many streams.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from starlette.types import Scope

from neli_router.agent import owners
from neli_router.agent.server.connections import COMMENT, SWEEP_EVERY, AgentTraffic, Channel, connection_of, event
from neli_router.agent.server.idleness import Demand
from neli_router.agent.server.progress import JobProgress
from neli_router.agent.server.requests import RequestRefused
from neli_router.agent.wire import OwnerView
from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.member.member import Member
from neli_router.router.table import At, Owner, Table, View
from neli_router.status.chronicle import Chronicle
from neli_router.status.group_view import GroupView

__all__ = ["COMMENT_EVERY", "HANGS_AFTER", "STATUS_PAUSE", "STREAMS_MAX", "Hub", "StatusTicker"]

COMMENT_EVERY = 15
"""Seconds between comments. Each channel has its own moment: a thousand comments in one go would delay other work."""

STREAMS_MAX = 4096
"""Streams and long polls at a time. Each costs some ten kilobytes."""

RENEWALS_PER_LEASE = 4

HANGS_AFTER = 10.0
"""Seconds that the member's thread may be silent. It turns at least twice a second, and may wait for a ledger."""

STATUS_PAUSE = 0.05
"""The least time between two statuses, in seconds."""

STATUS_EVERY = 1.0
"""Seconds between two statuses if only time has passed."""

STREAMS_PER_SECOND = 100
"""How many streams get that status each second."""


class Hub:
    """The hub of one member, on one loop, from `open` to `close`."""

    def __init__(self, config: Config, member: Member, chronicle: Chronicle, traffic: AgentTraffic) -> None:
        self.config = config
        self.is_alone = not config.has_ledger and config.ownership is None
        """Whether owners are those that the member believes in, because nothing better is known."""
        self.member, self.membership = member, member.engine.membership
        self.chronicle, self.traffic, self.demand = chronicle, traffic, Demand()
        self.progress = JobProgress(member.layout)
        self._feed = member.router.feed
        self.renew_every = config.lease / RENEWALS_PER_LEASE
        """Seconds between two renewals on a stream of leadership."""
        self._loop = asyncio.get_running_loop()
        self._is_waking = self._is_open = self._is_other = False
        self._waiting: defaultdict[Sequence[int], dict[Channel, Callable[[], None]]] = defaultdict(dict)
        self._leading: dict[Channel, Callable[[], bool]] = {}
        self._watching: defaultdict[int | None, set[Channel]] = defaultdict(set)
        self._all: set[Channel] = set()
        self._wheel: list[set[Channel]] = [set() for _ in range(COMMENT_EVERY)]
        self._ticks = 0
        self._view: View = self._feed.view
        self._owners: tuple[Owner | None, ...] = ()
        self._seen = GroupView()
        self._renewal: asyncio.TimerHandle | None = None
        self._clock: asyncio.TimerHandle | None = None
        self.turned_at = inf
        """When the member's thread last gave a sign of life; `inf` before it started to read."""
        self.status = StatusTicker(self._loop)

    def open(self) -> None:
        self._is_open = True
        self._feed.show_to(self._show)
        self.membership.changed.tell(self.wake)
        self.member.engine.oversee(self._turned)
        self._owners = self._shown()
        self._tick()

    def close(self) -> None:
        """End all streams, and listen to nothing any more. Safe to call twice."""
        if not self._is_open:
            return
        self._is_open = False
        self._feed.hide_from(self._show)
        self.membership.changed.forget(self.wake)
        self.member.engine.neglect(self._turned)
        for timer in (self._clock, self._renewal):
            if timer is not None:
                timer.cancel()
        self.status.close()
        for channel in list(self._all):
            channel.end()

    @property
    def is_stuck(self) -> bool:
        """Whether the member's thread gives no sign of life."""
        return host_clock() - self.turned_at > HANGS_AFTER

    # Waiting clients

    @contextmanager
    def serving(self, scope: Scope, *, is_stream: bool = True) -> Iterator[Channel]:
        """The channel of a client that waits. It is notified when the agent ends; a stream also gets a comment now and
        then. Raises RequestRefused if too many wait."""
        if len(self._all) >= STREAMS_MAX:
            self.traffic.crowded += 1
            found = f"{STREAMS_MAX} are open"
            raise RequestRefused("Crowded", "another stream was wanted", found, "close those that are not needed")
        channel = Channel(connection_of(scope))
        slot = self._wheel[len(self._all) % COMMENT_EVERY] if is_stream else set()
        self._all.add(channel)
        slot.add(channel)
        self.traffic.streams += is_stream
        self.traffic.waiting += not is_stream
        try:
            yield channel
        finally:
            self.traffic.streams -= is_stream
            self.traffic.waiting -= not is_stream
            self._all.discard(channel)
            slot.discard(channel)

    @contextmanager
    def waiting(self, channel: Channel, partitions: Sequence[int], changed: Callable[[], None]) -> Iterator[None]:
        """`channel` is rung when one of `partitions` is led here, or never will be; `changed` is called when the reason
        why none is led may have changed. `partitions` is one shared object for all that wait for the same, or a tuple
        or range."""
        self._waiting[partitions][channel] = changed
        try:
            yield
        finally:
            del self._waiting[partitions][channel]
            if not self._waiting[partitions]:
                del self._waiting[partitions]

    @contextmanager
    def leading(self, channel: Channel, has_news: Callable[[], bool]) -> Iterator[None]:
        """`channel` is rung when its leases are due to be reported again, and when it `has_news` of them."""
        self._leading[channel] = has_news
        if self._renewal is None:
            self._renewal = self._loop.call_later(self.renew_every, self._renew)
        try:
            yield
        finally:
            del self._leading[channel]

    @contextmanager
    def watching(self, channel: Channel, partition: int | None) -> Iterator[None]:
        """The owners of `partition`, or of all, are put into `channel`: first the present ones, then each change."""
        places = range(len(self._owners)) if partition is None else [partition]
        channel.put(b"".join(self._owner_event(place) for place in places) or COMMENT)
        self._watching[partition].add(channel)
        try:
            yield
        finally:
            self._watching[partition].discard(channel)
            if not self._watching[partition]:
                del self._watching[partition]

    @property
    def is_ending(self) -> bool:
        """Whether this member leads nothing any more, or soon will not."""
        return self.membership.closing or self.member.closed

    def owner_view(self, view: View, partition: int, slot: int | None, at: At) -> OwnerView:
        """The owner of `partition`, or why there is none."""
        outlook = self.membership.outlook if self.is_alone else None
        if outlook is not None and (period := self.membership.period(partition)) is not None:
            name, peer = self.member.name, outlook.peers[outlook.me]  # Certain, and not just a belief.
            return OwnerView(partition, name, self.config.address, period.term, slot, at.offset, peer=peer)
        if outlook is None or (led := outlook.leaders[partition]) is None or led.leader is None:
            return owners.owner_view(view, partition, slot, at)
        return owners.owner_view(view, partition, slot, at, peer=outlook.peers[led.leader], believed=True)

    def leads_any(self, partitions: Sequence[int]) -> bool:
        return any(self.membership.period(partition) is not None for partition in partitions)

    def why(self, partition: int) -> str:
        """Why this member does not lead `partition`."""
        if self.is_ending:
            error = self.member.error
            return "this agent is being stopped" if error is None else str(error)
        return self.membership.why_not(partition)

    # News, on any thread

    def wake(self) -> None:
        """Something changed. Never waits, never raises."""
        if not self._is_waking:
            self._is_waking = True  # One call is enough until the loop gets to it.
            with contextlib.suppress(RuntimeError):  # The loop is closed, and so is everything that waited there.
                self._loop.call_soon_threadsafe(self._awake)

    def _show(self, view: View) -> None:
        self._view, self._is_other = view, True
        self.wake()

    def _turned(self, now: float) -> None:
        self.turned_at = now
        group = self.chronicle.group
        if not group.looks_like(self._seen):
            self._seen, self._is_other = group, True
            self.wake()

    # News, on the loop

    def _awake(self) -> None:
        self._is_waking = False
        if not self._is_open:
            return
        is_ending = self.is_ending
        for partitions in list(self._waiting):
            if is_ending or self.leads_any(partitions):
                for channel in self._waiting[partitions]:
                    channel.ring()
        for channel, has_news in self._leading.items():
            if has_news():
                channel.ring()
        if self._is_other:
            self._is_other = False
            self._tell_owners()
            for waiters in list(self._waiting.values()):
                for changed in list(waiters.values()):
                    changed()
            self.status.changed()

    def _tell_owners(self) -> None:
        was, now = self._owners, self._shown()
        self._owners = now
        if was is now:
            return
        before = was if len(was) == len(now) else (None,) * len(now)
        everything = self._watching.get(None, set())
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            if one is other or one == other:
                continue
            watchers = self._watching.get(place, set())
            if watchers or everything:
                news = self._owner_event(place)
                for channel in [*watchers, *everything]:
                    channel.put(news)

    def _shown(self) -> tuple[Owner | None, ...]:
        if isinstance(self._view, Table):
            return self._view.partitions
        # No owner is known: show None for as many partitions as were shown before.
        return (None,) * len(self._owners) if any(self._owners) or not self._owners else self._owners

    def _owner_event(self, partition: int) -> bytes:
        return event("owner", self.owner_view(self._view, partition, None, self._feed.at))

    # Time

    def _tick(self) -> None:
        """Once a second."""
        self._clock = self._loop.call_later(SWEEP_EVERY, self._tick)
        self._ticks += 1
        for channel in list(self._wheel[self._ticks % COMMENT_EVERY]):
            channel.put(COMMENT)
        self.traffic.sweep(self._loop.time())
        self.status.tick()

    def _renew(self) -> None:
        self._renewal = None
        for channel in list(self._leading):
            channel.ring()
        if self._leading:
            self._renewal = self._loop.call_later(self.renew_every, self._renew)


class StatusTicker:
    """Decides when the streams of one hub show the status again. Belongs to the hub's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: set[Channel] = set()
        self._shown_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._due = -inf
        """When the timer rings. With uvloop, a timer that is already due cannot be asked for its time."""
        self.version = 0
        """Changes whenever there is something new to show."""

    @contextmanager
    def showing(self, channel: Channel) -> Iterator[None]:
        """`channel` is rung when `version` has changed."""
        self._streams.add(channel)
        try:
            yield
        finally:
            self._streams.discard(channel)

    def changed(self) -> None:
        """Something visible has changed."""
        self._show_after(STATUS_PAUSE)

    def tick(self) -> None:
        """Time has passed."""
        self._show_after(max(STATUS_EVERY, len(self._streams) / STREAMS_PER_SECOND))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _show_after(self, pause: float) -> None:
        due = max(self._loop.time(), self._shown_at + pause)
        if not self._streams or (self._timer is not None and self._due <= due):
            return
        self.close()
        self._due, self._timer = due, self._loop.call_at(due, self._show)

    def _show(self) -> None:
        self._timer, self._shown_at = None, self._loop.time()
        self.version += 1
        for channel in list(self._streams):
            channel.ring()
