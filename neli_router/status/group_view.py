"""The view of a group: everything that people see of it, as of one offset.

    Chronicle --group--> GroupView: members, owners, targets, pins, loads, moves, counts
                             |--moves_by(a wish)----> the partitions that the wish would move
                             '--balance_by(a wish)--> how evenly loads are spread over members, before and after

A view never changes, so any thread may take it, and everything in it was true at the same offset. Only here is the
protocol's state turned into words for people: a page, a metric and the wire use the view and know no protocol. Without
a chronicle, `GroupView(state)` gives the same, except for the moves, the counts and the leases.

**What a wish moves.** A wish changes targets only; owners follow with their Handovers, one by one. A live owner's
Handover gives a partition to its target at that record, and does not change any target. So once everything in progress
is done, the targets are the owners, and a wish moves exactly the partitions whose targets it changes. A partition that
stays with its owner because of the wish, although the owner was to give it away, does not count as a move. The wish is
folded at the very next offset. If other records come first, it may move something else, like any plan.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Record
from neli_router.protocols.protocol import Cause

__all__ = ["COUNTED", "Balance", "GroupEvent", "GroupView", "MemberStatus", "Move", "Moved", "Vital"]

COUNTED = (
    "records",
    "skipped",
    "beats",
    "joins",
    "replaced",
    "leaves",
    "suspicions",
    "expired",
    "certified",
    "handovers",
    "wishes",
    "snapshots",
    "moves",
    "restarts",
)
"""The keys of `counts`. `moves` are partitions that went to another member. `suspicions` are Expires, true or void, and
`expired` the members they ended. `certified` were ended by a witness of their death, and `replaced` by a newer process
of their name. `skipped` records could not be decoded."""


@dataclass(frozen=True, slots=True)
class Vital:
    """The last Beat of a member: when it was read, on the reader's clock, and how far its writer had read by then."""

    heard_at: float
    at: int | None
    """None where members read no records."""
    offset: int

    @property
    def lag(self) -> int | None:
        """How many records the writer still had to read when its Beat was appended."""
        return None if self.at is None else max(0, self.offset - self.at)


@dataclass(frozen=True, slots=True)
class Move:
    """By the record at `offset`, `partitions` of `source` had gone to `target` for one cause; None stands for no
    member."""

    offset: int
    read_at: float
    partitions: tuple[int, ...]
    source: str | None
    target: str | None
    cause: Cause
    by: str
    """The name of the member that wrote the record; empty if the record was never read."""


class Moved(NamedTuple):
    """Partitions that went from one member to another; None stands for no member."""

    source: str | None
    target: str | None
    number: int
    partitions: tuple[int, ...]
    """Empty if the move is too old."""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """One cause, and everything that moved because of it: a member's fate, a wish, or a move whose reason was not
    read."""

    offset: int
    last: int
    """The newest record that belongs to the event."""
    read_at: float
    last_at: float
    """When that record was read."""
    cause: Cause
    member: str
    """The name of the member that the event is about; empty if there is none."""
    by: str
    """The name of the member that wrote the record, or the operator's name there."""
    partition: int | None
    """The partition that a pin names."""
    moved: tuple[Moved, ...]
    reason: str = ""
    """Why it happened, where the protocol gives a reason."""
    term: int = 0
    """The highest term under which a partition moved. For `elect`, 0 if the terms differ."""


class MemberStatus(NamedTuple):
    """One member, as shown to people."""

    name: str
    address: str
    zone: str
    weight: int
    """The weight in effect now: an operator's wish comes before the member's own."""
    incarnation: str
    partitions: int
    load: float
    lease_left: float | None
    """Seconds, counted from when its last Beat was read; None if none was read yet, or the member is away."""
    lag: int | None
    drained: bool
    joined: int
    joined_ago: float | None
    """Seconds since its Join was read; None if that was before this reader started."""
    witness: str
    """The witness that would know for certain that it has died, as its Join says; empty if only its lease shows it."""
    away: bool
    """Whether it has left or died, and what it had waits for a process of its name."""


class Balance(NamedTuple):
    """How evenly loads are spread. 1 is even; 2 means that one member carries twice what is fair for its weight."""

    before: float
    """With partitions where they are now."""
    after: float
    """With partitions where they will be: once the wish is granted and every handover has happened."""
    share: float
    """The largest fraction of the whole load that is fair for one member. A load above it cannot be evened out."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as of the offset `at`."""

    state: State = field(default_factory=State)
    vitals: Mapping[str, Vital] = field(default_factory=lambda: MappingProxyType({}))
    """By incarnation; members that have not beaten since reading began are missing."""
    events: Sequence[GroupEvent] = ()
    """By offset, so the newest cause is last."""
    counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType(dict.fromkeys(COUNTED, 0)))
    joined_at: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """When the Join of an incarnation was read, for those that joined since reading began."""

    @property
    def at(self) -> int:
        return self.state.at

    @property
    def is_founded(self) -> bool:
        """Whether a group has begun on this ledger."""
        return self.state.genesis is not None

    @property
    def moves(self) -> list[Move]:
        """The moves: a row for each cause, source and target whose partitions are known; the newest cause last."""
        return [
            Move(event.last, event.last_at, moved.partitions, moved.source, moved.target, event.cause, event.by)
            for event in self.events
            for moved in event.moved
            if moved.partitions
        ]

    @property
    def slots(self) -> int:
        return self.state.genesis.layout.slots if self.state.genesis is not None else 0

    @property
    def tags(self) -> bool:
        return self.state.genesis is not None and self.state.genesis.layout.tags

    @property
    def owners(self) -> list[int | None]:
        """For each partition, the index of its owner in `members`, or None."""
        return self._places(self.state.owners)

    @property
    def targets(self) -> list[int | None]:
        """For each partition, the index of the member that is to own it, or None."""
        return self._places(self.state.targets)

    @property
    def standbys(self) -> list[int | None]:
        """For each partition, the index of the member that is to own it if its owner is lost, or None."""
        return self._places(self.state.standbys or (None,) * len(self.state.owners))

    @property
    def terms(self) -> Sequence[int]:
        return self.state.terms

    @property
    def pins(self) -> Mapping[int, str]:
        """Partition -> the name of the member that it is pinned to."""
        return self.state.pins

    @property
    def loads(self) -> Mapping[int, float]:
        return self.state.loads

    @property
    def names(self) -> list[str]:
        """The members' names, in the order in which they joined."""
        return [seat.name for seat in self.state.seats.values()]

    def has(self, incarnation: str) -> bool:
        """Whether `incarnation` is a member."""
        return incarnation in self.state.seats

    def own_weight(self, incarnation: str) -> int | None:
        """The weight that a member gave when it joined; None if it is not a member."""
        seat = self.state.seats.get(incarnation)
        return None if seat is None else seat.weight

    def wished_weight(self, name: str) -> int | None:
        """The weight that an operator wished for the members called `name`, if any."""
        return self.state.weights.get(name)

    def members(self, now: float) -> list[MemberStatus]:
        """The members in the order in which they joined."""
        state, vitals = self.state, self.vitals
        owned: defaultdict[str, int] = defaultdict(int)
        load: defaultdict[str, float] = defaultdict(float)
        for partition, owner in enumerate(state.owners):
            if owner is not None:
                owned[owner] += 1
                load[owner] += state.loads.get(partition, 0.0)
        lease = state.genesis.lease if state.genesis is not None else 0.0
        return [
            MemberStatus(
                name=seat.name,
                address=seat.address,
                zone=seat.zone,
                weight=state.weights.get(seat.name, seat.weight),
                incarnation=incarnation,
                partitions=owned[incarnation],
                load=load[incarnation],
                lease_left=None if vital is None or is_away else max(0.0, vital.heard_at + lease - now),
                lag=None if vital is None else vital.lag,
                drained=seat.name in state.drains,
                joined=seat.joined,
                joined_ago=None if (at := self.joined_at.get(incarnation)) is None else max(0.0, now - at),
                witness=seat.witness,
                away=is_away,
            )
            for incarnation, seat in state.seats.items()
            for vital, is_away in ((vitals.get(incarnation), incarnation in state.away),)
        ]

    def moves_by(self, wish: Record) -> list[tuple[int, str | None, str | None]]:
        """Each partition that `wish` would move, with the names of its present and its future owner; None stands for no
        member. In the order of partitions."""
        state = self.state
        after = fold(state, state.at, wish)
        names = {seat.incarnation: seat.name for seat in (*state.seats.values(), *after.seats.values())}
        places = enumerate(zip(after.targets, state.owners, state.targets, strict=False))
        return [
            (partition, owner and names[owner], target and names[target])
            for partition, (target, owner, planned) in places
            if target not in (planned, owner)
        ]

    def balance_by(self, wish: Record) -> Balance:
        """How evenly loads are spread, using the loads and weights that count once `wish` is granted."""
        state = fold(self.state, self.state.at, wish)
        counting = [seat for seat in state.seats.values() if seat.name not in state.drains] or [*state.seats.values()]
        weights = {seat.incarnation: state.weights.get(seat.name, seat.weight) for seat in counting}
        if not any(weights.values()):
            weights = dict.fromkeys(weights, 1)
        # Like assignment: a partition whose load is not known counts as the mean of the others.
        known = state.loads.values()
        mean = sum(known) / len(known) if known else 1.0
        loads = [state.loads.get(partition, mean) for partition in range(len(state.owners))]
        fair = sum(loads) / (sum(weights.values()) or 1)

        def largest(owners: Sequence[str | None]) -> float:
            carried = dict.fromkeys(weights, 0.0)
            for owner, load in zip(owners, loads, strict=True):
                if owner in carried:
                    carried[owner] += load
            return max((carried[one] / weight / fair for one, weight in weights.items() if weight), default=1.0)

        share = max(weights.values(), default=1) / (sum(weights.values()) or 1)
        return Balance(largest(self.state.owners), largest(state.targets), share)

    def looks_like(self, other: "GroupView") -> bool:
        """Whether both look the same to people, apart from leases and counts."""
        one, two = self.state, other.state
        # Compared by identity: the fold keeps what a record does not change, and a Beat changes none of these.
        shown = ("seats", "owners", "targets", "standbys", "pins", "drains", "weights", "loads")
        return all(getattr(one, part) is getattr(two, part) for part in shown)

    def _places(self, incarnations: Sequence[str | None]) -> list[int | None]:
        places = {incarnation: place for place, incarnation in enumerate(self.state.seats)}
        return [places.get(incarnation) if incarnation else None for incarnation in incarnations]
