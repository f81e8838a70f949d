"""The benchmark of large groups' heartbeats: a crowd is a group like any other, and the promised figures are there."""

import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks import scale
from benchmarks._crowd import FIRST_OFFSET, FOUNDER, Lone, crowd, settings_of
from benchmarks._plots import short
from benchmarks._scale_page import DOCS, FIGURES, Point, publish
from neli_router.protocols.induction.admission import genesis, join
from neli_router.protocols.induction.fold import MEMBERS_MAX, State, fold
from neli_router.protocols.induction.machine import Phase


def test_a_crowd_owns_everything_in_even_shares() -> None:
    state = crowd(settings_of(5, 16, 1.0))
    assert ["m0", "m1", "m2", "m3", "m4"] == [seat.name for seat in state.seats.values()]
    assert state.owners == state.targets
    assert [3, 3, 3, 3, 4] == sorted(Counter(state.owners).values())


def test_a_crowd_is_what_its_joins_would_have_made() -> None:
    settings = settings_of(5, 16, 1.0)
    state = founded = fold(State(), FIRST_OFFSET, genesis(settings[0], FOUNDER, 0, FIRST_OFFSET))
    for number, one in enumerate(settings):
        how: dict[str, Any] = {} if one is settings[-1] else {"assign": lambda _, kept, **__: tuple(kept)}
        state = fold(state, state.at, join(one, f"{number:016x}", founded, "", 0), **how)
    assert state == crowd(settings)


@pytest.mark.parametrize("members", [2, 20])
def test_the_only_real_member_of_a_crowd_leads_its_share_and_expires_nobody(members: int) -> None:
    lone = Lone(settings_of(members, 40, 1.0))
    for _ in range(200):
        lone.step(7)
    assert lone.machine.phase is Phase.MEMBER
    assert members == len(lone.machine.state.seats)
    assert 40 // members == len(lone.machine.leading)
    assert 0 < lone.period <= 0.25


def test_the_beats_of_the_others_are_heard() -> None:
    lone = Lone(settings_of(4, 8, 1.0))
    state, *beats = lone.machine.state, *lone.beats(6)
    assert dict.fromkeys(lone.others, 2) == Counter(beat.by for beat in beats)
    after = fold(state, state.at, beats[0])
    assert state.at == after.last_beats[beats[0].by] > state.last_beats[beats[0].by]


def test_the_last_in_rank_of_a_crowd_larger_than_any_group_takes_over_after_a_lease() -> None:
    lone = Lone(settings_of(MEMBERS_MAX + 1, 8, 1.0))
    assert 1.0 < lone.takeover(200)
    assert MEMBERS_MAX == len(lone.machine.state.seats)


def test_the_page_gets_figures_and_pictures_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    (tmp_path / "scale.md").write_text(
        "# Ours\n<!-- python -m benchmarks scale --curves -->\nold\n<!-- end -->\nrest\n", encoding="utf-8"
    )
    real = Point(10, 256, 60.0, 6e3, 9000, 0.1, 1.0, 1.2, core_percent=2.5, start_ms=240.0, takeover_leases=1.1)
    points = [real, Point(10_000, 256, 2.4e4, 2.1e6, 600_000, 40.0, 60.0, 1.3)]
    publish(points, tmp_path, lease=1.0, seconds=6.0, fixed=(10, 256))
    page = (tmp_path / "scale.md").read_text(encoding="utf-8")
    assert page.startswith("# Ours\n<!-- python -m benchmarks scale --curves -->\n![Records")
    assert page.endswith("\n<!-- end -->\nrest\n")
    assert "old" not in page
    assert "| 10 | 256 | 60 | 6 | 2.5 | 1.1 | 240 | 9 |" in page
    assert "| 10,000 | 256 | 24,000 | 2,100 | 40* | 1.3* | 60* | 600 |" in page
    assert {f"{name}.svg" for name in FIGURES} == {path.name for path in (tmp_path / "scale").glob("*.svg")}
    for path in (tmp_path / "scale").glob("*.svg"):
        circles = [it for it in ET.parse(path).iter() if it.tag.endswith("circle")]  # noqa: S314 - our own.
        assert any("hollow" in it.attrib["class"] for it in circles), "the simulated group must look different"
    assert [10, 10_000] == [it["members"] for it in json.loads((tmp_path / "scale/figures.json").read_text())["points"]]


def test_the_page_in_docs_shows_every_picture() -> None:
    page = (DOCS / "scale.md").read_text(encoding="utf-8")
    assert all(f"](scale/{name}.svg)" in page for name in FIGURES)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00641, "0.00641"), (2.5, "2.5"), (99.96, "100"), (1234.5, "1,230"), (10_000, "10,000")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert text == short(value)


@pytest.mark.process
def test_scale_measures_what_fits_and_a_real_member() -> None:
    """The lease is one that survives a busy machine: a member whose Beats come back late cannot expire another."""
    options = scale.Options(members=(3, 9, MEMBERS_MAX + 1), records=64, rounds=1, group=5, seconds=0.5, lease=4.0)
    figures = scale.run(options)
    assert {"members_max": MEMBERS_MAX, "group": 5, "seconds": 0.5}.items() <= figures.items()
    assert {f"{name}_9_over_3" for name in ("fold_us", "beat_us")} <= figures.keys()
    assert {f"{name}@{size}" for name in ("fold_us", "beat_us", "beats_per_lease") for size in (3, 9)} <= figures.keys()
    assert f"beat_us@{MEMBERS_MAX + 1}" not in figures
    assert all(figures[name] for name in ("beat_bytes", "beats_per_second", "member_read_mb_per_second"))
    assert all(figures[name] for name in ("start_core_ms", "takeover_leases"))
