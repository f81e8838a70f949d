"""An inspection: what a ledger says about its group, to a reader that takes no part in the group.

    ledger --read up to the tip of now--> is there a group? its members, partitions and settings
           --read on for some seconds---> the name of a member that wrote in that time, or None

`neli doctor` and `neli group delete` ask it. Nothing is appended. A wish is no sign of life, because an operator can
write one when no member is left.
"""

from collections.abc import Callable

from neli_router.clock import host_clock
from neli_router.errors import GroupMismatch
from neli_router.induction.admission import mismatch
from neli_router.induction.fold import fold
from neli_router.induction.records import Beat, Expire, Genesis, Handover, Join, Leave, Snapshot, decode
from neli_router.ledgers.base import Ledger
from neli_router.protocol import Settings
from neli_router.pump import newest_state

__all__ = ["Inspection"]

READ_MAX_SECONDS = 0.5

BY_MEMBERS = Join | Beat | Expire | Handover | Leave | Genesis | Snapshot


class Inspection:
    """Reads `ledger` to its tip, and stays there: the caller reads nothing from it meanwhile. Raises LedgerError."""

    def __init__(self, ledger: Ledger) -> None:
        state = newest_state(ledger)
        ledger.seek(state.at)
        tip = ledger.tip()
        # Up to the tip of now: a busy group always writes more, and `living` will notice that.
        while state.at < tip and (entries := ledger.read(READ_MAX_SECONDS)):
            for entry in entries:
                state = fold(state, entry.offset, decode(entry.payload))
        self._ledger, self._state = ledger, state

    @property
    def is_founded(self) -> bool:
        """Whether there is a group at all."""
        return self._state.genesis is not None

    @property
    def records(self) -> int:
        return self._state.at

    @property
    def lease(self) -> float | None:
        """The group's, in seconds; None before there is a group."""
        return None if self._state.genesis is None else self._state.genesis.lease

    @property
    def members(self) -> list[str]:
        """The names of the members at the last record. They may have died since."""
        return sorted(seat.name for seat in self._state.seats.values())

    @property
    def partitions(self) -> int:
        return len(self._state.owners)

    @property
    def unowned(self) -> int:
        """Partitions without an owner."""
        return sum(owner is None for owner in self._state.owners)

    def mismatch(self, settings: Settings) -> GroupMismatch | None:
        """Why a member with `settings` may not join this group, if there is a reason."""
        return mismatch(settings, self._state)

    def living(self, seconds: float, *, name: str | None = None, clock: Callable[[], float] = host_clock) -> str | None:
        """The name of a member that writes within `seconds`, or None; with `name`, only a member of that name counts.

        Raises LedgerError.
        """
        give_up_at = clock() + seconds
        while (left := give_up_at - clock()) > 0:
            for entry in self._ledger.read(min(left, READ_MAX_SECONDS)):
                record = decode(entry.payload)
                self._state = fold(self._state, entry.offset, record)
                if isinstance(record, BY_MEMBERS):
                    seat = self._state.seats.get(record.by)
                    writer = record.by if seat is None else seat.name
                    if name is None or writer == name:
                        return writer
        return None
