"""The causes: why members came and went and partitions moved, as one episode per cause.

    record --replay--> a Transition -----.
                                     +--> an episode: cause, member, by --+-- what moved in that very record
    Handover, later ----------------------> the episode of its plan ------'-- what moved later, because of it

A drain of 256 partitions is one wish and 256 Handovers, each in its own record, but people want to read one line. A
Handover does not say why it was made. But a partition is handed over because its target changed, and the record that
changed the target is known. So each partition remembers that record's episode, from the change until the partition is
at its target. A Handover whose reason was not read is an episode of its own, together with those that follow it.

    Beat of an incarnation that was expired or replaced --> it was alive then, and so it was fenced
    Beat of one that was certified dead ------------------> it was in flight when its writer died: no news

Members are called by their names, even after they are gone. A process that comes back under its name and keeps its
partitions has moved nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import (
    Beat,
    Certify,
    Expire,
    Genesis,
    Handover,
    Join,
    Leave,
    Pin,
    Record,
    Unpin,
)
from neli_router.protocols.protocol import Cause
from neli_router.status.group_view import GroupEvent, Moved
from neli_router.status.replay import Transition

__all__ = ["CAUSES", "OF_MEMBERS", "SETTLED", "Causes", "Episode"]

CAUSES: Mapping[str, Cause] = {cause: cause for cause in get_args(Cause)}
"""Kind of a record -> the cause of the same name. Records of other kinds are the cause `other`."""

OF_MEMBERS: frozenset[Cause] = frozenset({"join", "replace", "leave", "expire", "certify", "fence", "silence", "hear"})
"""The causes that say what became of a member. All others are wishes, and moves whose reason is not known."""

SETTLED = 1.0
"""Seconds after which an episode that grew, such as a drain in progress, is sent again to followers."""

NAMES_SHOWN = 3
"""How many members an event names that ended with others in one record."""

ASKED_ABOUT = ("pins", "drains", "weights", "targets", "owners", "version")
"""The parts of a state whose change people ask about. Loads are not among them: some groups send them every minute, so
they count only if they move something."""


@dataclass(slots=True)
class Episode:
    """One cause, and everything that came of it so far. `told` gives the same as an immutable value."""

    offset: int
    read_at: float
    cause: Cause
    member: str
    by: str
    partition: int | None = None
    last: int = 0
    last_at: float = 0.0
    moved: dict[tuple[str | None, str | None], list[int]] = field(default_factory=dict)
    counts: dict[tuple[str | None, str | None], int] = field(default_factory=dict)
    reason: str = ""
    term: int = 0
    _told: GroupEvent | None = None

    def add(self, source: str | None, target: str | None, partition: int, offset: int, now: float) -> None:
        self.moved.setdefault((source, target), []).append(partition)
        self.counts[source, target] = self.counts.get((source, target), 0) + 1
        self.last, self.last_at, self._told = offset, now, None

    def explain(self, reason: str, offset: int) -> None:
        """Add the reason, which came to light at `offset`."""
        self.reason, self.last, self._told = reason, offset, None

    def forget(self) -> int:
        """Forget which partitions moved, but not how many. Returns how many were forgotten."""
        forgotten = sum(map(len, self.moved.values()))
        self.moved, self._told = {}, None
        return forgotten

    def told(self) -> GroupEvent:
        if self._told is None:
            moved = tuple(
                Moved(source, target, number, tuple(sorted(self.moved.get((source, target), ()))))
                for (source, target), number in self.counts.items()
            )
            self._told = GroupEvent(
                offset=self.offset,
                last=max(self.last, self.offset),
                read_at=self.read_at,
                last_at=max(self.last_at, self.read_at),
                cause=self.cause,
                member=self.member,
                by=self.by,
                partition=self.partition,
                moved=moved,
                reason=self.reason,
                term=self.term,
            )
        return self._told


class Causes:
    """Reads the changes by the records of a ledger, in order."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Incarnation -> name, for as long as the fold remembers the incarnation."""
        self._ended: dict[str, str] = {}
        """The same, for those that another member's suspicion or Join ended and that were not heard since."""
        self._reasons: dict[int, Episode] = {}
        """Partition -> the episode that gave it another target, until the partition is there."""
        self._loose: Episode | None = None
        """The newest Handovers whose reason was not read."""

    def begin(self, state: State) -> None:
        """The next records continue `state`. The reason for anything already in progress is unknown."""
        self._reasons, self._loose = {}, None
        self._know(state, state)

    def name_of(self, incarnation: str) -> str:
        return self._names.get(incarnation, incarnation)

    def unread(self, before: State, after: State, now: float) -> tuple[Episode | None, int]:
        """The moves from `before` to `after`, between which no record was read, and the number of partitions moved."""
        self._know(before, after)
        change = Transition(max(0, after.at - 1), None, before, after)
        episode = Episode(change.offset, now, "other", "", "")
        number = self._move(episode, change, change.moved, now)
        return (episode if number else None), number

    def take(self, change: Transition, now: float) -> tuple[Episode | None, int]:
        """The episode that began with `change`, if any, and how many partitions moved by it, in whatever episode."""
        record, before, after = change.record, change.before, change.after
        if after.seats is not before.seats:
            self._know(before, after)
        if record is None or isinstance(record, Genesis):
            return None, 0
        if isinstance(record, Beat):
            # Only the first Beat after its end proves anything new.
            name = self._ended.pop(record.by, None) if change.is_late else None
            return (None if name is None else Episode(change.offset, now, "fence", name, name)), 0
        if isinstance(record, Handover):
            return self._hand_over(change, record, now)
        episode = self._episode(change, record, now)
        if episode is None:
            return None, 0
        self._loose = None
        if after.targets is not before.targets and len(after.targets) == len(before.targets):
            for partition, (was, to_be) in enumerate(zip(before.targets, after.targets, strict=True)):
                if was != to_be:
                    self._reasons[partition] = episode
        number = self._move(episode, change, change.moved, now)
        self._reasons = {
            partition: reason
            for partition, reason in self._reasons.items()
            if after.owners[partition] != after.targets[partition]
        }
        return episode, number

    def _hand_over(self, change: Transition, record: Handover, now: float) -> tuple[Episode | None, int]:
        begun, number = None, 0
        for partition in change.moved:
            reason = self._reasons.pop(partition, None)
            if reason is None:
                name = self.name_of(record.by)
                if self._loose is None or self._loose.by != name:
                    self._loose = begun = Episode(change.offset, now, "handover", name, name)
                reason = self._loose
            number += self._move(reason, change, [partition], now)
        return begun, number

    def _episode(self, change: Transition, record: Record, now: float) -> Episode | None:
        """A new episode, if `record` changed anything that people would ask about."""
        before, after, gone = change.before, change.after, change.gone
        changed = any(getattr(before, part) is not getattr(after, part) for part in ASKED_ABOUT)
        if not (change.has_joined or gone or changed):
            return None
        cause = CAUSES.get(change.kind, "other")
        member = str(getattr(record, "name", ""))
        if gone and isinstance(record, Join):
            cause = "replace"
        elif isinstance(record, Leave | Expire | Certify):
            # After a grace, it had gone before, and only its seat goes now.
            ended = gone or sorted(before.seats.keys() - after.seats.keys())
            names = [before.seats[incarnation].name for incarnation in ended]
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            member = ", ".join(names[:NAMES_SHOWN]) + more
        if isinstance(record, Join | Expire):
            self._ended |= {incarnation: before.seats[incarnation].name for incarnation in gone}
        partition = record.partition if isinstance(record, Pin | Unpin) else None
        return Episode(change.offset, now, cause, member, self.name_of(record.by), partition)

    def _move(self, episode: Episode, change: Transition, partitions: Iterable[int], now: float) -> int:
        number = 0
        for partition in partitions:
            had, has = change.former_owner(partition), change.after.owners[partition]
            source, target = had and self.name_of(had), has and self.name_of(has)
            if source != target:
                episode.add(source, target, partition, change.offset, now)
                episode.term = max(episode.term, change.after.terms[partition])
                number += 1
        return number

    def _know(self, before: State, after: State) -> None:
        names = {key: name for key, name in self._names.items() if key in after.departed}
        names |= {seat.incarnation: seat.name for seat in before.seats.values()}
        self._names = names | {seat.incarnation: seat.name for seat in after.seats.values()}
        self._ended = {key: name for key, name in self._ended.items() if key in after.departed}
