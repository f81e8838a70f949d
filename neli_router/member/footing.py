"""The footing: what a member stands on, and the pump that keeps it there. The engine only turns it.

    ledger_footing    a ledger and Induction: reads what the whole group is and does
    group_footing     a broker's consumer group and NELI or Fast NELI: knows its own tenures, but not the others'
    peer_footing      datagrams between the members, and an elector: likewise

A footing is opened on the engine's thread, because a driver may hang. It reports what happens through the engine's
`Foothold`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from neli_router.hosts.process import ProcessMark
from neli_router.protocols.electors.events import Nominate, Prefer, Rebalance
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.protocol import Close, Machine, News, Released

__all__ = ["Foothold", "Footing", "Request"]


Request = Released | Close | Wish | Nominate | Prefer | Rebalance
"""A program's or an operator's request to a machine. The engine posts to each footing only what its protocol takes."""


@dataclass(frozen=True, slots=True)
class Foothold:
    """The engine's callbacks. All of them are called on the engine's thread."""

    explain: Callable[[Sequence[object]], None]
    """Receives the effects of a step before the standing shows their result."""
    stepped: Callable[[float], None]
    """Called with the time after each step, once the membership knows its result, and before its effects are carried
    out."""
    moved: Callable[[], None]
    """Called when other loops may have something to do now and were not notified of it."""
    tell: Callable[[News], None]
    """Receives the machine's news for its program and its operators."""


class Footing(Protocol):
    """One member's footing. `turn` and `close` belong to one thread; the rest may be called from any thread."""

    @property
    def machine(self) -> Machine[Any, Any]:
        """The machine that this footing drives."""

    def turn(self) -> None:
        """Do one bounded piece of work."""

    def post(self, event: Request) -> None:
        """Pass `event` to the machine soon."""

    def wake(self) -> None:
        """Make a waiting `turn` return."""

    def pledge(self, until: float, processes: Sequence[ProcessMark]) -> None:
        """Others may act on this member's leases until then, and its death is not reported earlier. If `processes` are
        named, others act only while one of these processes is alive."""

    def close(self) -> None:
        """Release what the footing holds. May raise NeliError, and block for as long as a driver does."""
