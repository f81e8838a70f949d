"""The reader of a store of owners: fills a feed with the table that owners record there.

    table, whole --> publish --> follow --a change, the next one--> publish --> follow ...
       ^                           |--CHECK_EVERY, or a holder expires--> table, if it changed at all
       '--a change was missed------'--away--> try again after RETRY_EVERY; look-ups go on until max_age

    layout, holders, holdings --table_of_owners--> a table, whose offset is the number of its last change

News alone proves nothing: it may stop because nothing happens, or because it gets lost. So the version is queried at
least every CHECK_EVERY, and the table is as old as the last query, counted from before the query was sent.

The store's clock at the time of a query decides which holders have expired. While the store cannot be queried, no
holder expires: the members may be well, and only the table grows old. After an outage, the members could not renew
either. So those that were alive before it get RENEWAL_MAX to do so; otherwise, an outage would end with a moment in
which no partition has an owner.

Look-ups work like those of a router that reads a ledger, with one difference: a partition may have no owner although
members are alive. It was released, its holder has expired, or its owner does not publish.

A program that shows the group to people uses a tap, because it needs members and their expiry, which look-ups do not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from neli_router.core.clock import Clock
from neli_router.core.keyspace import Layout
from neli_router.drivers.owners.base import Card, Holding, Listing, OwnersSource, Version
from neli_router.errors import LedgerError, LedgerUnusable
from neli_router.router.feed import Feed, Reading
from neli_router.router.reader import Reader
from neli_router.router.table import Owner, Peer, Table, no_owner

__all__ = ["CHECK_EVERY", "OwnersReader", "OwnersTap", "renewable", "table_of_owners"]

CHECK_EVERY = 1.0
"""Seconds between queries of the version. Raising it saves queries, but detects a lost message later."""

WHOLE_EVERY = 30.0
"""How often to read everything, whatever the version says: a store that lost data may reach the same version again."""

RENEWAL_MAX = 3.0
"""Seconds after an outage during which holders from before it do not expire. A member that waits for a hanging store
retries within this time. With a higher value, owners that died meanwhile are named for longer."""

NAP_MIN = 0.01
"""The shortest wait for a holder to expire."""

RETRY_EVERY = 0.1

UNPUBLISHED = (
    "no live member has recorded in the store of owners that it leads it",
    "wait for its next owner; if none comes, see whether every member has the option `ownership`",
)


class OwnersTap(Protocol):
    """Called on the reader's thread, before look-ups see the same data. It must neither wait nor raise."""

    def listed(self, listing: Listing, asked_at: float, now: float) -> None:
        """`listing` is everything that the store says, including expired holders; its mappings may change afterwards.
        `listing.now_ms` is the store's clock at `asked_at` of this host, or a little later."""

    def away(self) -> None:
        """The store does not answer."""


class OwnersReader(Reader):
    """Fills `feed` from the store of `source`."""

    def __init__(self, feed: Feed, source: OwnersSource, *, clock: Clock, tap: OwnersTap | None = None) -> None:
        super().__init__(feed, "the table of owners", clock=clock)
        self._tap = tap
        self._owners = source.open()
        feed.address = self._owners.address
        self._listing: Listing | None = None
        self._holdings: dict[int, Holding] = {}
        self._holders: dict[str, tuple[Card, int]] = {}
        self._shown: tuple[Version, dict[str, Card], Table | None] | None = None
        self._alive: Mapping[str, Card] = {}
        self._late: dict[str, float] = {}
        """Holder -> the time before which it does not expire, because the store was away."""
        self._was_away = False
        self._asked_at = self._whole_at = self._due_at = 0.0
        self._thread.start()

    def _turn(self) -> None:
        try:
            self._follow()
        except LedgerError as error:
            if isinstance(error, LedgerUnusable) and not self._is_open:
                raise  # A mistake in the address. Later errors are retried: an operator may be fixing a password.
            self._listing, self._was_away = None, True
            self._away(str(error))
            if self._tap is not None:
                self._tap.away()
            self._closing.wait(RETRY_EVERY)

    def _wake(self) -> None:
        self._owners.wake()

    def _release(self) -> None:
        self._owners.close()

    def _follow(self) -> None:
        if self._listing is None or self._clock() >= self._due_at:
            self._ask()
        for news in self._owners.follow(max(0.0, self._due_at - self._clock())):
            known = self._listing
            if known is None or news.version == known.version:
                continue
            if news.version != known.version._replace(revision=known.version.revision + 1):
                if known.version.continues(news.version):
                    continue  # This news was sent before the table was read.
                self._listing = None
                break
            self._holdings.update(news.holdings)
            self._holders.update(news.holders)
            self._listing = replace(known, version=news.version)
        if self._listing is not None:
            self._publish(self._listing)

    def _ask(self) -> None:
        """Read what has changed, or everything."""
        asked_at = self._clock()
        known = None if self._listing is None or asked_at - self._whole_at > WHOLE_EVERY else self._listing.version
        listing = self._owners.table(known)
        if listing.holdings is not None:
            self._holdings, self._whole_at, self._shown = dict(listing.holdings), asked_at, None
        if self._was_away:
            self._was_away, self._late = False, dict.fromkeys(self._alive, asked_at + RENEWAL_MAX)
        self._holders = renewable(listing.holders, listing.now_ms, self._late, asked_at)
        self._listing, self._asked_at, self._is_open = listing, asked_at, True
        self._publish(listing)

    def _publish(self, listing: Listing) -> None:
        now_ms = listing.now_ms
        self._alive = alive = {
            holder: card for holder, (card, expires_ms) in self._holders.items() if expires_ms > now_ms
        }
        left = [(self._holders[holder][1] - now_ms) / 1000 for holder in alive]
        self._due_at = self._asked_at + min([CHECK_EVERY, *(max(NAP_MIN, seconds + 0.001) for seconds in left)])
        if self._tap is not None:
            whole = replace(listing, holders=self._holders, holdings=self._holdings)
            self._tap.listed(whole, self._asked_at, self._clock())
        if (feed := self._feed()) is not None:
            at = listing.version.revision
            if self._shown is None or self._shown[:2] != (listing.version, alive):
                table = table_of_owners(feed.address, listing.layout, at, alive, self._holdings)
                self._shown = listing.version, alive, table
            feed.publish(Reading(self._shown[2], at, self._asked_at))
            if feed.error is not None:  # Another group has begun here: there is nothing further to publish.
                self._closing.set()


def renewable(
    holders: Mapping[str, tuple[Card, int]], now_ms: int, late: Mapping[str, float], now: float
) -> dict[str, tuple[Card, int]]:
    """`holders`, where those in `late` do not expire before the time given there by this host's clock (`now`)."""
    return {
        holder: (card, max(expires_ms, now_ms + int(1000 * (late.get(holder, now) - now))) if expires_ms else 0)
        for holder, (card, expires_ms) in holders.items()
    }


def table_of_owners(
    address: str,
    layout: Layout | None,
    at: int,
    holders: Mapping[str, Card],
    holdings: Mapping[int, Holding],
) -> Table | None:
    """The table in which `holders`, which are alive, own what they hold. None if no member ever recorded anything."""
    if layout is None:
        return None
    owners: list[Owner | None] = [None] * layout.partitions
    for partition, (term, holder) in holdings.items():
        if partition < layout.partitions and holder in holders:
            card = holders[holder]
            owners[partition] = Owner(card.name, card.address, partition, term)
    peers = tuple(Peer(*card) for card in holders.values())
    why = UNPUBLISHED if holders else no_owner(any(term for term, _ in holdings.values()))
    return Table.of(address, layout, at, owners, peers, why)
