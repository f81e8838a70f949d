"""One stream as a ledger: the questions to ask it, and how to interpret the answers.

    0-1  0-2  0-3 ... 0-17  0-18 ...      XADD GROUP:ledger 0-*   the server counts the second part, without holes
                       ^anchor  ^next     an offset is that part

**The anchor.** A server may come back without its newest records (a restart without AOF, a failover), and may since
have got enough new ones that its tip is above everything that was read. Then no offset goes back. So the reader keeps
the entry with the highest offset that it read. It asks for that entry again *after* each question for new entries, in
the same write. New entries count only if the anchor is there and unchanged. No two records of members have the same
bytes. An anchor that is gone was trimmed, or everything was lost: the first offset that is left and the last one ever
given show which.

    XREAD  ... 0-17      new entries
    XRANGE 0-17 0-17     the anchor  --same-----------------------> all is well
                                     --different------------------> LedgerRewound
                                     --none-- XINFO: last < 0-17 --> LedgerRewound
                                                     first > 0-17 --> trimmed, and harmless
                                                     neither ------> it was deleted: LedgerUnusable

A program that adds with `*` instead of `0-*` puts the clock's time where our zero is. From then on no member can append
to the stream. That is LedgerUnusable, too.
"""

from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from neli_router.drivers.ledgers.base import READ_MAX, Entry, trimmed
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import Command, Link
from neli_router.errors import LedgerRewound, LedgerUnusable

__all__ = ["FIELD", "FIRST", "Extent", "RecordStream"]

FIRST = 1
"""The first offset that `0-*` gives."""

FIELD = b"record"


class Extent(NamedTuple):
    """The records that a stream holds: `first` to `tip` - 1; none if the two are equal. `exists` is false if there is
    no key."""

    first: int
    tip: int
    exists: bool


class RecordStream:
    """The questions to one group's stream, and the interpretation of the answers. Holds no state."""

    def __init__(self, at: RedisAddress) -> None:
        self.at = at
        self.key = f"{at.group}:ledger".encode()

    def append(self, payload: bytes, *, must_exist: bool) -> Command:
        """Add a record. A stream that existed and is gone must not come back with our record as its first."""
        return ("XADD", self.key, *(("NOMKSTREAM",) if must_exist else ()), "0-*", FIELD, payload)

    def trim(self, before: int) -> Command:
        return ("XTRIM", self.key, "MINID", f"0-{before}")

    def news(self, position: int, *, block_ms: int) -> Command:
        """Ask for the entries at `position` and above; wait for the first of them."""
        waiting = ("BLOCK", block_ms) if block_ms else ()
        return ("XREAD", "COUNT", READ_MAX, *waiting, "STREAMS", self.key, f"0-{position - 1}")

    def anchor(self, anchor: Entry) -> Command:
        return ("XRANGE", self.key, f"0-{anchor.offset}", f"0-{anchor.offset}")

    def entries(self, answer: Any) -> list[Entry]:
        """The entries in the answer to `news`."""
        return [] if answer is None else [self._entry(*said) for said in answer[0][1]]

    def offset(self, place: bytes) -> int:
        zero, _, offset = place.partition(b"-")
        if zero != b"0":
            raise LedgerUnusable(
                f"the stream {self.key.decode()} with places 0-1, 0-2, 0-3 ... was wanted",
                f"{place.decode()} is in it: another program added to it with `*`",
                "use another group, and let only members write to its stream",
            )
        return int(offset)

    def extent(self, link: Link) -> Extent:
        """The extent as of now. Raises LedgerUnavailable or LedgerUnusable."""
        (answer,) = link.try_each([("XINFO", "STREAM", self.key)])
        if isinstance(answer, ResponseError) and "no such key" in str(answer):
            return Extent(FIRST, FIRST, exists=False)
        link.require(answer)
        facts = dict(zip(answer[::2], answer[1::2], strict=True))
        tip = self.offset(facts[b"last-generated-id"]) + 1
        first = facts[b"first-entry"]
        return Extent(tip if first is None else self.offset(first[0]), tip, exists=True)

    def require_anchor(self, link: Link, anchor: Entry | None, answer: Any, highest: int) -> Extent | None:
        """Raise LedgerRewound unless the stream is still the one that `anchor` was read from, or that reached
        `highest`. `answer` is the answer to the question for the anchor. Returns the extent, if it was asked for."""
        if anchor is not None and answer:
            there = self._entry(*answer[0])
            if there.payload == anchor.payload:
                return None
            raise self.rewound(f"the record at offset {anchor.offset} is not the one that was read there")
        extent = self.extent(link)
        if extent.tip <= highest:
            lost = f"it ends at {extent.tip}" if extent.exists else "it is gone"
            raise self.rewound(f"{lost}, and there was a record at offset {highest}")
        if anchor is not None and anchor.offset >= extent.first:
            raise self._holed(anchor.offset)
        return extent

    def require_whole(self, link: Link, position: int, entries: list[Entry], extent: Extent | None) -> None:
        """Raise LedgerTrimmed or LedgerUnusable unless `entries` are the entries that begin at `position`."""
        if not entries and extent is None:
            return  # The anchor is there, and nothing is above it: see the module's docstring.
        for expected, entry in enumerate(entries, start=position):
            if entry.offset != expected:
                extent = extent or self.extent(link)
                if position >= extent.first:
                    raise self._holed(expected)
                break
        if extent is not None and position < extent.first and not (entries and entries[0].offset == position):
            raise trimmed(self.at.public, extent.first, position)

    def rewound(self, found: str) -> LedgerRewound:
        return LedgerRewound(
            f"the ledger {self.at.public} with all its records was wanted",
            found,
            "stop every member of the group, find out what Redis lost (a restart without AOF, a failover, FLUSHALL), "
            "and start them again",
        )

    def _entry(self, place: bytes, fields: list[bytes]) -> Entry:
        named = dict(zip(fields[::2], fields[1::2], strict=False))
        return Entry(self.offset(place), named.get(FIELD, b""))

    def _holed(self, offset: int) -> LedgerUnusable:
        return LedgerUnusable(
            f"the stream {self.key.decode()} without holes was wanted",
            f"the record at offset {offset} is missing: it was deleted",
            "use a new group, and let no program use XDEL on its stream",
        )
