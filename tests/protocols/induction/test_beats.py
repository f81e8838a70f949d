"""Beats that come back: each proves a lease once, and only if this member sent it. Transcripts show when one is due."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.protocols.induction.beats import DIGESTS_APART, IN_FLIGHT_MAX, SLOWEST, BeatSchedule
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.records import Beat, decode, encode, is_known
from neli_router.protocols.induction.suspicion import MARGIN
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


@pytest.mark.parametrize(
    ("members", "exclusive", "every"),
    [(8, True, 1.0), (1000, True, 1.0), (1800, True, 1.8), (9000, True, 2.52), (9000, False, 1.0)],
)
def test_members_of_a_large_group_beat_more_slowly_but_well_within_a_lease(
    members: int, exclusive: bool, every: float
) -> None:
    settings = Settings(name="a", layout=Layout(), lease=6.0, guarantee="exclusive" if exclusive else "available")
    beats = BeatSchedule(settings)
    beats.sent(BEAT, 10.0)
    beats.among(members)
    assert 10.0 + every == pytest.approx(beats.due())


def test_the_slowest_beats_and_an_outage_that_goes_unnoticed_are_shorter_than_a_lease() -> None:
    """An outage is noticed once a Beat of one's own stayed away for the slowest interval and the margin."""
    assert 2 * SLOWEST + MARGIN < 1.0


def test_in_a_large_group_of_a_version_that_knows_it_one_beat_of_several_carries_the_digest() -> None:
    seats = {str(number): None for number in range(3 * DIGESTS_APART)}
    for version, digests in ((2, 8), (3, 2)):
        state: Any = SimpleNamespace(at=7, version=version, seats=seats, digest=255)
        beats = sent()
        told = [beats.next("a", state, 1.234567) for _ in range(8)]
        assert digests == sum(beat.digest == digest_text(255) for beat in told)
        assert told == [decode(encode(beat)) for beat in told]
        assert all(is_known(beat, version) for beat in told)
        assert {1.23456} == {beat.sent_at for beat in told}, "rounded down"
