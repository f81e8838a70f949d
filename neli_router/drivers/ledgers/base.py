"""The ledger port: one totally ordered log that all members append to and all read.

      member a --append--> [ 1 | 2 | 3 | ... | tip )  --read--> every member, in the same order
      member b --append-->   ^ start

A driver may lose an append, delay it for any time, or apply one after reporting to its caller that it failed; the
protocol copes with all three. It must never hand two readers different records at one offset, or leave one out: members
agree on a fold over this one order. `tests/drivers/ledgers/test_contract.py` holds every driver to the promises below.

Payloads are opaque bytes here. Decoding happens once, above the drivers, so that all members skip the same records.

A ledger handle belongs to the process that opened it, until it is closed:

    opened --fork--> the child: LedgerUnusable        a file's locks, a client's threads and its socket stay behind
       '----close--> Closed
"""

import os
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from neli_router.drivers.handle import Handle
from neli_router.errors import Closed, LedgerTrimmed, LedgerUnusable

__all__ = [
    "APPEND_MAX",
    "READ_BYTES_MAX",
    "READ_MAX",
    "Appender",
    "Entry",
    "Ledger",
    "Promise",
    "require_not_closed",
    "require_own_process",
    "trimmed",
]

READ_MAX = 1000
"""The most entries one read returns. Larger batches catch up faster, smaller ones let a late member beat sooner."""

READ_BYTES_MAX = 4 * 2**20
"""A read stops once its entries reach this many bytes, and includes the record that reaches them. Without this bound, a
thousand long records, which anyone may write, would fill each member's memory."""


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
    """When it was appended, in seconds since 1970, if the ledger keeps that. The clock is the writer's or the broker's,
    as the topic says. None in all other ledgers. For people and for histories: the protocol compares no clocks.
    """


class Ledger(Handle, Protocol):
    """One handle of a log, as a member needs it. `wake` ends a `read`.

    A new handle stands at `start()`. Every call may raise LedgerUnavailable (try again), LedgerUnusable (give up) or
    LedgerRewound (the log lost records; every later call raises it, too); after `close`, every call raises Closed. No
    call may block for much longer than it was asked to.
    """

    @property
    def promises(self) -> frozenset[Promise]:
        """The promises of this driver, as configured."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence, for people, for each part of the set-up that endangers a promise or a newcomer."""

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        """Queue or write `payloads`, in order. An exception does not say whether they will be appended: a driver that
        only queues has no other way to report that an earlier append failed. RecordTooLong means that one payload, of
        this call or an earlier one, was too long for this ledger: the others are not affected.

        `lasting=False` marks records whose loss in a power failure does no harm (heartbeats): a driver may skip the
        flush for them, but must keep their order.
        """

    def acknowledged(self) -> list[int]:
        """The offsets of this handle's appends that the ledger has confirmed since the last call, oldest first."""

    def read(self, timeout: float) -> list[Entry]:
        """The next entries in order, at most READ_MAX and READ_BYTES_MAX; waits up to `timeout` seconds for the first.

        An empty list means: at the tip, or woken; `age` says which. A ledger that cannot read raises instead, because
        silence would look like peace. A position below `start()` raises LedgerTrimmed.
        """

    def age(self) -> float:
        """Seconds since everything read so far was everything there was; infinity if more is known to exist.

        It counts from before the ledger was asked, so that an old answer is never taken for a new one.
        """

    def seek(self, offset: int) -> None:
        """Make the next read begin with the first entry whose offset is `offset` or above."""

    def start(self) -> int:
        """The offset of the first entry retained; equal to `tip()` if there is none."""

    def tip(self) -> int:
        """An offset above every entry now in the ledger, and not above the next one to come."""

    def trim(self, before: int) -> None:
        """Allow the driver to drop entries below `before`. Dropping later, or never, is fine."""


class Appender(Protocol):
    """A connection of a witness, which only appends. It is idle for as long as its member lives."""

    def keep(self) -> None:
        """Have the connection ready: called now and then. Raises LedgerError if it is not."""

    def append(self, payloads: Sequence[bytes]) -> bool:
        """Append `payloads`; return whether that is confirmed, within APPEND_MAX seconds. Raises LedgerError."""

    def close(self) -> None:
        """Release everything."""


APPEND_MAX = 1.0
"""Seconds. After that, a witness opens the ledger as a member does, which finds a broker that moved."""


def require_own_process(ledger: object, opened_by: int) -> None:
    """Raise LedgerUnusable in a process other than `opened_by`, which was forked from it.

    Call it before taking any lock: a thread that the fork left behind may hold one forever.
    """
    if os.getpid() != opened_by:
        raise LedgerUnusable(
            f"the ledger {ledger} was wanted",
            f"process {opened_by} opened it, and this is process {os.getpid()}, forked from it",
            "open the ledger again in this process",
        )


def require_not_closed(ledger: object, *, closed: bool) -> None:
    """Raise Closed after `close`."""
    if closed:
        raise Closed(f"the ledger {ledger} was wanted", "this handle was closed before", "open it again")


def trimmed(ledger: object, start: int, wanted: int) -> LedgerTrimmed:
    """The error for a read at `wanted`, below the start of the ledger."""
    return LedgerTrimmed(
        f"the record at offset {wanted} was wanted",
        f"{ledger} starts at {start}",
        "start again from a snapshot, at or above that offset",
    )
