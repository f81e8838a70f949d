"""The miniature: a group so small that all of its worlds can be counted.

    slots   live incarnation -- crash --> ghost (its records may still be appended) -- departed --> free slot
               | reads one record, hands over, leaves   '-- certified dead, if no client acts for it --'
    ledger  base |--- at most `apart` records that some slot has not read yet --| tip                  |
               ^                                                                                      |
               '------ a newcomer starts from a snapshot of any of these prefixes --------------------'

A ghost may have a client: another process to which the dead one lent its lease. The client acts on until that lease
ends, and only then may a witness certify the death.

A world is: the time, the records between the slowest reader and the tip, and for each slot its place, fold and tenure,
which are the shipped ones. Nothing in it ever changes: a step makes another world.
"""

from dataclasses import dataclass
from typing import NamedTuple

from neli_router.core.keyspace import Layout
from neli_router.lab.sim.explore import Profile
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State, fold
from neli_router.protocols.induction.records import Genesis, Record
from neli_router.protocols.induction.tenure import Tenure
from neli_router.protocols.protocol import Settings

__all__ = [
    "INDUCTION_PROFILES",
    "PARTITION",
    "Bounds",
    "FoldedRecord",
    "Miniature",
    "Slot",
    "acting",
    "broken_rule",
    "genesis_world",
]

PARTITION = 0
"""The only partition. Partitions do not know of each other, so a rule that holds for one holds for each."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of an exploration. Three slots are feasible without Leave or crashes, or with few births."""

    slots: int = 2
    apart: int = 2
    lease: int = 2
    leave: bool = True
    crash: bool = True
    certify: bool = True
    """Whether witnesses certify crashed processes, including those that have not joined, or that lent their lease."""
    grace: bool = False
    """Whether members have a grace."""
    births: int | None = None
    """The number of incarnations over all time; None allows any number, one after the other."""
    assigns: bool = True
    """Whether the group assigns the partition to its members: a cell does not while another has it (`sim.cells`)."""
    states_max: int | None = None

    def __str__(self) -> str:
        limit = "all states" if self.states_max is None else f"at most {self.states_max:,} states"
        births = "" if self.births is None else f" ({self.births} over all time)"
        return (
            f"{self.slots} incarnations at once{births}, 1 partition, readers at most {self.apart} records apart, "
            f"lease {self.lease} ticks, {'with' if self.leave else 'without'} Leave, "
            f"{'with' if self.crash else 'without'} crashes, {'with' if self.certify else 'without'} certificates of "
            f"them{', with a grace' if self.grace else ''}, with restarts under the same name and starts from any "
            f"snapshot; {limit}"
        )


INDUCTION_PROFILES = {
    "test": Profile("Two incarnations at once, with all that may happen to them: minutes.", Bounds()),
    "close": Profile(
        "Readers one record apart, a lease of one tick: finds most mistakes in seconds.", Bounds(apart=1, lease=1)
    ),
    "short-lease": Profile("The lease is one tick.", Bounds(lease=1)),
    "uncertified": Profile("As `close`, but no witness certifies a death.", Bounds(apart=1, lease=1, certify=False)),
    "grace": Profile("As `close`, and each member has a grace.", Bounds(apart=1, lease=1, grace=True)),
    "handovers": Profile(
        "Nobody leaves or crashes, so partitions pass on while their owners live.",
        Bounds(lease=1, leave=False, crash=False, certify=False),
    ),
    "three": Profile(
        "Three incarnations over all time, of which none leaves.",
        Bounds(slots=3, apart=1, lease=1, leave=False, births=3),
    ),
    "full": Profile(
        "Longer leases, readers further apart, and three incarnations at once: under two hours, eight gigabytes.",
        Bounds(lease=3),
        Bounds(slots=3, apart=1, lease=1),
        Bounds(apart=3, lease=1),
        Bounds(slots=3, lease=1, leave=False, states_max=12_000_000),  # More do not fit into eight gigabytes.
    ),
}


class FoldedRecord(NamedTuple):
    """A record in the ledger, the target that was chosen with it, and the fold after it."""

    record: Record
    target: str | None
    after: State


class Slot(NamedTuple):
    """One incarnation: a live process, or what a dead one left behind."""

    incarnation: str
    alive: bool
    place: int
    """How many records beyond the base it has read."""
    state: State
    tenure: Tenure
    joined: bool
    lent: bool = False
    """Whether it had lent its lease to a client when it crashed."""
    certified: bool = False
    claimed: int = 0
    """The offset that it could call clear when it crashed."""

    def clear(self, now: int) -> int:
        """Below which offset it can say that it owes no wait on what it owns; 0 for none."""
        if not self.alive:
            return self.claimed
        owns = self.state.owners[PARTITION] == self.incarnation
        return self.state.at if owns and self.tenure.busy_until(PARTITION) <= now else 0

    def acts(self, now: int) -> bool:
        """Whether it, or its client, may act for the partition."""
        return (self.alive or self.lent) and self.tenure.term(self.state, PARTITION, now) is not None


class Miniature(NamedTuple):
    now: int
    base: State
    tail: tuple[FoldedRecord, ...]
    slots: tuple[Slot, ...]
    born: int

    @property
    def tip(self) -> State:
        return self.tail[-1].after if self.tail else self.base

    def prefix(self, place: int) -> State:
        return self.tail[place - 1].after if place else self.base


def genesis_world(bounds: Bounds) -> tuple[Miniature, Settings]:
    """The first world: the ledger holds only its Genesis, and no incarnation exists."""
    layout = Layout(slots=1, partitions=1)
    settings = Settings(name="m", layout=layout, lease=float(bounds.lease), drift=0.0)
    founding = Genesis(
        by="m", layout=layout, lease=settings.lease, guarantee="exclusive", base=0, version=FOLD_VERSIONS[1]
    )
    return Miniature(0, fold(State(), 0, founding), (), (), 0), settings


def acting(world: Miniature) -> list[str]:
    """The incarnations that may act for the partition now, themselves or through their clients."""
    return [slot.incarnation for slot in world.slots if slot.acts(world.now)]


def broken_rule(world: Miniature) -> str | None:
    """The rule that this world breaks, or None."""
    if len(active := acting(world)) > 1:
        return f"at most one acts: {' and '.join(active)} both may"
    for slot in world.slots:
        if slot.alive and slot.state is not world.prefix(slot.place):
            return f"equal prefixes give equal tables: {slot.incarnation} computed another than the rest"
        if slot.certified and slot.incarnation in world.tip.seats:
            return f"the certified stay out: {slot.incarnation} is a member"
    if world.tail:
        before, after = world.prefix(len(world.tail) - 1), world.tip
        if before.owners != after.owners != (None,) and before.terms >= after.terms:
            return "terms strictly grow: the owner changed, its term did not grow"
    return None
