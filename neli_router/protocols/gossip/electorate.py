"""The electorate: the voters, and how they change without two majorities that share no member.

    (a b c, a b c) --d for c--> (a b c, a b d) --majorities of both have declared it--> (a b d, a b d)
        one set                  a joint one                                             one set again

With two classes of citizens, only some members vote, and the leader replaces dead voters. If it went from the old set
to the new one in one step, the others could still use the old set: {a, d} is a majority of the new set, {b, c} is one
of the old set, and they share no member. So a change goes through a *joint* electorate, as in Raft. The leader
publishes (old, new) and acts by majorities of both. When majorities of both declare it under that electorate, it
publishes (new, new).

Each declaration names the latest electorate that its maker knows, which was on disk before. No member counts a
declaration under an electorate that it has not adopted itself. So a member that still uses the old set meets a member
of its majority that knows the joint one.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

__all__ = ["Electorate"]


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
