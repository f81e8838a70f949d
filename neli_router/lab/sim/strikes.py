"""Strikes: when faults come and which members they hit, whatever the faults do.

    every now and then --> one of this run's faults --> follow-up: another fault, soon, aimed at the same member
                                                                         |
                              '------------------------------------------'

Most protocols survive any single fault. They break when a second fault follows before the first is dealt with. So
faults come in pairs more often than chance alone would bring them. A plot is several faults in one, timed to coincide.
It is chosen more often than other faults: chance alone would hardly ever combine its parts.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from neli_router.lab.sim.world import World

__all__ = ["StrikeGroup", "Strikes", "Victim"]

AIMED = 0.6
"""How often a follow-up is aimed at the same member."""


class Victim(Protocol):
    """A process, as far as strikes are concerned."""

    label: str

    @property
    def alive(self) -> bool: ...


VictimT = TypeVar("VictimT", bound=Victim)


class StrikeGroup(Protocol[VictimT]):
    """The processes of a run."""

    living: list[VictimT]
    counts: Counter[str]

    def start(self, name: str) -> object: ...
    def named(self, name: str) -> Sequence[VictimT]: ...


class Strikes(Generic[VictimT]):
    """Phase one. `unit` is a lease or a session; `faults_per_unit` and the spans of faults are counted in it."""

    plots: ClassVar[Collection[str]]
    plot_weight: ClassVar[int]

    def __init__(
        self,
        world: World,
        group: StrikeGroup[VictimT],
        kinds: dict[str, Callable[[VictimT], None]],
        *,
        faults: Sequence[str],
        names: int,
        unit: float,
        faults_per_unit: float,
        follow_up: float,
    ) -> None:
        self.kinds = kinds
        self._world, self._struck = world, group
        self._faults, self._names, self._unit = faults, names, unit
        self._faults_per_unit, self._follow_up = faults_per_unit, follow_up
        self._stopped = False

    def begin(self) -> None:
        if self._faults:
            self._schedule()

    def stop(self) -> None:
        self._stopped = True

    def _schedule(self) -> None:
        gap = self._world.random.expovariate(self._faults_per_unit) * self._unit
        self._later(gap, self._strike, None)
        self._later(gap, self._schedule)

    def _later(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        """Do it after `seconds`, unless the faults have stopped by then."""
        self._world.at(self._world.now + seconds, lambda: None if self._stopped else act(*arguments))

    def _strike(self, victim: VictimT | None) -> None:
        random, group = self._world.random, self._struck
        if not group.living:
            self._join_absent()
            return
        if victim is None or not victim.alive:
            victim = random.choice(group.living)
        fault = random.choices(self._faults, [self.plot_weight if one in self.plots else 1 for one in self._faults])[0]
        group.counts[f"fault_{fault}"] += 1
        self._world.note("world", f"{fault} {victim.label}")
        self.kinds[fault](victim)
        if random.random() < self._follow_up:
            aim = victim if random.random() < AIMED else None
            self._later(self._span(0.0, random.choice((0.01, 0.3, 1.0))), self._strike, aim)

    def _span(self, least: float, most: float) -> float:
        """A random number of leases, or sessions, in seconds."""
        return self._world.random.uniform(least, most) * self._unit

    def _join_absent(self) -> None:
        absent = [name for name in map("m{}".format, range(1, self._names + 1)) if not self._struck.named(name)]
        if absent:
            self._struck.start(self._world.random.choice(absent))
