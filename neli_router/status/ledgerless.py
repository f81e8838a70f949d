"""The chronicles of groups without a ledger: what is known of such a group, in the form in which people see a group.

    a store's listing: who is alive, and holds what --.
    a member's outlook: who is silent, who leads what -+--> state --what differs from before?--> events, counts

Such a group writes no records, so something else takes their place. Each time that it is looked at becomes a state, as
if it had been folded, with a seat for each member and an owner for each partition that is led. So everything that uses
a GroupView works as usual. The only targets are the owners; pins, loads and lags are absent. Events are numbered in the
order in which they were seen, each by the next number.

**Owners in a store.** A protocol that borrows a consumer group writes no records: a member knows only what it leads
itself, and reports it to the store. So do members that elect among themselves. There is a seat for each card that has
not expired, and an owner where a live holder holds a term. A vital says until when the store considers a member alive.

    a card that was not there          join
    a card that ran out, or is gone    expire, or leave: from then on no member has the partitions
    a member leads more                claim, or a part of its join if that was just before
    a member leads less                release, if no other leads it instead: its lease was lost, or given back

Only a broker knows why it gave a partition to a member, so these events have no reason. Among peers, this agent's
member heard why a leader was elected, under the very term that the store names, or why there is none. It may hear that
a moment later than the store; the event is then sent again with its reason. In the same way it knows which members are
drained. Events begin above the number of the store's changes.

**Peers alone.** A member knows its peers by their places in the list, hears which of them are alive, and knows a leader
for each partition for which it is a voter. This shows what *that* member believes. Another one may learn of a leader a
moment earlier, or be cut off and know of none.

    a peer that no longer answers          silence
    a peer that answers again              hear
    a partition has another leader         elect
    a partition no longer has one          release, or vacate if its leader has none left; with the reason

Peers are named as the list spells them. Their addresses for clients, and which of them are drained, are as they report
themselves. Leases are not known.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.drivers.owners.base import Card, Listing
from neli_router.drivers.peers.outlook import WHY, Outlook, why_led
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Genesis, Seat
from neli_router.protocols.protocol import Cause, Guarantee
from neli_router.status.causes import Episode
from neli_router.status.chronicle import Chronicle
from neli_router.status.group_view import Vital

__all__ = ["EXPLAINED_MAX", "OwnersChronicle", "PeersChronicle"]

STORE = "the store of owners"
"""A silent member expires by the store's clock, and not on any other member's word."""

EXPLAINED_MAX = 10.0
"""Seconds after which an event no longer waits for its reason: a member that has not heard it by then never will."""

VERSION = 1
"""The version of a fold that never takes place."""

Moves = list[tuple[Episode, str | None, str | None, int]]
"""Events, each with the former and the new owner of a partition that moved because of it."""


class _LedgerlessChronicle(Chronicle):
    def __init__(self, layout: Layout, *, lease: float, guarantee: Guarantee) -> None:
        super().__init__()
        self._genesis = Genesis(by="", layout=layout, lease=lease, guarantee=guarantee, base=0, version=VERSION)
        self._number = 0

    def _state(
        self,
        seats: dict[str, Seat],
        owners: tuple[str | None, ...],
        terms: tuple[int, ...],
        drains: dict[str, int],
    ) -> State:
        before = self.group.state
        # Keep the same objects if nothing differs: by that a hub sees that people would see nothing new.
        kept = before.owners if before.owners == owners else owners
        return replace(
            before,
            at=self._number,
            genesis=self._genesis,
            version=VERSION,
            seats=before.seats if before.seats == seats else seats,
            owners=kept,
            terms=before.terms if before.terms == terms else terms,
            targets=kept,
            drains=before.drains if before.drains == drains else drains,
        )

    def _begin_event(self, cause: Cause, name: str, by: str, now: float, reason: str = "") -> Episode:
        event = Episode(self._next(), now, cause, name, by, reason=reason)
        self._keep(event, 0)
        return event

    def _add(self, moves: Moves, now: float, terms: Sequence[int] = ()) -> None:
        number = self._next() if moves else 0  # One number for all of them, above that of each event.
        for event, source, target, partition in moves:
            if terms:
                # A term that is not the same for all its partitions would be wrong for some; the table has each.
                event.term = terms[partition] if not event.counts or event.term == terms[partition] else 0
            event.add(source, target, partition, number, now)
        self._keep(None, len(moves))

    def _next(self) -> int:
        self._number += 1
        return self._number - 1


class OwnersChronicle(_LedgerlessChronicle):
    """An OwnersTap (see owners_reader.py). `listed` and `away` belong to one thread; any thread may take `group`."""

    def __init__(self, layout: Layout, *, lease: float, guarantee: Guarantee) -> None:
        super().__init__(layout, lease=lease, guarantee=guarantee)
        self._since: str | None = None
        """Which table it was; empty if there was none yet, and None before the first listing."""
        self._growing: dict[str, Episode] = {}
        """Member -> the newest event of partitions that it started to lead."""
        self._outlook: Outlook | None = None
        self._unexplained: list[tuple[Episode, int, int]] = []
        """Events without a reason yet, each with a partition and its term."""

    def look(self, outlook: Outlook | None) -> None:
        """Take what this agent's member knows of its peers. May be called from any thread."""
        self._outlook = outlook

    def listed(self, listing: Listing, asked_at: float, now: float) -> None:
        """Take everything that the store says."""
        if listing.layout not in (None, self._genesis.layout):
            return  # The listing is another group's; look-ups are refused with that reason.
        before = self.group.state
        since, was = listing.version.since, self._since
        self._since = since or was or ""  # An emptied store is noticed by its next table, which is a new one.
        self._number = max(self._number, listing.version.revision)
        state = self._state_of(listing, before)
        if was in ("", since):
            self._tell_changes(before, state, listing, now)
        elif since and was is not None:
            # The store lost what it knew: its members report again, and none of them has left.
            self._counts["restarts"] += 1
        self._explain(now)
        lease = self._genesis.lease
        vitals = {
            holder: Vital(asked_at + (expires_ms - listing.now_ms) / 1000 - lease, None, 0)
            for holder, (_, expires_ms) in listing.holders.items()
            if holder in state.seats
        }
        self._publish(state, vitals)

    def away(self) -> None:
        """The store does not answer. Its members may be alive for as long as that lasts."""
        if self.group.vitals:
            self._publish(self.group.state, {})

    def _state_of(self, listing: Listing, before: State) -> State:
        if listing.layout is None:
            return State(at=self._number)
        alive = {holder: card for holder, (card, expires_ms) in listing.holders.items() if expires_ms > listing.now_ms}
        seats = self._seats(alive, before)
        cards = () if self._outlook is None else self._outlook.cards.values()
        drains = {card.name: 0 for card in cards if card.drained}
        partitions = listing.layout.partitions
        owners: list[str | None] = [None] * partitions
        terms = [0] * partitions
        for partition, (term, holder) in (listing.holdings or {}).items():
            if partition < partitions:
                owners[partition], terms[partition] = holder if holder in seats else None, term
        return self._state(seats, tuple(owners), tuple(terms), drains)

    def _seats(self, alive: Mapping[str, Card], before: State) -> dict[str, Seat]:
        """In the order in which they came; those that came together are ordered by name."""
        known = [holder for holder in before.seats if holder in alive]
        fresh = sorted(alive.keys() - before.seats.keys(), key=lambda holder: (alive[holder].name, holder))
        seats = {}
        for holder in (*known, *fresh):
            name, address, weight, zone = alive[holder]
            joined = before.seats[holder].joined if holder in before.seats else self._number
            seats[holder] = Seat(holder, name, address, weight, zone, (VERSION, VERSION), joined)
        return seats

    # Events

    def _tell_changes(self, before: State, state: State, listing: Listing, now: float) -> None:
        if state.seats is before.seats and state.owners is before.owners:
            return
        reasons: dict[str, Episode] = {}
        """Holder -> the event of its arrival or departure."""
        for holder, seat in before.seats.items():
            if holder not in state.seats:
                _, expires_ms = listing.holders.get(holder, (None, 0))
                cause: Cause = "expire" if expires_ms else "leave"
                reasons[holder] = self._begin_event(cause, seat.name, STORE if expires_ms else seat.name, now)
                self._counts["expired" if expires_ms else "leaves"] += 1
                self._growing.pop(seat.name, None)
        for holder, seat in state.seats.items():
            if holder not in before.seats:
                reasons[holder] = self._growing[seat.name] = self._begin_event("join", seat.name, seat.name, now)
                self._counts["joins"] += 1
                self._joined[holder] = now
        moves: Moves = []
        for partition, (had, has) in enumerate(zip_longest(before.owners, state.owners)):
            source, target = had and before.seats[had].name, has and state.seats[has].name
            if source != target:
                event = reasons.get(had or "") or reasons.get(has or "") or self._event_of(source, target, now)
                moves.append((event, source, target, partition))
                if self._outlook is not None and event.cause in ("claim", "release") and not event.reason:
                    self._unexplained.append((event, partition, state.terms[partition]))
        self._add(moves, now)

    def _explain(self, now: float) -> None:
        """Give events the reasons that are known by now."""
        waiting, self._unexplained = self._unexplained, []
        for event, partition, term in waiting:
            if event.reason or now - event.read_at > EXPLAINED_MAX or self._outlook is None:
                continue
            if reason := why_led(self._outlook, partition, None if event.cause == "release" else term):
                event.explain(reason, self._next())
                self._keep(None, 0, changed=True)
            else:
                self._unexplained.append((event, partition, term))

    def _event_of(self, source: str | None, target: str | None, now: float) -> Episode:
        """The event of a partition that moved between members that neither came nor went."""
        cause: Cause = "claim" if target else "release"
        name = target or source or ""
        event = self._growing.get(name)
        fits = event is not None and event.cause in ({"claim", "join"} if target else {"release"})
        if event is None or not fits or now - max(event.read_at, event.last_at) > self._genesis.lease:
            event = self._growing[name] = self._begin_event(cause, name, name, now)
        return event


class PeersChronicle(_LedgerlessChronicle):
    """`look` belongs to the member's thread; any thread may take `group`."""

    def __init__(self, layout: Layout, *, lease: float, guarantee: Guarantee) -> None:
        super().__init__(layout, lease=lease, guarantee=guarantee)
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
        seats, drains = {}, {}
        for place, peer in enumerate(outlook.peers):
            card = outlook.cards.get(place)
            address = "" if card is None else card.address
            seats[peer] = Seat(peer, peer, address, 1, "", (VERSION, VERSION), 0)
            if card is not None and card.drained:
                drains[peer] = 0
        return self._state(seats, *_led(outlook), drains)

    # Events

    def _tell_peers(self, before: Outlook, after: Outlook) -> None:
        for place, peer in enumerate(after.peers):
            was, state = before.state(place), after.state(place)
            if state == "alive" and was not in ("alive", "unknown"):
                self._begin_event("hear", peer, "", after.at)
            elif state in WHY and (was not in WHY or (state == "refused" and was != "refused")):
                reason = f"{WHY[state]}: {after.refusals[place]}" if state == "refused" else WHY[state]
                self._begin_event("silence", peer, "", after.at, reason)
                self._counts["expired"] += was not in WHY

    def _tell_leaders(self, outlook: Outlook) -> None:
        had, (has, terms) = self.group.state.owners, _led(outlook)
        leads = set(has)
        moves: Moves = []
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
        self._add(moves, outlook.at, terms)

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
            event = self._growing[key] = self._begin_event(cause, peer, "", now, reason)
        return event


def _led(outlook: Outlook) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
    """For each partition, the peer that leads it, and the term."""
    owners = tuple(None if one is None or one.leader is None else outlook.peers[one.leader] for one in outlook.leaders)
    return owners, tuple(0 if one is None else one.term for one in outlook.leaders)
