"""The schedule of one member's Beats.

    BEATING, every `beat` --a lease without a Beat of mine coming back--> SILENT, but for a probe every two leases
        ^                                                                    |
        '----------------------- a Beat of mine came back -------------------'

A member that can write but not read must not keep partitions that it cannot serve. So it falls silent and lets the
others expire it. After a ledger outage all members are silent, and the first member that is heard again must not see
the others as silent. Therefore a member that reads again after a gap beats immediately and then has one lease to hear
itself: if it fell silent just after the outage, it would look as if it had died during it. A member that merely reads
late has no gap, and gets no such second chance.

The schedule also remembers the Beats in flight. A Beat proves a lease because it was sent before it was read, and only
its sender knows when it was sent. So a Beat counts as come back only if it equals, in every field, one that this member
sent: a line that another process wrote in this member's name proves nothing, whatever time it carries.
"""

from collections import deque
from math import inf

from neli_router.protocols.induction.records import Beat
from neli_router.protocols.protocol import Settings

__all__ = ["IN_FLIGHT_MAX", "BeatSchedule"]

PROBE_LEASES = 2
"""Probing less often finds a healed ledger later; probing more often keeps a deaf member among the living longer."""

IN_FLIGHT_MAX = 1024
"""How many Beats in flight to remember: far more than a member sends in a lease, after which a Beat proves nothing."""


class BeatSchedule:
    """When one incarnation beats. `now` never goes back."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._joined_at = -inf
        self._back_at = -inf
        self._sent_at = -inf
        self._read_at = -inf
        self._away = False
        self.silent = False
        """Whether a lease has passed without a Beat of mine coming back. My other records may not come back either, so
        few are sent."""
        self._at_once = False
        self._in_flight: deque[Beat] = deque(maxlen=IN_FLIGHT_MAX)

    def lapse(self, sent: float, now: float) -> None:
        """Let time pass; `sent` is when the last Beat that came back was sent."""
        self.silent = now >= max(sent, self._joined_at, self._back_at) + self._settings.lease

    def joined(self, now: float) -> None:
        self._joined_at, self.silent = now, False
        self.at_once()

    def at_once(self) -> None:
        """Beat at the next opportunity: another member, or this one, waits to hear it."""
        self._at_once = True

    def away(self) -> None:
        """The ledger could not be read."""
        self._away = True

    def read(self, anything: bool, now: float) -> None:
        """The ledger was read; `anything` says whether it held something new."""
        after_a_gap = anything and now >= self._read_at + self._settings.lease / 2
        if self._away or after_a_gap:
            if self.silent:
                self.at_once()
            self._back_at, self.silent = now, False
        self._away = False
        if anything:
            self._read_at = now

    def due(self) -> float:
        """When to beat next."""
        if self._at_once:
            return -inf
        return self._sent_at + (PROBE_LEASES * self._settings.lease if self.silent else self._settings.beat_every)

    def sent(self, beat: Beat, now: float) -> None:
        """Remember `beat`; called before it is given to the driver."""
        self._sent_at, self._at_once = now, False
        self._in_flight.append(beat)

    def came_back(self, beat: Beat) -> bool:
        """Whether I sent exactly this Beat, and no later Beat of mine came back before it."""
        if beat not in self._in_flight:
            return False
        while self._in_flight.popleft() != beat:
            pass  # This Beat was lost, or it arrives later and proves less.
        return True
