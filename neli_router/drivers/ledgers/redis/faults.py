"""Translate the errors of Redis: can the fault heal on its own, and what should be done?

    away, loading, a replica, no memory, no disk  --> LedgerUnavailable     retried forever
    wrong password, no right, while it is used    --> LedgerUnavailable     the right may be given back
    the same when it is opened                    --> LedgerUnusable        the address is wrong, or the user's rules
    another type of key, too old, a cluster       --> LedgerUnusable        trying again will not help

Redis begins an error with a word in capitals. redis-py keeps some of these words only in the class of its exception, so
this module looks at both.
"""

import re
from collections.abc import Mapping

from redis import exceptions

from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.errors import LedgerError, LedgerUnavailable, LedgerUnusable

__all__ = ["AWAY", "code_of", "explain"]

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

_OTHER = "check the server and the network to it; it will be tried again"


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
    code = code_of(error)
    final = code in _FINAL or (opening and code in _FINAL_AT_FIRST)
    told = str(error).removeprefix(f"{code} ")
    found = f"{code}: {told}" if code else told or type(error).__name__
    remedy = _REMEDIES.get(code, _OTHER)
    kind = LedgerUnusable if final else LedgerUnavailable
    return kind(f"{purpose} of {at.public} was wanted", f"{found:.300}", remedy)
