"""Two cells that pass a range on: `neli explore --protocol cells` shows that two never act; here, that moves end."""

from collections.abc import Iterator
from random import Random

import pytest

from neli_router.lab.sim.cells import CellBounds, CellMiniatures, CellWorld, acting_in, entry_in, found_from

A, B = 0, 1
CELLS = CellMiniatures(CellBounds(members=(2, 2), births=(None, None), leave=True, ready=False))

ROUGH = {"crash", "send leave", "leave", "retarget", "let go"}
ROUGH_STEPS, CALM_STEPS = 60, 3000


def calm(world: CellWorld) -> Iterator[CellWorld]:
    """The steps that come next without a crash, a Leave, a late Beat or an expiry of the living."""
    cells = zip(("A:", "B:"), world.cells, strict=True)
    living = {(name, slot.incarnation) for name, it in cells for slot in it.slots if slot.alive}
    for label, found in CELLS.steps(world):
        is_late = label[0] == "beat" and label[3] != 0
        is_wrong = label[0] == "expire" and label[1:3] in living
        if label[0] not in ROUGH and not is_late and not is_wrong:
            yield found


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happened_before_a_move_ends_once_all_is_calm_and_every_router_finds_the_new_owner(seed: int) -> None:
    rng, world = Random(seed), CELLS.first()
    for _ in range(ROUGH_STEPS):
        _, world = rng.choice(list(CELLS.steps(world)))
    steps = 0
    while [1, 1] != [entry_in(it.tip).epoch for it in world.cells] or [B] != [cell for cell, *_ in acting_in(world)]:
        steps += 1
        assert steps < CALM_STEPS, "the range never arrived"
        world = rng.choice([found for label, found in CELLS.steps(world) if label[0] == "let go"] or list(calm(world)))
        assert CELLS.broken_rule(world) is None
    ((_, slot, _),) = acting_in(world)
    assert (B, slot.incarnation) == found_from(A, world) == found_from(B, world)
