"""The miniature of electors among peers: three places, and so few terms and messages that all worlds can be counted.

    place   machine (the shipped TermElector) + the term on its disk --restart--> a machine that knows no more than that
              |  ^
         said |  | arrives now, later, again, or never
              v  |
    wires   for each kind of message from one place to another, the newest that were said

A world is all of that, the time in whole ticks, and what was led and acted under so far. Nothing in it ever changes: a
step makes another world, and a machine takes its step as a copy of itself.

These rules must hold in each world:

    one leader a term   over all time, even if one of the two leaders has forgotten that it led
    at most one acts    at any moment
    terms grow          over all tenures that were acted on
    promises last       a promise of support ends by its time, or because its leader ceded, and in no other way

The terms that are proposed and the restarts over all time are bounded. Time is not: clocks run alike here, so a moment
matters only until it has ended whatever it ends. Drift is left to the simulator.
"""

from dataclasses import dataclass
from functools import cache
from math import inf
from random import Random
from typing import NamedTuple

from neli_router.core.keyspace import Layout
from neli_router.lab.sim.explore import Profile
from neli_router.protocols.electors.priority import RandomWait
from neli_router.protocols.electors.settings import TermSettings
from neli_router.protocols.term.elector import Message, TermElector

__all__ = [
    "PLACES",
    "TERM_PROFILES",
    "ElectorBounds",
    "ElectorMiniature",
    "ElectorPlace",
    "acting_under",
    "broken_elector_rule",
    "founded_electors",
    "started_elector",
    "wire",
]

PLACES = range(3)
"""The smallest group in which a majority is not the whole group, and two majorities share one place."""


@dataclass(frozen=True, slots=True)
class ElectorBounds:
    """The bounds of an exploration. Times are in ticks."""

    terms: int = 2
    """How many terms are proposed over all time, counted from the lowest."""
    lease: int = 1
    wires: int = 1
    """How many messages of one kind may be on their way between two places: the newest."""
    restarts: int = 0
    """The number of restarts over all time."""
    cede: bool = True
    forget: bool = False
    """Whether a place that restarts forgets its term."""
    states_max: int | None = None

    def __str__(self) -> str:
        limit = "all states" if self.states_max is None else f"at most {self.states_max:,} states"
        kept = "which forget their term" if self.forget else "which keep their term"
        restarts = f"{self.restarts} restarts over all time, {kept}" if self.restarts else "no restarts"
        messages = "message" if self.wires == 1 else f"{self.wires} messages"
        return (
            f"term: {len(PLACES)} electors, {self.terms} terms over all time, lease {self.lease} ticks, each stands at "
            f"any time, {'with' if self.cede else 'without'} ceding, {restarts}, the newest {messages} of each kind "
            f"between two lost, late, doubled; {limit}"
        )

    def settings(self, place: int) -> TermSettings:
        """A beat is a third of a tick, so it is due in every tick."""
        return _settings(place, self.lease)


TERM_PROFILES = {
    "test": Profile(
        "One election with a restart, then two elections, then two with a restart: under a minute.",
        ElectorBounds(terms=1, lease=2, restarts=1),
        ElectorBounds(terms=2),
        ElectorBounds(terms=2, restarts=1),
    ),
    "restart": Profile("One election, and one restart.", ElectorBounds(terms=1, restarts=1)),
    "two-restarts": Profile("One election, and two restarts.", ElectorBounds(terms=1, restarts=2)),
    "long-lease": Profile("As `restart`, with a lease of two ticks.", ElectorBounds(terms=1, lease=2, restarts=1)),
    "two-terms": Profile("Two elections, without a restart.", ElectorBounds(terms=2)),
    "two-terms-restart": Profile("As `two-terms`, with one restart.", ElectorBounds(terms=2, restarts=1)),
    "no-ceding": Profile(
        "Two elections, where promises end only by their time.",
        ElectorBounds(terms=2, cede=False, states_max=40_000),
    ),
    "no-ceding-restart": Profile(
        "As `no-ceding`, with one restart.",
        ElectorBounds(terms=2, restarts=1, cede=False, states_max=40_000),
    ),
    "three-terms": Profile(
        "As `no-ceding`, with a third election.", ElectorBounds(terms=3, cede=False, states_max=40_000)
    ),
    "full": Profile(
        "Longer leases, more messages, restarts and elections: hours.",
        ElectorBounds(terms=1, lease=2, wires=2, restarts=2),
        ElectorBounds(terms=2, lease=2, states_max=1_000_000),
        ElectorBounds(terms=2, lease=2, restarts=1, states_max=1_000_000),
        ElectorBounds(terms=3, cede=False, states_max=1_000_000),
    ),
}
"""Worlds that another world covers are not counted. The first bounds of `full` are complete: 27,287 worlds in half a
minute. The others have not been run to the end."""


@cache
def _settings(place: int, lease: int) -> TermSettings:
    return TermSettings(
        name=f"m{place}",
        layout=Layout(slots=1, partitions=1),
        peers=tuple(f"p{peer}" for peer in PLACES),
        me=place,
        lease=float(lease),
        beat=1 / 3,
        drift=0.0,
    )


class ElectorPlace(NamedTuple):
    """One of the three places, with its process and its disk."""

    elector: TermElector
    kept: int
    """The term on its disk."""
    birth: int
    """The number of its process, over all places and all time."""


class ElectorMiniature(NamedTuple):
    now: int
    places: tuple[ElectorPlace, ...]
    wires: tuple[tuple[Message, ...], ...]
    """From each place to each, in the order of `wire`: the messages that may arrive, the newest first."""
    led: tuple[tuple[int, int, int], ...]
    """The tenures that were led: the term, the place, and the birth of its process there."""
    acted: tuple[int, int]
    """The highest term that was acted under, and by which birth."""
    restarts: int
    broken: str | None = None
    """The rule that the last step broke."""


def wire(sender: int, receiver: int) -> int:
    """The position of a wire in `wires`."""
    return sender * len(PLACES) + receiver


class _NeverByItself(RandomWait):
    """Waits forever: the explorer decides when a place stands."""

    def patience(self, rng: Random) -> float:
        return inf


def started_elector(place: int, kept: int, now: int, bounds: ElectorBounds) -> TermElector:
    """A machine that has started at `place`, and found the term `kept` on disk."""
    return TermElector(bounds.settings(place), tuple(PLACES), _NeverByItself(0.0), kept, now, rng=Random(0))


def founded_electors(bounds: ElectorBounds) -> ElectorMiniature:
    """The first world: three processes have started, and know nothing."""
    places = tuple(ElectorPlace(started_elector(place, 0, 0, bounds), 0, place) for place in PLACES)
    return ElectorMiniature(0, places, ((),) * len(PLACES) ** 2, (), (0, 0), 0)


def acting_under(world: ElectorMiniature) -> dict[int, int]:
    """Place -> term, for each that may act now."""
    terms = ((index, place.elector.tenure(world.now)) for index, place in enumerate(world.places))
    return {index: term for index, term in terms if term is not None}


def broken_elector_rule(world: ElectorMiniature) -> str | None:
    """The rule that this world breaks, or None."""
    if world.broken is not None:
        return world.broken
    if len(acting := acting_under(world)) > 1:
        return f"at most one acts: {' and '.join(f'p{place}' for place in acting)} both may"
    return None
