"""Leading on an event loop: waiting that does not hold up the loop, and blocks that end with their lease.

    membership --notified, on any thread--> Bridge --call_soon_threadsafe--> the loop: waiters wake, blocks look
                                                                              |
    block: RUNNING --lease lost: task.cancel()--> CANCELLED --__aexit__--> LeaseLost
              '-- ended by itself --> the lease is checked once more

A block looks when it is notified, and when its lease is to end: the member's thread, which would notify, may be the one
that hangs. It takes its own cancellation back, as `asyncio.timeout` does, so that one from outside is never
swallowed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Any

from neli_router.keyspace import Role
from neli_router.leases import AsyncRevocation
from neli_router.member.barrier import Grant
from neli_router.member.engine import Engine
from neli_router.member.lease import GrantedLease
from neli_router.member.membership import Attempt
from neli_router.member.runtime import WAIT_MAX

__all__ = ["AsyncBlock", "AsyncLease", "Bridge"]

LOOK_MIN = 0.001
"""The least time between two looks at a lease that is about to end."""


class Bridge:
    """From a member's threads to one event loop. All but `wake` belongs to that loop."""

    def __init__(self, engine: Engine, busy: "list[asyncio.Task[Any] | None]") -> None:
        self.engine, self.loop = engine, asyncio.get_running_loop()
        self.blocks: set[AsyncBlock] = set()
        self.busy = busy
        """The tasks that the member's end would wait for: one for each block, and each handler."""
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_waking = False
        engine.membership.changed.tell(self.wake)

    def disconnect(self) -> None:
        self.engine.membership.changed.forget(self.wake)

    def wake(self) -> None:
        """Something changed. From any thread; never waits, never raises."""
        if not self._is_waking:
            self._is_waking = True  # Until the loop has come to it, one call is enough.
            with contextlib.suppress(RuntimeError):  # The loop is closed, and no task waits there any more.
                self.loop.call_soon_threadsafe(self._awake)

    async def until(self, ready: Callable[[], bool], timeout: float | None) -> bool:  # noqa: ASYNC109 - see `wait`.
        """Wait for `ready()`, at most `timeout` seconds; whether it came true. The form that `wait` has on a loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("an AsyncMember belongs to the event loop that opened it, and this is another one")
        self.engine.membership.require_own_process()
        give_up_at = inf if timeout is None else self.loop.time() + timeout
        while not ready():
            patience = min(WAIT_MAX, give_up_at - self.loop.time())
            if patience <= 0:
                return False
            waiter = self.loop.create_future()
            self._waiters.add(waiter)
            timer = self.loop.call_later(patience, _resolve, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        return True

    async def lead(
        self,
        partition: int,
        timeout: float | None,  # noqa: ASYNC109 - as above.
        give_up: Callable[[], bool] = lambda: False,
    ) -> Grant | None:
        """`Membership.lead`. There is no moment between entering and returning at which a cancellation could strike."""
        attempt = Attempt(self.engine.membership, partition, give_up)
        await self.until(attempt.is_over, timeout)
        return attempt.outcome()

    def _awake(self) -> None:
        self._is_waking = False
        for waiter in self._waiters:
            _resolve(waiter)
        for block in list(self.blocks):
            block.look()


class AsyncLease(GrantedLease):
    """A Lease whose revocation is awaited. Its questions are plain calls: there is nothing to wait for."""

    __slots__ = ("_bridge",)

    def __init__(self, bridge: Bridge, grant: Grant, role: Role) -> None:
        super().__init__(bridge.engine.membership, grant, role)
        self._bridge = bridge

    @property
    def revoked(self) -> AsyncRevocation:
        """Whether it is time to finish: true from when another member shall have the partition, or has it."""
        return AsyncRevocation(self._is_revoked, self._bridge.until)


class AsyncBlock:
    """`async with member.leading(role) as lease`: one task's block of work, cancelled when its lease is lost."""

    def __init__(
        self,
        bridge: Bridge,
        role: Role,
        timeout: float | None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._bridge, self._role, self._timeout, self._give_up = bridge, role, timeout, give_up
        self._partition = bridge.engine.settings.layout.partition_of_role(role)
        self._was_lost = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> AsyncLease:
        grant = await self._bridge.lead(self._partition, self._timeout, self._give_up)
        if grant is None:
            raise self._bridge.engine.membership.not_leading(self._partition, self._timeout)
        task = asyncio.current_task()
        assert task is not None, "only a task can await"
        self._grant, self._task, self._cancelling = grant, task, task.cancelling()
        self._lease = AsyncLease(self._bridge, grant, self._role)
        self._bridge.blocks.add(self)
        self._bridge.busy.append(task)
        self._watch()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bridge.blocks.discard(self)
        self._bridge.busy.remove(self._task)
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._was_lost and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise self._lease.lost() from error
            if kind is None:
                self._lease.check()
        finally:
            self._bridge.engine.membership.leave(self._grant)

    def look(self) -> None:
        """Cancel the task if the lease does not hold any more."""
        if not self._was_lost and not self._lease.holds():
            self._was_lost = True
            self._task.cancel(f"{self._lease!r} was lost")

    def _watch(self) -> None:
        # By a timer even if the lease is lost already. A task that cancels itself is cancelled at its next await, and
        # that may stand behind the block.
        patience = max(LOOK_MIN, self._lease.remaining())
        self._timer = self._bridge.loop.call_later(patience, self._look_at_end)

    def _look_at_end(self) -> None:
        self.look()
        if not self._was_lost:
            self._watch()


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
