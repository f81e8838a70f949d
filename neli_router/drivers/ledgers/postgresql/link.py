"""A connection to a group's PostgreSQL: questions with bounded waits, and notifications.

    address --libpq, host after host--> a server that takes writes --> SqlLink --LISTEN--> wait
                                        '--none does--> LedgerUnavailable

Each statement is a transaction of its own, so no stopped client holds a lock of ours. Nothing is sent twice: a
statement that was carried out already would write a record twice. So a link that failed is closed, and its user
decides. Every wait for an answer is bounded, also at a server that is stopped: libpq alone would wait and wait.

**Notifications** wake a reader. A pooler in transaction mode accepts LISTEN, and delivers little or nothing. So the
user of a link reports what it found without having been woken, and after a few such misses the link polls.

**Errors** are translated: can the fault heal on its own, and what should be done? A wrong password or a missing right
is LedgerUnusable when the ledger is opened, because then the address or the role is wrong; later it is
LedgerUnavailable, because the right may be given back.
"""

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors, sql

from neli_router.drivers.ledgers.postgresql import schema
from neli_router.drivers.ledgers.postgresql.address import PostgresqlAddress
from neli_router.errors import LedgerError, LedgerUnavailable, LedgerUnusable

__all__ = ["ANSWER_MAX", "GONE", "POLL_EVERY", "SqlLink", "explain"]

ANSWER_MAX = 0.5
"""Seconds for an answer. Raising it lets a server that is busy keep its clients; lowering it notices a frozen server
sooner. The schema's functions wait 0.4 s for a lock, so that the server gives up before its client does."""

CONNECT_MAX = 2
"""Seconds for each host. libpq takes no less."""

POLL_EVERY = 0.01
"""Seconds between two questions where no notification arrives. Raising it saves questions, but delays every record."""

MISSED, MISSES_MAX = 2, 6
"""A link polls if notifications are missing three times in a row, or at least a third of the time. It stops when enough
have come again."""

VERSION_MIN = 13

GONE = (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)
"""The schema, or a part of it, is not there."""

_RIGHTS = "let an operator grant what docs/postgresql.md lists, or make the schema"
_LOGIN = "check the user and the password in the address or in .pgpass, and the server's pg_hba.conf"
_SPACE = "make room on the disk of the server; a ledger takes a few MiB"

_REMEDIES: Mapping[str, str] = {
    "25006": "give the primary's address, or all hosts of the cluster: the one that takes writes is used",
    "28000": _LOGIN,
    "28P01": _LOGIN,
    "3D000": "correct the database in the address, or create it",
    "42501": _RIGHTS,
    "53100": _SPACE,
    "53200": "give the server more memory",
    "53300": "raise max_connections, or end unused sessions: a member needs three",
    "55P03": "look for the session that holds a lock on the ledger: `SELECT * FROM pg_locks WHERE granted`",
    "57014": "raise statement_timeout of this role to a second or more",
    "57P01": "bring the server back",
    "57P02": "bring the server back",
    "57P03": "wait: it is starting up",
}
_NO_ANSWER = "wait timeout expired"
"""In psycopg's words."""

_OTHER = "check the server and the network to it"

_FINAL = frozenset({"28000", "28P01", "3D000", "3F000", "42501"})

_TEXTS = (  # libpq gives no code for a connection that was refused.
    (r"password authentication failed|no password supplied|no pg_hba.conf entry|Peer auth", "28P01"),
    (r'role ".*" (does not exist|is not permitted)', "28000"),
    (r'database ".*" does not exist', "3D000"),
    (r"too many clients|too many connections|remaining connection slots", "53300"),
    (r"session is read-only|hot standby", "25006"),
    (r"starting up|shutting down|recovery", "57P03"),
)


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection of which no wait is unbounded."""

    patience = ANSWER_MAX

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


class SqlLink:
    """One connection. Used by one thread at a time, except for `interrupt`."""

    def __init__(
        self, at: PostgresqlAddress, purpose: str, *, opening: bool = False, patience: float | None = None
    ) -> None:
        """Connect, for `purpose`. Without a `patience`, an answer may take ANSWER_MAX seconds. Raises
        LedgerUnavailable or LedgerUnusable."""
        self.at, self._purpose, self._opening = at, purpose, opening
        self._schema = sql.Identifier(at.schema).as_string()
        self._misses = 0
        self.is_polling = False
        """Whether notifications do not arrive."""
        try:
            # Nothing is prepared: a pooler may send the next statement to another session.
            self._connection = _Bounded.connect(
                at.conninfo(),
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=CONNECT_MAX,
                application_name="neli",
            )
        except psycopg.Error as error:
            raise explain(error, at, purpose, opening=opening) from error
        self._connection.patience = patience or ANSWER_MAX
        try:
            self._require_fit()
        except BaseException:
            self.close()
            raise

    def ask(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of one statement, in a transaction of its own. `{schema}` in it stands for the group's schema."""
        try:
            return self.try_to(text, *values)
        except psycopg.Error as error:
            raise explain(error, self.at, self._purpose, opening=self._opening) from error

    def try_to(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Like `ask`, but raises the server's own error. A link that is of no further use is closed."""
        query = text.replace("{schema}", self._schema).encode()
        try:
            with self._connection.cursor(binary=True) as cursor:
                cursor.execute(query, values)
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):
                self.close()
            raise
        except BaseException:
            self.close()
            raise

    def install(self) -> None:
        """Make the schema if it is not there, or renew it if it is of an older release."""
        try:
            schema.install(self._connection, self._schema)
        except psycopg.Error as error:
            raise explain(error, self.at, f"the schema {self.at.schema}", opening=True) from error

    def listen(self, channel: str) -> None:
        """Wake `wait` at each notification of `channel`."""
        self.ask(sql.SQL("LISTEN {}").format(sql.Identifier(channel)).as_string())

    @property
    def descriptor(self) -> int:
        """For `select`: readable when something has arrived, or when the server is gone."""
        return self._connection.fileno()

    def wait(self, timeout: float) -> bool:
        """Wait until there may be news. Returns whether a notification said so."""
        timeout = min(timeout, POLL_EVERY) if self.is_polling else timeout
        try:
            is_woken = any(True for _ in self._connection.notifies(timeout=timeout, stop_after=1))
        except psycopg.Error as error:
            self.close()
            raise explain(error, self.at, self._purpose) from error
        self._misses = max(0, self._misses - is_woken)
        self.is_polling &= self._misses > 0
        return is_woken

    def missed(self) -> None:
        """Note that there were news of which no notification came. One may have been on its way."""
        self._misses = min(MISSES_MAX, self._misses + MISSED)
        self.is_polling |= self._misses == MISSES_MAX

    def keep(self) -> None:
        """Raise LedgerUnavailable if the server is not there."""
        self.ask("SELECT 1")

    def interrupt(self) -> None:
        """Make a thread that waits for an answer find the connection broken."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """May be called twice."""
        self._connection.close()

    def _require_fit(self) -> None:
        if (version := self._connection.info.server_version) < VERSION_MIN * 10_000:
            raise LedgerUnusable(
                f"{self._purpose} of {self.at.public} was wanted, on PostgreSQL {VERSION_MIN} or newer",
                f"it is PostgreSQL {version // 10_000}",
                "upgrade the server",
            )
        ((isolation,),) = self.ask("SELECT current_setting('default_transaction_isolation')")
        if isolation != "read committed":  # An append counts on from what is there when it gets its turn.
            self.ask("SET default_transaction_isolation TO 'read committed'")


def explain(error: Exception, at: PostgresqlAddress, purpose: str, *, opening: bool = False) -> LedgerError:
    """The exception to raise for `error`, which occurred during `purpose`."""
    if isinstance(error, LedgerError):
        return error
    said = " ".join(str(error).split()) or type(error).__name__
    said = "no answer came in time" if said == _NO_ANSWER else said
    code = getattr(error, "sqlstate", None) or ""
    known = code or next((known for pattern, known in _TEXTS if re.search(pattern, said)), "")
    kind = LedgerUnusable if opening and known in _FINAL else LedgerUnavailable
    remedy = _REMEDIES.get(known, _OTHER)
    return kind(f"{purpose} of {at.public} was wanted", f"{code}: {said:.300}" if code else f"{said:.300}", remedy)
