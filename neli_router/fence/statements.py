"""The statements of the fence: everything but the calls, which one form makes and the other awaits.

    INSERT a row for the resource --is there one?--> no: the term is admitted
                                                     yes: UPDATE it, WHERE its term <= ours --> 1 row: admitted
                                                                                               0 rows: refused

    Admission: statement --execute--> succeeded(rows)? --no--> question --execute, fetch--> refused(row)

It is *one* statement, so nothing can come between the comparison and the change, and it is the same on SQLite (since
3.24) and PostgreSQL. Both let only one transaction at a time change a row: the second waits until the first commits or
rolls back, and then compares with what is there *then*. PostgreSQL locks the row even if the comparison fails, so the
admitted term in a refusal is the term that refused.

A batch is one more row, whose number may only grow: `held.term < excluded.term` changes it once for each batch. It is
checked in the transaction of the write, after the term, so it stands exactly if the write does. A pair (term, counter)
has two more rows, the last pair. If its term is new, any counter is; otherwise, the counter must grow. The row of the
term is locked by then, so no other transaction can come between the two.

The row stays locked until the caller's transaction ends. That joins the fence and the write: a newer owner is not
admitted until the older owner's transaction has ended, and an owner that comes after the newer one is refused. A
connection in autocommit mode ends the transaction with the statement and leaves a gap for a zombie, so it is refused.
So is a connection in psycopg's pipeline mode, whose answer comes too late.

On SQLite the table is that of the file that the connection opened: without `main.`, a temporary table of the same name
would be found first, and would fence only this connection.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

from neli_router.fence.refusals import FenceMisused, Refused, tally

__all__ = [
    "RESOURCE_MAX",
    "TERM_MAX",
    "Admission",
    "AnyLease",
    "Driver",
    "Term",
    "batches_of",
    "checked",
    "checked_batch",
    "checked_pair",
    "checked_resource",
    "driver_of",
    "explained",
    "number",
]

RESOURCE_MAX = 200
"""Characters of a resource's name: room for a path of names, and well within what an index of PostgreSQL holds."""

TERM_MAX = 2**63 - 1
"""The maximum of a BIGINT. Terms of a ledger fit into 53 bits; those of other protocols may need more."""

IDLE = 0
"""libpq's PQTRANS_IDLE: no transaction is open."""

PIPELINE_OFF = 0
"""libpq's PQ_PIPELINE_OFF: the answer comes before the next statement is sent."""

UNDEFINED_TABLE, DEADLOCK = "42P01", "40P01"

ADVISORY = 7_307_420_093_215_172_457
"""An arbitrary number that no other program locks by."""

_CREATE = (
    "CREATE TABLE IF NOT EXISTS {table} (resource TEXT NOT NULL PRIMARY KEY, term BIGINT NOT NULL CHECK (term >= 0))"
)
# Two transactions that create a table concurrently collide in PostgreSQL's catalogue, even with IF NOT EXISTS. As one
# DO statement, the lock lasts until the table exists even if the connection commits each statement on its own.
_CREATE_IN_TURN = f"DO $$ BEGIN PERFORM pg_advisory_xact_lock({ADVISORY}); {_CREATE.format(table='neli_fence')}; END $$"
_ADMIT = (
    "INSERT INTO {table} AS held (resource, term) VALUES ({resource}, {term}) "
    "ON CONFLICT (resource) DO UPDATE SET term = excluded.term WHERE held.term <= excluded.term"
)
_BEGIN_BATCH = _ADMIT.replace("<=", "<")
_REPLACE = _ADMIT.partition(" WHERE ")[0]
_ADMITTED = "SELECT term FROM {table} WHERE resource = {resource}"

_BATCHES, _PAIR_TERM, _PAIR_COUNTER = "/batch", "/paired", "/pair"

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


@runtime_checkable
class AnyLease(Protocol):
    """A lease of a member, of an agent's client, or of a task. The owners that a router names have a term, too, but
    cannot be held: no program may write under the term of another member."""

    @property
    def partition(self) -> int: ...

    @property
    def term(self) -> int: ...

    def holds(self) -> bool: ...


Term = int | tuple[int, int] | AnyLease
"""A term, or the lease that has it, or a pair of a term and a counter that starts again under each term: see
`lease.next()`."""

Statement = tuple[str, Any]
"""SQL text and its parameters, in one driver's form."""


class Driver(NamedTuple):
    """How to use one connection's library; `library` is empty if it is not known."""

    library: str
    paramstyle: str

    @property
    def table(self) -> str:
        return "main.neli_fence" if self.library in _SQLITE else "neli_fence"

    def create(self) -> str:
        return _CREATE_IN_TURN if self.library in _POSTGRESQL else _CREATE.format(table=self.table)

    def admit(self, resource: str, term: int) -> Statement:
        return self._statement(_ADMIT, {"resource": resource, "term": term})

    def begin_batch(self, resource: str, batch: int) -> Statement:
        return self._statement(_BEGIN_BATCH, {"resource": batches_of(resource), "term": batch})

    def begin_term(self, resource: str, term: int) -> Statement:
        return self._statement(_BEGIN_BATCH, {"resource": f"{resource}{_PAIR_TERM}", "term": term})

    def begin_counter(self, resource: str, counter: int, *, is_first: bool) -> Statement:
        template = _REPLACE if is_first else _BEGIN_BATCH
        return self._statement(template, {"resource": f"{resource}{_PAIR_COUNTER}", "term": counter})

    def admitted(self, resource: str) -> Statement:
        return self._statement(_ADMITTED, {"resource": resource})

    def require_transaction(self, connection: Any) -> None:
        """Raise FenceMisused if `connection` is known to commit each statement on its own, or to answer too late."""
        if self.library == "psycopg" and int(connection.pgconn.pipeline_status) != PIPELINE_OFF:
            raise FenceMisused(
                "a connection that answers each statement was wanted",
                "it is in pipeline mode, where the answer comes after the write",
                "admit the term before `with connection.pipeline():`, in the same transaction",
            )
        if _commits_by_itself(connection, self.library):
            raise FenceMisused(
                "a connection with a transaction open was wanted, or one that opens it automatically",
                "it is in autocommit mode, where the fence would no longer hold at the write",
                "begin a transaction, admit the term and write in it: `with connection.transaction():` of psycopg, "
                "BEGIN IMMEDIATE of SQLite",
            )

    def plain_rows(self, cursor: Any) -> None:
        """Make `cursor` return tuples, whatever row type its connection's user has chosen."""
        if self.library == "psycopg":
            cursor.row_factory = lambda _: tuple
        elif self.library in _SQLITE:
            cursor.row_factory = None

    def _statement(self, template: str, values: Mapping[str, Any]) -> Statement:
        mark = _MARKS[self.paramstyle]
        marks = {name: mark(name, place) for place, name in enumerate(values, start=1)}
        text = template.format(table=self.table, **marks)
        return text, dict(values) if self.paramstyle in _BY_NAME else tuple(values.values())


class Admission:
    """The admission of one term or pair by one connection. Raises FenceMisused for invalid arguments."""

    def __init__(self, connection: Any, resource: str, term: Term, paramstyle: str | None) -> None:
        self._resource, self._term, self._counter = checked_pair(resource, term)
        self.driver = driver_of(connection, paramstyle)
        self.driver.require_transaction(connection)
        self.statement = self.driver.admit(self._resource, self._term)
        self.question = self.driver.admitted(self._resource)
        """Asked after a refusal. The row existed, so it still does, with the term that refused or a higher one."""

    def succeeded(self, rows: int) -> bool:
        """Whether a statement that changed `rows` rows admitted the term."""
        if rows == 1 and self._counter is None:
            tally.count(refused=False)
        return rows == 1

    def counting(self, cursor: Any) -> Iterator[Statement]:
        """The statements for `cursor` to execute once the term is admitted, if it came with a counter. Raises Refused
        after the last one if the pair is not greater than the last pair."""
        if self._counter is not None:
            yield self.driver.begin_term(self._resource, self._term)
            yield self.driver.begin_counter(self._resource, self._counter, is_first=cursor.rowcount == 1)
            tally.count(refused=cursor.rowcount != 1)
            if cursor.rowcount != 1:
                raise Refused.of_pair(self._resource, self._term, self._counter)

    def refused(self, row: Any) -> Refused:
        """The error for a term that was not admitted; `row` is the answer to the question."""
        tally.count(refused=True)
        return Refused.of(self._resource, self._term, number(row))


def driver_of(connection: object, paramstyle: str | None) -> Driver:
    """The driver, by the library that made the connection's class, or one of its base classes."""
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


def checked_resource(resource: object) -> str:
    """The resource, if its name is valid."""
    if not isinstance(resource, str) or not resource.isprintable() or not 0 < len(resource) <= RESOURCE_MAX:
        # The name itself is not shown: it may be anything, even a key.
        length = f" of {len(resource)} characters" if isinstance(resource, str) else ""
        raise FenceMisused(
            f"a resource's name was wanted: printable text of 1 to {RESOURCE_MAX} characters",
            f"found a {type(resource).__name__}{length}",
            "name what the term protects, such as 'ledger of invoices'",
        )
    return resource


def checked(resource: object, term: object) -> tuple[str, int]:
    """The resource and the term, if they are valid. A lease stands for its term."""
    resource, term = checked_resource(resource), term.term if isinstance(term, AnyLease) else term
    # Not of a subclass of int: an IntEnum has its own text, which some drivers send.
    if type(term) is not int or not 0 <= term <= TERM_MAX:
        shown = repr(term) if type(term) in {bool, int, float} and len(repr(term)) < 30 else "no such number"
        raise FenceMisused(
            "a term was wanted: a whole number of 0 to 2**63 - 1",
            f"found {shown} ({type(term).__name__})",
            "pass the lease, `lease.term` unchanged, or to number what is written, `lease.next()`",
        )
    return resource, term


def checked_pair(resource: object, term: object) -> tuple[str, int, int | None]:
    """The resource, the term, and the counter that came with it, if they are valid."""
    counter = None
    if type(term) is tuple and len(term) == 2:
        term, counter = term
        counter = checked(resource, counter)[1]
    return (*checked(resource, term), counter)


def batches_of(resource: object) -> str:
    """The name under which the highest batch of a resource is stored, next to its term, if there is room for it."""
    name = f"{checked_resource(resource)}{_BATCHES}"
    if len(name) > RESOURCE_MAX:
        raise FenceMisused(
            f"a resource's name of at most {RESOURCE_MAX - len(_BATCHES)} characters was wanted, if it has batches",
            f"found one of {len(name) - len(_BATCHES)}",
            "name it shorter",
        )
    return name


def checked_batch(resource: str, batch: object) -> int:
    """The batch, if it is valid and the resource's name leaves room for its own."""
    if type(batch) is not int or not 0 <= batch <= TERM_MAX:
        raise FenceMisused(
            "a batch was wanted: a whole number of 0 to 2**63 - 1, which grows from batch to batch",
            f"found a {type(batch).__name__} that is none",
            "number the batches by their place in the input, such as an offset or an interval",
        )
    batches_of(resource)
    return batch


def number(row: Any) -> int | None:
    """The single number in a row, if there is a row."""
    if row is None:
        return None
    return int(next(iter(row.values())) if isinstance(row, Mapping) else row[0])


@contextmanager
def explained() -> Iterator[None]:
    """Add the remedy to the driver's error if the table does not exist yet."""
    try:
        yield
    except Exception as error:
        answer = error.args[0] if error.args else None
        # psycopg, psycopg2, and pg8000, which has the server's whole answer.
        codes = [getattr(error, "sqlstate", None), getattr(error, "pgcode", None)]
        codes += [answer.get("C")] if isinstance(answer, dict) else []
        if UNDEFINED_TABLE in codes or "no such table: main.neli_fence" in str(error):
            error.add_note("neli: `install(connection)` of neli_router.fence makes the table; commit it")
        if DEADLOCK in codes:
            error.add_note("neli: roll back and try again; admit several resources in the order of their names")
        raise


def _commits_by_itself(connection: Any, library: str) -> bool:
    if library in _SQLITE:
        # Since Python 3.12, `autocommit` is True, False, or -1 for the legacy mode, where only `isolation_level`
        # counts.
        modern = getattr(connection, "autocommit", -1)
        by_itself = modern is True or (modern is not False and connection.isolation_level is None)
        return by_itself and not connection.in_transaction
    if library in {"psycopg", "psycopg2"}:
        return bool(connection.autocommit) and int(connection.info.transaction_status) == IDLE
    # The others do not report whether BEGIN was sent, so only the mode decides.
    return getattr(connection, "autocommit", False) is True
