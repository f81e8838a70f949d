"""Canonical keys of gossiping electors: worlds with the same key can only do the same from here on.

    absolute                   in the key
    a time                     how long until it ends something; nothing once it has
    a bound, a clock, a floor  how far it lags behind the clock that it refers to; from P on, all lags are alike
    a declaration              nothing, if it is older than P, not above its favourite's floor, or for an older life
    a support's term           whether it is high enough for the term that its leader took: a later one is above it
    a floor that was heard     whether it frees its hearer now, or would if the hearer renewed its declaration
    a life                     how many lives the place has had since
    a term                     itself: there are few
    an electorate              itself: there are few of these, too
    a support's electorate     nothing, if it is older than its leader's: it counts as any other, from now on. Otherwise
                               its tag: a current one lets a change settle, and a later one counts only once it is known
    the names of the places    nothing: they are put in every order that their own fields leave open, and the least key
                               counts. Where the electorate changes, they stay as they are: electorates name them
    when a leader stops acting nothing: it follows from its supports. Where the electorate changes, how long until then:
                               a leader that has just changed it counts its supports in a later step
    a word that may be heard   what it would change for its hearer; nothing if that is nothing. While its hearer may
                               restart, also its effect on a hearer that has forgotten everything but its term
    the highest acted term     nothing, once no place can act under it or a lower one any more

`KEPT` and `LEFT_OUT` name every field of the election and its clocks, so that a new field cannot be overlooked.
"""

from itertools import permutations
from math import ceil

from neli_router.lab.sim.gossip.miniature import FIRST, GossipBounds, GossipMiniature, Word, clock
from neli_router.protocols.gossip.clocks import TICKS
from neli_router.protocols.gossip.election import Electorate, GossipElection

__all__ = ["KEPT", "LEFT_OUT", "rumour_key"]

NONE = 255
LAPSED = 254
VOID = 253
LEVEL = 100
QUARTER = TICKS // 4
"""Lags are whole quarters, as long as rates are ones and twos."""
AHEAD_MAX = 80
"""No bound is ever ahead of the clock that it bounds. Where a broken rule creates some, they must differ, too."""

KEPT = frozenset(
    {
        "acting",
        "acts_until",
        "clocks",
        "declared_at",
        "electorate",
        "favourite",
        "floor",
        "floors",
        "lead_term",
        "life",
        "lives",
    }
    | {"quiet_until", "supports", "term", "told_until", "triplet", "_bases", "_based_at", "_start"}
)
LEFT_OUT = {
    "_me": "a name",
    "_lease": "the same in all worlds",
    "_wait": "the same in all worlds",
    "_quiet": "the same in all worlds",
    "_rate": "the same in all worlds",
    "majority_until": "it follows from the supports, or is after `acts_until`: only who acts changes the electorate",
}


def rumour_key(world: GossipMiniature, bounds: GossipBounds) -> bytes:
    """The key of `world`."""
    places = bounds.places
    own = [_own(world, index, bounds) for index in places]
    toward = [[_toward(world, index, other, bounds) for other in places] for index in places]
    past = bytes((world.restarts if bounds.restarts else 0, world.changes, _past(world)))
    orders = [tuple(places)] if bounds.changes else _orders(own)
    return past + min(
        b"".join((*(own[one] for one in order), *(toward[one][other] for one in order for other in order)))
        for order in orders
    )


def _orders(own: list[bytes]) -> list[tuple[int, ...]]:
    """Every order of three in which no place comes before one with lesser fields of its own."""
    if own[0] != own[1] != own[2] != own[0]:
        return [tuple(sorted(range(3), key=own.__getitem__))]
    return [order for order in permutations(range(3)) if own[order[0]] <= own[order[1]] <= own[order[2]]]


def _past(world: GossipMiniature) -> int:
    """The highest term that was acted under, as long as any place may still act under it or a lower one."""
    acted, by, life = world.acted
    for index, place in enumerate(world.places):
        election = place.election
        if election.term < acted:
            return acted
        if election.lead_term is not None and election.lead_term <= acted and (index, election.life) != (by, life):
            return acted
    return 0


def _own(world: GossipMiniature, index: int, bounds: GossipBounds) -> bytes:
    """The part of a place's state that names no other place."""
    election, now = world.places[index].election, clock(world, index, bounds)
    acted, by, life = world.acted
    lapsed = election.has_lapsed(now)
    lead = NONE if election.lead_term is None else LAPSED if lapsed else election.lead_term
    key = [
        bounds.rate(index),
        len(bounds.hears(index)),
        election.term,
        lead,
        election.acting and not lapsed,
        _left(max(now, election.told_until), now),
        _left(election.quiet_until, now) if election.favourite is None else NONE,
        _floor(election, now, bounds),
        (index, election.life) == (by, life) and acted == election.lead_term and not lapsed,
    ]
    if election.favourite is not None:
        key.append(0 if election.favourite[0] == index or election.is_free(now) else _left(election.free_at, now))
    if bounds.changes:
        key += (NONE, *_named(election.electorate))
        key.append(_lag(round((election.ends - now) * TICKS)) if election.acting and not lapsed else NONE)
    key.append(NONE)
    return bytes(key)


def _floor(election: GossipElection, now: float, bounds: GossipBounds) -> int:
    lag = election.clocks.elapsed(now) - election.floor
    if election.floor < 0 or (not bounds.floors and lag >= bounds.lease * TICKS):
        return NONE
    return _recent(lag, bounds)


def _named(electorate: Electorate) -> tuple[int, ...]:
    """Its tag and its members. Broken rules can make two electorates with one tag."""
    return (*electorate.tag, *(sum(1 << place for place in part) for part in (electorate.old, electorate.new)))


def _toward(world: GossipMiniature, index: int, other: int, bounds: GossipBounds) -> bytes:
    """The state a place has about another or about itself, and what it may still hear from it."""
    election, now = world.places[index].election, clock(world, index, bounds)
    theirs, then = world.places[other].election, clock(world, other, bounds)
    key: list[int] = []
    if election.favourite is not None and election.favourite[0] == other:
        key += (1, theirs.life - election.favourite[1])
    support = _support(election, other, now, bounds)
    if support is not None:
        key += (2, *support)
    if other not in bounds.hears(index):
        key.append(NONE)
        return bytes(key)
    heard, clocks = world.places[index].heard[other], election.clocks
    key += (3, theirs.life - clocks.lives[other])
    if other in bounds.wants(index) and clocks.knows(other):
        estimate = clocks.read(other, now)
        if clocks.lives[other] == theirs.life:
            key.append(_recent(theirs.clocks.elapsed(then) - estimate, bounds))
        floor = election.floors.get(other, -1)
        key.append(_lag(floor - estimate) if floor >= estimate else NONE)
    for position, word in enumerate(() if bounds.prompt else world.words[other]):
        if (word.life, word.version) > heard:
            effect = _effect(world, index, other, word, bounds, support)
            if effect is not None:
                key += (4, position, *effect)
        if world.restarts < bounds.restarts and bounds.may_restart(index):
            key += (5, *_raw(world, index, other, word, bounds))
        if bounds.separate and word.electorate.tag > _least_known(election, world, index, bounds).tag:
            key += (6, *_named(word.electorate))
    key.append(NONE)
    return bytes(key)


def _support(election: GossipElection, other: int, now: float, bounds: GossipBounds) -> tuple[int, ...] | None:
    support = election.supports.get(other)
    return None if support is None else _worth(election, support.bound, support.term, support.tag, now, bounds)


def _worth(
    election: GossipElection, bound: int, term: int, tag: tuple[int, ...], now: float, bounds: GossipBounds
) -> tuple[int, ...] | None:
    """The worth of a declaration for this place, if it has any."""
    lag = election.clocks.elapsed(now) - bound
    if bound <= election.floor or lag >= bounds.lease * TICKS:
        return None
    counts = election.lead_term is not None and term >= election.lead_term
    return _lag(lag), counts, *(tag if bounds.changes and tag >= election.electorate.tag else ())


def _least_known(election: GossipElection, world: GossipMiniature, index: int, bounds: GossipBounds) -> Electorate:
    """The electorate that a place knows, or may have after a restart that forgets."""
    forgets = bounds.forget and world.restarts < bounds.restarts and bounds.may_restart(index)
    return FIRST if forgets else election.electorate


def _effect(
    world: GossipMiniature, index: int, other: int, word: Word, bounds: GossipBounds, support: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """The changes that hearing this word makes; None if it makes none."""
    election, now = world.places[index].election, clock(world, index, bounds)
    theirs, then = world.places[other].election, clock(world, other, bounds)
    triplet, clocks = word.triplet, election.clocks
    meets = word.life != clocks.lives[other]
    vote = None
    if triplet.favourite == index and triplet.life == election.life:
        vote = _worth(election, triplet.bound, triplet.term, triplet[5:], now, bounds)
    voted = (NONE,) if vote == support else vote or (VOID,)
    term = triplet.term if triplet.term > election.term else 0
    elapsed = floored = NONE
    if other in bounds.wants(index) and word.life == theirs.life:
        knows = clocks.knows(other) and not meets
        estimate = clocks.read(other, now) if knows else -1
        heard_floor = -1 if meets else election.floors.get(other, -1)
        floor = max(heard_floor, word.floor)
        lag = theirs.clocks.elapsed(then) - max(estimate, triplet.elapsed)
        if triplet.elapsed > estimate and (not knows or lag < bounds.lease * TICKS or floor >= estimate):
            estimate = triplet.elapsed
            elapsed = _recent(lag, bounds)
        if floor >= estimate and (floor > heard_floor or elapsed != NONE):
            floored = _lag(floor - estimate)
    frees = False
    if election.favourite == (other, word.life) and not election.is_free(now):
        assert election.triplet is not None
        frees = word.floor >= election.triplet.bound
    taken = _named(word.electorate) if not bounds.separate and triplet[5:] > election.electorate.tag else ()
    effect = (meets, term, elapsed, floored, frees, *voted)
    if not taken and effect == (False, 0, NONE, NONE, False, NONE):
        return None
    return (theirs.life - word.life, *effect, NONE, *taken)


def _raw(world: GossipMiniature, index: int, other: int, word: Word, bounds: GossipBounds) -> tuple[int, ...]:
    """The effect of the word on a place that has forgotten everything but its term."""
    election, theirs, then = world.places[index].election, world.places[other].election, clock(world, other, bounds)
    term = word.triplet.term + 1 if word.triplet.term > election.term else 0
    tag = word.triplet[5:]
    taken = (
        _named(word.electorate)
        if not bounds.separate and tag > _least_known(election, world, index, bounds).tag
        else ()
    )
    if word.life != theirs.life or other not in bounds.wants(index):
        return (theirs.life - word.life, term, NONE, *taken)
    elapsed = theirs.clocks.elapsed(then)
    floored = _recent(elapsed - word.floor, bounds) if word.floor >= word.triplet.elapsed else NONE
    return (0, term, _recent(elapsed - word.triplet.elapsed, bounds), floored, NONE, *taken)


def _lag(ticks: int) -> int:
    quarters, rest = divmod(ticks, QUARTER)
    assert rest == 0, "a lag is not a whole number of quarters"
    return LEVEL + max(-AHEAD_MAX, quarters)


def _recent(ticks: int, bounds: GossipBounds) -> int:
    """A lag; from P on, all lags are alike."""
    return _lag(min(ticks, bounds.lease * TICKS))


def _left(until: float, now: float) -> int:
    return max(0, ceil(until - now))
