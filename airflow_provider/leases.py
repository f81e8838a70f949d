"""Leases: a task works under the lease of a role, and the lease's loss ends its work, whatever it is at.

    with holding(hook, role) as lease:       the role is held: its handover waits for the end of the block
        work(term=lease.term)                stopped at once when the lease is lost
        lease.revoked                        true from when another member shall have the role: finish, and leave

    TAKING --led here--> HELD --revoked--> HELD, finishing -------- the block ends --> OVER
       |                   '--- fenced, or run out ---> ENDING         |
       '--led elsewhere--> NotLeadingHere                 |-- the block ends, however --> LeadershipLost
                                                          '-- it does not, for END_MAX --> the process ends, code 75

**How it is stopped.** A task's code sleeps, waits for a process, or reads from a database: it asks nothing. So a thread
watches the lease. It hears of a loss from the client's thread, and of a lease that runs out by its own clock, for the
agent may be dead. Then it sends a signal to the main thread, where Airflow runs all tasks. The kernel breaks off what
waits, and the handler raises LeadershipEnding at that line. A coroutine is cancelled instead.

The signal is SIGURG. Nothing else in Airflow has it, while SIGTERM, SIGALRM and SIGUSR2 are Airflow's own and stay as
they are; and by default it is ignored, so that one that comes late does no harm. The handler passes on all that is not
meant for it: to the block around this one, or to the program's own. A timeout of Airflow may come at any moment, too,
and stays what it is.

**Where it is not stopped.** In the middle of a question to Airflow's supervisor, because the answer would be taken for
that of the next question, and the task's end is one: it is stopped a moment later. In code that never returns to
Python, and in a thread other than the main one: those have `lease.check()`.

**When it goes on nevertheless.** The exception comes again after AGAIN, and after END_MAX the process ends. Stopping is
courtesy: a process that was itself stopped knows nothing. So all that matters carries the lease's term, and the fence
of the table or database refuses it (`neli_router.fence`).
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, _GeneratorContextManager, suppress
from math import inf
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from airflow_provider.exceptions import LeadershipEnding, LeadershipLost, NotLeadingHere
from neli_router.agent.client.leases import AgentLease, Share
from neli_router.core.clock import host_clock
from neli_router.core.exit_codes import EXIT_LOST
from neli_router.core.keyspace import Role
from neli_router.errors import LookupFailed, NeliError, NotLeading
from neli_router.fence import Refused

if TYPE_CHECKING:
    from airflow_provider.hooks.neli import NeliHook
    from neli_router.agent.client.leading import LeadingBlock
    from neli_router.agent.client.streams import Stream

__all__ = ["END_MAX", "HeldBlock", "holding"]

END_MAX = 30.0
"""Seconds from the loss until the process of a task that goes on is ended. More lets slow `finally` blocks clean up,
and lets a zombie work for longer; its writes are refused all the same."""

AGAIN = 10.0
"""Seconds between two exceptions. Less would break off a rollback that is under way; more would let code go on that has
swallowed the first one."""

POKE_EVERY = 0.05
"""Seconds between two signals, until the exception was raised: the first may have come at a moment when it must not."""

START_MAX = 5.0
"""Seconds for taking a role that was led here a moment ago: an agent confirms it within milliseconds. After that, it
counts as lost between the question and the start."""

JOIN_MAX = 1.0
"""Seconds that leaving a block waits for the watching thread, which has nothing left to do."""

SIGNAL = signal.SIGURG

TALKING = "airflow.sdk.execution_time.comms"
"""The module that speaks to Airflow's supervisor."""

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
    """A block of work under the lease of `role`; without one, under a share of `partitions`, or of all that are led.

    Enter it in the main thread. Raises NotLeadingHere before anything begins if this host does not lead it now, and
    LeadershipLost at the end of a block that lost it, in place of the error that the block raised, but for a refused
    fence, which says more, and what is no error (a timeout of Airflow, Ctrl-C). `end_within` says when a lost block
    that goes on ends the process; None, never.
    """
    return HeldBlock(hook, role, None if partitions is None else list(partitions), end_within)


class HeldBlock(Generic[Right]):
    """Of one block. It belongs to the thread that enters it."""

    def __init__(
        self, hook: "NeliHook", role: Role | None, partitions: list[int] | None, end_within: float | None
    ) -> None:
        self._hook, self._role, self._partitions, self._end_within = hook, role, partitions, end_within
        self._cancel: Callable[[], object] | None = None
        """The first way to stop the work, in place of an exception."""
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
        """Hold the role, without watching it yet. Raises NotLeadingHere, NoAgent, or what is wrong with the role."""
        # A question first, because the block alone would wait for as long as another member leads.
        if self._role is not None and self._hook.lease(self._role) is None and (found := self._elsewhere(self._role)):
            raise self._not_leading(found)
        block: Any
        if self._role is not None:
            block = self._hook.leading(self._role, timeout=START_MAX)
        else:
            block = self._hook.share(self._partitions, timeout=START_MAX)
        try:
            right: Right = block.__enter__()
        except NotLeading as error:
            raise self._not_leading(error.found) from error
        self._block, self._right = block, right
        return right

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
        except BaseException:
            self._is_armed = False
            self._leave()
            raise
        return right  # No call from here to the block: a signal could be taken, and its exception miss the block.

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_armed = False  # Before any call, for the same reason.
        lost = self._lost or (None if self._right.holds() else self._right.lost())
        self._leave()
        if lost is None or not self._is_ours(error):
            return
        raise LeadershipLost(lost.wanted, lost.found, lost.remedy) from error or lost

    @property
    def stream(self) -> "Stream[Any] | None":
        """On which the agent holds it: a process with a copy of its connection holds it, too. See `LeadingBlock`."""
        return None if self._block is None else self._block.stream

    def cancel_this_task(self) -> None:
        """Cancel the running task of asyncio at the loss. Without it, an exception would be raised in the loop itself,
        and the coroutine's clean-up could await nothing."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "only a task has a loop that runs"
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)

    def _is_ours(self, error: BaseException | None) -> bool:
        """Whether the block's end is to be told as the loss."""
        if isinstance(error, LeadershipEnding):
            return error is self._ending  # Not that of a block around this one.
        if isinstance(error, LeadershipLost | Refused):
            return False  # They say it already.
        if isinstance(error, asyncio.CancelledError):
            return self._was_cancelled
        return error is None or isinstance(error, Exception | SystemExit)

    def _leave(self) -> None:
        """Take back all that entering did, and give the role back."""
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
        right, was_told = self._right, False
        while right.holds() and not self._over.is_set():
            if not was_told and (right.ending if isinstance(right, Share) else right.revoked):
                was_told = True
                _log.warning("Another member shall have %r: the task has %g s to finish", right, right.drain_timeout)
            self._news.wait(right.remaining())
            self._news.clear()
        if self._over.is_set():
            return
        self._lost = right.lost()
        _log.error("The task is stopped: %s", self._lost)
        give_up_at = inf if self._end_within is None else host_clock() + self._end_within
        self._stop(give_up_at)
        if not self._over.is_set():
            self._end_process(self._lost)

    def _stop(self, give_up_at: float) -> None:
        """Stop the work again and again, until the block ends or it is time to give up."""
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

    def _end_process(self, lost: NeliError) -> NoReturn:
        frame = sys._current_frames().get(self._worker)  # noqa: SLF001 - there is no other way to say where it hangs.
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        late = (
            f"{lost}\n{stack}neli: THE TASK DID NOT STOP within {self._end_within:g} s of this, so its process ends\n"
        )
        # In another thread, because what hangs may be this very writing: nobody reads a full pipe.
        saying = threading.Thread(target=_say, args=(late,), daemon=True)
        saying.start()
        saying.join(JOIN_MAX)
        os._exit(EXIT_LOST)  # Not `sys.exit`: it would end this thread alone.

    # The handler, in the main thread

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_armed and self._is_due and _may_be_stopped(frame):
            self._is_due = False
            self._ending = LeadershipEnding(str(self._lost))
            raise self._ending
        if callable(self._previous):
            self._previous(number, frame)

    # Errors

    def _elsewhere(self, role: Role) -> str:
        """The member that leads `role` in place of this host; empty if this host is to lead it, or no member does."""
        try:
            owner = self._hook.owner_of_role(role)
        except LookupFailed:
            return ""
        if owner.name == self._hook.member():
            return ""
        return f"{owner.name} leads partition {owner.partition}, under term {owner.term}"

    def _not_leading(self, found: str) -> NotLeadingHere:
        what = "a partition" if self._role is None else "the task's role"
        return NotLeadingHere(
            f"this host was to lead {what}",
            found,
            "run the task where it is led, or let it wait; `neli table` shows who leads what",
        )


def _may_be_stopped(frame: FrameType | None) -> bool:
    """Whether an exception may be raised at this place of the main thread."""
    # At the first instruction of the end of a block, its caller's clean-up would be left out.
    if frame is not None and frame.f_code in _ENDS:
        return False
    while frame is not None:
        if frame.f_globals.get("__name__") == TALKING:
            return False
        frame = frame.f_back
    return True


_ENDS = frozenset(one.__code__ for one in (HeldBlock.__exit__, ExitStack.__exit__, _GeneratorContextManager.__exit__))


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # Standard error may be closed.
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.stdout.flush()
