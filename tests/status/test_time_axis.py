"""The time axis: times that come only from Beats, by one clock and by several."""

from math import inf
from typing import Any

import pytest

from neli_router.protocols.induction.records import Beat, decode
from neli_router.status.time_axis import TimeAxis
from tests.support.audited import START, simulated

ROUNDING = 1e-6


def test_a_record_was_written_between_two_beats_and_before_the_first_beat_there_is_no_time() -> None:
    axis = TimeAxis()
    axis.beat(1, "a", 10.0, 1)
    axis.mark(2)
    axis.beat(3, "a", 10.2, 2)  # It had not read 2 when it sent this.
    axis.beat(4, "a", 10.4, 4)
    assert (10.0, 10.4) == axis.when(2)
    axis = TimeAxis()
    axis.mark(0)
    assert (-inf, -inf) == axis.when(0)
    axis.beat(1, "a", 10.0, 0)
    assert (10.0, 10.0) == axis.when(0)
    axis.beat(2, "b", 99.0, 0)
    assert (10.0, None, None) == (axis.now, axis.align("b", 99.0), axis.align("c", 1.0))


def alternating(since: float, rounds: int = 5, **options: Any) -> TimeAxis:
    """Beats of `a` each second from 10 on, and Beats of `b` by another clock."""
    axis = TimeAxis(**options)
    for round_ in range(rounds):
        axis.beat(2 * round_, "a", 10.0 + round_, 2 * round_)
        axis.beat(2 * round_ + 1, "b", since + round_, 2 * round_ + 1)
    return axis


def test_the_members_of_one_host_are_on_one_clock_unless_it_was_rebooted_and_another_is_known_to_half_a_round() -> None:
    axis = alternating(10.5)
    assert (0.0, 12.25) == (axis.error, axis.align("b", 12.25))
    axis = alternating(510.3, drift=0.0)  # The true time is 10.3.
    aligned = axis.align("b", 510.3)
    assert aligned is not None
    assert (True, 0.5) == (abs(aligned - 10.3) <= axis.error, axis.error)
    for readings, expected in (([90.0], ([], 90.0)), ([2.0, 3.0], ([1], 11.0))):
        axis = TimeAxis(one_clock=True)
        axis.beat(0, "a", 10.0, 0)
        axis.depart("a")
        for offset, reading in enumerate(readings, 1):
            axis.beat(offset, "b", reading, offset)
        assert expected == (axis.breaks, axis.now)


def test_the_axis_goes_on_when_its_reference_dies_or_a_clock_jumps_and_breaks_where_no_member_lived() -> None:
    axis = alternating(510.5, rounds=3, drift=0.0)
    axis.depart("a")
    axis.beat(6, "b", 514.5, 6)
    assert (14.5, []) == (axis.now, axis.breaks)
    axis = TimeAxis()
    axis.beat(0, "a", 10.0, 0)
    axis.depart("a")
    axis.mark(1)
    axis.beat(2, "b", 90000.0, 2)
    axis.beat(3, "b", 90001.0, 3)
    assert ([2], 11.0, (10.0, 10.0)) == (axis.breaks, axis.now, axis.when(1))
    axis = TimeAxis(drift=0.0)
    readings = [510.5, 511.5, 812.5, 813.5, 814.5]
    for round_, reading in enumerate(readings):
        axis.beat(2 * round_, "a", 10.0 + round_, 2 * round_)
        axis.beat(2 * round_ + 1, "b", reading, 2 * round_ + 1)
    assert [(6, "b")] == axis.jumps
    assert axis.align("b", 813.5) == pytest.approx(13.5, abs=0.5)


@pytest.mark.parametrize("seed", range(1, 4))
def test_on_one_clock_no_record_was_written_outside_of_its_bounds(seed: int) -> None:
    run = simulated(seed, one_clock=True)
    axis, beaten, read, members = TimeAxis(one_clock=True), [], 0, set[str]()
    for offset, payload, *_ in run.entries:
        for gone in members - run.states[offset].seats.keys():
            axis.depart(gone)
        members, record = set(run.states[offset].seats), decode(payload)
        axis.mark(offset)
        if isinstance(record, Beat) and record.by in members:
            axis.beat(offset, record.by, record.sent_at, record.at)
            beaten.append(offset)
            read = max(read, record.at)
    assert (0.0, []) == (axis.error, axis.jumps)
    # Records before the first Beat, and those that no member has reported as read, have no bounds on one side.
    true = {offset: START + run.times[offset] for offset in run.times if beaten[0] < offset < read}
    assert len(true) > 30
    for offset, time in true.items():
        earliest, latest = axis.when(offset)
        assert earliest - ROUNDING <= time <= latest + ROUNDING
