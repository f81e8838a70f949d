"""Cancellation: a task that works under a lease is cancelled when the lease is lost.

    RUNNING --lease lost or run out: task.cancel()--> CANCELLED --end--> LeaseLost
       '-- ended by itself --> the lease is checked once more

It looks when it is asked to, and when the lease is to end: the thread or the stream that would tell of the loss may be
the one that hangs. It takes its own cancellation back, as `asyncio.timeout` does, so that one from outside is never
swallowed.
"""

import asyncio

from neli_router.member.leases import BaseRight

__all__ = ["LeaseCancellation"]

LOOK_MIN = 0.001
"""The least time between two looks at a lease that is about to end."""


class LeaseCancellation:
    """Of the task that makes it, for one block of work. Belongs to the task's loop."""

    def __init__(self, lease: BaseRight) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can await"
        self.task, self._lease, self._cancelling = task, lease, task.cancelling()
        self._was_lost = False
        self._watch()

    def look(self) -> None:
        """Cancel the task if the lease does not hold any more."""
        if not self._was_lost and not self._lease.holds():
            self._was_lost = True
            self.task.cancel(f"{self._lease!r} was lost")

    def end(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """The block ends, perhaps with `error`. Raises LeaseLost if it was lost, unless another error goes first."""
        self._timer.cancel()
        if self._was_lost and self.task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._lease.lost() from error
        if kind is None:
            self._lease.check()

    def _watch(self) -> None:
        # By a timer even if the lease is lost already. A task that cancels itself is cancelled at its next await, and
        # that may stand behind the block.
        patience = max(LOOK_MIN, self._lease.remaining())
        self._timer = asyncio.get_running_loop().call_later(patience, self._look_at_end)

    def _look_at_end(self) -> None:
        self.look()
        if not self._was_lost:
            self._watch()
