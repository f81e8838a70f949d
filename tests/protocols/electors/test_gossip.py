"""Leader election by gossip: the text's rules, and what it leaves open.

Each test plays a scene of `peer_scenes` in virtual time. P is 10 s, and the interval is 1 s, unless the test says
otherwise. A scene fails if two members act at the same time, or if a term does not grow.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.msgpack import encode
from msgspec.structs import replace

from neli_router.protocols.electors.events import Heard, Nominate, Prefer
from neli_router.protocols.electors.priority import LEAST
from neli_router.protocols.electors.settings import GossipSettings
from neli_router.protocols.gossip.clocks import TICKS
from neli_router.protocols.gossip.election import NOBODY, Triplet
from neli_router.protocols.gossip.machine import (
    CAUSES,
    ELECTORATE,
    FLOOR,
    HEARTBEAT,
    LEADS,
    WISH,
    GossipMachine,
    uuid_of,
)
from neli_router.protocols.gossip.scuttlebutt import Rest
from neli_router.protocols.protocol import TICK, Notice, Released, Revoked, Stopped
from tests.protocols.electors.peer_scenes import GossipScene, gossip_settings, played
from tests.protocols.rules import Rule, stories_in

P = 10.0


def settled(size: int = 3, until: float = 30.0, **options: Any) -> GossipScene:
    scene = GossipScene(size, **options)
    scene.run(until)
    assert scene.leader is not None
    return scene


@pytest.mark.parametrize("story", stories_in(*(Path(__file__).parent / "transcripts").glob("gossip_*.txt")))
def test_a_story_goes_as_written_down(story: Rule, pytestconfig: pytest.Config) -> None:
    story.require(played, pytestconfig)


def test_a_member_counts_its_own_changes_and_those_of_its_leader() -> None:
    scene = settled()
    low, _, high = (scene.members[place] for place in scene.by_uuid)
    assert [1, 1] == [high.transitions[pair] for pair in (("candidate", "favoured"), ("leader", "elected"))]
    scene.kill(scene.by_uuid[-1])
    scene.run(60.0)
    assert (1, set(CAUSES)) == (low.leader_changes, set(low.transitions))


def test_two_candidates_that_do_not_hear_each_other_never_both_lead_and_one_that_hears_nobody_is_none() -> None:
    """Both hear the other members. Then the one that leads is cut off."""
    scene = GossipScene(5)
    one, other = scene.by_uuid[-1], scene.by_uuid[-2]
    scene.cut([one], [other])
    scene.run(30.0)
    assert [one] == scene.acting
    scene.cut([one], range(5))
    scene.run(80.0)
    assert [other] == scene.acting
    scene = GossipScene(3)
    scene.silence(range(3), scene.by_uuid[-1:])
    scene.run(60.0)
    assert [scene.by_uuid[-2]] == scene.acting


class Doubter(GossipMachine):
    """Considers a member dead although it hears it, as a detector may."""

    doubted: int | None = None

    def _sticks(self, now: float) -> bool:
        return self.favourite != self.doubted and super()._sticks(now)

    def _choose(self, now: float) -> tuple[int, int] | None:
        if self.doubted is None:
            return super()._choose(now)
        others = {place for place in range(self._settings.size) if place != self.doubted}
        best = max(others, key=lambda place: self._rank[place])
        return best, self._copies.lives[best]


def test_the_bound_is_frozen_too_before_a_change_of_favourite() -> None:
    """The others consider the leader dead, and it hears them until the first of them has changed over."""
    scene = GossipScene(3, machine=Doubter)
    scene.run(30.0)
    leader, others = scene.by_uuid[-1], scene.by_uuid[:-1]
    for place in others:
        member = scene.members[place]
        assert isinstance(member, Doubter)
        member.doubted = leader
    while scene.members[others[0]].favourite == scene.members[others[1]].favourite == leader and scene.now < 90:
        scene.run(scene.now + 0.01)
    scene.cut([leader], others)
    scene.run(90.0)
    assert [scene.by_uuid[-2]] == scene.acting


def test_a_frozen_member_still_seems_alive() -> None:
    scene = settled(5, until=60.0, lease=30.0)
    scene.kill(scene.by_uuid[-1])
    scene.run(scene.now + 29)
    assert [scene.by_uuid[-1]] * 4 == [member.favourite for member in scene.members.values()]
    suspected = [
        place
        for me, member in scene.members.items()
        for place in scene.members
        if place != me and not member._signs.is_alive(place, scene.clock(me))
    ]
    assert [] == suspected


def test_a_leader_that_dies_soon_after_a_long_outage_is_taken_over_as_quickly_as_ever() -> None:
    scene = settled()
    scene.cut(scene.by_uuid[:-1], scene.by_uuid[-1:])
    scene.run(scene.now + 30 * P)
    leader = scene.leader
    scene.heal()
    scene.run(scene.now + P)
    assert leader is not None
    assert [leader] == scene.acting
    scene.kill(leader)
    assert scene.until_led(2 * P) < 1.7 * P


def test_a_leader_that_dies_in_a_network_that_often_fails_is_taken_over_nearly_as_quickly() -> None:
    scene = settled()
    leader, others = scene.by_uuid[-1], scene.by_uuid[:-1]
    for _ in range(40):
        scene.cut([leader], others)
        scene.run(scene.now + 0.8 * P)
        scene.heal()
        scene.run(scene.now + 0.3 * P)
    assert [leader] == scene.acting
    scene.kill(leader)
    assert scene.until_led(2.5 * P) < 2.5 * P


@pytest.mark.parametrize("remembers", [True, False])
def test_a_restart_is_followed_by_a_quiet_p_because_the_older_life_may_have_declared(remembers: bool) -> None:
    """The leader is cut off, and at that moment the others restart. A member that seems new may have lost its disk."""
    scene = settled(until=60.0)
    leader, others = scene.by_uuid[-1], scene.by_uuid[:-1]
    scene.cut([leader], others)
    scene.most_forgot = not remembers
    for place in others:
        scene.restart(place, remembers=remembers)
    scene.run(90.0)
    assert [scene.by_uuid[-2]] == scene.acting


def test_a_restart_with_a_shorter_p_is_quiet_for_the_longer_one_of_the_older_life() -> None:
    """They do not hear the leader, whose P has changed. It still leads by their earlier declarations."""
    scene = settled(until=50.0)
    voters = scene.by_uuid[:2]
    for _ in range(2):  # The second time, too: a life that ends within its quiet P has not lowered anything.
        for place in voters:
            scene.settings[place] = gossip_settings(3, place, lease=P / 2)
            scene.restart(place)
        scene.run(scene.now + 1.0)
    scene.run(scene.now + 3 * P)
    assert [voters[-1]] == scene.acting


@pytest.mark.parametrize("remembers", [True, False])
def test_bounds_of_a_leaders_older_life_do_not_make_its_new_life_lead(remembers: bool) -> None:
    """Its clock starts from zero, so they are far ahead of it."""
    scene = settled(until=100.0)
    leader = scene.by_uuid[-1]
    scene.restart(leader, remembers=remembers)
    claims = []
    for _ in range(60):
        scene.run(scene.now + P / 60)
        claims += [*scene.acting, scene.members[leader]._election.lead_term]
    assert {None} == set(claims)


def test_clocks_that_are_both_off_by_all_that_is_allowed_leave_one_leader() -> None:
    """The leader's clock is as slow as allowed, and all other clocks are as fast. Its voters are cut off from it."""
    highest = GossipScene(3).by_uuid[-1]
    rates = {place: 0.93 if place == highest else 1.07 for place in range(3)}
    scene = settled(until=200.0, rates=rates, drift=0.07, delay=0.0, lease=60.0)
    assert [highest] == scene.acting
    scene.cut([highest], scene.by_uuid[:-1])
    scene.run(400.0)
    assert [scene.by_uuid[-2]] == scene.acting


@pytest.mark.parametrize("relay", [False, True])
def test_a_biased_clock_is_never_ahead_of_the_clock_that_it_estimates(relay: bool) -> None:
    scene = GossipScene(5, rates={0: 0.95, 1: 1.05, 2: 1.05, 3: 0.95}, drift=0.05, relay=relay, delay=0.5)
    for _ in range(100):
        scene.run(scene.now + 0.7)
        for me, member in scene.members.items():
            for place, other in scene.members.items():
                if member._clocks.lives[place] == other._election.life:
                    estimate = member._clocks.read(place, scene.clock(me))
                    assert estimate <= (scene.clock(place) - other._clocks.when(0)) * TICKS


def test_relaying_what_is_known_of_a_clock_brings_fresher_estimates() -> None:
    lags = []
    for relay in (False, True):
        scene = GossipScene(13, relay=relay).run(25.0)
        lags.append(
            sum(
                other._clocks.elapsed(scene.clock(place)) - beat[2]
                for me, member in scene.members.items()
                for place, other in scene.members.items()
                if place != me and (beat := member._copies.get(place, HEARTBEAT)) is not None
            )
        )
    assert lags[1] < lags[0]


def test_a_paused_voter_does_not_take_its_own_deafness_for_others_death() -> None:
    scene = settled()
    voter = scene.by_uuid[0]
    chosen_at = scene.members[voter]._favoured_at
    scene.pause(voter)
    scene.run(scene.now + 5 * P)
    scene.resume(voter)
    scene.run(scene.now + P)
    assert (scene.by_uuid[-1], chosen_at) == (scene.members[voter].favourite, scene.members[voter]._favoured_at)


def test_an_operators_word_for_a_place_that_does_not_exist_is_ignored() -> None:
    scene = settled()
    other, _, leader = scene.by_uuid
    for nowhere in (999, -1):
        scene.members[other]._copies.set(WISH, (nowhere, scene.acts[-1][2]))
        scene.run(scene.now + P)
        assert scene.members[leader]._copies.get(other, WISH) is not None
        assert [leader] == scene.acting


def test_a_leader_that_is_drained_gives_way_when_its_program_has_finished_and_stays_out() -> None:
    scene = settled()
    leader = scene.by_uuid[-1]
    scene.busy.add(leader)
    scene.step(leader, Prefer(dict.fromkeys(range(2), LEAST)))
    scene.run(scene.now + P)
    assert [leader] == scene.acting
    assert isinstance(scene.events(leader)[-1], Revoked)
    assert (frozenset({0, 1}), True) == (scene.members[leader].shed, scene.members[leader].drained)
    scene.busy.clear()
    scene.step(leader, Released(dict(scene.members[leader].leading)))
    assert scene.until_led(P) < 5
    scene.run(scene.now + 10 * P)
    assert [scene.by_uuid[1]] == scene.acting
    scene.kill(scene.by_uuid[1])
    scene.run(scene.now + 5 * P)
    assert [scene.by_uuid[0]] == scene.acting, "the drained one has the highest uuid"


@pytest.mark.parametrize("seed", range(3))
def test_a_name_that_ended_a_lead_long_ago_does_not_have_two_change_over_to_each_other_for_ever(seed: int) -> None:
    """The leader once named the heir. Later, both favour themselves, until they hear each other again."""
    scene = GossipScene(3, seed=seed).run(40.0)
    other, heir, leader = scene.by_uuid
    scene.step(leader, Nominate(heir))
    scene.run(scene.now + 5 * P)
    assert [heir] == scene.acting
    scene.kill(other)
    scene.run(scene.now + 3 * P)
    scene.cut([leader], [heir])
    scene.run(scene.now + 3 * P + 0.37 * seed)
    assert [] == scene.acting
    scene.heal()
    scene.until_led(2 * P)


def test_a_term_is_dropped_with_the_majority_that_it_was_taken_on_and_all_are_above_their_base() -> None:
    """The leader is cut off, and another member leads meanwhile. When that member dies, the first leads again."""
    scene = settled()
    first = scene.by_uuid[-1]
    scene.cut([first], scene.by_uuid[:-1])
    scene.run(70.0)
    scene.heal()
    scene.run(80.0)
    assert [scene.by_uuid[-2]] == scene.acting
    scene.kill(scene.by_uuid[-2])
    scene.run(140.0)
    assert [first] == scene.acting
    assert [1, 2, 3] == [term for _, _, term in scene.acts]
    assert [501] == [term for _, _, term in settled(term_base=500).acts]


@pytest.mark.parametrize("other", [{"lease": 20.0}, {"drift": 0.01}, {"first_class": 1}, {"size": 4}])
def test_members_with_another_p_drift_or_electorate_do_not_hear_each_other(other: dict[str, Any]) -> None:
    one = GossipMachine(gossip_settings(), b"", 0.0, rng=Random(1))
    stranger = GossipMachine(gossip_settings(me=1, **other), b"", 0.0, rng=Random(2))
    assert [] == one.step(TICK, 0.0)[3:]
    strange = Heard(1, stranger._copies.ask())
    told = [effect.event for effect in one.step(strange, 0.1) if isinstance(effect, Notice)]
    assert ["peers.settings_differ"] == told
    assert [] == one.step(strange, 0.2)  # It is reported once, and the peer counts as reported until it is heard.
    assert {1} == one.strangers


def test_a_heartbeat_of_another_shape_and_garbage_change_nothing_and_an_unreadable_memory_is_a_lost_one() -> None:
    """A newer release may say more."""
    scene = GossipScene(3).run(0.0)
    one, other = scene.members[0], scene.members[1]
    other._copies.set(0, (*Triplet(0, one._election.life, 10**9, 10**9, 99, 0, 0), 1))
    scene.step(0, Heard(1, other._copies.farewell()))
    assert (0, {}) == (one._election.term, one._election.supports)
    machine = GossipMachine(gossip_settings(), b"garbage", 0.0, rng=Random(1))
    assert [] == [effect for effect in machine.step(TICK, 0.0) if isinstance(effect, Stopped)]
    assert [] == machine.step(Heard(1, b"\x93\x02garbage"), 0.1)


def hear_of(scene: GossipScene, place: int, of: int, *said: tuple[int, object]) -> None:
    """Let `place` hear from `of` itself that it set these keys to these values."""
    copies = scene.members[place]._copies
    version = copies.versions[of]
    *older, (key, value) = said
    more = tuple((key, version + 1 + i, value) for i, (key, value) in enumerate(older))
    pieces = [(of, version, (copies.lives[of], key, version + len(said), value), more)]
    scene.step(place, Heard(of, encode(Rest(copies._mark, pieces))))  # type: ignore[arg-type]


def test_a_leader_that_names_nobody_of_the_list_is_missed_and_an_electorate_that_cannot_be_is_not_taken_over() -> None:
    scene = settled()
    follower, leader = scene.by_uuid[0], scene.by_uuid[-1]
    hear_of(scene, follower, leader, (FLOOR, (5, 999)), (LEADS, None))
    (led, *_) = scene.members[follower].leaders
    assert led is not None
    why = f"{scene.settings[0].peers[leader]} says that it no longer leads: it lost its majority"
    assert (None, why) == (led.leader, led.reason)
    scene = settled(5, first_class=3)
    place, liar = scene.by_uuid[0], scene.by_uuid[1]
    before = scene.members[place].electorate
    many = (9, 1, 3, 99, 98, 97, 99, 98, 97)
    for odd in (many, (9, 1, 0, 0), (9, 1, 0), (1 << 60, 1, 1, 0, 0), (9, 1 << 60, 1, 0, 0)):
        hear_of(scene, place, liar, (ELECTORATE, odd), (HEARTBEAT, (NOBODY, 0, 10**6, 0, 1, 9, 1)))
        assert before == scene.members[place].electorate


def test_a_term_that_no_number_of_elections_comes_to_and_a_clock_that_nobody_lives_to_see_are_ignored() -> None:
    scene = settled()
    follower, liar, leader = scene.by_uuid
    before, life = scene.members[follower]._election.term, scene.members[leader]._election.life
    hear_of(scene, follower, liar, (HEARTBEAT, (leader, life, 10**6, 10**5, 1 << 60, 0, 0)))
    assert before == scene.members[follower]._election.term
    hear_of(scene, follower, leader, (HEARTBEAT, (leader, life, (1 << 64) - 1, 0, 1, 0, 0)))
    scene.run(scene.now + 2 * P)
    assert [leader] == scene.acting


def test_only_first_class_citizens_vote_and_all_watch() -> None:
    scene = settled(9, first_class=3)
    voters = {place for place, member in scene.members.items() if member.favourite is not None}
    assert set(scene.by_uuid[-3:]) == voters
    assert {scene.by_uuid[-1]} == {member.leader for member in scene.members.values()}


class Asking(GossipMachine):
    """Notes the partners that it asks."""

    asked: tuple[int, ...] = ()

    def _partner(self, now: float) -> int:
        partner = super()._partner(now)
        self.asked += (partner,)
        return partner


def test_first_class_citizens_gossip_twice_as_often_and_every_other_time_among_themselves() -> None:
    scene = GossipScene(9, machine=Asking, first_class=3).run(40.0)
    first = set(scene.by_uuid[-3:])
    members = {place: member for place, member in scene.members.items() if isinstance(member, Asking)}
    for member in members.values():
        member.asked = ()
    scene.run(140.0)
    assert {place: 200 if place in first else 100 for place in range(9)} == {
        place: len(member.asked) for place, member in members.items()
    }
    # Two of eight random partners are first-class, too: 0.5 + 0.5 / 4 of all, and 3 / 8 for the others.
    among = {place: sum(partner in first for partner in member.asked) for place, member in members.items()}
    assert all(110 < among[place] < 140 for place in first)
    assert all(25 < among[place] < 50 for place in range(9) if place not in first)


def test_an_electorate_is_replaced_over_a_joint_one_and_outlives_the_process() -> None:
    scene = settled(9, first_class=3)
    scene.kill(scene.by_uuid[-2])
    scene.run(scene.now + 6 * P)
    leader = scene.by_uuid[-1]
    expected = tuple(sorted([leader, scene.by_uuid[-3], scene.by_uuid[-4]]))
    assert {(expected, expected)} == {(m.electorate.old, m.electorate.new) for m in scene.members.values()}
    before = scene.members[leader].electorate
    scene.silence(range(9), [leader])
    scene.restart(leader)
    assert before == scene.members[leader].electorate


def test_an_electorate_that_was_kept_under_another_list_is_forgotten() -> None:
    """Two of the second class are replaced by new hosts. A member with an old folder must not use the old places."""
    names = sorted((f"host-{i}:7801" for i in range(12)), key=uuid_of)
    before, after = tuple(names[:5]), (names[10], names[11], *names[2:5])

    def settings(peers: tuple[str, ...]) -> dict[int, GossipSettings]:
        return {i: replace(gossip_settings(5, i, first_class=3), peers=peers) for i in range(5)}

    old = GossipScene(5, settings=settings(before)).run(40.0)
    new = GossipScene(5, settings=settings(after), asleep=range(5))
    new.disks = {i: old.disks[i] for i in (2, 3, 4)}
    for place in range(5):
        new.start(place)
    new.cut([0, 1], [2, 3, 4])
    new.run(60.0)
    assert [(0, 1, 4)] * 5 == [member.electorate.new for _, member in sorted(new.members.items())]
    assert 1 == len(new.acting)
