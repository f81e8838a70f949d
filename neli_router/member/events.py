"""What a program is told about its partitions, and what it may do when it hears it.

    Acquired  prepare, then lead: leases are given once the handler returned
    Revoked   finish what you are doing: the successor waits for you, at most `drain_timeout`
    Fenced    stop at once: somebody else may lead already

            Acquired               Revoked                      (handed over)
    nothing --------> may lead ----------------> finishing --------------------> nothing
       ^                 '---------- Fenced ---------+
       '---------------------------------------------'

Acquired and Revoked reach the handler one after another, in order, on one thread. Fenced comes on a thread of its own,
even while the handler is busy with another event, because it must not wait. A handler that raises ends the member: what
it left half prepared or half finished cannot be led. A partition may be acquired again under a higher term without
having been lost in between: leases of the old term are void then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

__all__ = ["Acquired", "Event", "Fenced", "Handler", "Revoked"]


@dataclass(frozen=True, slots=True)
class _About:
    partitions: tuple[int, ...]
    """In ascending order."""
    terms: Mapping[int, int]
    """Partition -> the term, which every write on its behalf should carry."""


@dataclass(frozen=True, slots=True)
class Acquired(_About):
    """These partitions are this member's. Prepare: each is led when the handler has returned."""

    @classmethod
    def of(cls, terms: Mapping[int, int]) -> Self:
        return cls(tuple(sorted(terms)), terms)


@dataclass(frozen=True, slots=True)
class Revoked(_About):
    """Others shall have these partitions. Finish: each is handed over when the handler has returned and every
    `leading` block on it has ended, or else after `drain_timeout`, with Fenced before."""

    @classmethod
    def of(cls, terms: Mapping[int, int]) -> Self:
        return cls(tuple(sorted(terms)), terms)


@dataclass(frozen=True, slots=True)
class Fenced(_About):
    """Somebody else may act for these partitions already. Stop at once; nobody waits for the handler."""

    reason: str

    @classmethod
    def of(cls, terms: Mapping[int, int], reason: str) -> Self:
        return cls(tuple(sorted(terms)), terms, reason)


Event = Acquired | Revoked | Fenced
Handler = Callable[[Event], object]
"""What a program gives a member. The answer is not looked at; raising ends the member."""
