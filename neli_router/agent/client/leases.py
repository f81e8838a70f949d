"""Leases and shares that an agent's clients hold: the news in the agent's stream, and how far to trust it.

                     acquired, and confirmed                       all fenced, ended, or under other terms
    WAITING --------------------------------> HELD ------------------------------------------------> LOST
       ^---- fenced before it was confirmed --'  |-- some fenced: those are lost, the others are held
                                                 '-- revoked: finish -- remaining() runs out --> lost without a word

The time left on a lease was true when the agent computed it, and any amount of time may pass before we read it. So an
event only signals news: the client then *asks* for what it holds, and counts the time left from before it asked.

One report serves both. A lease covers one partition; a share covers all that were led when it began, with one common
end. Only an answer that lists, under its term, every partition not yet reported as fenced moves that end. So the loss
of a partition can never be missed: either an event reports it, or the end comes.

If the stream breaks, the client opens another once. An agent that is gone cannot answer, but then its member is gone as
well and hands nothing over, so the lease is good until its time has run out.

A forked child has the objects but not the stream (see `transport`), so its leases do not hold.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from neli_router.agent.wire import LeaseView, ShareView
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout, Role
from neli_router.errors import Forked, GroupMismatch, LeaseLost, NeliError, NotLeading
from neli_router.member.leases import AsyncRevocation, BaseLease, BaseRight, Revocation

__all__ = [
    "WAIT_MAX",
    "AgentLease",
    "AgentReport",
    "AsyncAgentLease",
    "AsyncShare",
    "BaseAgentLease",
    "BaseShare",
    "Share",
    "Wait",
]

WAIT_MAX = 3600.0
"""The longest single sleep. The end of a lease wakes no waiter, so a waiter sleeps until then at most."""

NAMED_MAX = 8
"""How many partitions an error or a `repr` names."""

Wait = Callable[[Callable[[], bool], float | None], Any]
"""Waits until the first argument returns true, at most the second argument's seconds. Returns whether it did, or for an
event loop a coroutine that does."""

Signal = TypeVar("Signal", Revocation, AsyncRevocation)


class AgentReport:
    """Partitions, as the agent's stream and its answers report them. One thread updates it; any thread may read it."""

    def __init__(self, *, clock: Callable[[], float] = host_clock) -> None:
        self.clock = clock
        self.terms: Mapping[int, int] = {}
        """As they were acquired. Does not change while it is held."""
        self.fenced: Mapping[int, str] = {}
        """The ones in `terms` that are lost, and why."""
        self.revoked: frozenset[int] = frozenset()
        self.more: Mapping[int, int] = {}
        """Partitions that are led since, and not held."""
        self.member = ""
        self.drain_timeout = 0.0
        self.layout: Layout | None = None
        """A share has that of its group."""
        self.end = -inf
        """Until when it holds, on the host's clock."""
        self.ends: Mapping[int, float] = {}
        """The ends of those partitions that end sooner."""
        self.is_held = self.is_lost = False
        self.why = ""
        """Why it has to wait, was revoked, or was lost."""
        self.pid = os.getpid()
        self.listeners: tuple[Callable[[], object], ...] = ()
        """Called at each piece of news, by the thread that updates this."""

    @classmethod
    def of(cls, view: LeaseView, asked_at: float) -> "AgentReport":
        """The answer to a question asked at `asked_at`. No stream renews it, so only time can end it."""
        report = cls()
        if view.leads:
            report.told("acquired", view)
            report.confirmed(view, asked_at)
        return report

    # News

    def told(self, event: str, view: LeaseView | ShareView) -> bool:
        """Take note of an event. Returns whether to ask for the time left now."""
        terms, why = _terms(view), view.why
        match event:
            case "waiting" if self.is_held:
                self.lose(why or "the agent's member does not lead it any more")
            case "waiting":
                self.terms, self.why = {}, why
            case "acquired" if self.is_held:  # From another stream: the first one broke.
                for partition, term in self.held().items():
                    if partition not in terms:
                        self._fence(partition, why or "the agent's member does not lead it any more")
                    elif terms[partition] != term:
                        self._fence(partition, f"it was acquired again, under term {terms[partition]}")
                self._add(terms)
            case "acquired":
                self.terms, self.member, self.drain_timeout = terms, view.member, view.drain_timeout
                self.revoked, self.more = frozenset(), {}
                self.why = ""  # The wait is over, so its reason must not explain a later end.
            # These events come only once, perhaps before the agent has answered what is held. None may be missed.
            case "more" if self.terms:
                self._add(terms)
            case "revoked" if self.terms:
                self.revoked, self.why = self.revoked | self.terms.keys() & terms.keys(), why
            case "ended" if self.is_held:
                self.lose(why or "the agent ended")
            case "fenced" if self.is_held:
                for partition in terms:
                    if terms[partition] == self.terms.get(partition):
                        self._fence(partition, why or "the agent's member was fenced")
            case "ended":
                self.terms, self.why = {}, why
            case "fenced":
                self.terms = {partition: term for partition, term in self.terms.items() if partition not in terms}
                self.why = why
            case _:
                pass
        return bool(self.terms) and not self.is_lost

    def confirmed(self, view: LeaseView | ShareView, asked_at: float) -> None:
        """Take note of an answer to a question asked at `asked_at`."""
        terms, held = _terms(view), self.held()
        if held and view.remaining > 0 and all(terms.get(partition) == term for partition, term in held.items()):
            self.end = max(self.end, asked_at + view.remaining)
            if isinstance(view, ShareView):
                self.ends = {i: asked_at + rest for i, rest in view.rests.items()}
                self.layout = view.layout
            self.is_held = True

    def lose(self, why: str) -> None:
        """All of it is lost forever: the same terms may come back, but in a new report."""
        if not self.is_lost:
            self.why, self.is_lost = why, True
            self.fenced = {**dict.fromkeys(self.terms, why), **self.fenced}

    def _fence(self, partition: int, why: str) -> None:
        self.fenced = {**self.fenced, partition: why}
        if len(self.fenced) == len(self.terms):
            self.lose(why)

    def _add(self, terms: Mapping[int, int]) -> None:
        more = {partition: term for partition, term in terms.items() if self.terms.get(partition) != term}
        self.more = {**self.more, **more}

    # Questions

    def held(self) -> Mapping[int, int]:
        """Partition -> term, of every partition that is not reported as lost."""
        return {partition: term for partition, term in self.terms.items() if partition not in self.fenced}

    def until(self, partition: int | None = None) -> float:
        """Until when `partition`, or all of them, are held; `-inf` if it, or one of them, is lost."""
        is_lost = self.fenced if partition is None else partition in self.fenced or partition not in self.terms
        if is_lost or self.is_lost or os.getpid() != self.pid:
            return -inf
        return self._soonest if partition is None else min(self.end, self.ends.get(partition, inf))

    @property
    def _soonest(self) -> float:
        return min([self.end, *self.ends.values()])

    def remaining(self) -> float:
        return max(0.0, self.until() - self.clock())

    def wait(self, sleep: Callable[[float], object], ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `ready()`, at most `timeout` seconds. Returns whether it is. News may cut `sleep` short."""
        give_up_at = inf if timeout is None else self.clock() + timeout
        while not ready() and (seconds := self._patience(give_up_at)) > 0:
            sleep(seconds)
        return ready()

    async def wait_async(
        self,
        sleep: Callable[[float], Awaitable[object]],
        ready: Callable[[], bool],
        timeout: float | None,  # noqa: ASYNC109 - as in `wait`.
    ) -> bool:
        """`wait`, on an event loop."""
        give_up_at = inf if timeout is None else self.clock() + timeout
        while not ready() and (seconds := self._patience(give_up_at)) > 0:
            await sleep(seconds)
        return ready()

    def _patience(self, give_up_at: float) -> float:
        """How long a waiter sleeps before it looks again: the end of a lease wakes no waiter."""
        now = self.clock()
        return max(0.0, min(WAIT_MAX, give_up_at - now, self.end - now if self.end > now else inf))

    def not_leading(self, timeout: float | None) -> NotLeading:
        return NotLeading(
            "leadership was wanted" + ("" if timeout is None else f" within {timeout:g} s"),
            self.why or "the agent's member does not lead it",
            "wait longer, or see with `neli table` and `neli members` (among peers: `neli peers`) who leads and why",
        )

    def not_here(self, wanted: str) -> NeliError | None:
        """The error in a forked child."""
        if os.getpid() == self.pid:
            return None
        return Forked(wanted, "this process is a fork of the one that holds it", "take one here")

    def why_lost(self, now: float) -> str:
        if self.is_lost:
            return f"it was lost: {self.why}"
        if self.fenced:
            verb = "was" if len(self.fenced) == 1 else "were"
            return f"{_named(self.fenced)} {verb} lost: {next(iter(self.fenced.values()))}"
        return f"it ended {max(0.0, now - self._soonest):.3f} s ago without being renewed"


def _terms(view: LeaseView | ShareView) -> Mapping[int, int]:
    """A role is treated as a share of one partition. A view without a term has no partition."""
    if isinstance(view, ShareView):
        return view.terms
    return {view.partition: view.term} if view.term else {}


def _named(partitions: Mapping[int, object]) -> str:
    """In words; names at most NAMED_MAX of them."""
    if len(partitions) == 1:
        return f"partition {next(iter(partitions))}"
    names = [str(partition) for partition in sorted(partitions)]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"partitions {', '.join(names[:NAMED_MAX])}{more}"


class _Reported(BaseRight, Generic[Signal]):
    """The common base of leases and shares: a right that a report of the agent keeps up to date. `_signal` is the form
    of a revocation that fits the caller."""

    __slots__ = ()

    _report: AgentReport
    _wait: Wait
    _signal: type[Signal]

    @property
    def drain_timeout(self) -> float:
        """How many seconds a successor waits for us after a partition is revoked."""
        return self._report.drain_timeout

    def on_news(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` whenever something is renewed, revoked or lost, on a thread of the client. The listener must
        not block, and is not called when a lease merely runs out. Call the returned function to remove it."""
        report = self._report
        report.listeners += (listener,)

        def forget() -> None:
            report.listeners = tuple(other for other in report.listeners if other is not listener)

        return forget

    def _end(self) -> float:
        return self._report.until()

    def _is_revoked(self) -> bool:
        return bool(self._report.revoked) or not self.holds()

    def _not_here(self, wanted: str) -> NeliError | None:
        return self._report.not_here(wanted)

    def _why_lost(self, now: float) -> str:
        return self._report.why_lost(now)


class BaseAgentLease(_Reported[Signal], BaseLease):
    """Everything but the form of the revocation."""

    __slots__ = ("_report", "_wait")

    def __init__(self, role: Role, report: AgentReport, wait: Wait) -> None:
        ((partition, term),) = report.terms.items()
        super().__init__(role, partition, term, report.member, report.clock)
        self._report, self._wait = report, wait

    @property
    def revoked(self) -> Signal:
        """Whether it is time to finish: true once another member is to have the partition, or has it."""
        return self._signal(self._is_revoked, self._wait)


class AgentLease(BaseAgentLease[Revocation]):
    """The right of this host to act for a role. Can be shared between threads; worth nothing in another process."""

    __slots__ = ()
    _signal = Revocation


class AsyncAgentLease(BaseAgentLease[AsyncRevocation]):
    """An AgentLease whose revocation is awaited. Its other questions are plain calls, because they never wait."""

    __slots__ = ()
    _signal = AsyncRevocation


class BaseShare(_Reported[Signal]):
    """All that the two forms share. `remaining`, `holds` and `check` are about all its partitions together: once one is
    lost, the share as a whole is lost. `holds` and `check` also take one partition, for a program that continues
    without the lost ones."""

    __slots__ = ("_report", "_wait")

    def __init__(self, report: AgentReport, wait: Wait) -> None:
        super().__init__(report.member, report.clock)
        self._report, self._wait = report, wait

    @property
    def terms(self) -> Mapping[int, int]:
        """Partition -> term, fixed when the share began. It never changes."""
        return MappingProxyType(self._report.terms)

    @property
    def layout(self) -> Layout:
        """How keys fall into partitions in this group."""
        if (layout := self._report.layout) is None:
            raise GroupMismatch(
                "the layout of the group was wanted with the share",
                "the agent does not send it: it is older than this program",
                "update the agent",
            )
        return layout

    @property
    def revoked(self) -> frozenset[int]:
        """The partitions that are to go to other members. Handovers wait until this closes, at most `drain_timeout`."""
        return self._report.revoked

    @property
    def ending(self) -> Signal:
        """Whether it is time to finish and close the share: true once another member is to have one of its partitions,
        or may have it already."""
        return self._signal(self._is_revoked, self._wait)

    @property
    def fenced(self) -> Mapping[int, str]:
        """The partitions that are reported as lost, and why. Other members may act for them already."""
        return MappingProxyType(self._report.fenced)

    @property
    def more(self) -> Mapping[int, int]:
        """Partitions that this host has started to lead since, and their terms. A new share would hold them."""
        return MappingProxyType(self._report.more)

    def holds(self, partition: int | None = None) -> bool:
        """Whether all of the share holds now, or just `partition`."""
        return self._report.until(partition) > self._clock()

    def check(self, partition: int | None = None) -> None:
        """Raise LeaseLost unless all of the share holds now, or just `partition` (and Forked in a forked child)."""
        if self._report.until(partition) <= self._clock():
            raise self.lost(partition)

    def lost(self, partition: int | None = None, *, why: str = "") -> NeliError:
        """The error that says what was lost, when and why."""
        report = self._report
        if partition is None or report.is_lost:
            return super().lost(why=why)
        wanted = f"the lease of partition {partition} was needed"
        found = report.why_lost(self._clock())
        if partition not in report.terms:
            found = "it was not led here when this share began"
        return report.not_here(wanted) or LeaseLost(
            wanted,
            f"it was lost: {report.fenced[partition]}" if partition in report.fenced else found,
            "stop this work now, and undo or fence what it did since: another member may be doing it already",
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {_named(self._report.terms)} for {self._member}>"

    def _wanted(self) -> str:
        terms = self._report.terms
        return f"the lease{'s' * (len(terms) > 1)} of {_named(terms)} {'were' if len(terms) > 1 else 'was'} needed"


class Share(BaseShare[Revocation]):
    """The right of this host to act for partitions. Can be shared between threads; worth nothing in another process."""

    __slots__ = ()
    _signal = Revocation


class AsyncShare(BaseShare[AsyncRevocation]):
    """A Share whose end is awaited. Its other questions are plain calls, because they never wait."""

    __slots__ = ()
    _signal = AsyncRevocation
