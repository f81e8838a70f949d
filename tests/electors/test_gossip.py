"""Leader election by gossip: the text's rules, and what it leaves open.

Each test is a course in virtual time, in `gossip_scenes`: P is 10 s, and the interval is 1 s, unless the test says
otherwise. A scene fails whenever two act at once, or a term does not grow.
"""

import pytest

from neli_router.electors.gossip import Gossip
from tests.electors.gossip_scenes import GossipScene

P = 10.0


def settled(size: int = 3, until: float = 30.0, **options: object) -> GossipScene:
    scene = GossipScene(size, **options)  # type: ignore[arg-type]
    scene.run(until)
    assert scene.leader is not None
    return scene


def test_the_highest_uuid_that_lives_is_elected() -> None:
    scene = settled()
    assert scene.by_uuid[-1] == scene.leader


def test_nobody_is_favoured_within_p_of_a_start() -> None:
    scene = GossipScene(3)
    scene.run(P)
    assert [None] * 3 == [member.favourite for member in scene.members.values()]


def test_a_killed_leader_is_followed_within_two_p_by_the_next_highest() -> None:
    for seed in range(5):
        scene = settled(seed=seed)
        scene.kill(scene.by_uuid[-1])
        assert scene.until_led(2 * P) > P / 2
        assert scene.by_uuid[-2] == scene.leader


def test_a_living_leader_is_kept_though_a_higher_member_comes() -> None:
    highest = GossipScene(3).by_uuid[-1]
    scene = settled(asleep=[highest])
    before = scene.acts[-1][1]
    scene.start(highest)
    scene.run(100.0)
    assert [before] == [place for _, place, _ in scene.acts]
    assert [before] * 3 == [member.favourite for member in scene.members.values()]


@pytest.mark.parametrize("seed", range(3))
def test_terms_grow_over_leaders_and_restarts(seed: int) -> None:
    scene = settled(seed=seed)
    for _ in range(4):
        place = scene.leader
        assert place is not None
        scene.restart(place)
        scene.run(scene.now + 1)
        scene.until_led(4 * P)
    terms = [term for _, _, term in scene.acts]
    assert sorted(set(terms)) == terms


def test_a_group_of_one_leads_itself() -> None:
    scene = settled(1)
    assert [0] == scene.acting


class ThawsTooSoon(Gossip):
    """Changes its favourite as soon as it suspects it."""

    def _is_free(self, now: float) -> bool:
        return True


def disconnected_candidates(machine: type[Gossip]) -> GossipScene:
    """Two candidates do not hear each other; both hear the others. Then the one that leads is cut off."""
    scene = GossipScene(5, machine=machine, strict=False)
    one, other = scene.by_uuid[-1], scene.by_uuid[-2]
    scene.cut([one], [other])
    scene.run(30.0)
    assert [one] == scene.acting
    scene.cut([one], range(5))
    scene.run(80.0)
    return scene


def test_two_candidates_that_do_not_hear_each_other_never_both_lead() -> None:
    scene = disconnected_candidates(Gossip)
    assert ([], [scene.by_uuid[-2]]) == (scene.doubled, scene.acting)


def test_two_candidates_that_do_not_hear_each_other_both_lead_where_favourites_change_at_once() -> None:
    scene = disconnected_candidates(ThawsTooSoon)
    assert sorted(scene.by_uuid[-2:]) == sorted(scene.doubled[0][1])
