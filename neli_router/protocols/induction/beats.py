"""The schedule of one member's Beats.

    BEATING, every `beat` --a lease without a Beat of mine coming back--> SILENT, but for a probe every two leases
        ^                                                                    |
        '----------------------- a Beat of mine came back -------------------'

A member that can write but not read must not keep partitions that it cannot serve. So it falls silent and lets the
others expire it. After a ledger outage all members are silent, and the first member that is heard again must not see
the others as silent. Therefore a member that reads again after a gap beats immediately and then has one lease to hear
itself: if it fell silent just after the outage, it would look as if it had died during it. A member that merely reads
late has no gap, and gets no such second chance.

**How often.** Each member reads every Beat, so a group of N members costs N times N. So `beat` is only the most often:
in a group of hundreds, members beat more slowly, so that there are about BEATS_MAX a second in all. A Beat must still
come back well before its lease ends, so no member beats more slowly than every SLOWEST of a lease, however large the
group is. The times in which a member hears itself follow (`suspicion`). Under `available`, a member holds on for a time
that its settings fix, so there the rate stays the same.

The schedule also remembers the Beats in flight. A Beat proves a lease because it was sent before it was read, and only
its sender knows when it was sent. So a Beat counts as come back only if it equals, in every field, one that this member
sent: a line that another process wrote in this member's name proves nothing, whatever time it carries.
"""

import math
from collections import deque
from math import inf

from msgspec.structs import replace

from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import BATCHES, BATCHES_SINCE, Beat
from neli_router.protocols.protocol import Settings

__all__ = ["DIGESTS_APART", "IN_FLIGHT_MAX", "SLOWEST", "BeatSchedule", "interval"]

BEATS_MAX = 1000
"""Beats a second in a group whose members may beat more slowly than their settings say. Lowering it saves every reader
processor time; raising it lets a large group lose more Beats in a row."""

DIGESTS_APART = 128
"""For each 128 members in the group, a member leaves the digest out of one more Beat in a row."""

TICKS = 100_000
"""A second, as Beats count it."""

SLOWEST = 0.42
"""The longest interval, as a part of the lease. Above it, a member that loses one Beat would lose its lease, or an
outage of half a lease would make it expire the living."""

PROBE_LEASES = 2
"""Probing less often finds a healed ledger later; probing more often keeps a deaf member among the living longer."""

IN_FLIGHT_MAX = 1024
"""How many Beats in flight to remember: far more than a member sends in a lease, after which a Beat proves nothing."""


def interval(settings: Settings, members: int) -> float:
    """Seconds between two Beats of a member."""
    slower = min(members / BEATS_MAX, SLOWEST * settings.lease) if settings.exclusive else 0.0
    return max(settings.beat_every, slower)


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
        self._every = settings.beat_every
        self._number = 0
        self._in_flight: deque[Beat] = deque(maxlen=IN_FLIGHT_MAX)

    def lapse(self, sent: float, now: float) -> None:
        """Let time pass; `sent` is when the last Beat that came back was sent."""
        self.silent = now >= max(sent, self._joined_at, self._back_at) + self._settings.lease

    def among(self, members: int) -> None:
        """The group has this number of members."""
        self._every = interval(self._settings, members)

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
        return self._sent_at + (PROBE_LEASES * self._settings.lease if self.silent else self._every)

    def next(self, by: str, state: State, now: float, *, is_clear: bool = False) -> Beat:
        """The Beat to send now. In a large group, only one of several carries the digest of `state`.

        `is_clear` says that the member owes no wait on what it owns in `state`.
        """
        # Rounded down: a Beat that was sent earlier than it says would prove too much.
        sent_at = math.floor(now * TICKS) / TICKS
        if state.version < BATCHES_SINCE or self._number % (1 + len(state.seats) // DIGESTS_APART) == 0:
            beat = Beat(by=by, sent_at=sent_at, at=state.at, digest=digest_text(state.digest))
        else:
            beat = Beat(by=by, v=BATCHES, sent_at=sent_at, at=state.at)
        self._number += 1
        return replace(beat, v=BATCHES, clear=state.at) if is_clear else beat

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
