"""The settings that a member accepts, and the times that follow from them."""

from math import inf, nan
from typing import Any

import pytest

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.protocols.protocol import NAME_MAX, WEIGHT_MAX, Acquired, Fenced, Settings, Standby


def made(**changed: Any) -> Settings:
    return Settings(**{"name": "a", "layout": Layout(), "lease": 6.0, **changed})


@pytest.mark.parametrize(
    ("told", "time", "expected"),
    [
        ({}, "beat_every", 1.0),
        ({"beat": 0.5}, "beat_every", 0.5),
        ({}, "delay", 1.5),
        ({"delay_max": 0.0}, "delay", 0.0),
        ({}, "stagger", 0.3),
        ({}, "lasts", 6.0),
        ({"guarantee": "available"}, "lasts", 6.0 + 4 * 0.3 + 1.0 + 3 * 1.5),
        ({"guarantee": "available", "beat": 0.5, "delay_max": 1.0}, "hold", 6.0 + 1.2 + 0.5 + 3.0),
        ({"drift": 0.0}, "wait", 6.0),
        ({}, "wait", 6.0 * 1.001 / 0.999),  # The holder's clock may be slow by the drift, and the waiter's fast.
    ],
    ids=str,
)
def test_times_follow_from_the_lease(told: dict[str, Any], time: str, expected: float) -> None:
    assert pytest.approx(expected, rel=1e-12) == getattr(made(**told), time)


def test_an_event_names_its_partitions_in_order_and_prints_as_its_name_how_many_they_are_and_which() -> None:
    acquired = Acquired({7: 9, 0: 5, 2: 5, 1: 5})
    assert ("Acquired(4 partitions: 0-2,7)", (0, 1, 2, 7)) == (str(acquired), acquired.partitions)
    assert "Fenced(1 partition: 3)" == f"{Fenced({3: 9}, 'the lease ended')}"
    assert ["Standby(1 partition: 7)", "Standby(0 partitions)"] == [str(Standby((7,))), str(Standby(()))]


@pytest.mark.parametrize(
    "told",
    [
        {"name": "n" * NAME_MAX, "address": "", "zone": "", "weight": 0, "lease": 0.01, "drift": 0.0},
        {"name": "Größe 1", "weight": WEIGHT_MAX, "lease": 3600.0, "drift": 0.0999, "drain_timeout": 0.0},
        {"lease": 6.0, "beat": 1.5, "delay_max": 6.0, "snapshot_every": 100},
    ],
    ids=str,
)
def test_what_is_just_possible_is_accepted(told: dict[str, Any]) -> None:
    made(**told)


OUTSIDE: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "the member's name is empty"),
    ({"name": "n" * (NAME_MAX + 1)}, "the name must be printable text of at most 256 characters"),
    ({"name": "a\nb"}, "the name must be printable text"),
    ({"address": "a\x00"}, "the address must be printable text"),
    ({"zone": "z" * (NAME_MAX + 1)}, "the zone must be printable text"),
    ({"weight": -1}, "weight=-1 must be a whole number"),
    ({"weight": WEIGHT_MAX + 1}, "weight=1000001 must be a whole number"),
    ({"guarantee": "hopeful"}, "guarantee='hopeful' is unknown"),
    ({"lease": 0.009}, "lease=0.009 must be from 0.01 to 3600.0 seconds"),
    ({"lease": 3601.0}, "lease=3601.0 must be from 0.01 to 3600.0 seconds"),
    ({"lease": nan}, "lease=nan must be a number of seconds"),
    ({"lease": inf}, "lease=inf must be a number of seconds"),
    ({"beat": 0.0}, "beat=0.0 must be above 0 and at most a quarter of lease=6.0"),
    ({"beat": 1.6}, "lower beat to 1.5 or raise lease to 6.4"),
    ({"beat": -1.0}, "beat=-1.0 must be a number of seconds, at least 0"),
    ({"drift": 0.1}, "drift=0.1 must be under 0.1"),
    ({"drift": -0.1}, "drift=-0.1 must be a number of seconds"),
    ({"delay_max": 6.1}, "delay_max=6.1 must be at most lease=6.0"),
    ({"drain_timeout": -1}, "drain_timeout=-1 must be a number of seconds"),
    ({"snapshot_every": 99}, "snapshot_every=99 must be a whole number of at least 100"),
]


@pytest.mark.parametrize(("told", "said"), OUTSIDE, ids=[str(told)[:40] for told, _ in OUTSIDE])
def test_what_contradicts_itself_is_refused_in_one_sentence(told: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**told)
    assert 1 == len(caught.value.problems)
    assert said in caught.value.problems[0]


def test_all_contradictions_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        made(name="", weight=-1, guarantee="x", beat=5.0, drift=0.5, delay_max=7.0, snapshot_every=0)
    assert 7 == len(caught.value.problems)
    with pytest.raises(ConfigError) as caught:  # Only the lease itself is reported, and no comparison with it.
        made(lease=nan, delay_max=1.0, beat=0.1)
    assert 1 == len(caught.value.problems)
