"""The seal: a message is taken once, by the peer it was sent to, while both live; and nothing else is taken."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neli_router.drivers.peers.seal import ASKING_MAX, DATAGRAM_MAX, WINDOW, Content, Flaw, Seal, Unsealed, derived_key
from neli_router.protocols.electors.events import BODY_MAX

PEERS = ("a:1", "b:1", "c:1")
KEY = derived_key(b"sixteen bytes of", "jobs")
A, B, C = range(3)


def side(
    me: int,
    *,
    seed: int = 0,
    key: bytes = KEY,
    group: str = "jobs",
    peers: tuple[str, ...] = PEERS,
    mark: bytes = b"term 8",
) -> Seal:
    rng = random.Random(f"{me} {seed}")
    return Seal(key, group=group, peers=peers, mark=mark, me=me, draw=lambda: rng.getrandbits(64))


def acquaint(one: Seal, other: Seal, *, to: int = B) -> None:
    """Let `one` learn what `other` wants it to echo."""
    answer = other.open(one.ask(to)).reply
    assert Content.HEARD is one.open(answer).content
    assert one.knows(to)


def pair() -> tuple[Seal, Seal]:
    """a and b, which know each other."""
    a, b = side(A), side(B)
    acquaint(a, b)
    acquaint(b, a, to=A)
    return a, b


def taken(opened: Unsealed) -> bytes | None:
    return opened.body if opened.content is Content.BODY else None


def test_a_body_is_taken_from_the_place_that_sealed_it_and_one_that_is_too_long_is_the_callers_mistake() -> None:
    a, b = pair()
    assert Unsealed(Content.BODY, sender=A, body=b"hello") == b.open(a.seal(B, b"hello"))
    assert Unsealed(Content.BODY, sender=B, body=b"") == a.open(b.seal(A, b""))
    sealed = a.seal(B, b"x" * BODY_MAX)
    assert DATAGRAM_MAX == len(sealed)
    assert b"x" * BODY_MAX == taken(b.open(sealed))
    with pytest.raises(AssertionError, match="at most"):
        a.seal(B, b"x" * (BODY_MAX + 1))


def test_an_ask_that_is_taken_brings_a_word_of_its_sender_and_to_ask_is_no_fault_known_or_not() -> None:
    a, b = side(A), side(B)
    stranger = b.open(a.ask(B, b"I am a"))
    assert (Content.ASKING, b"") == (stranger.content, stranger.body)  # It may have been recorded long ago.
    assert Content.HEARD is a.open(stranger.reply).content
    asked = b.open(again := a.ask(B, b"I am a"))
    assert (Content.ASKED, A, b"I am a") == (asked.content, asked.sender, asked.body)
    assert Content.HEARD is a.open(asked.reply).content
    assert Flaw.REPLAYED is b.open(again).flaw
    assert b"" == b.open(a.ask(B)).body  # Older releases ask like this.
    a, b = side(A), side(B)
    answer = b.open(a.ask(B)).reply
    assert [None, None] == [b.open(a.ask(B)).flaw for _ in range(2)]
    assert [b"", b"", b""] == [one.open(answer).reply for one in (a, a, side(A, seed=9))]
    acquaint(a, b)
    assert [None, None] == [b.open(a.ask(B)).flaw for _ in range(2)]


def test_the_last_few_bodies_to_one_that_is_not_known_are_sent_again_and_each_once() -> None:
    a, b = side(A), side(B)
    said = [b"1", b"2", b"3", b"4", b"5"]
    refused = [b.open(a.seal(B, body)) for body in said]
    assert {(Flaw.STALE, Content.NOTHING, None)} == {(one.flaw, one.content, taken(one)) for one in refused}
    answers = [one.reply for one in refused]
    again = [a.open(answer).reply for answer in answers]
    assert [None, b"2", b"3", b"4", b"5"] == [taken(b.open(sealed)) if sealed else None for sealed in again]
    assert all(not a.open(answer).reply for answer in answers)


def test_asking_again_voids_nothing_on_its_way_and_within_the_window_any_order_is_taken() -> None:
    a, b = pair()
    b.open(a.seal(B, b"first"))
    late = a.seal(B, b"late")
    acquaint(a, b)
    assert b"new" == taken(b.open(a.seal(B, b"new")))
    assert b"late" == taken(b.open(late))
    a, b = pair()
    assert taken(b.open(a.seal(B, b"begin"))) is not None
    sealed = [a.seal(B, str(i).encode()) for i in range(WINDOW + 1)]
    assert str(WINDOW).encode() == taken(b.open(sealed[WINDOW]))
    assert b"1" == taken(b.open(sealed[1]))
    for replayed in (0, 1, WINDOW):
        assert Unsealed(flaw=Flaw.REPLAYED, sender=A) == b.open(sealed[replayed])


def test_one_that_starts_anew_takes_nothing_from_before_its_start_and_an_older_answer_undoes_no_newer_one() -> None:
    a, _ = pair()
    recorded = [a.seal(B, b"before"), a.ask(B)]
    started = side(B, seed=2)
    opened = [started.open(datagram) for datagram in recorded]
    assert [None, None] == [taken(one) for one in opened]
    assert [Flaw.STALE, None] == [one.flaw for one in opened]
    a, b = side(A), side(B)
    older, newer = b.open(a.ask(B)).reply, b.open(a.ask(B)).reply
    started = side(A, seed=2)
    started.ask(B)
    assert Flaw.STALE is started.open(older).flaw
    assert not started.knows(B)
    a.open(newer)
    assert Flaw.REPLAYED is a.open(older).flaw


def test_a_session_that_was_replaced_does_not_come_back_and_a_replay_of_a_dead_one_costs_one_round_trip() -> None:
    a, b = pair()
    b.open(a.seal(B, b"older"))
    held_back = [a.seal(B, b"held back"), a.ask(B)]
    newer = side(A, seed=2)
    acquaint(newer, b)
    assert b"newer" == taken(b.open(newer.seal(B, b"newer")))
    for datagram in held_back:
        assert Flaw.REPLACED is b.open(datagram).flaw
    answer = b.open(a.seal(B, b"I am here, too")).reply
    assert Unsealed(Content.REPLACED, sender=B) == a.open(answer)
    assert Flaw.STALE is newer.open(answer).flaw
    assert b"still" == taken(b.open(newer.seal(B, b"still")))
    # The dead process had learned the same challenge that its successor learned, and never used it.
    a, b = side(A), side(B)
    acquaint(a, b)
    recorded = [a.ask(B), a.seal(B, b"never delivered")]
    newer = side(A, seed=2)
    acquaint(newer, b)
    b.open(recorded[0])
    again = newer.open(b.open(newer.seal(B, b"newer")).reply)
    assert b"newer" == taken(b.open(again.reply))
    for datagram in recorded * 2:
        assert Flaw.REPLACED is b.open(datagram).flaw
    assert b"still" == taken(b.open(newer.seal(B, b"still")))


def test_an_ask_that_is_not_taken_is_a_sign_of_life_once_and_only_so_many_sessions_are_remembered() -> None:
    a, newer, b = side(A), side(A, seed=2), side(B)
    first, second, third = a.ask(B), a.ask(B), newer.ask(B)
    asking, nothing = Content.ASKING, Content.NOTHING
    came = [first, first, third, first, third, second, first, second]
    expected = [asking, nothing, asking, nothing, nothing, asking, nothing, nothing]
    assert expected == [b.open(datagram).content for datagram in came]
    b = side(B)
    for seed in range(ASKING_MAX + 10):
        assert Content.ASKING is b.open(side(A, seed=seed).ask(B)).content
    assert ASKING_MAX == len(b._peers[A].asking)
    for seed in range(100):
        newer = side(A, seed=seed + 100)
        acquaint(newer, b)
        assert b"x" == taken(b.open(newer.seal(B, b"x")))
    assert len(b._peers[A].retired) <= 16


@pytest.mark.parametrize(
    ("other", "flaw"),
    [
        (lambda: side(A, key=derived_key(b"another sixteen bytes", "jobs")), Flaw.KEY),
        (lambda: side(A, group="other"), Flaw.GROUP),
        (lambda: side(A, key=derived_key(b"sixteen bytes of", "other"), group="other"), Flaw.GROUP),
        (lambda: side(A, peers=("a:1", "b:1", "d:1")), Flaw.LIST),
        (lambda: side(A, peers=("a:1", "b:1")), Flaw.SIZE),
        (lambda: side(A, mark=b"gossip 8"), Flaw.PROTOCOL),
        (lambda: side(A, mark=b"term 16"), Flaw.PROTOCOL),
        (lambda: side(B), Flaw.PLACE),
    ],
)
def test_a_peer_that_is_set_up_otherwise_is_refused_with_the_reason(other: Callable[[], Seal], flaw: Flaw) -> None:
    _, b = pair()
    opened = b.open(other().seal(B, b"x"))
    assert (flaw, None, b"") == (opened.flaw, taken(opened), opened.reply)
    if flaw is Flaw.SIZE:
        assert 2 == opened.size, "the number of peers of another list is known"


def test_what_is_cut_or_of_a_newer_version_or_for_another_is_told_from_what_is_forged() -> None:
    a, b = pair()
    assert Flaw.PLACE is b.open(a.seal(C, b"for c")).flaw
    sealed = a.seal(B, b"a body")
    assert {Flaw.TRUNCATED} == {b.open(sealed[:size]).flaw for size in range(len(sealed))}
    assert Flaw.TRUNCATED is b.open(sealed + b"x").flaw
    assert Flaw.OVERSIZED is b.open(b"x" * (DATAGRAM_MAX + 1)).flaw
    assert Flaw.FOREIGN is b.open(b"GET / HTTP/1.1\r\n\r\n").flaw
    assert Flaw.VERSION is b.open(sealed[:4] + b"\x02" + sealed[5:]).flaw
    assert Flaw.VERSION is b.open(b"NELP\x02").flaw
    assert Flaw.FOREIGN is b.open(sealed[:4] + b"\x00" + sealed[5:]).flaw
    for kind in (3, 255):  # Such a datagram does not count as an ask.
        assert Unsealed(flaw=Flaw.VERSION, sender=A) == b.open(a._sealed(B, kind, b"no word of a"))


def test_every_bit_of_a_datagram_is_sealed_and_one_key_file_gives_each_group_a_key_of_its_own() -> None:
    a, b = pair()
    sealed = a.seal(B, b"a body")
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        opened = b.open(bytes(changed))
        assert opened.flaw is not None
        assert (-1, b"") == (opened.sender, opened.reply)
    assert b"a body" == taken(b.open(sealed))
    assert derived_key(b"k" * 16, "jobs") != derived_key(b"k" * 16, "job")
    assert derived_key(b"k" * 16, "jobs") != derived_key(b"k" * 17, "jobs")


@given(st.binary(max_size=DATAGRAM_MAX + 10), st.booleans())
def test_no_bytes_of_a_stranger_are_taken_answered_or_an_error(junk: bytes, is_begun: bool) -> None:
    _, b = pair()
    opened = b.open((b"NELP\x01" if is_begun else b"") + junk)
    assert opened.flaw is not None
    assert (Content.NOTHING, -1, b"") == (opened.content, opened.sender, opened.reply)


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_under_loss_replay_and_restarts_every_body_is_taken_at_most_once_and_none_of_the_dead_after_a_successor(
    seed: int,
) -> None:
    """A network that keeps every datagram forever and delivers any of them at any time; and a peer that restarts."""
    rng = random.Random(seed)
    a, b, lives = side(A), side(B), 0
    wire: list[tuple[int, bytes]] = []
    came: list[tuple[int, int]] = []
    said = 0
    for _ in range(120):
        match rng.randrange(8):
            case 0 | 1 | 2:
                said += 1
                wire.append((B, a.seal(B, f"{lives} {said}".encode())))
            case 3:
                wire.append((A, b.ask(A)) if rng.random() < 0.3 else (B, a.ask(B)))
            case 4 if rng.random() < 0.3:
                lives += 1
                a = side(A, seed=100 + lives)
            case _ if wire:
                to, datagram = rng.choice(wire[-4:]) if rng.random() < 0.7 else rng.choice(wire)
                opened = (a if to == A else b).open(datagram)
                assert opened.content is not Content.REPLACED, "no process of a lives alongside its successor"
                if to == B and (body := taken(opened)) is not None:
                    life, number = map(int, body.split())
                    came.append((life, number))
                if opened.reply:
                    wire.append((opened.sender, opened.reply))
    assert len(set(came)) == len(came)
    assert [life for life, _ in came] == sorted(life for life, _ in came)
    # And when the network is whole again, the living process is heard.
    answer = b.open(a.ask(B)).reply
    a.open(answer)
    assert b"at last" == taken(b.open(a.seal(B, b"at last")))
