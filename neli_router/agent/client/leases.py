"""Leases that an agent's clients hold: what the agent says over a stream, and what may be believed of it.

                     acquired, and confirmed                       fenced, ended, or another term
    WAITING --------------------------------> HELD ------------------------------------------------> LOST
       ^---- fenced before it was confirmed --'  '-- revoked: finish -- remaining() runs out --> lost without a word

A lease is time, counted by the member inside the agent on the clock of this host. Its rest was true when the agent
worked it out; until we read it, any time may have passed, in the agent, in the socket, or in a program that was
stopped. So no event's rest is ever taken. An event only says that there is news: the client then *asks* for the lease,
and counts the rest of the answer from before it asked.

If the stream breaks, the agent is asked for another once. An agent that is gone cannot answer; but then its member is
gone as well, nobody hands anything over, and the lease is good until its rest has run out.

A forked child has the objects and not the stream: its leases do not hold. What it inherited of the stream's socket is
closed at once, or the agent would take the child for a holder when the parent has ended.
"""

import os
from collections.abc import Callable
from math import inf
from typing import Protocol

from neli_router.agent.wire import LeaseView
from neli_router.clock import host_clock
from neli_router.errors import Forked, LeaseLost, NeliError, NotLeading
from neli_router.keyspace import Role

__all__ = [
    "WAIT_MAX",
    "AgentLease",
    "AsyncAgentLease",
    "AsyncRevocation",
    "Hold",
    "Holding",
    "Revocation",
    "Until",
    "UntilAsync",
]

WAIT_MAX = 3600.0
"""The longest one sleep. Of the end of a lease nobody is notified, so whoever waits sleeps until then at most."""


class Hold:
    """One role, as the agent's stream and its answers tell of it. One thread tells; any may ask."""

    def __init__(self, role: Role, *, clock: Callable[[], float] = host_clock) -> None:
        self.role, self.clock = role, clock
        self.partition, self.term, self.member = -1, 0, ""
        self.drain_timeout = 0.0
        self.end = -inf
        """Until when it holds, on the host's clock."""
        self.is_held = self.is_revoked = self.is_lost = False
        self.why = ""
        """Why it is waited for, was revoked, or was lost."""
        self.pid = os.getpid()
        self.listeners: tuple[Callable[[], object], ...] = ()
        """Called whenever something became known, by whoever tells."""

    def told(self, event: str, view: LeaseView) -> bool:
        """Take note of an event; whether to ask for the lease now."""
        match event:
            case "waiting":
                self.why = view.why
                if self.is_held:
                    self.lose(view.why or "the agent's member does not lead it any more")
                self.term = 0
            case "acquired" if not self.is_held:
                self.partition, self.term, self.member = view.partition, view.term, view.member
                self.drain_timeout = view.drain_timeout
            case "acquired" if view.term != self.term:
                self.lose(f"it was acquired again, under term {view.term}")
            case "revoked":
                self.is_revoked, self.why = self.is_held, view.why
            case "fenced" | "ended" if self.is_held:
                self.lose(view.why or "the agent's member was fenced")
            case "fenced" | "ended":
                self.term, self.why = 0, view.why
            case _:
                pass
        return self.term > 0 and not self.is_lost

    def confirmed(self, view: LeaseView, asked_at: float) -> None:
        """Take note of an answer to a question asked at `asked_at`."""
        # While it finishes, the member does not lead in the sense that new work may begin.
        if view.term == self.term > 0 and (view.leads or self.is_revoked) and view.remaining > 0:
            self.end = max(self.end, asked_at + view.remaining)
            self.is_held = True

    def lose(self, why: str) -> None:
        """Lost for ever: the same term may come back, in a lease of its own."""
        if not self.is_lost:
            self.is_lost, self.why = True, why

    def remaining(self) -> float:
        return 0.0 if self.is_lost or os.getpid() != self.pid else max(0.0, self.end - self.clock())

    def not_leading(self, timeout: float | None) -> NotLeading:
        return NotLeading(
            "leadership was wanted" + ("" if timeout is None else f" within {timeout:g} s"),
            self.why or "the agent's member does not lead it",
            "wait longer, or see with `neli members` and `neli table` who leads and why",
        )


class Holding:
    """What both forms of a lease have in common, which is all but how one waits."""

    __slots__ = ("_hold",)

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    @property
    def role(self) -> Role:
        """As it was asked for. It may be a key, so it stands in no log, no error and no `repr`."""
        return self._hold.role

    @property
    def partition(self) -> int:
        return self._hold.partition

    @property
    def term(self) -> int:
        """The fencing token: a later holder always has a higher one."""
        return self._hold.term

    @property
    def member(self) -> str:
        """The name of the agent's member, which leads on our behalf."""
        return self._hold.member

    @property
    def drain_timeout(self) -> float:
        """Seconds that the successor waits for us, from when the lease is revoked."""
        return self._hold.drain_timeout

    def remaining(self) -> float:
        """Seconds for which it holds if the agent says nothing more; 0 if it is lost."""
        return self._hold.remaining()

    def holds(self) -> bool:
        """Whether it holds now. Costs about a microsecond."""
        return self._hold.remaining() > 0

    def check(self) -> None:
        """Raise LeaseLost if it does not hold now (and Forked in a forked child, where no lease ever holds)."""
        if not self.holds():
            raise self.lost()

    def lost(self) -> NeliError:
        """The error that says what was lost, and why."""
        hold = self._hold
        wanted = f"the lease of partition {hold.partition} under term {hold.term} was needed"
        if os.getpid() != hold.pid:
            return Forked(wanted, "this process is a fork of the one that holds it", "take one here")
        ago = hold.clock() - hold.end
        return LeaseLost(
            wanted,
            f"it was lost: {hold.why}" if hold.is_lost else f"it ended {max(0.0, ago):.3f} s ago without being renewed",
            "stop this work now, and undo or fence what it did since: another member may be doing it already",
        )

    def on_news(self, listener: Callable[[], object]) -> None:
        """Call `listener` whenever the lease was renewed, revoked or lost, on a thread of the client. It must not wait,
        and is not called for a lease that merely runs out."""
        self._hold.listeners += (listener,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of partition {self.partition} under term {self.term} for {self.member}>"

    def _is_revoked(self) -> bool:
        return self._hold.is_revoked or not self.holds()

    def _patience(self, give_up_at: float) -> float:
        """How long to sleep before looking again: the end of a lease wakes nobody."""
        left = self._hold.remaining()
        return max(0.0, min(WAIT_MAX, give_up_at - self._hold.clock(), left if left > 0 else inf))


class Until(Protocol):
    def __call__(self, ready: Callable[[], bool], patience: Callable[[], float]) -> bool:
        """Wait for `ready()`, looking again after `patience()` seconds at the latest, which is 0 to give up."""


class UntilAsync(Protocol):
    async def __call__(self, ready: Callable[[], bool], patience: Callable[[], float]) -> bool:
        """The same, on a loop."""


class AgentLease(Holding):
    """The right of this host to act for a role. May be shared between threads; worth nothing in another process."""

    __slots__ = ("_until",)

    def __init__(self, hold: Hold, until: Until) -> None:
        super().__init__(hold)
        self._until = until

    @property
    def revoked(self) -> "Revocation":
        """Whether it is time to finish: true from when somebody else shall have the partition, or has it."""
        return Revocation(self)

    def await_revoked(self, timeout: float | None) -> bool:
        """See `revoked.wait`."""
        give_up_at = inf if timeout is None else self._hold.clock() + timeout
        return self._until(self._is_revoked, lambda: self._patience(give_up_at))


class AsyncAgentLease(Holding):
    """An AgentLease whose revocation is awaited. Its questions are plain calls: there is nothing to wait for."""

    __slots__ = ("_until",)

    def __init__(self, hold: Hold, until: UntilAsync) -> None:
        super().__init__(hold)
        self._until = until

    @property
    def revoked(self) -> "AsyncRevocation":
        """Whether it is time to finish: true from when somebody else shall have the partition, or has it."""
        return AsyncRevocation(self)

    async def await_revoked(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - the same as in AgentLease.
        """See `revoked.wait`."""
        give_up_at = inf if timeout is None else self._hold.clock() + timeout
        return await self._until(self._is_revoked, lambda: self._patience(give_up_at))


class Revocation:
    """Whether it is time to finish. Becomes true once and stays so; to be used like a `threading.Event`."""

    __slots__ = ("_lease",)

    def __init__(self, lease: AgentLease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease._is_revoked()  # noqa: SLF001 - two halves of one thing.

    def __bool__(self) -> bool:
        return self.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, at most `timeout` seconds; whether it is time to finish."""
        return self._lease.await_revoked(timeout)


class AsyncRevocation:
    """Whether it is time to finish. Becomes true once and stays so; to be used like an `asyncio.Event`."""

    __slots__ = ("_lease",)

    def __init__(self, lease: AsyncAgentLease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease._is_revoked()  # noqa: SLF001 - two halves of one thing.

    def __bool__(self) -> bool:
        return self.is_set()

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the same as in Revocation.
        """Wait for it, at most `timeout` seconds; whether it is time to finish."""
        return await self._lease.await_revoked(timeout)
