"""Canonical keys of the electors' miniature: two worlds with one key can only do the same from here on.

    absolute                   in the key
    a time                     how long until it ends something; nothing once it has
    a counter                  how long ago it was sent, and whether it is a proposal's: one that is not above what was
                               heard before is on no wire any more
    a term                     itself: they are few
    the ids of the places      nothing: the places are put in every order that their own fields leave open, and the
                               least key counts. Only scouts compare ids
    a vote                     who has it, while its proposal may still arrive again
    a message on its wire      nothing, if its receiver can only ignore it from now on

`KEPT` and `LEFT_OUT` name every field of the machine, so that a field that is new is not forgotten here. A key is
bytes, not a hash of them: an exploration that calls itself complete must not rest on luck.
"""

from itertools import permutations
from math import ceil, inf

from neli_router.electors.term import (
    Ceded,
    Heartbeat,
    Message,
    Proposal,
    Role,
    Support,
)
from neli_router.sim.electors.miniature import PLACES, ElectorBounds, ElectorMiniature, wire

__all__ = ["KEPT", "LEFT_OUT", "elector_key"]

# What machines keep is private to them. Here it is asked for by name.
# ruff: noqa: SLF001

NONE = 255

ROLES = {Role.FOLLOWER: 1, Role.CANDIDATE: 2, Role.LEADER: 3}

KEPT = frozenset(
    {"role", "term", "acts_from", "acts_until", "_voted", "_owes_until", "_promises", "_sent", "_supporters"}
    | {"_rejected", "_due"}
)
LEFT_OUT = {
    "me": "a name",
    "leader": "it decides when a follower stands, and here it may at any time",
    "_lsn": "what is not above it is on no wire any more",
    "_answers": "there are no scouts",
    "_round": "there are no scouts",
    "_starved": "there are no scouts",
    "peers": "the same in all worlds",
    "quorum": "the same in all worlds",
    "priority": "the same in all worlds",
    "_settings": "the same in all worlds",
    "_policy": "the same in all worlds",
    "_rng": "the policy draws nothing here",
    "_lost": "it tells nothing to a policy without priorities",
    "_target": "the same without priorities",
    "_counter": "a new one is above all that are in sight",
    "_begun": "it only tells when to be stepped, and such a step changes nothing else",
    "_passed": "nobody is preferred here",
}


def elector_key(world: ElectorMiniature, bounds: ElectorBounds) -> bytes:
    """The key of `world`."""
    own = [_own(world, index, bounds) for index in PLACES]
    toward = [[_toward(world, index, other, bounds) for other in PLACES] for index in PLACES]
    least = min(
        b"".join((*(own[one] for one in order), *(toward[one][other] for one in order for other in order)))
        for order in _orders(own)
    )
    return _past(world, bounds) + least


def _orders(own: list[bytes]) -> list[tuple[int, ...]]:
    """Every order in which no place comes before one with lesser fields of its own."""
    if own[0] != own[1] != own[2] != own[0]:
        return [tuple(sorted(PLACES, key=own.__getitem__))]
    return [order for order in permutations(PLACES) if own[order[0]] <= own[order[1]] <= own[order[2]]]


def _past(world: ElectorMiniature, bounds: ElectorBounds) -> bytes:
    """What was led and acted under by processes that are no more, as far as anybody could do so again."""
    births = {place.birth for place in world.places}
    gone = [term for term, _, birth in world.led if birth not in births and _may_be_led(term, world, bounds)]
    acted, birth = world.acted
    lowest = min(place.elector.term for place in world.places)
    if birth in births or (acted < lowest and not bounds.forget):
        acted = 0
    return bytes((world.restarts if bounds.restarts else 0, acted, len(gone), *gone))


def _may_be_led(term: int, world: ElectorMiniature, bounds: ElectorBounds) -> bool:
    if bounds.forget:
        return True
    electors = (place.elector for place in world.places)
    return any(one.term < term or (one.term == term and one.role is Role.CANDIDATE) for one in electors)


def _own(world: ElectorMiniature, index: int, bounds: ElectorBounds) -> bytes:
    """What a place has that names no other."""
    place, now = world.places[index], world.now
    elector = place.elector
    key = [
        ROLES[elector.role],
        elector.term,
        place.kept,
        _left(elector.acts_from, now),
        _left(elector.acts_until, now),
        _left(elector._owes_until, now),
        _left(elector._due, now) if elector.role is not Role.FOLLOWER else 0,
        world.acted[0] if world.acted[1] == place.birth else 0,
    ]
    key += [term for term, _, birth in world.led if birth == place.birth and _may_be_led(term, world, bounds)]
    key.append(NONE)
    return bytes(key)


def _left(until: float, now: int) -> int:
    """How long until then, in whole ticks."""
    if until == inf:
        return NONE
    return ceil(until - now) if until > now else 0


def _age(sent_at: float, now: int, bounds: ElectorBounds) -> int:
    return int(min(now - sent_at, bounds.lease))


def _toward(world: ElectorMiniature, index: int, other: int, bounds: ElectorBounds) -> bytes:
    """What a place has of another, or of itself, and what it has said to it that may yet arrive."""
    elector, now = world.places[index].elector, world.now
    key: list[int] = [other in elector._rejected]
    if elector._voted == other and Proposal(elector.term) in world.wires[wire(other, index)]:
        key.append(elector.term)
    promise = elector._promises.get(other)
    if promise is not None and promise[1] > now:
        key += (promise[0], _left(promise[1], now))
    key.append(NONE)
    supporter = elector._supporters.get(other)
    if supporter is not None:
        key += (_age(supporter.sent_at, now, bounds), _left(supporter.clear_at, now))
    key.append(NONE)
    said = [_message(message, world, index, other, bounds) for message in world.wires[wire(index, other)]]
    if len(said) > 1:
        said.sort(key=lambda one: one[0])  # Those of one kind keep their order.
    for one in said:
        key += one
    key.append(NONE)
    return bytes(key)


def _message(
    message: Message, world: ElectorMiniature, sender: int, receiver: int, bounds: ElectorBounds
) -> tuple[int, ...]:
    """Counters tell when something was sent. They are compared, too, but what is not above others' is ignored."""
    by, to = world.places[sender].elector, world.places[receiver].elector
    match message:
        case Proposal(term):
            return (1, term)
        case Support(term, counter, owed):
            age = _age(to._sent.get(counter, -inf), world.now, bounds) if to.term == term else NONE
            return (2, term, counter == 0, age, ceil(owed))
        case Heartbeat(term, counter):
            age = _age(by._sent.get(counter, -inf), world.now, bounds) if by.term == term else NONE
            return (3, term, age)
        case Ceded(term, _, heir):
            return (4, term, heir == receiver)
    raise AssertionError(f"{message} is on no wire")
