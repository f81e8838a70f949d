"""The rule of the election by itself: what ends before the time that a program was told."""

from neli_router.electors.ballot import Ballot
from neli_router.electors.clocks import TICKS, BiasedClocks
from neli_router.electors.electorate import Electorate

P, WAIT = 10.0, 10.02
NOW = 20.0
TERM = 1


def declare(ballot: Ballot, place: int, now: float, *, term: int = 0) -> None:
    """That place favours this ballot's member, and knows how late it is there."""
    ballot.hear(place, (0, 1, int(now * TICKS), int(now * TICKS), term, *ballot.electorate.tag), now)


def leader() -> Ballot:
    """Of three members, by the support of the second; until NOW + P."""
    ballot = Ballot(
        0, Electorate.first((0, 1, 2)), BiasedClocks(3, 0, 0.0, drift=0.001), 0.0, lease=P, wait=WAIT, life=1, term=0
    )
    ballot.meet(1, 7)
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
