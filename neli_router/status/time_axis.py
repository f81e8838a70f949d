"""The time axis: when each record of a ledger was written, although a ledger has no time of its own.

    reference  --Beat s=10.0------------------Beat s=10.1, at=7 ------>      its clock is the axis
                        \\ read by                 ^ had read
    another            --Beat s=512.4, at=5--------'                        so 10.0 <= 512.4 + shift <= 10.1

Each Beat carries `sent_at`, a reading of its writer's clock, and `at`, how far the writer had read by then. The oldest
member's clock is the reference. A Beat of another member was sent after every Beat of the reference that its writer had
read, and before every Beat of the reference whose writer had read *it*. So the shift between the two clocks lies within
bounds, and each exchange narrows them. They widen again as time passes, because no clock's rate is exact. The middle of
the bounds is off by at most half their width, which is about half a beat, because members answer each other's Beats no
sooner.

The members of one host read one clock. If a shift of zero lies within the bounds, it is taken for the truth, and the
axis is exact. Two hosts whose clocks happen to agree to within a beat are treated as one as well. That does no harm,
because no better accuracy than a beat is ever promised.

A record without a time was written after the Beats before it, and before the first Beat whose writer had read it.

If the reference departs, the oldest member whose clock is known takes its place, and the axis continues. If there is
none, because no member lived through the whole time, the axis breaks there. If all clocks have been one so far, the
next part begins by that clock, unless it went back. Otherwise it begins right where the last part ended, and the time
between is lost.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from math import inf

from neli_router.protocols.protocol import DRIFT_MAX

__all__ = ["TOLERANCE", "TimeAxis"]

TOLERANCE = 0.001
"""How far two processes of one host may differ in reading its clock (see clock.py)."""

REMEMBERED_MAX = 4096
"""Beats of the reference that are remembered. A member that has read none of these says nothing about time."""


@dataclass(slots=True)
class _Bounds:
    """The shift from one incarnation's clock to the axis lies from `low` to `high`, as of `as_of`."""

    low: float = -inf
    high: float = inf
    as_of: float = -inf

    @property
    def known(self) -> bool:
        return self.high - self.low < inf

    def narrow(self, low: float, high: float, now: float, drift: float) -> bool:
        """Returns whether the new bounds fit the known ones. If not, the clock jumped, and the bounds start over."""
        if self.as_of > -inf:  # Both clocks may be off, in opposite directions.
            self.low -= 2 * drift * max(0.0, now - self.as_of)
            self.high += 2 * drift * max(0.0, now - self.as_of)
        self.low, self.high, self.as_of = max(self.low, low), min(self.high, high), now
        if self.low <= self.high + TOLERANCE:
            return True
        self.low, self.high = low, high
        return False


class TimeAxis:
    """Takes Beats and departures in the order of the ledger, and gives the times of records and of clock readings.

    With `one_clock`, all members are known to be on one host.
    """

    def __init__(self, *, drift: float = DRIFT_MAX, one_clock: bool = False) -> None:
        self.now = -inf
        """The latest time that is known."""
        self.error = 0.0
        """How far a time by another clock than the reference's may be off at most, so far. 0 if there is one clock."""
        self.breaks: list[int] = []
        """Offsets of the Beats at which the axis starts over."""
        self.jumps: list[tuple[int, str]] = []
        """Offsets and incarnations of the Beats that contradict what was known of their clocks."""
        self._drift = drift
        self._one_clock = one_clock
        self._agreed = False
        """Whether any other clock was found to be the same as the reference's."""
        self._reference = ""
        self._bounds: dict[str, _Bounds] = {}
        """In the order of the first Beats, so the oldest first."""
        self._shifts: dict[str, float] = {}
        """The last known shifts, including those of departed members: their notes are read afterwards."""
        self._unread: dict[str, tuple[int, float]] = {}
        """Offset and reading of each member's newest Beat that the reference had not read when it last beat."""
        self._places: deque[int] = deque(maxlen=REMEMBERED_MAX)
        self._times: deque[float] = deque(maxlen=REMEMBERED_MAX)
        self._marks: dict[int, tuple[float, float]] = {}
        self._open: deque[int] = deque()
        """Marks that no Beat has bounded from above yet."""

    def beat(self, offset: int, by: str, sent_at: float, at: int) -> None:
        """A member's Beat."""
        if not self._reference:
            self._begin(offset, by, sent_at)
        bounds = self._bounds.get(by)
        if bounds is None:
            bounds = self._bounds[by] = _Bounds()
            if self._one_clock:
                bounds.low = bounds.high = self._shifts[by] = self._shifts[self._reference]
        if by == self._reference:
            now = sent_at + bounds.low
            for other, (place, reading) in list(self._unread.items()):
                if place < at:
                    del self._unread[other]
                    self._narrow(offset, other, -inf, now - reading, now)
            self._places.append(offset)
            self._times.append(now)
        else:
            if heard := bisect_left(self._places, at):
                now = self._times[heard - 1]
                self._narrow(offset, by, now - sent_at, inf, now)
            self._unread[by] = (offset, sent_at)
        if not bounds.known:
            return  # A clock does not count before its shift is known: a wrong time could never be taken back.
        time = sent_at + self._shifts[by]
        self.now = max(self.now, time)
        while self._open and self._open[0] < at:
            place = self._open.popleft()
            low, _ = self._marks[place]
            self._marks[place] = (low, max(low, time)) if low > -inf else (time, time)

    def depart(self, by: str) -> None:
        """The incarnation `by` is no longer a member."""
        self._bounds.pop(by, None)
        self._unread.pop(by, None)
        if by != self._reference:
            return
        self._reference = next((other for other, bounds in self._bounds.items() if bounds.known), "")
        self._places.clear()
        self._times.clear()
        self._unread.clear()
        if self._reference:
            shift = self._shifts[self._reference]
            self._bounds[self._reference] = _Bounds(shift, shift)

    def mark(self, offset: int) -> None:
        """Remember when the record at `offset` was written."""
        self._marks[offset] = (self.now, inf)
        self._open.append(offset)

    def when(self, offset: int) -> tuple[float, float]:
        """The earliest and the latest time at which the marked record may have been written."""
        low, high = self._marks[offset]
        return (low, high) if high < inf else (self.now, self.now)

    def align(self, by: str, reading: float) -> float | None:
        """A reading of the clock of the incarnation `by`, on the axis; None if its clock was never known."""
        shift = self._shifts.get(by)
        return None if shift is None else reading + shift

    def _begin(self, offset: int, by: str, sent_at: float) -> None:
        shift = 0.0
        if self.now > -inf:
            trusted = self._one_clock or (self.error == 0 and self._agreed)
            self.breaks += [] if trusted and sent_at >= self.now else [offset]
            shift = 0.0 if trusted and sent_at >= self.now else self.now - sent_at
        self._reference, self._shifts[by] = by, shift
        # The bounds of the others were relative to the former reference.
        self._bounds = {by: _Bounds(shift, shift)}

    def _narrow(self, offset: int, by: str, low: float, high: float, now: float) -> None:
        bounds = self._bounds[by]
        if not bounds.narrow(low, high, now, self._drift):
            self.jumps.append((offset, by))
        if not bounds.known:
            return
        same = self._shifts[self._reference]
        if bounds.low - TOLERANCE <= same <= bounds.high + TOLERANCE:
            self._shifts[by], self._agreed = same, True
        else:
            self._shifts[by] = (bounds.low + bounds.high) / 2
            self.error = max(self.error, (bounds.high - bounds.low) / 2)
