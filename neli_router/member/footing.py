"""The footing: what a member stands on, and the pump that keeps it there. Its engine turns it, and knows no more of it.

    ledger_footing    a ledger and Induction: reads what the whole group is and does
    group_footing     a broker's consumer group and NELI or Fast NELI: knows its own tenures, and nothing of the others'
    peer_footing      datagrams between the members, and an elector: the same

A footing is opened on the engine's thread, because a driver may hang. It says what happens by `Foothold`, which belongs
to the engine.
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
"""What a program, or an operator, says to a machine. The engine posts to each footing what its protocol takes."""


@dataclass(frozen=True, slots=True)
class Foothold:
    """The engine's ear. All of it is called on the engine's thread."""

    explain: Callable[[Sequence[object]], None]
    """Gets the effects of a step before the standing says what they come to."""
    stepped: Callable[[float], None]
    """Called with the time after each step, when the membership knows what it came to, and before its effects are
    carried out."""
    moved: Callable[[], None]
    """Called when others may have something to do now that was not told them."""
    tell: Callable[[News], None]
    """Gets what the machine tells its program and its operators."""


class Footing(Protocol):
    """One member's. `turn` and `close` belong to one thread; all else may be called from any."""

    @property
    def machine(self) -> Machine[Any, Any]:
        """The machine that is driven."""

    def turn(self) -> None:
        """One bounded piece of work."""

    def post(self, event: Request) -> None:
        """Let the machine take `event` soon."""

    def wake(self) -> None:
        """Make a `turn` that waits return."""

    def pledge(self, until: float, processes: Sequence[ProcessMark]) -> None:
        """Others may act on this member's leases until then, and its death is not told before; if `processes` are told,
        they act no longer than one of these lives."""

    def close(self) -> None:
        """Let go of it. May raise NeliError, and block for a driver's time."""
