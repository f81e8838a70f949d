"""What the program believes never exceeds what its member may act for, and what it is asked for it may finish.

Member `p` owns all four partitions under term 1001. A drain may take 2 s.
"""

from math import inf

import pytest

from neli_router.induction.events import Effect
from neli_router.induction.fold import State
from neli_router.induction.holdings import HANDOVERS_MAX, Holdings
from neli_router.induction.records import Drain, Handover, Pin
from neli_router.induction.tenure import Tenure
from neli_router.protocol import Acquired, Fenced, Revoked, Settings
from tests.induction.scenes import LAYOUT, folded, founded, join

ALL = dict.fromkeys(range(4), 1001)
SETTINGS = Settings(name="p", layout=LAYOUT, lease=6.0, drain_timeout=2.0)
AVAILABLE = Settings(name="p", layout=LAYOUT, lease=6.0, guarantee="available")
OWNER = founded(join("p"))
DRAINED = folded(join("q"), Drain(by="o", name="p"), state=OWNER)
TENURE = Tenure.begin("p", OWNER, 0.0, exclusive=True, lasts=6.0, wait=6.0, lingering={})


def leading(state: State = OWNER, *, settings: Settings = SETTINGS) -> Holdings:
    """p's program was told of everything; then the table became that of `state`."""
    holdings = Holdings(settings)
    holdings.look(OWNER, "p")
    assert [Acquired(ALL)] == holdings.settle(ALL, take=True)
    holdings.look(state, "p")
    return holdings


def given(*partitions: int) -> Tenure:
    tenure = TENURE
    for partition in partitions:
        tenure = tenure.gave(partition, 1001)
    return tenure


def draining() -> Holdings:
    """p's program was asked for everything at 10."""
    holdings = leading(DRAINED)
    assert ([], [Revoked(ALL)]) == holdings.to_give(DRAINED, TENURE, 10.0, repeat=False)
    return holdings


# What it may act for


def test_what_a_member_may_act_for_is_told_once() -> None:
    holdings = leading()
    assert [] == holdings.settle(ALL, take=True)
    assert ALL == holdings.leading


def test_what_it_may_no_longer_act_for_is_fenced_with_the_reason() -> None:
    holdings = leading()
    holdings.reason = "a reason"
    assert [Fenced({0: 1001, 1: 1001}, "a reason")] == holdings.settle({2: 1001, 3: 1001}, take=True)
    assert {2: 1001, 3: 1001} == holdings.leading


def test_a_new_term_is_told() -> None:
    holdings = leading()
    assert [Acquired({1: 1005})] == holdings.settle({**ALL, 1: 1005}, take=True)


def test_losses_are_told_before_gains() -> None:
    holdings = Holdings(SETTINGS)
    holdings.settle({0: 1001}, take=True)
    effects: list[Effect] = holdings.settle({1: 1002}, take=True)
    assert [Fenced, Acquired] == [type(effect) for effect in effects]


def test_who_is_leaving_takes_on_nothing_more() -> None:
    assert [] == Holdings(SETTINGS).settle(ALL, take=False)


# Letting go, under `exclusive`


def test_what_is_meant_for_somebody_else_is_asked_back_once() -> None:
    holdings = draining()
    assert ([], []) == holdings.to_give(DRAINED, TENURE, 11.9, repeat=True)
    assert 12.0 == holdings.deadline


def test_what_is_led_under_the_target_stays() -> None:
    assert ([], []) == leading().to_give(OWNER, TENURE, 10.0, repeat=True)
    assert inf == leading().deadline


def test_what_the_program_does_not_lead_is_handed_over_without_asking() -> None:
    """It is owned, but its wait is not over: nobody works on it."""
    holdings = Holdings(SETTINGS)
    holdings.look(DRAINED, "p")
    assert ([0, 1, 2, 3], []) == holdings.to_give(DRAINED, TENURE, 10.0, repeat=False)


def test_what_was_handed_over_is_repeated_only_if_asked_to() -> None:
    holdings = Holdings(SETTINGS)
    holdings.look(DRAINED, "p")
    assert ([1, 3], []) == holdings.to_give(DRAINED, given(0, 2), 10.0, repeat=False)
    assert [0, 1, 2, 3] == sorted(holdings.to_give(DRAINED, given(0, 2), 10.0, repeat=True)[0])


def test_a_handover_is_repeated_even_if_the_target_is_the_member_again() -> None:
    holdings = Holdings(SETTINGS)
    holdings.look(OWNER, "p")
    assert ([0, 2], []) == holdings.to_give(OWNER, given(0, 2), 10.0, repeat=True)


def test_a_handover_is_not_repeated_under_another_term() -> None:
    state = folded(Handover(by="p", partition=0, term=1001), state=OWNER)
    holdings = Holdings(SETTINGS)
    holdings.look(state, "p")
    assert ([2], []) == holdings.to_give(state, given(0, 2), 10.0, repeat=True)


def test_what_the_program_released_is_handed_over_and_led_no_more() -> None:
    holdings = draining()
    assert [1, 2] == holdings.release({1: 1001, 2: 1001})
    assert {0: 1001, 3: 1001} == holdings.leading
    assert [] == holdings.release({1: 1001})


@pytest.mark.parametrize("released", [{0: 1000}, {0: 1002}, {7: 1001}], ids=["older term", "later term", "none"])
def test_what_the_program_does_not_have_it_cannot_release(released: dict[int, int]) -> None:
    assert [] == draining().release(released)


def test_what_the_program_was_not_asked_for_it_cannot_release() -> None:
    holdings = leading()
    assert [] == holdings.release(ALL)
    assert ALL == holdings.leading


def test_on_drain_timeout_the_fence_comes_first_and_then_the_handover() -> None:
    holdings = draining()
    holdings.release({0: 1001})
    gives, effects = holdings.to_give(DRAINED, given(0), 12.0, repeat=False)
    reason = "the program did not finish within drain_timeout=2 s"
    assert ([1, 2, 3], [Fenced({1: 1001, 2: 1001, 3: 1001}, reason)]) == (gives, effects)
    assert ({}, inf) == (holdings.leading, holdings.deadline)


def test_each_partition_has_its_own_time_to_finish() -> None:
    partly = folded(join("q"), Pin(by="o", partition=0, name="q"), state=OWNER)
    holdings = leading(partly)
    owed = holdings.owed
    holdings.to_give(partly, TENURE, 10.0, repeat=False)
    later = folded(Drain(by="o", name="p"), state=partly)
    holdings.look(later, "p")
    rest = {i: 1001 for i in range(4) if i not in owed}
    assert ([], [Revoked(rest)]) == holdings.to_give(later, TENURE, 11.0, repeat=False)
    assert sorted(owed) == sorted(holdings.to_give(later, TENURE, 12.0, repeat=False)[0])
    assert 13.0 == holdings.deadline


def test_what_was_asked_back_has_to_be_let_go_even_if_it_is_to_stay_after_all() -> None:
    """The program was told to finish, and only a new term tells it to begin again."""
    holdings = draining()
    holdings.look(OWNER, "p")
    assert 12.0 == holdings.deadline
    assert ([], []) == holdings.to_give(OWNER, TENURE, 11.9, repeat=False)
    gives, effects = holdings.to_give(OWNER, TENURE, 12.0, repeat=False)
    assert [0, 1, 2, 3] == gives
    assert [Fenced] == [type(effect) for effect in effects]
    assert inf == holdings.deadline


def test_what_was_lost_while_draining_needs_no_answer() -> None:
    holdings = draining()
    assert [Fenced(ALL, "")] == holdings.settle({}, take=True)
    assert inf == holdings.deadline
    assert [] == holdings.release(ALL)


def test_what_another_owns_now_is_not_drained_any_more() -> None:
    holdings = draining()
    holdings.look(folded(Handover(by="p", partition=0, term=1001), state=DRAINED), "p")
    assert [] == holdings.release({0: 1001})
    assert [1] == holdings.release({1: 1001})


def test_no_more_is_asked_back_at_a_time_than_a_bound() -> None:
    many = HANDOVERS_MAX + 9
    state = State(owners=("a1",) * many, targets=("b1",) * many, terms=(1001,) * many)
    holdings = Holdings(SETTINGS)
    holdings.look(state, "a1")
    holdings.leading = dict.fromkeys(holdings.owed, 1001)
    assert ([], [Revoked(dict.fromkeys(range(HANDOVERS_MAX), 1001))]) == holdings.to_give(
        state, TENURE, 0.0, repeat=False
    )


def test_who_leaves_asks_for_everything_back() -> None:
    holdings = leading()
    assert [Revoked(ALL)] == holdings.drain_all(10.0)
    assert [] == holdings.drain_all(11.0)
    assert [0, 1, 2] == holdings.release({0: 1001, 1: 1001, 2: 1001})
    reason = "the program did not finish within drain_timeout=2 s"
    assert [Fenced({3: 1001}, reason)] == holdings.drain_all(12.0)
    assert {} == holdings.leading


# Letting go, under `available`


def test_a_partition_is_handed_over_while_it_is_led() -> None:
    holdings = leading(DRAINED, settings=AVAILABLE)
    assert ([0, 1, 2, 3], []) == holdings.to_give(DRAINED, TENURE, 10.0, repeat=False)
    assert ALL == holdings.leading


def test_when_the_successor_was_heard_the_program_is_asked_to_stop_and_else_it_is_fenced() -> None:
    holdings = leading(DRAINED, settings=AVAILABLE)
    holdings.reason = "a reason"
    holdings.succeeded([0, 1])
    lost = {0: 1001, 1: 1001}
    assert [Revoked(lost), Fenced({2: 1001, 3: 1001}, "a reason")] == holdings.settle({}, take=True)


def test_a_successor_of_long_ago_excuses_no_later_loss() -> None:
    holdings = leading(settings=AVAILABLE)
    holdings.succeeded([0])
    assert [Revoked({0: 1001})] == holdings.settle(dict.fromkeys((1, 2, 3), 1001), take=True)
    assert [Acquired({0: 1005})] == holdings.settle({**ALL, 0: 1005}, take=True)
    assert [Fenced({**ALL, 0: 1005}, "")] == holdings.settle({}, take=True)


def test_who_leads_again_under_a_new_term_was_not_succeeded() -> None:
    holdings = leading(settings=AVAILABLE)
    holdings.succeeded([0])
    holdings.settle({**ALL, 0: 1005}, take=True)
    assert [Fenced({**ALL, 0: 1005}, "")] == holdings.settle({}, take=True)
