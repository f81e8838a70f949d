"""How a member introduces itself, and the messages with which it is turned away."""

from typing import Any

import pytest
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.errors import GroupMismatch, Replaced
from neli_router.protocols.induction import admission as membership
from neli_router.protocols.induction.admission import REST_MAX
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State
from neli_router.protocols.induction.records import Genesis, Join
from neli_router.protocols.protocol import Settings
from tests.support.records import LAYOUT, founded

SETTINGS = Settings(name="alice", layout=LAYOUT, lease=6.0, address="host:1", weight=3, zone="eu")


@pytest.mark.parametrize(
    ("term_base", "base"), [(0, 77), (76, 77), (78, 78)], ids=["new", "lower", "the founder's clock was set back"]
)
def test_the_genesis_says_what_all_must_agree_on_and_begins_above_all_former_terms(term_base: int, base: int) -> None:
    expected = Genesis(
        by="a1", layout=LAYOUT, lease=6.0, guarantee="exclusive", base=base, version=FOLD_VERSIONS[1], at=5
    )
    assert expected == membership.genesis(replace(SETTINGS, term_base=term_base), "a1", 77, 5)


def test_the_join_says_what_others_must_know_of_a_member_which_it_replaces_and_how_far_it_had_read() -> None:
    expected = Join(
        by="a", name="alice", address="host:1", weight=3, zone="eu", versions=FOLD_VERSIONS, at=5, witness="w", floor=7
    )
    assert expected == membership.join(SETTINGS, "a", State(at=5, version=3), "w", 7)
    patient = replace(SETTINGS, grace=9.0)
    assert expected == membership.join(patient, "a", State(at=5, version=2), "w", 7)
    assert replace(expected, v=2, grace=9.0) == membership.join(patient, "a", State(at=5, version=3), "w", 7)
    error = membership.replaced(SETTINGS, "host:2")
    assert isinstance(error, Replaced)
    assert "'alice'" in error.wanted
    assert "a newer process joined under that name from host:2" == error.found
    assert "a newer process joined under that name" == membership.replaced(SETTINGS, "").found


def test_a_member_that_agrees_may_take_part_but_not_one_that_does_not_know_the_groups_fold() -> None:
    own = {"name": "bob", "address": "", "weight": 0, "zone": "us", "beat": 0.1, "delay_max": 1.0, "drain_timeout": 0.0}
    assert membership.mismatch(SETTINGS, State()) is None
    assert membership.mismatch(SETTINGS, founded()) is None
    assert membership.mismatch(replace(SETTINGS, term_base=1000, **own), founded()) is None
    for version in (0, FOLD_VERSIONS[1] + 1):
        error = membership.mismatch(SETTINGS, replace(founded(), version=version))
        assert isinstance(error, GroupMismatch)
        assert f"the ledger's group is at version {version}" == error.found


def test_a_member_rests_twice_as_long_after_each_expiry_up_to_a_bound_until_a_membership_lasts() -> None:
    trial, now, rests = membership.Trial(SETTINGS), 0.0, []
    for lasted in (*[REST_MAX * 6.0 - 0.1] * 8, REST_MAX * 6.0):
        trial.joined(now)
        now += lasted
        trial.expired(now)
        rests.append(trial.rest)
    assert [0, 2, 4, 8, 16, 32, 32, 32, 0] == rests


DIFFERENT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "layout": ({"layout": Layout(slots=8, partitions=4, tags=True)}, ("slots=8, partitions=4, tags=on", "slots=16, ")),
    "lease": ({"lease": 7.0}, ("lease 7 s here and 6 s there",)),
    "guarantee": ({"guarantee": "available"}, ("guarantee 'available' here and 'exclusive' there",)),
    "term_base": ({"term_base": 1001}, ("terms above 1001 here and above 1000 there",)),
    "all": ({"layout": Layout(), "lease": 7.0, "guarantee": "available"}, ("slots=16384", "lease 7 s", "'available'")),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_member_that_comes_with_other_settings_is_refused_with_both_spelled_out(what: str) -> None:
    changes, said = DIFFERENT[what]
    error = membership.mismatch(replace(SETTINGS, **changes), founded())
    assert isinstance(error, GroupMismatch)
    assert [] == [words for words in said if words not in error.found]
    assert error.remedy.startswith("start with the ledger's settings, which never change while it lives")
