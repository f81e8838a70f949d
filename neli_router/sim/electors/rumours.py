"""The miniature of gossiping electors: three places that hear what each other declared, now, late, or never.

    place i   ballot (the shipped Ballot) --declares, favours, ends--> its words ------.
                 ^                                                                      |
                 '------------ hears the last word of another place, or an older one <--'

Rumours have no ways here: a place hears what another said of itself, from whomever, at any later time, in any order,
again or never. So loss, relaying, cuts and slow links need no steps. Nobody is suspected or trusted either: at any
time, a place may declare its favourite afresh, or favour another as soon as the ballot lets it, for no reason, or do
neither for as long as it likes. That is more than phi, uuids, beats, pauses and the wish for a leader allow. The rest
is the shipped rule: biased clocks, the promise not to favour another within P, the quiet P, floors and terms.

Time goes in ticks, and each place's own clock in `rates` of them. With a rate of 2 for the voter, a third is the drift:
ballots are told so, and P on the slowest clock is what they must wait on the fastest.

What must hold in each world: at most one acts, and the terms that are acted under grow. Bounded are the terms and the
restarts over all time. All begin together, when the first quiet P is over, and know each other's clocks and no more.
What is left out: words that are not a place's last (with `wires`, its last ones for others are in); a favourite that
is given up for none; a place that has a majority and takes no term, but when it knows the last one; disks that forget;
and two classes of citizens, which are left to the simulator.
"""

from dataclasses import dataclass
from typing import NamedTuple

from neli_router.electors.ballot import Ballot, Triplet
from neli_router.protocol import wait_for

__all__ = ["PLACES", "GossipBounds", "GossipMiniature", "GossipPlace", "Word", "acting", "clock"]

PLACES = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class GossipBounds:
    """The bounds of an exploration. Times are in ticks."""

    terms: int = 1
    lease: int = 2
    """P."""
    rates: tuple[int, ...] = (1, 1, 1)
    """How far each place's clock goes in a tick. Only the voter's may go by twos: others' estimates of a clock that is
    faster than their own lose half a tick after another."""
    wires: int = 1
    """How many words of each place may still be heard: its last one, and its last ones for other favourites."""
    restarts: int = 0
    cede: bool = False
    """Whether a leader may end in good order at any time; it does in any case when its majority lapses."""
    rivals: bool = True
    """Whether two places only want themselves and never hear each other, and the third hears both and wants either: the
    scene in which a reader of the text feared two leaders. Else all want and hear anybody, which is very much."""
    states_max: int | None = None

    def __str__(self) -> str:
        limit = "all states" if self.states_max is None else f"at most {self.states_max:,} states"
        clocks = "clocks that run alike" if self.drift == 0 else f"clocks of rates {self.rates}"
        scene = "two rivals and one voter" if self.rivals else "each favours any at any time"
        who = " of the voter" if self.rivals and self.restarts else ""
        cede = "leaders cede" if self.cede else "without ceding"
        return (
            f"gossip: {len(PLACES)} electors, {scene}, {self.terms} terms and {self.restarts} restarts{who} "
            f"over all time, P={self.lease} ticks, {clocks}, {cede}, the last {self.wires} of each place's words "
            f"lost, late, doubled; {limit}"
        )

    def wants(self, place: int) -> tuple[int, ...]:
        """Whom a place may favour."""
        if not self.rivals:
            return PLACES
        return (0, 2) if place == 1 else (place,)

    def may_restart(self, place: int) -> bool:
        """Among rivals only their voter does."""
        return self.restarts > 0 and (place == 1 or not self.rivals)

    def hears(self, place: int) -> tuple[int, ...]:
        """Whom a place may hear."""
        return tuple(other for other in PLACES if other != place and (not self.rivals or 1 in (place, other)))

    @property
    def drift(self) -> float:
        """Half of what the fastest and the slowest differ by."""
        fast, slow = max(self.rates), min(self.rates)
        return (fast - slow) / (fast + slow)

    @property
    def wait(self) -> float:
        return wait_for(self.lease, self.drift)


class Word(NamedTuple):
    """What a place said of itself at some time: all of it."""

    life: int
    version: int
    triplet: Triplet
    floor: int


class GossipPlace(NamedTuple):
    """One of them. What is on its disk is the term that its ballot knows."""

    ballot: Ballot
    heard: tuple[tuple[int, int], ...]
    """Of each other place, the life and the version of the word that was heard last."""


class GossipMiniature(NamedTuple):
    now: int
    places: tuple[GossipPlace, ...]
    words: tuple[tuple[Word, ...], ...]
    """Of each place, what may be heard of it, the newest first."""
    acted: tuple[int, int, int]
    """The highest term that was acted under, by which place, and in which life."""
    restarts: int
    broken: str | None = None


def clock(world: GossipMiniature, index: int, bounds: GossipBounds) -> float:
    """What the place's own clock shows."""
    return float(world.now * bounds.rates[index])


def acting(world: GossipMiniature, bounds: GossipBounds) -> dict[int, int]:
    """Place -> term, for each that may act now."""
    return {
        index: term
        for index, place in enumerate(world.places)
        if place.ballot.acting and (term := place.ballot.tenure(clock(world, index, bounds))) is not None
    }
