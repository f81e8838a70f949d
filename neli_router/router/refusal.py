"""Why look-ups have no table: each plight, and its error in words that help at 3 a.m.

    nothing read yet  AWAITING    StaleTable      nobody began a group  UNFOUNDED   NoOwner
    too old           STALE       StaleTable      nobody is alive       SILENT      NoOwner
    source failed     STOPPED     its own error   in a forked child     FORKED      Forked      closed  CLOSED  Closed

An error is made anew for every look-up that fails. One that was kept and raised again would grow its traceback with
each raise, and hold the variables of every caller alive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from neli_router.errors import Closed, Forked, NeliError, NoOwner, StaleTable
from neli_router.induction.fold import State
from neli_router.router.table import Table

__all__ = ["ALARMING", "NOBODY", "OVER", "At", "Facts", "Plight", "Refused", "View", "explain"]

Plight = Enum("Plight", "AWAITING UNFOUNDED STALE SILENT STOPPED FORKED CLOSED")

NOBODY = frozenset({Plight.UNFOUNDED, Plight.SILENT})
"""The ledger was read, and what it says is that there is nobody."""

OVER = frozenset({Plight.STOPPED, Plight.FORKED, Plight.CLOSED})
"""Nothing heals these but `reopen`, and nothing at all the last."""

ALARMING = frozenset({Plight.STALE, Plight.SILENT, Plight.STOPPED})
"""What nobody wanted, so that the log shall tell of it."""

HEAL = "look-ups go on by themselves once it is read again"


class At(NamedTuple):
    """How current a table is."""

    offset: int
    """Every record of the ledger below it was read."""
    age: float
    """Seconds since the ledger was last read up to its end; `inf` if it never was."""


class Facts(NamedTuple):
    """What there is to say about a table at the moment of a look-up."""

    address: str
    at: At
    max_age: float
    silent_for: float
    """Seconds since a sign of any member was last read."""
    trouble: str
    """What the driver said when it could not read; empty if it said nothing."""
    state: State
    error: NeliError | None
    kind: str = "the ledger"
    """What the address is of."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Stands where a table would: `explain(wanted)` makes the error, of which `wanted` says what for."""

    plight: Plight
    explain: Callable[[str], NeliError]


View = Table | Refused
"""What look-ups have to go by."""


def explain(plight: Plight, wanted: str, facts: Facts) -> NeliError:
    """The error for a look-up that wanted something in this plight."""
    address, place = facts.address, f"{facts.kind} {facts.address}"
    match plight:
        case Plight.AWAITING:
            found = f"{place} was not yet read up to its end{_because(facts)}"
            return StaleTable(wanted, found, "wait for it with `await_table`, or see why it cannot be read")
        case Plight.STALE:
            found = (
                f"{place} was last read {facts.at.age:.1f} s ago, up to offset {facts.at.offset}, and "
                f"max_age is {facts.max_age:g} s{_because(facts)}"
            )
            return StaleTable(wanted, found, f"see why it cannot be read; {HEAL}")
        case Plight.UNFOUNDED:
            return NoOwner(wanted, f"no member ever joined, no group has begun on {address}", "start a member")
        case Plight.SILENT:
            last = f"last heard {facts.silent_for:.1f} s ago: {_last_heard(facts.state)}"
            found = f"nobody is alive on {address} ({last})"
            return NoOwner(wanted, found, "start a member, or see why the members cannot reach the ledger")
        case Plight.FORKED:
            found = f"this process is a fork, and what reads {facts.kind} stayed in its parent"
            return Forked(wanted, found, "reopen the router here; if a member feeds it, open a member here")
        case Plight.CLOSED:
            return Closed(wanted, "this router was closed before", "look up before closing, or open another router")
        case Plight.STOPPED:
            assert facts.error is not None, "only an error stops a source"
            kind, arguments = facts.error.__reduce__()
            return kind(*arguments)


def _because(facts: Facts) -> str:
    return f" (the last try: {facts.trouble})" if facts.trouble else ""


def _last_heard(state: State) -> str:
    if not state.seats:  # It changed since.
        return "a member that has left"
    newest = max(state.last_beats, key=lambda incarnation: state.last_beats[incarnation])
    seat = state.seats[newest]
    return f"member {seat.name} at {seat.address}" if seat.address else f"member {seat.name}"
