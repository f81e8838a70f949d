"""The fence: a database compares terms before it lets a program write, because a lease cannot be checked in time.

    owner, term 7   lease.check() ... paused for a minute ...................... UPDATE  <-- refused: 9 was admitted
    owner, term 9                        admit(9), read, UPDATE, COMMIT

Checking a lease and the act that it guards are never one step, so a process may be paused just between them. So the
receiver of the write decides: it remembers the highest term seen for each *resource*, and refuses a lower one.

    fence.install(connection)                           once: makes the table, if it does not exist
    with connection:                                    one transaction
        fence.admit(connection, "invoices", lease.term)     or Refused
        connection.execute("UPDATE invoices ...")           stands or falls with the fence

**Raise it before you read.** A new owner admits its term, commits, and only then reads what the fence protects. If it
read first, the older owner could still write after that, and the new owner would go on with outdated values.

**A pair lands once, and in its order.** `admit` also takes a pair `(term, counter)`, such as `lease.next()` gives, in
place of a term. It refuses a pair that is not greater than the last pair of the resource.

**A batch lands once.** A program that may run again with the same input numbers its batches, and writes only if
`admit_batch` says that this batch is new. The number is stored in the same transaction: it stands if the write does.

`admit` neither commits nor rolls back. Equal terms are admitted, so an owner may write as often as it likes. It works
with sqlite3, psycopg, psycopg2, pg8000 and, with `paramstyle`, any other driver of SQLite or PostgreSQL. The module
`neli_router.fence.asynchronous` has the same functions for connections that are awaited, `neli_router.fence.redis` has
functions that guard keys in Redis, and `neli_router.fence.delta` and `neli_router.fence.iceberg` fence tables. All may
be called from any thread that may use the connection.

It may import only the core.
"""

from contextlib import closing
from typing import Any

from neli_router.fence.refusals import (
    BatchGap,
    FenceMisused,
    Refused,
    TableMismatch,
    TableUnavailable,
    Tally,
    tally,
)
from neli_router.fence.statements import (
    RESOURCE_MAX,
    TERM_MAX,
    Admission,
    AnyLease,
    Term,
    batches_of,
    checked,
    checked_batch,
    checked_resource,
    driver_of,
    explained,
    number,
)

__all__ = [
    "RESOURCE_MAX",
    "TERM_MAX",
    "BatchGap",
    "FenceMisused",
    "Refused",
    "TableMismatch",
    "TableUnavailable",
    "Tally",
    "admit",
    "admit_batch",
    "admitted",
    "admitted_batch",
    "install",
    "tally",
]


def install(connection: Any, *, paramstyle: str | None = None) -> None:
    """Make the table `neli_fence`, if it does not exist. Any number of callers may do so concurrently. Commit it
    yourself.

    On PostgreSQL the table is made in the first schema of the search path.
    """
    driver = driver_of(connection, paramstyle)
    with closing(connection.cursor()) as cursor:
        cursor.execute(driver.create())


def admit(connection: Any, resource: str, term: Term, *, paramstyle: str | None = None) -> None:
    """Let `term`, or the lease that has it, write to `resource` until this transaction ends, or raise Refused if a
    higher one was admitted. For a pair of a term and a counter, also raise Refused unless it is greater than every pair
    that was admitted.

    `resource` is a name of your choice, of at most RESOURCE_MAX characters; errors show it, so do not use personal
    data. Waits while another transaction has admitted a term to it and is still open. Raises FenceMisused for an
    invalid term and for a connection in autocommit mode; the driver's own errors are passed through.
    """
    admission = Admission(connection, resource, term, paramstyle)
    with closing(connection.cursor()) as cursor:
        admission.driver.plain_rows(cursor)
        with explained():
            cursor.execute(*admission.statement)
        if not admission.succeeded(cursor.rowcount):
            cursor.execute(*admission.question)
            raise admission.refused(cursor.fetchone())
        for statement in admission.counting(cursor):
            cursor.execute(*statement)


def admit_batch(
    connection: Any, resource: str, term: int | AnyLease, batch: int, *, paramstyle: str | None = None
) -> bool:
    """Admit `term` like `admit`. Then return True if `batch` is to be written now, in this transaction, and False if
    it, or a later one, was written before. Each batch of a resource is True once: in the transaction that commits.

    Number batches by their position in the input, so that another process that starts again numbers them the same way.
    """
    batch = checked_batch(checked(resource, term)[0], batch)
    admit(connection, resource, term, paramstyle=paramstyle)
    driver = driver_of(connection, paramstyle)
    with closing(connection.cursor()) as cursor:
        cursor.execute(*driver.begin_batch(resource, batch))
        return int(cursor.rowcount) == 1


def admitted(connection: Any, resource: str, *, paramstyle: str | None = None) -> int | None:
    """The highest term admitted to `resource`, as this transaction sees it; None if there was none yet."""
    resource = checked_resource(resource)
    driver = driver_of(connection, paramstyle)
    with closing(connection.cursor()) as cursor:
        driver.plain_rows(cursor)
        with explained():
            cursor.execute(*driver.admitted(resource))
        return number(cursor.fetchone())


def admitted_batch(connection: Any, resource: str, *, paramstyle: str | None = None) -> int | None:
    """The last batch of `resource` that was written, as this transaction sees it; None if there was none yet.

    A new owner calls it after it has raised the fence: from then on no older owner can write another batch.
    """
    return admitted(connection, batches_of(resource), paramstyle=paramstyle)
