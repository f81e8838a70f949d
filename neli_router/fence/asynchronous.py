"""The fence for connections whose methods are awaited: psycopg's AsyncConnection, aiosqlite, and similar ones.

    await fence.admit(connection, "invoices", lease.term)      the same statement, the same answers, the same tally

A transaction belongs to one task at a time, as in all these libraries. A task that is cancelled while it waits for
another transaction leaves its own to be rolled back, and the fence unchanged.
"""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from neli_router.fence.statements import (
    Admission,
    AnyLease,
    Driver,
    Term,
    batches_of,
    checked,
    checked_batch,
    checked_resource,
    driver_of,
    explained,
    number,
)

__all__ = ["admit", "admit_batch", "admitted", "admitted_batch", "install"]


async def install(connection: Any, *, paramstyle: str | None = None) -> None:
    """See `neli_router.fence.install`."""
    driver = driver_of(connection, paramstyle)
    async with _cursor(connection, driver) as cursor:
        await cursor.execute(driver.create())


async def admit(connection: Any, resource: str, term: Term, *, paramstyle: str | None = None) -> None:
    """See `neli_router.fence.admit`."""
    admission = Admission(connection, resource, term, paramstyle)
    async with _cursor(connection, admission.driver) as cursor:
        with explained():
            await cursor.execute(*admission.statement)
        if not admission.succeeded(cursor.rowcount):
            await cursor.execute(*admission.question)
            raise admission.refused(await cursor.fetchone())
        for statement in admission.counting(cursor):
            await cursor.execute(*statement)


async def admit_batch(
    connection: Any, resource: str, term: int | AnyLease, batch: int, *, paramstyle: str | None = None
) -> bool:
    """See `neli_router.fence.admit_batch`."""
    batch = checked_batch(checked(resource, term)[0], batch)
    await admit(connection, resource, term, paramstyle=paramstyle)
    driver = driver_of(connection, paramstyle)
    async with _cursor(connection, driver) as cursor:
        await cursor.execute(*driver.begin_batch(resource, batch))
        return int(cursor.rowcount) == 1


async def admitted(connection: Any, resource: str, *, paramstyle: str | None = None) -> int | None:
    """See `neli_router.fence.admitted`."""
    resource = checked_resource(resource)
    driver = driver_of(connection, paramstyle)
    async with _cursor(connection, driver) as cursor:
        with explained():
            await cursor.execute(*driver.admitted(resource))
        return number(await cursor.fetchone())


async def admitted_batch(connection: Any, resource: str, *, paramstyle: str | None = None) -> int | None:
    """See `neli_router.fence.admitted_batch`."""
    return await admitted(connection, batches_of(resource), paramstyle=paramstyle)


@asynccontextmanager
async def _cursor(connection: Any, driver: Driver) -> AsyncIterator[Any]:
    cursor = connection.cursor()
    if inspect.isawaitable(cursor):  # psycopg returns it directly, aiosqlite asks its thread.
        cursor = await cursor
    driver.plain_rows(cursor)
    try:
        yield cursor
    finally:
        await cursor.close()
