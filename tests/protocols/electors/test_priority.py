"""Zeebe's proposal: the order in which peers stand by priority, and what its text leaves open."""

from itertools import pairwise
from random import Random

import pytest

from neli_router.protocols.electors.priority import DECAY, Priorities, RandomWait, assign, electorate
from neli_router.protocols.electors.settings import MISSES
from neli_router.protocols.protocol import TICK
from neli_router.protocols.term.elector import (
    Cede,
    Ceded,
    Heartbeat,
    Proposal,
    Role,
    Said,
    Scouted,
    Scouting,
    Support,
    Tell,
    TermElector,
)
from tests.protocols.electors.scenes import Scene, new_elector, term_settings


def test_assignment_is_as_in_the_tables_of_the_text_and_spreads_the_partitions_of_a_dead_node_over_two() -> None:
    """Node 0 of four is the primary of partitions 1, 5 and 9; node 1 the secondary of 1 and 9, node 2 of 5."""
    table = [(3, 1, 1, 3, 2, 2), (2, 3, 2, 1, 3, 1), (1, 2, 3, 2, 1, 3)]
    assert table == list(zip(*(assign(partition, 3, 3) for partition in range(6)), strict=True))
    rows = {number: assign(number - 1, 4, 3) for number in range(1, 13)}
    primary = {number: row for number, row in rows.items() if row[0] == 3}
    assert {1: (3, 2, 1, 0), 5: (3, 1, 2, 0), 9: (3, 2, 1, 0)} == primary


@pytest.mark.parametrize(("size", "factor"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 5), (7, 3)])
def test_assignment_gives_each_replica_a_priority_of_its_own_from_one_to_the_factor(size: int, factor: int) -> None:
    for partition in range(4 * size):
        row = assign(partition, size, factor)
        assert [0] * (size - factor) + list(range(1, factor + 1)) == sorted(row)


def test_electorate_is_everybody_at_random_or_the_replicas_and_a_target_the_best_but_the_lost_leader() -> None:
    settings = term_settings(4)
    assert ((0, 1, 2, 3), RandomWait(settings.longest_wait)) == electorate(settings, 0)
    settings = term_settings(4, 1, policy="priority", replicas=3, partitions=8)
    assert ((0, 1, 2), Priorities((3, 1, 2, 0), 1, 0.5)) == electorate(settings, 4)
    priorities = Priorities((3, 2, 1), 0, 0.5)
    assert [3, 2, 3, 3] == [priorities.target(lost) for lost in (None, 0, 1, 2)]
    assert 1 == DECAY, "or two peers of different priorities might stand at one target"


def waiting(me: int, *, size: int = 3) -> TermElector:
    """An elector that has just missed its leader, peer 0."""
    machine = new_elector(term_settings(size, me, policy="priority"))
    machine.step(Said(0, Heartbeat(4, 1)), 10.0)
    machine.step(TICK, 10.0 + MISSES)
    return machine


def time_outs(machine: TermElector) -> list[float]:
    """When its time-outs end until it scouts, counted from the missed leader."""
    found = []
    while True:
        now = machine.deadline
        found.append(now - 10.0 - MISSES)
        if machine.step(TICK, now):
            return found


def test_time_out_a_node_stands_at_its_target_which_falls_by_one_and_a_secondary_of_a_lost_primary_at_once() -> None:
    """Partition 0 of five: the peers' priorities are 5 to 1, and peer 0 was lost."""
    assert [1, 2, 3, 4] == [len(time_outs(waiting(me, size=5))) for me in (1, 2, 3, 4)]
    assert time_outs(waiting(1))[0] <= 0.5
    first, second = time_outs(waiting(2))
    assert 1.0 <= second - first <= 1.5 < MISSES


def test_time_out_the_target_is_the_first_one_again_after_a_failed_round_and_scouting_compares_priorities_first() -> (
    None
):
    machine = waiting(2)
    time_outs(machine)
    failed_at = machine.deadline
    assert [] == machine.step(TICK, failed_at)  # No peer answered: from now on it lowers its target again.
    assert machine.deadline > failed_at
    assert [Tell(None, Scouting(5, 2, 1))] == machine.step(TICK, machine.deadline)
    machine = waiting(2)
    now = 10.0 + MISSES + time_outs(machine)[-1]
    told = machine.step(Said(1, Scouted(4, 1, yes=True, led=False)), now)
    assert Tell(None, Proposal(5)) == told[-1]
    told = machine.step(TICK, machine.deadline)
    assert Tell(None, Ceded(5, 0, None)) == told[-1]
    assert [] == machine.step(TICK, machine.deadline)  # No peer supported it: again it lowers its target first.
    assert [Tell(None, Scouting(6, 2, 1))] == machine.step(TICK, machine.deadline)
    for me, scout in ((1, 2), (2, 1)):
        told = waiting(me).step(Said(scout, Scouting(5, 1, {1: 2, 2: 1}[scout])), 13.0)
        assert [Tell(scout, Scouted(4, 1, yes=scout == 1, led=False))] == told


@pytest.mark.parametrize("size", [3, 5, 7])
def test_bound_a_leader_is_there_within_as_many_time_outs_as_a_majority_and_one_more(size: int) -> None:
    """The text's bound, also if a whole minority dies together with the leader, whichever peer that is."""
    time_out = MISSES + 0.5
    for seed in range(10):
        scene = Scene(size, policy="priority", seed=seed)
        scene.run(20.0)
        rng = Random(seed)
        victims = [0, *rng.sample(range(1, size), size // 2 - 1)]
        for victim in victims:
            scene.kill("ABCDEFG"[victim])
        scene.run(20.0 + (size // 2 + 2) * time_out)
        assert [Role.LEADER] == [e.role for e in scene.electors.values() if e.role is not Role.FOLLOWER]


@pytest.mark.parametrize("scouting", [True, False])
@pytest.mark.parametrize("size", [3, 5])
def test_loop_peers_of_one_priority_that_start_together_elect_a_leader(size: int, scouting: bool) -> None:
    """The text fears that all stand at the same time, again and again. Chance separates them, even without scouting."""
    for seed in range(15):
        scene = Scene(size, policy="priority", scouting=scouting, equals=True, seed=seed)
        scene.run(30.0)
        assert scene.acting is not None


def leading(me: int, *supporters: tuple[int, int], until: float) -> tuple[TermElector, float]:
    """A leader of partition 0 of three peers; these support it from the beginning until then, with their priorities."""
    machine = new_elector(term_settings(3, me, policy="priority", scouting=False))
    now = 0.0
    while now < until:
        now = machine.deadline
        for effect in machine.step(TICK, now):
            if isinstance(effect, Tell) and isinstance(effect.message, Proposal | Heartbeat):
                counter = effect.message.counter if isinstance(effect.message, Heartbeat) else 0
                for peer, priority in supporters:
                    machine.step(Said(peer, Support(effect.message.term, counter, 0.0, priority)), now)
    return machine, now


def supported(machine: TermElector, *supporters: tuple[int, int]) -> float:
    """Let it send its next heartbeat, and let these support it, with their priorities."""
    now = machine.deadline
    (told,) = machine.step(TICK, now)
    assert isinstance(told, Tell)
    assert isinstance(told.message, Heartbeat)
    for peer, priority in supporters:
        machine.step(Said(peer, Support(told.message.term, told.message.counter, 0.0, priority)), now)
    return now


def test_preferred_is_the_best_peer_above_the_leader_that_has_supported_it_for_three_time_outs() -> None:
    early, later = (leading(1, (0, 3), (2, 1), until=until) for until in (10.0, 25.0))
    assert [None, 0] == [machine.preferred(now) for machine, now in (early, later)]
    machine, now = leading(0, (1, 2), (2, 1), until=25.0)
    assert None is machine.preferred(now)
    machine.prefer(0)
    assert 1 == machine.preferred(now)
    machine.prefer(None)
    assert None is machine.preferred(now)


def test_preferred_is_nobody_after_a_silence_of_a_time_out_and_whoever_ceded_waits_for_a_beat_longer() -> None:
    machine, now = leading(1, (0, 3), (2, 1), until=25.0)
    for beat in range(2 * MISSES):
        now = supported(machine, (2, 1), *([(0, 3)] if beat >= MISSES else []))
        assert None is machine.preferred(now + 0.5) or beat < MISSES - 1
    machine, now = leading(1, (0, 3), (2, 1), until=25.0)
    machine.step(Cede(0), now)
    assert now + MISSES + 1.0 <= machine.deadline <= now + MISSES + 1.5


def test_a_returning_primary_is_given_its_leadership_at_once_and_tried_less_and_less_often_if_it_cannot_win() -> None:
    for seed in range(5):
        scene = Scene(3, policy="priority", transfers=True, seed=seed)
        scene.run(10.0)
        scene.kill("A")
        scene.run(20.0)
        assert scene.acting == ("B", 2)
        scene.restart("A")
        scene.run(50.0)
        assert [("A", 1), ("B", 2), ("A", 3)] == scene.leaders
        ceded = min(at for at, peer, message in scene.sent if peer == 1 and isinstance(message, Ceded))
        assert scene.acted_at[2] <= ceded + 5 * scene.delay
    # A reaches only B, who leads. A supports B, and has no majority of five when B cedes.
    scene = Scene(5, policy="priority", transfers=True)
    scene.run(10.0)
    scene.kill("A")
    scene.cut("A", "CDE")
    scene.run(20.0)
    scene.restart("A")
    scene.run(1000.0)
    attempts = sorted({at for at, _, message in scene.sent if isinstance(message, Ceded) and message.to == 0})
    gaps = [later - sooner for sooner, later in pairwise(attempts)]
    assert 2 <= len(attempts) <= 7
    assert sorted(gaps) == gaps
