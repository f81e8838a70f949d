"""The elector of one partition: each rule of BlazingMQ's article, said in our own words, and the lease on top.

The peers are 0, 1 and 2; the elector under test is 0 unless a test says otherwise. The beat is 1 s and the lease 3 s.
"""

from copy import copy
from math import inf, nan
from typing import Any

import msgspec
import pytest

from neli_router.electors.settings import MISSES
from neli_router.electors.term import (
    STARVED_MAX,
    Became,
    Cede,
    Ceded,
    Heartbeat,
    InvalidHeartbeat,
    Message,
    Proposal,
    Rejection,
    Remember,
    Role,
    Said,
    Scouted,
    Scouting,
    Stand,
    Support,
    Tell,
    TermEffect,
    TermElector,
)
from neli_router.protocol import TICK
from tests.electors.scenes import Scene, new_elector, term_settings

WAIT = 3.0
"""Without drift, as long as the lease."""


def elector(me: int = 0, size: int = 3, *, term: int = 0, scouting: bool = True, now: float = 0.0) -> TermElector:
    return new_elector(term_settings(size, me, scouting=scouting), term=term, now=now)


def hear(machine: TermElector, sender: int, message: Message, now: float) -> list[TermEffect]:
    return machine.step(Said(sender, message), now)


def tick(machine: TermElector) -> tuple[float, list[TermEffect]]:
    """What it does at its deadline, and when that is."""
    now = machine.deadline
    return now, machine.step(TICK, now)


def follower(leader: int = 2, *, me: int = 0, size: int = 3, term: int = 5, now: float = 10.0) -> TermElector:
    """It owes nobody anything but `leader`, whose first heartbeat it has just heard."""
    machine = elector(me, size)
    hear(machine, leader, Heartbeat(term, 1), now)
    return machine


def candidate(*, size: int = 3, me: int = 0, term: int = 5) -> tuple[TermElector, float]:
    """It proposed itself under `term`, when it no longer owed anything."""
    machine = elector(me, size, term=term - 1, scouting=False)
    now, _ = tick(machine)
    return machine, now


def leader(*, size: int = 3, me: int = 0, term: int = 5) -> tuple[TermElector, float]:
    """It leads under `term`, by the support of peers 1 and so on, as many as it needs."""
    machine, now = candidate(size=size, me=me, term=term)
    for peer in range(1, machine.quorum):
        hear(machine, peer, Support(term, 0, 0.0, 0), now)
    return machine, now


def test_start_a_node_begins_as_follower_and_knows_no_leader() -> None:
    machine = elector()
    assert (Role.FOLLOWER, 0, None) == (machine.role, machine.term, machine.leader)


def test_start_it_looks_out_for_a_leader_for_a_wait_and_then_waits_for_a_random_time_more() -> None:
    settings = term_settings()
    deadlines = [new_elector(settings, seed=seed).deadline for seed in range(200)]
    assert WAIT <= min(deadlines) < WAIT + 0.1
    assert WAIT + settings.longest_wait - 0.1 < max(deadlines) <= WAIT + settings.longest_wait


def test_start_a_discovered_leader_is_followed_under_its_term_and_told_unasked_that_it_is_supported() -> None:
    machine = elector()
    told = hear(machine, 2, Heartbeat(7, 1), 1.0)
    assert (Role.FOLLOWER, 7, 2) == (machine.role, machine.term, machine.leader)
    assert [
        Became(Role.FOLLOWER, 7, 2, "peer 2 was discovered, which leads term 7"),
        Remember(7),
        Tell(2, Support(7, 1, WAIT - 1.0, 0)),
    ] == told


def test_stand_without_a_leader_it_proposes_itself_under_its_own_term_plus_one() -> None:
    machine = elector(term=4, scouting=False)
    _, told = tick(machine)
    assert [Became(Role.CANDIDATE, 5, None, "it found no leader"), Remember(5), Tell(None, Proposal(5))] == told


def test_missed_heartbeats_after_three_the_leader_is_gone_and_a_random_wait_begins() -> None:
    machine = follower(now=10.0)
    now, told = tick(machine)
    assert (10.0 + MISSES, [Became(Role.FOLLOWER, 5, None, "3 heartbeats of peer 2 were missed")]) == (now, told)
    assert now < machine.deadline <= now + 3.0


def test_missed_heartbeats_two_are_nothing() -> None:
    machine = follower(now=10.0)
    hear(machine, 2, Heartbeat(5, 4), 12.9)
    assert (2, 15.9) == (machine.leader, machine.deadline)


def test_missed_heartbeats_are_counted_by_the_slower_of_both_beats() -> None:
    """Or a follower that beats faster would miss a living leader again and again."""
    for beat, until in ((0.5, 13.0), (2.0, 16.0)):
        machine = follower(now=10.0)
        machine.step(Said(2, Heartbeat(5, 2), beat), 10.0)
        assert (2, until) == (machine.leader, machine.deadline)


@pytest.mark.parametrize("message", [Heartbeat, Proposal, InvalidHeartbeat, Ceded, Support, Scouted])
def test_a_term_that_no_number_of_elections_comes_to_is_no_term(message: type[Message]) -> None:
    """Above it there would be no other, and nobody could be elected again."""
    rest: dict[type[Message], tuple[Any, ...]] = {
        Heartbeat: (1,),
        Ceded: (1, None),
        Support: (0, 0.0, 0),
        Scouted: (1, True, False),
    }
    machine, now = candidate(term=5)
    before = vars(copy(machine))
    assert [] == hear(machine, 1, message(2**61, *rest.get(message, ())), now)
    assert before == vars(machine)


def test_proposal_of_a_higher_term_is_supported_and_its_term_taken_over() -> None:
    machine = elector(now=0.0)
    told = hear(machine, 1, Proposal(1), 3.0)
    assert ([Remember(1), Tell(1, Support(1, 0, 0.0, 0))], 1) == (told, machine.term)


@pytest.mark.parametrize("proposed", [4, 5])
def test_proposal_of_the_same_or_a_lower_term_is_rejected(proposed: int) -> None:
    machine = elector(term=5)
    assert [Tell(1, Rejection(5, proposed))] == hear(machine, 1, Proposal(proposed), 1.0)


def test_proposal_that_comes_twice_is_supported_twice_but_no_other_of_its_term() -> None:
    machine = elector()
    hear(machine, 1, Proposal(1), 3.0)
    assert [Tell(1, Support(1, 0, 0.0, 0))] == hear(machine, 1, Proposal(1), 3.0)
    assert [Tell(2, Rejection(1, 1))] == hear(machine, 2, Proposal(1), 3.0)


def test_proposal_of_a_higher_term_is_honoured_though_a_healthy_leader_is_perceived() -> None:
    machine = follower(2, term=5, now=10.0)
    told = hear(machine, 1, Proposal(6), 10.5)
    assert [
        Became(Role.FOLLOWER, 6, None, "peer 1 proposed itself under term 6"),
        Remember(6),
        Tell(1, Support(6, 0, 2.5, 0)),
    ] == told


def test_proposal_of_a_higher_term_makes_a_candidate_a_follower() -> None:
    """It names nobody for its successor: a peer that won against it would stand at once, were it to hear that late."""
    machine, now = candidate(term=5)
    told = hear(machine, 2, Proposal(6), now)
    assert [
        Became(Role.FOLLOWER, 6, None, "peer 2 proposed itself under term 6"),
        Tell(None, Ceded(5, 0, None)),
        Remember(6),
        Tell(2, Support(6, 0, 0.0, 0)),
    ] == told


def test_proposal_of_a_higher_term_makes_a_leader_a_follower() -> None:
    machine, now = leader(term=5)
    until = machine.acts_until
    told = hear(machine, 2, Proposal(6), now)
    assert [
        Became(Role.FOLLOWER, 6, None, "peer 2 proposed itself under term 6"),
        Remember(6),
        Tell(2, Support(6, 0, until - now, 0)),
    ] == told
    assert machine.tenure(now) is None


def test_heartbeat_of_a_higher_term_makes_a_leader_follow_and_support() -> None:
    machine, now = leader(term=5)
    until = machine.acts_until
    told = hear(machine, 2, Heartbeat(8, 3), now)
    assert (Role.FOLLOWER, 8, 2) == (machine.role, machine.term, machine.leader)
    assert Tell(2, Support(8, 3, until - now, 0)) == told[-1]


def test_heartbeat_of_a_higher_term_makes_a_candidate_follow_and_support() -> None:
    machine, now = candidate(term=5)
    assert [
        Became(Role.FOLLOWER, 8, 2, "peer 2 was discovered, which leads term 8"),
        Tell(None, Ceded(5, 0, None)),
        Remember(8),
        Tell(2, Support(8, 3, 0.0, 0)),
    ] == hear(machine, 2, Heartbeat(8, 3), now)


def test_heartbeat_of_its_own_term_makes_a_candidate_follow_whoever_won_that_term() -> None:
    machine, now = candidate(term=5)
    hear(machine, 2, Heartbeat(5, 1), now)
    assert (Role.FOLLOWER, 5, 2) == (machine.role, machine.term, machine.leader)


def test_majority_is_half_of_all_and_one_more() -> None:
    found = {}
    for size in range(1, 8):
        machine, now = candidate(size=size)
        votes = 1
        while machine.role is not Role.LEADER:
            hear(machine, votes, Support(5, 0, 0.0, 0), now)
            votes += 1
        found[size] = votes
    assert {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4} == found


def test_majority_makes_a_candidate_the_leader_and_it_sends_heartbeats_from_then_on() -> None:
    machine, now = candidate(term=5)
    told = hear(machine, 1, Support(5, 0, 0.0, 0), now)
    assert [Became(Role.LEADER, 5, 0, "2 of 3 support it"), Tell(None, Heartbeat(5, 1))] == told
    assert (now + 1.0, [Tell(None, Heartbeat(5, 2))]) == tick(machine)


@pytest.mark.parametrize("said", [Support(4, 0, 0.0, 0), Support(5, 0, inf, 0), Support(5, 0, nan, 0), Rejection(4, 4)])
def test_majority_has_none_of_those_who_answered_another_proposal_or_owe_what_is_no_time(said: Message) -> None:
    machine, now = candidate(term=5)
    for peer in (1, 2):
        hear(machine, peer, said, now)
    assert Role.CANDIDATE is machine.role


def test_majority_counts_each_node_once() -> None:
    machine, now = candidate(size=5)
    for _ in range(3):
        hear(machine, 1, Support(5, 0, 0.0, 0), now)
    assert Role.CANDIDATE is machine.role


def test_candidate_waits_for_answers_no_longer_than_its_time_out_and_tries_again_after_a_random_wait() -> None:
    machine, began = candidate(term=5)
    now, told = tick(machine)
    assert began + 3.0 == now
    reason = "1 of 3 supported its proposal in time, and 2 must"
    assert [Became(Role.FOLLOWER, 5, None, reason), Tell(None, Ceded(5, 0, None))] == told
    again, told = tick(machine)
    assert now + 1.0 <= again <= now + 1.0 + 3.0
    assert Tell(None, Proposal(6)) == told[-1]


def test_candidate_that_failed_does_not_hide_the_first_heartbeat_of_the_one_that_won_its_term() -> None:
    machine = elector(now=0.0)
    hear(machine, 1, Proposal(5), 10.0)
    hear(machine, 2, Ceded(5, 0, None), 10.0)
    assert Tell(1, Support(5, 1, 0.0, 0)) == hear(machine, 1, Heartbeat(5, 1), 10.0)[-1]


def test_candidate_that_all_have_answered_waits_no_longer() -> None:
    machine, now = candidate(term=5)
    assert [] == hear(machine, 1, Rejection(5, 5), now)
    told = hear(machine, 2, Rejection(5, 5), now)
    reason = "1 of 3 supported its proposal and the others rejected it, and 2 must"
    assert [Became(Role.FOLLOWER, 5, None, reason), Tell(None, Ceded(5, 0, None))] == told


@pytest.mark.parametrize("said", [Rejection(9, 5), InvalidHeartbeat(9), Support(9, 0, 0.0, 0)])
def test_candidate_that_hears_of_a_higher_term_takes_it_over(said: Message) -> None:
    machine, now = candidate(term=5)
    hear(machine, 1, said, now)
    assert (Role.FOLLOWER, 9) == (machine.role, machine.term)


def test_heartbeat_of_a_leader_under_a_later_term_is_supported_under_that_term_and_the_term_is_kept() -> None:
    machine = follower(2, term=5, now=10.0)
    told = hear(machine, 2, Heartbeat(7, 1), 11.0)
    assert [Remember(7), Tell(2, Support(7, 1, 0.0, 0))] == told


def test_stale_heartbeat_is_answered_by_invalid_heartbeat_with_ones_own_term() -> None:
    machine = elector(term=11)
    assert [Tell(2, InvalidHeartbeat(11))] == hear(machine, 2, Heartbeat(10, 44), 1.0)


def test_stale_heartbeat_the_leader_that_is_told_so_steps_down_and_stands_again_after_a_wait() -> None:
    machine, now = leader(term=10)
    told = hear(machine, 1, InvalidHeartbeat(11), now)
    assert [Became(Role.FOLLOWER, 11, None, "peer 1 is at term 11"), Remember(11)] == told
    at, told = tick(machine)
    assert now < at <= now + 3.0
    assert [Became(Role.CANDIDATE, 12, None, "it found no leader"), Remember(12), Tell(None, Proposal(12))] == told


def test_lost_majority_the_leader_steps_down_and_says_so() -> None:
    machine, now = leader(term=5)
    at, told = now, list[TermEffect]()
    while machine.role is Role.LEADER:
        at, told = tick(machine)
    assert now + 3.0 == at  # A lease after the proposal, which is the last that a majority answered.
    reason = "it lost its majority: for a lease, fewer than 2 of 3 supported it"
    assert [Became(Role.FOLLOWER, 5, None, reason), Tell(None, Ceded(5, 4, None))] == told


def test_lost_majority_is_noticed_when_it_is_lost_and_not_with_the_next_heartbeat() -> None:
    machine, now = leader(term=5)
    machine.beat_by(now + 0.5)
    assert [now + 0.5, now + 1.5, now + 2.5, now + 3.0] == [tick(machine)[0] for _ in range(4)]
    assert Role.FOLLOWER is machine.role


def test_scouting_asks_with_the_next_term_and_changes_nothing() -> None:
    machine = elector(term=4)
    _, told = tick(machine)
    assert ([Tell(None, Scouting(5, 1, 0))], Role.FOLLOWER, 4) == (told, machine.role, machine.term)


@pytest.mark.parametrize("machine", [elector(0, term=4), follower(1, term=5), leader(term=5)[0], candidate()[0]])
def test_scouting_changes_nothing_in_those_who_are_asked(machine: TermElector) -> None:
    now = max(0.0, machine.deadline - 0.1)
    machine.step(TICK, now)
    before = vars(copy(machine))
    hear(machine, 2, Scouting(99, 3, 0), now)
    assert before == vars(machine)


@pytest.mark.parametrize(("me", "yes"), [(0, True), (2, False)])
def test_scouting_is_answered_yes_by_a_lower_node_that_perceives_no_leader(me: int, yes: bool) -> None:
    machine = elector(me, term=4)
    told = hear(machine, 1, Scouting(9, 3, 0), 1.0)
    assert ([Tell(1, Scouted(4, 3, yes, led=False))], 4) == (told, machine.term)


def test_scouting_is_answered_yes_by_a_higher_node_that_does_not_want_to_lead() -> None:
    """One that closes leaves standing to others: if it said no, they would fail a few times before they proposed."""
    machine = elector(2, term=4)
    machine.stands = False
    assert [Tell(1, Scouted(4, 3, yes=True, led=False))] == hear(machine, 1, Scouting(9, 3, 0), 1.0)


def test_scouting_is_answered_no_by_whoever_perceives_a_leader() -> None:
    machine = follower(1, term=5)
    assert [Tell(2, Scouted(5, 3, yes=False, led=True))] == hear(machine, 2, Scouting(9, 3, 0), 10.0)


def test_scouting_is_answered_no_by_the_leader() -> None:
    machine, now = leader(term=5)
    assert [Tell(2, Scouted(5, 3, yes=False, led=True))] == hear(machine, 2, Scouting(9, 3, 0), now)


def test_scouting_that_a_majority_answers_with_yes_is_followed_by_the_proposal() -> None:
    machine = elector(term=4)
    now, _ = tick(machine)
    told = hear(machine, 1, Scouted(4, 1, yes=True, led=False), now)
    reason = "2 of 3 would support it"
    assert [Became(Role.CANDIDATE, 5, None, reason), Remember(5), Tell(None, Proposal(5))] == told


def test_scouting_learns_terms_and_proposes_above_them() -> None:
    machine = elector(term=4)
    now, _ = tick(machine)
    assert Tell(None, Proposal(10)) == hear(machine, 1, Scouted(9, 1, yes=True, led=False), now)[-1]


def test_scouting_without_a_majority_is_tried_again_after_a_wait_and_old_answers_do_not_count() -> None:
    machine = elector(term=4)
    tick(machine)
    now, told = tick(machine)
    assert [Tell(None, Scouting(5, 2, 0))] == told
    assert [] == hear(machine, 1, Scouted(4, 1, yes=True, led=False), now)


def test_scouting_ends_when_a_leader_is_discovered() -> None:
    machine = elector(term=4)
    now, _ = tick(machine)
    hear(machine, 2, Heartbeat(5, 1), now)
    hear(machine, 1, Scouted(4, 1, yes=True, led=False), now)
    assert (Role.FOLLOWER, 2) == (machine.role, machine.leader)


def test_starved_a_node_proposes_without_a_yes_when_rounds_failed_and_nobody_saw_a_leader() -> None:
    machine = elector(term=4)
    for round_ in range(1, STARVED_MAX + 1):
        now, told = tick(machine)
        assert [Tell(None, Scouting(5, round_, 0))] == told
        hear(machine, 1, Scouted(4, round_, yes=False, led=False), now)
    _, told = tick(machine)
    assert Tell(None, Proposal(5)) == told[-1]


@pytest.mark.parametrize(("led", "answered"), [(True, True), (False, False)])
def test_starved_is_nobody_whose_answers_see_a_leader_or_are_fewer_than_a_majority(led: bool, answered: bool) -> None:
    machine = elector(term=4)
    for round_ in range(1, 5 * STARVED_MAX):
        now, told = tick(machine)
        assert [Tell(None, Scouting(5, round_, 0))] == told
        if answered:
            hear(machine, 1, Scouted(4, round_, yes=False, led=led), now)


def starve(machine: TermElector, rounds: int) -> None:
    """So many rounds of scouting fail on end, though a majority answers and nobody sees a leader."""
    for _ in range(rounds):
        now, told = tick(machine)
        (asked,) = [effect.message for effect in told if isinstance(effect, Tell)]
        assert isinstance(asked, Scouting)
        hear(machine, 1, Scouted(machine.term, asked.round, yes=False, led=False), now)


def test_starved_counts_rounds_on_end_and_not_those_before_one_that_too_few_answered() -> None:
    machine = elector(term=4)
    starve(machine, STARVED_MAX - 1)
    tick(machine)
    starve(machine, STARVED_MAX)


def test_starved_counts_rounds_on_end_and_not_those_before_there_was_a_leader() -> None:
    machine = elector(term=4)
    starve(machine, STARVED_MAX - 1)
    now, _ = tick(machine)
    hear(machine, 1, Scouted(4, STARVED_MAX, yes=False, led=False), now)
    hear(machine, 2, Heartbeat(4, 1), now)
    tick(machine)  # It misses the leader again.
    starve(machine, STARVED_MAX)


def test_starved_a_node_scouts_again_after_a_proposal_that_failed() -> None:
    machine = elector(term=4)
    starve(machine, STARVED_MAX)
    for _ in range(2):
        tick(machine)  # It proposes itself, and nobody answers.
    starve(machine, STARVED_MAX)


def test_sequence_a_leader_numbers_what_it_sends_from_its_term_on() -> None:
    machine, _ = leader(term=5)
    sent = [machine.step(TICK, machine.deadline)[-1] for _ in range(2)]
    assert [Tell(None, Heartbeat(5, 2)), Tell(None, Heartbeat(5, 3))] == sent


def test_sequence_begins_anew_with_each_term_that_a_node_leads() -> None:
    machine, _ = leader(term=5)
    now, told = tick(machine)
    assert [Tell(None, Heartbeat(5, 2))] == told
    hear(machine, 2, Proposal(6), now)
    machine.step(Stand(), now)
    assert Tell(None, Heartbeat(7, 1)) == hear(machine, 1, Support(7, 0, 0.0, 0), now)[-1]


def test_sequence_numbers_are_compared_as_pairs_and_stale_ones_ignored() -> None:
    machine = follower(2, term=4, now=10.0)
    hear(machine, 2, Heartbeat(4, 1000), 10.5)
    assert [] == hear(machine, 2, Heartbeat(4, 1000), 12.0)
    assert [] == hear(machine, 2, Heartbeat(4, 999), 12.0)
    assert 13.5 == machine.deadline
    assert Tell(1, Support(5, 1, 1.5, 0)) == hear(machine, 1, Heartbeat(5, 1), 12.0)[-1]


def test_sequence_of_a_second_leader_of_one_term_is_not_followed() -> None:
    """It takes a node that forgot its term. Whom it hears first, a follower keeps."""
    machine = follower(2, term=5, now=10.0)
    assert ([], 2) == (hear(machine, 1, Heartbeat(5, 9), 10.5), machine.leader)


def test_any_node_may_lead_that_an_operator_names_and_it_asks_nobody_before() -> None:
    machine = follower(2, term=5)
    told = machine.step(Stand(), 10.5)
    reason = "an operator named it"
    assert [Became(Role.CANDIDATE, 6, None, reason), Remember(6), Tell(None, Proposal(6))] == told
    assert [] == machine.step(Stand(), 10.6)  # Or an operator who repeats it would take the votes away each time.


def test_whoever_does_not_want_to_lead_votes_and_does_not_stand_for_any_reason() -> None:
    machine = follower(2, term=5, now=10.0)
    machine.stands = False
    assert [] == machine.step(Stand(), 10.0)
    hear(machine, 2, Ceded(5, 2, 0), 10.5)
    assert (Role.FOLLOWER, 5, None) == (machine.role, machine.term, machine.leader)
    assert [[]] * 2 == [machine.step(TICK, at) for at in (machine.deadline, 99.0)]
    assert inf == machine.deadline
    assert Tell(1, Support(6, 0, 0.0, 0)) == hear(machine, 1, Proposal(6), 100.0)[-1]


def test_dormant_is_a_peer_that_is_no_replica() -> None:
    machine = new_elector(term_settings(4, 3, policy="priority", replicas=3))
    assert (Role.DORMANT, inf) == (machine.role, machine.deadline)
    assert [] == hear(machine, 1, Proposal(4), 9.0)


def test_strangers_to_the_partition_are_not_heard() -> None:
    machine = new_elector(term_settings(4, 0, policy="priority", replicas=3))
    assert [] == hear(machine, 3, Proposal(4), 1.0)


# The lease on top


def test_lease_a_leader_may_act_until_a_lease_after_it_sent_what_a_majority_answered() -> None:
    machine, now = leader(term=5)
    assert (5, now + 3.0, None) == (machine.tenure(now), machine.acts_until, machine.tenure(now + 3.0))
    at, _ = tick(machine)
    hear(machine, 1, Support(5, 2, 0.0, 0), at + 0.5)
    assert at + 3.0 == machine.acts_until


def test_lease_an_answer_that_comes_late_takes_nothing_back() -> None:
    machine, _ = leader(term=5)
    at, _ = tick(machine)
    hear(machine, 1, Support(5, 2, 0.0, 7), at)
    hear(machine, 1, Support(5, 1, 0.0, 3), at + 0.1)
    assert (at + 3.0, 7) == (machine.acts_until, machine.heard_priority(1))


def test_lease_an_answer_that_takes_longer_than_a_heartbeat_prolongs_it_all_the_same() -> None:
    machine, _ = leader(term=5)
    at, _ = tick(machine)
    later, _ = tick(machine)
    hear(machine, 1, Support(5, 2, 0.0, 0), later + 0.5)
    assert at + 3.0 == machine.acts_until


def test_lease_an_answer_to_what_was_sent_more_than_a_lease_ago_prolongs_nothing() -> None:
    machine, now = leader(term=5)
    at, _ = tick(machine)
    hear(machine, 1, Support(5, 77, 0.0, 0), at + 0.5)
    assert now + 3.0 == machine.acts_until


def test_lease_of_one_that_leads_for_long_takes_no_more_memory_than_at_first() -> None:
    alone = elector(size=1)
    sizes = []
    for _ in range(2):
        for _ in range(100):
            tick(alone)
        sizes.append({name: len(value) for name, value in vars(alone).items() if isinstance(value, dict)})
    assert sizes[0] == sizes[1]


def test_lease_owed_by_a_voter_is_waited_for() -> None:
    machine, now = candidate(term=5)
    hear(machine, 1, Support(5, 0, 2.5, 0), now)
    assert (Role.LEADER, now + 2.5, None) == (machine.role, machine.acts_from, machine.tenure(now))


def test_lease_a_leader_that_waits_until_nothing_is_owed_is_woken_then() -> None:
    machine, now = candidate(term=5)
    hear(machine, 1, Support(5, 0, 2.5, 0), now)
    assert [now + 1.0, now + 2.0, now + 2.5, now + 3.0] == [tick(machine)[0] for _ in range(4)]


def test_lease_only_a_majority_must_owe_nothing() -> None:
    machine, now = candidate(term=5)
    hear(machine, 1, Support(5, 0, 2.5, 0), now)
    hear(machine, 2, Support(5, 1, 0.0, 0), now + 0.1)
    assert 5 == machine.tenure(now + 0.1)


def test_lease_a_candidate_that_is_not_elected_yet_is_not_elected_by_what_answers_no_proposal() -> None:
    machine, now = candidate(term=5)
    hear(machine, 1, Support(5, 3, 0.0, 0), now)
    assert Role.CANDIDATE is machine.role


def test_owed_is_what_promises_to_others_still_run() -> None:
    machine = follower(2, term=5, now=10.0)
    assert Tell(1, Support(6, 0, 2.0, 0)) == hear(machine, 1, Proposal(6), 11.0)[-1]
    assert Tell(1, Support(6, 1, 1.5, 0)) == hear(machine, 1, Heartbeat(6, 1), 11.5)[-1]


def test_owed_by_a_process_that_starts_is_a_whole_wait_to_everybody() -> None:
    machine = elector(now=100.0)
    assert Tell(1, Support(6, 0, WAIT, 0)) == hear(machine, 1, Proposal(6), 100.0)[-1]


def test_owed_is_nothing_to_a_leader_that_ceded() -> None:
    machine = follower(2, term=5, now=10.0)
    hear(machine, 2, Ceded(5, 2, None), 10.5)
    assert Tell(1, Support(6, 0, 0.0, 0)) == hear(machine, 1, Proposal(6), 10.5)[-1]


def test_owed_by_a_leader_that_is_unseated_is_the_rest_of_its_lease_to_everybody() -> None:
    """Its program was told that end. Clients of an agent act on it, and hear of the loss after the next leader does."""
    machine, now = leader(term=5)
    until = machine.acts_until
    told = hear(machine, 2, Proposal(6), now + 1.0)
    assert Tell(2, Support(6, 0, until - (now + 1.0), 0)) == told[-1]
    assert not any(isinstance(effect, Tell) and isinstance(effect.message, Ceded) for effect in told)
    hear(machine, 2, Ceded(6, 0, None), now + 1.0)
    machine.step(Stand(), now + 1.0)
    hear(machine, 1, Support(7, 0, 0.0, 0), now + 1.0)
    assert until == machine.acts_from


def test_owed_by_a_leader_that_is_unseated_lasts_as_long_on_the_slowest_clock() -> None:
    settings = msgspec.structs.replace(term_settings(3), drift=0.01)
    machine = new_elector(settings, term=4)
    machine.step(Stand(), 10.0)
    hear(machine, 1, Support(5, 0, 0.0, 0), 10.0)
    assert 13.0 == machine.acts_until
    told = hear(machine, 2, Proposal(6), 11.0)[-1]
    assert isinstance(told, Tell)
    assert isinstance(told.message, Support)
    assert told.message.owed == pytest.approx(2.0 + settings.wait - settings.lease)


def test_owed_to_its_own_program_is_the_rest_of_a_lease_whoever_else_votes_for_it() -> None:
    machine, now = leader(term=5)
    until = machine.acts_until
    hear(machine, 2, Proposal(6), now + 1.0)
    machine.step(Stand(), now + 1.0)
    for peer in (1, 2):
        hear(machine, peer, Support(7, 0, 0.0, 0), now + 1.0)
    assert until == machine.acts_from


def test_owed_to_the_program_of_its_older_self_is_a_whole_wait_whoever_else_votes_for_it() -> None:
    """It may have led when it was killed, and a client that it lent its lease to lives."""
    machine = elector(term=5)
    machine.step(Stand(), 0.5)
    for peer in (1, 2):
        hear(machine, peer, Support(6, 0, 0.0, 0), 0.6)
    assert (Role.LEADER, WAIT) == (machine.role, machine.acts_from)


def test_owed_to_the_program_of_its_older_self_is_not_taken_back_by_a_proposal_that_fails() -> None:
    machine = elector(term=5)
    machine.step(Stand(), 0.5)
    hear(machine, 1, Rejection(6, 6), 0.6)
    told = hear(machine, 2, Rejection(6, 6), 0.6)
    reason = "1 of 3 supported its proposal and the others rejected it, and 2 must"
    assert [Became(Role.FOLLOWER, 6, None, reason)] == told  # And no Ceded, which would end promises to the older self.


def test_owed_is_nothing_by_a_leader_that_is_unseated_before_it_acted() -> None:
    machine, now = candidate(term=5)
    hear(machine, 1, Support(5, 0, 2.0, 0), now)
    told = hear(machine, 2, Proposal(6), now + 1.0)
    assert (Tell(None, Ceded(5, 2, 2)), Tell(2, Support(6, 0, 0.0, 0))) == (told[1], told[-1])


def test_owed_is_still_what_was_promised_under_a_later_term_than_the_ceded_one() -> None:
    machine = follower(2, term=5, now=10.0)
    hear(machine, 2, Ceded(4, 2, None), 10.5)
    assert Tell(1, Support(6, 0, 2.5, 0)) == hear(machine, 1, Proposal(6), 10.5)[-1]


def test_owed_to_others_counts_for_ones_own_vote_too() -> None:
    machine = follower(2, term=5, now=10.0)
    machine.step(Stand(), 11.0)
    hear(machine, 1, Support(6, 0, 0.0, 0), 11.0)
    assert 13.0 == machine.acts_from


def test_ceded_a_late_heartbeat_does_not_bring_the_leader_back() -> None:
    machine = follower(2, term=5, now=10.0)
    hear(machine, 2, Ceded(5, 3, None), 10.5)
    assert ([], None) == (hear(machine, 2, Heartbeat(5, 2), 10.6), machine.leader)


def test_transfer_a_leader_cedes_and_the_one_it_names_proposes_at_once() -> None:
    machine, now = leader(term=5)
    told = machine.step(Cede(2), now)
    assert [Became(Role.FOLLOWER, 5, None, "it ceded to peer 2"), Tell(None, Ceded(5, 2, 2))] == told
    successor = follower(0, me=2, term=5)
    told = hear(successor, 0, Ceded(5, 2, 2), 10.5)
    assert [Became(Role.CANDIDATE, 6, None, "peer 0 ceded to peer 2"), Remember(6), Tell(None, Proposal(6))] == told


def test_transfer_the_others_leave_the_named_one_time_to_be_elected() -> None:
    machine = follower(2, term=5, now=10.0)
    hear(machine, 2, Ceded(5, 2, 1), 10.5)
    assert 10.5 + MISSES <= machine.deadline


def test_transfer_under_an_older_term_that_comes_late_is_no_reason_to_stand() -> None:
    machine = follower(2, term=5, now=10.0)
    hear(machine, 1, Proposal(6), 10.5)
    assert ([], 6) == (hear(machine, 2, Ceded(5, 2, 0), 10.6), machine.term)


def test_memory_a_term_is_above_the_base_and_none_that_was_kept_above_it_is_forgotten() -> None:
    begun = [new_elector(term_settings(term_base=1000), term=kept).term for kept in (0, 5, 2000)]
    assert [1000, 1000, 2000] == begun


def test_memory_the_term_is_kept_before_a_vote_or_a_proposal_is_sent() -> None:
    machine = elector(scouting=False)
    for told in (hear(machine, 1, Proposal(3), 1.0), tick(machine)[1]):
        kinds = [type(effect) for effect in told]
        assert kinds.index(Remember) < kinds.index(Tell)


def test_memory_a_restarted_node_that_kept_its_term_does_not_vote_twice_in_it() -> None:
    hear(machine := elector(), 1, Proposal(1), 3.0)
    restarted = elector(term=machine.term, now=4.0)
    assert [Tell(2, Rejection(1, 1))] == hear(restarted, 2, Proposal(1), 4.0)


def test_memory_a_restarted_node_that_forgot_its_term_votes_twice_in_it_and_two_lead_it() -> None:
    """They would not act at once, as who starts owes a wait; but nothing downstream could tell one from the other."""
    voter = elector(0)
    first, second = elector(1, scouting=False), elector(2, scouting=False)
    for proposer in (first, second):
        proposer.step(Stand(), 10.0)
        (yes,) = [e.message for e in hear(voter, proposer.me, Proposal(proposer.term), 10.0) if isinstance(e, Tell)]
        hear(proposer, 0, yes, 10.0)
        voter = elector(0, term=0, now=10.0)
    assert [(Role.LEADER, 1), (Role.LEADER, 1)] == [(first.role, first.term), (second.role, second.term)]


def test_a_late_event_does_not_hide_the_silence_before_it() -> None:
    machine, now = leader(term=5)
    told = hear(machine, 1, Support(5, 1, 0.0, 0), now + 3.0)
    assert (Role.FOLLOWER, Became) == (machine.role, type(told[0]))


def test_a_copy_goes_its_own_way() -> None:
    machine, now = leader(term=5)
    other = copy(machine)
    before = dict(vars(machine))
    for event in (TICK, Said(1, Support(5, 1, 0.0, 0)), Said(2, Proposal(9)), TICK):
        other.step(event, now + 1.0)
    assert before == vars(machine)


def test_messages_are_read_as_they_were_written() -> None:
    messages: list[Message] = [
        *(Proposal(1), Support(1, 2, 0.5, 3), Rejection(2, 1), Heartbeat(1, 2), InvalidHeartbeat(3)),
        *(Scouting(1, 2, 3), Scouted(1, 2, yes=True, led=False), Ceded(1, 2, None), Ceded(1, 2, 0)),
    ]
    assert messages == msgspec.msgpack.decode(msgspec.msgpack.encode(messages), type=list[Message])


@pytest.mark.parametrize(
    "written", [["H", -1, 2], ["H", 2**62, 2], ["H", 1.5, 2], ["Z", 1], ["H"], ["S", 1, 0, "x", 0]]
)
def test_messages_with_impossible_terms_are_not_read(written: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=Message)


def test_a_group_elects_one_leader_whom_all_follow() -> None:
    scene = Scene(5)
    scene.run(30.0)
    assert scene.acting is not None
    assert {scene.acting[0]} == set(scene.followed.values())


def test_heartbeats_that_are_to_be_sent_together_are_not_put_off() -> None:
    machine, now = leader(term=5)
    machine.beat_by(now + 9.0)
    assert now + 1.0 == machine.deadline


def test_deadline_lies_ahead_once_a_leader_may_act_in_the_very_step_that_made_it_one() -> None:
    """Or its driver would step it twice at one moment: `neli simulate --protocol term --seed 0x1e`."""
    alone = elector(size=1)
    now, _ = tick(alone)
    assert (alone.term, True) == (alone.tenure(now), alone.deadline > now)
