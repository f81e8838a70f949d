"""The statements of the fence, and what a driver must be told to run them.

    INSERT a row for the resource --is there one?--> no: the term is admitted
                                                     yes: UPDATE it, WHERE its term <= ours --> 1 row: admitted
                                                                                               0 rows: refused

It is *one* statement, so nothing can come between the comparison and the change, and it is the same on SQLite (since
3.24) and PostgreSQL. Both let one transaction at a time change a row: the second waits until the first commits or
rolls back, and then compares with what is there *then*. PostgreSQL locks the row even if the comparison fails, so
the admitted term that a refusal names is the one that refused.

The row stays locked until the caller's transaction ends. That is what makes the fence and the write one: a newer owner
is not admitted until the older one's transaction ended, and one that comes after the newer is refused. A connection
in autocommit mode ends the transaction with the statement and leaves a gap for a zombie, so it is refused.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from neli_router.fence.refusals import FenceMisused

__all__ = ["RESOURCE_MAX", "TERM_MAX", "Driver", "Order", "checked", "driver_of", "explain", "number", "plain_rows"]

RESOURCE_MAX = 200
"""Characters of a resource's name: room for a path of names, and far within what an index of PostgreSQL holds."""

TERM_MAX = 2**63 - 1
"""What a BIGINT holds. Terms of a ledger fit 53 bits; those of other protocols may need more."""

IDLE = 0
"""libpq's PQTRANS_IDLE: no transaction is open."""

UNDEFINED_TABLE = "42P01"

ADVISORY = 7_307_420_093_215_172_457
"""Any number that no other program locks by."""

_CREATE = (
    "CREATE TABLE IF NOT EXISTS neli_fence (resource TEXT NOT NULL PRIMARY KEY, term BIGINT NOT NULL CHECK (term >= 0))"
)
# Two that create a table at once collide in PostgreSQL's catalogue, IF NOT EXISTS or not. As one DO statement the lock
# also lasts until the table is there if the connection commits each statement by itself.
_CREATE_IN_TURN = f"DO $$ BEGIN PERFORM pg_advisory_xact_lock({ADVISORY}); {_CREATE}; END $$"
_ADMIT = (
    "INSERT INTO neli_fence AS held (resource, term) VALUES ({resource}, {term}) "
    "ON CONFLICT (resource) DO UPDATE SET term = excluded.term WHERE held.term <= excluded.term"
)
_ADMITTED = "SELECT term FROM neli_fence WHERE resource = {resource}"

_POSTGRESQL = ("psycopg", "psycopg2", "pg8000")
_SQLITE = ("sqlite3", "aiosqlite")
_STYLES: Mapping[str, str] = {
    **dict.fromkeys(_SQLITE, "qmark"),
    "psycopg": "pyformat",
    "psycopg2": "pyformat",
    "pg8000": "format",
}
_MARKS: Mapping[str, Callable[[str, int], str]] = {
    "qmark": lambda name, place: "?",
    "format": lambda name, place: "%s",
    "numeric": lambda name, place: f":{place}",
    "named": lambda name, place: f":{name}",
    "pyformat": lambda name, place: f"%({name})s",
}
_BY_NAME = ("named", "pyformat")


class Order(NamedTuple):
    """A statement and its parameters, as one driver wants them."""

    statement: str
    parameters: Any


class Driver(NamedTuple):
    """How to speak to one connection's library; `library` is empty if nobody knows it."""

    library: str
    paramstyle: str

    def create(self) -> str:
        return _CREATE_IN_TURN if self.library in _POSTGRESQL else _CREATE

    def admit(self, resource: str, term: int) -> Order:
        return self._order(_ADMIT, {"resource": resource, "term": term})

    def admitted(self, resource: str) -> Order:
        return self._order(_ADMITTED, {"resource": resource})

    def require_transaction(self, connection: Any) -> None:
        """Raise FenceMisused if `connection` is known to commit each statement by itself."""
        if _commits_by_itself(connection, self.library):
            raise FenceMisused(
                "a connection with a transaction open was wanted, or one that opens it by itself",
                "it is in autocommit mode, where the fence would be down again before the write",
                "begin a transaction, admit the term and write in it: `with connection.transaction():` of psycopg, "
                "BEGIN IMMEDIATE of SQLite",
            )

    def _order(self, template: str, values: Mapping[str, Any]) -> Order:
        mark = _MARKS[self.paramstyle]
        statement = template.format(**{name: mark(name, place) for place, name in enumerate(values, start=1)})
        return Order(statement, dict(values) if self.paramstyle in _BY_NAME else tuple(values.values()))


def driver_of(connection: object, paramstyle: str | None) -> Driver:
    """By the library that made the connection's class, or one of the classes that it derives from."""
    if paramstyle is not None and paramstyle not in _MARKS:
        raise FenceMisused(
            f"a paramstyle of DB-API 2.0 was wanted: {', '.join(_MARKS)}",
            f"found {paramstyle!r:.60}",
            "pass the `paramstyle` of the connection's module",
        )
    made_by = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    library = next((name for name in made_by if name in _STYLES), "")
    if not callable(getattr(connection, "cursor", None)):
        raise FenceMisused(
            "a connection of DB-API 2.0 was wanted",
            f"found a {type(connection).__name__}, which has no cursors",
            "pass the driver's own connection; SQLAlchemy has it at `connection.connection.driver_connection`",
        )
    if not library and paramstyle is None:
        raise FenceMisused(
            f"a connection of {', '.join(_STYLES)} was wanted",
            f"found one of {made_by[0]}",
            "say paramstyle= as its module does, if its database is SQLite or PostgreSQL",
        )
    return Driver(library, paramstyle or _STYLES[library])


def checked(resource: object, term: object) -> tuple[str, int]:
    """Both, if they are what they must be."""
    if not isinstance(resource, str) or not resource.isprintable() or not 0 < len(resource) <= RESOURCE_MAX:
        # The name itself is not shown: what is no name may be anything, a key among it.
        length = f" of {len(resource)} characters" if isinstance(resource, str) else ""
        raise FenceMisused(
            f"a resource's name was wanted: printable text of 1 to {RESOURCE_MAX} characters",
            f"found a {type(resource).__name__}{length}",
            "name what the term protects, such as 'ledger of invoices'",
        )
    if isinstance(term, bool) or not isinstance(term, int) or not 0 <= term <= TERM_MAX:
        shown = repr(term) if type(term) in {bool, int, float} and len(repr(term)) < 30 else "no such number"
        raise FenceMisused(
            "a term was wanted: a whole number of 0 to 2**63 - 1",
            f"found {shown} ({type(term).__name__})",
            "pass `lease.term` as it is",
        )
    return resource, term


def number(row: Any) -> int | None:
    """The one number in a row, if there is a row."""
    if row is None:
        return None
    return int(next(iter(row.values())) if isinstance(row, Mapping) else row[0])


def plain_rows(cursor: Any, library: str) -> None:
    """Let `cursor` give tuples, whatever its connection's user wants rows to be."""
    if library == "psycopg":
        cursor.row_factory = lambda _: tuple
    elif library in _SQLITE:
        cursor.row_factory = None


def explain(error: Exception) -> None:
    """Add to the driver's own `error` what to do about it, if it is that there is no table."""
    told = error.args[0] if error.args else None
    # psycopg, psycopg2, and pg8000 with the server's whole answer.
    codes = [getattr(error, "sqlstate", None), getattr(error, "pgcode", None)]
    codes += [told.get("C")] if isinstance(told, dict) else []
    if UNDEFINED_TABLE in codes or "no such table: neli_fence" in str(error):
        error.add_note("neli: `install(connection)` of neli_router.fence makes the table; commit it")


def _commits_by_itself(connection: Any, library: str) -> bool:
    if library in _SQLITE:
        # Since Python 3.12 `autocommit` is True, False or -1 for the older ways, where only `isolation_level` counts.
        modern = getattr(connection, "autocommit", -1)
        by_itself = modern is True or (modern is not False and connection.isolation_level is None)
        return by_itself and not connection.in_transaction
    if library in {"psycopg", "psycopg2"}:
        return bool(connection.autocommit) and int(connection.info.transaction_status) == IDLE
    # Whether somebody wrote BEGIN, the others do not say; so the mode alone decides.
    return getattr(connection, "autocommit", False) is True
