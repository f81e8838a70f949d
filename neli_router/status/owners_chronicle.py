"""The chronicle of a group whose owners are in a store: the store's content, in the form in which people see a group.

    listing --who is alive, and holds what?--> state --what changed?--> events, counts --.
       |                                                                  ^              +--> GroupView
       '----- expiries ---------------------------------------------------|--> vitals ---'
    outlook --why this leader? (among peers)------------------------------'

A protocol that borrows a consumer group writes no records: a member knows only what it leads itself, and reports it to
the store. So do members that elect among themselves. Here the store's listings take the place of the records. Each
listing becomes a state, as if it had been folded: a seat for each card that has not expired, and an owner where a live
holder holds a term. So everything that uses a GroupView works as usual.

    a card that was not there          join
    a card that ran out, or is gone    expire, or leave: from then on no member has the partitions
    a member leads more                claim, or a part of its join if that was just before
    a member leads less                release, if no other leads it instead: its lease was lost, or given back

Only a broker knows why it gave a partition to a member, so these events have no reason. Among peers, this agent's
member heard why a leader was elected, under the very term that the store names, or why there is none. It may hear that
a moment later than the store; the event is then sent again with its reason. In the same way it knows which members are
drained. The only targets are the owners; pins, loads and lags are absent. A vital says until when the store considers a
member alive.

Events are numbered by the store's changes. One change may lead to several events, so each event takes the next number.
"""

from collections.abc import Mapping
from itertools import zip_longest

from neli_router.core.keyspace import Layout
from neli_router.drivers.owners.base import Card, Listing
from neli_router.drivers.peers.outlook import Outlook, why_led
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Genesis, Seat
from neli_router.protocols.protocol import Guarantee
from neli_router.status.causes import Episode
from neli_router.status.chronicle import Chronicle
from neli_router.status.group_view import Cause, Vital

__all__ = ["EXPLAINED_MAX", "OwnersChronicle"]

STORE = "the store of owners"
"""A silent member expires by the store's clock, and not on any other member's word."""

EXPLAINED_MAX = 10.0
"""Seconds after which an event no longer waits for its reason: a member that has not heard of the election by then
never will."""

VERSION = 1
"""The version of a fold that never takes place."""


class OwnersChronicle(Chronicle):
    """An OwnersTap (see owners_reader.py). `listed` and `away` belong to one thread; any thread may take `group`."""

    def __init__(self, layout: Layout, *, lease: float, guarantee: Guarantee) -> None:
        super().__init__()
        self._genesis = Genesis(by="", layout=layout, lease=lease, guarantee=guarantee, base=0, version=VERSION)
        self._since: str | None = None
        """Which table it was; empty if there was none yet, and None before the first listing."""
        self._number = 0
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
        # Keep the same objects if nothing differs: by that a hub sees that people would see nothing new.
        kept = before.owners if before.owners == tuple(owners) else tuple(owners)
        return State(
            at=self._number,
            genesis=self._genesis,
            version=VERSION,
            seats=seats,
            owners=kept,
            terms=before.terms if before.terms == tuple(terms) else tuple(terms),
            targets=kept,
            pins=before.pins,
            drains=before.drains if before.drains == drains else drains,
            weights=before.weights,
            loads=before.loads,
        )

    def _seats(self, alive: Mapping[str, Card], before: State) -> dict[str, Seat]:
        """In the order in which they came; those that came together are ordered by name."""
        known = [holder for holder in before.seats if holder in alive]
        fresh = sorted(alive.keys() - before.seats.keys(), key=lambda holder: (alive[holder].name, holder))
        seats = {}
        for holder in (*known, *fresh):
            name, address, weight, zone = alive[holder]
            joined = before.seats[holder].joined if holder in before.seats else self._number
            seats[holder] = Seat(holder, name, address, weight, zone, (VERSION, VERSION), joined)
        return before.seats if seats == before.seats else seats

    # Events

    def _tell_changes(self, before: State, state: State, listing: Listing, now: float) -> None:
        if state.seats is before.seats and state.owners is before.owners:
            return
        reasons: dict[str, Episode] = {}
        """Holder -> the event of its arrival or departure."""
        for holder, seat in before.seats.items():
            if holder not in state.seats:
                _, expires_ms = listing.holders.get(holder, (None, 0))
                reasons[holder] = self._begin_event("expire" if expires_ms else "leave", seat.name, now)
                self._counts["expired" if expires_ms else "leaves"] += 1
                self._growing.pop(seat.name, None)
        for holder, seat in state.seats.items():
            if holder not in before.seats:
                reasons[holder] = self._growing[seat.name] = self._begin_event("join", seat.name, now)
                self._counts["joins"] += 1
                self._joined[holder] = now
        moves: list[tuple[Episode, str | None, str | None, int]] = []
        for partition, (had, has) in enumerate(zip_longest(before.owners, state.owners)):
            source, target = had and before.seats[had].name, has and state.seats[has].name
            if source != target:
                event = reasons.get(had or "") or reasons.get(has or "") or self._event_of(source, target, now)
                moves.append((event, source, target, partition))
                if self._outlook is not None and event.cause in ("claim", "release") and not event.reason:
                    self._unexplained.append((event, partition, state.terms[partition]))
        number = self._next() if moves else 0  # One number for all of them, above that of each event.
        for event, source, target, partition in moves:
            event.add(source, target, partition, number, now)
        self._keep(None, len(moves))

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
            event = self._growing[name] = self._begin_event(cause, name, now)
        return event

    def _begin_event(self, cause: Cause, name: str, now: float) -> Episode:
        event = Episode(self._next(), now, cause, name, STORE if cause == "expire" else name)
        self._keep(event, 0)
        return event

    def _next(self) -> int:
        self._number += 1
        return self._number - 1
