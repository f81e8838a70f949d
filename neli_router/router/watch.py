"""Watching: the changes of the table, for programs that follow them at their own pace.

    each new table --put--> [ change | change | ... ]  --take--> the program, one at a time
                              at most CHANGES_MAX
                              one more: all are dropped, and a Gap says so --> the program reads `router.table` again

A slow follower must neither hold up the thread that reads the ledger nor fill the memory. A queue that drops only its
oldest changes would silently hand out changes to a state that the program never saw. So the queue drops everything, and
reports how many changes that was and up to which table.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from neli_router.core.closing import Closing
from neli_router.errors import NeliError
from neli_router.router.table import Owner, Table

__all__ = ["CHANGES_MAX", "Change", "Gap", "Watch", "changes"]

CHANGES_MAX = 16384
"""The most changes that wait to be taken: several whole tables of the usual size. Raising it costs memory while a
watcher is slow. Lowering it below a group's number of partitions turns every change of all partitions into a gap."""


class Change(NamedTuple):
    """A partition has another owner, or the same owner under a new term. None stands for no owner."""

    partition: int
    before: Owner | None
    after: Owner | None
    offset: int
    """The first table with this change is the one at this offset."""


@dataclass(frozen=True, slots=True)
class Gap:
    """This watcher was too slow, and `missed` changes were dropped. Read `router.table`; the next change is newer."""

    missed: int
    offset: int
    """All changes up to the table at this offset were dropped."""


def changes(before: Table | None, after: Table) -> list[Change]:
    """The partitions that have another owner in `after`."""
    old = (None,) * len(after.partitions) if before is None else before.partitions
    return [
        Change(partition, was, now, after.offset)
        for partition, (was, now) in enumerate(zip(old, after.partitions, strict=True))
        if was is not now and was != now
    ]


class Watch(Closing, Iterator[Change | Gap]):
    """The changes after `table`. Iterating waits for the next one, and ends when this watch or its router is closed.

    May be shared between threads; each change goes to one of them. Raises the errors that look-ups raise when the
    router stopped for an error or was forked away.
    """

    def __init__(self, table: Table | None, *, tell: Callable[[], None] | None = None) -> None:
        self.table = table
        """The table that the first change starts from; None if there was none yet."""
        self._tell = tell
        self._queue: deque[Change | Gap] = deque()
        self._changed = threading.Condition()
        self.is_closed = False
        """Whether further changes are refused."""
        self._why: Callable[[], NeliError] | None = None

    def take(self, timeout: float | None = None) -> Change | Gap | None:
        """The next change; None if there was none for `timeout` seconds, or if this watch or its router is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self.is_closed, timeout)
            if self._queue:
                return self._queue.popleft()
            if self._why is not None:
                raise self._why()
            return None

    def __next__(self) -> Change | Gap:
        taken = self.take()
        if taken is None:
            raise StopIteration
        return taken

    def close(self) -> None:
        """Stop watching; changes that were not taken are dropped. May be called twice."""
        with self._changed:
            self._queue.clear()
        self.end()

    # For the feed.

    def put(self, changed: Iterable[Change]) -> None:
        """Add changes, in order. Never waits."""
        with self._changed:
            if self.is_closed:
                return
            self._queue.extend(changed)
            if len(self._queue) > CHANGES_MAX:
                last = self._queue[-1]
                missed = sum(one.missed if isinstance(one, Gap) else 1 for one in self._queue)
                self._queue = deque([Gap(missed, last.offset)])
            self._changed.notify_all()
        self._wake()

    def end(self, why: Callable[[], NeliError] | None = None) -> None:
        """No further changes follow: once the last is taken, iterating ends, or raises `why()`."""
        with self._changed:
            if not self.is_closed:
                self.is_closed, self._why = True, why
            self._changed.notify_all()
        self._wake()

    def fork(self) -> None:
        """Called in a child of a fork: the lock may be held by a thread that does not exist here."""
        self._changed = threading.Condition()
        self._queue.clear()

    def _wake(self) -> None:
        if self._tell is not None:
            self._tell()
