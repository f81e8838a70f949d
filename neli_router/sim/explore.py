"""The explorer: every interleaving of a small group, running the shipped fold, tenure and snapshots.

    layer 0: the genesis --steps--> layer 1 --steps--> layer 2 ... until a layer holds no world that is new
                                       |
                                       '-- a rule is broken: the way back is one of the shortest transcripts

It visits worlds (`miniature`) by their steps (`steps`), each once, as far as one can tell them apart (`canon`). When no
layer follows, it is complete: neither time nor the ledger's length was bounded, only what is printed with the result.
Drift, several partitions and the members' policies are left to the simulator.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from neli_router.induction.records import Beat, Expire, Handover, Join, Record
from neli_router.protocol import Settings
from neli_router.sim.canon import key_of
from neli_router.sim.miniature import Bounds, Miniature, acting, broken_rule, genesis_world
from neli_router.sim.steps import Label, successors

__all__ = ["Report", "explore", "transcript"]


@dataclass(slots=True)
class Report:
    """The result of an exploration."""

    bounds: Bounds
    states: int = 0
    steps: int = 0
    depth: int = 0
    complete: bool = False
    broken: str | None = None
    trace: list[tuple[Label, Miniature]] | None = None
    """The shortest way to where a rule is broken, if there is one."""


def explore(bounds: Bounds, on_progress: Callable[[Report], None] = lambda report: None) -> Report:
    """Breadth first from the genesis, so that the first violation found is one of the shortest."""
    first, settings = genesis_world(bounds)
    report = Report(bounds)
    cap = ceil(max(settings.lasts, settings.wait))
    root = key_of(first, cap, bounds.births)
    seen: dict[bytes, bytes] = {root: b""}
    layer = [(root, first)]
    while layer:
        following: list[tuple[bytes, Miniature]] = []
        for key, world in layer:
            for _, found in successors(world, bounds, settings):
                report.steps += 1
                found_key = key_of(found, cap, bounds.births)
                if found_key in seen:
                    continue
                seen[found_key] = key
                if broken := broken_rule(found):
                    report.states, report.broken = len(seen), broken
                    report.trace = _retrace(seen, found_key, bounds, settings, cap)
                    return report
                following.append((found_key, found))
            if bounds.states_max is not None and len(seen) >= bounds.states_max:
                report.states = len(seen)
                return report
        report.states, report.depth = len(seen), report.depth + 1
        on_progress(report)
        layer = following
    report.complete = True
    return report


def _retrace(
    seen: dict[bytes, bytes], last: bytes, bounds: Bounds, settings: Settings, cap: int
) -> list[tuple[Label, Miniature]]:
    """Walk the keys from the genesis to `last` again, this time keeping the labels."""
    keys = [last]
    while seen[keys[-1]]:
        keys.append(seen[keys[-1]])
    world, _ = genesis_world(bounds)
    trace: list[tuple[Label, Miniature]] = [(("genesis",), world)]
    for key in reversed(keys[:-1]):
        label, world = next(
            (label, found)
            for label, found in successors(world, bounds, settings)
            if key_of(found, cap, bounds.births) == key
        )
        trace.append((label, world))
    return trace


def transcript(report: Report) -> Iterator[str]:
    """The way to the broken rule, a line a step, as a person would tell it."""
    assert report.trace is not None, "nothing was broken"
    for label, world in report.trace:
        verb, *rest = label
        words = " ".join(_words(part) for part in rest if part is not None)
        active = ", ".join(acting(world)) or "nobody"
        yield f"t={world.now:<3} {verb!s:14} {words:58} acting: {active}"
    yield f"FAIL {report.broken}"


def _words(part: object) -> str:
    """A record without its bookkeeping, anything else as it is."""
    if not isinstance(part, Record):
        return str(part)
    kind = type(part).__name__
    match part:
        case Beat():
            return f"{kind}({part.by}, sent at {part.sent_at:g})"
        case Expire():
            return f"{kind}({part.incarnation})"
        case Handover():
            return f"{kind}({part.by}, term {part.term})"
        case Join():
            return f"{kind}({part.by}{'' if part.name == part.by else f' as {part.name}'})"
        case _:
            return f"{kind}({part.by})"
