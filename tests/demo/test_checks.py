"""The demo's checks: all hold for a run as it should be, and each one fails for a record of a run that was not.

A record is doctored in one place, and the table says which checks must notice; the others must not.
"""

from collections.abc import Callable
from copy import deepcopy

import pytest

from neli_router.demo.checks import CLOCK_ERROR, TAKEOVER_LEASES, findings, moves, overlaps, takeover
from neli_router.demo.notes import Woke
from neli_router.demo.record import Deed, DeedKind, Life, Routed, Run, Tenure
from neli_router.induction.fold import State, fold
from neli_router.induction.records import Handover, Leave, Pin, Record
from tests.demo.miniature import whole_story

ALL = (
    "one at a time",
    "terms only grew",
    "kill -9",
    "SIGSTOP",
    "SIGTERM",
    "SIGCONT",
    "shares",
    "no needless move",
    "the ledger",
    "look-ups",
)


@pytest.fixture(scope="module")
def whole() -> Run:
    return whole_story()


def failed(run: Run) -> set[str]:
    return {finding.name for finding in findings(run) if not finding.held}


def deed(run: Run, kind: DeedKind) -> Deed:
    return next(deed for deed in run.deeds if deed.kind is kind)


def next_tenure(run: Run, kind: DeedKind) -> Tenure:
    """The first tenure of somebody else for the first of the partitions that this deed took."""
    done = deed(run, kind)
    tenures = (tenure for life in run.lives if life is not done.life for tenure in life.tenures)
    return min(
        (tenure for tenure in tenures if tenure.partition == done.took[0] and tenure.start >= done.at),
        key=lambda tenure: tenure.start,
    )


def late(kind: DeedKind) -> Callable[[Run], None]:
    def doctor(run: Run) -> None:
        next_tenure(run, kind).start = deed(run, kind).at + (TAKEOVER_LEASES + 0.1) * run.lease

    return doctor


def never(kind: DeedKind) -> Callable[[Run], None]:
    def doctor(run: Run) -> None:
        tenure = next_tenure(run, kind)
        for life in run.lives:
            life.tenures = [one for one in life.tenures if one is not tenure]

    return doctor


def a_lease_that_ran_on(run: Run) -> None:
    """As if the killed one's lease had ended after its successor began."""
    killed = deed(run, DeedKind.KILL)
    successor = next_tenure(run, DeedKind.KILL)
    next(one for one in killed.life.tenures if one.partition == successor.partition).end = successor.start + 0.001


def a_term_that_stayed(run: Run) -> None:
    successor = next_tenure(run, DeedKind.LEAVE)
    leaver = deed(run, DeedKind.LEAVE).life
    successor.term = next(one for one in leaver.tenures if one.partition == successor.partition).term


def a_term_that_fell_in_look_ups(run: Run) -> None:
    run.routed.terms_lowered = 1


def a_zombie(run: Run) -> None:
    """The stopped one still acts when it wakes up."""
    wake = deed(run, DeedKind.WAKE)
    next(one for one in wake.life.tenures if one.partition in deed(run, DeedKind.STOP).took).end = wake.at + 0.1


def a_lease_that_did_not_refuse(run: Run) -> None:
    life = deed(run, DeedKind.WAKE).life
    life.woke = [Woke(note.at, note.asleep, "") for note in life.woke]


def a_fence_that_was_not_told(run: Run) -> None:
    deed(run, DeedKind.WAKE).life.fenced.clear()


def a_stop_shorter_than_a_lease(run: Run) -> None:
    wake, stop = deed(run, DeedKind.WAKE), deed(run, DeedKind.STOP)
    run.deeds[run.deeds.index(wake)] = Deed(wake.kind, wake.life, stop.at + run.lease)


def a_hole_at_rest(run: Run) -> None:
    """At the first rest, one partition is led by nobody."""
    at = run.pauses[0].at
    next(one for one in run.lives[0].tenures if one.start <= at < one.end).end = at


def unequal_shares(run: Run) -> None:
    """At the first rest, alpha leads one of charlie's partitions, too."""
    alpha, _, charlie = run.lives[:3]
    alpha.tenures.append(charlie.tenures.pop(0))


def a_term_from_nowhere(run: Run) -> None:
    run.lives[0].tenures[0].term -= 1


def a_lost_record(run: Run) -> None:
    """The ledger ends before the last member left."""
    run.ledger = run.ledger[: next(i for i, (_, record) in enumerate(run.ledger) if isinstance(record, Leave))]


def a_needless_move(run: Run) -> None:
    """A partition goes to another member, although none came or went."""
    state = State()
    for offset, record in run.ledger:
        state = fold(state, offset, record)
    owner = state.owners[0]
    assert owner is not None
    other = next(seat.name for seat in state.seats.values() if seat.incarnation != owner)
    whim: list[Record] = [
        Pin(by="somebody", partition=0, name=other),
        Handover(by=owner, partition=0, term=state.terms[0]),
    ]
    run.ledger = [*run.ledger, *enumerate(whim, start=state.at)]


def no_look_ups(run: Run) -> None:
    run.routed = Routed()


def a_look_up_without_an_answer(run: Run) -> None:
    run.routed.unanswered, run.routed.why_unanswered = 1, "the group has no member any more"


def an_answer_that_was_outdated_for_long(run: Run) -> None:
    run.routed.outdated_for = (TAKEOVER_LEASES + 0.1) * run.lease


def an_unfinished_story(run: Run) -> None:
    run.unfinished = "member bravo failed"


@pytest.mark.parametrize(
    ("doctor", "expected"),
    [
        (a_lease_that_ran_on, {"one at a time"}),
        (a_zombie, {"one at a time", "SIGCONT"}),
        (a_term_that_stayed, {"terms only grew", "the ledger"}),
        (a_term_that_fell_in_look_ups, {"terms only grew"}),
        (late(DeedKind.KILL), {"kill -9"}),
        (late(DeedKind.STOP), {"SIGSTOP"}),
        (late(DeedKind.LEAVE), {"SIGTERM"}),
        (never(DeedKind.KILL), {"kill -9", "shares"}),
        (never(DeedKind.STOP), {"SIGSTOP", "shares"}),
        (never(DeedKind.LEAVE), {"SIGTERM", "shares"}),
        (a_lease_that_did_not_refuse, {"SIGCONT"}),
        (a_fence_that_was_not_told, {"SIGCONT"}),
        (a_stop_shorter_than_a_lease, {"SIGCONT"}),
        (a_hole_at_rest, {"shares"}),
        (unequal_shares, {"shares", "the ledger"}),
        (a_term_from_nowhere, {"the ledger"}),
        (a_lost_record, {"the ledger"}),
        (a_needless_move, {"no needless move"}),
        (no_look_ups, {"look-ups"}),
        (a_look_up_without_an_answer, {"look-ups"}),
        (an_answer_that_was_outdated_for_long, {"look-ups"}),
        (an_unfinished_story, {"the story"}),
    ],
)
def test_a_doctored_record_fails_the_checks_that_it_should(
    whole: Run, doctor: Callable[[Run], None], expected: set[str]
) -> None:
    run = deepcopy(whole)
    doctor(run)
    assert expected == failed(run)


def test_every_check_holds_for_a_run_as_it_should_be(whole: Run) -> None:
    assert [(name, True) for name in ALL] == [(finding.name, finding.held) for finding in findings(whole)]


def test_a_run_in_which_nothing_happened_fails_every_check() -> None:
    assert set(ALL) == failed(Run(partitions=12, lease=1.0, started_at=0.0))


def test_of_a_story_that_did_not_begin_nothing_is_said_but_why() -> None:
    run = Run(partitions=12, lease=1.0, started_at=0.0, unfinished="member alpha failed: the disk is full")
    assert ["did not come to its end: member alpha failed: the disk is full"] == [one.text for one in findings(run)]


def test_a_takeover_is_counted_until_the_last_partition_is_led(whole: Run) -> None:
    killed = deed(whole, DeedKind.KILL)
    successor = next_tenure(whole, DeedKind.KILL)
    assert successor.start - killed.at == takeover(whole, killed)
    run = deepcopy(whole)
    next_tenure(run, DeedKind.KILL).start += 0.5
    assert 0.5 == pytest.approx(takeover(run, deed(run, DeedKind.KILL)) - takeover(whole, killed))


def test_every_move_of_the_story_was_called_for(whole: Run) -> None:
    joins, departures = 6 + 4 + 4 + 4, 4 + 4 + 4  # Of the second, the third, and both who come back.
    assert (joins + departures, 0) == moves(whole)


def test_what_two_clocks_may_differ_by_is_no_overlap() -> None:
    alpha, bravo = Life("alpha", 1, 0.0), Life("bravo", 2, 0.0)
    run = Run(1, 1.0, 0.0, lives=[alpha, bravo])
    alpha.tenures.append(Tenure(0, term=5, start=1.0, end=2.0))
    bravo.tenures.append(Tenure(0, term=6, start=2.0 - CLOCK_ERROR / 2, end=3.0))
    assert [] == overlaps(run)
    bravo.tenures[0].start = 2.0 - CLOCK_ERROR * 2
    assert [(alpha, bravo, bravo.tenures[0])] == overlaps(run)


def test_an_overlap_is_found_behind_a_shorter_tenure_of_a_third() -> None:
    lives = [Life(name, pid, 0.0) for pid, name in enumerate(("alpha", "bravo", "charlie"))]
    spans = ((0.0, 9.0), (10.0, 11.0), (8.0, 8.5))
    for life, (start, end) in zip(lives, spans, strict=True):
        life.tenures.append(Tenure(0, term=1, start=start, end=end))
    lives[1].tenures.append(Tenure(0, term=2, start=8.9, end=9.5))
    found = overlaps(Run(1, 1.0, 0.0, lives=lives))
    assert [("alpha", "charlie", 8.0), ("alpha", "bravo", 8.9)] == [
        (one.name, two.name, tenure.start) for one, two, tenure in found
    ]
