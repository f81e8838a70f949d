"""The schedule of one member's Beats.

    BEATING, every `beat` --a lease without a Beat of mine coming back--> SILENT, but for a probe every two leases
        ^                                                                    |
        '----------------------- a Beat of mine came back -------------------'

A member that can write and not read must not keep partitions that it cannot serve. So it falls silent and lets the
others expire it. When a ledger comes back after an outage, all members are silent, and the first one that is heard must
not find the others so. Therefore a member that reads again after a gap beats at once, and has a lease from then on to
hear itself: one that falls silent just after the outage would look as if it had died in it. A member that merely reads
late has no gap, and gets no second chance by it.

It also remembers the Beats that are on their way. A Beat proves a lease because it was sent before it was read, and
only its sender knows when that was. So one counts as come back if it is, in every field, one that was sent: a line in
this member's name that another process wrote proves nothing, whatever time it bears.
"""

from collections import deque
from math import inf

from neli_router.protocols.induction.records import Beat
from neli_router.protocols.protocol import Settings

__all__ = ["IN_FLIGHT_MAX", "BeatSchedule"]

PROBE_LEASES = 2
"""Probing less often finds a healed ledger later; probing more often keeps a deaf member among the living longer."""

IN_FLIGHT_MAX = 1024
"""Beats remembered that have not come back: far more than one sends in a lease, after which none proves anything."""


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
        """Whether a lease has passed without a Beat of mine coming back: none of my records may, so few are sent."""
        self._at_once = False
        self._in_flight: deque[Beat] = deque(maxlen=IN_FLIGHT_MAX)

    def lapse(self, sent: float, now: float) -> None:
        """Let time pass; `sent` is when the last Beat that came back was sent."""
        self.silent = now >= max(sent, self._joined_at, self._back_at) + self._settings.lease

    def joined(self, now: float) -> None:
        self._joined_at, self.silent = now, False
        self.at_once()

    def at_once(self) -> None:
        """Beat at the next opportunity: another member waits to hear it, or this one does."""
        self._at_once = True

    def away(self) -> None:
        """The ledger could not be read."""
        self._away = True

    def read(self, anything: bool, now: float) -> None:
        """The ledger was read, and held `anything` new or nothing."""
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
        """Each is remembered from before it is given to the driver."""
        self._sent_at, self._at_once = now, False
        self._in_flight.append(beat)

    def came_back(self, beat: Beat) -> bool:
        """Whether I sent this very Beat, and none that I sent later came back before it."""
        if beat not in self._in_flight:
            return False
        while self._in_flight.popleft() != beat:
            pass  # Lost, or it comes later and proves less.
        return True
