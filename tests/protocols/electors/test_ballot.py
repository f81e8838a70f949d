"""The rule of the election alone: leads that end before the time that the program knows."""

from math import inf

from neli_router.protocols.gossip.ballot import ON_NONE, Ballot
from neli_router.protocols.gossip.clocks import TICKS, BiasedClocks
from neli_router.protocols.gossip.electorate import Electorate

P, WAIT = 10.0, 10.02
NOW = 20.0
TERM = 1


def declare(ballot: Ballot, place: int, now: float, *, term: int = 0) -> None:
    """Let `place` favour this ballot's member, and know the time there."""
    ballot.hear(place, (0, 1, int(now * TICKS), int(now * TICKS), term, *ballot.electorate.tag), now)


def newcomer() -> Ballot:
    """The first of three members, which knows the second."""
    clocks = BiasedClocks(3, 0, 0.0, drift=0.001)
    ballot = Ballot(0, Electorate.first((0, 1, 2)), clocks, 0.0, lease=P, wait=WAIT, life=1, term=0)
    ballot.meet(1, 7)
    return ballot


def leader() -> Ballot:
    """A leader by the support of the second member; until NOW + P."""
    ballot = newcomer()
    ballot.meet(2, 5)
    ballot.favour((0, 1), NOW)
    declare(ballot, 1, NOW)
    ballot.lead(NOW, would=True, fresh=True)
    declare(ballot, 1, NOW, term=TERM)
    ballot.lead(NOW, would=True, fresh=True)
    assert (TERM, NOW + P) == (ballot.tenure(NOW), ballot.ends)
    return ballot


def test_a_supporter_that_starts_anew_ends_the_tenure_and_not_the_word_that_was_given_to_the_program() -> None:
    ballot, now = leader(), NOW + 1.0
    ballot.meet(1, 8)
    ballot.lead(now, would=True, fresh=True)
    assert (None, -1, False) == (ballot.tenure(now), ballot.floor, ballot.is_free(now))
    assert ballot.is_free(NOW + P)


def test_whoever_ended_before_the_time_acts_under_no_other_term_until_then() -> None:
    ballot, now = leader(), NOW + 1.0
    ballot.meet(1, 8)
    ballot.lead(now, would=True, fresh=True)
    for term in (0, TERM + 1):
        ballot.declare(now)
        declare(ballot, 2, now, term=term)
        ballot.lead(now, would=True, fresh=True)
    assert (TERM + 1, None) == (ballot.lead_term, ballot.tenure(now))
    ballot.lead(NOW + P, would=True, fresh=True)
    assert TERM + 1 == ballot.tenure(NOW + P)


def test_whoever_has_finished_or_has_no_time_left_acts_on_nothing_up_to_now_and_is_free() -> None:
    for now, finished in ((NOW + 1.0, True), (NOW + P, False)):
        ballot = leader()
        ballot.end(now, finished=finished)
        assert (int(now * TICKS), True) == (ballot.floor, ballot.is_free(now))


def test_whoever_finishes_while_it_holds_a_term_that_it_does_not_act_under_yet_keeps_its_older_word() -> None:
    """Its program had not let go: it was fenced before its time, and a client may act on that time."""
    ballot, now = leader(), NOW + 1.0
    ballot.meet(1, 8)
    ballot.lead(now, would=True, fresh=True)
    ballot.declare(now)
    declare(ballot, 2, now, term=0)
    ballot.lead(now, would=True, fresh=True)
    assert (TERM + 1, False) == (ballot.lead_term, ballot.acting)
    ballot.end(now, finished=True)
    assert (-1, False, True) == (ballot.floor, ballot.is_free(now), ballot.is_free(NOW + P))


def test_a_new_life_leads_by_nothing_that_was_declared_for_the_older_one() -> None:
    """Those bounds are from a clock that showed more than the new one does."""
    ballot = leader()
    ballot.begin(2, NOW)
    ballot.lead(NOW, would=True, fresh=False)
    assert (None, None, -inf) == (ballot.lead_term, ballot.tenure(NOW), ballot.ends)


def voter() -> Ballot:
    """A voter that declared the second of three members at NOW. That member has not said what it acts on."""
    ballot = newcomer()
    declare(ballot, 1, NOW)
    ballot.favour((1, 7), NOW)
    return ballot


def test_a_favourite_that_acts_on_no_declaration_of_mine_leaves_me_free() -> None:
    ballot = voter()
    assert ballot.triplet is not None
    ballot.hear_floor(1, ballot.triplet.bound - 1)
    assert not ballot.is_free(NOW)
    ballot.hear_floor(1, ballot.triplet.bound)
    assert ballot.is_free(NOW)


def test_what_another_life_of_a_favourite_acts_on_leaves_nobody_free() -> None:
    """Its older life may not have ended: two processes may run for it."""
    ballot = voter()
    ballot.meet(1, 8)
    ballot.hear_floor(1, ON_NONE)
    assert [False, True] == [ballot.is_free(at) for at in (NOW, NOW + WAIT)]


def test_what_an_older_life_acted_on_says_nothing_of_a_later_one() -> None:
    ballot, later = voter(), NOW + WAIT
    ballot.hear_floor(1, ON_NONE)
    ballot.meet(1, 8)
    ballot.hear(1, (0, 1, 0, 0, 0, *ballot.electorate.tag), later)
    ballot.favour((1, 8), later)
    assert not ballot.is_free(later)


def test_nobody_leads_by_a_declaration_under_an_electorate_that_it_has_not_taken_over() -> None:
    ballot, now = leader(), NOW + 1.0
    ballot.declare(now)
    ballot.hear(1, (0, 1, int(now * TICKS), int(now * TICKS), TERM, 1, 1), now)
    ballot.lead(now, would=True, fresh=True)
    assert None is ballot.tenure(now)
