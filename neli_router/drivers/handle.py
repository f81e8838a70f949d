"""The handle: what a member holds of its ledger, its consumer group, its peers or a store of owners.

opened --calls of one thread, and `wake` of any--> closed: every other call raises Closed
"""

from typing import Protocol

__all__ = ["Handle"]


class Handle(Protocol):
    """The part that all ports have. Used by one thread at a time, except for `wake`."""

    @property
    def address(self) -> str:
        """Where it is, for people: contains no secrets."""

    def wake(self) -> None:
        """Make a wait in another thread return within ten milliseconds; if none is waiting, the next one does.

        Callable from any thread, and after `close`.
        """

    def close(self) -> None:
        """Release everything, in bounded time. May be called twice."""
