"""Owners in PostgreSQL: members write there what they lead, and routers read it and follow its changes.

    publish --{schema}.publish(), one transaction--> tables --NOTIFY--> follow, which then reads the changed rows
    table   --one question--> the whole table in one round trip

The tables, and a view for people and programs that speak SQL, are in `ledgers/postgresql/schema/owners.sql`. The first
`publish` makes them. A reader makes nothing: it finds an empty table until then, and needs no right to write.

Each row of a partition has the revision that wrote it. So a notification carries no rows: the reader asks for those
above the revision that it knows. For the same reason it may also look now and then. It does so once a few notifications
did not arrive, as behind PgBouncer in transaction mode. No change can be missed either way.

Holders have no revision, because a row that was deleted could show none. There is one for each member, so all of them
are read with each change, and compared with those read before.

A claim does not wait for the server's disk. After a crash, the claims of the last half second may be missing: members
publish everything again soon, as in Redis.
"""

import json
from collections import defaultdict
from contextlib import AbstractContextManager
from typing import Any

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.postgresql.address import PostgresqlAddress
from neli_router.drivers.ledgers.postgresql.link import SqlLink
from neli_router.drivers.owners.base import Card, Claim, Holding, Listing, OwnersChange, Receipt, Version
from neli_router.drivers.owners.served import PURPOSE, ServedOwners, layout_of, mismatch, ours, require_within

__all__ = ["PostgresqlOwners"]

LOOK_EVERY = 0.1
"""Seconds between two looks where no notification arrives. Raising it saves questions, but delays every change by as
much."""

CHANGES_MAX = 1000
"""After more changes than this, a reader had better read the whole table."""

PUBLISH = "SELECT {schema}.publish(%s, %s::jsonb)"
CHANNEL = "SELECT {schema}.owners_channel(%s)"
FIND = """
SELECT to_regclass('{schema}.holdings') IS NOT NULL, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
"""
"""Asking for a table that is not there would fill the server's log with errors."""

READ = """
SELECT
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    layouts.since::text, layouts.revision, slots, partitions, tags,
    (
        SELECT coalesce(json_agg(json_build_array(
            holder, name, address, weight, zone, floor(extract(epoch FROM expires) * 1000)::bigint
        ) ORDER BY began, holder), '[]')
        FROM {schema}.holders WHERE group_name = given.in_group
    ),
    (
        SELECT coalesce(json_agg(json_build_array(partition, term, holder, holdings.revision)), '[]')
        FROM {schema}.holdings
        WHERE group_name = given.in_group AND holdings.revision > given.above
            AND (layouts.since::text, layouts.revision) IS DISTINCT FROM (given.since, given.known)
    )
FROM (VALUES (%s::text, %s::text, %s::bigint, %s::bigint)) AS given(in_group, since, known, above)
LEFT JOIN {schema}.layouts ON group_name = given.in_group
"""
"""One statement, and so one moment. It has no rows of partitions if the version is the one that is known."""

NOTHING = Version("none")
"""A version that no store has."""

Holders = dict[str, tuple[Card, int]]


class PostgresqlOwners(ServedOwners):
    """The owners of one group."""

    def __init__(self, at: PostgresqlAddress) -> None:
        super().__init__(at.public)
        self._at = at
        self._link: SqlLink | None = None
        self._is_installed = self._is_listening = False
        """By this connection."""
        self._version, self._holders = Version(), Holders()
        """As of the last read."""

    def publish(self, layout: Layout, claim: Claim) -> Receipt:
        with self._or_dropped():
            link = self._linked()
            if not self._is_installed:
                link.install()
                self._is_installed = True
            ((said,),) = link.ask(PUBLISH, self._at.group, _claim(layout, claim))
        with self._ours():
            if (said["slots"], said["partitions"], said["tags"]) != (layout.slots, layout.partitions, layout.tags):
                raise mismatch(self._at.group, said["slots"], said["partitions"], said["tags"])
            return Receipt(Version(said["since"], said["revision"]), tuple(said["refused"]))

    def table(self, known: Version | None = None) -> Listing:
        with self._or_dropped():
            was = self._version
            listing = self._read(known or NOTHING, above=-1)[0]
            if known == was != listing.version and not self._linked().wait(0.0):
                self._linked().missed()
            return listing

    def _descriptor(self) -> int | None:
        return None if self._link is None else self._link.descriptor

    def _look_every(self) -> float | None:
        is_called = self._is_listening and not self._linked().is_polling
        return None if is_called else LOOK_EVERY

    def _hear(self) -> list[OwnersChange]:
        if self._look_every() is None and not self._linked().wait(0.0):
            return []
        known, holders = self._version, self._holders
        listing, revisions = self._read(known, above=known.revision)
        version = listing.version
        if version == known:
            return []
        changed = {holder: said for holder, said in self._holders.items() if said != holders.get(holder)}
        changed |= {holder: (card, 0) for holder, (card, _) in holders.items() if holder not in self._holders}
        if not version.continues(known) or version.revision > known.revision + CHANGES_MAX:
            return [OwnersChange(version, listing.holdings or {}, changed)]
        return [
            OwnersChange(Version(version.since, revision), revisions[revision], changed)
            for revision in range(known.revision + 1, version.revision + 1)
        ]

    def _read(self, known: Version, *, above: int) -> tuple[Listing, dict[int, dict[int, Holding]]]:
        """The table, with the holdings above a revision (None if it is still `known`), and these by revision."""
        now_ms, since, revision, slots, partitions, tags, holders, holdings = self._answer(known, above)
        with self._ours():
            layout = None if slots is None else layout_of(slots, partitions, tags=tags)
            version = Version(since or "", revision or 0)
            revisions: dict[int, dict[int, Holding]] = defaultdict(dict)
            for partition, term, holder, written in holdings:
                revisions[written][partition] = Holding(term, holder)
            held = {partition: holding for rows in revisions.values() for partition, holding in rows.items()}
            require_within(layout, held)
        self._version = version
        self._holders = {holder: (Card(*card), expires_ms) for holder, *card, expires_ms in holders}
        return Listing(version, layout, now_ms, self._holders, None if version == known else held), revisions

    def _answer(self, known: Version, above: int) -> tuple[Any, ...]:
        """The answer to READ. Begins to listen before the first one, so that no change lies between them."""
        link = self._linked()
        if not self._is_listening:
            ((is_there, now_ms),) = link.ask(FIND)
            if not is_there:
                return now_ms, None, None, None, None, None, [], []
            ((channel,),) = link.ask(CHANNEL, self._at.group)
            link.listen(channel)
            self._is_listening = True
        return link.ask(READ, self._at.group, *known, above)[0]

    def _linked(self) -> SqlLink:
        if self._link is None:
            self._link = SqlLink(self._at, PURPOSE, opening=True)
        return self._link

    def _drop(self) -> None:
        link, self._link = self._link, None
        self._is_installed = self._is_listening = False
        if link is not None:
            link.close()

    def _ours(self) -> AbstractContextManager[None]:
        places = (f"{self._at.schema}.{table}" for table in ("layouts", "holders", "holdings"))
        return ours(f"the owners of the group {self._at.group} were wanted", places)


def _claim(layout: Layout, claim: Claim) -> str:
    card = claim.card._asdict()
    ttl_ms = max(1, int(claim.ttl * 1000)) if claim.ttl else 0
    sizes = {"slots": layout.slots, "partitions": layout.partitions, "tags": layout.tags}
    moved = {"led": claim.led, "released": claim.released}
    return json.dumps({**sizes, "holder": claim.holder, **card, "ttl_ms": ttl_ms, **moved}, default=dict)
