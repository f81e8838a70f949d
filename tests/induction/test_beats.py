"""When a member beats. A lease is 6 s here, so a beat is due each second, and a probe every twelve."""

from math import inf

import pytest

from neli_router.induction.beats import Voice
from neli_router.keyspace import Layout
from neli_router.protocol import Settings


def joined(at: float) -> Voice:
    """One who joined at `at` and said so."""
    voice = Voice(Settings(name="a", layout=Layout(), lease=6.0))
    for before in range(20, -1, -2):  # It read for long before, without a gap.
        voice.read(anything=True, now=at - before)
    voice.joined(at)
    voice.spoke(at)
    return voice


def silent() -> Voice:
    """One who joined at 0, reads all the time and never heard itself; it is 6 now."""
    voice = joined(0.0)
    for now in (1.0, 3.0, 5.0, 6.0):
        voice.read(anything=True, now=now)
        voice.lapse(-inf, now)
    return voice


def test_who_joins_beats_at_once() -> None:
    voice = Voice(Settings(name="a", layout=Layout(), lease=6.0))
    voice.joined(0.0)
    assert -inf == voice.due()


def test_the_next_beat_is_due_an_interval_after_the_last() -> None:
    assert 11.0 == joined(10.0).due()


def test_a_beat_that_somebody_waits_for_is_due_at_once_and_once() -> None:
    voice = joined(0.0)
    voice.at_once()
    assert -inf == voice.due()
    voice.spoke(0.5)
    assert 1.5 == voice.due()


@pytest.mark.parametrize(("now", "due"), [(5.75, 1.0), (6.0, 12.0)])
def test_who_joined_and_did_not_hear_itself_for_a_lease_falls_silent_but_for_a_probe(now: float, due: float) -> None:
    voice = joined(0.0)
    voice.lapse(-inf, now)
    assert due == voice.due()


@pytest.mark.parametrize(("now", "due"), [(8.75, 4.0), (9.0, 15.0)])
def test_the_lease_is_counted_from_sending(now: float, due: float) -> None:
    voice = joined(0.0)
    voice.spoke(3.0)
    voice.lapse(3.0, now)
    assert due == voice.due()


def test_a_probe_every_two_leases() -> None:
    voice = silent()
    assert 12.0 == voice.due()
    voice.spoke(12.0)
    voice.lapse(-inf, 13.0)
    assert 24.0 == voice.due()


def test_who_hears_itself_again_speaks_again() -> None:
    voice = silent()
    voice.lapse(5.5, 7.0)
    assert 1.0 == voice.due()


def test_who_is_silent_and_reads_on_without_a_gap_stays_so() -> None:
    voice = silent()
    voice.read(anything=True, now=7.0)
    voice.read(anything=False, now=7.5)
    assert 12.0 == voice.due()


def test_who_reads_again_after_it_could_not_speaks_at_once() -> None:
    voice = silent()
    voice.away()
    assert 12.0 == voice.due()
    voice.read(anything=False, now=7.0)
    assert -inf == voice.due()


def test_who_reads_something_after_half_a_lease_of_nothing_speaks_at_once() -> None:
    """A ledger that hangs answers late, and does not say that it was away."""
    voice = silent()
    voice.read(anything=False, now=8.5)
    voice.read(anything=True, now=8.75)
    assert 12.0 == voice.due()
    voice.read(anything=False, now=11.5)
    voice.read(anything=True, now=11.75)
    assert -inf == voice.due()


def test_who_is_back_has_a_lease_to_hear_itself() -> None:
    voice = silent()
    voice.away()
    voice.read(anything=False, now=7.0)
    voice.spoke(7.0)
    voice.lapse(-inf, 12.75)
    assert 8.0 == voice.due()
    voice.lapse(-inf, 13.0)
    assert 19.0 == voice.due()


def test_who_was_away_for_less_than_a_lease_keeps_its_rhythm() -> None:
    voice = joined(0.0)
    voice.away()
    voice.lapse(-inf, 3.0)
    voice.read(anything=True, now=3.0)
    assert 1.0 == voice.due()


def test_an_outage_counts_once() -> None:
    voice = silent()
    voice.away()
    voice.read(anything=False, now=7.0)
    voice.spoke(7.0)
    voice.lapse(-inf, 13.0)
    voice.read(anything=False, now=13.0)
    assert 19.0 == voice.due()
