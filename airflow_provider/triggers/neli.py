"""Triggers: wait for a leader, or report each change of owner, in the triggerer.

    LeaderTrigger      starts -> judges the picture -> at each Moment again -> one event, and it is over
                                                    '-> a little before the task's own deadline: failed, or skipped

        connection wrong .................... failed                    role is none ......... failed, immediately
        source away ......................... waits, or failed          no leader ............ waits
        expected leader ..................... success                   another one leads .... waits, skipped or failed
        here: owned, and may not act yet .... waits

    OwnershipTrigger   for AssetWatcher: each Moment -> the partitions whose term is higher than reported -> events
                                                     -> the reported terms, into the asset's state, once they are stored

Both follow the one subscription of their connection (`subscription.py`). When a triggerer is killed, its triggers are
rebuilt elsewhere from their arguments, and judge the state that they find. A LeaderTrigger that fired before it died
and fires again does no harm: its task no longer waits. An OwnershipTrigger asks the asset's state store how far it had
come. Airflow stores an event first and then that mark. If a triggerer is killed between the two, the event is reported
twice, under the same term, so a Dag that must not act twice compares terms. Nothing is lost.

With `ends_task`, a LeaderTrigger ends its task, and no worker is needed. Airflow gives no reason for such an end, so
the trigger writes it to the task's own log. `dag.test()` has no triggerer, and Airflow resumes the task with whatever
the trigger yields; there the event is the plain one.

Arguments come from templates and may be anything. A constructor that raised would end the triggerer, with all triggers
that wait there: Airflow catches only TypeError. So LeaderTrigger judges its arguments when it runs. The arguments of an
OwnershipTrigger come only from the Dag's file, and it raises BadKey, a TypeError, which shows up there as an import
error.
"""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Any, Literal, NamedTuple

from airflow.providers.common.compat.sdk import Stats
from airflow.triggers.base import (
    BaseEventTrigger,
    TaskFailedEvent,
    TaskSkippedEvent,
    TaskSuccessEvent,
    TriggerEvent,
)

from airflow_provider._arguments import Expected, Otherwise, Place, WhenAway, asked_role, led_text, require_sense
from airflow_provider._machinery.subscription import Moment, OnePerConnection, Subscription, current
from airflow_provider.hooks.neli import CONNECTION_ID, checked
from airflow_provider.links import link_xcom
from neli_router.agent.wire import OwnerView
from neli_router.core.keyspace import Layout
from neli_router.errors import BadKey, GroupMismatch, NeliError

__all__ = [
    "LEADER_KEY",
    "Conclusion",
    "LeaderTrigger",
    "OwnershipTrigger",
    "leader_of",
]

EARLY = 2.0
"""Seconds before the task's deadline at which a trigger ends the task: its event takes up to a second to reach the
database, and after the deadline Airflow would need a worker to fail the task."""

SETTLE = 7.0
"""Seconds that a task stays deferred at least, if a worker is to resume it. Airflow's supervisor may notice only after
five seconds that the process of a deferred task has ended. If the task is queued again before that, the scheduler takes
it for a killed one, and fails it with "state mismatch"."""

LEADER_KEY = "neli_leader"
"""The XCom of a skipped task: the member that leads instead, and its term."""

MEMORY = "neli_told"
"""The key under which an asset's state store remembers what an OwnershipTrigger has reported."""

CHANGES = ("acquired", "lost", "moved")

_waiting: set[int] = set()
"""The LeaderTriggers that wait in this process, by `id`."""


class Conclusion(NamedTuple):
    """The outcome of the wait."""

    outcome: Literal["success", "skipped", "failed"]
    why: str = ""
    leader: Mapping[str, Any] | None = None


def leader_of(role: object, view: OwnerView, *, here: bool | None) -> dict[str, Any]:
    """A leader, in the form of events and XComs. A key may be a person's name, and events are logged: so no keys."""
    told = {"leader": view.name, "address": view.address, "term": view.term, "here": here}
    return {**({} if role is None else {"role": role}), "partition": view.partition, **told}


@asynccontextmanager
async def _counted(trigger: object) -> AsyncIterator[None]:
    """Show in the metrics that it waits here. Each triggerer knows only its own."""
    tags = {"hostname": socket.gethostname()}
    _waiting.add(id(trigger))
    Stats.gauge("neli.waiting", len(_waiting), tags=tags)
    try:
        yield
    finally:
        _waiting.discard(id(trigger))
        Stats.gauge("neli.waiting", len(_waiting), tags=tags)


class _Follower(BaseEventTrigger):
    """The common part of both triggers: the one stream of their connection."""

    neli_conn_id: str

    def shared_stream_key(self) -> Hashable:
        return "neli", str(self.neli_conn_id)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> OnePerConnection:
        # Whichever of our classes comes first opens the stream for both.
        return OnePerConnection(str(kwargs["neli_conn_id"]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.neli_conn_id!r}>"  # Airflow's own names the key.


class LeaderTrigger(_Follower):
    """Fires once the expected member leads `role`, `key` or `partition`: one of the three.

    The event holds an `outcome` (success, skipped or failed) and `why`. On success it also holds role, partition,
    leader, address, term, and `here`, which is whether this host leads (None if the connection is to a ledger).

    :param role: a name, or the number of a partition
    :param key: any text, in place of a role
    :param partition: the number of a partition, in place of a role
    :param expect: "here" (the triggerer's host leads it and may act), "anybody", or the name of a member
    :param neli_conn_id: the connection to this host's agent, or to a ledger
    :param otherwise: "wait", "skip" or "fail", if another member leads
    :param when_away: "wait" or "fail", if the agent or the ledger cannot be asked
    :param ends_task: whether the task ends in the triggerer, without a worker, with the leader as its XCom
    :param soft_fail: whether a task that ends so is skipped in place of a failure
    :param layout: the layout that gave the task's run its partition: a group with another one fails the task
    """

    def __init__(
        self,
        *,
        role: str | int | None = None,
        key: str | None = None,
        partition: str | int | None = None,
        expect: Expected = "here",
        neli_conn_id: str = CONNECTION_ID,
        otherwise: Otherwise = "wait",
        when_away: WhenAway = "wait",
        ends_task: bool = False,
        soft_fail: bool = False,
        layout: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.role, self.key, self.partition = role, key, partition
        self.expect, self.neli_conn_id = expect, neli_conn_id
        self.otherwise, self.when_away = otherwise, when_away
        self.ends_task, self.soft_fail, self.layout = ends_task, soft_fail, layout
        self._told = ""
        """The last line in the log: who is waited for, and why."""
        self._partition: int | None = None
        self._leader: str | None = None
        self._lost_at: float | None = None
        """When another leader was last seen to have lost it, if that was while this trigger waited."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        places, ways = ("role", "key", "partition", "expect", "neli_conn_id"), ("otherwise", "when_away")
        names = (*places, *ways, "ends_task", "soft_fail", "layout")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Moment]) -> AsyncIterator[TriggerEvent]:
        # The subscription to the stream is older than this line: later changes arrive as a Moment.
        async with self._settled():
            event = self._event(await self._wait(shared_stream, current(self.neli_conn_id)))
        yield event

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async with self._settled(), aclosing(Subscription(str(self.neli_conn_id)).follow()) as moments:
            event = self._event(await self._wait(moments, None))
        yield event

    @asynccontextmanager
    async def _settled(self) -> AsyncIterator[None]:
        """A block that lasts for SETTLE seconds, or until shortly before the task's deadline, if the event is for a
        worker. It lasts longer if its work does."""
        began_at = asyncio.get_running_loop().time()
        yield
        if self.trigger_id is not None and not self.ends_task:
            rest = began_at + SETTLE - asyncio.get_running_loop().time()
            await asyncio.sleep(min(rest, self._time_left()))

    async def _wait(self, moments: AsyncIterator[Moment], present: Subscription | None) -> Conclusion:
        try:
            require_sense(self._place, expect=self.expect, otherwise=self.otherwise, when_away=self.when_away)
        except NeliError as error:
            return Conclusion("failed", str(error))
        try:
            async with asyncio.timeout(self._time_left() if self._is_last_word else None), _counted(self):
                if present is not None and (conclusion := await self._judge(present)):
                    return conclusion
                async for moment in moments:
                    if conclusion := await self._judge(moment.subscription):
                        return conclusion
        except TimeoutError:
            reason = self._told or "the group did not answer"
            return Conclusion("failed", f"{reason}, and the task's time is over: give it more time")
        raise AssertionError("a subscription never ends")

    async def _judge(self, seen: Subscription) -> Conclusion | None:
        if seen.wrong is not None:
            return Conclusion("failed", seen.wrong)
        if seen.away is not None:
            if self.when_away == "fail":
                return Conclusion("failed", seen.away)
            self._go_on(f"waiting until it can be asked again: {seen.away}", logging.WARNING)
            return None
        if seen.layout is None:
            return None
        try:
            checked(seen.layout, None if self.layout is None else Layout(**self.layout))
            self._partition = partition = seen.layout.partition_of_role(asked_role(*self._place))
        except (GroupMismatch, BadKey) as error:
            return Conclusion("failed", str(error))
        if self.expect == "here" and seen.member is None:
            problem = f"the connection {self.neli_conn_id!r} is to a ledger, which does not know this host"
            return Conclusion("failed", f"{self._wanted()} was wanted, but {problem}: name one to this host's agent")
        if (view := seen.owners.get(partition)) is None:
            return None
        if view.name != self._leader:
            if self._leader is not None:
                self._lost_at = asyncio.get_running_loop().time()
            self._leader = view.name
        is_here = None if seen.member is None else seen.member == view.name
        wanted = seen.member or "" if self.expect == "here" else self.expect
        told = led_text(self._place, view, wanted)
        # Only the member's own agent knows whether it may act already.
        if view.name is None or (is_here and wanted == view.name and not await seen.is_led(view.partition)):
            self._go_on(told)
            return None
        if wanted in {"anybody", view.name}:
            if is_here and self._lost_at is not None:
                Stats.timing("neli.takeover", timedelta(seconds=asyncio.get_running_loop().time() - self._lost_at))
            return Conclusion("success", leader=leader_of(self.role, view, here=is_here))
        if self.otherwise == "wait":
            self._go_on(told)
            return None
        why = f"{self._wanted()} was wanted, but {view.name} leads, under term {view.term}"
        leader = leader_of(self.role, view, here=is_here)
        return Conclusion("skipped" if self.otherwise == "skip" else "failed", why, leader)

    def _go_on(self, told: str, level: int = logging.INFO) -> None:
        """Wait on, and log why when that changes."""
        if told != self._told:
            self._told = told
            self.log.log(level, "%s", told)

    @property
    def _place(self) -> Place:
        return self.role, self.key, self.partition

    def _wanted(self) -> str:
        what = "the key" if self.key is not None else f"role {self.role!r}"
        what = what if self.partition is None else f"partition {self.partition}"
        return f"a leader of {what}" if self.expect == "anybody" else f"{what} led by {self.expect!r}"

    def _time_left(self) -> float:
        """Seconds until shortly before the task's deadline; `inf` if it has none."""
        deadline: datetime | None = getattr(self, "timeout_after", None)  # `dag.test()` sets no deadline.
        if deadline is None:
            return inf
        left = (deadline if deadline.tzinfo else deadline.replace(tzinfo=UTC)) - datetime.now(UTC)
        return max(0.0, left.total_seconds() - min(EARLY, left.total_seconds() / 2))

    @property
    def _is_last_word(self) -> bool:
        """Whether the event can end the task. `dag.test()` has no triggerer, so its triggers have no number."""
        return self.ends_task and self.trigger_id is not None

    def _event(self, conclusion: Conclusion) -> TriggerEvent:
        leader, link = dict(conclusion.leader or {}), link_xcom(self._partition)
        if not self._is_last_word:
            return TriggerEvent({"outcome": conclusion.outcome, "why": conclusion.why, **leader})  # type: ignore[no-untyped-call]
        if conclusion.outcome == "success":
            self.log.info("Leader: %s", leader)
            return TaskSuccessEvent(xcoms={"return_value": leader, **link})
        if conclusion.outcome == "skipped":
            self.log.info("Skipped: %s", conclusion.why)
            return TaskSkippedEvent(xcoms={LEADER_KEY: leader, **link})
        self.log.error("%s: %s", "Skipped, by soft_fail" if self.soft_fail else "Failed", conclusion.why)
        return (TaskSkippedEvent if self.soft_fail else TaskFailedEvent)(xcoms=link)


class OwnershipTrigger(_Follower):
    """Fires for each new owner of a role or of partitions: for an AssetWatcher, so that a Dag runs at a change.

    Partitions that move the same way at the same moment share one event:

        {"event": "acquired", "member": "a", "role": "nightly", "partitions": [42], "terms": [1790000000000123],
         "term": 1790000000000123, "from": "b", "to": "a", "address": "10.0.0.7:8000"}

    `terms` has the term of each partition, `term` the highest. `from` is None if no owner was known. Partitions that
    `member` owns when an asset is first watched count as acquired; a partition without an owner causes no event until
    it has one. Give each asset a watcher with its own arguments, because a watcher that several assets share remembers
    nothing.

    :param role: the role to watch, a name or the number of a partition
    :param partitions: the partitions to watch, in place of a role; by default all
    :param on: the events: "acquired" (`member` owns it under a new term), "lost" (another member owns what `member`
        had), "moved" (the owner has changed, to any member)
    :param member: the name of a member; by default this host's, according to the connection's agent
    :param neli_conn_id: the connection to this host's agent, or to a ledger
    """

    def __init__(
        self,
        *,
        role: str | int | None = None,
        partitions: Iterable[int] | None = None,
        on: Iterable[str] = CHANGES,
        member: str | None = None,
        neli_conn_id: str = CONNECTION_ID,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.role, self.member, self.neli_conn_id = role, member, neli_conn_id
        self.partitions = None if partitions is None else sorted(set(partitions))
        self.on = [on] if isinstance(on, str) else sorted(set(on))
        self._require()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("role", "partitions", "on", "member", "neli_conn_id")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Moment]) -> AsyncIterator[TriggerEvent]:
        # Memory is stored only after a Moment's events are, so a watcher that starts late asks for a Moment.
        if (present := current(self.neli_conn_id)) is not None:
            present.look_again()
        tenures = await self._remembered()
        async for moment in shared_stream:
            for event in self._news(moment, tenures):
                yield event

    async def run(self) -> AsyncIterator[TriggerEvent]:
        tenures = await self._remembered()
        async with aclosing(Subscription(str(self.neli_conn_id)).follow()) as moments:
            async for moment in moments:
                for event in self._news(moment, tenures):
                    yield event
                await moment.settle()

    def _news(self, moment: Moment, tenures: "_Tenures") -> list[TriggerEvent]:
        seen = moment.subscription
        if seen.layout is None or seen.away is not None or seen.wrong is not None:
            if problem := seen.wrong or seen.away:
                self.log.warning("Waits until it can be asked again: %s", problem)
            return []
        member = self.member or seen.member
        if member is None and set(self.on) != {"moved"}:
            self.log.error(
                "A member was wanted for %s, but the connection %r is to a ledger, which does not know this host: name "
                "a member, or give the address of this host's agent",
                *("acquired and lost", self.neli_conn_id),
            )
        try:
            watched = self._watched(seen.layout)
        except BadKey as error:  # Only the group knows its partitions.
            self.log.warning("Nothing can be reported: %s", error)
            return []
        moves = tenures.take(seen.owners[place] for place in watched if place in seen.owners)
        told = [
            TriggerEvent({"event": kind, "member": member, "role": self.role, **payload})  # type: ignore[no-untyped-call]
            for payload in moves
            for kind in self.on
            if _is(kind, member, payload)
        ]
        if moves:
            moment.afterwards(partial(self._remember, tenures.spelled()))
        return told

    def _watched(self, layout: Layout) -> Collection[int]:
        if self.role is not None:
            return (layout.partition_of_role(asked_role(self.role)),)
        return range(layout.partitions) if self.partitions is None else self.partitions

    async def _remembered(self) -> "_Tenures":
        if self.asset_state_store is None:
            return _Tenures()
        try:
            told = await self.asset_state_store.aget(MEMORY, None)
        except ValueError:
            self.log.warning(
                "Several assets share this watcher, so it cannot remember what it reported, and repeats it after a "
                "restart: give each asset a watcher with arguments of its own"
            )
            self.asset_state_store = None
            return _Tenures()
        return _Tenures.spelled_as(told)

    async def _remember(self, told: str) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(MEMORY, told)

    def _require(self) -> None:
        if self.role is not None:
            asked_role(self.role)
        wrong = [place for place in self.partitions or [] if type(place) is not int or place < 0]
        if wrong or self.partitions == [] or (self.role is not None and self.partitions is not None):
            raise BadKey(
                "a role, or numbers of partitions from 0 on, or neither for all partitions was wanted",
                "both were given" if self.role is not None else "a partition is not such a number, or none is named",
                "name one of the two",
            )
        if not self.on or not set(self.on) <= set(CHANGES):
            raise BadKey(f"some of {', '.join(CHANGES)} were wanted", f"`on` is {self.on!r:.80}", "name one of them")


def _is(kind: str, member: str | None, payload: Mapping[str, Any]) -> bool:
    was, now, is_first = payload["from"], payload["to"], payload["from"] is None
    if kind == "moved":
        return now != was and not is_first
    return member is not None and (now == member if kind == "acquired" else was == member and now != member)


class _Tenures:
    """Partition -> the owner and the term reported last. A term is reported once, and only if it is higher than
    before."""

    def __init__(self, known: Mapping[int, tuple[str, int]] | None = None) -> None:
        self._known = dict(known or {})

    def take(self, views: Iterable[OwnerView]) -> list[dict[str, Any]]:
        """The news in `views`: partitions that moved the same way share one item."""
        ways: dict[tuple[str | None, str], list[OwnerView]] = {}
        for view in views:
            was, term = self._known.get(view.partition, (None, 0))
            if view.name is not None and view.term > term:
                ways.setdefault((was, view.name), []).append(view)
                self._known[view.partition] = view.name, view.term
        return [
            {
                "partitions": [view.partition for view in taken],
                "terms": [view.term for view in taken],
                "term": max(view.term for view in taken),
                "from": was,
                "to": now,
                "address": taken[0].address,
            }
            for (was, now), taken in ways.items()
        ]

    def spelled(self) -> str:
        """As JSON: the names once, and then for each partition the index of its owner's name, and the term."""
        names = sorted({name for name, _ in self._known.values()})
        places = {name: place for place, name in enumerate(names)}
        owned = {partition: [places[name], term] for partition, (name, term) in self._known.items()}
        return json.dumps([names, owned], separators=(",", ":"))

    @classmethod
    def spelled_as(cls, text: Any) -> "_Tenures":
        if text is None:
            return cls()
        names, owned = json.loads(text)
        return cls({int(partition): (names[place], term) for partition, (place, term) in owned.items()})
