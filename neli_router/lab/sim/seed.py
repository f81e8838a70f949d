"""One seed, whatever kind of group it runs: its options in one line, its phases, and the verdict on it.

    seed --> options --> phase one: faults --> healed --> phase two: converge --> an outcome
                              |                                 |
                              '---- a broken promise -----------+--> Violation, transcript

Each kind of group has its own options, faults and checkers. This module is the frame that they share.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Generic, Protocol, TypeVar

from neli_router.lab.sim.world import Violation, World

__all__ = [
    "CalmGroup",
    "Healing",
    "Outcome",
    "SeedGroup",
    "SeedOptions",
    "assemble",
    "converge",
    "require_calm",
    "transcript_of",
    "verdict_on",
]

TRANSCRIPT_LINES, DETAILS_MAX = 80, 300
"""As much as people read before they replay the seed themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    """Everything a seed decides before its run starts."""

    seed: int

    def __str__(self) -> str:
        return " ".join(f"{field.name}={_spelled(field.name, getattr(self, field.name))}" for field in fields(self))


def _spelled(name: str, value: object) -> str:
    if name == "seed":
        return f"{value:#x}"
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


OptionsT = TypeVar("OptionsT", bound=SeedOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[OptionsT]):
    """The verdict on a seed. `trace` is a hash of everything that happened, the same wherever the seed is run."""

    options: OptionsT
    trace: str
    violation: Violation | None
    time: float
    converged_after: float
    """In units, since the last fault; 0 if the ledger lost records."""
    unit: str
    """Leases, or sessions."""
    counts: Counter[str]
    transcript: str
    """The last events before the violation, if there is one."""

    @property
    def seed(self) -> int:
        return self.options.seed


class SeedGroup(Protocol):
    """The group of a run, as far as its phases are concerned."""

    @property
    def living(self) -> Sequence[object]: ...
    @property
    def converged(self) -> bool: ...
    def start(self, name: str) -> "Healing": ...
    def describe(self) -> str: ...


class CalmGroup(SeedGroup, Protocol):
    """A group whose checkers are stricter when nothing may change any more."""

    calm: bool


class Healing(Protocol):
    """A process that no fault holds back any more."""

    def heal(self) -> None: ...


def assemble(world: World, group: SeedGroup, members: int, unit: float) -> None:
    """Some members are there from the start, and some join soon after."""
    for member in range(members):
        start = world.random.choice((0.0, world.random.uniform(0.0, 3.0))) * unit
        world.at(start, group.start, f"m{member + 1}")


def verdict_on(run: Callable[[], float]) -> tuple[Violation | None, float]:
    """The promise that `run` broke, if any, and what `run` returned; 0 if it broke one."""
    try:
        return None, run()
    except Violation as found:
        return found, 0.0
    except Exception:  # noqa: BLE001 - wherever it was raised, this seed reproduces it.
        return Violation("never_crashes", traceback.format_exc()), 0.0


def converge(world: World, group: SeedGroup, unit: float, *, bound: float, checks_per_unit: int, named: str) -> float:
    """Return how many units it takes until everything is led. If every process died, one is started first."""
    healed_at = world.now
    while world.now < healed_at + bound * unit:
        if not group.living:
            group.start("m1").heal()
        world.run(world.now + unit / checks_per_unit)
        if group.converged:
            return (world.now - healed_at) / unit
    raise Violation("converges", f"not within {bound:g} {named}: {group.describe()}")


def require_calm(world: World, group: CalmGroup, unit: float, *, units: float, checks_per_unit: int) -> None:
    """Let `units` pass, during which nothing may move."""
    group.calm = True
    for _ in range(round(units * checks_per_unit)):
        world.run(world.now + unit / checks_per_unit)
        if not group.converged:
            raise Violation("stays", group.describe())


def transcript_of(world: World, names: Mapping[str, str]) -> str:
    """The last events. `names` replace incarnations, so that people can distinguish them."""
    lines = []
    for line in list(world.lines)[-TRANSCRIPT_LINES:]:
        details = " ".join(d.decode(errors="replace") if isinstance(d, bytes) else repr(d) for d in line.details)
        for incarnation, name in names.items():
            details = details.replace(incarnation, name)
        lines.append(f"{line.time:12.6f} {line.who:8} {line.what} {details[:DETAILS_MAX]}".rstrip())
    return "\n".join(lines)
