"""The ledger port: one totally ordered log that all members append to and all read.

      member a --append--> [ 1 | 2 | 3 | ... | tip )  --read--> every member, in the same order
      member b --append-->   ^ start

A driver may lose an append, delay it for any time, or apply one whose caller was told that it failed; the protocol
lives with all three. It must never hand two readers different records at one offset, or leave one out: everything that
members agree on is a fold over this one order. `tests/drivers/ledgers/test_contract.py` holds every driver to
the promises below.

Payloads are opaque bytes here. Decoding happens once, above the drivers, so that a record which cannot be decoded is
skipped by all members alike.

A handle of a ledger belongs to the process that opened it, until it closes it:

    opened --fork--> the child: LedgerUnusable        a file's locks, a client's threads and its socket stay behind
       '----close--> Closed
"""

import os
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from neli_router.errors import Closed, LedgerUnusable

__all__ = ["READ_BYTES_MAX", "READ_MAX", "Entry", "Ledger", "Promise", "require_not_closed", "require_own_process"]

READ_MAX = 1000
"""The most entries one read returns. Larger batches catch up faster, smaller ones let a late member beat sooner."""

READ_BYTES_MAX = 4 * 2**20
"""The most bytes one read goes on after: with the record that reaches them it ends. Without it, a thousand long records
that anyone may write would fill the memory of each member."""


class Promise(Enum):
    """A thing that a driver can be relied upon for, beyond the port itself."""

    DURABLE = "an acknowledged record survives a crash of every process"
    MULTI_HOST = "members on several hosts can share it"
    NEVER_REWINDS = "while any reader of a record lives, it is never lost or replaced, power failures included"


class Entry(NamedTuple):
    """One record's bytes and its place in the ledger."""

    offset: int
    payload: bytes
    time: float | None = None
    """When it was appended, in seconds since 1970, where the ledger keeps that: by the clock of the writer or of the
    broker, as its topic says. None in all other ledgers. For people and for histories: the protocol compares no clocks.
    """


class Ledger(Protocol):
    """One handle of a log, as a member needs it. Used by one thread at a time, except for `wake`.

    A new handle stands at `start()`. Every call may raise LedgerUnavailable (try again), LedgerUnusable (give up) or
    LedgerRewound (the log lost records; every later call raises it, too); after `close`, Closed. None may block for
    much longer than it was told to.
    """

    @property
    def promises(self) -> frozenset[Promise]:
        """The promises of this driver, as configured."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence, for people, for each thing in the set-up that endangers a promise or a newcomer."""

    @property
    def address(self) -> str:
        """Where the ledger is, for people: no secrets in it."""

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        """Queue or write `payloads`, in order. Raising says nothing about whether they will be appended: a driver that
        only queues has no other way to tell that an earlier append failed. RecordTooLong says that one of them, now or
        before, was too long for this ledger: the others are not concerned.

        `lasting=False` marks records whose loss in a power failure does no harm (heartbeats): a driver may skip the
        flush for them, never their order.
        """

    def acknowledged(self) -> list[int]:
        """The offsets of own appends that the ledger has confirmed since the last call, oldest first."""

    def read(self, timeout: float) -> list[Entry]:
        """The next entries in order, at most READ_MAX and READ_BYTES_MAX; waits up to `timeout` seconds for the first.

        Empty means: at the tip, or woken; `age` tells which. A ledger that cannot read raises instead, because silence
        would look like peace. A position below `start()` raises LedgerTrimmed.
        """

    def age(self) -> float:
        """How many seconds ago all that was read so far was all there was; infinity if there is known to be more.

        Counted from before the ledger was asked, so that an old answer is never taken for a new one.
        """

    def seek(self, offset: int) -> None:
        """Read next the first entry whose offset is `offset` or above."""

    def start(self) -> int:
        """The offset of the first entry retained; equal to `tip()` when there is none."""

    def tip(self) -> int:
        """An offset above every entry now in the ledger, and not above the next one to come."""

    def trim(self, before: int) -> None:
        """Allow the driver to drop entries below `before`. Dropping later, or never, is fine."""

    def wake(self) -> None:
        """Make a `read` that is waiting in another thread return within ten milliseconds; if none is, the next one.

        Callable from any thread, and after `close`.
        """

    def close(self) -> None:
        """Release everything. Twice is fine."""


def require_own_process(ledger: object, opened_by: int) -> None:
    """Raise LedgerUnusable in a process that is not `opened_by`, but forked from it.

    Call it before taking any lock: a thread that the fork left behind may hold one for ever.
    """
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
