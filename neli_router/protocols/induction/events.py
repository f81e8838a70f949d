"""The ledger's side of induction: what a machine takes from its ledger and gives to it. See `protocol` for the program.

    ledger --Read, LedgerAway, Restart, Acknowledged, LedgerBroken--> machine --Append, Trim, Recheck--> ledger
                     program --Wish: record this--------> machine

A pump carries all of it between one ledger and one machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from neli_router.errors import NeliError
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Record
from neli_router.protocols.protocol import Close, News, Released, Tick

__all__ = [
    "Acknowledged",
    "Append",
    "Effect",
    "Input",
    "LedgerAway",
    "LedgerBroken",
    "Read",
    "Recheck",
    "Restart",
    "Trim",
    "Wish",
]


@dataclass(frozen=True, slots=True)
class Read:
    """The next records of the ledger; None stands for a record that cannot be decoded.

    The time of the step is just *after* the read returned. With these records, everything that the ledger held `age`
    seconds ago has been read; `inf` if there is known to be more. The read need not be empty for that: while members
    beat, no read ever is.
    """

    entries: Sequence[tuple[int, Record | None]]
    age: float = inf


@dataclass(frozen=True, slots=True)
class LedgerAway:
    """The ledger could not be read. This does not mean that the members were silent."""


@dataclass(frozen=True, slots=True)
class LedgerBroken:
    """The ledger can no longer be used, and trying again will not help."""

    error: NeliError


@dataclass(frozen=True, slots=True)
class Restart:
    """The records that come next are no longer retained; here is the state of the newest snapshot instead."""

    state: State


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The ledger confirmed appends of this process at these offsets."""

    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Wish:
    """The program or its operator wants `record` appended: a drain, pin, weight, load, upgrade or certificate."""

    record: Record


Input = Read | LedgerAway | LedgerBroken | Restart | Acknowledged | Wish | Released | Close | Tick


@dataclass(frozen=True, slots=True)
class Append:
    """Append these records, in order. `lasting` is false when losing them in a power failure does no harm."""

    records: Sequence[Record]
    lasting: bool


@dataclass(frozen=True, slots=True)
class Trim:
    """Members and readers that start from now on do not need the records below `before`."""

    before: int


@dataclass(frozen=True, slots=True)
class Recheck:
    """A record says that the ledger lost others: check whether what was read is still there."""


Effect = Append | Trim | Recheck | News
