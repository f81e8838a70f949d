"""Every step that a world of gossiping electors can take next.

    tick               time advances for all
    declare            a place declares again whom it favours, as of now
    say                it does so, and another hears it immediately: unless words may be `late`, that is the only way
    favour             it favours another, as soon as the election allows it
    hear               it hears a word of another that is newer than the last one it heard from there
    wake               it finds that its majority has lapsed, or that it may act now; all other steps do that, too
    restart            it forgets everything but its term, its electorate and its number of lives
    cede               a leader ends gracefully
    replace            a leader that acts begins to have another place vote instead of one of its voters
    settle             it ends that, as soon as the election allows it
    learn              a place takes over an electorate that another published, if these travel separately

No step is left out because another would do: worlds are few enough. A step takes a copy of one election and does what
the shipped machine does in one step: time passes first, then comes the event, and then the election leads if it can.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any, TypeVar

from neli_router.lab.sim.explore import Label
from neli_router.lab.sim.gossip.canon import rumour_key
from neli_router.lab.sim.gossip.miniature import (
    FIRST,
    GossipBounds,
    GossipMiniature,
    GossipPlace,
    Word,
    acting,
    clock,
)
from neli_router.protocols.gossip.clocks import TICKS, BiasedClocks
from neli_router.protocols.gossip.election import NOBODY, Electorate, GossipElection

__all__ = ["GossipMiniatures"]

T = TypeVar("T")
Step = tuple[Label, GossipMiniature]


class GossipMiniatures:
    """All worlds of three or four electors that run `gossip`."""

    def __init__(self, bounds: GossipBounds) -> None:
        self.bounds = bounds

    def first(self) -> GossipMiniature:
        return _first_world(self.bounds)

    def steps(self, world: GossipMiniature) -> Iterator[Step]:
        return _steps(world, self.bounds)

    def key(self, world: GossipMiniature) -> bytes:
        return rumour_key(world, self.bounds)

    def broken_rule(self, world: GossipMiniature) -> str | None:
        return world.broken

    def tell(self, label: Label, world: GossipMiniature) -> str:
        verb, *rest = label
        words = " ".join(str(part) for part in rest)
        favours = " ".join("-" if (f := place.election.favourite) is None else f"p{f[0]}" for place in world.places)
        actors = ", ".join(
            f"p{place} under {term}" + self._by(world, place) for place, term in acting(world, self.bounds).items()
        )
        width = 3 * len(self.bounds.places)
        return f"t={world.now:<3} {verb!s:8} {words:46} favour: {favours:{width}} acting: {actors or 'none'}"

    def _by(self, world: GossipMiniature, place: int) -> str:
        """The electorate by which it acts, if electorates change."""
        return f" by {_sets(world.places[place].election.electorate)}" if self.bounds.changes else ""


def _first_world(bounds: GossipBounds) -> GossipMiniature:
    """All places have started together, and the quiet P is over. They know each other's clocks, and favour no place.

    If the electorate can change, the first place leads with the second's support: only a leader can change it.
    """
    now, size = ceil(bounds.wait / min(bounds.rates)), len(bounds.places)
    never = ((0, 0),) * size
    places = tuple(GossipPlace(_election(bounds, place, 1, 0, FIRST, 0.0), never) for place in bounds.places)
    world = GossipMiniature(now, places, ((),) * size, (0, 0, 0), 0)
    for index in bounds.places:
        election = _twin(world.places[index].election)
        election.declare(clock(world, index, bounds))
        world = _with(world, index, election, bounds)
    for index in bounds.places:
        for other in bounds.hears(index):
            world = _heard(world, index, other, world.words[other][0], bounds)
    if bounds.changes:
        # A place that may favour only one place favours it from the start.
        only = {index: bounds.wants(index)[0] for index in bounds.places if len(bounds.wants(index)) == 1}
        for index, favourite in (only | {1: 0}).items():
            world = _favoured(world, index, (favourite, 1), bounds)
        for hearer, other in ((0, 1), (1, 0), (0, 1)):
            world = _heard(world, hearer, other, world.words[other][0], bounds)
            world = _declared(world, hearer, bounds)
        assert acting(world, bounds) == {0: 1}
    return world


def _steps(world: GossipMiniature, bounds: GossipBounds) -> Iterator[Step]:
    """Every step that can come next, except those that change nothing."""
    yield ("tick",), _judged(_ticked(world, bounds), bounds)
    for index, place in enumerate(world.places):
        me, now = f"p{index}", clock(world, index, bounds)
        election = place.election
        if election.lead_term is not None and (election.has_lapsed(now) or not election.acting or bounds.changes):
            yield ("wake", me), _woken(world, index, bounds)
        if not bounds.prompt or index in bounds.wants(index):
            yield ("declare", me), _declared(world, index, bounds)
        if election.is_free(now):
            for other in bounds.wants(index):
                favourite = (other, election.life if other == index else election.clocks.lives[other])
                if election.clocks.knows(other) and favourite != election.favourite:
                    yield ("favour", me, f"p{other}"), _favoured(world, index, favourite, bounds)
        for other in bounds.hears(index):
            if bounds.prompt:
                after = _declared(world, index, bounds)
                label = ("say", me, f"p{other}", *_told(after.words[index][0]))
                yield label, _heard(after, other, index, after.words[index][0], bounds)
            for word in () if bounds.prompt else world.words[other]:
                if (word.life, word.version) > place.heard[other]:
                    label = ("hear", me, f"p{other}", *_told(word))
                    yield label, _heard(world, index, other, word, bounds)
        if bounds.cede and election.lead_term is not None:
            yield ("cede", me), _ceded(world, index, bounds)
        if world.restarts < bounds.restarts and bounds.may_restart(index):
            yield ("restart", me), _restarted(world, index, bounds)
        if bounds.changes and election.tenure(now) is not None:
            yield from _changes(world, index, bounds)
        if bounds.separate:
            yield from _learnt(world, index, bounds)


def _changes(world: GossipMiniature, index: int, bounds: GossipBounds) -> Iterator[Step]:
    """A leader's changes to its electorate. As in the product, it then declares, and counts votes in a later step."""
    election = world.places[index].election
    if election.electorate.is_joint:
        election = _twin(election)
        if election.settle(clock(world, index, bounds)):
            election.declare(clock(world, index, bounds))
            yield ("settle", f"p{index}"), _said(world, index, election, bounds)
    elif world.changes < bounds.changes:
        (spare,) = set(bounds.places).difference(election.electorate.new)
        for voter in election.electorate.new:
            if bounds.may_replace(index, voter):
                after = _twin(election)
                after.replace(tuple(sorted({spare, *election.electorate.new} - {voter})))
                after.declare(clock(world, index, bounds))
                label = ("replace", f"p{index}", f"p{voter}", f"by p{spare}")
                yield label, _said(world._replace(changes=world.changes + 1), index, after, bounds)


def _learnt(world: GossipMiniature, index: int, bounds: GossipBounds) -> Iterator[Step]:
    """Electorates that others published and that are later than its own."""
    known = world.places[index].election.electorate
    for other in bounds.hears(index):
        theirs = world.places[other].election.electorate
        for electorate in dict.fromkeys([theirs, *(word.electorate for word in world.words[other])]):
            if electorate.tag > known.tag:
                election, _ = _awake(world, index, bounds)
                election.take_over(electorate)
                yield ("learn", f"p{index}", f"p{other}", _sets(electorate)), _with(world, index, election, bounds)


def _ticked(world: GossipMiniature, bounds: GossipBounds) -> GossipMiniature:
    """Time advances. Where the electorate changes, all places know each other's clocks at any time."""
    world = world._replace(now=world.now + 1)
    if not bounds.changes:
        return world
    places = []
    for index, place in enumerate(world.places):
        election, now = _twin(place.election), clock(world, index, bounds)
        for other in bounds.hears(index):
            theirs = world.places[other].election
            if election.clocks.lives[other] == theirs.life:
                election.clocks.hear(other, theirs.clocks.elapsed(clock(world, other, bounds)), now)
        places.append(place._replace(election=election))
    return world._replace(places=tuple(places))


def _woken(world: GossipMiniature, index: int, bounds: GossipBounds) -> GossipMiniature:
    election, _ = _awake(world, index, bounds)
    return _with(world, index, election, bounds)


def _declared(world: GossipMiniature, index: int, bounds: GossipBounds) -> GossipMiniature:
    election, now = _awake(world, index, bounds)
    election.declare(now)
    return _with(world, index, election, bounds)


def _favoured(world: GossipMiniature, index: int, favourite: tuple[int, int], bounds: GossipBounds) -> GossipMiniature:
    election, now = _awake(world, index, bounds)
    election.favour(favourite, now)
    return _with(world, index, election, bounds)


def _heard(world: GossipMiniature, index: int, other: int, word: Word, bounds: GossipBounds) -> GossipMiniature:
    election, now = _awake(world, index, bounds)
    if election.clocks.lives[other] != word.life:
        election.meet(other, word.life)
    if word.floor >= 0:
        election.hear_floor(other, word.floor)
    if not bounds.separate and word.triplet[5:] > election.electorate.tag:
        election.take_over(word.electorate)
    election.hear(other, word.triplet, now)
    heard = _replaced(world.places[index].heard, other, (word.life, word.version))
    return _with(world, index, election, bounds, heard=heard)


def _ceded(world: GossipMiniature, index: int, bounds: GossipBounds) -> GossipMiniature:
    election, now = _awake(world, index, bounds)
    election.end(now, finished=True)
    return _with(world, index, election, bounds)


def _restarted(world: GossipMiniature, index: int, bounds: GossipBounds) -> GossipMiniature:
    old = world.places[index].election
    electorate = FIRST if bounds.forget else old.electorate
    election = _election(bounds, index, old.life + 1, old.term, electorate, clock(world, index, bounds))
    place = GossipPlace(election, ((0, 0),) * len(bounds.places))
    after = world._replace(places=_replaced(world.places, index, place), restarts=world.restarts + 1)
    return _judged(after, bounds)


def _election(
    bounds: GossipBounds, place: int, life: int, term: int, electorate: Electorate, now: float
) -> GossipElection:
    clocks = BiasedClocks(len(bounds.places), place, now, drift=bounds.drift)
    return GossipElection(
        place,
        electorate,
        clocks,
        now,
        lease=float(bounds.lease),
        wait=bounds.wait,
        life=life,
        term=term,
    )


def _awake(world: GossipMiniature, index: int, bounds: GossipBounds) -> tuple[GossipElection, float]:
    """A copy of the place's election, and its time, which has passed first: as in each step of the shipped machine."""
    election, now = _twin(world.places[index].election), clock(world, index, bounds)
    if election.has_lapsed(now):
        election.end(now)
    return election, now


def _with(
    world: GossipMiniature,
    index: int,
    election: GossipElection,
    bounds: GossipBounds,
    *,
    heard: tuple[tuple[int, int], ...] | None = None,
) -> GossipMiniature:
    """The world after the step: the place leads if it can, and says what is new. At the last term, it takes no other.

    A term that was taken is not declared immediately: declaring is a step of its own.
    """
    now = clock(world, index, bounds)
    if bounds.prompt and election.favourite is not None and election.favourite[0] == index:
        election.declare(now)
    election.lead(now, would=election.term < bounds.terms, fresh=False)
    return _said(world, index, election, bounds, heard=heard)


def _said(
    world: GossipMiniature,
    index: int,
    election: GossipElection,
    bounds: GossipBounds,
    *,
    heard: tuple[tuple[int, int], ...] | None = None,
) -> GossipMiniature:
    """The world after the step, in which the place says what is new about it."""
    words = world.words
    triplet = election.triplet
    if triplet is not None:
        former = words[index][0] if words[index] else None
        floor = election.floor if bounds.floors else -1
        said = (triplet, floor, election.electorate)
        if former is None or former.life != election.life or former[2:] != said:
            version = former.version + 1 if former is not None and former.life == election.life else 1
            word = Word(election.life, version, *said)
            words = _replaced(words, index, (word, *_still_heard(words[index], word, bounds)))
    place = GossipPlace(election, world.places[index].heard if heard is None else heard)
    return _judged(world._replace(places=_replaced(world.places, index, place), words=words), bounds)


def _still_heard(words: tuple[Word, ...], newest: Word, bounds: GossipBounds) -> tuple[Word, ...]:
    """The last words for other favourites or under other electorates. Older words of the same kind say less."""
    if bounds.prompt:
        return ()
    others = [word for word in words if word.kind != newest.kind]
    return tuple(others[: bounds.wires - 1])


def _judged(world: GossipMiniature, bounds: GossipBounds) -> GossipMiniature:
    """Check the members that act now against those that acted before."""
    actors = acting(world, bounds)
    if len(actors) > 1:
        return world._replace(broken=f"at most one acts: {' and '.join(f'p{place}' for place in actors)} both may")
    for index, term in actors.items():
        actor = (term, index, world.places[index].election.life)
        if term < world.acted[0] or (term == world.acted[0] and actor != world.acted):
            broken = f"terms grow: p{index} acts under {term}, after {world.acted[0]} was acted under"
            return world._replace(broken=broken)
        if actor != world.acted:
            world = world._replace(acted=actor)
    return world


def _twin(election: GossipElection) -> GossipElection:
    """A copy that shares nothing mutable."""
    copy, clocks = _shallow(election), _shallow(election.clocks)
    for name in ("lives", "_bases", "_based_at"):
        setattr(clocks, name, getattr(clocks, name).copy())
    copy.clocks, copy.supports, copy.floors = clocks, election.supports.copy(), election.floors.copy()
    return copy


def _shallow(one: T) -> T:
    copy: T = object.__new__(type(one))
    vars(copy).update(vars(one))
    return copy


def _sets(electorate: Electorate) -> str:
    """The voters; for a joint electorate, both sets."""
    old, new = ("".join(str(place) for place in places) for places in (electorate.old, electorate.new))
    return f"{old}+{new}" if electorate.is_joint else new


def _told(word: Word) -> tuple[str, ...]:
    triplet = word.triplet
    if triplet.favourite == NOBODY:
        return ("favours nobody,", f"term {triplet.term}")
    return (f"favours p{triplet.favourite},", f"bound {triplet.bound / TICKS:g}, term {triplet.term}")


def _replaced(values: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
