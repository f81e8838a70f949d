"""Leases and shares that an agent's clients hold: the news in the agent's stream, and how much of it may be believed.

                     acquired, and confirmed                       all fenced, ended, or under other terms
    WAITING --------------------------------> HELD ------------------------------------------------> LOST
       ^---- fenced before it was confirmed --'  |-- some fenced: those are lost, the others are held
                                                 '-- revoked: finish -- remaining() runs out --> lost without a word

A lease is time, counted by the member inside the agent on the clock of this host. Its rest was true when the agent
worked it out; until we read it, any time may have passed, in the agent, in the socket, or in a program that was
stopped. So the rest in an event is never used. An event only says that there is news: the client then *asks* for what
it holds, and counts the rest of the answer from before it asked.

One Hold serves both: a lease is of one partition, and a share is of all that were led when it began, under one end. The
end is put off only by an answer that has every partition that was not told as fenced, under its term. So the loss of
one can never be missed: each question about the share is answered by an event or by the end.

If the stream breaks, the agent is asked for another once. An agent that is gone cannot answer; but then its member is
gone as well, no member hands anything over, and the lease is good until its rest has run out.

A forked child has the objects and not the stream: its leases do not hold. It closes its copy of the stream's socket at
once, or the agent would take the child for a holder when the parent has ended.
"""

import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from math import inf
from types import MappingProxyType
from typing import Any

from neli_router.agent.wire import LeaseView, ShareView
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Role
from neli_router.errors import Forked, LeaseLost, NeliError, NotLeading
from neli_router.member.leases import AsyncRevocation, BaseLease, BaseRight, Revocation

__all__ = [
    "WAIT_MAX",
    "AgentLease",
    "AsyncAgentLease",
    "AsyncShare",
    "AsyncWait",
    "BaseAgentLease",
    "BaseShare",
    "Hold",
    "Share",
    "Wait",
]

WAIT_MAX = 3600.0
"""The longest one sleep. The end of a lease notifies no waiter, so a waiter sleeps until then at most."""

NAMED_MAX = 8
"""How many partitions an error or a `repr` names."""

Wait = Callable[[Callable[[], bool], float | None], bool]
"""Waits until the first argument is true, at most the second one's seconds; whether it became true."""

AsyncWait = Callable[[Callable[[], bool], float | None], Coroutine[Any, Any, bool]]


class Hold:
    """Partitions, as the agent's stream and its answers tell of them. One thread tells; any may ask."""

    def __init__(self, *, clock: Callable[[], float] = host_clock) -> None:
        self.clock = clock
        self.terms: Mapping[int, int] = {}
        """As they were acquired. Does not change while it is held."""
        self.fenced: Mapping[int, str] = {}
        """Of those, the lost ones, and why."""
        self.revoked: frozenset[int] = frozenset()
        self.more: Mapping[int, int] = {}
        """Led since, and not held."""
        self.member = ""
        self.drain_timeout = 0.0
        self.end = -inf
        """Until when it holds, on the host's clock."""
        self.ends: Mapping[int, float] = {}
        """Of its partitions that end sooner."""
        self.is_held = self.is_lost = False
        self.why = ""
        """Why it is waited for, was revoked, or was lost."""
        self.pid = os.getpid()
        self.listeners: tuple[Callable[[], object], ...] = ()
        """Called at all news, by the thread that tells."""

    # News

    def told(self, event: str, view: LeaseView | ShareView) -> bool:
        """Take note of an event; whether to ask for the rest now."""
        terms, why = _terms(view), view.why
        match event:
            case "waiting" if self.is_held:
                self.lose(why or "the agent's member does not lead it any more")
            case "waiting":
                self.terms, self.why = {}, why
            case "acquired" if self.is_held:  # By another stream: the first one broke.
                for partition, term in self.held().items():
                    if partition not in terms:
                        self._fence(partition, why or "the agent's member does not lead it any more")
                    elif terms[partition] != term:
                        self._fence(partition, f"it was acquired again, under term {terms[partition]}")
                self._add(terms)
            case "acquired":
                self.terms, self.member, self.drain_timeout = terms, view.member, view.drain_timeout
                self.revoked, self.more = frozenset(), {}
                self.why = ""  # It is over that it was waited for: no later end may be explained by it.
            # Told once, and perhaps before the agent has answered what is held: none of it may be missed.
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
            self.is_held = True

    def lose(self, why: str) -> None:
        """All of it is lost for ever: the same terms may come back, in a hold of their own."""
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
        """Partition -> term, of all that was not told as lost."""
        return {partition: term for partition, term in self.terms.items() if partition not in self.fenced}

    def until(self, partition: int | None = None) -> float:
        """Until when `partition` is held, or all of them; `-inf` if it is lost, or one of them."""
        is_lost = self.fenced if partition is None else partition in self.fenced or partition not in self.terms
        if is_lost or self.is_lost or os.getpid() != self.pid:
            return -inf
        return self._soonest if partition is None else min(self.end, self.ends.get(partition, inf))

    @property
    def _soonest(self) -> float:
        return min(self.end, *self.ends.values()) if self.ends else self.end

    def remaining(self) -> float:
        return max(0.0, self.until() - self.clock())

    def wait(self, sleep: Callable[[float], object], ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `ready()`, at most `timeout` seconds; whether it is. `sleep` may end early, at news."""
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
    """A role is a share of one partition. Without a term, the view is of none."""
    if isinstance(view, ShareView):
        return view.terms
    return {view.partition: view.term} if view.term else {}


def _named(partitions: Mapping[int, object]) -> str:
    """In words, at most NAMED_MAX of them."""
    if len(partitions) == 1:
        return f"partition {next(iter(partitions))}"
    names = [str(partition) for partition in sorted(partitions)]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"partitions {', '.join(names[:NAMED_MAX])}{more}"


class _Told(BaseRight):
    """What leases and shares have in common: a hold that the agent tells of."""

    __slots__ = ()

    _hold: Hold

    @property
    def drain_timeout(self) -> float:
        """Seconds that a successor waits for us, from when a partition is revoked."""
        return self._hold.drain_timeout

    def on_news(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` whenever something was renewed, revoked or lost, on a thread of the client. It must not wait,
        and is not called for what merely runs out. The answer takes it back."""
        hold = self._hold
        hold.listeners += (listener,)

        def forget() -> None:
            hold.listeners = tuple(other for other in hold.listeners if other is not listener)

        return forget

    def _end(self) -> float:
        return self._hold.until()

    def _is_revoked(self) -> bool:
        return bool(self._hold.revoked) or not self.holds()

    def _not_here(self, wanted: str) -> NeliError | None:
        return self._hold.not_here(wanted)

    def _why_lost(self, now: float) -> str:
        return self._hold.why_lost(now)


class BaseAgentLease(_Told, BaseLease):
    """All that the two forms share: everything but how one waits for the revocation."""

    __slots__ = ("_hold",)

    def __init__(self, role: Role, hold: Hold) -> None:
        ((partition, term),) = hold.terms.items()
        super().__init__(role, partition, term, hold.member, hold.clock)
        self._hold = hold


class AgentLease(BaseAgentLease):
    """The right of this host to act for a role. May be shared between threads; worth nothing in another process."""

    __slots__ = ("_wait",)

    def __init__(self, role: Role, hold: Hold, wait: Wait) -> None:
        super().__init__(role, hold)
        self._wait = wait

    @property
    def revoked(self) -> Revocation:
        """Whether it is time to finish: true from when another member shall have the partition, or has it."""
        return Revocation(self._is_revoked, self._wait)


class AsyncAgentLease(BaseAgentLease):
    """An AgentLease whose revocation is awaited. Its questions are plain calls: there is nothing to wait for."""

    __slots__ = ("_wait",)

    def __init__(self, role: Role, hold: Hold, wait: AsyncWait) -> None:
        super().__init__(role, hold)
        self._wait = wait

    @property
    def revoked(self) -> AsyncRevocation:
        """Whether it is time to finish: true from when another member shall have the partition, or has it."""
        return AsyncRevocation(self._is_revoked, self._wait)


class BaseShare(_Told):
    """All that the two forms share. `remaining`, `holds` and `check` are of all its partitions together: once one is
    lost, the share as a whole is. `holds` and `check` also take one partition, for a program that goes on without the
    lost ones."""

    __slots__ = ("_hold",)

    def __init__(self, hold: Hold) -> None:
        super().__init__(hold.member, hold.clock)
        self._hold = hold

    @property
    def terms(self) -> Mapping[int, int]:
        """Partition -> term, as the share began. It never changes."""
        return MappingProxyType(self._hold.terms)

    @property
    def revoked(self) -> frozenset[int]:
        """The partitions that other members shall have: each waits until this share is closed, or `drain_timeout`."""
        return self._hold.revoked

    @property
    def fenced(self) -> Mapping[int, str]:
        """The partitions that were told as lost, and why. Others may act for them already."""
        return MappingProxyType(self._hold.fenced)

    @property
    def more(self) -> Mapping[int, int]:
        """Partitions that this host came to lead since, and their terms. A share that is opened anew holds them."""
        return MappingProxyType(self._hold.more)

    def holds(self, partition: int | None = None) -> bool:
        """Whether all of it holds now, or `partition` does."""
        return self._hold.until(partition) > self._clock()

    def check(self, partition: int | None = None) -> None:
        """Raise LeaseLost unless all of it holds now, or `partition` does (and Forked in a forked child)."""
        if self._hold.until(partition) <= self._clock():
            raise self.lost(partition)

    def lost(self, partition: int | None = None) -> NeliError:
        """The error that says what was lost, when and why."""
        hold = self._hold
        if partition is None or hold.is_lost:
            return super().lost()
        wanted = f"the lease of partition {partition} was needed"
        found = hold.why_lost(self._clock())
        if partition not in hold.terms:
            found = "it was not led here when this share began"
        return hold.not_here(wanted) or LeaseLost(
            wanted,
            f"it was lost: {hold.fenced[partition]}" if partition in hold.fenced else found,
            "stop this work now, and undo or fence what it did since: another member may be doing it already",
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {_named(self._hold.terms)} for {self._member}>"

    def _wanted(self) -> str:
        terms = self._hold.terms
        return f"the lease{'s' * (len(terms) > 1)} of {_named(terms)} {'were' if len(terms) > 1 else 'was'} needed"


class Share(BaseShare):
    """The right of this host to act for partitions. May be shared between threads; worth nothing in another process."""

    __slots__ = ("_wait",)

    def __init__(self, hold: Hold, wait: Wait) -> None:
        super().__init__(hold)
        self._wait = wait

    @property
    def ending(self) -> Revocation:
        """Whether it is time to finish and to close the share: true once another member shall have one of its
        partitions, or may have."""
        return Revocation(self._is_revoked, self._wait)


class AsyncShare(BaseShare):
    """A Share whose end is awaited. Its questions are plain calls: there is nothing to wait for."""

    __slots__ = ("_wait",)

    def __init__(self, hold: Hold, wait: AsyncWait) -> None:
        super().__init__(hold)
        self._wait = wait

    @property
    def ending(self) -> AsyncRevocation:
        """Whether it is time to finish and to close the share: true once another member shall have one of its
        partitions, or may have."""
        return AsyncRevocation(self._is_revoked, self._wait)
