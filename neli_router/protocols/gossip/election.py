"""The election by declared favourites, as a pure rule: its voters' declarations decide who leads, and until when.

                quiet P                     declares it afresh, each time with a later bound
    start ------------------> favours X ---------------------------------------.
                                ^   ^                                          |
       favours another: P after |   '------------------------------------------'
       its last declaration     |                  or not (frozen)
                                '----------------------|

Each member *declares*, again and again, a triplet: its favourite, the time elapsed since it started, and a lower bound
of the favourite's clock (`clocks.py`). N *leads* as long as a majority favour it with bounds less than P (`lease`)
behind its own clock. A bound says, on N's own clock, the earliest time at which the declaration can have been made. So
the delay and the route of messages do not matter.

*Why at most one leads.* The majorities of two leaders share a member v. It declared the first leader with a bound that
was true at time t, so the first one leads until t + P at most, on its own clock. v may declare another favourite only
`wait` after its last declaration: P on the slowest allowed clock next to the fastest. (The text allows for the drift of
one clock only, in its factor 1 + 500 ppm; two may be off.) The text leaves some points open. These rules settle them:

- *The whole triplet is frozen*, not only `elapsed`. A member that wants to favour another must declare nothing for
  `wait`, because each declaration restarts the wait. A favourite that got a later bound would still lead while its
  voter changes over.
- *A start is followed by a quiet P*, because this member's older life may have declared a favourite a moment before it
  ended. This holds for the first favourite of a new member, too, which cannot know that it is new. If the older life
  had a longer P, the older P counts (`owed`).
- *A bound belongs to one life of the favourite.* Its clock starts from zero with each life, and the bounds of an older
  life are far ahead of it.
- *A voter counts once*, by its latest life; a message from an older one changes nothing.

*Ending in good order.* A member may publish a `floor`: "I act on no bound up to this, now or ever". A voter whose last
declaration is not above its favourite's floor has no promise to keep, and changes immediately. A member that stops
publishes the floor "on none".

*Ending before the time.* A voter that restarts takes its declaration with it. A leader may therefore lose its majority
before the end that its program knows (`told_until`). The program is fenced, but anyone that acts on its lease, such as
a client of an agent, hears of that later than the next leader hears of its votes. So until that end it raises no floor,
favours no other member, and acts under no other term.

*Terms.* The text has none. Each declaration carries the highest term that its maker knows, which was on disk before. A
member that gets a majority takes a higher term than all of these and its own, publishes it, and acts when a majority
declare it with a term at least as high. It drops the term when its majority lapses, even for a moment. So a later
leader's majority shares a member with the majority that an earlier leader acted on. That member had published the
earlier term before it changed over, and it did so before the later leader chose its term. If a leader kept a term that
it chose before it lost its majority, another leader could have acted under a higher one in between.

*The electorate*, which declares, can change: with two classes of citizens, only some members vote, and the leader
replaces dead voters.

    (a b c, a b c) --d for c--> (a b c, a b d) --majorities of both have declared it--> (a b d, a b d)
        one set                  a joint one                                             one set again

In one step, {a, d} could be a majority of the new set while {b, c} still is one of the old set, and they share no
member. So a change goes through a *joint* electorate, as in Raft: the leader publishes (old, new) and acts by
majorities of both. When majorities of both declare it under that electorate, it publishes (new, new). Each declaration
names the latest electorate that its maker knows, which was on disk before. No member counts a declaration under an
electorate that it has not adopted itself. So a member that still uses the old set meets a member of its majority that
knows the joint one.

This module does not decide whom to favour, when to declare, or how declarations travel: none of that can make two
leaders.
"""

from collections.abc import Collection, Mapping
from math import inf
from typing import NamedTuple

from neli_router.protocols.electors.events import COUNT_MAX
from neli_router.protocols.gossip.clocks import BiasedClocks

__all__ = ["NOBODY", "ON_NONE", "Electorate", "GossipElection", "Triplet"]

NOBODY = -1
ON_NONE = (1 << 62) - 1
"""A floor above all bounds."""


class Electorate(NamedTuple):
    """The voters. The latest electorate has the highest (term, change); a leader numbers its changes."""

    term: int
    change: int
    old: tuple[int, ...]
    new: tuple[int, ...]

    @classmethod
    def first(cls, places: tuple[int, ...]) -> "Electorate":
        return cls(0, 0, places, places)

    @classmethod
    def of(cls, value: tuple[int, ...]) -> "Electorate":
        """The electorate before it was made `flat`."""
        term, change, size, *places = value
        return cls(term, change, tuple(places[:size]), tuple(places[size:]))

    @property
    def flat(self) -> tuple[int, ...]:
        """The form to send and to keep: term, change, the number of old voters, the old voters, and the new ones."""
        return (self.term, self.change, len(self.old), *self.old, *self.new)

    @property
    def tag(self) -> tuple[int, int]:
        return self.term, self.change

    @property
    def is_joint(self) -> bool:
        return self.old != self.new

    @property
    def places(self) -> tuple[int, ...]:
        """All voters, some of them twice while it is a joint electorate."""
        return self.new if self.old == self.new else (*self.old, *self.new)

    def level(self, values: Mapping[int, float]) -> float | None:
        """The highest number that majorities of both sets reach; None if majorities have no number."""
        if 2 * len(values) <= min(len(self.old), len(self.new)):
            return None
        found = None
        for part in {self.old, self.new}:
            theirs = sorted(map(values.__getitem__, filter(values.__contains__, part)), reverse=True)
            if 2 * len(theirs) <= len(part):
                return None
            middle = theirs[len(part) // 2]
            found = middle if found is None or middle < found else found
        return found

    def is_majority(self, places: Collection[int]) -> bool:
        """Whether these include majorities of both sets."""
        return all(2 * sum(place in places for place in part) > len(part) for part in (self.old, self.new))

    def joint(self, term: int, new: tuple[int, ...]) -> "Electorate":
        """The electorate that the leader of this term publishes first, to have these voters in the end."""
        return Electorate(term, self._next(term), self.new, new)

    def settled(self, term: int) -> "Electorate":
        """The electorate that the leader of this term publishes when a joint one holds."""
        return Electorate(term, self._next(term), self.new, self.new)

    def _next(self, term: int) -> int:
        return self.change + 1 if self.term == term else 1


class Triplet(NamedTuple):
    """A declaration, and what must be said together with it: the term and the electorate that its maker knows."""

    favourite: int
    life: int
    """The favourite's life."""
    elapsed: int
    bound: int
    term: int
    electorate_term: int
    electorate_change: int


class _Favour(NamedTuple):
    """A declaration that favours me."""

    bound: int
    term: int
    tag: tuple[int, int]


class GossipElection:
    """One member's part in the election. The caller announces what a step changes here. Not thread-safe.

    Before anything else in a step, and when `acts_until` is over: `has_lapsed`, and then `end`. After it: `lead`.
    """

    def __init__(
        self,
        me: int,
        electorate: Electorate,
        clocks: BiasedClocks,
        now: float,
        *,
        lease: float,
        wait: float,
        owed: float = 0.0,
        life: int,
        term: int,
    ) -> None:
        self.electorate, self.clocks, self.term = electorate, clocks, term
        """The latest electorate and the highest term that this member knows: both are on disk before they are sent."""
        self._me, self._lease, self._wait = me, lease, wait
        self._quiet = max(wait, owed)
        self.told_until = -inf
        """Until when my program believes that it may act, if it has not finished."""
        self.begin(life, now)

    def begin(self, life: int, now: float) -> None:
        """A new life of mine, which does not know what the older one said."""
        self.life = life
        self.quiet_until = now + self._quiet
        self.favourite: tuple[int, int] | None = None
        """The favourite's place and life."""
        self.declared_at = now
        self.triplet: Triplet | None = None
        """My last declaration."""
        self.floor = -1
        self.floors: dict[int, int] = {}
        """For each place, the floor that its latest life published."""
        self.supports: dict[int, _Favour] = {}
        self.lead_term: int | None = None
        """The term that I took when a majority favoured me."""
        self.acting = False
        self.majority_until = self.acts_until = -inf
        self.clocks.begin(now)

    # Questions

    def tenure(self, now: float) -> int | None:
        """The term under which I may act."""
        return self.lead_term if self.acting and now < self.ends else None

    @property
    def ends(self) -> float:
        """When I stop acting, unless I hear more before then."""
        return min(self.acts_until, self.majority_until)

    @property
    def free_at(self) -> float:
        """From when no member can lead by a declaration of mine or of my older life."""
        return self.quiet_until if self.favourite is None else self.declared_at + self._wait

    def is_free(self, now: float) -> bool:
        """Whether I may favour another: no member leads by a declaration of mine, or can."""
        if self.favourite is None:
            return now >= self.quiet_until
        place, life = self.favourite
        if place == self._me:
            return now >= self.told_until
        if now >= self.declared_at + self._wait:
            return True
        # If not, my favourite may have said that it acts on no bound of mine.
        assert self.triplet is not None
        return self.clocks.lives[place] == life and self.floors.get(place, -1) >= self.triplet.bound

    def has_lapsed(self, now: float) -> bool:
        """Whether I led by a majority that is over."""
        return self.lead_term is not None and (now >= self.majority_until or (self.acting and now >= self.acts_until))

    # Hearing

    def meet(self, place: int, life: int) -> None:
        """Another life runs at this place: forget everything that its older one said."""
        self.clocks.meet(place, life)
        self.supports.pop(place, None)
        self.floors.pop(place, None)

    def hear(self, place: int, triplet: tuple[int, ...], now: float) -> None:
        """Take a declaration of the life that I have met at this place."""
        favourite, life, elapsed, bound, term, electorate_term, electorate_change = triplet
        if term > self.term:
            if term >= COUNT_MAX:
                return
            self.term = term
        self.clocks.hear(place, elapsed, now)
        if favourite == self._me and life == self.life:
            self.supports[place] = _Favour(bound, term, (electorate_term, electorate_change))
        elif place in self.supports:
            del self.supports[place]

    def hear_floor(self, place: int, floor: int) -> None:
        """Take a floor of the life that I have met at this place: it acts on no bound up to this."""
        self.floors[place] = floor

    def take_over(self, electorate: Electorate) -> None:
        """Take an electorate that some member published: the latest one counts."""
        if electorate.tag > self.electorate.tag:
            self.electorate = electorate

    # Declaring

    def declare(self, now: float) -> Triplet:
        """Repeat whom I favour, as of now."""
        elapsed = self.clocks.elapsed(now)
        place, life, bound = NOBODY, 0, 0
        if self.favourite is not None:
            place, life = self.favourite
            bound = self.clocks.read(place, now)
        tag = self.electorate.tag
        self.triplet = Triplet(place, life, elapsed, bound, self.term, *tag)
        self.declared_at = now
        if place == self._me:
            self.supports[place] = _Favour(bound, self.term, tag)
        else:
            self.supports.pop(self._me, None)
        return self.triplet

    def favour(self, favourite: tuple[int, int] | None, now: float) -> Triplet:
        """Change over to another favourite. Only allowed if `is_free`."""
        assert self.is_free(now), "another may lead by the last declaration"
        if self.favourite is not None and self.favourite[0] == self._me:
            self.end(now)
        self.favourite = favourite
        return self.declare(now)

    # Leading

    def lead(self, now: float, *, would: bool, fresh: bool) -> None:
        """Take a term if a majority favour me and I `would` lead; act under it; or give it up.

        A new term is declared immediately, if I may repeat my declaration.
        """
        self.majority_until = self._until(0)
        if self.lead_term is None:
            if now >= self.majority_until or not would:
                return
            self.lead_term = self.term = 1 + max(self.term, *(support.term for support in self.supports.values()))
            if fresh:
                self.declare(now)
        elif now >= self.majority_until:
            self.end(now)
            return
        self.acts_until = self._until(self.lead_term)
        if now >= self.acts_until:
            if self.acting:
                self.end(now)
        elif self.acting or now >= self.told_until:
            self.acting, self.told_until = True, max(self.told_until, self.ends)

    def end(self, now: float, *, finished: bool = False) -> None:
        """Stop acting; and act on no declaration made so far, if my program has `finished`, or its time is over."""
        if self.lead_term is not None:
            if finished and self.acting:  # It cannot have finished what it knows of an earlier lead, which it lost.
                self.told_until = -inf
            self.lead_term, self.acting = None, False
            self.majority_until = self.acts_until = -inf
            if now >= self.told_until:
                self.raise_floor(self.clocks.elapsed(now))

    def raise_floor(self, floor: int) -> None:
        self.floor = max(self.floor, floor)

    def _until(self, term: int) -> float:
        """Until when a majority's declarations hold, counting only those with at least this term."""
        if 2 * len(self.supports) <= min(len(self.electorate.old), len(self.electorate.new)):
            return -inf
        floor, tag = self.floor, self.electorate.tag
        bound = self.electorate.level(
            {
                place: each.bound
                for place, each in self.supports.items()
                if each.bound > floor and each.term >= term and each.tag <= tag
            }
        )
        return -inf if bound is None else self.clocks.when(bound) + self._lease

    # The electorate, which only a leader changes

    def replace(self, new: tuple[int, ...]) -> None:
        """Begin to replace the present voters by these. Two members may take one term, but only one acts under it."""
        assert self.acting
        assert self.lead_term is not None
        self.electorate = self.electorate.joint(self.lead_term, new)

    def settle(self, now: float) -> bool:
        """End the change if majorities of both sets hold to the joint electorate; return whether they do."""
        assert self.acting
        assert self.lead_term is not None
        holding = {
            place
            for place, each in self.supports.items()
            if each.tag == self.electorate.tag
            and each.bound > self.floor
            and now < self.clocks.when(each.bound) + self._lease
        }
        if not self.electorate.is_majority(holding):
            return False
        self.electorate = self.electorate.settled(self.lead_term)
        return True
