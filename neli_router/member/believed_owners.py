"""Believed owners: the table of a group without a broker, as one of its members believes it.

    outlook --leaders, terms, cards--> table of owners --feed--> look-ups of this process, and of its agent's clients

Nobody writes down who leads in such a group. But each member hears the leader of every partition that it helps to elect
one for, and each peer tells what it is called and where its clients reach it. That is enough to send a client to the
right member, at the price of any look-up.

**Good to route by, and for nothing else.** A member may know of another leader a moment later than the others, or be
cut off, and then it knows of none within a few heartbeats. So an owner in here is a place to go to. Whoever goes there
is told by that member's lease whether it leads; and what is written is written under that lease, and never under a term
that was found here. It is no other with the tables of a ledger, but for this: two members may believe two things.

A peer that has told nothing of itself is called as the list spells it, and has no address.
"""

from neli_router.core.keyspace import Layout
from neli_router.drivers.peers.outlook import Outlook
from neli_router.protocols.electors.events import Led
from neli_router.router.feed import Reading
from neli_router.router.table import Owner, Peer, Table

__all__ = ["BelievedOwners"]

WAIT = "wait for the election, or see by `neli peers` who answers"
NO_PART = "it takes no part in the election for some, and knows nobody who leads those"


class BelievedOwners:
    """Turns the outlooks of one member into readings. One that says the same has the very same table."""

    def __init__(self, address: str, layout: Layout) -> None:
        self._address, self._layout = address, layout
        self._known: tuple[tuple[Led | None, ...], tuple[Peer, ...], str] | None = None
        self._table: Table | None = None
        self._number = 0

    def reading(self, outlook: Outlook) -> Reading:
        members = tuple(
            Peer(peer, "", 1, "") if (card := outlook.cards.get(place)) is None
            # A drained member asks for no partition: that is what a weight of 0 means.
            else Peer(card.name or peer, card.address, int(not card.drained), "")
            for place, peer in enumerate(outlook.peers)
        )  # fmt: skip
        known = outlook.leaders, members, outlook.why_unled
        if known != self._known:
            self._known = known
            self._number += 1
            self._table = self._table_of(*known)
        return Reading(self._table, self._number, outlook.at)

    def _table_of(self, leaders: tuple[Led | None, ...], members: tuple[Peer, ...], why: str) -> Table:
        owners = [
            None
            if led is None or led.leader is None
            else Owner(members[led.leader].name, members[led.leader].address, partition, led.term)
            for partition, led in enumerate(leaders)
        ]
        before = self._table
        if (
            before is not None
            and before.members == members
            and list(before.partitions) == owners
            and None not in owners
        ):
            return before  # Only why they lead is told otherwise now.
        parts = [why, NO_PART if None in leaders else ""]
        found = f"this member knows no peer that leads it: {'; '.join(filter(None, parts))}"
        return Table.of(self._address, self._layout, self._number, owners, members, (found, WAIT))
