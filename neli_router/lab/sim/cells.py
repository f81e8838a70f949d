"""Cells: two groups that pass one range of slots to each other, and no two members of them ever act for it.

    ledger of A   ... Entry(B, 1) ... the owner lets go, or departs ...                        no owner from here on
                                             |
                       a reader of A, once no member of A can still act: carries the same Entry to B
                                             v
    ledger of B   ..........................Entry(B, 1, floor) ... an owner, under a term above all of A's

An entry says which cell has the range, and since which epoch. It counts in a ledger only if its epoch is above that of
the last one there. So the entry that lets the range leave is final, and a copy that arrives late is void. The table of
layouts that routers read is only a copy of the newest entries.

**Why at most one acts.** From its entry on, A assigns the range to no member. Its owner keeps it until its Handover, as
it would for any other target. A reader of A carries the entry when, in its own fold, the range has no owner, and when
no wait is owed on it (`Tenure.busy_until`): then no member of A acts, and none ever will under this epoch. It may crash
at any time: the next reader does the same, because everything it needs is in A's ledger.

The product has no cells yet. Each cell here is a miniature of `induction` with the shipped fold and tenure, and a range
is its one partition. Records of the cells, and entries that were sent, arrive at any time, repeatedly, or never.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from neli_router.lab.sim.explore import Label, Profile
from neli_router.lab.sim.induction import miniature
from neli_router.lab.sim.induction.canon import key_of
from neli_router.lab.sim.induction.miniature import PARTITION, Bounds, FoldedRecord, Miniature, Slot, genesis_world
from neli_router.lab.sim.induction.steps import LedgerMiniatures, successors, trimmed
from neli_router.protocols.induction.digest import difference
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Load

__all__ = [
    "CELL_PROFILES",
    "CellBounds",
    "CellMiniatures",
    "CellWorld",
    "RangeEntry",
    "acting_in",
    "entry_in",
    "found_from",
]

A, B = CELLS = (0, 1)
NAMES = "AB"

FLOORS = (1000, 0)
"""The lowest term of each cell at first: A is the younger ledger, so B alone would give lower terms than A."""


@dataclass(frozen=True, slots=True)
class CellBounds:
    """The bounds of an exploration: of each cell, and how often the range moves."""

    members: tuple[int, int] = (2, 1)
    """Incarnations of each cell at a time."""
    births: tuple[int | None, int | None] = (2, 1)
    """Incarnations of each cell over all time; None allows any number."""
    moves: int = 1
    lease: int = 1
    leave: bool = False
    crash: bool = True
    ready: bool = True
    """Whether B, until it gets the range, has one member that could act for it immediately, and does nothing else."""
    states_max: int | None = None

    def __str__(self) -> str:
        over_all = [n if n is not None else "any number" for n in self.births]
        limit = "all states" if self.states_max is None else f"at most {self.states_max:,} states"
        return (
            f"cells of {self.members[A]} and {self.members[B]} incarnations at a time ({over_all[A]} and {over_all[B]} "
            f"over all time), 1 range that moves {self.moves} times at most, readers at most 1 record apart, lease "
            f"{self.lease} ticks, {'with' if self.leave else 'without'} Leave, {'with' if self.crash else 'without'} "
            f"crashes{', the second cell ready at first' if self.ready else ''}; {limit}"
        )

    def of(self, cell: int, *, assigns: bool) -> Bounds:
        return Bounds(
            slots=self.members[cell],
            births=self.births[cell],
            apart=1,
            lease=self.lease,
            leave=self.leave,
            crash=self.crash,
            certify=False,
            assigns=assigns,
        )


CELL_PROFILES = {
    "test": Profile("A range moves once, from a cell of two incarnations to a cell of one.", CellBounds()),
    "back": Profile(
        "It moves there and back, between cells of one incarnation at a time.",
        CellBounds(members=(1, 1), births=(2, 2), moves=2),
    ),
    "full": Profile(
        "Members also leave, and both cells start without members: an hour.",
        CellBounds(members=(1, 1), births=(2, 2), moves=2, leave=True),
        CellBounds(births=(3, 1), leave=True, states_max=3_000_000),
        CellBounds(members=(1, 1), births=(None, None), moves=3, leave=True, ready=False, states_max=3_000_000),
    ),
}


class RangeEntry(NamedTuple):
    """`cell` has the range since `epoch`. There, no term is below `floor`."""

    epoch: int
    cell: int
    floor: int = 0


class CellWorld(NamedTuple):
    cells: tuple[Miniature, Miniature]
    sent: frozenset[RangeEntry] = frozenset()
    """The entries that were carried. Each may arrive at any time from now on."""
    fence: int = 0
    """The highest term under which a member could act: a fence admits no lower one."""


def entry_in(state: State) -> RangeEntry:
    """The last entry of a ledger, as of a prefix. The miniature keeps it where a pin would be."""
    epoch, cell = state.pins[PARTITION].split()
    return RangeEntry(int(epoch), int(cell))


def found_from(start: int, world: CellWorld) -> tuple[int, str] | None:
    """The owner that a router finds that begins at the cell `start`, because an old table says so; None if none."""
    here, epoch = start, -1
    while True:
        tip = world.cells[here].tip
        owner, entry = tip.owners[PARTITION], entry_in(tip)
        if owner is not None:
            return here, owner
        if entry.cell == here or entry.epoch <= epoch:
            return None  # It has no member to own it, or it is on its way.
        here, epoch = entry.cell, entry.epoch


class CellMiniatures:
    """All worlds of two cells."""

    def __init__(self, bounds: CellBounds) -> None:
        self._bounds = bounds
        self._of = {(cell, assigns): bounds.of(cell, assigns=assigns) for cell in CELLS for assigns in (False, True)}
        self._genesis, self._settings = genesis_world(self._of[A, True])
        self._cap = ceil(max(self._settings.lasts, self._settings.wait))
        self._ledger = LedgerMiniatures(self._of[A, True])

    def first(self) -> CellWorld:
        a, b = (self._genesis._replace(base=_entered(self._genesis.base, RangeEntry(0, A, it), None)) for it in FLOORS)
        return CellWorld((a, self._beating(b) if self._bounds.ready else b))

    def _beating(self, cell: Miniature) -> Miniature:
        """The one member of `cell` has just read the Beat that it has just sent."""
        for verb in () if cell.slots else ("start", "join", "read", "tick", "tick"):
            cell = next(found for label, found in self._steps_of(B, cell) if label[0] == verb)
        (slot,) = cell.slots
        return cell._replace(slots=(slot._replace(tenure=replace(slot.tenure, sent=float(cell.now))),))

    def steps(self, world: CellWorld) -> Iterator[tuple[Label, CellWorld]]:
        """Every step that can come next."""
        each = [list(self._steps_in(cell, world.cells[cell])) for cell in CELLS]
        (tick, a), (_, b) = each[A].pop(0), each[B].pop(0)
        yield tick, _fenced(world._replace(cells=(a, b)))
        for cell in CELLS:
            for label, found in each[cell]:
                yield (label[0], f"{NAMES[cell]}:", *label[1:]), _fenced(_with(world, cell, found))
        for cell in CELLS:
            tip = world.cells[cell].tip
            last = entry_in(tip)
            if last.cell == cell and last.epoch < self._bounds.moves:
                leaving = RangeEntry(last.epoch + 1, 1 - cell)
                for after in self._appended(cell, world, leaving):
                    yield ("let go", NAMES[cell], f"epoch {leaving.epoch}"), _fenced(after)
            for slot in world.cells[cell].slots:
                if _may_carry(cell, slot, world.cells[cell].now):
                    carried = _carried(slot.state)
                    yield ("carry", slot.incarnation), world._replace(sent=world.sent | {carried})
        for entry in sorted(world.sent):
            for after in self._appended(entry.cell, world, entry):
                yield ("enter", NAMES[entry.cell], f"epoch {entry.epoch}"), _fenced(after)

    def _steps_in(self, cell: int, it: Miniature) -> Iterator[tuple[Label, Miniature]]:
        steps = self._steps_of(cell, it)
        if cell == B and self._bounds.ready and entry_in(it.tip).epoch == 0:
            label, later = next(steps)
            return iter([(label, self._beating(later))])
        return steps

    def _steps_of(self, cell: int, it: Miniature) -> Iterator[tuple[Label, Miniature]]:
        return successors(it, self._of[cell, entry_in(it.tip).cell == cell], self._settings)

    def _appended(self, cell: int, world: CellWorld, entry: RangeEntry) -> Iterator[CellWorld]:
        """`entry` after the tip of `cell`, once for each target that an assignment could choose there."""
        it = world.cells[cell]
        if len(it.tail) >= self._of[cell, True].apart or entry.epoch <= entry_in(it.tip).epoch:
            return
        targets: list[str | None] = [*it.tip.seats] if entry.cell == cell else []
        for target in targets or [None]:
            after = _entered(it.tip, entry, target)
            yield _with(
                world, cell, trimmed(it._replace(tail=(*it.tail, FoldedRecord(_record(it.tip), target, after))))
            )

    def key(self, world: CellWorld) -> bytes:
        """Worlds with the same key can only do the same from here on. Terms of both cells are ranked together."""
        keys = [key_of(it, self._cap, births) for it, births in zip(world.cells, self._bounds.births, strict=True)]
        prefixes = [it.prefix(place) for it in world.cells for place in range(len(it.tail) + 1)]
        sent = sorted(world.sent)
        terms = [world.fence, *(it.terms[PARTITION] for it in prefixes), *(it.floor for it in sent)]
        ranks = {term: rank for rank, term in enumerate(sorted({*terms}))}
        entries = [it[:2] for it in (*map(entry_in, prefixes), *sent)]
        rest = bytes([*(ranks[term] for term in terms), *(number for entry in entries for number in entry)])
        return b"".join(bytes([len(it)]) + it for it in (*keys, rest))

    def broken_rule(self, world: CellWorld) -> str | None:
        """The rule that this world breaks, or None."""
        acting = [(NAMES[cell], slot, term) for cell, slot, term in acting_in(world)]
        if len(acting) > 1:
            return "at most one acts: " + " and ".join(f"{cell} {slot.incarnation}" for cell, slot, _ in acting)
        if any(term < world.fence for _, _, term in acting):
            return "terms never fall: the fence has admitted a higher term than that of the member that may act"
        if len({found_from(cell, world) for cell in CELLS}) > 1:
            return "routers agree: the cell that a router begins with decides what it finds"
        return next(filter(None, map(miniature.broken_rule, world.cells)), None)

    def tell(self, label: Label, world: CellWorld) -> str:
        names = [f"{NAMES[cell]} {slot.incarnation} under {term}" for cell, slot, term in acting_in(world)]
        line, _, _ = self._ledger.tell(label, world.cells[A]).partition("acting: ")
        return f"{line}acting: {', '.join(names) or 'none'}"


def _may_carry(cell: int, slot: Slot, now: int) -> bool:
    """Whether this reader of a cell knows that the range has left it, and that none of its members can still act."""
    entry = entry_in(slot.state)
    has_left = entry.epoch > 0 and entry.cell != cell and slot.state.owners[PARTITION] is None
    return slot.alive and has_left and now >= slot.tenure.busy_until(PARTITION)


def _carried(state: State) -> RangeEntry:
    """The entry that a reader of the old cell carries to the new one: the same from all readers of a prefix."""
    return entry_in(state)._replace(floor=state.terms[PARTITION] + 1)


def _entered(tip: State, entry: RangeEntry, target: str | None) -> State:
    """The fold of an entry: the range goes to `target`, or to no member, as soon as it has no live owner."""
    pins = {PARTITION: f"{entry.epoch} {entry.cell}"}
    raised = replace(tip, pins=pins, base=max(tip.base, entry.floor - tip.at))
    after = fold(raised, tip.at, _record(tip), lambda *_, **__: (target,))
    return replace(after, digest=tip.digest ^ difference(tip, after))


def _record(tip: State) -> Load:
    """The shipped record that stands for an entry: it only asks for a new target."""
    return Load(by="m", loads={PARTITION: float(1 + tip.at)})


def _with(world: CellWorld, cell: int, it: Miniature) -> CellWorld:
    return world._replace(cells=(it, world.cells[B]) if cell == A else (world.cells[A], it))


def acting_in(world: CellWorld) -> Iterator[tuple[int, Slot, int]]:
    """Cell, process and term of each that may act for the range now."""
    for cell, it in enumerate(world.cells):
        for slot in it.slots:
            if slot.acts(it.now):
                yield cell, slot, slot.state.terms[PARTITION]


def _fenced(world: CellWorld) -> CellWorld:
    """The world after all that may act have raised the fence."""
    return world._replace(fence=max([world.fence, *(term for _, _, term in acting_in(world))]))
