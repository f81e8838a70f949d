"""The rule of the election alone: leads that end before the time that the program knows."""

from math import inf

from neli_router.protocols.gossip.clocks import TICKS, BiasedClocks
from neli_router.protocols.gossip.election import ON_NONE, Electorate, GossipElection

P, WAIT = 10.0, 10.02
NOW = 20.0
TERM = 1


def declare(election: GossipElection, place: int, now: float, *, term: int = 0) -> None:
    """Let `place` favour this election's member, and know the time there."""
    election.hear(place, (0, 1, int(now * TICKS), int(now * TICKS), term, *election.electorate.tag), now)


def newcomer() -> GossipElection:
    """The first of three members, which knows the second."""
    clocks = BiasedClocks(3, 0, 0.0, drift=0.001)
    election = GossipElection(0, Electorate.first((0, 1, 2)), clocks, 0.0, lease=P, wait=WAIT, life=1, term=0)
    election.meet(1, 7)
    return election


def leader() -> GossipElection:
    """A leader by the support of the second member; until NOW + P."""
    election = newcomer()
    election.meet(2, 5)
    election.favour((0, 1), NOW)
    declare(election, 1, NOW)
    election.lead(NOW, would=True, fresh=True)
    declare(election, 1, NOW, term=TERM)
    election.lead(NOW, would=True, fresh=True)
    assert (TERM, NOW + P) == (election.tenure(NOW), election.ends)
    return election


def test_a_supporter_that_starts_anew_ends_the_tenure_and_under_no_other_term_is_acted_before_its_time() -> None:
    election, now = leader(), NOW + 1.0
    election.meet(1, 8)
    election.lead(now, would=True, fresh=True)
    assert (None, -1, False) == (election.tenure(now), election.floor, election.is_free(now))
    assert election.is_free(NOW + P)
    for term in (0, TERM + 1):
        election.declare(now)
        declare(election, 2, now, term=term)
        election.lead(now, would=True, fresh=True)
    assert (TERM + 1, None) == (election.lead_term, election.tenure(now))
    election.lead(NOW + P, would=True, fresh=True)
    assert TERM + 1 == election.tenure(NOW + P)


def test_whoever_has_finished_acts_on_nothing_up_to_now_but_one_that_finishes_while_not_acting_keeps_its_word() -> None:
    for now, finished in ((NOW + 1.0, True), (NOW + P, False)):
        election = leader()
        election.end(now, finished=finished)
        assert (int(now * TICKS), True) == (election.floor, election.is_free(now))
    # Its program had not let go: it was fenced before its time, and a client may act on that time.
    election, now = leader(), NOW + 1.0
    election.meet(1, 8)
    election.lead(now, would=True, fresh=True)
    election.declare(now)
    declare(election, 2, now, term=0)
    election.lead(now, would=True, fresh=True)
    assert (TERM + 1, False) == (election.lead_term, election.acting)
    election.end(now, finished=True)
    assert (-1, False, True) == (election.floor, election.is_free(now), election.is_free(NOW + P))


def test_a_new_life_leads_by_nothing_declared_for_the_older_one_nor_anybody_under_an_electorate_not_taken_over() -> (
    None
):
    """Those bounds are from a clock that showed more than the new one does."""
    election = leader()
    election.begin(2, NOW)
    election.lead(NOW, would=True, fresh=False)
    assert (None, None, -inf) == (election.lead_term, election.tenure(NOW), election.ends)
    election, now = leader(), NOW + 1.0
    election.declare(now)
    election.hear(1, (0, 1, int(now * TICKS), int(now * TICKS), TERM, 1, 1), now)
    election.lead(now, would=True, fresh=True)
    assert None is election.tenure(now)


def voter() -> GossipElection:
    """A voter that declared the second of three members at NOW. That member has not said what it acts on."""
    election = newcomer()
    declare(election, 1, NOW)
    election.favour((1, 7), NOW)
    return election


def test_a_favourite_that_acts_on_no_declaration_of_mine_leaves_me_free_but_no_other_life_of_it_does() -> None:
    """Its older life may not have ended: two processes may run for it."""
    election = voter()
    election.meet(1, 8)
    election.hear_floor(1, ON_NONE)
    assert [False, True] == [election.is_free(at) for at in (NOW, NOW + WAIT)]
    election, later = voter(), NOW + WAIT
    election.hear_floor(1, ON_NONE)
    election.meet(1, 8)
    election.hear(1, (0, 1, 0, 0, 0, *election.electorate.tag), later)
    election.favour((1, 8), later)
    assert not election.is_free(later)
    election = voter()
    assert election.triplet is not None
    election.hear_floor(1, election.triplet.bound - 1)
    assert not election.is_free(NOW)
    election.hear_floor(1, election.triplet.bound)
    assert election.is_free(NOW)
