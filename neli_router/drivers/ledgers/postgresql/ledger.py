"""A ledger in PostgreSQL: a group's records are rows, numbered in the order of their commits.

    append --neli.append, under a row's lock--> neli.records  1 2 3 ... --NOTIFY, neli.read--> read

`../asked.py` has the threads, takes no silence for peace, and notices lost records even if new ones already stand in
their places. `records.py` has the statements, `link.py` the connection, and `schema/` the tables.

**Promises** depend on how the server is set up. Every append is flushed before any member can read it, heartbeats, too,
because members on other hosts survive a crash of the server and have read them. So one primary with `fsync` never
rewinds, and neither does one whose standbys are synchronous: a commit can be seen only once a standby has it. A
failover to an asynchronous standby loses the newest records; the driver notices, and says what it found. If an operator
ends a session that waits for its standby, PostgreSQL shows the commit though no standby has it: leave those sessions
alone.
"""

from collections.abc import Sequence
from contextlib import closing

import psycopg

from neli_router.drivers.ledgers.asked import AskedLedger
from neli_router.drivers.ledgers.base import Promise
from neli_router.drivers.ledgers.postgresql.address import PostgresqlAddress
from neli_router.drivers.ledgers.postgresql.link import GONE, SqlLink, explain
from neli_router.drivers.ledgers.postgresql.records import LedgerRecords
from neli_router.errors import LedgerMissing

__all__ = ["PostgresqlAppender", "PostgresqlLedger", "delete_rows"]

DELETION_MAX = 60.0
"""Seconds for a deletion: a ledger whose members never trimmed it may be large."""

_FIND = "SELECT id FROM {schema}.ledgers WHERE name = %s"
_MAKE = "INSERT INTO {schema}.ledgers (name) VALUES (%s) ON CONFLICT DO NOTHING"

_SETTINGS = """
SELECT
    current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_standby_names') <> '',
    EXISTS (SELECT FROM pg_stat_replication) OR EXISTS (SELECT FROM pg_replication_slots WHERE slot_type = 'physical')
"""
"""A standby that is away at the moment may be promoted all the same: its slot is there, if it has one."""


class PostgresqlLedger(AskedLedger[SqlLink]):
    """One handle of a group's rows. `create=False` refuses a ledger that does not exist."""

    def __init__(self, address: PostgresqlAddress, *, create: bool = True) -> None:
        with closing(SqlLink(address, "the opening", opening=True)) as link:
            records = _records(link, address, create=create)
            extent = records.extent(link)
            self.promises, self.doubts = _examine(link)
        super().__init__(records, extent)


class PostgresqlAppender:
    """See `Appender`."""

    def __init__(self, at: PostgresqlAddress) -> None:
        self._link = SqlLink(at, "a certificate")
        self._records = _records(self._link, at, create=False)
        self.keep, self.close = self._link.keep, self._link.close

    def append(self, payloads: Sequence[bytes]) -> bool:
        return self._records.append(self._link, payloads) > 0


def delete_rows(address: PostgresqlAddress) -> str:
    """Delete the group's ledger with all its records, and return its name. Raises LedgerError.

    This does not touch the table of owners, nor the fences.
    """
    with closing(SqlLink(address, "the deletion", opening=True, patience=DELETION_MAX)) as link:
        ledger = _records(link, address, create=False).ledger
        # The row goes first: an append that comes later finds none, and leaves no record behind.
        link.ask("DELETE FROM {schema}.ledgers WHERE id = %s", ledger)
        link.ask("DELETE FROM {schema}.records WHERE ledger = %s", ledger)
    return f"{address.schema}.records of {address.group}"


def _records(link: SqlLink, address: PostgresqlAddress, *, create: bool) -> LedgerRecords:
    """The group's ledger. Raises LedgerMissing, unless it may be made."""
    if create:
        link.install()
    try:
        found = link.try_to(_FIND, address.group)
        if create and not found:
            link.try_to(_MAKE, address.group)
            found = link.try_to(_FIND, address.group)
    except GONE:
        found = []
    except psycopg.Error as error:
        raise explain(error, address, "the opening", opening=True) from error
    if not found:
        raise LedgerMissing(
            f"the ledger {address.public} was wanted",
            f"{address.schema}.ledgers has no group {address.group}",
            "correct the address, or start a member, which makes it",
        )
    return LedgerRecords(address, found[0][0])


def _examine(link: SqlLink) -> tuple[frozenset[Promise], tuple[str, ...]]:
    """The promises and the doubts of the server that `link` leads to."""
    ((syncs, whole_pages, is_synchronous, has_standby),) = link.ask(_SETTINGS)
    is_local = bool(link.at.servers) and all(host.startswith("/") for host, _ in link.at.servers)
    promises = set[Promise]() if is_local else {Promise.MULTI_HOST}
    doubts = []
    if not syncs:
        doubts.append("fsync is off: a crash of the server's host loses records, or all of them; set it to on")
    if not whole_pages:
        doubts.append("full_page_writes is off: a crash of the server's host may damage the ledger; set it to on")
    is_copied = has_standby or len(link.at.servers) > 1
    if is_copied and not is_synchronous:
        doubts.append(
            "the standbys are asynchronous: a failover may lose the newest records, and then the group stops and says "
            "so; set synchronous_standby_names"
        )
    if syncs and whole_pages:
        promises |= {Promise.DURABLE} | (set() if is_copied and not is_synchronous else {Promise.NEVER_REWINDS})
        if not is_copied:
            doubts.append("one disk has all records: if it is lost without a standby, so is the group's ledger")
    return frozenset(promises), tuple(doubts)
