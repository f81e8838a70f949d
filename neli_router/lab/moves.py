"""The history of a group: the fold of all records of its ledger, and what each of them changed.

entries --replay--> changes --> owners, by partition and term
                            '-> departures: the members that ended, and by which record that counted
                            '-> moves: partitions that went to another member; needless: more than called for
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from neli_router.drivers.ledgers.base import Entry
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify, Expire, Join, Leave
from neli_router.status.replay import replayed

__all__ = ["Departure", "History", "history_of"]


@dataclass(frozen=True, slots=True)
class Departure:
    """The end of a member, by the record that counted; `kind` is its kind."""

    offset: int
    name: str
    kind: type[Certify | Expire | Join | Leave]


@dataclass(slots=True)
class History:
    state: State = field(default_factory=State)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """(partition, term) -> the name of the member that owned the partition under that term."""
    departures: list[Departure] = field(default_factory=list)
    moves: int = 0
    """How often a partition went from one member to another."""
    needless: int = 0
    """How many of these were more than the changes of members called for. A change calls for as many moves as it takes
    from each member's current partitions to equal shares."""

    def departed_by(self, kind: type[Certify | Expire | Join | Leave]) -> list[str]:
        """Names of members, in order."""
        return [departure.name for departure in self.departures if departure.kind is kind]


def history_of(entries: Iterable[Entry]) -> History:
    """Fold all of `entries`, which start with the ledger's first."""
    history = History()
    since = allowed = 0
    for entry, change in replayed(entries, history.state):
        before, record, after = change.before, change.record, change.after
        history.state = after
        if isinstance(record, Certify | Expire | Join | Leave):
            history.departures += [Departure(entry.offset, before.seats[it].name, type(record)) for it in change.gone]
        if after.seats is not before.seats:
            history.needless += max(0, since - allowed)
            since, allowed = 0, _needed(before, after)
        for partition in change.moved:
            had, has = change.former_owner(partition), after.owners[partition]
            was, now = had and before.seats[had].name, has and after.seats[has].name
            if now is not None:
                history.owners[partition, after.terms[partition]] = now
            moved = was != now and was is not None and now is not None
            history.moves, since = history.moves + moved, since + moved
    history.needless += max(0, since - allowed)
    return history


def _needed(before: State, after: State) -> int:
    """The fewest moves from what the members of `after` had before to shares that differ by at most one."""
    if not after.seats:
        return 0
    kept = Counter(name for name in _names(before) if name is not None)
    owned = [kept[seat.name] for seat in after.seats.values()]
    share, larger = divmod(sum(kept.values()), len(owned))
    staying = sum(min(count, share) for count in owned)
    return sum(kept.values()) - staying - min(larger, sum(count > share for count in owned))


def _names(state: State) -> list[str | None]:
    return [None if owner is None else state.seats[owner].name for owner in state.owners]
