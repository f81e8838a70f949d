"""Zeebe's proposal: who stands first, by which priority, and what its text leaves open."""

from random import Random

import pytest

from neli_router.electors.priority import DECAY, Priorities, RandomWait, assign, balanced, electorate
from tests.electors.scenes import term_settings


def test_assignment_of_three_nodes_six_partitions_and_factor_three_is_the_table_of_the_text() -> None:
    table = [
        (3, 1, 1, 3, 2, 2),
        (2, 3, 2, 1, 3, 1),
        (1, 2, 3, 2, 1, 3),
    ]
    rows = [assign(partition, 3, 3) for partition in range(6)]
    assert table == list(zip(*rows, strict=True))


def test_assignment_of_four_nodes_twelve_partitions_and_factor_three_is_as_the_text_says() -> None:
    """Node 0 is the primary of partitions 1, 5 and 9; node 1 the secondary of 1 and 9, and node 2 that of 5."""
    rows = {number: assign(number - 1, 4, 3) for number in range(1, 13)}
    assert [1, 5, 9] == [number for number, row in rows.items() if row[0] == 3]
    assert {1: (3, 2, 1, 0), 5: (3, 1, 2, 0), 9: (3, 2, 1, 0)} == {number: rows[number] for number in (1, 5, 9)}


@pytest.mark.parametrize(("size", "factor"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 5), (7, 3)])
def test_assignment_gives_each_replica_a_priority_of_its_own_from_one_to_the_factor(size: int, factor: int) -> None:
    for partition in range(4 * size):
        row = assign(partition, size, factor)
        assert [0] * (size - factor) + list(range(1, factor + 1)) == sorted(row)


def test_assignment_spreads_the_partitions_of_a_dead_node_over_two() -> None:
    heirs = [assign(partition, 4, 3).index(2) for partition in range(12) if assign(partition, 4, 3)[0] == 3]
    assert [1, 2, 1] == heirs


def test_electorate_at_random_is_everybody() -> None:
    settings = term_settings(4)
    assert ((0, 1, 2, 3), RandomWait(settings.longest_wait)) == electorate(settings, 0)


def test_electorate_by_priority_is_the_replicas() -> None:
    settings = term_settings(4, 1, policy="priority", replicas=3, partitions=8)
    assert ((0, 1, 2), Priorities((3, 1, 2, 0), 1, 0.5)) == electorate(settings, 4)


def test_electorate_is_by_the_priorities_that_the_user_gave() -> None:
    settings = term_settings(3, 1, policy="priority", priorities=((5, 0, 7),))
    assert ((0, 2), Priorities((5, 0, 7), 1, 0.5)) == electorate(settings, 0)


def test_target_is_the_best_priority_of_all_but_the_lost_leader() -> None:
    policy = Priorities((3, 2, 1), 0, 0.5)
    assert [3, 2, 3, 3] == [policy.target(lost) for lost in (None, 0, 1, 2)]


def test_decay_is_one_so_that_no_two_peers_of_different_priorities_stand_at_one_target() -> None:
    assert 1 == DECAY


def test_patience_at_random_is_drawn_from_nothing_to_the_longest_wait() -> None:
    drawn = [RandomWait(3.0).patience(Random(seed)) for seed in range(300)]
    assert (0.0, 3.0) == (round(min(drawn), 1), round(max(drawn), 1))


@pytest.mark.parametrize(
    ("leaders", "nodes", "expected"),
    [
        ([0, 1, 2, 0, 1, 2], 3, True),
        ([0, 0, 0, 1, 1, 2], 3, False),
        ([0, 1, 0, 1, 0, 1], 2, True),
        ([0, 0, 1], 2, True),
        ([0, 1, None], 3, False),
        ([], 3, True),
    ],
)
def test_balanced_means_that_no_node_leads_more_than_its_share_rounded_up(
    leaders: list[int | None], nodes: int, expected: bool
) -> None:
    assert expected is balanced(leaders, nodes)
