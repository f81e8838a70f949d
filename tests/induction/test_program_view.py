"""What the program believes never exceeds what its member may act for, and what it is asked for it may finish.

Member `p` owns all four partitions under term 1001. A drain may take 2 s.
"""

from math import inf

import pytest

from neli_router.induction.fold import State
from neli_router.induction.program_view import HANDOVERS_MAX, ProgramView
from neli_router.induction.records import Drain, Handover, Pin
from neli_router.induction.tenure import Tenure
from neli_router.protocol import Acquired, Event, Fenced, Revoked, Settings
from tests.support.records import LAYOUT, folded, founded, join

ALL = dict.fromkeys(range(4), 1001)
SETTINGS = Settings(name="p", layout=LAYOUT, lease=6.0, drain_timeout=2.0)
AVAILABLE = Settings(name="p", layout=LAYOUT, lease=6.0, guarantee="available")
OWNER = founded(join("p"))
DRAINED = folded(join("q"), Drain(by="o", name="p"), state=OWNER)
TENURE = Tenure.begin("p", OWNER, 0.0, exclusive=True, lasts=6.0, wait=6.0, lingering={})


def leading(state: State = OWNER, *, settings: Settings = SETTINGS) -> ProgramView:
    """p's program was told of everything; then the table became that of `state`."""
    view = ProgramView(settings)
    view.look(OWNER, "p")
    assert [Acquired(ALL)] == view.settle(ALL, take=True)
    view.look(state, "p")
    return view


def given(*partitions: int) -> Tenure:
    tenure = TENURE
    for partition in partitions:
        tenure = tenure.gave(partition, 1001)
    return tenure


def draining() -> ProgramView:
    """p's program was asked for everything at 10."""
    view = leading(DRAINED)
    assert ([], [Revoked(ALL)]) == view.to_give(DRAINED, TENURE, 10.0, repeat=False)
    return view


# What it may act for


def test_what_a_member_may_act_for_is_told_once() -> None:
    view = leading()
    assert [] == view.settle(ALL, take=True)
    assert ALL == view.leading


def test_what_it_may_no_longer_act_for_is_fenced_with_the_reason() -> None:
    view = leading()
    view.reason = "a reason"
    assert [Fenced({0: 1001, 1: 1001}, "a reason")] == view.settle({2: 1001, 3: 1001}, take=True)
    assert {2: 1001, 3: 1001} == view.leading


def test_a_new_term_is_told() -> None:
    view = leading()
    assert [Acquired({1: 1005})] == view.settle({**ALL, 1: 1005}, take=True)


def test_losses_are_told_before_gains() -> None:
    view = ProgramView(SETTINGS)
    view.settle({0: 1001}, take=True)
    effects: list[Event] = view.settle({1: 1002}, take=True)
    assert [Fenced, Acquired] == [type(effect) for effect in effects]


def test_a_member_that_is_leaving_takes_on_nothing_more() -> None:
    assert [] == ProgramView(SETTINGS).settle(ALL, take=False)


# Letting go, under `exclusive`


def test_a_partition_that_is_meant_for_another_member_is_asked_back_once() -> None:
    view = draining()
    assert ([], []) == view.to_give(DRAINED, TENURE, 11.9, repeat=True)
    assert 12.0 == view.deadline


def test_what_is_led_under_the_target_stays() -> None:
    assert ([], []) == leading().to_give(OWNER, TENURE, 10.0, repeat=True)
    assert inf == leading().deadline


def test_what_the_program_does_not_lead_is_handed_over_without_asking() -> None:
    """It is owned, but its wait is not over: no program works on it."""
    view = ProgramView(SETTINGS)
    view.look(DRAINED, "p")
    assert ([0, 1, 2, 3], []) == view.to_give(DRAINED, TENURE, 10.0, repeat=False)


def test_what_was_handed_over_is_repeated_only_if_asked_to() -> None:
    view = ProgramView(SETTINGS)
    view.look(DRAINED, "p")
    assert ([1, 3], []) == view.to_give(DRAINED, given(0, 2), 10.0, repeat=False)
    assert [0, 1, 2, 3] == sorted(view.to_give(DRAINED, given(0, 2), 10.0, repeat=True)[0])


def test_a_handover_is_repeated_even_if_the_target_is_the_member_again() -> None:
    view = ProgramView(SETTINGS)
    view.look(OWNER, "p")
    assert ([0, 2], []) == view.to_give(OWNER, given(0, 2), 10.0, repeat=True)


def test_a_handover_is_not_repeated_under_another_term() -> None:
    state = folded(Handover(by="p", partition=0, term=1001), state=OWNER)
    view = ProgramView(SETTINGS)
    view.look(state, "p")
    assert ([2], []) == view.to_give(state, given(0, 2), 10.0, repeat=True)


def test_what_the_program_released_is_handed_over_and_led_no_more() -> None:
    view = draining()
    assert [1, 2] == view.release({1: 1001, 2: 1001})
    assert {0: 1001, 3: 1001} == view.leading
    assert [] == view.release({1: 1001})


@pytest.mark.parametrize("released", [{0: 1000}, {0: 1002}, {7: 1001}], ids=["older term", "later term", "none"])
def test_what_the_program_does_not_have_it_cannot_release(released: dict[int, int]) -> None:
    assert [] == draining().release(released)


def test_what_the_program_was_not_asked_for_it_cannot_release() -> None:
    view = leading()
    assert [] == view.release(ALL)
    assert ALL == view.leading


def test_on_drain_timeout_the_fence_comes_first_and_then_the_handover() -> None:
    view = draining()
    view.release({0: 1001})
    gives, effects = view.to_give(DRAINED, given(0), 12.0, repeat=False)
    reason = "the program did not finish within drain_timeout=2 s"
    assert ([1, 2, 3], [Fenced({1: 1001, 2: 1001, 3: 1001}, reason)]) == (gives, effects)
    assert ({}, inf) == (view.leading, view.deadline)


def test_each_partition_has_its_own_time_to_finish() -> None:
    partly = folded(join("q"), Pin(by="o", partition=0, name="q"), state=OWNER)
    view = leading(partly)
    owed = view.owed
    view.to_give(partly, TENURE, 10.0, repeat=False)
    later = folded(Drain(by="o", name="p"), state=partly)
    view.look(later, "p")
    rest = {i: 1001 for i in range(4) if i not in owed}
    assert ([], [Revoked(rest)]) == view.to_give(later, TENURE, 11.0, repeat=False)
    assert sorted(owed) == sorted(view.to_give(later, TENURE, 12.0, repeat=False)[0])
    assert 13.0 == view.deadline


def test_what_was_asked_back_has_to_be_let_go_even_if_it_is_to_stay_after_all() -> None:
    """The program was told to finish, and only a new term tells it to begin again."""
    view = draining()
    view.look(OWNER, "p")
    assert 12.0 == view.deadline
    assert ([], []) == view.to_give(OWNER, TENURE, 11.9, repeat=False)
    gives, effects = view.to_give(OWNER, TENURE, 12.0, repeat=False)
    assert [0, 1, 2, 3] == gives
    assert [Fenced] == [type(effect) for effect in effects]
    assert inf == view.deadline


def test_what_was_lost_while_draining_needs_no_answer() -> None:
    view = draining()
    assert [Fenced(ALL, "")] == view.settle({}, take=True)
    assert inf == view.deadline
    assert [] == view.release(ALL)


def test_what_another_owns_now_is_not_drained_any_more() -> None:
    view = draining()
    view.look(folded(Handover(by="p", partition=0, term=1001), state=DRAINED), "p")
    assert [] == view.release({0: 1001})
    assert [1] == view.release({1: 1001})


def test_no_more_is_asked_back_at_a_time_than_a_bound() -> None:
    many = HANDOVERS_MAX + 9
    state = State(owners=("a1",) * many, targets=("b1",) * many, terms=(1001,) * many)
    view = ProgramView(SETTINGS)
    view.look(state, "a1")
    view.leading = dict.fromkeys(view.owed, 1001)
    assert ([], [Revoked(dict.fromkeys(range(HANDOVERS_MAX), 1001))]) == view.to_give(state, TENURE, 0.0, repeat=False)


def test_a_member_that_leaves_asks_for_everything_back() -> None:
    view = leading()
    assert [Revoked(ALL)] == view.drain_all(10.0)
    assert [] == view.drain_all(11.0)
    assert [0, 1, 2] == view.release({0: 1001, 1: 1001, 2: 1001})
    reason = "the program did not finish within drain_timeout=2 s"
    assert [Fenced({3: 1001}, reason)] == view.drain_all(12.0)
    assert {} == view.leading


# Letting go, under `available`


def test_a_partition_is_handed_over_while_it_is_led() -> None:
    view = leading(DRAINED, settings=AVAILABLE)
    assert ([0, 1, 2, 3], []) == view.to_give(DRAINED, TENURE, 10.0, repeat=False)
    assert ALL == view.leading


def test_when_the_successor_was_heard_the_program_is_asked_to_stop_and_else_it_is_fenced() -> None:
    view = leading(DRAINED, settings=AVAILABLE)
    view.reason = "a reason"
    view.succeeded([0, 1])
    lost = {0: 1001, 1: 1001}
    assert [Revoked(lost), Fenced({2: 1001, 3: 1001}, "a reason")] == view.settle({}, take=True)


def test_a_successor_of_long_ago_excuses_no_later_loss() -> None:
    view = leading(settings=AVAILABLE)
    view.succeeded([0])
    assert [Revoked({0: 1001})] == view.settle(dict.fromkeys((1, 2, 3), 1001), take=True)
    assert [Acquired({0: 1005})] == view.settle({**ALL, 0: 1005}, take=True)
    assert [Fenced({**ALL, 0: 1005}, "")] == view.settle({}, take=True)


def test_a_member_that_leads_again_under_a_new_term_was_not_succeeded() -> None:
    view = leading(settings=AVAILABLE)
    view.succeeded([0])
    view.settle({**ALL, 0: 1005}, take=True)
    assert [Fenced({**ALL, 0: 1005}, "")] == view.settle({}, take=True)
