"""What a chronicle tells: values that never change, and so may be taken by any thread.

    Chronicle --told--> Told: state, moves, counts, and a Vital for each member that beat
                              all of one and the same offset

People read names, so a Move has names; programs tell members apart by their incarnations, so vitals go by those.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from neli_router.induction.fold import State

__all__ = ["COUNTED", "Cause", "Move", "Told", "Vital"]

Cause = Literal["join", "leave", "expire", "handover", "drain", "undrain", "pin", "unpin", "weigh", "load", "other"]

COUNTED = (
    "records",
    "skipped",
    "beats",
    "joins",
    "replaced",
    "leaves",
    "suspicions",
    "expired",
    "handovers",
    "wishes",
    "snapshots",
    "moves",
    "restarts",
)
"""What `counts` has. `moves` are partitions that went to another member; `suspicions` are Expires, true or void, and
`expired` the members they ended; `replaced` were ended by a newer process of their name; `skipped` does not decode."""


@dataclass(frozen=True, slots=True)
class Vital:
    """The last Beat of a member: when it was read, on the reader's clock, and how far its writer had read by then."""

    heard_at: float
    at: int
    offset: int

    @property
    def lag(self) -> int:
        """How many records the writer had still to read when its Beat was appended."""
        return max(0, self.offset - self.at)


@dataclass(frozen=True, slots=True)
class Move:
    """The record at `offset` gave `partitions` of the member `source` to `target`; None stands for nobody."""

    offset: int
    read_at: float
    partitions: tuple[int, ...]
    source: str | None
    target: str | None
    cause: Cause
    by: str
    """The name of the member that wrote it, or of whoever wished it; empty if that was in records never read."""


@dataclass(frozen=True, slots=True)
class Told:
    """All that a chronicle knows, as of one offset: `state.at`."""

    state: State = field(default_factory=State)
    vitals: Mapping[str, Vital] = field(default_factory=lambda: MappingProxyType({}))
    """By incarnation; who has not beaten since reading began is not in it."""
    moves: Sequence[Move] = ()
    """The newest last."""
    counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType(dict.fromkeys(COUNTED, 0)))
