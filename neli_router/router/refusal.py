"""Why look-ups have no table: each plight, and an error message that helps at 3 a.m.

    nothing read yet  AWAITING    StaleTable      no member made the ledger yet  UNMADE      NoOwner
    too old           STALE       StaleTable      no group was founded           UNFOUNDED   NoOwner
    source failed     STOPPED     its own error   no member is alive             SILENT      NoOwner
    closed            CLOSED      Closed          in a forked child              FORKED      Forked

Every failed look-up gets a new error object. An error that was kept and raised again would grow its traceback with each
raise, and keep the variables of every caller alive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from neli_router.errors import Closed, Forked, NeliError, NoOwner, StaleTable
from neli_router.router.table import Table

__all__ = [
    "ALARMING",
    "MAKE",
    "NO_MEMBER",
    "OVER",
    "At",
    "NoTable",
    "Plight",
    "View",
    "explain",
    "member_that_left",
    "unmade",
]

Plight = Enum("Plight", "AWAITING UNMADE UNFOUNDED STALE SILENT STOPPED FORKED CLOSED")

NO_MEMBER = frozenset({Plight.UNFOUNDED, Plight.SILENT})
"""The source was read, and it says that the group has no live member."""

OVER = frozenset({Plight.STOPPED, Plight.FORKED, Plight.CLOSED})
"""Only `reopen` heals these, and nothing heals the last."""

ALARMING = frozenset({Plight.STALE, Plight.SILENT, Plight.STOPPED})
"""These are logged: something is wrong that the program did not ask for."""

MAKE = "start a member, which makes it, or correct the address"

HEAL = "look-ups resume automatically once it is read again"


class At(NamedTuple):
    """How current a table is."""

    offset: int
    """Every record of the ledger below this offset was read."""
    age: float
    """Seconds since the ledger was last read up to its end; `inf` if it never was."""


@dataclass(frozen=True, slots=True)
class NoTable:
    """Why look-ups have no table. `explain(wanted)` makes the error for a look-up that wanted something."""

    plight: Plight
    explain: Callable[[str], NeliError]


View = Table | NoTable
"""The input of a look-up: a table, or the reason why there is none."""


def explain(
    plight: Plight,
    wanted: str,
    *,
    address: str,
    kind: str,
    at: At,
    max_age: float,
    silent_for: float,
    last_heard: Callable[[], str],
    trouble: str,
    unmade_because: str,
    error: NeliError | None,
) -> NeliError:
    """The error for a look-up that wanted something in this plight.

    `kind` says what is at `address`. The last sign of a member was read `silent_for` seconds ago, and `last_heard`
    names that member. `trouble` has the driver's words if it could not read, `unmade_because` says what it found in the
    place of a missing ledger, and `error` is why the source stopped.
    """
    place, because = f"{kind} {address}".rstrip(), f" (the last try: {trouble})" if trouble else ""
    match plight:
        case Plight.AWAITING:
            found = f"{place} was not yet read up to its end{because}"
            return StaleTable(wanted, found, "wait for it with `await_table`, or see why it cannot be read")
        case Plight.UNMADE:
            return NoOwner(wanted, unmade(place, unmade_because), MAKE)
        case Plight.STALE:
            found = (
                f"{place} was last read {at.age:.1f} s ago, up to offset {at.offset}, and "
                f"max_age is {max_age:g} s{because}"
            )
            return StaleTable(wanted, found, f"see why it cannot be read; {HEAL}")
        case Plight.UNFOUNDED:
            return NoOwner(wanted, f"no member ever joined, no group has begun on {address}", "start a member")
        case Plight.SILENT:
            last = f"last heard {silent_for:.1f} s ago: {last_heard()}"
            found = f"no member is alive on {address} ({last})"
            return NoOwner(wanted, found, "start a member, or see why the members cannot reach the ledger")
        case Plight.FORKED:
            found = f"this process is a fork, and what reads {kind} stayed in its parent"
            return Forked(wanted, found, "reopen the router here; if a member feeds it, open a member here")
        case Plight.CLOSED:
            return Closed(wanted, "this router was closed before", "look up before closing, or open another router")
        case Plight.STOPPED:
            assert error is not None, "only an error stops a source"
            made_by, arguments = error.__reduce__()
            return made_by(*arguments)


def unmade(place: str, because: str) -> str:
    """The words for a source that no member has made yet."""
    return f"no member has made {place} yet ({because})"


def member_that_left() -> str:
    """The member that was heard last, in words, if it has left since."""
    return "a member that has left"
