"""Insight: what checkers know of machines beyond the shape that all of them have, and how long each may take.

    options --> insight --build--> machines
                   '--- who votes, who leads under which term, who is preferred; the bounds of promptness --> group

The bounds hold in fair weather, where every datagram arrives within D and programs may take their time to finish. They
are sums of waits that the protocols name, so that a slower protocol is seen as a broken promise, and not as bad luck.
"""

from collections.abc import Iterable, Mapping, Sequence

from neli_router.electors.voter import Voter
from neli_router.sim.electors.options import ElectorOptions
from neli_router.sim.electors.process import Build

__all__ = ["Insight"]


class Insight:
    """Of machines that say no more than any Voter does. `build` makes them."""

    def __init__(self, options: ElectorOptions, build: Build) -> None:
        self.options, self.build = options, build

    # Of machines

    def turns(self, machine: Voter) -> Iterable[float]:
        """The times at which its tenures may begin or end with no step."""
        return [machine._ends(i) for i in range(self.options.partitions)]  # noqa: SLF001 - no program needs to know.

    def led_by(self, machine: Voter) -> Iterable[tuple[int, int]]:
        """The partitions that it leads, and the terms: also those that it may not act for yet, or any more."""
        return ()

    def prefers(self, machines: Mapping[int, Voter], leader: int, partition: int) -> bool:
        """Whether one of those is to have `partition` in place of its leader."""
        return False

    def tell(self, machine: Voter) -> str:
        """How it stands, for people."""
        return ""

    # Of the group

    def voters(self, partition: int) -> Sequence[int]:
        return range(self.options.size)

    # Bounds, in seconds

    @property
    def takes_over_within(self) -> float:
        """From the last fault to the next leader."""
        return 6 * self.options.lease

    @property
    def forgets_within(self) -> float:
        """For how long a fault that is over may still cost a leader its majority."""
        return 3 * self.options.lease

    @property
    def moves_within(self) -> float:
        """From an operator's word until no leader moves by it any more."""
        return (6 + 2 * self.options.drain_timeout) * self.options.lease

    @property
    def converges_within(self) -> float:
        """From the last fault until all is led as it shall be: what is under way must arrive, and programs finish."""
        return self.moves_within + 2 * self.takes_over_within
