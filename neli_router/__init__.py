"""NELI Router: who works on which key, decided by one shared ledger.

    key --> slot --> partition --> owner (member, address, term)

Everything a program needs is imported from here; what stands in the modules beneath may move between releases. The
import is light: no driver, no web framework and no command line comes with it.
"""

from neli_router.errors import (
    BadKey,
    Closed,
    ConfigError,
    Diverged,
    Forked,
    GroupMismatch,
    LeaseLost,
    LedgerError,
    LedgerRewound,
    LedgerTrimmed,
    LedgerUnavailable,
    LedgerUnusable,
    LookupFailed,
    NeliError,
    NoOwner,
    NotLeading,
    Replaced,
    StaleTable,
    Unsupported,
)
from neli_router.keyspace import Layout

__all__ = [
    "BadKey",
    "Closed",
    "ConfigError",
    "Diverged",
    "Forked",
    "GroupMismatch",
    "Layout",
    "LeaseLost",
    "LedgerError",
    "LedgerRewound",
    "LedgerTrimmed",
    "LedgerUnavailable",
    "LedgerUnusable",
    "LookupFailed",
    "NeliError",
    "NoOwner",
    "NotLeading",
    "Replaced",
    "StaleTable",
    "Unsupported",
]
