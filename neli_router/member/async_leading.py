"""Leading on an event loop: waiting that does not block the loop, and blocks that end with their lease.

    membership --notified, on any thread--> Bridge --call_soon_threadsafe--> the loop: waiters wake, blocks look

A block is cancelled when its lease is lost, and then raises LeaseLost (see `cancellation`). A background task is the
same as in `background.py`, with one addition of the event loop: losing the lease cancels the run immediately.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from math import inf
from types import TracebackType
from typing import Any

from neli_router.core.keyspace import Role
from neli_router.errors import LeaseLost, NeliError
from neli_router.member.background import RUN_MIN, BaseBackground
from neli_router.member.barrier import Period
from neli_router.member.cancellation import LeaseCancellation
from neli_router.member.engine import Engine
from neli_router.member.leases import AsyncRevocation
from neli_router.member.membership import Attempt, MemberLease, anew
from neli_router.member.runtime import WAIT_MAX

__all__ = ["AsyncBackground", "AsyncBlock", "AsyncLease", "AsyncTask", "Bridge"]

TURNS_MAX = 1000
"""How many turns of a test's clock, each a heartbeat long, a wait takes while the loop's other tasks run in between."""


class Bridge:
    """From a member's threads to one event loop. Everything except `wake` belongs to that loop."""

    def __init__(self, engine: Engine, busy: "list[asyncio.Task[Any] | None]") -> None:
        self.engine, self.loop = engine, asyncio.get_running_loop()
        self.blocks: set[LeaseCancellation] = set()
        self.busy = busy
        """The tasks that the member's end would wait for: one for each block and each handler."""
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_waking = False
        engine.membership.changed.tell(self.wake)

    def disconnect(self) -> None:
        self.engine.membership.changed.forget(self.wake)

    def wake(self) -> None:
        """Report that something changed. May be called from any thread; never waits, never raises."""
        if not self._is_waking:
            self._is_waking = True  # One call is enough until the loop has handled it.
            with contextlib.suppress(RuntimeError):  # The loop is closed, so no task waits on it any longer.
                self.loop.call_soon_threadsafe(self._awake)

    async def until(self, ready: Callable[[], bool], timeout: float | None) -> bool:  # noqa: ASYNC109 - see `wait`.
        """Wait for `ready()`, at most `timeout` seconds; return whether it became true. This is `wait` for a loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("an AsyncMember belongs to the event loop that opened it, and this is another one")
        self.engine.membership.require_own_process()
        if self.engine.runtime.is_turned:
            return await self._turned(ready, timeout)
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

    async def _turned(self, ready: Callable[[], bool], timeout: float | None) -> bool:  # noqa: ASYNC109 - as above.
        """The same in a test, where waiting turns the clock: in small steps, so that other tasks run in between."""
        runtime, changed = self.engine.runtime, self.engine.membership.changed
        give_up_at = inf if timeout is None else runtime.clock() + timeout
        for _ in range(TURNS_MAX):
            if runtime.wait(changed, ready, min(self.engine.beat_every, give_up_at - runtime.clock())):
                return True
            if runtime.clock() >= give_up_at:
                return False
            await asyncio.sleep(0)
        return runtime.wait(changed, ready, timeout)  # Without a timeout, this raises an error if the wait fails.

    async def lead(
        self,
        partition: int,
        timeout: float | None,  # noqa: ASYNC109 - as above.
        give_up: Callable[[], bool] = lambda: False,
    ) -> Period | None:
        """`Membership.lead` for a loop. A cancellation cannot strike between entering and returning."""
        attempt = Attempt(self.engine.membership, partition, give_up)
        await self.until(attempt.is_over, timeout)
        return attempt.outcome()

    def _awake(self) -> None:
        self._is_waking = False
        for waiter in self._waiters:
            _resolve(waiter)
        for block in list(self.blocks):
            block.look()


class AsyncLease(MemberLease):
    """A Lease whose revocation can be awaited. Its other methods are plain calls: they have nothing to wait for."""

    __slots__ = ("_bridge",)

    def __init__(self, bridge: Bridge, period: Period, role: Role) -> None:
        super().__init__(bridge.engine.membership, period, role)
        self._bridge = bridge

    @property
    def revoked(self) -> AsyncRevocation:
        """Whether it is time to finish: true once another member is to get the partition, or has it."""
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
        self._partition = bridge.engine.config.layout.partition_of_role(role)

    async def __aenter__(self) -> AsyncLease:
        period = await self._bridge.lead(self._partition, self._timeout, self._give_up)
        if period is None:
            raise self._bridge.engine.membership.not_leading(self._partition, self._timeout)
        self._period, lease = period, AsyncLease(self._bridge, period, self._role)
        self._cancellation = LeaseCancellation(lease)
        self._bridge.blocks.add(self._cancellation)
        self._bridge.busy.append(self._cancellation.task)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bridge.blocks.discard(self._cancellation)
        self._bridge.busy.remove(self._cancellation.task)
        try:
            self._cancellation.end(kind, error)
        finally:
            self._bridge.engine.membership.leave(self._period)


AsyncTask = Callable[[AsyncLease], Awaitable[object]]
"""The function to run; it gets its lease. Its result is ignored."""


class AsyncBackground(BaseBackground):
    """The handle of a background task. Belongs to the loop; the task may use it, too."""

    def __init__(self, bridge: Bridge, task: AsyncTask, role: Role, *, interval: float) -> None:
        super().__init__(bridge.engine, role, interval)
        self._bridge, self._task = bridge, task
        self._runner = asyncio.create_task(self._run(), name=f"{bridge.engine.name}-background")

    def on_end(self, tell: "Callable[[AsyncBackground], object]") -> None:
        """Call the function with this handle when the task has ended."""
        self._runner.add_done_callback(lambda _: tell(self))

    @property
    def running(self) -> bool:
        """Whether the task may run again: it was not stopped, has not failed, and the member is alive."""
        return not self._runner.done()

    def stop(self) -> None:
        """Start no further run. Does not wait for a run in progress; `wait` does."""
        self._stopping = True
        self._bridge.wake()

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the same as in Background.
        """Wait, at most `timeout` seconds, until the task will never run again; return whether that is so.

        Each call raises what the task raised, or what ended the member.
        """
        done, _ = await asyncio.wait({self._runner}, timeout=timeout)
        if self._error is not None:
            raise anew(self._error)
        return bool(done)

    async def _run(self) -> None:
        try:
            while not self._is_over():
                try:
                    async with AsyncBlock(self._bridge, self._role, None, lambda: self._stopping) as lease:
                        await self._run_once(lease)
                except LeaseLost:
                    self._note("warning", "background.lease_lost")
                await self._bridge.until(self._is_over, max(RUN_MIN, self._interval))
        except NeliError:
            pass  # The task was stopped, or the member has ended; if by an error, `finally` takes that error.
        finally:
            self._error = self._error or self._membership.error
            self._engine.neglect(self._look)

    async def _run_once(self, lease: AsyncLease) -> None:
        self._began = self._membership.clock()
        try:
            await self._task(lease)
        except Exception as error:
            if isinstance(error, LeaseLost) and not lease.holds():
                raise
            self._fail(error)
        finally:
            self._began = inf


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
