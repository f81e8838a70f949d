"""A connection to the master of a group's Redis, found through sentinels if the address names them.

    address --TCP, TLS or a socket--> server --HELLO--> master, 7.0 or newer --> Link
       '--sentinels, one after another--> "the master is at ..." --'      '--a replica--> LedgerUnavailable

Commands go out in one write, answers come back in order, and nothing is sent twice: a command that was carried out
already would write a record twice. So a link that failed is closed, and its user decides. Every wait for an answer is
bounded.

Sentinels are asked again for every connection, and the server that they name must report itself as a master: right
after a failover, some sentinels still name the old one.

**Errors** are translated: can the fault heal on its own, and what should be done? A wrong password or a missing right
is LedgerUnusable when the ledger is opened, because then the address or the user's rules are wrong; later it is
LedgerUnavailable, because the right may be given back.

Redis begins an error with a word in capitals. redis-py keeps some of these words only in the class of its exception, so
both are looked at.
"""

import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.errors import LedgerError, LedgerUnavailable, LedgerUnusable

__all__ = ["ANSWER_MAX", "AWAY", "Command", "Link", "code_of", "explain"]

ANSWER_MAX = 0.5
"""Seconds for a connection, and for an answer. Raising it lets a server that is busy with a long command keep its
clients; lowering it notices a frozen server sooner."""

VERSION_MIN = (7, 0)
"""The first version that counts the second part of an entry's place automatically (`XADD key 0-*`)."""

Command = tuple[str | bytes | int, ...]

AWAY = (OSError, exceptions.ConnectionError, exceptions.TimeoutError)
"""Errors after which a connection is of no further use. It must be closed: an answer may still be on its way."""

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.AuthenticationError, "WRONGPASS"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "MOVED"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.NoScriptError, "NOSCRIPT"),
)

_RIGHTS = "let an operator look at `ACL LOG` and grant what docs/redis.md lists, on the keys that begin with the group"
_LOGIN = "check the user and the password in the address, and `ACL LIST` on the server"
_REPLICA = "give the master's address, or the sentinels' (redis+sentinel://...), which know it after a failover"
_REMEDIES: Mapping[str, str] = {
    "NOAUTH": _LOGIN,
    "WRONGPASS": _LOGIN,
    "NOPERM": _RIGHTS,
    "READONLY": _REPLICA,
    "UNBLOCKED": _REPLICA,
    "OOM": "raise maxmemory or make room; a ledger takes a few MiB",
    "LOADING": "wait: it reads its data from disk",
    "MISCONF": "fix the fault that keeps it from saving to disk; its log names it",
    "MASTERDOWN": "bring its master back, or give the master's own address",
    "NOREPLICAS": "bring replicas back: fewer are in touch than min-replicas-to-write asks for",
    "CLUSTERDOWN": "bring the cluster's missing nodes back",
    "WRONGTYPE": "choose another group, or move away the key that another program has put there",
    "CROSSSLOT": "write the group in braces, as in {jobs}, so that a cluster keeps its keys together",
    "MOVED": "give the address of a server that is not a cluster: its nodes are not followed",
    "NOPROTO": "use Redis 7.0 or newer",
}

_FINAL = frozenset({"WRONGTYPE", "CROSSSLOT", "MOVED", "NOPROTO"})
_FINAL_AT_FIRST = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})

_OTHER = "check the server and the network to it"

NO_DATABASE = "DB index is out of range"
"""How Redis says so. It has no word in capitals for it."""


class Link:
    """One connection. Used by one thread at a time."""

    def __init__(self, at: RedisAddress, purpose: str, *, blocked: float = 0.0, opening: bool = False) -> None:
        """Connect, for `purpose`. A command may block for `blocked` seconds before its answer is due. Raises
        LedgerUnavailable or LedgerUnusable."""
        self.at, self._purpose, self._opening = at, purpose, opening
        try:
            host, port = _master(at) if at.service else (at.servers or (("", 0),))[0]
            patience = ANSWER_MAX + blocked
            self._connection = _opened(
                at, host, port, patience, user=at.user, password=at.password, database=at.database
            )
        except (*AWAY, RedisError) as error:
            raise explain(error, at, purpose, opening=opening) from error
        try:
            self.require_master()
        except BaseException:
            self.close()
            raise

    def ask(self, *commands: Command) -> list[Any]:
        """The answers to `commands`, in order. Raises the error of the first command that failed."""
        answers = self.try_each(commands)
        for answer in answers:
            self.require(answer)
        return answers

    def require(self, answer: Any) -> None:
        """Raise `answer` if it is the error of a single command."""
        if isinstance(answer, ResponseError):
            raise explain(answer, self.at, self._purpose, opening=self._opening) from answer

    def try_each(self, commands: Sequence[Command]) -> list[Any]:
        """Like `ask`, but with the errors of single commands in place of their answers. Raises LedgerUnavailable."""
        with self._guarded():
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            return [self._answer() for _ in commands]

    def require_master(self) -> None:
        """Raise LedgerUnavailable if the server is a replica, or has become one."""
        self.master_at = time.monotonic()
        (said,) = self.ask(("HELLO", 2))
        facts = {key: value for key, value in zip(said[::2], said[1::2], strict=True) if isinstance(value, bytes)}
        version = facts.get(b"version", b"0").decode(errors="replace")
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < VERSION_MIN:
            raise LedgerUnusable(
                f"{self._purpose} of {self.at.public} was wanted, on Redis 7.0 or newer",
                f"it is Redis {version}",
                "upgrade the server",
            )
        if facts.get(b"role") != b"master":
            raise LedgerUnavailable(
                f"{self._purpose} of {self.at.public} was wanted, from a master",
                f"that server is a {facts.get(b'role', b'').decode(errors='replace') or 'sentinel'}",
                _REPLICA,
            )

    @property
    def descriptor(self) -> int:
        """For `select`: readable when something has arrived, or when the server is gone."""
        return int(self._connection._sock.fileno())  # noqa: SLF001 - the public API cannot wait for two connections.

    @property
    def pending(self) -> bool:
        """Whether something has arrived that was not taken yet. Raises LedgerUnavailable if the server is gone."""
        with self._guarded():
            return bool(self._connection.can_read(0))

    def take(self) -> Any:
        """The next message."""
        with self._guarded():
            return self._connection.read_response(disable_decoding=True)

    def interrupt(self) -> None:
        """Make a thread that waits for an answer find the connection broken."""
        # Shut down the plain socket even beneath TLS: TLS's own method would remove the layer that the thread is in.
        with suppress(OSError, TypeError):
            socket.socket.shutdown(self._connection._sock, socket.SHUT_RDWR)  # noqa: SLF001 - as above.

    def close(self) -> None:
        """May be called twice."""
        with suppress(*AWAY, RedisError):
            self._connection.disconnect()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Close the link if anything goes wrong: an answer left behind would be mistaken for the next one."""
        try:
            yield
        except (*AWAY, RedisError) as error:
            self.close()
            raise explain(error, self.at, self._purpose, opening=self._opening) from error
        except BaseException:
            self.close()
            raise

    def _answer(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except ResponseError as error:
            return error


def _opened(at: RedisAddress, host: str, port: int, patience: float, *, user: str, password: str, database: int) -> Any:
    said: dict[str, Any] = {
        "db": database,
        "username": user or None,
        "password": password or None,
        "socket_timeout": patience,
        "socket_connect_timeout": ANSWER_MAX,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    kind: Any = Connection
    where: dict[str, Any]
    if at.path:
        kind, where = UnixDomainSocketConnection, {"path": at.path}
    else:
        where = {"host": host, "port": port, "socket_keepalive": True}
    if at.tls:
        kind, files = SSLConnection, {"ssl_ca_certs": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key"}
        said |= {setting: at.options.get(option) for setting, option in files.items()}
    connection = kind(**where, **said)
    # Do not report to the server which library this is: it costs two more round trips, and two lines in the ACL LOG for
    # a user that may not do so.
    connection.driver_info = connection.lib_name = connection.lib_version = None
    try:
        connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return connection


def _master(at: RedisAddress) -> tuple[str, int]:
    """The address of the master, from the first sentinel that knows it."""
    troubles = []
    user, password = at.options.get("sentinel_user", ""), at.options.get("sentinel_password", "")
    for host, port in at.servers:
        try:
            sentinel = _opened(at, host, port, ANSWER_MAX, user=user, password=password, database=0)
        except (*AWAY, RedisError) as error:
            troubles.append(f"{host}:{port}: {error}")
            continue
        try:
            sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", at.service)
            found = sentinel.read_response(disable_decoding=True)
        except (*AWAY, RedisError) as error:
            troubles.append(f"{host}:{port}: {error}")
            continue
        finally:
            sentinel.disconnect()
        if isinstance(found, list) and len(found) == 2:
            return found[0].decode(), int(found[1])
        troubles.append(f"{host}:{port} knows no service {at.service!r}")
    raise LedgerUnavailable(
        f"the master {at.service!r} was wanted from the sentinels of {at.public}",
        "; ".join(troubles)[:400],
        "check the sentinels, and ?service= in the address",
    )


def code_of(error: Exception) -> str:
    """The word in capitals that Redis began with; empty if Redis did not answer at all."""
    word = getattr(error, "status_code", None)  # Only newer releases of redis-py have it.
    if isinstance(word, str) and word in _REMEDIES:
        return word
    if isinstance(error, exceptions.AuthenticationError) and re.match("HELLO must|Authentication required", str(error)):
        return "NOAUTH"
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    word = re.match(r"[A-Z]{3,}\b", str(error))
    return word.group() if word and isinstance(error, exceptions.ResponseError) else ""


def explain(error: Exception, at: RedisAddress, purpose: str, *, opening: bool = False) -> LedgerError:
    """The exception to raise for `error`, which occurred during `purpose`."""
    if isinstance(error, LedgerError):
        return error
    code, cause = code_of(error), error.__context__
    told = str(error).removeprefix(f"{code} ")
    found = f"{code}: {told}" if code else told or type(error).__name__
    remedy = _REMEDIES.get(code, _OTHER)
    final = code in _FINAL or (opening and code in _FINAL_AT_FIRST)
    if told == NO_DATABASE:
        final, remedy = True, "choose a database that the server has: ?db= in the address; most have 0 to 15"
    # Later, a name that was known before may be unknown for a while.
    elif opening and isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
        final, remedy = True, "correct the name of the host in the address"
    kind = LedgerUnusable if final else LedgerUnavailable
    return kind(f"{purpose} of {at.public} was wanted", f"{found:.300}", remedy)
