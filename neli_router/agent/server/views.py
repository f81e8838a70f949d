"""Views: what an agent's member knows, in the classes of the wire.

    chronicle.group (one GroupView) --.
                                      +--> views
    feed.at (how far, how long ago) --'

*Look-ups* use the feed's table (`agent/owners.py`). People see the group's view, with targets, pins and loads. At one
offset both agree.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from neli_router.agent import wire
from neli_router.agent.owners import age_of
from neli_router.drivers.peers.outlook import Outlook, why_led
from neli_router.protocols.protocol import Cause
from neli_router.router.table import At
from neli_router.status.causes import OF_MEMBERS
from neli_router.status.group_view import GroupEvent, GroupView

__all__ = [
    "EVENTS_SHOWN",
    "MOVES_SHOWN",
    "event_view",
    "history_views",
    "member_views",
    "moves_view",
    "peers_view",
    "planned_views",
    "table_view",
    "why_unled",
]

MOVES_SHOWN = 100
"""Moves in an answer, if the client does not say how many."""

EVENTS_SHOWN = 50
"""Member events in a status, and the same number of others: as many as fit on a page."""

NAMED_MAX = 20_000
"""Partitions that the events of one answer name, newest first; older events only give the number that moved. A status
goes to every page once a second."""


def table_view(group: GroupView, address: str, at: At, outlook: Outlook | None = None) -> wire.TableView:
    """Owners, terms, targets and standbys, with the reasons that `outlook` knows."""
    pins, loads = group.pins, group.loads
    partitions = [
        wire.PartitionView(owner, term, target, pins.get(partition), loads.get(partition, 0.0), standby)
        for partition, (owner, term, target, standby) in enumerate(
            zip(group.owners, group.terms, group.targets, group.standbys, strict=True)
        )
    ]
    why = [
        why_led(outlook, partition, None if one.owner is None else one.term)
        for partition, one in enumerate(partitions)
        if outlook is not None
    ]
    return wire.TableView(address, group.slots, partitions, at.offset, age_of(at), group.tags, why)


def moves_view(group: GroupView, now: float, limit: int) -> wire.MovesView:
    """The last `limit` rows of moves, newest cause last."""
    moves = group.moves
    return wire.MovesView(
        [
            wire.MoveView(
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
    )


def history_views(group: GroupView, now: float, limit: int) -> list[wire.EventView]:
    """The last `limit` member events and the last `limit` others, by offset."""
    shown: list[wire.EventView] = []
    left, named = {True: limit, False: limit}, NAMED_MAX
    for event in reversed(group.events):
        is_of_members = event.cause in OF_MEMBERS
        if left[is_of_members] > 0:
            left[is_of_members] -= 1
            named -= sum(len(moved.partitions) for moved in event.moved)
            shown.append(event_view(event, now, is_whole=named >= 0))
    return shown[::-1]


def event_view(event: GroupEvent, now: float, *, is_whole: bool = True) -> wire.EventView:
    """`event`; unless `is_whole`, only with the numbers of partitions."""
    return wire.EventView(
        offset=event.offset,
        ago=max(0.0, now - event.read_at),
        cause=event.cause,
        member=event.member,
        by=event.by,
        moved=[
            wire.MovedView(moved.source, moved.target, moved.number, list(moved.partitions) if is_whole else [])
            for moved in event.moved
        ],
        partition=event.partition,
        last=event.last,
        lasted=event.last_at - event.read_at,
        reason=event.reason,
        term=event.term,
    )


def planned_views(
    plan: Iterable[tuple[int, str | None, str | None]], offset: int, cause: Cause, by: str
) -> list[wire.MoveView]:
    """The moves of a wish, each (partition, source, target), grouped by source and target."""
    pairs: defaultdict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for partition, source, target in plan:
        pairs[source, target].append(partition)
    return [wire.MoveView(offset, 0.0, moved, source, target, cause, by) for (source, target), moved in pairs.items()]


def peers_view(outlook: Outlook) -> wire.PeersView:
    known = [led for led in outlook.leaders if led is not None]
    leads = Counter(led.leader for led in known)
    heard = outlook.heard_at
    return wire.PeersView(
        peers=[
            wire.PeerView(
                peer=peer,
                state=outlook.state(place),
                heard_ago=outlook.silent_for(place) if place == outlook.me or place in heard else None,
                leads=leads[place],
                reason=outlook.refusals.get(place, "") if place != outlook.me else "",
                votes=outlook.votes(place),
                **({} if (card := outlook.cards.get(place)) is None else msgspec.structs.asdict(card)),
            )
            for place, peer in enumerate(outlook.peers)
        ],
        majority=outlook.quorum,
        alive=outlook.alive,
        term=max((led.term for led in known), default=0),
        unled=leads[None],
        voters=len(outlook.voters),
    )


def why_unled(outlook: Outlook | None) -> str:
    """Why partitions have no leader, as a member among peers knows it; empty if each has one."""
    return "this member has not begun to listen to its peers" if outlook is None else outlook.why_unled


def member_views(group: GroupView, now: float) -> list[wire.MemberView]:
    """The members in the order in which they joined: the indexes that a TableView uses."""
    return [wire.MemberView(**member._asdict()) for member in group.members(now)]
