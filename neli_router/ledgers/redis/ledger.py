"""A ledger in Redis: a group's records are one stream, whose order is the order that members agree on.

    append --Writer (a thread), XADD 0-*--> stream GROUP:ledger --XREAD BLOCK--> Feed (a thread) --> read
                                            0-1 0-2 0-3 ...  an offset is the second part

Nobody here ever waits for Redis but to open it and to ask where it starts and ends: the pump, which must fence a member
in time, hands over and takes. What this driver takes care of:

- *Silence is no peace.* A read knows when the server last answered, and raises when that is too long ago.
- *Lost records are found*, also if new ones stand in their places already: `redis_stream.py`.
- *A failover is followed*: the sentinels are asked anew for every connection, and a replica is refused.
- *Nothing is sent twice*, so nothing is appended twice.

What it promises, and what it cannot, follows from how the server is set up: `redis_doubts.py`.
"""

import os
from collections.abc import Sequence

from neli_router.errors import LedgerMissing, LedgerUnavailable
from neli_router.ledgers.base import Entry, Promise, require_not_closed, require_own_process
from neli_router.ledgers.redis.address import RedisAddress
from neli_router.ledgers.redis.doubts import examine
from neli_router.ledgers.redis.feed import Feed
from neli_router.ledgers.redis.link import ANSWER_MAX, Link
from neli_router.ledgers.redis.stream import FIRST, Extent, Stream
from neli_router.ledgers.redis.writer import Writer

__all__ = ["RedisLedger"]


class RedisLedger:
    """One handle of a group's stream. Used by one thread at a time, except for `wake`.

    `create=False` refuses a stream that is not there. Redis makes one with its first record.
    """

    def __init__(self, address: RedisAddress, *, create: bool = True) -> None:
        self._at = address
        self._process = os.getpid()
        self._closed = False
        self._stream = Stream(address)
        self._link: Link | None = Link(address, "the opening", opening=True)
        try:
            extent = self._stream.extent(self._link)
            if not (create or extent.exists):
                raise LedgerMissing(
                    f"the ledger {address.public} was wanted",
                    f"there is no key {self._stream.key.decode()}",
                    "correct the address, or start a member, which makes it",
                )
            self.promises, self.doubts = examine(self._link)
        finally:
            self._link.close()
            self._link = None
        self._feed = Feed(self._stream, extent, f"neli-redis-reader-{address.group}")
        self._writer = Writer(self._stream, self._feed, f"neli-redis-writer-{address.group}")

    promises: frozenset[Promise]
    doubts: tuple[str, ...]

    @property
    def address(self) -> str:
        return self._at.public

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._require_open()
        self._feed.require_sound()
        if payloads:
            self._writer.append(payloads)

    def acknowledged(self) -> list[int]:
        return self._writer.acknowledged()

    def read(self, timeout: float) -> list[Entry]:
        self._require_open()
        return self._feed.read(timeout)

    def age(self) -> float:
        return self._feed.age()

    def seek(self, offset: int) -> None:
        self._feed.seek(max(FIRST, offset))  # Nothing was ever below the first offset, so nothing is missed there.

    def start(self) -> int:
        return self._extent().first

    def tip(self) -> int:
        return self._extent().tip

    def trim(self, before: int) -> None:
        self._require_open()
        self._feed.require_sound()
        self._writer.trim(before)

    def wake(self) -> None:
        if os.getpid() == self._process:  # In a child, a thread that is not there may hold the lock.
            self._feed.wake()

    def close(self) -> None:
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._writer.close()
        self._feed.close()
        if self._link is not None:
            self._link.close()

    def _extent(self) -> Extent:
        """Where the stream begins and ends, as of now."""
        self._require_open()
        self._feed.require_sound()
        self._writer.settle(ANSWER_MAX)  # What was to be trimmed before is gone then.
        highest = self._feed.highest
        try:
            self._link = self._link or Link(self._at, "the start and the tip")
            extent = self._stream.extent(self._link)
        except LedgerUnavailable:
            if self._link is not None:
                self._link.close()
            self._link = None
            raise
        if extent.tip <= highest:
            self._feed.fail(self._stream.rewound(f"it ends at {extent.tip}, and offset {highest} was there"))
            self._feed.require_sound()
        self._feed.saw(extent.tip - 1)
        return extent

    def _require_open(self) -> None:
        require_own_process(self.address, self._process)
        require_not_closed(self.address, closed=self._closed)
