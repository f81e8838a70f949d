"""The program's belief never exceeds what its member may act for, and the program may finish what it is asked for.

Member `p` owns all four partitions under term 1001. A drain may take 2 s.
"""

from math import inf

from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.program_view import ProgramView
from neli_router.protocols.induction.records import Drain, Handover, Pin
from neli_router.protocols.induction.tenure import Tenure
from neli_router.protocols.protocol import Acquired, Fenced, Revoked, Settings
from tests.support.records import LAYOUT, folded, founded, join

ALL = dict.fromkeys(range(4), 1001)
SETTINGS = Settings(name="p", layout=LAYOUT, lease=6.0, drain_timeout=2.0)
AVAILABLE = Settings(name="p", layout=LAYOUT, lease=6.0, guarantee="available")
OWNER = founded(join("p"))
DRAINED = folded(join("q"), Drain(by="o", name="p"), state=OWNER)
TENURE = Tenure.begin("p", SETTINGS, OWNER, 0.0, {})


def leading(state: State = OWNER, *, settings: Settings = SETTINGS) -> ProgramView:
    """p's program knows that it leads everything; then the table became that of `state`."""
    view = ProgramView(settings)
    view.look(OWNER, "p")
    assert [Acquired(ALL)] == view.settle(ALL, take=True)
    view.look(state, "p")
    return view


def draining() -> ProgramView:
    """p's program was asked for everything at 10."""
    view = leading(DRAINED)
    assert ([], [Revoked(ALL)]) == view.to_give(DRAINED, TENURE, 10.0, repeat=False)
    return view


# Partitions that it may act for


def test_what_a_member_may_act_for_is_told_once_for_each_term_and_before_that_what_it_lost_with_the_reason() -> None:
    view = leading()
    assert [] == view.settle(ALL, take=True)
    assert ALL == view.leading
    assert [Acquired({1: 1005})] == view.settle({**ALL, 1: 1005}, take=True)
    assert [] == ProgramView(SETTINGS).settle(ALL, take=False), "a member that leaves takes on nothing"
    view = leading()
    view.reason = "a reason"
    now = {2: 1001, 3: 1001, 7: 1005}
    assert [Fenced({0: 1001, 1: 1001}, "a reason"), Acquired({7: 1005})] == view.settle(now, take=True)
    assert now == view.leading


# Letting go, under `exclusive`


def test_what_the_program_released_is_handed_over_and_what_was_lost_meanwhile_needs_no_answer() -> None:
    view = draining()
    assert [1, 2] == view.release({1: 1001, 2: 1001})
    assert {0: 1001, 3: 1001} == view.leading
    for released in ({1: 1001}, {0: 1000}, {0: 1002}, {7: 1001}):  # The program does not have these.
        assert [] == view.release(released)
    view.look(folded(Handover(by="p", terms={0: 1001}), state=DRAINED), "p")
    assert [] == view.release({0: 1001}), "another owns it now"
    assert [3] == view.release({3: 1001})
    view = leading()
    assert [] == view.release(ALL), "it was asked for nothing"
    assert ALL == view.leading
    view = draining()
    assert [Fenced(ALL, "")] == view.settle({}, take=True)
    assert inf == view.deadline
    assert [] == view.release(ALL)


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


# Letting go, under `available`


def test_when_the_successor_was_heard_the_program_is_asked_to_stop_and_no_later_loss_is_excused() -> None:
    view = leading(DRAINED, settings=AVAILABLE)
    view.reason = "a reason"
    view.succeeded([0, 1])
    lost = {0: 1001, 1: 1001}
    assert [Revoked(lost), Fenced({2: 1001, 3: 1001}, "a reason")] == view.settle({}, take=True)
    view = leading(settings=AVAILABLE)
    view.succeeded([0])
    assert [Revoked({0: 1001})] == view.settle(dict.fromkeys((1, 2, 3), 1001), take=True)
    assert [Acquired({0: 1005})] == view.settle({**ALL, 0: 1005}, take=True)
    assert [Fenced({**ALL, 0: 1005}, "")] == view.settle({}, take=True)
    view = leading(settings=AVAILABLE)
    view.succeeded([0])
    view.settle({**ALL, 0: 1005}, take=True)  # It leads again under a new term.
    assert [Fenced({**ALL, 0: 1005}, "")] == view.settle({}, take=True)
