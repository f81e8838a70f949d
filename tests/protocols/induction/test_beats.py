"""Beats that come back: each proves a lease once, and only if this member sent it. Transcripts show when one is due."""

from typing import Any

import pytest
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.protocols.induction.beats import IN_FLIGHT_MAX, BeatSchedule
from neli_router.protocols.induction.records import Beat
from neli_router.protocols.protocol import Settings

BEAT = Beat(by="a", sent_at=0.0, at=0, digest="0" * 16)


def sent(*times: float) -> BeatSchedule:
    """A member that sent a Beat at each of these times."""
    beats = BeatSchedule(Settings(name="a", layout=Layout(), lease=6.0))
    for time in times:
        beats.sent(replace(BEAT, sent_at=time), time)
    return beats


def test_a_beat_comes_back_once_proves_nothing_after_a_later_one_and_is_remembered_up_to_a_bound() -> None:
    beats = sent(1.0, 2.0, 3.0)
    came_back = [beats.came_back(replace(BEAT, sent_at=time)) for time in (2.0, 2.0, 1.0, 3.0)]
    assert [True, False, False, True] == came_back
    beats = sent(*map(float, range(IN_FLIGHT_MAX + 1)))
    assert [False, True] == [beats.came_back(replace(BEAT, sent_at=time)) for time in (0.0, 1.0)]


@pytest.mark.parametrize(
    "forged", [{"sent_at": 99.0}, {"sent_at": 0.9}, {"at": 1}, {"digest": "f" * 16}, {"by": "b"}], ids=str
)
def test_a_beat_that_differs_in_anything_from_all_that_were_sent_did_not_come_back(forged: dict[str, Any]) -> None:
    assert not sent(1.0).came_back(replace(BEAT, **{"sent_at": 1.0, **forged}))
