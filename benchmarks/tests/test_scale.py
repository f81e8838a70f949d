"""The benchmark of large groups' heartbeats: a crowd is a group like any other, and the promised figures are there."""

from collections import Counter

import pytest

from benchmarks import scale
from benchmarks._crowd import Lone, crowd, settings_of
from neli_router.protocols.induction.fold import MEMBERS_MAX, fold
from neli_router.protocols.induction.machine import Phase


def test_a_crowd_owns_everything_in_even_shares() -> None:
    state = crowd(settings_of(5, 16, 1.0))
    assert ["m0", "m1", "m2", "m3", "m4"] == [seat.name for seat in state.seats.values()]
    assert state.owners == state.targets
    assert [3, 3, 3, 3, 4] == sorted(Counter(state.owners).values())


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


@pytest.mark.process
def test_scale_measures_what_fits_and_a_real_member() -> None:
    options = scale.Options(members=(3, 9, MEMBERS_MAX + 1), records=64, rounds=1, group=5, seconds=0.5)
    figures = scale.run(options)
    assert {"members_max": MEMBERS_MAX, "group": 5, "seconds": 0.5}.items() <= figures.items()
    assert {f"{name}_9_over_3" for name in ("fold_us", "beat_us")} <= figures.keys()
    assert {f"{name}@{size}" for name in ("fold_us", "beat_us", "beats_per_lease") for size in (3, 9)} <= figures.keys()
    assert f"beat_us@{MEMBERS_MAX + 1}" not in figures
    assert all(figures[name] for name in ("beat_bytes", "beats_per_second", "member_read_mb_per_second"))
