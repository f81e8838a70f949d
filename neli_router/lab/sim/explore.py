"""The explorer: every interleaving of a small group, running the shipped code.

    layer 0: the first world --steps--> layer 1 --steps--> layer 2 ... until a layer holds no new world
                                       |
                                       '-- a rule is broken: the way back is one of the shortest transcripts

It visits worlds step by step, each once, as far as their keys distinguish them. When no layer follows, it is complete:
neither time nor a ledger's length was bounded, only what is printed with the result.

There are several kinds of miniature. One is of `induction`: its fold, tenure and snapshots (`induction`). Another is of
`neli` and `fast-neli`: their machines, driven by a coordinator that does whatever it likes (`consumer_group`). The
elections have their own (`term`, `gossip`). Each package has the modules `miniature`, `steps` and `canon`. Drift,
larger groups and the policies of members are left to the simulator.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

__all__ = ["Label", "Miniatures", "Profile", "Report", "explore", "transcript"]

Label = tuple[object, ...]
"""A step, for the transcript: a verb, the process that takes it and its object."""

WorldT = TypeVar("WorldT")
BoundsT_co = TypeVar("BoundsT_co", covariant=True)


class Profile(Generic[BoundsT_co]):
    """A name's meaning on the command line: the bounds of one exploration, or of several, one after the other."""

    def __init__(self, about: str, *bounds: BoundsT_co) -> None:
        self.about, self.bounds = about, bounds


class Miniatures(Protocol[WorldT]):
    """All worlds of one kind within some bounds. Worlds never change."""

    def first(self) -> WorldT: ...
    def steps(self, world: WorldT) -> Iterator[tuple[Label, WorldT]]:
        """Every step that can come next."""
        ...

    def key(self, world: WorldT) -> bytes:
        """Worlds with the same key can only do the same from here on."""
        ...

    def broken_rule(self, world: WorldT) -> str | None:
        """The rule that this world breaks, or None."""
        ...

    def tell(self, label: Label, world: WorldT) -> str:
        """A line of a transcript: a step and the world after it."""
        ...


@dataclass(slots=True)
class Report(Generic[WorldT]):
    """The result of an exploration."""

    miniatures: Miniatures[WorldT]
    states: int = 0
    steps: int = 0
    depth: int = 0
    complete: bool = False
    broken: str | None = None
    trace: list[tuple[Label, WorldT]] | None = None
    """The shortest way to a broken rule, if a rule was broken."""


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    """Millions of small immutable values hold no cycles; looking for some would take longer than exploring."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_garbage_collector()
def explore(
    miniatures: Miniatures[WorldT],
    on_progress: Callable[[Report[WorldT]], None] = lambda report: None,
    *,
    covers: Callable[[bytes], bool] = lambda key: False,
    states_max: int | None = None,
) -> Report[WorldT]:
    """Explore breadth first from the first world, so that the first violation found is one of the shortest.

    `covers` is asked once for each key, and returns whether a world with an earlier key can do all that this one can.
    """
    first = miniatures.first()
    report = Report(miniatures)
    root = miniatures.key(first)
    seen: dict[bytes, bytes] = {root: b""}
    layer = [(root, first)]
    while layer:
        following: list[tuple[bytes, WorldT]] = []
        for key, world in layer:
            for _, found in miniatures.steps(world):
                report.steps += 1
                found_key = miniatures.key(found)
                if found_key in seen or covers(found_key):
                    continue
                seen[found_key] = key
                if broken := miniatures.broken_rule(found):
                    report.states, report.broken = len(seen), broken
                    report.trace = _retrace(seen, found_key, miniatures)
                    return report
                following.append((found_key, found))
            if states_max is not None and len(seen) >= states_max:
                report.states = len(seen)
                return report
        report.states, report.depth = len(seen), report.depth + 1
        on_progress(report)
        layer = following
    report.complete = True
    return report


def _retrace(seen: dict[bytes, bytes], last: bytes, miniatures: Miniatures[WorldT]) -> list[tuple[Label, WorldT]]:
    """Walk the keys from the first world to `last` again, this time keeping the labels."""
    keys = [last]
    while seen[keys[-1]]:
        keys.append(seen[keys[-1]])
    world = miniatures.first()
    trace: list[tuple[Label, WorldT]] = [(("genesis",), world)]
    for key in reversed(keys[:-1]):
        label, world = next((label, found) for label, found in miniatures.steps(world) if miniatures.key(found) == key)
        trace.append((label, world))
    return trace


def transcript(report: Report[WorldT]) -> Iterator[str]:
    """The way to the broken rule, one line a step, for people to read."""
    assert report.trace is not None, "nothing was broken"
    for label, world in report.trace:
        yield report.miniatures.tell(label, world)
    yield f"FAIL {report.broken}"
