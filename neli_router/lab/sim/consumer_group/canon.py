"""Canonical keys of a borrowed group's miniature: worlds with the same key can only do the same from here on.

    absolute                     in the key
    a time                       how long until it ends something, or since it happened, as long as that matters
    offsets, terms, givings      their rank among those in sight, for each partition: new ones are only ever higher
    the names of the members     nothing: the places are ordered by what distinguishes them
    a heartbeat                  for each member: whether it is its own, and since when; strangers' all look the same
    due times of `neli`'s beats  nothing: any message may be appended at any time

`KEPT` and `LEFT_OUT` name every field of the machines, so that a new field cannot be overlooked. A key is bytes, not a
hash of them: an exploration that calls itself complete must not depend on luck.
"""

from bisect import bisect_left
from math import inf
from typing import NamedTuple

from neli_router.lab.sim.consumer_group.miniature import ConsumerBounds, ConsumerMiniature
from neli_router.lab.sim.consumer_group.process import BorrowedMachine
from neli_router.protocols.consumer_group.events import Confirmed, Given, Lost
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import NeliSettings

__all__ = ["KEPT", "LEFT_OUT", "consumer_key"]

# The fields of machines are private to them. Here they are accessed by name.
# ruff: noqa: SLF001

NONE = 255

FIRST = 1
"""The term that begins with offset 0: here `term_base` is 0."""

KINDS: dict[type, int] = {Given: 1, Lost: 2, Confirmed: 3}

KEPT = frozenset(
    {"_belief", "_held", "_tenures", "_publish_at", "_confirm_at", "_news", "_closing", "_left"}
    | {"vector", "_sent", "_since", "_proven"}
)
LEFT_OUT = {
    "settings": "the same in all worlds",
    "incarnation": "a name",
    "_name": "a name",
    "_began_at": "heartbeats are distinguished by what was sent",
    "_wall": "heartbeats are distinguished by what was sent",
    "_mark": "heartbeats are distinguished by what was sent",
    "_offsets": "the miniature's log loses nothing, so offsets rise",
    "_apart_told_at": "the miniature's clocks are within e",
    "_advised": "words in the log",
    "_away": "words in a reason",
    "error": "it has ended",
    "_told": "it has ended",
}


class _Ranks(NamedTuple):
    """For one partition: what is in sight, in order, and the terms that count."""

    offsets: dict[int, int]
    givings: dict[int, int]
    acted: list[tuple[int, tuple[int, int]]]


def consumer_key(world: ConsumerMiniature, bounds: ConsumerBounds) -> bytes:
    """The key of `world`."""
    partitions = range(bounds.partitions)
    ranks = [_ranks(world, i) for i in partitions]
    places = sorted(_place(world, index, bounds, ranks) for index in range(len(world.places)))
    key: list[int] = []
    settings = bounds.settings("any")
    counts_for = int(settings.grace) if isinstance(settings, NeliSettings) and settings.exclusive else 0
    for i in partitions:
        offsets, _, acted = ranks[i]
        key.append(len(world.logs[i]))
        for message in world.logs[i]:
            key.append(offsets[message.offset])
            key.append(_capped(world.now - (message.appended_at or 0), counts_for))
        for giving, (low, high) in acted:
            key += (giving, offsets[low], offsets[high])
        key.append(NONE)
    return bytes(key) + b"".join(places)


def _capped(age: float, most: int) -> int:
    return int(age) if age < most else most


def _ranks(world: ConsumerMiniature, partition: int) -> _Ranks:
    """Whatever some place may still act under, or compare, is in sight."""
    offsets = {message.offset for message in world.logs[partition]}
    givings: set[int] = set()
    for place in world.places:
        machine = place.machine
        if machine is None:
            continue
        if world.now < machine._ends(partition):
            held, began = machine._held.get(partition), machine._tenures.get(partition)
            offsets.update(one for one in (began, held.proposed if held is not None else None) if one is not None)
        if place.positions[partition] is not None:
            givings.add(place.given[partition])
        if (act := place.acts[partition]) is not None:
            givings.add(act[1])
        for told in place.changes:
            givings.update(giving for i, giving in told.givings if i == partition)
            if isinstance(told.event, Confirmed) and (offset := told.event.offsets.get(partition)) is not None:
                offsets.add(offset)
    lowest, sight = min(offsets, default=world.ends[partition]), sorted(givings)
    codes: dict[int, int] = {giving: 2 * rank + 1 for rank, giving in enumerate(sight)}
    acted: dict[int, tuple[int, int]] = {}
    for giving, lowest_term, highest_term in world.acted[partition]:
        low, high = lowest_term - FIRST, highest_term - FIRST
        # Givings that no place can act by any more are merged if they lie between the same two that count.
        code = codes.get(giving, 2 * bisect_left(sight, giving))
        if code > 1 or high >= lowest:  # Otherwise every later act is under a higher term.
            least, most = acted.get(code, (high, high))
            acted[code] = min(least, low) if code > 1 else high, max(most, high)
    for terms in acted.values():
        offsets.update(terms)
    return _Ranks({offset: rank for rank, offset in enumerate(sorted(offsets))}, codes, sorted(acted.items()))


def _place(world: ConsumerMiniature, index: int, bounds: ConsumerBounds, ranks: list[_Ranks]) -> bytes:
    """Everything one place has, in ranks that both places share."""
    place = world.places[index]
    machine, now = place.machine, world.now
    silent = bounds.protocol == "fast-neli" and (place.frozen or machine is None)
    key: list[int] = [
        (machine is not None) | place.frozen << 1 | place.is_member << 2,
        _capped(now - place.heard_at, bounds.patience) if silent else 0,
    ]
    key += [holder == index for holder in world.holders]
    for told in place.changes:
        key.append(KINDS[type(told.event)])
        for i, giving in told.givings:
            key += (i, ranks[i].givings[giving])
        for i, offset in told.event.offsets.items() if isinstance(told.event, Confirmed) else ():
            key += (i, ranks[i].offsets[offset])
        key.append(NONE)
    key.append(NONE)
    for i, body in place.unsent:
        key += (i, _heartbeat(machine, i, body, now))
    key.append(NONE)
    if machine is None:
        return bytes(key)
    for i in range(bounds.partitions):
        offsets, givings, _ = ranks[i]
        _add_partition(key, machine, i, offsets, now)
        position, act, log = place.positions[i], place.acts[i], world.logs[i]
        if position is not None:
            unread = [message.offset for message in log if position.next <= message.offset < position.stop]
            key += (givings[place.given[i]], len(unread), offsets[unread[0]] if unread else 0, position.stop == inf)
        key.append(NONE)
        if act is not None:
            key += (offsets[act[0] - FIRST], givings[act[1]])
        if isinstance(machine, NeliMachine) and not machine.settings.exclusive:
            key.append(_capped(now - place.received_at[i], int(machine.settings.t)))
        if isinstance(machine, FastNeliMachine):
            key += [_heartbeat(machine, i, message.body, now) for message in log]
    # Without a partition nothing is published, and with the next one it is immediately. The same goes for the question
    # whether a tenure begins. Only a doubt of `fast-neli` about what it holds waits for its turn.
    fast = isinstance(machine, FastNeliMachine) and bool(machine._held)
    due = fast and machine._publish_at <= now
    asks = (fast or bool(machine._questions())) and machine._confirm_at <= now
    key.append(due | asks << 1 | machine._news << 2 | machine._closing << 3 | machine._left << 4)
    return bytes(key)


def _add_partition(key: list[int], machine: BorrowedMachine, partition: int, offsets: dict[int, int], now: int) -> None:
    """Everything a machine keeps about one partition."""
    # Every step begins by ending what has lapsed, so a lapsed tenure has ended already.
    left = int(max(0, machine._ends(partition) - now))
    held, belief = machine._held.get(partition), machine._belief
    key.append(left)
    if held is None:
        key.append(NONE)
    else:
        key.append(held.asked_back | (held.began and left > 0) << 1 | (held.doubted and left > 0) << 2)
        key.append(offsets[held.proposed] if held.proposed is not None and left > 0 else NONE)
        if isinstance(machine, NeliMachine) and machine.settings.exclusive:
            key.append(_capped(now - held.given_at, int(machine.settings.grace)))
    began = machine._tenures.get(partition)
    if began is None or left == 0:
        key.append(NONE)
        return
    until = belief.draining.get(partition)
    key += (offsets[began], belief.leading.get(partition) == began + FIRST, partition in belief._succeeded)
    key.append(NONE if until is None else max(0, int(until) - now))


def _heartbeat(machine: BorrowedMachine | None, partition: int, body: bytes | None, now: int) -> int:
    """A heartbeat as a machine sees it: how long ago the machine sent it, if it is its own."""
    if not isinstance(machine, FastNeliMachine) or (mark := machine._read(body)) is None or mark[1] != machine._name:
        return NONE
    sent_at = machine._sent.get(mark[0])
    if sent_at is None:
        return NONE
    if mark[0] <= machine._since.get(partition, -1):
        return NONE - 1
    return _capped(now - sent_at, int(machine.settings.heartbeat_timeout))
