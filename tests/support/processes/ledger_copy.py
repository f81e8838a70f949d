"""A copy of a ledger, made while it is written: members trim theirs, so only reading along yields all of it.

    ledger --a thread of this process, not a member--> entries --history_of--> what the protocol makes of them

While the ledger cannot be read, the copy waits, and continues when it is back.
"""

import threading
import time
from collections.abc import Sequence

from neli_router.core.closing import Closing
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.open import open_ledger
from neli_router.errors import LedgerUnavailable

__all__ = ["LedgerCopy"]

LOOK_EVERY = 0.5
"""The longest wait for a record, and therefore for the end."""

END_MAX = 180.0
"""Seconds that opening and `close` wait for a ledger that cannot be read."""

RETRY_EVERY = 0.05


class LedgerCopy(Closing):
    """Keeps all that is written to the ledger at `address` until `close`, which raises any error met while reading."""

    def __init__(self, address: str) -> None:
        self._ledger = _opened(address)
        self._entries: list[Entry] = []
        self._over = False
        self._give_up_at = 0.0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="ledger-copy", daemon=True)
        self._thread.start()

    @property
    def entries(self) -> Sequence[Entry]:
        """Everything that was read so far."""
        return tuple(self._entries)

    def close(self) -> Sequence[Entry]:
        """Read to the end, stop, and return everything that was read. May be called more than once."""
        self._give_up_at = time.monotonic() + END_MAX
        self._over = True
        self._ledger.wake()
        self._thread.join()
        self._ledger.close()
        if self._error is not None:
            raise self._error
        return self.entries

    def _run(self) -> None:
        try:
            while not self._over:
                self._look()
            while (tip := self._tip()) is None or (self._entries and self._entries[-1].offset + 1 < tip):
                self._look()
        except Exception as error:  # noqa: BLE001 - not to go on: `close` raises it on the thread that asked.
            self._error = error

    def _look(self) -> None:
        try:
            self._entries += self._ledger.read(LOOK_EVERY)
        except LedgerUnavailable:
            if self._over and time.monotonic() >= self._give_up_at:
                raise
            time.sleep(RETRY_EVERY)

    def _tip(self) -> int | None:
        """The end of the ledger, if it can be read now."""
        try:
            return self._ledger.tip()
        except LedgerUnavailable:
            return None


def _opened(address: str) -> Ledger:
    give_up_at = time.monotonic() + END_MAX
    while True:
        try:
            return open_ledger(address, create=True, patience=1.0)
        except LedgerUnavailable:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(RETRY_EVERY)
