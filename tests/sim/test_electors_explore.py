"""The explorer of electors among peers: it tells worlds apart that differ, finds what is broken, and ends."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from neli_router.cli import main
from neli_router.sim.electors.canon import KEPT, LEFT_OUT
from neli_router.sim.electors.miniature import ElectorBounds, ElectorMiniature, ElectorPlace
from neli_router.sim.electors.steps import ElectorMiniatures
from neli_router.sim.explore import Report, explore, transcript

TRANSCRIPTS = Path(__file__).parent / "transcripts"
KINDS = {
    "kept": ElectorBounds(restarts=1),
    "forgotten": ElectorBounds(restarts=1, forget=True),
    "longer": ElectorBounds(lease=2, wires=2),
}
each_kind = pytest.mark.parametrize("bounds", KINDS.values(), ids=KINDS)

WORLDS = 400
"""How many of each kind are looked at one by one."""


def worlds(bounds: ElectorBounds) -> Iterator[ElectorMiniature]:
    """Every world in the order in which steps lead there, also one that is like another."""
    miniatures = ElectorMiniatures(bounds)
    seen: set[bytes] = set()
    queue = [miniatures.first()]
    for world in queue:
        yield world
        if (key := miniatures.key(world)) not in seen:
            seen.add(key)
            queue += [found for _, found in miniatures.steps(world)]


def explored(bounds: ElectorBounds) -> Report[ElectorMiniature]:
    return explore(ElectorMiniatures(bounds))


def neli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ("explore", *arguments))
    return result.exit_code, result.output


@each_kind
def test_worlds_with_one_key_can_do_the_same(bounds: ElectorBounds) -> None:
    miniatures = ElectorMiniatures(bounds)
    steps: dict[bytes, set[bytes]] = {}
    for world in islice(worlds(bounds), WORLDS):
        key = miniatures.key(world)
        found = {miniatures.key(after) for _, after in miniatures.steps(world)} - {key}
        assert steps.setdefault(key, found) == found
    assert len(steps) < WORLDS


@each_kind
def test_a_step_changes_no_world_but_its_own(bounds: ElectorBounds) -> None:
    miniatures = ElectorMiniatures(bounds)
    for world in islice(worlds(bounds), WORLDS // 4):
        before = [str(fields_of(place)) for place in world.places]
        for _ in miniatures.steps(world):
            pass
        assert before == [str(fields_of(place)) for place in world.places]


def fields_of(place: ElectorPlace) -> dict[str, object]:
    return {name: value for name, value in vars(place.elector).items() if name != "_rng"}


def test_every_field_of_an_elector_is_in_the_key_or_left_out_for_a_reason() -> None:
    elector = ElectorMiniatures(ElectorBounds()).first().places[0].elector
    assert vars(elector).keys() == KEPT | LEFT_OUT.keys()
    assert not KEPT & LEFT_OUT.keys()


def test_a_place_that_forgets_its_term_lets_two_leaders_share_one() -> None:
    report = explored(ElectorBounds(restarts=1, forget=True))
    expected = (TRANSCRIPTS / "a_forgotten_term.txt").read_text()
    assert expected.splitlines() == list(transcript(report))


def test_a_place_that_keeps_its_term_does_not() -> None:
    report = explored(ElectorBounds(terms=1, restarts=2))
    assert (True, None) == (report.complete, report.broken)


def test_bounds_are_printed_with_what_they_leave_out() -> None:
    code, output = neli("--protocol", "term", "--restarts", "1", "--forget", "--no-cede", "--states", "100")
    first, last = output.splitlines()
    assert 0 == code
    assert (
        "explore: term: 3 electors, 2 terms over all time, lease 1 ticks, each stands at any time, without ceding, "
        "1 restarts over all time, which forget their term, the newest message of each kind between two lost, late, "
        "doubled; at most 100 states"
    ) == first
    assert last.startswith("  as far as it came: ")
