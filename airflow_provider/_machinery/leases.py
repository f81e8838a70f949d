"""Leases: a task works under the lease of a role, and losing the lease ends its work, whatever it is doing.

    with holding(hook, role) as lease:       the role is held: its handover waits for the end of the block
        work(term=lease.term)                stopped before the lease ends
        lease.revoked                        true as soon as another member is to take the role: finish, and leave

    TAKING --led here--> HELD --revoked--> HELD, finishing ---- the block ends --> OVER
       |                   |                  '-- a margin before the drain timeout ends ---,
       |                   '-- a margin before the lease ends, not renewed; or fenced ---> ENDING
       |                                                                                     |
       |                             LeadershipLost <-- the block ends, however -------------|
       '--led elsewhere--> NotLeadingHere               the process ends, code 75 <-- it does not

**Two steps.** The end of a lease is known in advance: if the agent is gone, it comes when nothing renews the lease, and
a handover comes after the drain timeout. So the work is stopped a margin earlier, and has two thirds of the margin to
clean up. If it still runs then, the process ends: nothing runs past its lease. Where a fence guards all writes, a task
may ask for more time to clean up, by `end_within`.

**How it is stopped.** A task's code sleeps, waits for a process, or reads from a database: it checks nothing. So a
thread watches the lease. It learns of a loss from the client's thread, and the end of a lease from its own clock,
because the agent may be dead. Then it sends a signal to the main thread, where Airflow runs all tasks. The kernel
interrupts the call that waits, and the handler raises LeadershipEnding at that line. A coroutine is cancelled instead.

The signal is SIGWINCH. SIGTERM, SIGALRM and SIGUSR2 are Airflow's own, and SIGURG belongs to Go: a library written in
Go installs its own handler and passes nothing on. SIGWINCH reports a new size of the terminal, and a task has no
terminal. It is ignored by default, so a signal that comes late does no harm. The handler passes on everything that is
not meant for it: to the block around this one, or to the program's own handler. A timeout of Airflow may also come at
any moment, and remains a timeout.

**Where it is not stopped.** In the middle of a request to Airflow's supervisor: the next request would take the pending
answer for its own, and the task's end is such a request. So the task is stopped a moment later. Code that never returns
to Python is not stopped, and neither is any thread but the main one: such threads have `lease.check()`. A library may
also have replaced our handler. In all these cases the process ends in time, unless that code keeps Python's lock.

A process that was itself stopped knows nothing. So everything that matters carries the lease's term, and the fence of
the table or database refuses an old one (`neli_router.fence`).
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, _GeneratorContextManager, suppress
from math import inf
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from airflow.providers.common.compat.sdk import Stats

from airflow_provider.exceptions import LeadershipEnding, LeadershipLost, NotLeadingHere
from neli_router.agent.client.leases import AgentLease, Share
from neli_router.agent.wire import OwnerView
from neli_router.core.clock import host_clock
from neli_router.core.exit_codes import end_now
from neli_router.core.keyspace import Role
from neli_router.errors import LookupFailed, NeliError, NotLeading
from neli_router.fence import Refused
from neli_router.hosts.guardian import margin_of

if TYPE_CHECKING:
    from airflow_provider.hooks.neli import NeliHook
    from neli_router.agent.client.leading import LeadingBlock
    from neli_router.agent.client.transport import Stream

__all__ = ["END_MAX", "HeldBlock", "holding"]

END_MAX = 0.0
"""Seconds from the end of the lease until the process of a task that goes on is ended. More lets slow `finally` blocks
clean up, and lets a zombie work next to its successor: only for tasks whose writes a fence refuses."""

AGAIN = 10.0
"""Seconds between two exceptions, if `end_within` leaves that long. A shorter time would interrupt a rollback that is
under way; a longer time would let code go on that has swallowed the first exception."""

ENDING_PART = 1 / 3
"""The part of the margin that is left when the process is ended: its thread may have to wait for a processor."""

POKE_EVERY = 0.05
"""Seconds between two signals until the exception was raised: the first signal may come at a moment that forbids it."""

START_MIN = 5.0
"""Seconds for taking a role that is led here, or by no member. An agent confirms it within milliseconds; after a death,
the next leader begins within the length of a takeover, if that is more."""

ASK_EVERY = 1.0
"""Seconds between two looks whether another member has begun to lead meanwhile."""

JOIN_MAX = 1.0
"""Seconds to wait, when a block ends, for the watching thread, which has nothing left to do."""

SIGNAL = signal.SIGWINCH

TALKING = "airflow.sdk.execution_time.comms"
"""The module that talks to Airflow's supervisor."""

Right = TypeVar("Right", bound=AgentLease | Share)

_log = logging.getLogger(__name__)


@overload
def holding(hook: "NeliHook", role: Role, *, end_within: float | None = ...) -> "HeldBlock[AgentLease]": ...


@overload
def holding(
    hook: "NeliHook", *, partitions: Iterable[int] | None, end_within: float | None = ...
) -> "HeldBlock[Share]": ...


def holding(
    hook: "NeliHook",
    role: Role | None = None,
    *,
    partitions: Iterable[int] | None = None,
    end_within: float | None = END_MAX,
) -> "HeldBlock[Any]":
    """A block of work under the lease of `role`; without a role, under a share of `partitions`, or of all that are led.

    Enter it in the main thread. Raises NotLeadingHere before anything begins if this host does not lead the role now. A
    block that lost its lease raises LeadershipLost at its end, in place of its own error. Two kinds of errors stay as
    they are: a refused fence, which says more, and what is not an error (a timeout of Airflow, Ctrl-C). `end_within`
    says how long after the end of its lease a block that goes on ends the process; None means never.
    """
    return HeldBlock(hook, role, None if partitions is None else list(partitions), end_within)


class HeldBlock(Generic[Right]):
    """One block of work under a lease. It belongs to the thread that enters it."""

    def __init__(
        self, hook: "NeliHook", role: Role | None, partitions: list[int] | None, end_within: float | None
    ) -> None:
        self._hook, self._role, self._partitions, self._end_within = hook, role, partitions, end_within
        self.tags: dict[str, str] = {}
        """For the metric `neli.lost`."""
        self._cancel: Callable[[], object] | None = None
        """The first way to stop the work, instead of an exception."""
        self._block: LeadingBlock[Right] | None = None
        self._right: Right
        self._news, self._over = threading.Event(), threading.Event()
        self._forget: Callable[[], object] = self._news.clear
        self._thread = threading.Thread(target=self._watch, name="neli-holding", daemon=True)
        self._is_main = self._is_armed = self._is_due = self._was_cancelled = False
        self._previous: Any = None
        self._lost: NeliError | None = None
        self._ending: LeadershipEnding | None = None
        """The last exception that the handler raised."""

    def take(self) -> Right:
        """Hold the role without watching it yet. Raises NotLeadingHere, NoAgent, or the error of an invalid role."""
        began_at, longest = host_clock(), 0.0
        while True:
            # Ask first, because the block alone would wait for as long as another member leads.
            if self._role is not None and self._hook.lease(self._role) is None:
                self._require_no_other(self._role)
            block: Any
            if self._role is not None:
                block = self._hook.leading(self._role, timeout=ASK_EVERY)
            else:
                block = self._hook.share(self._partitions, timeout=START_MIN)
            try:
                self._right = block.__enter__()
            except NotLeading as error:
                longest = longest or max(START_MIN, self._hook.takeover_max())
                if self._role is None or host_clock() >= began_at + longest:
                    refusal = self._not_leading(error.found)
                    refusal.nobody_leads = self._role is not None
                    raise refusal from error
            else:
                self._block = block
                return self._right

    def __enter__(self) -> Right:
        right = self._right if self._block is not None else self.take()
        try:
            self._worker = threading.get_ident()
            self._is_main = self._worker == threading.main_thread().ident
            self._forget = right.on_news(self._news.set)
            if self._is_main:
                self._previous = signal.signal(SIGNAL, self._on_signal)
            self._is_armed = True
            self._thread.start()
            _log.info("The task works under %r", right)
        except BaseException:
            self._is_armed = False
            self._leave()
            raise
        return right  # No call from here to the block: a signal's exception would miss the block.

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_armed = False  # Before any call, for the same reason.
        lost = self._lost
        if lost is None and not self._right.holds():
            lost = self._lose()
        self._leave()
        _log.info("The task has given back %r", self._right)
        if lost is None or not self._is_ours(error):
            return
        raise LeadershipLost(lost.wanted, lost.found, lost.remedy) from error or lost

    @property
    def stream(self) -> "Stream[Any] | None":
        """The stream on which the agent holds the role. A process with a copy of its connection holds it, too. See
        `LeadingBlock`."""
        return None if self._block is None else self._block.stream

    def cancel_this_task(self) -> None:
        """On a loss, cancel the running asyncio task. Otherwise the exception would be raised in the loop itself, and
        the coroutine could await nothing in its clean-up."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "only a task has a loop that runs"
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)

    def _is_ours(self, error: BaseException | None) -> bool:
        """Whether the block's end counts as the loss of the lease."""
        if isinstance(error, LeadershipEnding):
            return error is self._ending  # Not the one of a block around this one.
        if isinstance(error, LeadershipLost | Refused):
            return False  # They already say it.
        if isinstance(error, asyncio.CancelledError):
            return self._was_cancelled
        return error is None or isinstance(error, Exception | SystemExit)

    def _leave(self) -> None:
        """Undo everything that entering did, and give the role back."""
        self._over.set()
        self._news.set()
        if self._is_main and self._previous is not None and signal.getsignal(SIGNAL) == self._on_signal:
            signal.signal(SIGNAL, self._previous)
        self._forget()
        if self._block is not None:
            self._block.close()
        if self._thread.ident is not None:
            self._thread.join(JOIN_MAX)

    # The thread that watches

    def _watch(self) -> None:
        right, longest, end, drained_at = self._right, 0.0, 0.0, inf
        while True:
            now, rest = host_clock(), right.remaining()
            if rest:  # If it is reported as lost, a successor still waits for the end that was known.
                longest, end = max(longest, rest), now + rest
            if rest and drained_at == inf and (right.ending if isinstance(right, Share) else right.revoked):
                drained_at = now + right.drain_timeout
                _log.warning("Another member is to take %r: the task has %g s to finish", right, right.drain_timeout)
            # The drain timeout began a moment before we heard of it: that is covered by the margin, too.
            until, span = min((end, longest), (drained_at, right.drain_timeout))
            margin = margin_of(span)
            if not rest or now >= until - margin:
                break
            self._news.wait(until - margin - now)
            self._news.clear()
            if self._over.is_set():
                return
        almost = "its drain timeout is almost over" if drained_at < end else "nothing renewed it in time"
        _log.error("The task is stopped: %s", self._lose(almost if rest else ""))
        give_up_at = inf
        if self._end_within is not None:
            give_up_at = until - margin * ENDING_PART + self._end_within
        self._stop(give_up_at)
        if not self._over.is_set():
            late = "THE TASK DID NOT STOP before the end of its lease, so its process ends"
            end_now(late, lost=self._lost, hanging=self._worker)

    def _lose(self, why: str = "") -> NeliError:
        """Count the loss, also of a process that will end before its block does."""
        self._lost = lost = self._right.lost(why=why)
        # In a thread of its own: neither an error nor a slow network may keep the task from being stopped.
        with suppress(RuntimeError):  # No more threads can be started.
            threading.Thread(target=Stats.incr, args=("neli.lost",), kwargs={"tags": self.tags}, daemon=True).start()
        return lost

    def _stop(self, give_up_at: float) -> None:
        """Stop the work, again and again, until the block ends or it is time to give up."""
        cancel = self._cancel
        while not self._over.is_set() and host_clock() < give_up_at:
            if cancel is not None:
                self._was_cancelled = True
                with suppress(RuntimeError):  # Its loop is closed.
                    cancel()
                cancel = None
            elif self._is_main:
                self._is_due = True
                while self._is_due and not self._over.is_set() and host_clock() < give_up_at:
                    signal.pthread_kill(self._worker, SIGNAL)
                    self._over.wait(POKE_EVERY)
            self._over.wait(max(0.0, min(AGAIN, give_up_at - host_clock())))

    # The handler, in the main thread

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_armed and self._is_due and _may_be_stopped(frame):
            self._is_due = False
            self._ending = LeadershipEnding(str(self._lost))
            raise self._ending
        if callable(self._previous):
            self._previous(number, frame)

    # Errors

    def _require_no_other(self, role: Role) -> None:
        """Raises NotLeadingHere if another member leads `role`, rather than this host, or no member."""
        try:
            owner, here, _ = self._hook.leader(role)
        except LookupFailed:
            return
        if owner.name != here:
            found = f"{owner.name} leads partition {owner.partition}, under term {owner.term}"
            raise self._not_leading(found, owner)

    def _not_leading(self, found: str, leader: OwnerView | None = None) -> NotLeadingHere:
        what = "a partition" if self._role is None else "the task's role"
        error = NotLeadingHere(
            f"this host was to lead {what}",
            found,
            "run the task where it is led, or let it wait; `neli table` shows who leads what",
        )
        error.leader = leader
        return error


def _may_be_stopped(frame: FrameType | None) -> bool:
    """Whether an exception may be raised at this point of the main thread."""
    # At the first instruction of the end of a block, its caller's clean-up would be skipped.
    if frame is not None and frame.f_code in _ENDS:
        return False
    while frame is not None:
        if frame.f_globals.get("__name__") == TALKING:
            return False
        frame = frame.f_back
    return True


_ENDS = frozenset(one.__code__ for one in (HeldBlock.__exit__, ExitStack.__exit__, _GeneratorContextManager.__exit__))
