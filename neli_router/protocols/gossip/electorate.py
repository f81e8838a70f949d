"""The electorate: who votes, and how that changes without two majorities that share nobody.

    (a b c, a b c) --d for c--> (a b c, a b d) --majorities of both have declared it--> (a b d, a b d)
        one set                  a joint one                                             one set again

With two classes of citizens only some members vote, and the leader replaces those that are dead. Would it go from the
old set to the new one at once, the others could go by the old one still: {a, d} is a majority of the new set, {b, c}
of the old one, and they share nobody. So a change goes over a *joint* electorate, as in Raft. The leader publishes
(old, new) and acts by majorities of both. When majorities of both declare it under that electorate, it publishes
(new, new).

Each declaration names the latest electorate that its maker knows, which was on disk before. Nobody counts a declaration
under an electorate that it has not taken over. So whoever still goes by the old set meets a member of its majority that
knows of the joint one.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

__all__ = ["Electorate"]


class Electorate(NamedTuple):
    """Who votes. The latest has the highest (term, change); a leader numbers its changes."""

    term: int
    change: int
    old: tuple[int, ...]
    new: tuple[int, ...]

    @classmethod
    def first(cls, places: tuple[int, ...]) -> "Electorate":
        return cls(0, 0, places, places)

    @classmethod
    def of(cls, value: tuple[int, ...]) -> "Electorate":
        """As it was before it was `flat`."""
        term, change, size, *places = value
        return cls(term, change, tuple(places[:size]), tuple(places[size:]))

    @property
    def flat(self) -> tuple[int, ...]:
        """To be sent, and kept: term, change, how many the old ones are, they, and the new ones."""
        return (self.term, self.change, len(self.old), *self.old, *self.new)

    @property
    def tag(self) -> tuple[int, int]:
        return self.term, self.change

    @property
    def is_joint(self) -> bool:
        return self.old != self.new

    @property
    def places(self) -> tuple[int, ...]:
        """All who vote, some of them twice while it is a joint one."""
        return self.new if self.old == self.new else (*self.old, *self.new)

    def level(self, values: Mapping[int, float]) -> float | None:
        """The highest number that majorities of both sets are not below; None if majorities have no number."""
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
        """Whether these are majorities of both sets."""
        return all(2 * sum(place in places for place in part) > len(part) for part in (self.old, self.new))

    def joint(self, term: int, new: tuple[int, ...]) -> "Electorate":
        """What the leader of this term publishes first, to have these voters in the end."""
        return Electorate(term, self._next(term), self.new, new)

    def settled(self, term: int) -> "Electorate":
        """What the leader of this term publishes when a joint one holds."""
        return Electorate(term, self._next(term), self.new, self.new)

    def _next(self, term: int) -> int:
        return self.change + 1 if self.term == term else 1
