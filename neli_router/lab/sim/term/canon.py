"""Canonical keys of the electors' miniature: worlds with the same key can only do the same from here on.

    absolute                   in the key
    a time                     how long until it ends something; nothing once it has
    a counter                  how long ago it was sent, and whether it is a proposal's: a counter that is not above
                               what was heard before is on no wire any more
    a term                     itself: there are few
    the ids of the places      nothing: the places are put in every order that their own fields leave open, and the
                               least key counts. Only scouts compare ids
    a vote                     whether a proposal has it, with each proposal that may still arrive again
    what was heard last        its term, if that is above the place's own. A term that is not is on no wire any more
    a message on its wire      nothing, if its receiver can only ignore it from now on
    a promise                  how much longer it binds than what all are owed; its term only if Ceded may end it
    a supporter                how old its support is. If its support ran out, it is like one that never supported
    what supporters owe        nothing, once the leader may act: no message of theirs makes that later

`KEPT` and `LEFT_OUT` name every field of the machine, so that a new field cannot be overlooked. A key is bytes, not a
hash of them: an exploration that calls itself complete must not depend on luck.

**One world covers another** if it can do all that the other can, so that the other need not be explored. A key has
three parts for that:

    frame      places, and all they have     the same in both
    past       restarts; who acted last      no more restarts than in the other, and no lower term acted under
    wires      what may arrive               on each wire the other's messages, and perhaps older ones after them

- *More on its way*: each message may as well be lost. A newer message pushes the same ones off both wires.
- *Fewer restarts*: more are to come.
- *More acted*: a rule that the other world would break by acting under a lower term, this one breaks, too.

Less owed does not cover more owed, although it lets a leader act sooner: a leader that acts owes more when it is
unseated. A test follows every pair one step further: whatever the covered world can do, the other can, and covers it
again.
"""

from itertools import permutations
from math import ceil, inf

from neli_router.lab.sim.term.miniature import PLACES, ElectorBounds, ElectorMiniature, ElectorPlace, wire
from neli_router.protocols.term.elector import (
    Ceded,
    Heartbeat,
    Message,
    Proposal,
    Role,
    Support,
    TermElector,
)

__all__ = ["KEPT", "LEFT_OUT", "ElectorCover", "elector_key", "elector_keys"]

# The fields of machines are private to them. Here they are accessed by name.
# ruff: noqa: SLF001

NONE = 255
SPLIT = b"\xfe"
"""Between two parts of a key, and between the wires. Nothing that is counted here is this large."""
OLD = 253
"""The age of what was sent under another term."""

ROLES = {Role.FOLLOWER: 1, Role.CANDIDATE: 2, Role.LEADER: 3}

KEPT = frozenset(
    {"role", "term", "acts_from", "acts_until", "_voted", "_owes_until", "_promises", "_sent", "_supporters"}
    | {"_begun", "_rejected", "_due", "_lsn", "_told_until"}
)
LEFT_OUT = {
    "me": "a name",
    "leader": "it decides when a follower stands, and here it may at any time",
    "_answers": "there are no scouts",
    "_round": "there are no scouts",
    "_starved": "there are no scouts",
    "peers": "the same in all worlds",
    "quorum": "the same in all worlds",
    "priority": "the same in all worlds",
    "stands": "the same in all worlds",
    "_settings": "the same in all worlds",
    "_policy": "the same in all worlds",
    "_rng": "the policy draws nothing here",
    "_lost": "it means nothing to a policy without priorities",
    "_target": "the same without priorities",
    "_counter": "a new one is above all that are in sight",
    "_passed": "no place is preferred here",
}

Part = tuple[bytes, tuple[bytes, ...]]
"""The frame and the wires of a place toward another."""


def elector_key(world: ElectorMiniature, bounds: ElectorBounds) -> bytes:
    """The key of `world`."""
    return min(elector_keys(world, bounds))


def elector_keys(world: ElectorMiniature, bounds: ElectorBounds) -> set[bytes]:
    """A key for each order of the places that the frame leaves open."""
    own = [_own(world, index, bounds) for index in PLACES]
    toward = [[_toward(world, index, other, bounds) for other in PLACES] for index in PLACES]
    past = _past(world, bounds)
    acted, holder = _acted(world, bounds)
    keys: set[bytes] = set()
    least = b""
    for order in _orders(own):
        pairs = [toward[one][other] for one in order for other in order]
        frame = b"".join([past, *(own[one] for one in order), *(pair[0] for pair in pairs)])
        if keys and frame > least:
            continue
        if frame < least:
            keys.clear()
        least = frame
        last = bytes((world.restarts, acted, NONE if holder is None else order.index(holder)))
        keys.add(SPLIT.join((frame, last, *(wired for pair in pairs for wired in pair[1]))))
    return keys


class ElectorCover:
    """The keys seen so far that no earlier key covered."""

    def __init__(self) -> None:
        self._seen: dict[bytes, list[tuple[bytes, int, int, int, tuple[bytes, ...]]]] = {}

    def covers(self, key: bytes) -> bool:
        """Whether a key seen earlier covers this one. If none does, remember this key."""
        return self.covering(key) is not None

    def covering(self, key: bytes) -> bytes | None:
        """The key seen earlier that covers this one. If none does, remember this key."""
        frame, past, *slots = key.split(SPLIT)
        (restarts, acted, holder), wires = past, tuple(slots)
        seen = self._seen.setdefault(frame, [])
        for known, spent, most, by, more in seen:
            if (
                (most > acted or (most == acted and by == holder))
                and spent <= restarts
                and all(map(bytes.startswith, more, wires))
            ):
                return known
        seen.append((key, restarts, acted, holder, wires))
        return None


def _orders(own: list[bytes]) -> list[tuple[int, ...]]:
    """Every order in which no place comes before one with lesser fields of its own."""
    if own[0] != own[1] != own[2] != own[0]:
        return [tuple(sorted(PLACES, key=own.__getitem__))]
    return [order for order in permutations(PLACES) if own[order[0]] <= own[order[1]] <= own[order[2]]]


def _past(world: ElectorMiniature, bounds: ElectorBounds) -> bytes:
    """The terms that ended processes led, as far as any place could lead them again."""
    births = {place.birth for place in world.places}
    gone = [term for term, _, birth in world.led if birth not in births and _may_be_led(term, birth, world, bounds)]
    return bytes((world.broken is not None, len(gone), *gone))


def _acted(world: ElectorMiniature, bounds: ElectorBounds) -> tuple[int, int | None]:
    """The highest term that was acted under, and the living place that did, if any other may act under it."""
    term, birth = world.acted
    if not any(_may_act(place, term, birth) for place in world.places) and not bounds.forget:
        return 0, None
    return term, next((index for index, place in enumerate(world.places) if place.birth == birth), None)


def _may_act(place: ElectorPlace, term: int, birth: int) -> bool:
    """Whether `place` may still act under `term` or a lower one, and is not the process `birth`."""
    elector = place.elector
    if min(elector.term, place.kept) < term:
        return True
    return elector.term == term and elector.role is not Role.FOLLOWER and place.birth != birth


def _may_be_led(term: int, birth: int, world: ElectorMiniature, bounds: ElectorBounds) -> bool:
    """Whether another process than `birth` may still win `term`."""
    if bounds.forget:
        return True
    return any(
        min(place.elector.term, place.kept) < term
        or (place.elector.term == term and place.elector.role is Role.CANDIDATE)
        for place in world.places
        if place.birth != birth
    )


def _is_lapsed(elector: TermElector, now: int) -> bool:
    """Whether a leader's majority is lost: whatever comes next, it steps down first."""
    return elector.role is Role.LEADER and elector.acts_until <= now


def _own(world: ElectorMiniature, index: int, bounds: ElectorBounds) -> bytes:
    """The part of a place's state that names no other place."""
    place, now = world.places[index], world.now
    elector = place.elector
    frame = [ROLES[elector.role], elector.term, place.kept, _left(elector._owes_until, now)]
    frame.append(_left(elector._told_until, now))
    if elector.role is Role.LEADER:
        frame += [int(elector._begun), _left(elector.acts_from, now), _left(elector.acts_until, now)]
    if elector.role is not Role.FOLLOWER and not _is_lapsed(elector, now):
        frame.append(_left(elector._due, now))
    if elector._lsn[0] > elector.term:  # Lower terms' heartbeats are ignored, also those that are not sent yet.
        frame += [NONE, elector._lsn[0]]
    frame += [term for term, _, birth in world.led if birth == place.birth and _may_be_led(term, birth, world, bounds)]
    frame.append(NONE)
    return bytes(frame)


def _left(until: float, now: int) -> int:
    """The time until then, in whole ticks."""
    if until == inf:
        return NONE
    return ceil(until - now) if until > now else 0


def _age(sent_at: float, now: int, bounds: ElectorBounds) -> int:
    return int(min(now - sent_at, bounds.lease))


def _toward(world: ElectorMiniature, index: int, other: int, bounds: ElectorBounds) -> Part:
    """The state a place has about another or about itself, and its messages to it that may still arrive."""
    elector, now = world.places[index].elector, world.now
    frame = [int(other in elector._rejected)]
    owed = _left(elector._owes_until, now)
    promise = elector._promises.get(other)
    if promise is not None and promise[1] > now:
        owed = max(owed, _left(promise[1], now))
        if bounds.forget or _is_term_wanted(promise[0], world, index, other):
            frame.append(promise[0])
    frame += [NONE, owed]
    age, clear = bounds.lease, NONE
    supporter = elector._supporters.get(other)
    if supporter is not None:
        age = _age(supporter.sent_at, now, bounds)
        clear = 0 if elector.acts_from <= now else _left(supporter.clear_at, now)
    frame += [age, clear]
    if index == other:
        return bytes(frame), ()
    slots: dict[type[Message], bytes] = {Proposal: b"", Support: b"", Heartbeat: b"", Ceded: b""}
    for message in world.wires[wire(index, other)]:
        slots[type(message)] += _message(message, world, index, other, bounds)
    return bytes(frame), tuple(slots.values())


def _is_term_wanted(promised: int, world: ElectorMiniature, index: int, leader: int) -> bool:
    """Whether there may be a Ceded of `leader` that ends the promise, and another that does not."""
    if min(world.places[leader].elector.term, world.places[leader].kept) < promised:
        return True
    return any(isinstance(one, Ceded) and one.term < promised for one in world.wires[wire(leader, index)])


def _message(message: Message, world: ElectorMiniature, sender: int, receiver: int, bounds: ElectorBounds) -> bytes:
    """Counters show when something was sent. They are compared, too, but a counter not above others' is ignored."""
    by, to, now = world.places[sender].elector, world.places[receiver].elector, world.now
    match message:
        case Proposal(term):
            age = _age(by._sent.get(0, -inf), now, bounds) if by.term == term else OLD
            return bytes((term, to._voted == sender and to.term == term, age))
        case Support(term, counter, owed):
            sent_at = to._sent.get(counter, -inf)
            known = to._supporters.get(sender)
            owing = ceil(owed)
            if to.term == term and to.role is Role.LEADER:
                if known is not None:
                    sent_at = max(sent_at, known.sent_at)
                    owing = min(owing, _left(known.clear_at, now))
                if to.acts_from <= now:
                    owing = 0
            age = _age(sent_at, now, bounds) if to.term == term else OLD
            return bytes((term, counter == 0 and to.role is not Role.LEADER, age, owing))
        case Heartbeat(term, counter):
            age = _age(by._sent.get(counter, -inf), now, bounds) if by.term == term else OLD
            return bytes((term, age))
        case Ceded(term, _, heir):
            return bytes((term, heir == receiver and to.term <= term))
    raise AssertionError(f"{message} is on no wire")
