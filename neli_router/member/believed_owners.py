"""Believed owners: the owner table of a group without a broker, as one of its members believes it to be.

    outlook --leaders, terms, cards--> table of owners --feed--> look-ups of this process, and of its agent's clients

Such a group keeps no record of who leads. But each member hears who leads every partition that it helps to elect a
leader for, and each peer announces its name and the address where clients reach it. That is enough to send a client to
the right member, at the cost of an ordinary look-up.

**Use it for routing only.** A member may learn of a new leader a moment later than the others. It may also be cut off,
and then within a few heartbeats it knows of no leader. So an owner in this table is only an address to try. The member
there knows from its lease whether it leads; writes happen under that lease, and never under a term found in this table.
The same is true of a ledger's tables, with one difference: two members may believe different things.

A peer that has not introduced itself appears under its name in the list, and has no address.
"""

from neli_router.core.keyspace import Layout
from neli_router.drivers.peers.outlook import Outlook
from neli_router.protocols.electors.events import Led
from neli_router.router.feed import Reading
from neli_router.router.table import Owner, Peer, Table

__all__ = ["BelievedOwners"]

WAIT = "wait for the election, or see by `neli peers` who answers"
NO_PART = "it takes no part in the election for some, and does not know who leads those"


class BelievedOwners:
    """Turns the outlooks of one member into readings. If nothing changed, the reading has the same table object."""

    def __init__(self, address: str, layout: Layout) -> None:
        self._address, self._layout = address, layout
        self._known: tuple[tuple[Led | None, ...], tuple[Peer, ...], str] | None = None
        self._table: Table | None = None
        self._number = 0

    def reading(self, outlook: Outlook) -> Reading:
        members = tuple(
            Peer(peer, "", 1, "") if (card := outlook.cards.get(place)) is None
            # A drained member wants no partitions, which is what a weight of 0 means.
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
            return before  # Only the explanation differs, and the table does not show that while all are led.
        parts = [why, NO_PART if None in leaders else ""]
        found = f"this member knows no peer that leads it: {'; '.join(filter(None, parts))}"
        return Table.of(self._address, self._layout, self._number, owners, members, (found, WAIT))
