"""When a member beats. A lease is 6 s here, so a beat is due each second, and a probe every twelve."""

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.protocols.induction.beats import IN_FLIGHT_MAX, BeatSchedule
from neli_router.protocols.induction.records import Beat
from neli_router.protocols.protocol import Settings

BEAT = Beat(by="a", sent_at=0.0, at=0, digest="0" * 16)


def joined(at: float) -> BeatSchedule:
    """The schedule of a member that joined at `at` and sent a Beat."""
    beats = BeatSchedule(Settings(name="a", layout=Layout(), lease=6.0))
    for before in range(20, -1, -2):  # It read for long before, without a gap.
        beats.read(anything=True, now=at - before)
    beats.joined(at)
    beats.sent(BEAT, at)
    return beats


def silent() -> BeatSchedule:
    """A member that joined at 0, reads all the time and never heard itself; it is 6 now."""
    beats = joined(0.0)
    for now in (1.0, 3.0, 5.0, 6.0):
        beats.read(anything=True, now=now)
        beats.lapse(-inf, now)
    return beats


def test_a_beat_is_due_at_once_after_a_join_and_an_interval_after_the_last() -> None:
    beats = BeatSchedule(Settings(name="a", layout=Layout(), lease=6.0))
    beats.joined(0.0)
    assert -inf == beats.due()
    assert 11.0 == joined(10.0).due()
    beats = joined(0.0)
    beats.at_once()
    assert -inf == beats.due()
    beats.sent(BEAT, 0.5)
    assert 1.5 == beats.due()


@pytest.mark.parametrize(
    ("heard", "lapses"), [(-inf, ((5.75, 1.0), (6.0, 12.0))), (3.0, ((8.75, 4.0), (9.0, 15.0)))], ids=["never", "once"]
)
def test_a_member_that_does_not_hear_itself_for_a_lease_falls_silent_but_for_a_probe_every_two_leases(
    heard: float, lapses: tuple[tuple[float, float], ...]
) -> None:
    """The lease counts from sending."""
    beats = joined(0.0)
    if heard > 0:
        beats.sent(BEAT, heard)
    for now, due in lapses:
        beats.lapse(heard, now)
        assert due == beats.due()
    probe = beats.due()
    beats.sent(BEAT, probe)
    beats.lapse(heard, probe + 1)
    assert probe + 12 == beats.due()
    beats.lapse(probe + 1, probe + 2)
    assert probe + 1 == beats.due(), "a member that hears itself again speaks again"


def test_a_member_that_reads_again_after_it_could_not_speaks_at_once() -> None:
    beats = silent()
    for anything, now in ((True, 7.0), (False, 7.5)):  # It reads on without a gap.
        beats.read(anything=anything, now=now)
        assert 12.0 == beats.due()
    beats.away()
    assert 12.0 == beats.due()
    beats.read(anything=False, now=7.75)
    assert -inf == beats.due()


def test_a_member_that_reads_something_after_half_a_lease_of_nothing_speaks_at_once() -> None:
    """A ledger that hangs answers late, and does not report that it was away."""
    beats = silent()
    beats.read(anything=False, now=8.5)
    beats.read(anything=True, now=8.75)
    assert 12.0 == beats.due()
    beats.read(anything=False, now=11.5)
    beats.read(anything=True, now=11.75)
    assert -inf == beats.due()


def test_a_member_that_is_back_has_a_lease_to_hear_itself_once() -> None:
    beats = silent()
    beats.away()
    beats.read(anything=False, now=7.0)
    beats.sent(BEAT, 7.0)
    beats.lapse(-inf, 12.75)
    assert 8.0 == beats.due()
    beats.lapse(-inf, 13.0)
    beats.read(anything=False, now=13.0)
    assert 19.0 == beats.due()


def test_a_member_that_was_away_for_less_than_a_lease_keeps_its_rhythm() -> None:
    beats = joined(0.0)
    beats.away()
    beats.lapse(-inf, 3.0)
    beats.read(anything=True, now=3.0)
    assert 1.0 == beats.due()


# Beats that come back


def sent(*times: float) -> BeatSchedule:
    """A member that sent a Beat at each of these times."""
    beats = BeatSchedule(Settings(name="a", layout=Layout(), lease=6.0))
    for time in times:
        beats.sent(replace(BEAT, sent_at=time), time)
    return beats


def test_a_beat_comes_back_once_and_proves_nothing_after_a_later_one() -> None:
    beats = sent(1.0, 2.0, 3.0)
    came_back = [beats.came_back(replace(BEAT, sent_at=time)) for time in (2.0, 2.0, 1.0, 3.0)]
    assert [True, False, False, True] == came_back


@pytest.mark.parametrize(
    "forged", [{"sent_at": 99.0}, {"sent_at": 0.9}, {"at": 1}, {"digest": "f" * 16}, {"by": "b"}], ids=str
)
def test_a_beat_that_differs_in_anything_from_all_that_were_sent_did_not_come_back(forged: dict[str, Any]) -> None:
    assert not sent(1.0).came_back(replace(BEAT, **{"sent_at": 1.0, **forged}))


def test_no_more_beats_are_remembered_than_a_bound() -> None:
    beats = sent(*map(float, range(IN_FLIGHT_MAX + 1)))
    assert [False, True] == [beats.came_back(replace(BEAT, sent_at=time)) for time in (0.0, 1.0)]
