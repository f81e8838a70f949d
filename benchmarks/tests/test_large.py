"""The benchmark of large groups: what a member's notes claim, and the figures it promises."""

from pathlib import Path

import pytest

from benchmarks import large
from benchmarks._large_member import Line, Tenant
from benchmarks._mass_expiry import MassExpiry
from benchmarks.large import leaderless


def tenant(*lines: Line) -> Tenant:
    made = Tenant(Path("nowhere"))
    for line in lines:
        made.take(line)
    return made


def test_a_partition_is_led_from_its_gain_to_its_loss_while_a_lease_holds() -> None:
    noted = tenant(
        Line("gained", 1.0, terms={0: 10, 1: 10}),
        Line("led", 2.0, until=5.0),
        Line("revoked", 3.0, terms={0: 10}),
        Line("gained", 4.0, terms={2: 11}),
    )
    assert 2 == noted.leads
    assert [(0, 2.0, 3.0), (1, 2.0, 5.0), (2, 4.0, 5.0)] == sorted(noted.spans)


def test_nothing_is_led_between_two_leases() -> None:
    noted = tenant(Line("gained", 1.0, terms={0: 10}), Line("led", 1.0, until=2.0), Line("led", 4.0, until=6.0))
    assert [(0, 1.0, 2.0), (0, 4.0, 6.0)] == list(noted.spans)


def test_a_loss_that_is_noted_after_a_new_gain_takes_nothing_away() -> None:
    noted = tenant(
        Line("gained", 1.0, terms={0: 10}),
        Line("led", 1.0, until=2.0),
        Line("gained", 4.0, terms={0: 11}),
        Line("fenced", 5.0, terms={0: 10}),
        Line("led", 5.0, until=8.0),
    )
    assert [(0, 1.0, 2.0), (0, 5.0, 8.0)] == list(noted.spans)
    assert (1, 1) == (noted.fenced, noted.fenced_partitions)


def test_the_time_without_a_leader_counts_from_the_first_moment_to_the_last() -> None:
    spans = [(0, 0.0, 4.0), (0, 3.0, 6.0), (0, 4.0, 5.0), (0, 8.0, 9.0), (1, 0.0, 20.0)]
    assert [(2.0, 3.0), (0.0, 0.0), (9.0, 9.0)] == leaderless(spans, 3, 1.0, 10.0)


def test_members_that_fall_silent_together_expire_after_a_lease_and_no_other_does() -> None:
    group = MassExpiry(30, 64, 10.0, 9)  # A lease of which no step takes a notable part, on any machine.
    took = group.expire(60.0)
    assert took is not None
    assert 8.0 < took < 15.0
    assert (0, 0, 21) == (group.fenced, group.expired, group.survivors)
    assert 0 < sum(group.accusations)
    assert 0 < group.longest_step


def test_members_that_are_given_too_little_time_to_expire_are_reported() -> None:
    assert MassExpiry(8, 16, 10.0, 2).expire(5.0) is None


@pytest.mark.process
def test_a_second_member_that_gets_its_half_is_measured() -> None:
    figures = large.run(large.Options(partitions=(64,), lease=(1.0,), members=0))
    assert {"expired@64": 0, "lease_s@64": 1.0, "ledger": "sqlite"}.items() <= figures.items()
    assert "expiry_fenced" not in figures
    balanced, records = figures["balanced_s@64"], figures["records@64"]
    assert isinstance(balanced, float)
    assert isinstance(records, int)
    assert balanced >= 0
    assert records > 0
    assert {"fenced@64", "fenced_partitions@64", "leaderless_leases_max@64", "bytes@64"} <= figures.keys()
