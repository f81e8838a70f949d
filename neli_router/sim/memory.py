"""Memory: nothing that a member keeps may grow with the age of the ledger.

Every container that hangs below a pump is found and measured, so that one added tomorrow is measured, too. None may
hold more than a group has partitions, names or remembered incarnations, but for the few that have a bound of their own.
A run takes hundreds of Beats: whatever keeps something for each of them is over the bound by its end.
"""

from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from neli_router.induction.fold import DEPARTED_MAX
from neli_router.induction.witness import OWN_MAX, RING_MAX
from neli_router.sim.world import Violation

__all__ = ["containers", "require_bounded"]

DEPTH_MAX = 6
"""How far below the pump to look."""

BOUNDS = {"_digests": RING_MAX, "_own": OWN_MAX}
"""Containers that are meant to be longer."""


def require_bounded(label: str, root: object, partitions: int) -> None:
    """Raise Violation if something below `root` holds too much."""
    bound = max(partitions, DEPARTED_MAX)
    for path, size in containers(root):
        if size > BOUNDS.get(path.rpartition(".")[2], bound):
            raise Violation("memory_is_bounded", f"{label} keeps {size} items in {path}")


def containers(root: object, path: str = "pump", depth: int = DEPTH_MAX) -> Iterator[tuple[str, int]]:
    """The path and the size of each container in our own objects below `root`."""
    for name, value in _attributes(root):
        below = f"{path}.{name}"
        if isinstance(value, list | tuple | dict | set | frozenset | deque):
            yield below, len(value)
        elif depth and type(value).__module__.startswith("neli_router.") and ".sim." not in type(value).__module__:
            yield from containers(value, below, depth - 1)


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    if isinstance(owner, msgspec.Struct):
        yield from ((name, getattr(owner, name)) for name in owner.__struct_fields__)
    else:
        attributes: Mapping[str, object] = getattr(owner, "__dict__", {})
        yield from attributes.items()
