"""Where a router's table comes from, if it is not a ledger: Redis, to which owners tell what they lead.

    Router.from_redis(url) --> Origin --feed(...)--> a feed, empty --read(feed)--> a thread that fills it

A router knows feeds and what fills them, and nothing of Redis, whose client a user may not have.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from neli_router.clock import host_clock
from neli_router.errors import ConfigError
from neli_router.keyspace import Layout
from neli_router.ledgers.addresses import owners_problems
from neli_router.protocol import Notice
from neli_router.router.feed import Feed

__all__ = ["Filler", "Origin", "in_redis"]


class Filler(Protocol):
    """What keeps a feed filled."""

    def close(self) -> None:
        """Stop, and release everything. Twice is fine."""


class Origin(NamedTuple):
    """How to make a feed, and how to begin to fill it, again after each `reopen`."""

    feed: Callable[[Layout | None, float | None, Callable[[Notice], None]], Feed]
    """Of a layout, or None for the one that is found; a `max_age`; and what writes the log."""
    read: Callable[[Feed], Filler]


def in_redis(url: str) -> Origin:
    """The owners in Redis at `url`: see `ledgers/redis/address.py`. Raises ConfigError, LedgerUnusable."""
    if problems := owners_problems("url", url):
        raise ConfigError(problems)
    from neli_router.ownership.opening import opener, public_of  # noqa: PLC0415 - as above.
    from neli_router.router.owners_feed import OwnersFeed  # noqa: PLC0415 - only who reads there pays for it.
    from neli_router.router.owners_reader import Follower  # noqa: PLC0415 - as above.

    open_owners, address = opener(url), public_of(url)
    return Origin(
        lambda layout, max_age, tell: OwnersFeed(address, layout=layout, max_age=max_age, tell=tell),
        lambda feed: Follower(feed, open_owners, clock=host_clock),
    )
