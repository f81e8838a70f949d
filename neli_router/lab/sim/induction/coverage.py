"""Coverage: under `available`, at least one process acts for a partition at any moment, and never two for long.

    owner dead or none --a live one owns it--> OWED --a process acts--> COVERED --none acts--> a broken promise
                                                |
                                                '---- D passes --> a broken promise

This is promised only while each record is read within D of its sending, so it is judged only in fair weather. There, a
partition may lack an acting process from when its owner (or a process that still stood in for the owner) died until the
next owner has read that it owns the partition, which takes at most D. From then on, it must not be left for an instant,
whichever process joins, leaves or hands over, as long as none dies. Two processes may act for it together for at most
hold - suspicion, stretched by the drift of the clock that counts it.
"""

from collections.abc import Callable
from math import inf

from neli_router.lab.sim.acting import Acting
from neli_router.lab.sim.induction.options import RunOptions
from neli_router.lab.sim.induction.process import Process
from neli_router.lab.sim.world import Violation, World
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import InductionMachine

__all__ = ["Coverage", "ends_of_tenure"]

SLACK = 0.01
"""In leases: the time that the turns of pumps take, which D leaves out."""


def ends_of_tenure(machine: InductionMachine) -> list[float]:
    """The times at which leases and waits of `induction` end."""
    tenure = machine.tenure
    lingering = (linger.until for linger in tenure.lingering.values())
    return [tenure.sent + tenure.lasts, tenure.settled, *tenure.busy.values(), *lingering]


class Coverage:
    """Checks one run. `owner_of` finds the live process of an incarnation, if there is one."""

    def __init__(
        self,
        world: World,
        options: RunOptions,
        acting: Acting[Process, InductionMachine],
        owner_of: Callable[[str], Process | None],
    ) -> None:
        settings = options.settings("any")
        stretch = (1 + options.drift) / (1 - options.drift)
        self._world, self._acting, self._owner_of = world, acting, owner_of
        self._grace = (settings.delay + SLACK * options.lease) * stretch
        self._overlap_max = (settings.hold - settings.lease + SLACK * options.lease) * stretch
        self._owed_since = [inf] * options.partitions
        self._covered = [False] * options.partitions
        self._together: dict[tuple[int, Process, Process], float] = {}
        self.gap_max = self.overlap_longest = 0.0

    def on_change(self, state: State) -> None:
        """Owners or members changed, in the ledger."""
        for partition, owner in enumerate(state.owners):
            alive = owner is not None and self._owner_of(owner) is not None
            if not alive:
                self._owed_since[partition] = inf
            elif self._owed_since[partition] == inf:
                self._owed_since[partition], self._covered[partition] = self._world.now, False

    def on_death(self, process: Process, acted: dict[int, int], state: State) -> None:
        """`process` died, which acted for these. If it stood in for an owner that does not act yet, there is a gap."""
        for partition in acted:
            self._owed_since[partition], self._covered[partition] = self._world.now, False
        self.on_change(state)

    def look(self) -> None:
        """Other processes may act than before: judge them."""
        now = self._world.now
        together: dict[tuple[int, Process, Process], float] = {}
        for partition in range(len(self._owed_since)):
            who = self._acting.who(partition)
            for at, one in enumerate(who):
                for other in who[:at]:
                    since = self._together.get((partition, other, one), now)
                    together[partition, other, one] = since
                    self._require_brief(partition, one, other, since)
            if who:
                self._covered[partition] = True
            else:
                self._require_excuse(partition)
        for (partition, one, other), since in self._together.items():
            self._require_brief(partition, one, other, since)
        self._together = together

    def _require_excuse(self, partition: int) -> None:
        owed_for = self._world.now - self._owed_since[partition]
        if owed_for < 0:
            return  # Its owner is dead, or it has none.
        if self._covered[partition]:
            raise Violation("at_least_one_acts", f"partition {partition} was left by all, and its owner lives")
        if owed_for > self._grace:
            raise Violation(
                "at_least_one_acts", f"partition {partition} waits for {owed_for:.6f} s, and its owner lives"
            )
        self.gap_max = max(self.gap_max, owed_for)

    def _require_brief(self, partition: int, one: Process, other: Process, since: float) -> None:
        lasted = self._world.now - since
        self.overlap_longest = max(self.overlap_longest, lasted)
        if lasted > self._overlap_max:
            raise Violation(
                "brief_overlap",
                f"{one.label} and {other.label} act for partition {partition} for {lasted:.6f} s, "
                f"where {self._overlap_max:.6f} s are allowed",
            )
