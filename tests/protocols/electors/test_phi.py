"""Phi: the formula, and that a peer seems alive as long as its phi is below the bound."""

from math import inf, isclose
from random import Random

import pytest

from neli_router.protocols.gossip.phi import Signs, phi, z_of


def test_phi_is_the_logarithm_of_the_chance_that_a_gap_is_longer_and_its_limit_is_where_it_meets_a_bound() -> None:
    for gap, expected in ((1.0, 0.30103), (2.28155, 1.0), (3.32635, 2.0), (6.61200, 8.0)):
        assert isclose(expected, phi(gap, 1.0, 1.0), abs_tol=1e-3)
    assert inf == phi(1e6, 1.0, 1.0), "beyond all numbers"
    for bound in (0.5, 1.0, 8.0, 16.0, 299.0):
        assert isclose(bound, phi(z_of(bound), 0.0, 1.0), rel_tol=1e-6)


def signs(window: int = 4, limit_max: float = inf) -> Signs:
    return Signs(2, phi_max=8.0, window=window, mean_first=1.0, deviation_min=0.5, limit_max=limit_max)


Z = z_of(8.0)

HEARD: dict[str, tuple[Signs, list[float], float]] = {
    "before the first interval it is taken to be as irregular as it is long": (signs(), [10.0], 10 + 1 + Z),
    "a steady peer is given the least deviation": (signs(), [*map(float, range(10))], 9 + 1 + 0.5 * Z),
    "an irregular peer is given more time": (signs(), [0.0, 1.0, 4.0, 5.0, 8.0], 8 + 2 + 1 * Z),
    "only the intervals in the window count": (signs(), [0.0, 5.0, 6.0, 7.0, 8.0, 9.0], 9 + 1 + 0.5 * Z),
    "no gap is waited for longer than the longest limit": (signs(limit_max=9.0), [0.0, 7.0, 8.0, 15.0, 16.0], 25.0),
    "a longest limit below the least deviation holds too": (signs(limit_max=2.0), [10.0], 12.0),
}


@pytest.mark.parametrize(("heard", "times", "limit"), HEARD.values(), ids=HEARD)
def test_a_peer_seems_alive_until(heard: Signs, times: list[float], limit: float) -> None:
    assert not heard.is_alive(0, times[0]), "it was never heard"
    for at in times:
        heard.sign([0], at)
    assert (True, False) == (heard.is_alive(0, limit - 1e-6), heard.is_alive(0, heard.until(0)))
    assert isclose(limit, heard.until(0), rel_tol=1e-9)


def test_an_outage_does_not_make_later_silence_less_suspicious_long_gaps_are_learned_and_can_be_forgotten() -> None:
    heard = signs(window=100)
    for at in (*range(100), *range(4000, 4010)):
        heard.sign([0], float(at))
    assert (True, False) == (heard.is_alive(0, 4009 + 3.7), heard.is_alive(0, 4009 + 5.0))
    heard = signs(window=20)
    for at in (*range(20), *range(40, 640, 20)):
        heard.sign([0], float(at))
    assert heard.is_alive(0, 620 + 19.0)
    heard = signs()
    for at in (0.0, 50.0, 60.0, 90.0):
        heard.sign([0], at)
    heard.forget(0)
    assert not heard.is_alive(0, 91.0)
    heard.sign([0], 100.0)
    assert (True, False) == (heard.is_alive(0, 106.5), heard.is_alive(0, 106.7))


def test_it_seems_alive_until_its_limit_whenever_it_is_asked_about() -> None:
    rng, heard, now, intervals = Random(5), signs(window=7), 0.0, [1.0]
    heard.sign([0], now)
    for _ in range(1000):
        interval = rng.uniform(0.0, 3.0)
        now += interval
        intervals = [*intervals, interval][-7:]
        heard.sign([0], now)
        mean = sum(intervals) / len(intervals)
        deviation = max(0.5, (sum((each - mean) ** 2 for each in intervals) / len(intervals)) ** 0.5)
        limit = mean + z_of(8.0) * deviation
        assert heard.is_alive(0, now + heard.least - 1e-6)
        assert heard.least < limit
        assert (True, False) == (heard.is_alive(0, now + limit - 1e-6), heard.is_alive(0, now + limit + 1e-6))
