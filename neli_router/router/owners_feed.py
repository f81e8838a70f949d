"""What the store of owners says, as the table that look-ups already know.

    holders, holdings, layout --state_of--> a fold's State, without all that only a ledger knows --> Feed --> Router

Look-ups, their errors and their changes are those of a router that reads a ledger, and so is the code: a store's table
is told to the same feed in the same form. An offset is then the number of the change that a table is as of.

Two things differ. A partition may have no owner although members are alive: it was released, its holder has expired, or
its owner does not publish. And errors speak of a table instead of a ledger.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from neli_router.clock import Clock, host_clock
from neli_router.errors import GroupMismatch
from neli_router.induction.fold import State
from neli_router.induction.records import Genesis, Seat
from neli_router.keyspace import Layout
from neli_router.ownership.base import Card, Holding
from neli_router.protocol import Notice
from neli_router.router.feed import Feed

__all__ = ["OwnersFeed", "state_of"]

LEASE = 1.0
"""Of the genesis that stands in for the group's own. Nothing here is counted by it."""

UNPUBLISHED = (
    "nobody who is alive has said to lead it",
    "wait for its next owner; if none comes, see whether every member has the option `ownership`",
)


class OwnersFeed(Feed):
    """The table of a store of owners."""

    def __init__(
        self,
        address: str,
        *,
        layout: Layout | None,
        max_age: float | None,
        clock: Clock = host_clock,
        tell: Callable[[Notice], None],
    ) -> None:
        super().__init__(address, layout=layout, max_age=max_age, clock=clock, tell=tell)
        self.kind = "the table of owners"

    def _take(self, state: State) -> GroupMismatch | None:
        before = self._known
        mismatch = super()._take(state)
        if mismatch is None and self._known is not None and self._known is not before and state.seats:
            self._known = state, replace(self._known[1], nobody=UNPUBLISHED)
        return mismatch


def state_of(
    layout: Layout | None,
    at: int,
    holders: Mapping[str, Card],
    holdings: Mapping[int, Holding],
) -> State:
    """What `holders`, who are alive, hold. A holding of anybody else counts as nobody's."""
    if layout is None:
        return State(at=at)
    owners: list[str | None] = [None] * layout.partitions
    terms = [0] * layout.partitions
    for partition, (term, holder) in holdings.items():
        if partition < layout.partitions:
            terms[partition] = term
            if holder in holders:
                owners[partition] = holder
    seats = {
        holder: Seat(holder, card.name, card.address, card.weight, card.zone, (1, 1), 0)
        for holder, card in holders.items()
    }
    genesis = Genesis(by="store", layout=layout, lease=LEASE, guarantee="exclusive", base=0, version=1)
    return State(at=at, genesis=genesis, version=1, seats=seats, owners=tuple(owners), terms=tuple(terms))
