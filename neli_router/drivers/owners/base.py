"""The ownership port: a place outside the ledger where owners say what they lead, for programs that only ask.

    members that lead --publish--> [ partition -> term, holder | holder -> name, address, expiry ] --table--> routers
                                      '--each change--> follow ---------------------------------------------> routers

A script, a proxy in another language or ten thousand processes of a batch job want to know one thing only: which member
owns this key? So members write the answer where a single command can read it. It is a copy, made by owners about
themselves, and never proof of anything.

A driver promises three things. A lower term never replaces a higher one, in whatever order they arrive. A release takes
back only its own term. And a holder that is silent for its `ttl` counts as gone, by the store's own clock, so that no
two clocks are compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from neli_router.core.keyspace import Layout
from neli_router.drivers.handle import Handle

__all__ = ["Card", "Claim", "Holding", "Listing", "Owners", "OwnersChange", "OwnersSource", "Receipt", "Version"]


class Card(NamedTuple):
    """A member, as it introduces itself."""

    name: str
    address: str
    weight: int = 1
    zone: str = ""


class Holding(NamedTuple):
    """A partition is held under `term`."""

    term: int
    holder: str
    """The identity of one life of a member. Empty if the member released the partition."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A member's statement about itself: it leads `led`, and no longer leads `released` (partition -> term)."""

    holder: str
    card: Card
    ttl: float
    """Seconds until the claim is forgotten if no other follows; 0 forgets it now."""
    led: Mapping[int, int]
    released: Mapping[int, int]


class Version(NamedTuple):
    """The state of a store. Each change of a partition or of the holders gives another version."""

    since: str = ""
    """Differs if the store was recreated."""
    revision: int = 0

    def continues(self, known: "Version") -> bool:
        """Whether the store of this version still has everything that it had at `known`."""
        return self.since == known.since and self.revision >= known.revision


class Receipt(NamedTuple):
    """The answer to a claim. `version` is the table's version afterwards, and `refused` are the partitions for which a
    higher term was known."""

    version: Version
    refused: Sequence[int]


class OwnersChange(NamedTuple):
    """One change: the new entries of these partitions, and of their holders."""

    version: Version
    holdings: Mapping[int, Holding]
    holders: Mapping[str, tuple[Card, int]]
    """Holder -> its card, and when it expires, in milliseconds of the store's clock."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The whole table, as of one moment."""

    version: Version
    layout: Layout | None
    """None if no member ever published anything."""
    now_ms: int
    """The store's clock."""
    holders: Mapping[str, tuple[Card, int]]
    holdings: Mapping[int, Holding] | None
    """None if the version is the one that was known."""


class Owners(Handle, Protocol):
    """One group's store. Each call may raise LedgerUnavailable (try again) and LedgerUnusable (an operator must fix
    something first), in bounded time. `wake` ends a `follow`."""

    def publish(self, layout: Layout, claim: Claim) -> Receipt:
        """Publish the claim, in one step. Raises GroupMismatch if a later group has another layout."""

    def table(self, known: Version | None = None) -> Listing:
        """Everything, in one round trip; without the partitions if the version is still `known`."""

    def follow(self, timeout: float) -> list[OwnersChange]:
        """The changes since the last call, or since the first `table`; waits up to `timeout` seconds for one."""


class OwnersSource(NamedTuple):
    """A store that can be opened, perhaps more than once."""

    address: str
    """For people: contains no secrets."""
    open: Callable[[], Owners]
