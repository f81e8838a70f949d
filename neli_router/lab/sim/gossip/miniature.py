"""The miniature of gossiping electors: places that hear each other's declarations now, late, or never.

    place i   election (the shipped one) --declares, favours, ends--> its words ------.
                 ^                                                                      |
                 '------------ hears the last word of another place, or an older one <--'

Rumours have no ways here: a place hears what another said of itself, from any place, at any later time, in any order,
repeatedly or never. So loss, relaying, cuts and slow links need no steps. Suspicion and trust play no part: at any
time, a place may renew its declaration, or favour another as soon as the election allows it, for no reason, or do
neither for as long as it likes. That is more than phi, uuids, beats, pauses and the wish for a leader allow. The rest
is the shipped rule: biased clocks, the promise not to favour another within P, the quiet P, floors and terms.

Time advances in ticks, and each place's own clock by `rates` of them. With a rate of 2 for the voter, the drift is a
third: elections are configured with it, and they must wait for P of the slowest clock on the fastest.

These rules must hold in each world: at most one acts, and the terms that are acted under grow. The terms and the
restarts over all time are bounded. All places begin together, when the first quiet P is over, and know each other's
clocks but nothing else. Left out are: words that are not a place's last (with `wires`, its last ones for others, or
under other electorates, are included); giving up a favourite for none; a place that has a majority and takes no term,
except when it knows the last term; and disks that forget a term.

*With changes of the electorate* there is a fourth place, which does not vote at first, and the worlds begin when the
first place leads with the second's support. It may begin to replace its rival as long as there are `changes` left, and
settle that at any time when the election allows it. No place is dead: the rival goes on as before, knows nothing of the
change, and may be favoured; when it leads by the joint electorate, it may settle that, too. A declaration that names a
later electorate than its hearer knows brings the electorate with it, as in the shipped machine. With `separate` it does
not; the electorate is then learnt in its own step, before the declaration, after it, or never.

Four places have far more worlds than three, so less is left to chance there, unless it is asked for: words are heard
when they are said or never (with `late`, at any time), rivals renew their declaration in each of their steps, all know
each other's clocks at any time, and only a leader that cedes publishes a floor. An old word then survives only in what
a place remembers of it: a support, and the electorate that it was given under.
"""

from dataclasses import dataclass
from typing import NamedTuple

from neli_router.lab.sim.explore import Profile
from neli_router.protocols.gossip.election import Electorate, GossipElection, Triplet
from neli_router.protocols.protocol import wait_for

__all__ = ["FIRST", "GOSSIP_PROFILES", "GossipBounds", "GossipMiniature", "GossipPlace", "Word", "acting", "clock"]

RIVALS = (0, 2)
"""The places that want to lead, in the scene with rivals."""

FIRST = Electorate.first((0, 1, 2))
"""The places that vote at first."""


@dataclass(frozen=True, slots=True)
class GossipBounds:
    """The bounds of an exploration. Times are in ticks."""

    terms: int = 1
    lease: int = 2
    """P."""
    rates: tuple[int, ...] = (1, 1, 1)
    """How far the clocks of the first three go in a tick. A fourth goes at the second's rate: both only vote."""
    wires: int = 1
    """How many words of each place may still be heard: its last one, and its last ones for other favourites or under
    other electorates."""
    restarts: int = 0
    changes: int = 0
    """How often a leader may begin to change the electorate, over all time."""
    fickle: tuple[int, ...] = (1,)
    """Which voters may favour either rival. The others favour only the first rival."""
    late: bool = False
    """With changes: whether words may be heard late, rather than only when they are said, or never."""
    separate: bool = False
    """Whether an electorate travels on its own, rather than with the declarations that name it."""
    forget: bool = False
    """Whether a place that restarts has forgotten the electorate, which it must not."""
    cede: bool = False
    """Whether a leader may end gracefully at any time; it always ends when its majority lapses."""
    rivals: bool = True
    """Whether two places only want themselves and never hear each other, and the third hears both and wants either: the
    scene in which a reader of the text feared two leaders. Otherwise all want and hear any place, which makes very many
    worlds."""
    states_max: int | None = None

    def __str__(self) -> str:
        limit = "all states" if self.states_max is None else f"at most {self.states_max:,} states"
        clocks = "clocks that run alike" if self.drift == 0 else f"clocks of rates {self.rates}"
        scene = "two rivals and one voter" if self.rivals else "each favours any at any time"
        size = len(self.places)
        if self.rivals and self.changes:
            either = "both favour either" if 3 in self.fickle else "favours the first alone"
            scene = f"two rivals and two voters, of whom one has no vote at first and {either}"
        who = f" of the voter{'s' if self.changes else ''}" if self.rivals and self.restarts else ""
        forget = ", which forget the electorate," if self.forget else ""
        cede = "leaders cede" if self.cede else "without ceding"
        apart = ", which travel apart from declarations" if self.separate else ""
        changes = f"{self.changes} changes of the electorate{apart}, " if self.changes else ""
        words = f"the last {self.wires} of each place's words lost, late, doubled"
        if self.prompt:
            words = "words heard at once or lost"
        return (
            f"gossip: {size} electors, {scene}, {self.terms} terms and {self.restarts} restarts{who}{forget}"
            f" over all time, {changes}P={self.lease} ticks, {clocks}, {cede}, {words}; {limit}"
        )

    @property
    def places(self) -> range:
        return range(4 if self.changes else 3)

    def wants(self, place: int) -> tuple[int, ...]:
        """The places that a place may favour."""
        if not self.rivals:
            return tuple(self.places)
        if place in RIVALS:
            return (place,)
        return RIVALS if place in self.fickle else (0,)

    def rate(self, place: int) -> int:
        return self.rates[place if place < 3 else 1]

    def may_replace(self, leader: int, voter: int) -> bool:
        """A leader stays in the electorate. Among rivals, the first replaces the other, which it does not hear."""
        return (leader, voter) == RIVALS if self.rivals else leader != voter

    def may_restart(self, place: int) -> bool:
        """Among rivals, only their voters restart."""
        return self.restarts > 0 and not (self.rivals and place in RIVALS)

    def hears(self, place: int) -> tuple[int, ...]:
        """The places that a place may hear: among rivals, a voter and the rivals it may favour hear each other."""
        if not self.rivals:
            return tuple(other for other in self.places if other != place)
        if place not in RIVALS:
            return self.wants(place)
        return tuple(other for other in self.places if other not in RIVALS and place in self.wants(other))

    @property
    def prompt(self) -> bool:
        """Whether a word is heard when it is said, or never."""
        return self.changes > 0 and not self.late

    @property
    def floors(self) -> bool:
        """Whether floors are published. Where the electorate changes, or the rivals' clocks differ, only a place that
        cedes publishes one; otherwise voters wait for P."""
        return self.cede or not (self.changes or self.rates[0] != self.rates[2])

    @property
    def drift(self) -> float:
        """Half the difference between the fastest and the slowest, relative to their mean."""
        fast, slow = max(self.rates), min(self.rates)
        return (fast - slow) / (fast + slow)

    @property
    def wait(self) -> float:
        return wait_for(self.lease, self.drift)


GOSSIP_PROFILES = {
    "test": Profile(
        "The same as `fast-voter`, `any` and `change`: a minute or two.",
        GossipBounds(terms=2, rates=(1, 2, 1)),
        GossipBounds(terms=1, lease=1, rivals=False),
        GossipBounds(terms=2, lease=1, changes=1),
    ),
    "rivals": Profile("Two rivals want to lead, and one voter hears both.", GossipBounds(terms=2, lease=1)),
    "fast-voter": Profile("The voter's clock runs twice as fast.", GossipBounds(terms=2, rates=(1, 2, 1))),
    "any": Profile("No rivals: each place may favour any other.", GossipBounds(terms=1, lease=1, rivals=False)),
    "restart": Profile(
        "As `rivals`, and the voter restarts once.", GossipBounds(terms=2, lease=1, restarts=1, states_max=90_000)
    ),
    "change": Profile(
        "The first rival leads, and has a fourth place vote instead of the other rival.",
        GossipBounds(terms=2, lease=1, changes=1),
    ),
    "change-restart": Profile(
        "As `change`, and a voter restarts once.",
        GossipBounds(terms=2, lease=1, changes=1, restarts=1, states_max=60_000),
    ),
    "change-apart": Profile(
        "As `change`, but places learn the new electorate apart from declarations.",
        GossipBounds(terms=2, lease=1, changes=1, separate=True, states_max=60_000),
    ),
    "full": Profile(
        "Older words, more elections, a fast rival, voters that favour either: hours.",
        GossipBounds(terms=2, wires=2, cede=True),
        GossipBounds(terms=3, rates=(1, 2, 1)),
        GossipBounds(terms=2, lease=3, rates=(1, 2, 1)),
        GossipBounds(terms=2, lease=1, restarts=1),
        GossipBounds(terms=1, rivals=False),
        GossipBounds(terms=2, lease=1, rivals=False),
        GossipBounds(terms=2, rates=(1, 1, 2), states_max=1_000_000),
        GossipBounds(terms=2, changes=1, states_max=1_000_000),
        GossipBounds(terms=2, lease=1, changes=1, separate=True, states_max=1_000_000),
        GossipBounds(terms=2, lease=1, changes=1, restarts=1, states_max=1_000_000),
        GossipBounds(terms=2, lease=1, changes=1, fickle=(1, 3), states_max=1_000_000),
        GossipBounds(terms=2, lease=1, changes=1, late=True, wires=2, states_max=1_000_000),
    ),
}
"""The first six bounds of `full` are complete: 24,000 worlds with ceding and older words, 59,000 with three elections,
68,000 with a P of 3, 419,000 with a restart, and 102,000 and 145,000 where each place favours any other: the last has
two leaders, one after the other."""


class Word(NamedTuple):
    """Everything a place said of itself at some time."""

    life: int
    version: int
    triplet: Triplet
    floor: int
    electorate: Electorate

    @property
    def kind(self) -> tuple[int, ...]:
        """The place it favours, under which electorate, and the electorate it publishes."""
        return (*self.triplet[:2], *self.triplet[5:], *self.electorate.tag)


class GossipPlace(NamedTuple):
    """One of the places. Its disk holds the term and the electorate that its election knows."""

    election: GossipElection
    heard: tuple[tuple[int, int], ...]
    """For each other place, the life and the version of the word that was heard last."""


class GossipMiniature(NamedTuple):
    now: int
    places: tuple[GossipPlace, ...]
    words: tuple[tuple[Word, ...], ...]
    """For each place, its words that may still be heard, the newest first."""
    acted: tuple[int, int, int]
    """The highest term that was acted under, by which place, and in which life."""
    restarts: int
    changes: int = 0
    broken: str | None = None


def clock(world: GossipMiniature, index: int, bounds: GossipBounds) -> float:
    """The time that the place's own clock shows."""
    return float(world.now * bounds.rate(index))


def acting(world: GossipMiniature, bounds: GossipBounds) -> dict[int, int]:
    """Place -> term, for each that may act now."""
    return {
        index: term
        for index, place in enumerate(world.places)
        if place.election.acting and (term := place.election.tenure(clock(world, index, bounds))) is not None
    }
