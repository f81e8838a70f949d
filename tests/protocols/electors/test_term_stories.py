"""Stories of a few electors, as transcripts: `--rewrite` writes the answers again.

Each of the article's two stories is played twice. They happen without scouting, and do not happen with it.
"""

from pathlib import Path

import pytest

from neli_router.protocols.term.elector import Stand
from tests.protocols.electors.scenes import Scene, play

TRANSCRIPTS = sorted(
    path for part in ("term", "priority") for path in (Path(__file__).parent / "transcripts").glob(f"{part}_*.txt")
)

SEEDS = range(5)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[path.stem for path in TRANSCRIPTS])
def test_a_story_goes_as_written_down(path: Path, pytestconfig: pytest.Config) -> None:
    answered = play(path.read_text(encoding="utf-8"))
    if pytestconfig.getoption("rewrite"):
        path.write_text(answered, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == answered


def led_by_a(*, scouting: bool, seed: int) -> Scene:
    """Four peers, with A leading under term 10."""
    scene = Scene(4, scouting=scouting, terms=(9,) * 4, seed=seed)
    scene.run(3.0)
    scene.step(0, Stand())
    scene.run(10.0)
    assert [("A", 10)] == scene.leaders
    return scene


@pytest.mark.parametrize("others", ["A", "ACD"])
def test_stories_with_scouting_a_leads_on_while_the_fault_lasts_and_after_it_heals(others: str) -> None:
    for seed in SEEDS:
        scene = led_by_a(scouting=True, seed=seed)
        scene.cut("B", others)
        scene.run(60.0)
        scene.heal()
        scene.run(100.0)
        assert ([("A", 10)], {"A"}) == (scene.leaders, set(scene.followed.values()))


@pytest.mark.parametrize("others", ["A", "ACD"])
def test_stories_without_scouting_the_lead_changes_whatever_the_chance(others: str) -> None:
    for seed in SEEDS:
        scene = led_by_a(scouting=False, seed=seed)
        scene.cut("B", others)
        scene.run(60.0)
        if others == "A":  # The ping-pong lasts as long as the fault.
            assert len(scene.leaders) > 10
        scene.heal()
        scene.run(100.0)
        assert len(scene.leaders) > 1
