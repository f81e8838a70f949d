"""Leases that an agent's clients hold: the news in the agent's stream, and how much of it may be believed.

                     acquired, and confirmed                       fenced, ended, or another term
    WAITING --------------------------------> HELD ------------------------------------------------> LOST
       ^---- fenced before it was confirmed --'  '-- revoked: finish -- remaining() runs out --> lost without a word

A lease is time, counted by the member inside the agent on the clock of this host. Its rest was true when the agent
worked it out; until we read it, any time may have passed, in the agent, in the socket, or in a program that was
stopped. So the rest in an event is never used. An event only says that there is news: the client then *asks* for the
lease, and counts the rest of the answer from before it asked.

If the stream breaks, the agent is asked for another once. An agent that is gone cannot answer; but then its member is
gone as well, no member hands anything over, and the lease is good until its rest has run out.

A forked child has the objects and not the stream: its leases do not hold. It closes its copy of the stream's socket at
once, or the agent would take the child for a holder when the parent has ended.
"""

import os
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from neli_router.agent.wire import LeaseView
from neli_router.clock import host_clock
from neli_router.errors import Forked, NeliError, NotLeading
from neli_router.keyspace import Role
from neli_router.leases import AsyncRevocation, BaseLease, Revocation

__all__ = ["WAIT_MAX", "AgentLease", "AsyncAgentLease", "AsyncWait", "BaseAgentLease", "Hold", "Wait"]

WAIT_MAX = 3600.0
"""The longest one sleep. The end of a lease notifies no waiter, so a waiter sleeps until then at most."""

Wait = Callable[[Callable[[], bool], float | None], bool]
"""Waits until the first argument is true, at most the second one's seconds; whether it became true."""

AsyncWait = Callable[[Callable[[], bool], float | None], Coroutine[Any, Any, bool]]


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
        """Called at all news, by the thread that tells."""

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

    def patience(self, give_up_at: float) -> float:
        """How long a waiter sleeps before it looks again: the end of a lease wakes no waiter."""
        now = self.clock()
        return max(0.0, min(WAIT_MAX, give_up_at - now, self.end - now if self.end > now else inf))

    def not_leading(self, timeout: float | None) -> NotLeading:
        return NotLeading(
            "leadership was wanted" + ("" if timeout is None else f" within {timeout:g} s"),
            self.why or "the agent's member does not lead it",
            "wait longer, or see with `neli members` and `neli table` who leads and why",
        )


class BaseAgentLease(BaseLease):
    """All that the two forms share: everything but how one waits for the revocation."""

    __slots__ = ("_hold",)

    def __init__(self, hold: Hold) -> None:
        super().__init__(hold.role, hold.partition, hold.term, hold.member, hold.clock)
        self._hold = hold

    @property
    def drain_timeout(self) -> float:
        """Seconds that the successor waits for us, from when the lease is revoked."""
        return self._hold.drain_timeout

    def on_news(self, listener: Callable[[], object]) -> None:
        """Call `listener` whenever the lease was renewed, revoked or lost, on a thread of the client. It must not wait,
        and is not called for a lease that merely runs out."""
        self._hold.listeners += (listener,)

    def _end(self) -> float:
        hold = self._hold
        return -inf if hold.is_lost or os.getpid() != hold.pid else hold.end

    def _is_revoked(self) -> bool:
        return self._hold.is_revoked or not self.holds()

    def _not_here(self, wanted: str) -> NeliError | None:
        if os.getpid() == self._hold.pid:
            return None
        return Forked(wanted, "this process is a fork of the one that holds it", "take one here")

    def _why_lost(self, now: float) -> str:
        hold = self._hold
        if hold.is_lost:
            return f"it was lost: {hold.why}"
        return f"it ended {max(0.0, now - hold.end):.3f} s ago without being renewed"


class AgentLease(BaseAgentLease):
    """The right of this host to act for a role. May be shared between threads; worth nothing in another process."""

    __slots__ = ("_wait",)

    def __init__(self, hold: Hold, wait: Wait) -> None:
        super().__init__(hold)
        self._wait = wait

    @property
    def revoked(self) -> Revocation:
        """Whether it is time to finish: true from when another member shall have the partition, or has it."""
        return Revocation(self._is_revoked, self._wait)


class AsyncAgentLease(BaseAgentLease):
    """An AgentLease whose revocation is awaited. Its questions are plain calls: there is nothing to wait for."""

    __slots__ = ("_wait",)

    def __init__(self, hold: Hold, wait: AsyncWait) -> None:
        super().__init__(hold)
        self._wait = wait

    @property
    def revoked(self) -> AsyncRevocation:
        """Whether it is time to finish: true from when another member shall have the partition, or has it."""
        return AsyncRevocation(self._is_revoked, self._wait)
