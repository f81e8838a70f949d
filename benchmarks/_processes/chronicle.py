"""The chronicle: what stood in a ledger, read along while it was written, and what the protocol makes of it.

    ledger --a thread of this process, which is no member--> entries --fold--> history

Members trim their ledger, so whoever wants all of it must read along from the start. While the ledger cannot be read,
the chronicle waits: what is written meanwhile is read when it is back.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from neli_router.closing import Closing
from neli_router.errors import LedgerUnavailable
from neli_router.induction.fold import State, fold
from neli_router.induction.records import Expire, Join, Leave, decode
from neli_router.ledgers.addresses import open_ledger
from neli_router.ledgers.base import Entry, Ledger

__all__ = ["Chronicle", "Departure", "History", "history_of"]

LOOK_EVERY = 0.5
"""The longest wait for a record, and so for the end."""

END_MAX = 60.0
"""Seconds that the opening and `close` wait for a ledger which cannot be read."""

RETRY_EVERY = 0.05


@dataclass(frozen=True, slots=True)
class Departure:
    """A member's end, by a record of this kind that counted."""

    offset: int
    name: str
    kind: type[Expire | Join | Leave]


@dataclass(slots=True)
class History:
    """What the fold says of all records, from the first."""

    state: State
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """(partition, term) -> the name of the member that owned it so."""
    departures: list[Departure] = field(default_factory=list)

    def departed_by(self, kind: type[Expire | Join | Leave]) -> list[str]:
        """Names, in order."""
        return [departure.name for departure in self.departures if departure.kind is kind]


class Chronicle(Closing):
    """Keeps all that is written into the ledger at `address` until `close`, which raises what reading met."""

    def __init__(self, address: str) -> None:
        self._ledger = _opened(address)
        self._entries: list[Entry] = []
        self._over = False
        self._give_up_at = 0.0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="chronicle", daemon=True)
        self._thread.start()

    def close(self) -> Sequence[Entry]:
        """Read to the end, and stop; returns all that was read. Twice is fine."""
        self._give_up_at = time.monotonic() + END_MAX
        self._over = True
        self._ledger.wake()
        self._thread.join()
        self._ledger.close()
        if self._error is not None:
            raise self._error
        return tuple(self._entries)

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
        """The end of the ledger, if it can be told now."""
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


def history_of(entries: Sequence[Entry]) -> History:
    """Fold all of `entries`, which begin with the ledger's first."""
    history = History(State())
    for entry in entries:
        before, record = history.state, decode(entry.payload)
        after = history.state = fold(before, entry.offset, record)
        if after.owners is not before.owners:
            for partition, (owner, term) in enumerate(zip(after.owners, after.terms, strict=True)):
                if owner is not None:
                    history.owners[partition, term] = after.seats[owner].name
        if isinstance(record, Expire | Join | Leave) and after.seats is not before.seats:
            gone = before.seats.keys() - after.seats.keys()
            history.departures += [Departure(entry.offset, before.seats[it].name, type(record)) for it in gone]
    return history
