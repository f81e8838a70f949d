"""Views: what an agent's member knows, as the wire says it.

    chronicle.told (one state, and what was noted of it) --.
    feed.view (a table, or why there is none) -------------+--> views
    feed.at (how far, how long ago) -----------------------'

Each function takes values that never change, so it can be called whenever, and what it gives is true of one offset. The
table that *look-ups* go by is the feed's. People are shown the state that the chronicle folded, which has more in it:
targets, pins, loads. Of one offset the two say the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from neli_router.agent.wire import (
    Cause,
    LeaseView,
    MembersView,
    MemberView,
    MovesView,
    MoveView,
    OwnerView,
    PartitionView,
    StatusView,
    TableView,
)
from neli_router.induction.fold import State
from neli_router.leases import BaseLease
from neli_router.router.refusal import At, View
from neli_router.router.table import Table
from neli_router.status.chronicle import Move, Told, Vital

__all__ = [
    "AGE_MAX",
    "MOVES_SHOWN",
    "age_of",
    "lease_view",
    "led_view",
    "member_views",
    "members_view",
    "move_views",
    "moves_view",
    "owner_view",
    "planned_views",
    "status_view",
    "table_view",
]

AGE_MAX = 1e9
"""What stands for "never read", because JSON has no infinity."""

MOVES_SHOWN = 100
"""Moves in a status: what fits on a page."""


def age_of(at: At) -> float:
    return min(AGE_MAX, at.age)


def owner_view(view: View, partition: int, slot: int | None, at: At) -> OwnerView:
    """The owner of `partition`, or that there is none."""
    if isinstance(view, Table):
        owner = view.partitions[partition]
        if owner is not None:
            return OwnerView(partition, owner.name, owner.address, owner.term, slot, at.offset, age_of(at))
        why = view.nobody[0]
    else:
        why = view.explain(f"the owner of partition {partition} was wanted").found
    return OwnerView(partition, None, slot=slot, at=at.offset, age=age_of(at), why=why)


def led_view(lease: BaseLease, drain_timeout: float, why: str = "") -> LeaseView:
    """A lease that this member was given; whether it holds is asked now."""
    remaining = lease.remaining()
    return LeaseView(lease.partition, remaining > 0, lease.member, lease.term, remaining, drain_timeout, why)


def lease_view(partition: int, member: str, why: str, term: int = 0) -> LeaseView:
    """A lease that this member does not have, or had under `term`."""
    return LeaseView(partition, leads=False, member=member, term=term, why=why)


def table_view(state: State, address: str, at: At) -> TableView:
    places = {incarnation: place for place, incarnation in enumerate(state.seats)}
    partitions = [
        PartitionView(
            places.get(owner) if owner else None,
            term,
            places.get(target) if target else None,
            state.pins.get(partition),
            state.loads.get(partition, 0.0),
        )
        for partition, (owner, term, target) in enumerate(zip(state.owners, state.terms, state.targets, strict=True))
    ]
    slots = state.genesis.layout.slots if state.genesis is not None else 0
    return TableView(address, slots, partitions, at.offset, age_of(at))


def member_views(told: Told, now: float) -> list[MemberView]:
    """The members, in the order in which they joined: the places that a TableView means."""
    state = told.state
    owned: defaultdict[str, int] = defaultdict(int)
    load: defaultdict[str, float] = defaultdict(float)
    for partition, owner in enumerate(state.owners):
        if owner is not None:
            owned[owner] += 1
            load[owner] += state.loads.get(partition, 0.0)
    lease = state.genesis.lease if state.genesis is not None else 0.0
    return [
        MemberView(
            name=seat.name,
            address=seat.address,
            zone=seat.zone,
            weight=state.weights.get(seat.name, seat.weight),
            incarnation=incarnation,
            partitions=owned[incarnation],
            load=load[incarnation],
            lease_left=_left(told.vitals.get(incarnation), lease, now),
            lag=vital.lag if (vital := told.vitals.get(incarnation)) is not None else None,
            drained=seat.name in state.drains,
            joined=seat.joined,
        )
        for incarnation, seat in state.seats.items()
    ]


def members_view(told: Told, at: At, now: float) -> MembersView:
    return MembersView(member_views(told, now), at.offset, age_of(at))


def move_views(moves: Sequence[Move], now: float, limit: int) -> list[MoveView]:
    """The last `limit` of them, the newest last."""
    return [
        MoveView(
            move.offset,
            max(0.0, now - move.read_at),
            list(move.partitions),
            move.source,
            move.target,
            move.cause,
            move.by,
        )
        for move in moves[max(0, len(moves) - limit) :]
    ]


def moves_view(told: Told, now: float, limit: int) -> MovesView:
    return MovesView(move_views(told.moves, now, limit))


def planned_views(
    plan: Iterable[tuple[int, str | None, str | None]], offset: int, cause: Cause, by: str
) -> list[MoveView]:
    """What a wish moves: (partition, from whom, to whom), put together by the two."""
    pairs: defaultdict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for partition, source, target in plan:
        pairs[source, target].append(partition)
    return [
        MoveView(offset, 0.0, partitions, source, target, cause, by) for (source, target), partitions in pairs.items()
    ]


def status_view(
    told: Told,
    view: View,
    at: At,
    *,
    now: float,
    agent: str,
    version: str,
    guarantee: str,
    lease: float,
    doing: str,
    address: str,
    led: int,
) -> StatusView:
    if isinstance(view, Table):
        why = view.nobody[0] if None in view.partitions else ""
    else:
        error = view.explain("the table was wanted")
        why = f"{error.found}: {error.remedy}"
    return StatusView(
        agent=agent,
        version=version,
        guarantee=guarantee,
        lease=lease,
        member=doing,
        table=table_view(told.state, address, at),
        members=member_views(told, now),
        moves=move_views(told.moves, now, MOVES_SHOWN),
        why=why,
        led=led,
    )


def _left(vital: Vital | None, lease: float, now: float) -> float | None:
    return None if vital is None else max(0.0, vital.heard_at + lease - now)
