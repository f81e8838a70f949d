"""One ledger's records in PostgreSQL: the questions to ask, and how to interpret the answers.

    ledgers   id 7, name jobs        append: lock this row --> max(offset) + 1, + 2 ... --> commit, which is flushed
    records   (7, 1) (7, 2) (7, 3)   read: the anchor and what is new, in one statement, as of one moment

A sequence would give offsets in the order in which transactions *begin*, and leave holes where one fails. So an append
counts under the lock of the ledger's row, which is held until its commit can be seen (`schema/ledger.sql`).

**Waking.** A reader listens, and a writer notifies after its commit, in a second transaction: PostgreSQL lets only one
transaction at a time commit a notification, in the whole server, and the first one waits for the disk.
"""

import time
from collections.abc import Sequence
from itertools import groupby

import psycopg
from psycopg import errors

from neli_router.drivers.ledgers.asked import FIRST, AskedLog, Extent, Found, Sent
from neli_router.drivers.ledgers.base import READ_BYTES_MAX, READ_MAX, Entry
from neli_router.drivers.ledgers.postgresql.address import PostgresqlAddress
from neli_router.drivers.ledgers.postgresql.link import GONE, SqlLink, explain
from neli_router.errors import LedgerError, LedgerUnavailable

__all__ = ["LedgerRecords"]

TRIM_MAX = 1000
"""The most records deleted in one step. Raising it holds up this member's appends for longer, some milliseconds for a
thousand; lowering it trims slower than a busy group writes."""

EXTENT = """
SELECT
    (SELECT min("offset") FROM {schema}.records WHERE ledger = id),
    (SELECT max("offset") FROM {schema}.records WHERE ledger = id)
FROM {schema}.ledgers WHERE id = %s
"""
HOLDER = """
SELECT pid, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::double precision
FROM pg_locks AS held JOIN pg_stat_activity USING (pid)
WHERE relation = '{schema}.ledgers'::regclass AND mode <> 'AccessShareLock' AND pid <> pg_backend_pid()
    AND NOT EXISTS (SELECT FROM pg_locks AS wanted WHERE wanted.pid = held.pid AND NOT granted)
ORDER BY xact_start LIMIT 1
"""
"""The oldest session that has a lock on the table of ledgers and waits for none. The state of another role's session,
and since when it has it, are not shown to everyone."""

NOTIFY = "SELECT pg_notify(%s, '') FROM set_config('synchronous_commit', 'off', true)"


class LedgerRecords(AskedLog[SqlLink]):
    """See `AskedLog`. `ledger` is the number of the group's ledger."""

    losses = "a failover to a standby, a restored copy, fsync=off, a dropped or truncated table"
    deleting = "DELETE on its records"

    def __init__(self, address: PostgresqlAddress, ledger: int) -> None:
        self.address, self.public, self.ledger = address, address.public, ledger
        self.name, self.log = f"postgresql-{address.group}", f"the ledger {address.group} in {address.schema}.records"
        self._channel = f"{address.schema}_{ledger}"

    def connect(self, purpose: str, *, blocked: float = 0.0) -> SqlLink:
        link = SqlLink(self.address, purpose)
        if blocked:
            link.listen(self._channel)
        return link

    def ask(self, link: SqlLink, position: int, anchor: Entry | None, wait: float) -> Found:
        is_woken = wait > 0 and link.wait(wait)
        asked_at = time.monotonic()
        there, entries = self._read(link, None if anchor is None else anchor.offset, position, READ_MAX)
        if wait and entries and not is_woken:
            link.missed()
        return Found(asked_at, entries, there)

    def at(self, link: SqlLink, offset: int) -> Entry | None:
        return self._read(link, offset, offset, 0)[0]

    def extent(self, link: SqlLink) -> Extent:
        try:
            found = link.try_to(EXTENT, self.ledger)
        except GONE:
            found = []
        except psycopg.Error as error:
            raise explain(error, self.address, "a read") from error
        first, last = found[0] if found else (None, None)
        return Extent(first or FIRST, (last or 0) + 1, exists=bool(found))

    def send(self, link: SqlLink, batch: Sequence[bytes | int], last: int) -> Sent:
        offsets: list[int] = []
        trim_trouble: LedgerError | None = None
        has_trimmed, to_trim = False, None
        for is_trim, some in groupby(batch, key=lambda one: isinstance(one, int)):
            if is_trim:
                before = max(one for one in some if isinstance(one, int))
                try:
                    ((is_more,),) = link.ask("SELECT {schema}.trim(%s, %s, %s)", self.ledger, before, TRIM_MAX)
                except LedgerError as error:
                    trim_trouble = error
                else:
                    has_trimmed, to_trim = True, before if is_more else None
            else:
                payloads = [one for one in some if isinstance(one, bytes)]
                end = self.append(link, payloads)
                offsets += range(end - len(payloads) + 1, end + 1)
        return Sent(offsets, trim_trouble=trim_trouble, has_trimmed=has_trimmed, to_trim=to_trim)

    def append(self, link: SqlLink, payloads: Sequence[bytes]) -> int:
        """Append the payloads, and wake the readers. Returns the last one's offset."""
        try:
            ((end,),) = link.try_to("SELECT {schema}.append(%s, %b)", self.ledger, list(payloads))
        except GONE:
            end = None
        except errors.LockNotAvailable as error:
            raise LedgerUnavailable(
                f"an append to {self.public} was wanted",
                f"another session holds a lock on the ledger: {self._holder(link)}",
                "end that session's transaction, if need be by `SELECT pg_terminate_backend(PID)`",
            ) from error
        except psycopg.Error as error:
            raise explain(error, self.address, "an append") from error
        if end is None:
            raise self.rewound("it is gone, with all its records")
        link.ask(NOTIFY, self._channel)
        return int(end)

    def _holder(self, link: SqlLink) -> str:
        for pid, name, state, seconds in link.ask(HOLDER):
            since = [] if seconds is None else [f"for {seconds:.0f} s"]
            return ", ".join([f"PID {pid}", *([name] if name else []), state or "of another role", *since])
        return "it has gone by now"

    def _read(self, link: SqlLink, anchor: int | None, position: int, most: int) -> tuple[Entry | None, list[Entry]]:
        """The record at `anchor`, and those from `position` on."""
        asked = "SELECT * FROM {schema}.read(%s, %s, %s, %s, %s) ORDER BY 1 DESC, 2"
        try:
            rows = link.try_to(asked, self.ledger, anchor, position, most, READ_BYTES_MAX)
        except GONE:
            rows = []  # The question for the extent will say so.
        except psycopg.Error as error:
            raise explain(error, self.address, "a read") from error
        entries = [Entry(*row[1:]) for row in rows]
        is_there = bool(rows) and rows[0][0]
        return (entries[0] if is_there else None), entries[is_there:]
