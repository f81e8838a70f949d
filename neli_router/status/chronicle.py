"""The chronicle: a group's recent history, for people. It follows everything that a member of the group reads.

    the pump's thread:   records --replay--> changes --why?--> events, counts
                                    Beats -------------------> vitals, delays
                                                                       |
    other threads:                              GroupView  <--one assignment for each read

The ledger already holds all that there is to know, so no process is asked. A chronicle replays the records once more,
on its own, and keeps what came of each (`causes`), with the time at which it read the record. The state alone would not
be enough: it keeps no past, knows no time, and calls members by their incarnations, which mean nothing to people.

It runs on the thread that keeps the member's lease, so it does little for a Beat, which nearly every record is.
Other threads take `group`, one value that never changes, and need no lock: all of it is true at the same offset.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, NoneType

from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import (
    Beat,
    Certify,
    Drain,
    Expire,
    Handover,
    Join,
    Leave,
    Load,
    Pin,
    Record,
    Snapshot,
    Undrain,
    Unpin,
    Weigh,
)
from neli_router.status.causes import OF_MEMBERS, Causes, Episode
from neli_router.status.group_view import COUNTED, GroupView, Vital
from neli_router.status.replay import Transition

__all__ = ["DELAYS_MAX", "EVENTS_MAX", "PARTITIONS_MAX", "Chronicle"]

EVENTS_MAX = 1000
"""Member events that are kept, and the same number of all others: thousands of wishes must not push out a death, nor a
member that comes and goes all day the wishes. A larger number would cost every open page more time."""

PARTITIONS_MAX = 100_000
"""Partitions named by all events that are kept: a group of many partitions that flaps must not fill memory. Beyond it,
the oldest events only say how many moved."""

DELAYS_MAX = 4096
"""Delays that are kept until they are taken: more than an hour's worth at a Beat a second."""

COUNTED_AS: Mapping[type, str] = {
    NoneType: "skipped",
    Expire: "suspicions",
    Snapshot: "snapshots",
    **dict.fromkeys((Drain, Undrain, Pin, Unpin, Weigh, Load), "wishes"),
}

ENDS_COUNTED_AS: Mapping[type, str] = {Join: "replaced", Leave: "leaves", Expire: "expired", Certify: "certified"}


class Chronicle:
    """A Tap (see pump.py). `begin` and `read` belong to the pump's thread; any thread may take `group`."""

    def __init__(self) -> None:
        self.group = GroupView()
        self.beat_delays: deque[float] = deque(maxlen=DELAYS_MAX)
        """Seconds from sending the own member's Beats until they were read. A reader pops them."""
        self.own: Callable[[], str] = str
        """Gives the incarnation whose Beats are timed. Called at each read: a member may start a new one."""
        self._causes = Causes()
        self._past: list[Episode] = []
        """In the order of the offsets at which they begin."""
        self._kept = {True: 0, False: 0}
        """How many of them are member events, and how many are not."""
        self._named = 0
        """How many partitions they name."""
        self._joined: dict[str, float] = {}
        self._changed = False
        self._counts = dict.fromkeys(COUNTED, 0)

    def begin(self, state: State, now: float) -> None:
        before = self.group.state
        if before.genesis is not None:
            # Records in between were dropped unread. Their moves are visible, but not their writers.
            self._counts["restarts"] += 1
            if before.genesis == state.genesis:
                self._keep(*self._causes.unread(before, state, now))
        self._causes.begin(state)
        self._publish(state, {key: vital for key, vital in self.group.vitals.items() if key in state.seats})

    def read(self, records: Sequence[tuple[int, Record | None]], now: float) -> None:
        state, own, vitals = self.group.state, self.own(), dict(self.group.vitals)
        for offset, record in records:
            change = Transition.of(state, offset, record)
            state = change.after
            self._counts["records"] += 1
            if type(record) is Beat:
                if record.by == own:
                    self.beat_delays.append(max(0.0, now - record.sent_at))
                if not change.is_late:  # Nearly every record is such a Beat.
                    self._counts["beats"] += 1
                    vitals[record.by] = Vital(now, record.at, offset)
                    continue
            self._count(change)
            self._keep(*self._causes.take(change, now))
            if record is not None and change.has_joined:
                self._joined[record.by] = now
        self._publish(state, {key: vital for key, vital in vitals.items() if key in state.seats})

    def _publish(self, state: State, vitals: dict[str, Vital]) -> None:
        events = self.group.events
        if self._changed:
            events = tuple(episode.told() for episode in self._past)
            self._changed = False
            self._joined = {key: at for key, at in self._joined.items() if key in state.seats}
        counts = MappingProxyType(dict(self._counts))
        self.group = GroupView(state, MappingProxyType(vitals), events, counts, MappingProxyType(dict(self._joined)))

    def _count(self, change: Transition) -> None:
        record, counts = change.record, self._counts
        counts["joins"] += change.has_joined
        counts["handovers"] += len(change.moved) if isinstance(record, Handover) else 0
        if (kind := COUNTED_AS.get(type(record))) is not None:
            counts[kind] += 1
        if (kind := ENDS_COUNTED_AS.get(type(record))) is not None:
            counts[kind] += len(change.gone)

    def _keep(self, episode: Episode | None, moved: int, *, changed: bool = False) -> None:
        """Remember `episode`, if one began; and that `moved` partitions moved, or that an older episode `changed`."""
        if episode is None and not moved and not changed:
            return
        self._changed = True
        self._counts["moves"] += moved
        self._named += moved
        if episode is not None:
            is_of_members = episode.cause in OF_MEMBERS
            if self._kept[is_of_members] == EVENTS_MAX:
                place = next(n for n, old in enumerate(self._past) if (old.cause in OF_MEMBERS) is is_of_members)
                self._named -= self._past.pop(place).forget()
            else:
                self._kept[is_of_members] += 1
            self._past.append(episode)
        if self._named > PARTITIONS_MAX:
            for old in self._past[:-1]:
                if self._named <= PARTITIONS_MAX:
                    break
                self._named -= old.forget()
