"""What every election protocol hears and says: the inputs and effects of all the machines here.

    ledger --Read, Away, Restart, Acknowledged, Broken--> machine --Append, Trim----------------> ledger
    program --Wish, Released, Close---------------------> machine --Acquired, Revoked, Fenced---> program
    clock --(now)---------------------------------------> machine --Notice, Stopped-------------> program

A machine does no I/O, has no clock, no thread and no randomness of its own. It takes one input and the time, and
answers with effects that must be carried out in their order. `deadline` says when to step it with `TICK` if nothing
comes first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from neli_router.errors import NeliError
from neli_router.induction.fold import State
from neli_router.induction.records import Record

__all__ = [
    "NO_STANDING",
    "TICK",
    "Acknowledged",
    "Acquired",
    "Append",
    "Away",
    "Broken",
    "Close",
    "Effect",
    "Fenced",
    "Input",
    "Machine",
    "Notice",
    "Read",
    "Released",
    "Restart",
    "Revoked",
    "Standing",
    "Stopped",
    "Tick",
    "Trim",
    "Wish",
]

Terms = Mapping[int, int]
"""Partition -> term."""


@dataclass(frozen=True, slots=True)
class Read:
    """The next records of the ledger, None for one that cannot be decoded. No records at all means: at the tip.

    The time of the step is just *after* the read returned. That nothing came says what there was `age` seconds ago.
    """

    entries: Sequence[tuple[int, Record | None]]
    age: float = 0.0


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
    """The program or its operator wants this recorded: a drain, a pin, a weight, a load, an upgrade."""

    record: Record


@dataclass(frozen=True, slots=True)
class Released:
    """The program has finished what it did for these partitions under these terms."""

    terms: Terms


@dataclass(frozen=True, slots=True)
class Close:
    """The program wants to leave the group: in good order, or `at_once` when it cannot wait or failed by `error`."""

    at_once: bool = False
    error: NeliError | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened, but time passed."""


TICK = Tick()

Input = Read | Away | Broken | Restart | Acknowledged | Wish | Released | Close | Tick


@dataclass(frozen=True, slots=True)
class Append:
    """Append these records, in order. `lasting` is false when losing them in a power failure harms nobody."""

    records: Sequence[Record]
    lasting: bool


@dataclass(frozen=True, slots=True)
class Trim:
    """Records below `before` are no longer needed by anybody who starts now."""

    before: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """The program may prepare, and then act for these partitions under these terms."""

    terms: Terms


@dataclass(frozen=True, slots=True)
class Revoked:
    """The program shall finish what it does for these partitions; their successor waits until they are Released."""

    terms: Terms


@dataclass(frozen=True, slots=True)
class Fenced:
    """The program must stop at once: somebody else may act for these partitions already."""

    terms: Terms
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something an operator would want in the log: a constant name, and fields."""

    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The machine has ended, because it was told to or, with an error, because it may not go on."""

    error: NeliError | None


Effect = Append | Trim | Acquired | Revoked | Fenced | Notice | Stopped


@dataclass(frozen=True, slots=True)
class Standing:
    """What the program may act for, as a value that any thread can ask: it ends by itself when time passes."""

    terms: Terms
    until: float
    ends: Mapping[int, float]
    """Where a single partition ends at another time than `until`."""

    def end(self, partition: int, term: int) -> float:
        """Until when the program may act for `partition` under `term`; `-inf` if it may not."""
        if self.terms.get(partition) != term:
            return -inf
        return self.ends.get(partition, self.until)


NO_STANDING = Standing({}, -inf, {})


class Machine(Protocol):
    """The one shape of all protocols, so that one pump drives them and one simulator tests them."""

    @property
    def state(self) -> State:
        """What was read so far."""

    @property
    def standing(self) -> Standing:
        """What the program was told that it may act for, and until when."""

    @property
    def deadline(self) -> float:
        """When to step with `TICK` if nothing comes first; `inf` means never."""

    def step(self, event: Input, now: float) -> list[Effect]:
        """Take `event` at `now`, which never goes back."""

    def tenures(self, now: float) -> dict[int, int]:
        """Partition -> term, for all partitions that this member may act for at `now`."""
