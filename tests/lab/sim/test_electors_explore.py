"""The explorer of electors: worlds that others cover are skipped, and each known way to a broken rule is tried."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neli_router.lab.sim.explore import Miniatures, explore
from neli_router.lab.sim.gossip.miniature import GossipBounds
from neli_router.lab.sim.gossip.steps import GossipMiniatures
from neli_router.lab.sim.term.canon import ElectorCover, elector_keys
from neli_router.lab.sim.term.miniature import ElectorBounds, ElectorMiniature
from neli_router.lab.sim.term.steps import ElectorMiniatures

TRANSCRIPTS = Path(__file__).parent / "transcripts"

PAIRS = 100
"""How many pairs of a world and one that covers it are examined."""


@pytest.mark.parametrize(
    "bounds",
    [
        ElectorBounds(terms=1, restarts=1, states_max=500),
        ElectorBounds(terms=1, lease=2, states_max=1000),
        ElectorBounds(terms=2, states_max=1000),
    ],
    ids=["restarted", "longer", "two terms"],
)
def test_a_world_that_is_covered_can_do_nothing_that_the_one_which_covers_it_cannot(bounds: ElectorBounds) -> None:
    """The covering world also covers every world that follows: so all consequences carry over."""
    miniatures, cover = ElectorMiniatures(bounds), ElectorCover()
    worlds: dict[bytes, ElectorMiniature] = {}
    pairs: set[tuple[bytes, bytes]] = set()

    class Noted(ElectorMiniatures):
        def key(self, world: ElectorMiniature) -> bytes:
            key = super().key(world)
            worlds.setdefault(key, world)
            return key

    def covers(key: bytes) -> bool:
        if (by := cover.covering(key)) is not None:
            pairs.add((by, key))
        return by is not None

    explore(Noted(bounds), covers=covers, states_max=bounds.states_max)
    assert len(pairs) > PAIRS
    for by, covered in sorted(pairs)[:PAIRS]:
        again = ElectorCover()
        for key in (by, *(miniatures.key(after) for _, after in miniatures.steps(worlds[by]))):
            again.covers(key)
        for label, after in miniatures.steps(worlds[covered]):
            # Equal places may have been put in another order.
            assert any(again.covering(key) for key in elector_keys(after, bounds)), label


# Ways to a broken rule. Mutants remove the rules, one by one; here, a restarted place has forgotten.

CHANGING = GossipBounds(terms=2, changes=1)

STORIES: dict[str, tuple[Callable[[Any], Miniatures[Any]], GossipBounds | ElectorBounds]] = {
    "a_forgotten_electorate": (GossipMiniatures, replace(CHANGING, restarts=1, forget=True)),
    "a_forgotten_term": (ElectorMiniatures, ElectorBounds(restarts=1, forget=True)),
}


@pytest.mark.parametrize("story", STORIES)
def test_two_lead_when_a_place_forgets_and_the_same_way_breaks_nothing_when_it_does_not(story: str) -> None:
    """Exploring found the way there; here it is replayed. Our rules allow no such way: see `tests/proofs.lock`."""
    kind, bounds = STORIES[story]
    *lines, last = (TRANSCRIPTS / f"{story}.txt").read_text().splitlines()
    assert set() == ends_of(lines, kind(replace(bounds, forget=False))) - {None}
    assert last in {f"FAIL {rule}" for rule in ends_of(lines, kind(bounds))}


def ends_of(lines: list[str], miniatures: Miniatures[Any]) -> set[str | None]:
    """The rule that is broken, or None, in each world to which these steps lead."""
    begun = miniatures.first()
    assert lines[0] == miniatures.tell(("genesis",), begun).rstrip()
    worlds = [begun]
    for line in lines[1:]:
        steps = (step for world in worlds for step in miniatures.steps(world))
        worlds = [after for label, after in steps if line == miniatures.tell(label, after).rstrip()]
    return {miniatures.broken_rule(world) for world in worlds}
