"""Who may use a handle of a ledger: the process that opened it, until it closes it.

    opened --fork--> the child: LedgerUnusable        a file's locks, a client's threads and its socket stay behind
       '----close--> Closed

The process is asked for first, before any lock: a thread that the fork left behind may hold one for ever.
"""

import os

from neli_router.errors import Closed, LedgerUnusable

__all__ = ["require_not_closed", "require_own_process"]


def require_own_process(ledger: object, opened_by: int) -> None:
    """Raise LedgerUnusable in a process that is not `opened_by`, but forked from it."""
    if os.getpid() != opened_by:
        raise LedgerUnusable(
            f"the ledger {ledger} was wanted",
            f"process {opened_by} opened it, and this is process {os.getpid()}, forked from it",
            "open the ledger anew in this process",
        )


def require_not_closed(ledger: object, *, closed: bool) -> None:
    """Raise Closed after `close`."""
    if closed:
        raise Closed(f"the ledger {ledger} was wanted", "this handle was closed before", "open it anew")
