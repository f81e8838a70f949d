"""Suspicion: which members look dead to one member. It may be wrong; safety does not depend on it.

    DEAF --a Beat of mine, sent less than a lease ago, comes back--> HEARING since now
    HEARING --half a lease without one, or a lease since the last one that came back was sent--> DEAF

In a group whose members beat more slowly than every third of a lease, half a lease becomes the interval and MARGIN.

Each of the two spans guards against a failure. If only the time of sending counted, half a lease would be too short:
where every record takes that long, all members lead, because a lease is longer, but all are deaf, so a dead member
would own its partitions forever. A whole lease would be too long: a member that comes out of an outage of nearly that
length would have heard itself all along, and would expire members whose Beats come back a little later than its own.

A member that was deaf knows nothing about the others' silence: after an outage of the ledger, every member has been
silent to every other. So a member accuses only after a whole lease of hearing itself without a break, and only members
that were silent all that time. Survivors take turns by rank, because one accusation is enough. One that went away is
accused in the same way, but when its grace is over.

    my Beats come back, but for several leases too late to give me the right to accuse --> powerless

If every member is powerless, dead members keep what they owned forever, and all looks well until one dies. Operators
must know before that happens. An outage is different: nothing comes back then, and the log already shows it.
"""

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple

from neli_router.protocols.induction.beats import interval
from neli_router.protocols.protocol import STAGGER_RANKS, Settings

__all__ = ["MARGIN", "POWERLESS_LEASES", "Look", "Suspicion"]

POWERLESS_LEASES = 8
"""For how many leases a member may lack the right to accuse before it counts as powerless. An outage and a restart each
take two. Fewer leases would raise false alarms, more would leave a group in danger for longer."""

GAP_LEASES = 4
"""For how many leases my Beats may stay away while I still count as late and not as cut off. A deaf member sends one
every two leases."""


NOBODY: Mapping[str, float] = {}

MARGIN = 0.12
"""How late a Beat of mine may come back, as a part of the lease. Twice the slowest interval and this are less than a
lease: a member that lives is heard again before its silence, which an outage made longer, is as long as a lease."""


class Look(NamedTuple):
    """The result of one look at the others' silence."""

    accused: list[str]
    again_at: float
    """When to look again, if no record comes first; `inf` means that only a record can change the result."""
    is_too_old: bool = False
    """Whether the look was due but the known data was too old for it: a Beat of mine would bring newer data."""


class Suspicion:
    """One incarnation's view. `now` never goes back."""

    def __init__(self, settings: Settings, incarnation: str) -> None:
        self._settings, self._incarnation = settings, incarnation
        self._sent = self._heard_at = -inf
        self._hearing_since = inf
        self._came_back_at = -inf
        self._late_since = inf
        """Since when my Beats have come back without giving me the right to accuse."""
        self._accused: dict[str, float] = {}
        self._patient_until = -inf
        self._too_old_at = -inf
        self._deaf_after = settings.lease / 2
        self._seats: Collection[str] = ()
        self._away = NOBODY
        self._silent_at = -inf
        """When the first of `_seats` may turn out to be silent, by what was heard when this was computed. Later Beats
        only make it later."""

    def among(self, members: int) -> None:
        """The group has this number of members."""
        lease = self._settings.lease
        self._deaf_after = max(lease / 2, interval(self._settings, members) + MARGIN * lease)

    def lapse(self, now: float) -> None:
        """Let time pass first: a Beat that is read late must not hide the deafness before it."""
        lease = self._settings.lease
        deaf_at = min(self._heard_at + self._deaf_after, self._sent + lease)
        if self._hearing_since + lease <= min(now, deaf_at):
            self._late_since = min(now, deaf_at)
        if now >= deaf_at:
            self._hearing_since = inf

    def hear(self, sent: float, now: float) -> None:
        """A Beat came back that I had sent at `sent`."""
        self._sent = max(self._sent, sent)
        if now >= self._came_back_at + GAP_LEASES * self._settings.lease:
            self._late_since = now
        self._came_back_at = now
        if now < sent + self._settings.lease:
            self._heard_at = now
            self._hearing_since = min(self._hearing_since, now)

    def is_powerless(self, now: float) -> bool:
        """Whether my Beats come back, but for several leases have come back too late to accuse."""
        lease = self._settings.lease
        return self._late_since + POWERLESS_LEASES * lease <= now < self._came_back_at + GAP_LEASES * lease

    def look(
        self,
        seats: Collection[str],
        heard: Mapping[str, float],
        away: Mapping[str, float] = NOBODY,
        *,
        as_of: float,
        now: float,
        at_tip: bool,
    ) -> Look:
        """Accuse based on everything that the ledger held at `as_of`, which was read by `now`. `away` are the graces of
        those that went away; it and `seats` are other objects whenever the members are others.

        `at_tip` says that the latest read found nothing more. Only then is it worthwhile to ask for newer data.
        """
        if seats is not self._seats or away is not self._away:
            self._seats, self._away, self._silent_at = seats, away, -inf
        due = self._due(heard, now)
        accused: list[str] = []
        is_too_old = False
        if as_of >= due:
            accused = self._accuse(seats, heard, as_of)
            self._silent_at = -inf
            due = self._due(heard, now)
        elif at_tip and now >= due > self._too_old_at:
            self._too_old_at, is_too_old = now, True
        # After a look at too old data, another would find the same. A Beat of mine is on its way to bring newer data.
        return Look(accused, due if due > self._too_old_at else inf, is_too_old)

    def rank(
        self, seats: Iterable[str], heard: Mapping[str, float], now: float, away: Mapping[str, float] = NOBODY
    ) -> int:
        """How many members that are neither silent nor away joined before me."""
        rank = 0
        for q in seats:
            if q == self._incarnation:
                break
            rank += q not in away and now < heard[q] + self._settings.lease
        return rank

    def _accuse(self, seats: Iterable[str], heard: Mapping[str, float], now: float) -> list[str]:
        lease = self._settings.lease
        silent = [q for q in seats if q != self._incarnation and now >= heard[q] + self._away.get(q, lease)]
        turn = min(self.rank(seats, heard, now, self._away), STAGGER_RANKS) * self._settings.stagger
        fresh = [q for q in silent if now >= self._accused.get(q, -inf) + lease / 2]
        accused = [q for q in fresh if now >= heard[q] + self._away.get(q, lease) + turn]
        self._accused = {q: at for q, at in self._accused.items() if q in silent} | dict.fromkeys(accused, now)
        patient_until = (heard[q] + self._away.get(q, lease) + turn for q in fresh if q not in accused)
        self._patient_until = min(patient_until, default=-inf)
        return accused

    def _due(self, heard: Mapping[str, float], now: float) -> float:
        """When the next member may turn out to be silent; never too late, sometimes too early, but not before `now`."""
        if self._hearing_since == inf:
            return inf
        earliest = max(self._hearing_since + self._settings.lease, self._patient_until)
        if self._silent_at == -inf or now >= max(self._silent_at, earliest):
            self._silent_at = self._first_silent_at(heard)
        return max(self._silent_at, earliest)

    def _first_silent_at(self, heard: Mapping[str, float]) -> float:
        if not self._accused and not self._away and heard:
            oldest = min(heard.values())  # In C: there may be a thousand.
            if heard.get(self._incarnation) != oldest:
                return oldest + self._settings.lease
        return min((self._look_again_at(q, at) for q, at in heard.items()), default=inf)

    def _look_again_at(self, q: str, heard_at: float) -> float:
        lease = self._settings.lease
        if q == self._incarnation:
            return inf
        return self._accused[q] + lease / 2 if q in self._accused else heard_at + self._away.get(q, lease)
