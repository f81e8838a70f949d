"""Stores of owners on a server: what the drivers for Redis and PostgreSQL share.

    table --asks--> server --announces a change--> follow, which waits for its connection, `wake` or the time
                                                     '--hears what has changed

The first use opens a store, and the first use after a failure opens it again. So a failed connection is dropped, and
with it everything that was heard over it and not yet passed on.

Other programs may have the right to write, too. So what is read is checked, as far as a wrong number would harm a
router.
"""

import contextlib
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from neli_router.core.keyspace import Layout
from neli_router.drivers.owners.base import OwnersChange
from neli_router.errors import GroupMismatch, LedgerUnavailable, LedgerUnusable

__all__ = ["PURPOSE", "ServedOwners", "layout_of", "mismatch", "ours", "require_within"]

PURPOSE = "the table of owners"

PARTITIONS_MAX = 2**20
"""The most partitions of a group whose owners are read. A router has a row for each, and one wrong number must not fill
its memory."""

JUNK = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Raised when parsing an entry that none of our members wrote. Deeply nested lists raise the last; ConfigError, for a
layout that cannot be, is a ValueError."""


class ServedOwners(ABC):
    """The owners of one group, without the questions to ask."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._closing = threading.RLock()  # Reentrant, so a signal handler may call `wake` during `close`.
        self._waking: tuple[int, int] | None = os.pipe()
        for descriptor in self._waking:
            os.set_blocking(descriptor, False)  # A full pipe wakes as well as one more byte would.
        self._process = os.getpid()

    def follow(self, timeout: float) -> list[OwnersChange]:
        give_up_at = time.monotonic() + timeout
        if (listening := self._descriptor()) is None:
            raise LedgerUnavailable(f"{PURPOSE} of {self.address} was wanted", "it is not open", "ask for it")
        waiting = select.poll()
        waiting.register(listening, select.POLLIN)
        if self._waking is not None:
            waiting.register(self._waking[0], select.POLLIN)
        while True:
            # First, because news that came with an earlier answer makes no descriptor readable.
            with self._or_dropped():
                heard = self._hear()
            patience = give_up_at - time.monotonic()
            if heard or patience <= 0:
                return heard
            patience = min(patience, self._look_every() or patience)
            rung = [descriptor for descriptor, _ in waiting.poll(patience * 1000)]
            if self._waking is not None and self._waking[0] in rung:
                os.read(self._waking[0], 4096)
                return []

    def wake(self) -> None:
        if os.getpid() != self._process:
            return  # A forked child shares the pipe, and would wake its parent's reader.
        # Under the lock, because the number of a closed descriptor may already stand for another file.
        with self._closing, contextlib.suppress(BlockingIOError):
            if self._waking is not None:
                os.write(self._waking[1], b"!")

    def close(self) -> None:
        self._drop()
        if os.getpid() != self._process:
            return
        with self._closing:
            waking, self._waking = self._waking, None
            for descriptor in waking or ():
                os.close(descriptor)

    @abstractmethod
    def _descriptor(self) -> int | None:
        """Readable when there may be news; None before the first `table`, and after a failure."""

    def _look_every(self) -> float | None:
        """Seconds between two looks of a `follow`; None if its server announces each change."""
        return None

    @abstractmethod
    def _hear(self) -> list[OwnersChange]:
        """The changes that were not returned yet. Waits for none."""

    @abstractmethod
    def _drop(self) -> None:
        """Close all connections. May be called twice."""

    @contextlib.contextmanager
    def _or_dropped(self) -> Iterator[None]:
        try:
            yield
        except (LedgerUnavailable, LedgerUnusable):
            self._drop()
            raise


def layout_of(slots: int, partitions: int, *, tags: bool) -> Layout:
    """The layout of a table. Raises ValueError if no group can have it."""
    if partitions > PARTITIONS_MAX:
        raise ValueError("more partitions than a group can have")
    return Layout(slots=slots, partitions=partitions, tags=tags)


def require_within(layout: Layout | None, partitions: Iterable[int]) -> None:
    """Raises ValueError if one of these partitions is not in the layout."""
    listed = list(partitions)
    if listed and not (layout and 0 <= min(listed) <= max(listed) < layout.partitions):
        raise ValueError(f"partitions {min(listed)} to {max(listed)}")


@contextlib.contextmanager
def ours(wanted: str, places: Iterable[str]) -> Iterator[None]:
    """Raise LedgerUnusable if what is parsed here, from these places, was not written by one of our members."""
    try:
        yield
    except JUNK as error:
        raise LedgerUnusable(
            wanted,
            f"something else stands there ({type(error).__name__}: {error})"[:200],
            f"see who else writes to {', '.join(places)}, and use a group's name of your own",
        ) from error


def mismatch(group: str, slots: int, partitions: int, tags: int) -> GroupMismatch:
    """The error to raise for a claim with another layout than this one, which counts."""
    layout = f"slots={slots}, partitions={partitions}, tags={tags:d}"
    return GroupMismatch(
        f"the owners of the group {group} were to be published",
        f"another group is there, with {layout}, whose terms are not lower",
        "give each group an address of its own",
    )
