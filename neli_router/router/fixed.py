"""A table that a program wrote down: the feed for tests, for tools, and for groups whose owners never change.

    Router.static(owners) --> FixedFeed: the same table at all times --close--> CLOSED

It has no thread and no file, so there is nothing that a fork could break.
"""

import threading

from neli_router.induction.fold import State
from neli_router.router.feed import Feed
from neli_router.router.refusal import At, View
from neli_router.router.table import Table

__all__ = ["FixedFeed"]


class FixedFeed(Feed):
    """Shows `table` for ever. May be shared between threads, and used in a forked child."""

    def __init__(self, table: Table) -> None:
        self._fixed = table
        super().__init__(table.address, layout=table.layout, tell=lambda _: None)
        self._known = State(), table
        self.check()

    @property
    def at(self) -> At:
        return At(self._fixed.offset, 0.0)

    def fork(self) -> None:
        self._changed = threading.Condition()

    def _judge(self) -> View:
        return self._fixed if self._over is None else self._refused(self._over)
