"""Phi: the formula, and that a peer seems alive for as long as its phi is below the bound."""

from math import inf, isclose
from random import Random

import pytest

from neli_router.electors.phi import Accrual, phi, z_of


@pytest.mark.parametrize(
    ("gap", "expected"),
    [(1.0, 0.30103), (2.28155, 1.0), (3.32635, 2.0), (6.61200, 8.0)],
)
def test_phi_is_the_logarithm_of_the_chance_that_a_gap_is_longer(gap: float, expected: float) -> None:
    assert isclose(expected, phi(gap, 1.0, 1.0), abs_tol=1e-3)


def test_a_gap_beyond_all_numbers_is_endlessly_suspicious() -> None:
    assert inf == phi(1e6, 1.0, 1.0)


@pytest.mark.parametrize("bound", [0.5, 1.0, 8.0, 16.0, 299.0])
def test_the_limit_in_deviations_is_where_phi_meets_its_bound(bound: float) -> None:
    assert isclose(bound, phi(z_of(bound), 0.0, 1.0), rel_tol=1e-6)


def accrual(window: int = 4, deviation_min: float = 0.5) -> Accrual:
    return Accrual(phi_max=8.0, window=window, mean_first=1.0, deviation_min=deviation_min)


def test_a_peer_that_was_never_heard_does_not_seem_alive() -> None:
    assert not accrual().is_alive(0.0)


def test_before_the_first_interval_it_is_taken_to_be_as_irregular_as_it_is_long() -> None:
    one = accrual()
    one.sign(10.0)
    assert (True, False) == (one.is_alive(16.5), one.is_alive(16.7))


def test_a_steady_peer_is_suspected_after_its_interval_and_the_least_deviation_times_z() -> None:
    one = accrual()
    for at in range(10):
        one.sign(float(at))
    assert (True, False) == (one.is_alive(9 + 1 + 0.5 * 5.6), one.is_alive(9 + 1 + 0.5 * 5.63))


def test_an_irregular_peer_is_given_more_time() -> None:
    one = accrual()
    for at in (0.0, 1.0, 5.0, 6.0, 10.0):
        one.sign(at)
    assert one.is_alive(10 + 2.5 + 1.5 * 5.6)
    assert not one.is_alive(10 + 2.5 + 1.5 * 5.63)


def test_only_the_intervals_in_the_window_count() -> None:
    forgetful, fresh = accrual(), accrual()
    for at in (0.0, 100.0, 101.0, 102.0, 103.0, 104.0):
        forgetful.sign(at)
    for at in range(100, 105):
        fresh.sign(float(at))
    assert fresh.is_alive(107.7) == forgetful.is_alive(107.7) == (not forgetful.is_alive(107.9))


def test_sums_that_are_kept_agree_with_sums_that_are_taken_anew() -> None:
    rng, one, now, intervals = Random(5), accrual(window=7), 0.0, [1.0]
    one.sign(now)
    for _ in range(1000):
        interval = rng.expovariate(1.0)
        now += interval
        intervals = [*intervals, interval][-7:]
        one.sign(now)
        mean = sum(intervals) / len(intervals)
        deviation = max(0.5, (sum((each - mean) ** 2 for each in intervals) / len(intervals)) ** 0.5)
        limit = mean + z_of(8.0) * deviation
        assert (True, False) == (one.is_alive(now + limit - 1e-6), one.is_alive(now + limit + 1e-6))
