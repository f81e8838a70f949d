"""The chronicle of a group without a broker or a store of owners: what one member knows of its peers, in the form in
which people see a group.

    outlook --who is silent, who leads what?--> state --what changed?--> events, counts --> GroupView

Such a group leaves no written record. A member knows its peers by their places in the list, hears which of them are
alive, and knows a leader for each partition for which it is a voter. Here this knowledge takes the place of the
records: a seat for each peer, and its leader as the owner of each partition. So everything that uses a GroupView works
as usual, and shows what *this* member believes. Another member may learn of a leader a moment earlier, or be cut off
and know of none.

    a peer that no longer answers          silence
    a peer that answers again              hear
    a partition has another leader         elect
    a partition no longer has one          release, or vacate if its leader has none left; with the reason

Peers are named as the list spells them. Their addresses for clients, and which of them are drained, are as they report
themselves. This view has no targets, pins, loads, lags or leases.

Events are numbered by the order in which they were seen.
"""

from neli_router.core.keyspace import Layout
from neli_router.drivers.peers.outlook import WHY, Outlook
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Genesis, Seat
from neli_router.protocols.protocol import Guarantee
from neli_router.status.causes import Episode
from neli_router.status.chronicle import Chronicle
from neli_router.status.group_view import Cause

__all__ = ["PeersChronicle"]

VERSION = 1
"""The version of a fold that never takes place."""


class PeersChronicle(Chronicle):
    """`look` belongs to the member's thread; any thread may take `group`."""

    def __init__(self, layout: Layout, *, lease: float, guarantee: Guarantee) -> None:
        super().__init__()
        self._genesis = Genesis(by="", layout=layout, lease=lease, guarantee=guarantee, base=0, version=VERSION)
        self._number = 0
        self._seen: Outlook | None = None
        self._growing: dict[tuple[bool, str, str], Episode] = {}
        """(whether the peer started to lead, peer, reason) -> the newest event of such partitions."""

    def look(self, outlook: Outlook | None) -> None:
        """Take what the member knows now."""
        before = self._seen
        if outlook is None or outlook is before:
            return
        self._seen = outlook
        if before is None:
            # The initial state is not news, except for its leaders: there were none before.
            before = outlook
        self._tell_peers(before, outlook)
        self._tell_leaders(outlook)
        self._publish(self._state_of(outlook), {})

    def _state_of(self, outlook: Outlook) -> State:
        before, seats, drains = self.group.state, {}, {}
        for place, peer in enumerate(outlook.peers):
            card = outlook.cards.get(place)
            address = "" if card is None else card.address
            seats[peer] = Seat(peer, peer, address, 1, "", (VERSION, VERSION), 0)
            if card is not None and card.drained:
                drains[peer] = 0
        owners, terms = _led(outlook)
        # Keep the same objects if nothing differs: by that a hub sees that people would see nothing new.
        kept = before.owners if before.owners == owners else owners
        return State(
            at=self._number,
            genesis=self._genesis,
            version=VERSION,
            seats=before.seats if before.seats == seats else seats,
            owners=kept,
            terms=before.terms if before.terms == terms else terms,
            targets=kept,
            pins=before.pins,
            drains=before.drains if before.drains == drains else drains,
            weights=before.weights,
            loads=before.loads,
        )

    # Events

    def _tell_peers(self, before: Outlook, after: Outlook) -> None:
        for place, peer in enumerate(after.peers):
            was, state = before.state(place), after.state(place)
            if state == "alive" and was not in ("alive", "unknown"):
                self._begin_event("hear", peer, "", after.at)
            elif state in WHY and (was not in WHY or (state == "refused" and was != "refused")):
                reason = f"{WHY[state]}: {after.refusals[place]}" if state == "refused" else WHY[state]
                self._begin_event("silence", peer, reason, after.at)
                self._counts["expired"] += was not in WHY

    def _tell_leaders(self, outlook: Outlook) -> None:
        had, (has, terms) = self.group.state.owners, _led(outlook)
        leads = set(has)
        moves: list[tuple[Episode, str | None, str | None, int]] = []
        for partition, target in enumerate(has):
            source = had[partition] if partition < len(had) else None
            if source == target:
                continue
            led = outlook.leaders[partition]
            reason = "" if led is None else led.reason
            cause: Cause = "elect" if target else "release" if source in leads else "vacate"
            event = self._event_of(cause, target or source or "", reason, outlook.at)
            # Its partitions are vacated one by one, and only the last one shows that nothing is left.
            event.cause = cause
            moves.append((event, source, target, partition))
        number = self._next() if moves else 0  # One number for all of them, above that of each event.
        for event, source, target, partition in moves:
            # A term that is not the same for all its partitions would be wrong for some; the table has each of them.
            event.term = terms[partition] if not event.counts or event.term == terms[partition] else 0
            event.add(source, target, partition, number, outlook.at)
        self._keep(None, len(moves))

    def _event_of(self, cause: Cause, peer: str, reason: str, now: float) -> Episode:
        """Leaders of partitions are elected one after another: changes within a lease, for one reason, are one
        event."""
        key, lease = (cause == "elect", peer, reason), self._genesis.lease
        event = self._growing.get(key)
        if event is None or now - max(event.read_at, event.last_at) > lease:
            # Drop events that have settled: reasons name terms and counts, so their number is unlimited.
            self._growing = {
                other: old for other, old in self._growing.items() if now - max(old.read_at, old.last_at) <= lease
            }
            event = self._growing[key] = self._begin_event(cause, peer, reason, now)
        return event

    def _begin_event(self, cause: Cause, peer: str, reason: str, now: float) -> Episode:
        event = Episode(self._next(), now, cause, peer, "", reason=reason)
        self._keep(event, 0)
        return event

    def _next(self) -> int:
        self._number += 1
        return self._number - 1


def _led(outlook: Outlook) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
    """For each partition, the peer that leads it, and the term."""
    owners = tuple(None if one is None or one.leader is None else outlook.peers[one.leader] for one in outlook.leaders)
    return owners, tuple(0 if one is None else one.term for one in outlook.leaders)
