"""The ledger's side of induction: what a machine takes from its ledger and gives to it. `protocol` has the program's.

    ledger --Read, Away, Restart, Acknowledged, Broken--> machine --Append, Trim, Recheck--> ledger
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

__all__ = ["Acknowledged", "Append", "Away", "Broken", "Effect", "Input", "Read", "Recheck", "Restart", "Trim", "Wish"]


@dataclass(frozen=True, slots=True)
class Read:
    """The next records of the ledger, None for one that cannot be decoded.

    The time of the step is just *after* the read returned. With these records, all that the ledger held `age` seconds
    ago has been read; `inf` if there is known to be more. A read need not be empty for that: where members beat all the
    time, none ever is.
    """

    entries: Sequence[tuple[int, Record | None]]
    age: float = inf


@dataclass(frozen=True, slots=True)
class Away:
    """The ledger could not be read. Not to be taken for silence."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The ledger cannot be used any more, and trying again will not help."""

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
    """The program or its operator wants this recorded: a drain, a pin, a weight, a load, an upgrade, a certificate."""

    record: Record


Input = Read | Away | Broken | Restart | Acknowledged | Wish | Released | Close | Tick


@dataclass(frozen=True, slots=True)
class Append:
    """Append these records, in order. `lasting` is false when losing them in a power failure does no harm."""

    records: Sequence[Record]
    lasting: bool


@dataclass(frozen=True, slots=True)
class Trim:
    """No member or reader that starts from now on needs the records below `before`."""

    before: int


@dataclass(frozen=True, slots=True)
class Recheck:
    """A record says that the ledger lost others: see whether what was read is still there."""


Effect = Append | Trim | Recheck | News
