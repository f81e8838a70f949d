"""A ledger in Redis: a group's records are one stream, whose order is the order that members agree on.

    append --XADD 0-*--> stream GROUP:ledger --XREAD BLOCK--> read
                         0-1 0-2 0-3 ...  an offset is the second part

`asked.py` has the threads, takes no silence for peace, and notices lost records even if new ones already stand in their
places. `stream.py` has the commands. `link.py` follows a failover, and sends nothing twice.

**Promises** depend on how the server is set up. Redis never promises NEVER_REWINDS, because a master acknowledges a
record before its replicas have it. So a failover takes the newest records with it. And a master that is cut off from
its sentinels goes on acknowledging to the members on its side, while the sentinels promote another one. No setting
changes that, so an `exclusive` group on Redis needs its user to accept rewinds explicitly (`accept_rewinds`). Lost
records are noticed in any case.

If an operator denies INFO and CONFIG, the driver promises nothing, and says so.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from redis.exceptions import ResponseError

from neli_router.drivers.ledgers.asked import AskedLedger
from neli_router.drivers.ledgers.base import Promise
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import Link
from neli_router.drivers.ledgers.redis.stream import RecordStream
from neli_router.errors import LedgerMissing

__all__ = ["RedisAppender", "RedisLedger", "delete_stream"]

_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")

_FAILOVER = (
    "Redis copies to its replicas after it has acknowledged: a failover may lose the newest records, and then the "
    "group stops and says so"
)


class RedisLedger(AskedLedger[Link]):
    """One handle of a group's stream.

    `create=False` refuses a stream that does not exist. Redis creates a stream with its first record.
    """

    def __init__(self, address: RedisAddress, *, create: bool = True) -> None:
        stream = RecordStream(address)
        with closing(Link(address, "the opening", opening=True)) as link:
            extent = stream.extent(link)
            if not (create or extent.exists):
                raise LedgerMissing(
                    f"the ledger {address.public} was wanted",
                    f"there is no key {stream.key.decode()}",
                    "correct the address, or start a member, which makes it",
                )
            self.promises, self.doubts = _examine(link)
        super().__init__(stream, extent)


class RedisAppender:
    """See `Appender`."""

    def __init__(self, at: RedisAddress) -> None:
        self._stream, self._link = RecordStream(at), Link(at, "a certificate")
        self.keep, self.close = self._link.require_master, self._link.close

    def append(self, payloads: Sequence[bytes]) -> bool:
        return None not in self._link.ask(*(self._stream.append(one, must_exist=True) for one in payloads))


def delete_stream(address: RedisAddress) -> str:
    """Delete the group's stream with all its records, and return its key. Raises LedgerError.

    This does not touch the table of owners that members keep in Redis, nor the fences.
    """
    stream = RecordStream(address)
    with closing(Link(address, "the deletion", opening=True)) as link:
        (deleted,) = link.ask(("DEL", stream.key))
    key = stream.key.decode()
    if not deleted:
        raise LedgerMissing(
            f"the stream {key} of {address.public} was to be deleted",
            "there is none",
            "correct the address, or there is nothing to do",
        )
    return key


def _examine(link: Link) -> tuple[frozenset[Promise], tuple[str, ...]]:
    """The promises and the doubts of the server that `link` leads to."""
    shared = frozenset() if link.at.path else frozenset({Promise.MULTI_HOST})
    replication, *said = link.try_each([("INFO", "replication"), ("CONFIG", "GET", *_SETTINGS)])
    doubts = []
    if isinstance(said[0], ResponseError):
        doubts.append(
            "how this Redis is set up cannot be seen: let the user run CONFIG GET, or make sure that appendonly is yes "
            "and maxmemory-policy is noeviction"
        )
        settings: Mapping[str, str] = {}
    else:
        settings = {_text(name): _text(value) for name, value in zip(said[0][::2], said[0][1::2], strict=True)}
        doubts += _of_disk(settings) + _of_memory(settings)
    connected = "" if isinstance(replication, ResponseError) else _text(replication)
    if re.search(r"^connected_slaves:0*[1-9]", connected, re.MULTILINE) or link.at.service:
        doubts.append(_FAILOVER)
        if settings.get("min-replicas-to-write") == "0":
            doubts.append(
                "min-replicas-to-write is 0: a master that is cut off from its replicas goes on taking records that "
                "the next failover drops, and members on both sides may lead meanwhile; set it to 1"
            )
    durable = settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always"
    return shared | ({Promise.DURABLE} if durable else set()), tuple(doubts)


def _of_disk(settings: Mapping[str, str]) -> list[str]:
    if settings.get("appendonly") != "yes":
        return ["appendonly is no: a restart loses records, and then the group stops and says so; set it to yes"]
    if (sync := settings.get("appendfsync")) != "always":
        lost = "the records of a second or two" if sync == "everysec" else "all that its host had not written yet"
        return [f"appendfsync is {sync}: a crash may lose {lost}, and then the group stops and says so"]
    return ["one disk has all records: if it is lost without a replica, so is the group's ledger"]


def _of_memory(settings: Mapping[str, str]) -> list[str]:
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") == "0":
        return []
    if policy.startswith("allkeys"):
        return [f"maxmemory-policy is {policy}: Redis may drop the whole ledger for room; set it to noeviction"]
    return [f"maxmemory is {settings['maxmemory']} bytes: when they are full, nothing can be appended"]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
