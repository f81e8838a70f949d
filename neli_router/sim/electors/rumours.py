"""The miniature of gossiping electors: three places that hear what each other declared, now, late, or never.

    place i   machine (the shipped Gossip) --turn--> what it says of itself ------.
                 ^                                                               |
                 '---- hears the newest `wires` of each other place's words <-----'

Rumours have no ways here: a place hears what another said of itself, from whomever, at any later time, in any order,
again or never. So loss, relaying, cuts and slow links need no steps. Accrual has no sums: everybody seems alive, and
at each turn a place may want any other for its favourite, for no reason (`_Fickle`). That is more than phi, uuids and
the wish for a leader allow. What is left of the shipped machine is what its safety rests on: biased clocks, the frozen
triplet, the quiet P, floors, terms, and who leads by which bounds.

Time goes in ticks, and each place's own clock in `rates` of them. With rates of 1 and 2, a third is the drift: the
machines are told so, and P on the slowest clock is what they must wait on the fastest.

What must hold in each world: at most one acts, and the terms that are acted under grow. Bounded are the terms and the
restarts over all time. Two classes of citizens, ceding and relayed clocks are left to the simulator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import ceil, inf
from random import Random
from typing import Any, NamedTuple, TypeVar

from neli_router.electors.clocks import TICKS
from neli_router.electors.events import Heard, Keep, PeerInput
from neli_router.electors.gossip import FLOOR, HEARTBEAT, LEADS, READY, Gossip
from neli_router.electors.phi import Accrual
from neli_router.electors.scuttlebutt import Replica, Value
from neli_router.electors.settings import GossipSettings
from neli_router.keyspace import Layout
from neli_router.protocol import TICK
from neli_router.sim.explore import Label

__all__ = ["GossipBounds", "GossipMiniature", "GossipMiniatures", "GossipPlace", "Rumour"]

# What machines keep is private to them: no program needs to know.
# ruff: noqa: SLF001

PLACES = range(3)
NONE = 255
LEVEL = 100
AHEAD_MAX = 12
"""A lag in a key is a byte: level with the clock, up to six ticks behind, and ahead by so many at most."""
SAID = (HEARTBEAT, READY, LEADS, FLOOR)
"""The keys that decide anything here. A pulse only says that one lives."""

T = TypeVar("T")
Step = tuple[Label, "GossipMiniature"]


@dataclass(frozen=True, slots=True)
class GossipBounds:
    """The bounds of an exploration. Times are in ticks."""

    terms: int = 1
    lease: int = 2
    """P, which is as many intervals on a clock of rate 1."""
    rates: tuple[int, ...] = (1, 1, 1)
    """How far each place's clock goes in a tick."""
    wires: int = 1
    """How many words of each place may still be heard, the newest."""
    restarts: int = 0
    rivals: bool = True
    """Whether two places only want themselves and never hear each other, and the third hears both and wants either: the
    scene in which a reader of the text feared two leaders. Else all want and hear anybody, which is very much."""
    states_max: int | None = None

    def __str__(self) -> str:
        limit = "all states" if self.states_max is None else f"at most {self.states_max:,} states"
        clocks = "clocks that run alike" if self.drift == 0 else f"clocks of rates {self.rates}"
        scene = "two rivals and one voter" if self.rivals else "any favourite at any turn"
        return (
            f"gossip: {len(PLACES)} electors, {scene}, {self.terms} terms and {self.restarts} restarts over all time, "
            f"P={self.lease} ticks, {clocks}, the newest {self.wires} of each place's words lost, late, doubled; "
            f"{limit}"
        )

    def wants(self, place: int) -> tuple[int, ...]:
        """Whom a place may want for its favourite."""
        if not self.rivals:
            return tuple(PLACES)
        return (0, 2) if place == 1 else (place,)

    def hears(self, place: int) -> tuple[int, ...]:
        """Whom a place may hear."""
        return tuple(other for other in PLACES if other != place and (not self.rivals or 1 in (place, other)))

    @property
    def drift(self) -> float:
        """Half of what the fastest and the slowest differ by."""
        fast, slow = max(self.rates), min(self.rates)
        return (fast - slow) / (fast + slow)


class _Unbounded(GossipSettings, frozen=True, kw_only=True):
    """P may be a few intervals, and drift a third: the explorer counts in small numbers."""

    def problems(self) -> list[str]:
        return []


@cache
def _settings(place: int, bounds: GossipBounds) -> _Unbounded:
    return _Unbounded(
        name=f"m{place}",
        layout=Layout(slots=1, partitions=1),
        peers=tuple(f"p{peer}" for peer in PLACES),
        me=place,
        lease=float(bounds.lease),
        beat=1.0,
        drift=bounds.drift,
    )


class _Alive(Accrual):
    """Never suspects."""

    def sign(self, now: float) -> None:
        pass

    @property
    def until(self) -> float:
        return inf


_ALIVE = _Alive(phi_max=8.0, window=2, mean_first=1.0, deviation_min=1.0)


class _Fickle(Gossip):
    """The shipped machine, but its favourite is the explorer's choice: the place `whim`, at its next step."""

    whim: int | None = None

    def _suspicion(self) -> Accrual:
        return _ALIVE

    def _sticks(self, now: float) -> bool:
        return self._ballot.favourite is None or (self._ballot.favourite == self._wanted())

    def _choose(self, now: float) -> tuple[int, int] | None:
        return self._wanted()

    def _wanted(self) -> tuple[int, int] | None:
        if self.whim is None or not self._clocks.knows(self.whim):
            return self._ballot.favourite
        return self.whim, self._copies.replicas[self.whim].incarnation

    def twin(self) -> "_Fickle":
        """A copy that shares nothing that changes."""
        copy = _shallow(self)
        fields = vars(copy)
        for name in ("_beats", "_signs", "_given", "_urgent"):
            fields[name] = fields[name].copy()
        ballot, clocks = fields["_ballot"], fields["_clocks"] = _shallow(self._ballot), _shallow(self._clocks)
        ballot.clocks, ballot.supports, ballot.floors = clocks, ballot.supports.copy(), ballot.floors.copy()
        clocks.lives, clocks._bases, clocks._based_at = (
            clocks.lives.copy(),
            clocks._bases.copy(),
            clocks._based_at.copy(),
        )
        copies = fields["_copies"] = _shallow(self._copies)
        copies._digest, copies._tombs = copies._digest.copy(), copies._tombs.copy()
        copies.replicas = [_twin_of(replica) for replica in copies.replicas]
        belief = fields["_belief"] = _shallow(self._belief)
        belief.leading, belief._draining = belief.leading.copy(), belief._draining.copy()
        belief._succeeded = belief._succeeded.copy()
        return copy


def _shallow(one: T) -> T:
    copy: T = object.__new__(type(one))
    vars(copy).update(vars(one))
    return copy


def _twin_of(replica: Replica) -> Replica:
    copy = Replica(replica.incarnation)
    for name in Replica.__slots__:
        setattr(copy, name, getattr(replica, name))
    copy.keys = replica.keys.copy()
    return copy


class Rumour(NamedTuple):
    """What a place said of itself at some time: all of it."""

    life: int
    version: int
    body: bytes
    said: tuple[Value | None, ...]
    """Of each of SAID."""


class GossipPlace(NamedTuple):
    """One of the three, with its process and its disk."""

    machine: _Fickle
    memory: bytes


class GossipMiniature(NamedTuple):
    now: int
    places: tuple[GossipPlace, ...]
    rumours: tuple[tuple[Rumour, ...], ...]
    """Of each place, what may be heard of it, the newest first."""
    acted: tuple[int, int, int]
    """The highest term that was acted under, by which place, and in which life."""
    restarts: int
    broken: str | None = None


class GossipMiniatures:
    """All worlds of three electors that run `gossip`."""

    def __init__(self, bounds: GossipBounds) -> None:
        self.bounds = bounds

    @property
    def states_max(self) -> int | None:
        return self.bounds.states_max

    def first(self) -> GossipMiniature:
        """All have started together and heard of each other, and a tick later they may have favourites."""
        places = tuple(GossipPlace(self._started(place, b"", 0), b"") for place in PLACES)
        world = GossipMiniature(0, places, ((),) * len(PLACES), (0, 0, 0), 0)
        quiet = ceil(_settings(0, self.bounds).wait / max(self.bounds.rates))
        for now in range(quiet):
            world = world._replace(now=now)
            for index in PLACES:
                ((_, world),) = self._taken(world, index, TICK, index, ("turn",))
            for index in PLACES:
                for other in self.bounds.hears(index):
                    body = world.rumours[other][0].body
                    ((_, world),) = self._taken(world, index, Heard(other, body), index, ("hear",))
        return world

    def steps(self, world: GossipMiniature) -> Iterator[Step]:
        yield ("tick",), _judged(world._replace(now=world.now + 1), self.bounds)
        for index, place in enumerate(world.places):
            machine, me, now = place.machine, f"p{index}", self._clock(world, index)
            if world.restarts < self.bounds.restarts:
                yield ("restart", me), self._restarted(world, index)
            known = [whim for whim in self.bounds.wants(index) if whim == index or machine._clocks.knows(whim)]
            heard: list[int | None] = [*known] or [None]
            if machine.deadline <= now:
                for whim in heard:
                    yield from self._taken(
                        world, index, TICK, whim, ("turn", me, "" if whim is None else f"wants p{whim}")
                    )
            whims = heard if machine.favourite is None else [machine.favourite]
            for other in self.bounds.hears(index):
                copy = machine._copies.replicas[other]
                for rumour in world.rumours[other]:
                    if (rumour.life, rumour.version) > (copy.incarnation, copy.version):
                        for whim in whims:
                            label = ("hear", me, f"p{other}", *_words(rumour))
                            yield from self._taken(world, index, Heard(other, rumour.body), whim, label)

    def key(self, world: GossipMiniature) -> bytes:
        own = [self._own(world, index) for index in PLACES]
        toward = [[self._toward(world, index, other) for other in PLACES] for index in PLACES]
        return min(
            b"".join((*(own[one] for one in order), *(toward[one][other] for one in order for other in order)))
            for order in permutations(PLACES)
            if own[order[0]] <= own[order[1]] <= own[order[2]]
        )

    def broken_rule(self, world: GossipMiniature) -> str | None:
        return world.broken

    def tell(self, label: Label, world: GossipMiniature) -> str:
        verb, *rest = label
        words = " ".join(str(part) for part in rest)
        favours = " ".join("-" if (f := place.machine.favourite) is None else f"p{f}" for place in world.places)
        acting = ", ".join(f"p{place} under {term}" for place, term in _acting(world, self.bounds).items())
        return f"t={world.now:<3} {verb!s:8} {words:46} favour: {favours:9} acting: {acting or 'nobody'}"

    # Steps

    def _clock(self, world: GossipMiniature, index: int) -> float:
        return float(world.now * self.bounds.rates[index])

    def _started(self, place: int, memory: bytes, now: float) -> _Fickle:
        return _Fickle(_settings(place, self.bounds), memory, now, rng=Random(0))

    def _restarted(self, world: GossipMiniature, index: int) -> GossipMiniature:
        memory = world.places[index].memory
        place = GossipPlace(self._started(index, memory, self._clock(world, index)), memory)
        return world._replace(places=_replaced(world.places, index, place), restarts=world.restarts + 1)

    def _taken(
        self, world: GossipMiniature, index: int, event: PeerInput, whim: int | None, label: Label
    ) -> Iterator[Step]:
        place = world.places[index]
        machine, memory = place.machine.twin(), place.memory
        machine.whim = whim
        for effect in machine.step(event, self._clock(world, index)):
            if isinstance(effect, Keep):
                memory = effect.memory
        machine.whim = None
        if machine._ballot.term > self.bounds.terms:
            return
        rumours = world.rumours
        own = machine._copies.own
        said = tuple(own.get(key) for key in SAID)
        former = rumours[index][0] if rumours[index] else None
        if said[0] is not None and (former is None or (former.life, former.said) != (own.incarnation, said)):
            rumour = Rumour(own.incarnation, own.version, machine._copies.farewell(), said)
            rumours = _replaced(rumours, index, (rumour, *rumours[index])[: self.bounds.wires])
        places = _replaced(world.places, index, GossipPlace(machine, memory))
        yield label, _judged(world._replace(places=places, rumours=rumours), self.bounds)

    # Keys

    def _own(self, world: GossipMiniature, index: int) -> bytes:
        place, now = world.places[index], self._clock(world, index)
        machine, ballot = place.machine, place.machine._ballot
        acted, by, life = world.acted
        return bytes(
            (
                self.bounds.rates[index],
                len(self.bounds.hears(index)),
                world.restarts if self.bounds.restarts else 0,
                ballot.life >> 16,
                ballot.term,
                NONE if ballot.lead_term is None else ballot.lead_term,
                ballot.acting | machine._steady << 1 | machine._kept << 2,
                machine._copies.own.get(READY) is not None,
                _left(ballot.quiet_until, now) if ballot.favourite is None else NONE,
                NONE if ballot.favourite is None else _left(ballot.free_at, now),
                _left(max(now, ballot.told_until), now),
                _left(machine._beat_at, now),
                self._lag(machine, ballot.floor, now) if ballot.floor >= 0 else NONE,
                acted,
                (by, life) == (index, ballot.life),
            )
        )

    def _toward(self, world: GossipMiniature, index: int, other: int) -> bytes:
        """What a place has of another, and what it may yet hear of it."""
        machine, theirs = world.places[index].machine, world.places[other].machine
        now, then = self._clock(world, index), self._clock(world, other)
        key: list[int] = []
        if machine._ballot.favourite is not None and machine._ballot.favourite[0] == other:
            life = machine._ballot.favourite[1]
            key += (1, life >> 16, self._is_floored(machine, machine._copies.replicas[other].get(FLOOR)))
        if (support := machine._ballot.supports.get(other)) is not None:
            key += (2, self._lag(machine, support.bound, now), support.term)
        if other != index:
            known, lives = machine._clocks.knows(other), machine._clocks.lives
            key += (3, known, lives[other] >> 16)
            if known:
                mine = machine._clocks.read(other, now)
                key.append(self._lag(theirs, mine, then) if lives[other] == theirs._ballot.life else NONE)
            copy = machine._copies.replicas[other]
            for rumour in world.rumours[other] if other in self.bounds.hears(index) else ():
                is_news = (rumour.life, rumour.version) > (copy.incarnation, copy.version)
                if is_news or world.restarts < self.bounds.restarts:  # A place that restarts has heard nothing.
                    key += (is_news, *self._rumour(rumour, world, index, other))
        key.append(NONE)
        return bytes(key)

    def _rumour(self, rumour: Rumour, world: GossipMiniature, index: int, other: int) -> tuple[int, ...]:
        machine, theirs = world.places[index].machine, world.places[other].machine
        beat, ready, _, floor = rumour.said
        assert beat is not None
        favourite, life, elapsed, bound, term = beat[:5]
        to_me = favourite == index and life == machine._ballot.life
        return (
            4,
            rumour.life >> 16,
            ready is not None,
            self._lag(theirs, elapsed, self._clock(world, other)) if rumour.life == theirs._ballot.life else NONE,
            self._lag(machine, bound, self._clock(world, index)) if to_me else NONE,
            term,
            self._is_floored(machine, floor) if machine._ballot.favourite == (other, rumour.life) else 0,
        )

    def _lag(self, machine: Gossip, bound: int, now: float) -> int:
        """How far behind the machine's clock a bound is, in eighths; beyond P it proves nothing.

        It is never ahead. A machine that is broken may have it so, and shall be found.
        """
        behind = now - machine._clocks.when(bound)
        return LEVEL + ceil(8 * max(-AHEAD_MAX, min(behind, self.bounds.lease)))

    @staticmethod
    def _is_floored(machine: Gossip, floor: Value | None) -> bool:
        """Whether its favourite acts on no bound that it declared."""
        triplet = machine._ballot.triplet
        return floor is not None and triplet is not None and floor[0] >= triplet.bound


def _left(until: float, now: float) -> int:
    return max(0, ceil(until - now))


def _words(rumour: Rumour) -> tuple[str, ...]:
    beat = rumour.said[0]
    assert beat is not None
    if beat[0] < 0:
        return ("favours nobody,", f"term {beat[4]}")
    return (f"favours p{beat[0]},", f"bound {beat[3] / TICKS:g}, term {beat[4]}")


def _acting(world: GossipMiniature, bounds: GossipBounds) -> dict[int, int]:
    """Place -> term, for each that may act now."""
    return {
        index: tenures[0]
        for index, place in enumerate(world.places)
        if (tenures := place.machine.tenures(float(world.now * bounds.rates[index])))
    }


def _judged(world: GossipMiniature, bounds: GossipBounds) -> GossipMiniature:
    """Who acts now, beside who acted before."""
    acting = _acting(world, bounds)
    if len(acting) > 1:
        return world._replace(broken=f"at most one acts: {' and '.join(f'p{place}' for place in acting)} both may")
    for index, term in acting.items():
        actor = (term, index, world.places[index].machine._ballot.life)
        if term < world.acted[0] or (term == world.acted[0] and actor != world.acted):
            broken = f"terms grow: p{index} acts under {term}, after {world.acted[0]} was acted under"
            return world._replace(broken=broken)
        world = world._replace(acted=actor)
    return world


def _replaced(values: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
