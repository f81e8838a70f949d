"""A ledger in Redis: a group's records are one stream, whose order is the order that members agree on.

    append --RedisWriter (a thread), XADD 0-*--> stream GROUP:ledger --XREAD BLOCK--> RedisReader (a thread) --> read
                                                 0-1 0-2 0-3 ...  an offset is the second part

The pump must fence a member in time, so it never waits for Redis, except to open the ledger and to ask where it starts
and ends: it hands records over and takes them. This driver makes sure that

- *silence is not taken for peace*: a read knows when the server last answered, and raises if that was too long ago;
- *lost records are noticed*, even if new ones already stand in their places: `stream.py`;
- *a failover is followed*: the sentinels are asked again for every connection, and a replica is refused;
- *nothing is sent twice*, so nothing is appended twice.

**Promises** depend on how the server is set up:

    INFO, CONFIG GET --> promises: MULTI_HOST, perhaps DURABLE; never NEVER_REWINDS
                     '-> doubts: a sentence for each thing that endangers something

Redis never promises NEVER_REWINDS, because a master acknowledges a record before its replicas have it. So a failover
takes the newest records with it. And a master that is cut off from its sentinels goes on acknowledging to the members
on its side, while the sentinels promote another one. Without replicas, a lost disk is a lost ledger. No setting changes
that, so an `exclusive` group on Redis needs its user to accept rewinds explicitly (`accept_rewinds`). Lost records are
noticed in any case.

An operator may deny INFO and CONFIG to programs. In that case the driver knows nothing, promises nothing, and says so.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from neli_router.drivers.ledgers.base import Entry, Promise, require_not_closed, require_own_process
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import ANSWER_MAX, Link
from neli_router.drivers.ledgers.redis.reader import RedisReader
from neli_router.drivers.ledgers.redis.stream import FIRST, Extent, RecordStream
from neli_router.drivers.ledgers.redis.writer import RedisWriter
from neli_router.errors import LedgerMissing, LedgerUnavailable

__all__ = ["RedisLedger", "delete_stream"]

_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")

_FAILOVER = (
    "Redis copies to its replicas after it has acknowledged: a failover may lose the newest records, and then the "
    "group stops and says so"
)


class RedisLedger:
    """One handle of a group's stream. Used by one thread at a time, except for `wake`.

    `create=False` refuses a stream that does not exist. Redis creates a stream with its first record.
    """

    def __init__(self, address: RedisAddress, *, create: bool = True) -> None:
        self._at = address
        self._process = os.getpid()
        self._closed = False
        self._stream = RecordStream(address)
        self._link: Link | None = Link(address, "the opening", opening=True)
        try:
            extent = self._stream.extent(self._link)
            if not (create or extent.exists):
                raise LedgerMissing(
                    f"the ledger {address.public} was wanted",
                    f"there is no key {self._stream.key.decode()}",
                    "correct the address, or start a member, which makes it",
                )
            self.promises, self.doubts = _examine(self._link)
        finally:
            self._link.close()
            self._link = None
        self._reader = RedisReader(self._stream, extent, f"neli-redis-reader-{address.group}")
        self._writer = RedisWriter(self._stream, self._reader, f"neli-redis-writer-{address.group}")

    promises: frozenset[Promise]
    doubts: tuple[str, ...]

    @property
    def address(self) -> str:
        return self._at.public

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._require_open()
        self._reader.require_sound()
        if payloads:
            self._writer.append(payloads)

    def acknowledged(self) -> list[int]:
        return self._writer.acknowledged()

    def read(self, timeout: float) -> list[Entry]:
        self._require_open()
        return self._reader.read(timeout)

    def age(self) -> float:
        return self._reader.age()

    def seek(self, offset: int) -> None:
        self._reader.seek(max(FIRST, offset))  # Nothing was ever below the first offset, so nothing is missed there.

    def start(self) -> int:
        return self._extent().first

    def tip(self) -> int:
        return self._extent().tip

    def trim(self, before: int) -> None:
        self._require_open()
        self._reader.require_sound()
        self._writer.trim(before)

    def wake(self) -> None:
        if os.getpid() == self._process:  # In a child, a thread that no longer exists may hold the lock.
            self._reader.wake()

    def close(self) -> None:
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._writer.close()
        self._reader.close()
        if self._link is not None:
            self._link.close()

    def _extent(self) -> Extent:
        """Where the stream begins and ends, as of now."""
        self._require_open()
        self._reader.require_sound()
        self._writer.settle(ANSWER_MAX)  # After that, the requested trims are done.
        highest = self._reader.highest
        try:
            self._link = self._link or Link(self._at, "the start and the tip")
            extent = self._stream.extent(self._link)
        except LedgerUnavailable:
            if self._link is not None:
                self._link.close()
            self._link = None
            raise
        if extent.tip <= highest:
            self._reader.fail(self._stream.rewound(f"it ends at {extent.tip}, and offset {highest} was there"))
            self._reader.require_sound()
        self._reader.saw(extent.tip - 1)
        return extent

    def _require_open(self) -> None:
        require_own_process(self.address, self._process)
        require_not_closed(self.address, closed=self._closed)


def delete_stream(address: RedisAddress) -> str:
    """Delete the group's stream with all its records, and return its key. Raises LedgerError.

    This does not touch the table of owners that members keep in Redis, nor the fences.
    """
    stream = RecordStream(address)
    link = Link(address, "the deletion", opening=True)
    try:
        (deleted,) = link.ask(("DEL", stream.key))
    finally:
        link.close()
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
    replicas = 0 if isinstance(replication, ResponseError) else _replicas(_text(replication))
    if replicas or link.at.service:
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


def _replicas(information: str) -> int:
    lines = dict(line.split(":", 1) for line in information.splitlines() if ":" in line)
    return int(lines.get("connected_slaves", "0"))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
