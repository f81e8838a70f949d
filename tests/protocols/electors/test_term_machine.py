"""Councils: the electors of all partitions of a few members, connected by a network that loses nothing."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from neli_router.errors import LedgerUnusable
from neli_router.protocols.electors.events import BODY_MAX, Heard, Keep, Nominate, PeerEffect, Prefer, Rebalance, Send
from neli_router.protocols.electors.priority import LEAST
from neli_router.protocols.protocol import TICK, Acquired, Close, Fenced, Notice, Revoked
from neli_router.protocols.term.elector import CAUSES, Ceded, Heartbeat, Message, Proposal, Role, Support
from neli_router.protocols.term.machine import Body, TermMachine, packed
from tests.protocols.electors.peer_scenes import BEAT, LEASE, Council, council_settings, played
from tests.protocols.rules import Rule, stories_in


def elected(**options: Any) -> Council:
    scene = Council(**options)
    scene.await_leaders()
    return scene


def settled(**options: Any) -> Council:
    """A scene whose leaders have led for a while."""
    scene = elected(**options)
    scene.advance(5.0)
    return scene


@pytest.mark.parametrize("story", stories_in(*(Path(__file__).parent / "transcripts").glob("council_*.txt")))
def test_a_story_goes_as_written_down(story: Rule, pytestconfig: pytest.Config) -> None:
    story.require(played, pytestconfig)


def test_priorities_share_the_partitions_out_among_their_replicas_and_a_restart_goes_on_with_the_terms_on_disk() -> (
    None
):
    scene = settled()
    assert [2, 2, 2] == scene.shares()
    disks = scene.disks
    scene.disks = dict.fromkeys(disks, b"")
    scene.advance(10 * BEAT)
    assert [b""] * 3 == [*scene.disks.values()], "nothing is written while leaders stay"
    scene.disks = disks
    for me in range(3):
        scene.kill(me)
    scene.advance(1.0)
    for me in range(3):
        scene.start(me)
    scene.await_leaders()  # The scene fails if a term does not grow.
    scene = elected(size=4, partitions=12, replicas=3)
    assert [9, 9, 9, 9] == [len(one.electors) for one in scene.members.values()]
    assert [3, 3, 3, 3] == scene.shares()
    scene.step(3, Nominate(3, (0,)))  # It is not a replica of this partition.
    scene.advance(1.0)
    assert [3, 3, 3, 3] == scene.shares()
    machine = TermMachine(council_settings(3, size=4, partitions=1, replicas=3), b"", 0.0, rng=Random(7))
    assert ({}, False) == (machine.electors, machine.drained), "a replica of nothing is not drained"


def test_all_heartbeats_to_one_peer_are_sent_together_in_one_body_that_no_network_splits() -> None:
    scene = elected(partitions=64)
    scene.advance(5 * BEAT)
    before = scene.sent.total()
    scene.advance(10 * BEAT)
    # Each of three members sends heartbeats to two peers, and each is answered.
    assert 12 == (scene.sent.total() - before) / 10
    said: dict[Message, list[int]] = {Heartbeat(2**52 + i, 2**40): list(range(4096)) for i in range(40)}
    bodies = packed(1.5, 3, False, said, [(4095, 199)] * 1000)
    assert max(map(len, bodies)) <= BODY_MAX
    heard = [msgspec.msgpack.decode(body) for body in bodies]
    assert 40 * 4096 == sum(len(partitions) for one in heard for _, partitions in one[2])
    assert 1000 == sum(len(one[3]) for one in heard)


def test_nothing_is_passed_to_a_preferred_member_that_closes_nor_by_one_that_closes_to_a_drained_one() -> None:
    scene = elected()
    scene.kill(0)
    scene.await_leaders()
    scene.start(0)
    scene.busy.add(0)
    scene.advance(0.5)
    scene.step(0, Nominate(0, (1,)))
    scene.advance(0.1)
    assert 0 == scene.led()[1][0]
    scene.step(0, Close())
    scene.told.clear()
    scene.advance(4.0)
    assert 0 == scene.led()[1][0]
    assert [] == scene.events(1, Revoked) + scene.events(2, Revoked)
    scene = elected()
    scene.step(2, Prefer(dict.fromkeys(range(6), LEAST)))
    scene.advance(5.0)
    assert [3, 3, 0] == scene.shares()
    scene.step(0, Close())
    scene.advance(0.1)
    assert {1} == {me for me, _ in scene.led().values()}
    assert 6 == len(scene.led())
    assert [] == scene.events(2, Acquired)[2:]


def test_when_a_leader_dies_others_share_its_partitions_and_count_what_became_of_each() -> None:
    scene = settled(partitions=60)
    counted = {me: scene.members[me].transitions.copy() for me in (1, 2)}
    scene.kill(0)
    scene.await_leaders()
    assert [30, 30] == scene.shares()  # The alternation of Zeebe's rule.
    scene.advance(1.0)  # Until each has heard the other's priorities.
    for me in (1, 2):
        transitions = scene.members[me].transitions
        assert set(CAUSES) == set(transitions)
        assert 20 == transitions["follower", "leader_missed"] - counted[me]["follower", "leader_missed"]
        assert 10 == transitions["leader", "elected"] - counted[me]["leader", "elected"]
        assert 20 == scene.members[me].leader_changes


def test_terms_that_grow_in_one_step_are_kept_before_anything_is_sent_also_those_outside_of_a_smaller_layout() -> None:
    machine = TermMachine(council_settings(0, size=1), b"", 0.0, rng=Random(7))
    kinds: list[str] = []
    for _ in range(1000):
        kinds += [type(effect).__name__ for effect in machine.step(TICK, machine.deadline)]
        if len(machine.leading) == 6:
            break
    assert "Keep" == kinds[0]
    assert kinds.count("Acquired") >= kinds.count("Keep")
    assert all(("Acquired", "Keep") != pair or kinds.count("Keep") > 1 for pair in pairwise(kinds))
    scene = elected(partitions=6)
    memory = scene.disks[0]
    small = TermMachine(council_settings(0, size=1, partitions=2), memory, 0.0, rng=Random(7))
    kept = [
        effect.memory for _ in range(100) for effect in small.step(TICK, small.deadline) if isinstance(effect, Keep)
    ]
    lowest, above, *_ = msgspec.msgpack.decode(kept[-1])
    assert 6 == len(above)
    assert lowest > 0
    assert {1001} == {term for event in elected(term_base=1000).events(1, Acquired) for term in event.terms.values()}


def test_a_member_that_hears_of_several_leaders_at_once_tells_of_the_last_one_last() -> None:
    machine = TermMachine(council_settings(0), b"", 0.0, rng=Random(1))
    heard: list[tuple[int, Message, list[int]]] = [
        (1, Heartbeat(4, 1), [0, 1, 2]),
        (1, Ceded(4, 2, None), [0, 1]),
        (2, Heartbeat(5, 1), [0]),
        (1, Heartbeat(6, 1), [0]),
    ]
    effects: list[PeerEffect] = []
    for sender, message, partitions in heard:
        for body in packed(LEASE, 3, False, {message: partitions}, []):
            effects += machine.step(Heard(sender, body), 0.01)
    effects += machine.step(TICK, 0.01 + BEAT)
    told = [(one.event, one.fields) for one in effects if isinstance(one, Notice)]
    found = "p1:1 was discovered, which leads term"
    assert [
        ("leader.ceded", {"peer": "p1:1", "partitions": "0-1", "count": 2, "reason": "p1:1 ceded"}),
        ("leader.found", {"peer": "p1:1", "partitions": "0,2", "count": 2, "reason": f"partition 0: {found} 6"}),
    ] == told


def test_a_candidate_that_closes_passes_on_what_it_still_wins() -> None:
    scene = settled()
    scene.busy.add(0)
    scene.kill(1)
    elector = scene.members[0].electors[4]
    scene.advance(5.0, until=lambda: elector.role is Role.CANDIDATE)
    scene.step(0, Close())
    scene.advance(BEAT)
    assert 1 <= scene.members[0].transitions["follower", "ceded"]
    assert 2 == scene.led()[4][0]


def test_an_operators_word_that_came_to_nothing_is_forgotten_and_what_it_brought_stays_until_it_is_rebalanced() -> None:
    scene = elected(partitions=1)
    assert 0 == scene.led()[0][0]
    scene.cut([1], [0, 2])
    scene.advance(3.0)
    scene.step(1, Nominate(1))
    scene.advance(3.0)
    scene.heal()
    scene.advance(10.0)
    assert 0 == scene.led()[0][0]
    scene.kill(0)
    scene.await_leaders()
    scene.start(0)
    scene.advance(15.0)
    assert 0 == scene.led()[0][0]  # Its primary. A member that an operator named for it would keep it.
    scene = settled()
    scene.step(0, Nominate(2))
    scene.step(1, Nominate(2))
    scene.advance(10.0)
    assert [0, 0, 6] == scene.shares()
    scene.kill(0)
    scene.advance(1.0)
    scene.step(2, Rebalance())
    scene.advance(1.0)
    scene.start(0)
    scene.advance(10.0)
    assert [2, 2, 2] == sorted(scene.shares())


def test_nothing_is_given_to_a_named_peer_that_does_not_live_and_what_a_program_was_asked_for_is_given_away() -> None:
    scene = elected(policy="random", partitions=1)
    leader = scene.led()[0][0]
    dead = (leader + 1) % 3
    scene.kill(dead)
    scene.advance(5.0)
    before = scene.led()
    scene.step(leader, Nominate(dead))
    scene.advance(5.0)
    assert (before, []) == (scene.led(), scene.events(leader, Revoked))
    # A request to the program cannot be taken back: `neli simulate --protocol priority --seed 0x37c`.
    scene = settled(policy="random", partitions=1, drain_timeout=0.5)
    leader = scene.led()[0][0]
    scene.busy.add(leader)
    scene.step(leader, Nominate((leader + 1) % 3))
    scene.advance(0.1)
    scene.step(leader, Nominate(leader))
    scene.advance(0.1)
    assert (0,) == scene.members[leader].finishing
    scene.advance(1.0)
    assert leader != scene.led()[0][0]
    assert 1 == len(scene.events(leader, Fenced))


def test_members_of_different_beats_stay_with_their_leader_and_one_of_another_lease_is_not_listened_to() -> None:
    """A follower that counted only by its own beat would miss a leader that beats as slowly as its lease allows."""
    scene = Council(partitions=1)
    for me, beat in ((0, LEASE / 3), (1, LEASE / 15), (2, LEASE / 15)):
        scene.begin(me, beat=beat)
    scene.await_leaders()
    scene.advance(10.0)
    before = scene.led()
    scene.advance(100.0)
    assert before == scene.led()
    scene = elected()
    scene.begin(0, lease=2 * LEASE)
    scene.advance(5.0)
    assert [0, 3, 3] == [len(scene.members[me].leading) for me in range(3)]
    (notice,) = [one for one in scene.events(1, Notice) if one.event == "peers.lease_differs"]
    assert {"peer": "p0:1", "theirs": 2 * LEASE, "ours": LEASE} == notice.fields
    assert frozenset({0}) == scene.members[1].strangers
    scene.begin(0)
    scene.advance(5.0)
    assert frozenset() == scene.members[1].strangers


@pytest.mark.parametrize(("asked", "named"), [(2, 2), (0, 3), (0, 99)])
def test_a_word_for_a_peer_that_follows_or_for_one_that_does_not_vote_moves_nothing(asked: int, named: int) -> None:
    """The peer that passed it on may have heard of no leader."""
    scene = settled(size=4, partitions=1, replicas=3)
    before = scene.led()
    scene.step(asked, Heard(1, msgspec.msgpack.encode(Body(LEASE, False, [], [(0, named)]))))
    scene.advance(1.0)
    assert (before, []) == (scene.led(), scene.events(0, Revoked))
    assert [[], []] == [scene.members[0].step(Nominate(node), scene.now) for node in (-1, 4)]


def test_what_cannot_be_read_is_ignored_but_in_a_memory_and_one_of_an_older_release_is_read() -> None:
    machine = TermMachine(council_settings(0), b"", 0.0, rng=Random(7))
    impossible = msgspec.msgpack.encode([LEASE, False, [[["H", 1, 1], [9999, -1]]]])
    for body in (b"", b"\xc1", b"\x93\xcb", b"\x90", impossible):
        assert [] == machine.step(Heard(1, body), 0.01)
    with pytest.raises(LedgerUnusable, match="cannot be read"):
        TermMachine(council_settings(0), b"\xc1", 0.0, rng=Random(7))
    older = started(msgspec.msgpack.encode([41, [0]]), 0.0, lease=1.0)
    assert ({41}, frozenset()) == ({one.term for one in older.electors.values()}, older.shed)
    yes, _ = heard(older, Proposal(42), 0.0, lease=1.0)
    assert (42, True) == (yes.term, 1.0 < yes.owed < 1.1)


def started(memory: bytes, now: float, *, lease: float) -> TermMachine:
    return TermMachine(council_settings(0, partitions=1, lease=lease), memory, now, rng=Random(7))


def heard(machine: TermMachine, message: Message, now: float, *, lease: float) -> tuple[Support, list[bytes]]:
    """The yes of `machine` to a message of peer 1, and everything that it keeps before it."""
    effects = machine.step(Heard(1, msgspec.msgpack.encode(Body(lease, False, [(message, [0])]))), now)
    *kept, sent = [effect for effect in effects if isinstance(effect, Keep | Send)]
    assert isinstance(sent, Send)
    ((yes, _),) = msgspec.msgpack.decode(sent.body, type=Body).said
    assert isinstance(yes, Support)
    return yes, [keep.memory for keep in kept if isinstance(keep, Keep)]


def test_a_restart_with_another_lease_owes_the_longer_promises_of_older_selves_until_they_are_over() -> None:
    _, (first,) = heard(started(b"", 0.0, lease=10.0), Proposal(1), 0.0, lease=10.0)
    again = started(first, 5.0, lease=1.0)
    yes, (memory,) = heard(again, Proposal(2), 7.0, lease=1.0)
    assert 8.0 < yes.owed < 8.1
    once_more = started(memory, 8.0, lease=1.0)  # The first promise may still run.
    yes, _ = heard(once_more, Proposal(3), 8.0, lease=1.0)
    assert 10.0 < yes.owed < 10.1
    again = started(first, 10.0, lease=1.0)  # By 20, the first promise is over.
    (memory,) = [effect.memory for effect in again.step(TICK, 21.0) if isinstance(effect, Keep)]
    yes, _ = heard(again, Heartbeat(1, 1), 22.0, lease=1.0)
    assert 0.0 == yes.owed
    yes, _ = heard(started(memory, 30.0, lease=1.0), Proposal(2), 30.0, lease=1.0)
    assert 1.0 < yes.owed < 1.1
    _, (memory,) = heard(started(b"", 0.0, lease=1.0), Proposal(1), 0.0, lease=1.0)
    yes, (memory,) = heard(started(memory, 5.0, lease=10.0), Heartbeat(1, 1), 5.0, lease=10.0)  # No term grows.
    assert 10.0 < yes.owed < 10.1
    yes, _ = heard(started(memory, 6.0, lease=1.0), Proposal(2), 6.0, lease=1.0)
    assert 10.0 < yes.owed < 10.1


def test_a_lease_is_shortened_by_one_restart_after_another_and_at_no_moment_two_act() -> None:
    scene = settled(lease=5.0)
    for me in (1, 2):
        scene.kill(me)
        scene.begin(me, lease=LEASE)
    mine = dict(scene.members[0].leading)
    scene.advance(4.9)
    assert mine == scene.members[0].leading  # It hears no peer, and its lease still runs.
    scene.kill(0)
    scene.begin(0, lease=LEASE)
    scene.await_leaders()
    scene.advance(10.0)
    assert [2, 2, 2] == scene.shares()
