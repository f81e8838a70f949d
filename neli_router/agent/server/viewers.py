"""Viewers: who is shown the whole status, and how often.

    a change --at most every STATUS_PAUSE--.
                                            +--> version + 1 --ring--> each viewer, which makes what it shows by itself
    the clock --once a second, or less -----'

A status is large, and a takeover of many partitions is many records: so a change only says that there is a newer one,
and however many come at once are shown together. What only time changes, leases left and ages, is shown by the clock;
with many viewers less often, so that all of them together cost what they may cost.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from neli_router.agent.server.channels import Channel

__all__ = ["STATUS_PAUSE", "Viewers"]

STATUS_PAUSE = 0.05
"""The least time between two views of the status."""

STATUS_EVERY = 1.0
"""Between two looks at what only time changes."""

VIEWERS_PER_SECOND = 100
"""How many may be shown that each second."""


class Viewers:
    """Of one hub, on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._viewing: set[Channel] = set()
        self._shown_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._due = -inf
        """When the timer rings. uvloop's timers for what is due already cannot be asked."""
        self.version = 0
        """Another one whenever there is something else to show."""

    @contextmanager
    def viewing(self, channel: Channel) -> Iterator[None]:
        """`channel` is rung when `version` is another."""
        self._viewing.add(channel)
        try:
            yield
        finally:
            self._viewing.discard(channel)

    def changed(self) -> None:
        """Something that people see is different."""
        self._show_after(STATUS_PAUSE)

    def tick(self) -> None:
        """Time has passed."""
        self._show_after(max(STATUS_EVERY, len(self._viewing) / VIEWERS_PER_SECOND))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _show_after(self, pause: float) -> None:
        due = max(self._loop.time(), self._shown_at + pause)
        if not self._viewing or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, self._loop.call_at(due, self._show)

    def _show(self) -> None:
        self._timer, self._shown_at = None, self._loop.time()
        self.version += 1
        for channel in list(self._viewing):
            channel.ring()
