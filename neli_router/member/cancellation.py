"""Cancellation: a task that works under a lease is cancelled when the lease is lost.

    RUNNING --lease lost or run out: task.cancel()--> CANCELLED --end--> LeaseLost
       '-- the block ends ---> the lease is checked once more

It checks the lease on request, and when the lease is due to end: the thread or stream that would report the loss may
itself hang. It withdraws its own cancellation, like `asyncio.timeout`, so that a cancellation from outside is never
swallowed.
"""

import asyncio

from neli_router.member.leases import BaseRight

__all__ = ["LeaseCancellation"]

LOOK_MIN = 0.001
"""The minimum time between two checks of a lease that is about to end."""


class LeaseCancellation:
    """Belongs to the task that creates it, for one block of work, and to that task's loop."""

    def __init__(self, lease: BaseRight) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can await"
        self.task, self._lease, self._cancelling = task, lease, task.cancelling()
        self._was_lost = False
        self._watch()

    def look(self) -> None:
        """Cancel the task if the lease no longer holds."""
        if not self._was_lost and not self._lease.holds():
            self._was_lost = True
            self.task.cancel(f"{self._lease!r} was lost")

    def end(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """End the block, perhaps with `error`. Raises LeaseLost if the lease was lost and no other error came first."""
        self._timer.cancel()
        if self._was_lost and self.task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._lease.lost() from error
        if kind is None:
            self._lease.check()

    def _watch(self) -> None:
        # Use a timer even if the lease is lost already. A task that cancels itself is cancelled at its next await, and
        # that may come after the block.
        patience = max(LOOK_MIN, self._lease.remaining())
        self._timer = asyncio.get_running_loop().call_later(patience, self._look_at_end)

    def _look_at_end(self) -> None:
        self.look()
        if not self._was_lost:
            self._watch()
