"""BeatSchedule: when a member beats.

    SPEAKING, every `beat` --a lease without a Beat of mine coming back--> SILENT, but for a probe every two leases
        ^                                                                    |
        '----------------------- a Beat of mine came back -------------------'

Who can write and not read must not keep what it cannot serve, so it falls silent and lets the others expire it. When a
ledger comes back after an outage, everybody is silent, and the first to be heard must not find the others so: whoever
reads again after a gap speaks at once, and has a lease from then on to hear itself: falling silent just after the
outage would look like having died in it. Who merely reads late has no gap, and gets no second voice by it.
"""

from math import inf

from neli_router.protocol import Settings

__all__ = ["BeatSchedule"]

PROBE_LEASES = 2
"""Probing less often finds a healed ledger later; probing more often keeps a deaf member among the living longer."""


class BeatSchedule:
    """One incarnation's voice. `now` never goes back."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._joined_at = -inf
        self._back_at = -inf
        self._sent_at = -inf
        self._read_at = -inf
        self._away = False
        self._silent = False
        self._at_once = False

    def lapse(self, sent: float, now: float) -> None:
        """Time first; `sent` is when the last Beat that came back was sent."""
        self._silent = now >= max(sent, self._joined_at, self._back_at) + self._settings.lease

    def joined(self, now: float) -> None:
        self._joined_at, self._silent = now, False
        self.at_once()

    def at_once(self) -> None:
        """Beat at the next opportunity: somebody waits to hear it, be it I."""
        self._at_once = True

    def away(self) -> None:
        """The ledger could not be read."""
        self._away = True

    def read(self, anything: bool, now: float) -> None:
        """The ledger was read, and held `anything` new or nothing."""
        after_a_gap = anything and now >= self._read_at + self._settings.lease / 2
        if self._away or after_a_gap:
            if self._silent:
                self.at_once()
            self._back_at, self._silent = now, False
        self._away = False
        if anything:
            self._read_at = now

    def due(self) -> float:
        """When to beat next."""
        if self._at_once:
            return -inf
        return self._sent_at + (PROBE_LEASES * self._settings.lease if self._silent else self._settings.beat_every)

    def sent(self, now: float) -> None:
        self._sent_at, self._at_once = now, False
