"""How a member introduces itself, and the words with which it is turned away."""

from typing import Any

import pytest
from msgspec.structs import replace

from neli_router.errors import GroupMismatch, Replaced
from neli_router.induction import admission as membership
from neli_router.induction.fold import FOLD_VERSIONS, State
from neli_router.induction.records import Genesis, Join
from neli_router.keyspace import Layout
from neli_router.protocol import Settings
from tests.support.records import LAYOUT, founded

SETTINGS = Settings(name="alice", layout=LAYOUT, lease=6.0, address="host:1", weight=3, zone="eu")


def test_the_genesis_says_what_all_must_agree_on_and_how_far_its_writer_had_read() -> None:
    expected = Genesis(
        by="a1", layout=LAYOUT, lease=6.0, guarantee="exclusive", base=77, version=FOLD_VERSIONS[1], at=5
    )
    assert expected == membership.genesis(SETTINGS, "a1", 77, 5)


@pytest.mark.parametrize(("term_base", "base"), [(76, 77), (78, 78)])
def test_the_genesis_begins_above_all_terms_that_the_group_had_on_another_ledger(term_base: int, base: int) -> None:
    """Also where the founder's clock was set to a time before that ledger."""
    assert base == membership.genesis(replace(SETTINGS, term_base=term_base), "a1", 77, 5).base


def test_the_join_says_what_others_must_know_of_a_member_and_how_far_it_had_read() -> None:
    expected = Join(
        by="a1", name="alice", address="host:1", weight=3, zone="eu", versions=FOLD_VERSIONS, at=5, witness="agent"
    )
    assert expected == membership.join(SETTINGS, "a1", 5, "agent")


@pytest.mark.parametrize("state", [State(), founded()], ids=["no genesis yet", "the same settings"])
def test_a_member_that_agrees_may_take_part(state: State) -> None:
    assert membership.mismatch(SETTINGS, state) is None


def test_what_a_member_may_differ_in_is_its_own_business() -> None:
    own = replace(
        SETTINGS,
        term_base=1000,
        name="bob",
        address="",
        weight=0,
        zone="us",
        beat=0.1,
        delay_max=1.0,
        drain_timeout=0.0,
    )
    assert membership.mismatch(own, founded()) is None


DIFFERENT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "layout": (
        {"layout": Layout(slots=8, partitions=4, tags=True)},
        ("slots=8, partitions=4, tags=on", "slots=16, partitions=4, tags=off"),
    ),
    "lease": ({"lease": 7.0}, ("lease 7 s here and 6 s there",)),
    "guarantee": ({"guarantee": "available"}, ("guarantee 'available' here and 'exclusive' there",)),
    "term_base": ({"term_base": 1001}, ("terms above 1001 here and above 1000 there",)),
    "all": (
        {"layout": Layout(), "lease": 7.0, "guarantee": "available"},
        ("slots=16384", "lease 7 s", "guarantee 'available'"),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_member_that_comes_with_other_settings_is_refused_with_both_spelled_out(what: str) -> None:
    changes, said = DIFFERENT[what]
    error = membership.mismatch(replace(SETTINGS, **changes), founded())
    assert isinstance(error, GroupMismatch)
    assert [] == [words for words in said if words not in error.found]


@pytest.mark.parametrize("version", [0, FOLD_VERSIONS[1] + 1])
def test_a_member_that_does_not_know_the_groups_fold_is_refused(version: int) -> None:
    error = membership.mismatch(SETTINGS, replace(founded(), version=version))
    assert isinstance(error, GroupMismatch)
    assert f"the ledger's group is at version {version}" == error.found


def test_a_member_that_is_replaced_reads_by_which_one() -> None:
    error = membership.replaced(SETTINGS, "host:2")
    assert isinstance(error, Replaced)
    assert "'alice'" in error.wanted
    assert "a newer process joined under that name from host:2" == error.found
    assert "a newer process joined under that name" == membership.replaced(SETTINGS, "").found
