"""Measures of electors in virtual time: leaders are spread by priority, and a takeover takes as long as documented."""

from itertools import count

import pytest

from neli_router.lab.sim.electors.measures import balance, balanced, fleet
from neli_router.lab.sim.electors.options import ElectorProtocol


def ticking() -> float:
    """A clock that advances by one second with each call."""
    return float(next(SECONDS))


SECONDS = count()


def test_by_priority_with_transfer_no_node_leads_more_than_its_share_and_otherwise_one_does() -> None:
    """The text's measure: how often leaders are balanced, out of all restarts of a node."""
    found = balance("priority", 4, 12, 8, 1, replicas=3)
    assert (8, 1.0, {3: 8}) == (found.total, found.share, dict(found.most))
    assert balanced([0, 1, 2, 0, 1, 2], 3)
    assert balanced([0, 1, 0, 1, 0, 1], 2)
    assert balanced([0, 0, 1], 2)
    assert balanced([], 3)
    assert not balanced([0, 0, 0, 1, 1, 2], 3)
    assert not balanced([0, 1, None], 3)
    # Scouting lets the highest node win whatever is free, and nothing returns it to a node that was away.
    found = balance("random", 3, 6, 10, 1)
    assert found.share < 0.5
    assert found == balance("random", 3, 6, 10, 1)
    assert balance("priority", 3, 6, 20, 1, transfer=False).share < 0.95


@pytest.mark.parametrize(
    ("protocol", "least", "most"),
    [
        ("term", 2.0, 3.0 + 3.0 + 1.5),  # Three missed heartbeats, the random wait, and two rounds.
        ("priority", 2.0, 3.0 + 1.5),  # One time-out while the secondary lives, and two rounds.
        ("gossip", 10.0, 2 * 15.0 * 1.002 + 10.0),  # 2 P, and ten intervals.
    ],
)
def test_a_group_of_five_takes_over_as_its_protocol_says(protocol: ElectorProtocol, least: float, most: float) -> None:
    """A beat is one second."""
    found = fleet(protocol, 5, clock=ticking, faults=4)
    assert 4 == len(found.takeovers) == len(found.leaderless)
    assert least <= min(found.takeovers)
    assert max(found.takeovers) <= most
    assert 0.0 <= min(found.leaderless) <= max(found.leaderless) <= most


def test_a_leader_of_terms_asks_each_peer_once_a_beat_and_is_answered() -> None:
    found = fleet("term", 7, clock=ticking, faults=0, rest=100.0)
    assert 12.0 == pytest.approx(found.datagrams_per_second, abs=0.5)
    assert 26.0 * 12 == pytest.approx(found.bytes_per_second, rel=0.2)
    assert [pytest.approx(100.0 / 12)] * 12 == found.x_real_time
