"""The outlook: the state of each peer, the notices when it changes, and the cards that peers send."""

from dataclasses import replace

import msgspec
import pytest

from neli_router.drivers.peers.outlook import ONE_WAY_MAX, Outlook, PeerCard, decoded, encoded, news_between
from neli_router.protocols.electors.events import BODY_MAX, Led
from neli_router.protocols.protocol import NAME_MAX

PEERS = ("a:1", "b:1", "c:1")
START = Outlook(
    at=100.0, began=90.0, peers=PEERS, me=0, heard_at={1: 99.0, 2: 99.5}, silent=frozenset(), refusals={}, leaders=()
)


@pytest.mark.parametrize(
    ("expected", "different"),
    [
        ("alive", {}),
        ("unknown", {"heard_at": {}}),
        ("one-way", {"silent": frozenset({1})}),
        ("silent", {"silent": frozenset({1}), "heard_at": {}}),
        ("silent", {"silent": frozenset({1}), "at": 99.0 + ONE_WAY_MAX}),
        ("refused", {"silent": frozenset({1}), "refusals": {1: "key"}}),
        ("here", {"me": 1, "silent": frozenset({1})}),
    ],
)
def test_a_peer_is_alive_only_if_it_answers(expected: str, different: dict[str, object]) -> None:
    assert expected == replace(START, **different).state(1)  # type: ignore[arg-type]


def told(before: Outlook, after: Outlook) -> list[tuple[str, object]]:
    return [
        (notice.event, notice.fields.get("peer", notice.fields.get("alive"))) for notice in news_between(before, after)
    ]


def test_silence_and_its_end_are_told_once_each_for_a_peer_and_for_a_majority_and_no_start_and_no_refusal_is() -> None:
    gone = replace(START, at=110.0, silent=frozenset({1}))
    assert [("peers.silent", "b:1")] == told(START, gone)
    assert [] == told(gone, replace(gone, at=111.0))
    assert [("peers.alive", "b:1")] == told(gone, START)
    gone = replace(gone, silent=frozenset({1, 2}))
    assert ("peers.majority_missed", 1) == told(START, gone)[-1]
    assert ("peers.majority_heard", 3) == told(gone, START)[-1]
    fresh = replace(START, heard_at={})
    assert [] == told(fresh, START)
    assert ["peers.silent"] * 2 + ["peers.majority_missed"] == [
        event for event, _ in told(fresh, replace(fresh, silent=frozenset({1, 2})))
    ]
    assert [0.0, 1.0, 10.0] == [replace(START, heard_at={1: 99.0}).silent_for(i) for i in range(3)]
    refused = replace(START, silent=frozenset({1}), refusals={1: "key"})
    assert [] == told(START, refused)
    assert [("peers.alive", "b:1")] == told(refused, START)
    assert ["peers.majority_missed"] == [
        one.event for one in news_between(None, replace(START, refusals={1: "key", 2: "key"}))
    ]


FIVE = replace(START, peers=("a:1", "b:1", "c:1", "d:1", "e:1"), heard_at={1: 99.0, 2: 99.5, 3: 99.0, 4: 99.0})


def test_of_two_classes_those_who_vote_are_missed_and_of_many_electorates_the_weakest_is_counted() -> None:
    classes = replace(FIVE, electorates={(0, 1, 2)}, silent=frozenset({3, 4}), at=110.0)
    assert (True, [True, True, True, False, False]) == (classes.hears_majority, [classes.votes(i) for i in range(5)])
    assert [("peers.silent", "d:1"), ("peers.silent", "e:1")] == told(replace(classes, silent=frozenset()), classes)
    lost = replace(classes, silent=frozenset({1, 2}))
    assert ("peers.majority_missed", 1) == told(classes, lost)[-1]
    fresh = replace(FIVE, electorates={(0, 1, 2)}, heard_at={})
    assert (None, False) == (fresh.hears_majority, replace(fresh, silent=frozenset({1, 2})).hears_majority)
    assert (5, 3, True) == (FIVE.alive, FIVE.quorum, FIVE.votes(4)), "all of a list elect unless it says otherwise"
    replicas = replace(FIVE, electorates={(0, 1, 2), (1, 2, 3), (2, 3, 4)}, silent=frozenset({3, 4}), at=110.0)
    assert ((2, 3, 4), 1, 2) == (replicas.voters, replicas.alive, replicas.quorum)
    assert (False, True) == (replicas.hears_majority, replace(replicas, electorates=()).hears_majority)
    unled = replace(replicas, leaders=(Led(None, 3, "it missed one"),))
    assert "of 3 peers that elect together, 1 answer, and it takes 2 to elect a leader" == unled.why_unled


def test_a_card_comes_as_it_was_said_without_names_that_are_too_long_or_what_another_release_says() -> None:
    card = PeerCard("worker-1", "10.0.0.1:9000", shed=6, drained=True)
    assert card == decoded(encoded(card))
    longest = PeerCard("\N{GRINNING FACE}" * NAME_MAX, "\N{GRINNING FACE}" * NAME_MAX, shed=2)
    assert len(encoded(longest)) <= BODY_MAX
    assert PeerCard(shed=2) == decoded(encoded(longest))
    assert PeerCard("a", "b", 1, False) == decoded(msgspec.msgpack.encode(["a", "b", 1, False, "more"]))
    assert PeerCard("a") == decoded(msgspec.msgpack.encode(["a"]))


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"\xff", b"no card", ["a", "b", -1], ["\x1b[2J"], ["a", "b\n"], ["a" * 257], [7]),
        b"\x91\xa2\xff\xfe",  # A list of one text that is not UTF-8.
        b"\x95\xa0\xa0\x00\xc2" + b"\x91" * 1100,  # A field that we do not know, nested as deep as fits.
    ],
)
def test_what_is_no_card_or_would_spoil_a_terminal_is_none(said: bytes | list[object]) -> None:
    assert None is decoded(said if isinstance(said, bytes) else msgspec.msgpack.encode(said))
