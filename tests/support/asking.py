"""Ledgers on a server, as their drivers' tests use them: through outages, and until a loss is noticed.

No test sleeps and hopes: each waits for the event that must come.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.errors import LedgerError, LedgerRewound, LedgerUnavailable
from tests.support.waiting import PATIENCE, until

__all__ = [
    "Open",
    "append_through_trouble",
    "collected",
    "entries",
    "next_through_trouble",
    "rewinds",
    "settled",
    "take",
    "through_trouble",
    "trouble_of",
    "write",
]

Found = TypeVar("Found")

Open = Callable[..., Ledger]
"""Opens the ledger at an address, which is closed after the test."""


def collected(more: Callable[[], list[Found]], count: int, patience: float = PATIENCE) -> list[Found]:
    """The results of `more`, until there are `count`."""
    found: list[Found] = []
    give_up_at = time.monotonic() + patience
    while len(found) < count and time.monotonic() < give_up_at:
        found += (some := more())
        if not some:
            time.sleep(0.001)
    return found


def through_trouble(more: Callable[[], list[Found]]) -> list[Found]:
    """The first results of `more`, which is tried again and again, like a pump does it."""

    def tried() -> list[Found]:
        with suppress(LedgerUnavailable):
            return more()
        return []

    return until(tried)


def settled(ledger: Ledger, count: int) -> list[int]:
    """The offsets of this handle's next `count` appends, once the ledger has acknowledged them."""
    offsets = collected(ledger.acknowledged, count)
    assert count == len(offsets)
    return offsets


def write(ledger: Ledger, *payloads: bytes) -> list[int]:
    ledger.append(payloads)
    return settled(ledger, len(payloads))


def entries(ledger: Ledger, count: int) -> list[Entry]:
    """The next `count` entries, however many reads that takes."""
    found = collected(lambda: ledger.read(0.5), count)
    assert count == len(found)
    return found


def take(ledger: Ledger, count: int) -> list[bytes]:
    return [entry.payload for entry in entries(ledger, count)]


def next_through_trouble(ledger: Ledger) -> bytes:
    return through_trouble(lambda: ledger.read(0.1))[0].payload


def append_through_trouble(ledger: Ledger, payload: bytes) -> int:
    """Append until an append is confirmed. Returns its offset."""

    def append() -> list[int]:
        ledger.append([payload])
        return collected(ledger.acknowledged, 1, 0.2)

    return through_trouble(append)[0]


def trouble_of(
    act: Callable[[], object], said: str = "", *, kind: type[LedgerError] = LedgerUnavailable
) -> LedgerError:
    """The error that `act` raises sooner or later, with `said` in it."""

    def trouble() -> list[LedgerError]:
        with suppress(LedgerUnavailable):
            try:
                act()
            except kind as error:
                return [error] if said in error.found else []
        return []

    return until(trouble, said or "trouble")[0]


def rewinds(ledger: Ledger) -> str:
    """The evidence with which the ledger notices that it was rewound; nothing may be handed over before that."""

    def look() -> list[str]:
        try:
            assert [] == ledger.read(0.1)
        except LedgerRewound as error:
            return [error.found]
        return []

    (found,) = through_trouble(look)
    for again in (lambda: ledger.read(0), lambda: ledger.append([b"more"]), ledger.tip, ledger.start):
        with pytest.raises(LedgerRewound):
            again()
    return found
