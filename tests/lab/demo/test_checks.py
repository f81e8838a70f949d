"""The demo's checks: all hold for a correct run, and each one fails for the record of an incorrect run.

A record is doctored in one place, and the table lists the checks that must notice; the others must not.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from neli_router.drivers.ledgers.base import Entry
from neli_router.lab.demo.checks import TAKEOVER_LEASES, checked
from neli_router.lab.demo.scene import Action, ActionKind, Run
from neli_router.lab.moves import history_of
from neli_router.protocols.induction.records import Handover, Leave, Pin, Record, decode, encode
from neli_router.status.notes import Span, Woke
from tests.lab.demo.miniature import whole_story

ALL = ["one at a time", "terms only grew", "kill -9", "SIGSTOP", "SIGTERM", "SIGCONT"]
ALL += ["shares", "no needless move", "the ledger", "look-ups"]


@pytest.fixture(scope="module")
def whole() -> Run:
    return whole_story()


def failed(run: Run) -> set[str]:
    return {check.name for check in checked(run) if not check.held}


def action(run: Run, kind: ActionKind) -> Action:
    return next(action for action in run.actions if action.kind is kind)


def next_span(run: Run, kind: ActionKind) -> Span:
    """The first span of another process for the first partition that this action took."""
    done = action(run, kind)
    spans = (span for life in run.lives if life is not done.life for span in life.spans)
    its = (span for span in spans if span.partition == done.took[0] and span.since >= done.at)
    return min(its, key=lambda span: span.since)


def late(kind: ActionKind) -> Callable[[Run], None]:
    def doctor(run: Run) -> None:
        next_span(run, kind).since = action(run, kind).at + (TAKEOVER_LEASES + 0.1) * run.lease

    return doctor


def never(kind: ActionKind) -> Callable[[Run], None]:
    def doctor(run: Run) -> None:
        span = next_span(run, kind)
        for life in run.lives:
            life.spans = [one for one in life.spans if one is not span]

    return doctor


def a_lease_that_ran_on(run: Run) -> None:
    """As if the killed process's lease had ended after its successor began."""
    killed = action(run, ActionKind.KILL)
    successor = next_span(run, ActionKind.KILL)
    next(one for one in killed.life.spans if one.partition == successor.partition).until = successor.since + 0.001


def a_term_that_stayed(run: Run) -> None:
    successor = next_span(run, ActionKind.LEAVE)
    leaver = action(run, ActionKind.LEAVE).life
    successor.term = next(one for one in leaver.spans if one.partition == successor.partition).term


def a_zombie(run: Run) -> None:
    """The stopped process still acts when it wakes up."""
    wake = action(run, ActionKind.WAKE)
    next(one for one in wake.life.spans if one.partition in action(run, ActionKind.STOP).took).until = wake.at + 0.1


def a_lease_that_did_not_refuse(run: Run) -> None:
    life = action(run, ActionKind.WAKE).life
    life.woke = [Woke(note.at, note.asleep, "") for note in life.woke]


def a_fence_that_was_not_told(run: Run) -> None:
    action(run, ActionKind.WAKE).life.halted.clear()


def a_stop_shorter_than_a_lease(run: Run) -> None:
    wake, stop = action(run, ActionKind.WAKE), action(run, ActionKind.STOP)
    run.actions[run.actions.index(wake)] = Action(wake.kind, wake.life, stop.at + run.lease)


def a_hole_at_rest(run: Run) -> None:
    """At the first rest, no member leads one of the partitions."""
    at = run.pauses[0].at
    next(one for one in run.lives[0].spans if one.since <= at < one.until).until = at


def unequal_shares(run: Run) -> None:
    """At the first rest, alpha leads one of charlie's partitions, too."""
    alpha, _, charlie = run.lives[:3]
    alpha.spans.append(charlie.spans.pop(0))


def a_term_from_nowhere(run: Run) -> None:
    run.lives[0].spans[0].term -= 1


def a_lost_record(run: Run) -> None:
    """The ledger ends before the last member left."""
    run.ledger = run.ledger[: next(i for i, it in enumerate(run.ledger) if isinstance(decode(it.payload), Leave))]


def a_needless_move(run: Run) -> None:
    """A partition goes to another member, although none came or went."""
    state = history_of(run.ledger).state
    owner = state.owners[0]
    assert owner is not None
    other = next(seat.name for seat in state.seats.values() if seat.incarnation != owner)
    whim: list[Record] = [Pin(by="an operator", partition=0, name=other), Handover(by=owner, terms={0: state.terms[0]})]
    run.ledger = [*run.ledger, *(Entry(offset, encode(it)) for offset, it in enumerate(whim, start=state.at))]


def routed(**different: Any) -> Callable[[Run], None]:

    def doctor(run: Run) -> None:
        run.routed = replace(run.routed, **different)

    return doctor


def an_unfinished_story(run: Run) -> None:
    run.unfinished = "member bravo failed"


@pytest.mark.parametrize(
    ("doctor", "expected"),
    [
        (a_lease_that_ran_on, {"one at a time"}),
        (a_zombie, {"one at a time", "SIGCONT"}),
        (a_term_that_stayed, {"terms only grew", "the ledger"}),
        (routed(terms_lowered=1), {"terms only grew"}),
        (late(ActionKind.KILL), {"kill -9"}),
        (late(ActionKind.STOP), {"SIGSTOP"}),
        (late(ActionKind.LEAVE), {"SIGTERM"}),
        (never(ActionKind.KILL), {"kill -9", "shares"}),
        (never(ActionKind.STOP), {"SIGSTOP", "shares"}),
        (never(ActionKind.LEAVE), {"SIGTERM", "shares"}),
        (a_lease_that_did_not_refuse, {"SIGCONT"}),
        (a_fence_that_was_not_told, {"SIGCONT"}),
        (a_stop_shorter_than_a_lease, {"SIGCONT"}),
        (a_hole_at_rest, {"shares"}),
        (unequal_shares, {"shares", "the ledger"}),
        (a_term_from_nowhere, {"the ledger"}),
        (a_lost_record, {"the ledger"}),
        (a_needless_move, {"no needless move"}),
        (routed(lookups=0), {"look-ups"}),
        (routed(unanswered=1, why_unanswered="the group has no member any more"), {"look-ups"}),
        (routed(outdated_for=TAKEOVER_LEASES + 0.1), {"look-ups"}),
        (an_unfinished_story, {"the story"}),
    ],
)
def test_a_doctored_record_fails_its_checks(whole: Run, doctor: Callable[[Run], None], expected: set[str]) -> None:
    run = deepcopy(whole)
    doctor(run)
    assert expected == failed(run)


def test_every_check_holds_for_a_run_as_it_should_be_and_none_if_nothing_happened(whole: Run) -> None:
    assert [(name, True) for name in ALL] == [(check.name, check.held) for check in checked(whole)]
    joins, departures = 6 + 4 + 4 + 4, 4 + 4 + 4  # For the second, the third, and both that return.
    history = history_of(whole.ledger)
    assert (joins + departures, 0) == (history.moves, history.needless)
    assert set(ALL) == failed(Run(partitions=12, lease=1.0, started_at=0.0))
    run = Run(partitions=12, lease=1.0, started_at=0.0, unfinished="member alpha failed: the disk is full")
    assert ["did not finish: member alpha failed: the disk is full"] == [one.text for one in checked(run)]
