"""The address of a store of owners, turned into the store. Its client is imported when one is opened, not before.

redis://host:6379/group     also rediss, redis+unix and redis+sentinel: the same forms as a ledger's
"""

from collections.abc import Callable

from neli_router.errors import LedgerUnusable, how_to_install
from neli_router.ledgers.redis import address as redis_address
from neli_router.ownership.base import Owners

__all__ = ["opener", "public_of"]


def opener(url: str) -> Callable[[], Owners]:
    """What makes a store of owners at `url`, which has no problems (`owners_problems`). Raises LedgerUnusable."""
    try:
        from neli_router.ownership.redis import RedisOwners  # noqa: PLC0415 - it may not be installed.
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("redis"):
            raise
        raise LedgerUnusable(
            "redis-py was wanted, for owners in Redis", "it is not installed", how_to_install("redis")
        ) from None
    at = _parsed(url)
    return lambda: RedisOwners(at)


def public_of(url: str) -> str:
    """The address for people: no secrets in it."""
    return _parsed(url).public


def _parsed(url: str) -> redis_address.RedisAddress:
    scheme, _, rest = url.partition(":")
    at, _ = redis_address.parse(scheme, rest)
    assert at is not None, "an address with problems is refused before it is opened"
    return at
