"""Fenced transactions: a hook's statements, and the admission of the task's term, are one transaction of its database.

    with fenced(hook, lease, "invoices") as connection:     connect, admit --a higher term--> Refused, rolled back
        hook.insert_rows("invoices", rows)                  on this connection, and nothing is committed yet
        connection.execute("UPDATE ...")                    the same
                                                            admit, COMMIT  --any error------> rolled back

So a deposed task writes nothing, whenever it wakes up. `neli_router.fence` says why only the database can decide that.

**The hook, too.** In the block, the hook's own methods get this connection, because those of Airflow open one for each
call, and commit. Methods that go through SQLAlchemy's engine still open their own: read with them, and do not write. A
hook serves one block at a time.

**Twice.** The term is admitted again before the commit. A COMMIT, or a rollback to a savepoint, among the statements
ends the first admission, and what follows must not be written without one. PostgreSQL also answers the COMMIT of a
failed transaction by rolling it back silently; here that is an error.

**Which hooks.** Those of SQLite and PostgreSQL: a connection of another database is refused before it runs anything,
MySQL's among them. `paramstyle` names a driver that the fence does not know, as in `fence.admit`.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from neli_router import fence

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    from neli_router.fence.statements import AnyLease

__all__ = ["fenced", "install"]


class _Borrowed:
    """The connection, for the hook's methods: they neither commit nor close it, and set no mode of it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def fenced(hook: "DbApiHook", lease: "AnyLease", resource: str, *, paramstyle: str | None = None) -> Iterator[Any]:
    """One transaction of `hook` in which the lease's term is admitted to `resource`; gives its connection.

    Raises Refused if a higher term was admitted, and FenceMisused for a database that has no fence; nothing is written
    then.

    :param hook: of the database that is written to
    :param lease: the task's lease, `context["lease"]`
    :param resource: what the term protects, as in `fence.admit`: only leaders of one role may write to it
    :param paramstyle: that of the driver's module, if the fence does not know the driver
    """
    with closing(hook.get_conn()) as connection:
        if hook.supports_autocommit:
            hook.set_autocommit(connection, False)  # noqa: FBT003 - Airflow's own signature.
        connect = hook.get_conn
        try:
            hook.get_conn = lambda: _Borrowed(connection)  # type: ignore[method-assign]
            fence.admit(connection, resource, lease, paramstyle=paramstyle)
            yield connection
            fence.admit(connection, resource, lease, paramstyle=paramstyle)
            connection.commit()
        except BaseException as error:
            with suppress(Exception):  # If it fails, the end of the connection rolls back.
                if not isinstance(error, Exception) and hasattr(connection, "cancel"):
                    # The lease is over. The server would finish the statement first, and the successor wait for that.
                    connection.cancel()
                connection.rollback()
            raise
        finally:
            hook.get_conn = connect  # type: ignore[method-assign]


def install(hook: "DbApiHook", *, paramstyle: str | None = None) -> None:
    """Make the fence's table, if it does not exist. Call it once, when you set up the database.

    :param hook: of the database that is written to
    :param paramstyle: as in `fenced`
    """
    with closing(hook.get_conn()) as connection:
        fence.install(connection, paramstyle=paramstyle)
        connection.commit()
