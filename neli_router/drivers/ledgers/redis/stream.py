"""One stream as a ledger: the questions to ask it, and how to interpret the answers.

    0-1  0-2  0-3 ... 0-17  0-18 ...      XADD GROUP:ledger 0-*   the server counts the second part, without holes
                                          an offset is that part

    XREAD  ... 0-16           the anchor 0-17 (`asked.py`) and all above it, if the question need not wait: one command
    XREAD  BLOCK ... 0-17     new entries: the question waits in the server until there is one,
    XRANGE 0-17 0-17          then the anchor, in the same write: with it, the first question would never wait

A program that adds with `*` instead of `0-*` puts the clock's time where our zero is. From then on no member can append
to the stream. That is LedgerUnusable.
"""

import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from neli_router.drivers.ledgers.asked import FIRST, AskedLog, Extent, Found, Sent
from neli_router.drivers.ledgers.base import READ_MAX, Entry
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import Command, Link, code_of, explain
from neli_router.errors import LedgerError, LedgerUnusable

__all__ = ["FIELD", "RecordStream"]

FIELD = b"record"

MASTER_EVERY = 1.0
"""How often to ask whether the server is still a master: a new replica answers as if nothing had happened."""

_MOVED_ON = frozenset({"READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED"})
"""Another server may be the master now: make a new connection."""


class RecordStream(AskedLog[Link]):
    """See `AskedLog`."""

    losses = "a restart of Redis without AOF, a failover, FLUSHALL"
    deleting = "XDEL on its stream"

    def __init__(self, address: RedisAddress) -> None:
        self.address, self.public, self.name = address, address.public, f"redis-{address.group}"
        self.key = f"{address.group}:ledger".encode()
        self.log = f"the stream {self.key.decode()}"

    def connect(self, purpose: str, *, blocked: float = 0.0) -> Link:
        return Link(self.address, purpose, blocked=blocked)

    def ask(self, link: Link, position: int, anchor: Entry | None, wait: float) -> Found:
        asked_at = time.monotonic()
        if asked_at - link.master_at > MASTER_EVERY:
            link.require_master()
        block_ms = int(wait * 1000)
        waiting = ("BLOCK", block_ms) if block_ms else ()
        if anchor is not None and anchor.offset == position - 1 and not waiting:
            (said,) = link.ask(self._above(anchor.offset - 1, READ_MAX + 1))
            entries = self._entries(said)
            is_there = bool(entries) and entries[0].offset == anchor.offset
            return Found(asked_at, entries[is_there:], entries[0] if is_there else None)
        news = self._above(position - 1, READ_MAX, *waiting)
        said, *there = link.ask(news, *(() if anchor is None else (self._at(anchor.offset),)))
        return Found(asked_at, self._entries(said), self._entry(*there[0][0]) if there and there[0] else None)

    def at(self, link: Link, offset: int) -> Entry | None:
        (there,) = link.ask(self._at(offset))
        return self._entry(*there[0]) if there else None

    def append(self, payload: bytes, *, must_exist: bool) -> Command:
        """Add a record. A stream that existed and is gone must not come back with our record as its first."""
        return ("XADD", self.key, *(("NOMKSTREAM",) if must_exist else ()), "0-*", FIELD, payload)

    def send(self, link: Link, batch: Sequence[bytes | int], last: int) -> Sent:
        commands: list[Command] = [
            ("XTRIM", self.key, "MINID", f"0-{one}") if isinstance(one, int) else self.append(one, must_exist=last > 0)
            for one in batch
        ]
        offsets: list[int] = []
        trouble: LedgerError | None = None
        trim_trouble: LedgerError | None = None
        has_trimmed = moved_on = False
        for one, answer in zip(batch, link.try_each(commands), strict=True):
            if isinstance(answer, ResponseError):
                moved_on |= code_of(answer) in _MOVED_ON
                refused = self._refusal(answer)
                if isinstance(one, int):
                    trim_trouble = refused
                elif isinstance(refused, LedgerUnusable):
                    raise refused
                else:
                    trouble = refused
            elif isinstance(one, int):
                trim_trouble, has_trimmed = None, True
            elif answer is None:
                raise self.rewound("it is gone, with all its records")
            else:
                offsets.append(self._offset(answer))
        return Sent(offsets, trouble, trim_trouble, has_trimmed=has_trimmed, moved_on=moved_on)

    def extent(self, link: Link) -> Extent:
        (answer,) = link.try_each([("XINFO", "STREAM", self.key)])
        if isinstance(answer, ResponseError) and "no such key" in str(answer):
            return Extent(FIRST, FIRST, exists=False)
        link.require(answer)
        facts = dict(zip(answer[::2], answer[1::2], strict=True))
        tip = self._offset(facts[b"last-generated-id"]) + 1
        first = facts[b"first-entry"]
        return Extent(tip if first is None else self._offset(first[0]), tip, exists=True)

    def _above(self, offset: int, count: int, *waiting: str | int) -> Command:
        return ("XREAD", "COUNT", count, *waiting, "STREAMS", self.key, f"0-{offset}")

    def _entries(self, said: Any) -> list[Entry]:
        return [] if said is None else [self._entry(*entry) for entry in said[0][1]]

    def _at(self, offset: int) -> Command:
        return ("XRANGE", self.key, f"0-{offset}", f"0-{offset}")

    def _entry(self, place: bytes, fields: list[bytes]) -> Entry:
        named = dict(zip(fields[::2], fields[1::2], strict=False))
        return Entry(self._offset(place), named.get(FIELD, b""))

    def _offset(self, place: bytes) -> int:
        zero, _, offset = place.partition(b"-")
        if zero != b"0":
            raise LedgerUnusable(
                f"the stream {self.key.decode()} with places 0-1, 0-2, 0-3 ... was wanted",
                f"{place.decode()} is in it: another program added to it with `*`",
                "use another group, and let only members write to its stream",
            )
        return int(offset)

    def _refusal(self, error: ResponseError) -> LedgerError:
        if "equal or smaller" in str(error):
            return LedgerUnusable(
                f"the stream {self.key.decode()} with places 0-1, 0-2, 0-3 ... was wanted",
                "its last place has another form: another program added to it with `*`",
                "use another group, and let only members write to its stream",
            )
        return explain(error, self.address, "an append")
