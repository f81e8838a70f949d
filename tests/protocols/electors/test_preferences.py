"""Preferences: a user's rules for leaders, turned into priorities."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neli_router.errors import ConfigError
from neli_router.protocols.electors.preferences import OTHERS, preferred_rows
from neli_router.protocols.electors.priority import assign
from tests.protocols.electors.scenes import Scene

PEERS = ("a:1", "b:1", "c:1")


def rows(text: str, partitions: int = 6, factor: int = 3, peers: tuple[str, ...] = PEERS) -> list[tuple[int, ...]]:
    return list(preferred_rows(text, peers, partitions, factor))


def firsts(text: str, partitions: int = 6) -> str:
    """The peer that stands first for each partition, in order."""
    return "".join(PEERS[row.index(max(row))][0] for row in rows(text, partitions))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", "aaaaaa"),
        ("others, c:1", "abbaba"),
        ("1-3: c:1; others,c:1; 4,5: B:1", "acccbb"),
        ("\n 0, 2: c:1 \n\n 5: b:1,a:1\n", "cbcabb"),
        ("0-2: a:1; 3: b:1; 4,5: c:1", "aaabcc"),
    ],
    ids=["one for all", "others first", "some before the rest", "some, and the rest as assigned", "one leads more"],
)
def test_rules_say_who_stands_first(text: str, expected: str) -> None:
    assert expected == firsts(text)


def test_peers_that_a_rule_does_not_name_stand_behind_those_that_it_names_as_assigned() -> None:
    assert rows("b:1") == rows("b:1,others")
    assert [(2, 3, 1)] == rows("b:1", partitions=1)
    for row, ours in zip([assign(i, 3, 3) for i in range(6)], rows("others,c:1"), strict=True):
        assert ((row[0] > row[1]), 1) == ((ours[0] > ours[1]), ours[2])


def test_without_a_rule_for_it_a_partition_keeps_what_is_assigned() -> None:
    assert [assign(i, 3, 3) for i in range(1, 6)] == rows("0: c:1")[1:]


@given(st.lists(st.sampled_from([*PEERS, "d:1", "e:1"]), min_size=1, unique=True), st.integers(1, 5), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_preferences_never_say_who_the_replicas_are(order: list[str], factor: int, at: int) -> None:
    peers = (*PEERS, "d:1", "e:1")
    text = ",".join([*order[:at], OTHERS, *order[at:]])
    for i, row in enumerate(rows(text, 10, factor, peers)):
        assigned = assign(i, 5, factor)
        assert [priority > 0 for priority in assigned] == [priority > 0 for priority in row]
        assert sorted(assigned) == sorted(row)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" ; \n", "preferences='' names no peer: list peers, best first, or leave it out"),
        ("d:1", "preferences='d:1': unknown peer 'd:1'; known peers: a:1, b:1, c:1, and 'others' for all others"),
        ("a:1,,b:1", "preferences='a:1,,b:1': a peer is missing; known peers: a:1, b:1, c:1"),
        ("0-3:", "preferences='0-3:': a peer is missing"),
        ("a:1,b:1,A:1", "a:1 is named twice: name each once, best first"),
        ("others,a:1,others", "others is named twice"),
        ("others", "no peer is named: say who stands before or behind the others, or leave the rule out"),
        ("0: a:1; 5,0-1: b:1", "preferences='5,0-1: b:1': partition 0 is named twice: have one rule for it"),
        ("a:1; b:1", "preferences='b:1': two rules without partitions: have one"),
        ("3-9: a:1", "no such partitions: '3-9'; they count from 0 to 5"),
        ("5-3: a:1", "no such partitions: '5-3'; they count from 0 to 5"),
        ("1 2: a:1", "expected partitions like 3 or 0-31 or 0-31,40, got '1 2'"),
        ("1,: a:1", "expected partitions like 3 or 0-31 or 0-31,40, got ''"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_what_there_is(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rows(text)
    assert [True] == [expected in problem for problem in caught.value.problems]


def test_a_rule_whose_peers_are_no_replicas_of_a_partition_that_it_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="none of these is a replica of partition 0, which a:1, b:1 elect: name one"):
        rows("0: c:1", factor=2)
    assert [(2, 1, 0), (0, 1, 2)] == rows("c:1", partitions=2, factor=2)  # Where it is not a replica, the others stand.
    with pytest.raises(ConfigError) as caught:
        rows("d:1; 9: a:1; 0: b:1,b:1")
    assert 3 == len(caught.value.problems), "one error names all problems"


# In elections


def test_a_peer_behind_the_others_leads_only_when_they_cannot() -> None:
    scene = Scene(5, policy="priority", preferences=["others,a:1"] * 5, transfers=True)
    scene.run(30.0)
    scene.cut("BCDE", "BCDE")  # They hear A, and A alone hears a majority.
    scene.run(60.0)
    scene.heal()
    scene.run(150.0)
    first, *between, last = [name for name, _ in scene.leaders]
    assert ("B", "A", "B") == (first, between[0], last)


@pytest.mark.parametrize("seed", range(8))
def test_members_with_different_preferences_agree_on_one_leader_who_stays(seed: int) -> None:
    """Each wants to lead itself, or each wants another to. The scene checks at each step whether two act."""
    for texts in (["a:1", "b:1", "c:1"], ["b:1", "c:1", "a:1"], ["others,a:1", "others,b:1", "others,c:1"]):
        scene = Scene(3, policy="priority", preferences=texts, transfers=True, seed=seed)
        scene.run(40.0)
        assert scene.acting is not None
        before = scene.leaders
        scene.run(400.0)
        assert before == scene.leaders
