"""Background on an event loop: a coroutine that runs again and again while this member leads its role.

    waiting --led--> running the task --returned--> pausing for `interval` --> waiting ...
                        |-- longer than a lease ----> warned about, once a run
                        |-- its lease was lost -----> cancelled immediately, and waiting again
                        '-- raised -----------------> ended; `wait` raises it

The same as `background.py`, with one addition of the event loop: losing the lease cancels the run automatically.
"""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

from neli_router.core.keyspace import Role
from neli_router.errors import LeaseLost, NeliError
from neli_router.member.async_leading import AsyncBlock, AsyncLease, Bridge
from neli_router.member.background import RUN_MIN, BaseBackground
from neli_router.member.membership import anew

__all__ = ["AsyncBackground", "AsyncTask"]

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
