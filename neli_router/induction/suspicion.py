"""Suspicion: who seems to be dead, to one member. It may be wrong; nobody's safety depends on it.

    DEAF --a Beat of mine, sent less than half a lease ago, comes back--> HEARING since now
    HEARING --half a lease since the sending of the last that came back--> DEAF

Who was deaf knows nothing of the others' silence: after an outage of the ledger everybody has been silent to everybody.
So a member accuses only after a whole lease of hearing itself without a break, and only who was silent all that time.
Survivors take turns by rank, because one accusation is enough.
"""

from collections.abc import Iterable
from math import inf

from neli_router.protocol import STAGGER_RANKS, Settings

__all__ = ["Suspicion"]


class Suspicion:
    """One incarnation's view. `now` never goes back."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sent = -inf
        self._hearing_since = inf
        self._accused: dict[str, float] = {}
        self._patient_until = -inf

    def lapse(self, now: float) -> None:
        """Time first: what is read late must not hide the deafness before it."""
        if now >= self._sent + self._settings.lease / 2:
            self._hearing_since = inf

    def hear(self, sent: float, now: float) -> None:
        """A Beat of mine came back that I had sent at `sent`."""
        self._sent = max(self._sent, sent)
        if now < self._sent + self._settings.lease / 2:
            self._hearing_since = min(self._hearing_since, now)

    def suspects(self, incarnation: str, seats: Iterable[str], heard: dict[str, float], now: float) -> list[str]:
        """Whom to accuse at `now`, being at the tip; remembers that they were accused."""
        lease = self._settings.lease
        if now < self._hearing_since + lease:
            return []
        silent = [q for q in seats if q != incarnation and now >= heard[q] + lease]
        patience = lease + min(self.rank(incarnation, seats, heard, now), STAGGER_RANKS) * self._settings.stagger
        fresh = [q for q in silent if now >= self._accused.get(q, -inf) + lease / 2]
        accused = [q for q in fresh if now >= heard[q] + patience]
        self._accused = {q: at for q, at in self._accused.items() if q in silent} | dict.fromkeys(accused, now)
        self._patient_until = min((heard[q] + patience for q in fresh if q not in accused), default=-inf)
        return accused

    def rank(self, incarnation: str, seats: Iterable[str], heard: dict[str, float], now: float) -> int:
        """How many members that are not silent joined before me."""
        rank = 0
        for q in seats:
            if q == incarnation:
                break
            rank += now < heard[q] + self._settings.lease
        return rank

    def deadline(self, incarnation: str, heard: dict[str, float]) -> float:
        """When there may be somebody to accuse; never too late, sometimes too early."""
        if self._hearing_since == inf:
            return inf
        lease = self._settings.lease
        wake = inf
        for q, at in heard.items():  # The longest silent comes first.
            if q == incarnation:
                continue
            if q not in self._accused:
                wake = min(wake, at + lease)
                break
            wake = min(wake, self._accused[q] + lease / 2)
        return max(wake, self._hearing_since + lease, self._patient_until)
