"""Scuttlebutt: members' copies of each other's states, which never hold anything that the owner did not say."""

from random import Random
from typing import TypeVar

import pytest
from msgspec.msgpack import encode

from neli_router.protocols.electors.events import BODY_MAX
from neli_router.protocols.gossip.scuttlebutt import Ack, Piece, Rest, Scuttlebutt, Syn, incarnation_after

MARK = 7
LIFE = incarnation_after(0, 0xABCD)
USUAL = 1


def group(size: int) -> list[Scuttlebutt]:
    return [Scuttlebutt(size, me, LIFE, mark=MARK) for me in range(size)]


Said = TypeVar("Said", Syn, Ack, Rest)


def heard(one: Scuttlebutt, body: bytes | None, kind: type[Said]) -> Said:
    assert body is not None
    assert len(body) <= BODY_MAX
    said = one.decode(body)
    assert isinstance(said, kind)
    return said


def exchange(asker: Scuttlebutt, asked: Scuttlebutt) -> None:
    """A Syn, its Ack, and the Rest."""
    if (body := asked.answer(heard(asked, asker.ask(), Syn))) is not None:
        ack = heard(asker, body, Ack)
        asker.take(ack.pieces, USUAL)
        if (rest := asker.rest(ack.wants)) is not None:
            asked.take(heard(asked, rest, Rest).pieces, USUAL)


def known(one: Scuttlebutt, place: int) -> dict[int, tuple[int, ...] | None]:
    """All keys with their values, including deleted ones."""
    _, last, version, latest = one._latest[place]
    return {key: value for key, _, value in one._older[place].values()} | ({last: latest} if version else {})


def test_one_exchange_brings_both_up_to_date_and_news_pass_through_others_who_are_told_of_more_than_the_usual() -> None:
    a, b, c = group(3)
    a.set(1, (10,))
    b.set(1, (20,))
    b.set(2, (21, 22))
    exchange(a, b)
    assert ({1: (20,), 2: (21, 22)}, {1: (10,)}) == (known(a, 1), known(b, 0))
    assert b.answer(heard(b, a.ask(), Syn)) is None, "copies that are alike need no answer"
    exchange(b, c)
    assert {1: (10,)} == known(c, 0)
    a = group(5)[0]
    a.take([(place, 0, (LIFE, USUAL, 1, (place,)), ()) for place in (1, 2, 3, 4)], USUAL)
    later = incarnation_after(LIFE, 0)
    delta: list[Piece] = [
        (1, 1, (LIFE, USUAL, 2, (10,)), ()),
        (2, 1, (LIFE, USUAL, 3, (20,)), ((2, 2, (21,)),)),
        (3, 1, (LIFE, 2, 2, (30,)), ()),
        (4, 1, (LIFE, USUAL, 2, (40,)), ()),
        (4, 0, (later, USUAL, 1, (41,)), ()),
    ]
    assert ({1: (10,), 4: (40,)}, [2, 3, 4]) == a.take(delta, USUAL)
    assert [{1: (10,)}, {1: (20,), 2: (21,)}, {1: (3,), 2: (30,)}, {1: (41,)}] == [known(a, i) for i in (1, 2, 3, 4)]


def test_a_piece_that_is_older_or_begins_after_what_the_copy_holds_is_not_taken() -> None:
    """The asker was restarted while the answer was on its way: it would believe that it has the key that it lacks."""
    a, b = group(2)
    a.set(1, (9,))
    late = heard(b, a.farewell(), Rest)
    a.set(1, (10,))
    exchange(b, a)
    assert ({}, []) == b.take(late.pieces, USUAL)
    a.set(2, (20,))
    body = a.answer(heard(a, b.ask(), Syn))
    restarted = Scuttlebutt(2, 1, incarnation_after(LIFE, 1), mark=MARK)
    assert ({}, []) == restarted.take(heard(restarted, body, Ack).pieces, USUAL)
    exchange(restarted, a)
    assert {1: (10,), 2: (20,)} == known(restarted, 0)


@pytest.mark.parametrize("asks_itself", [False, True], ids=["it is asked", "it asks"])
@pytest.mark.parametrize("later", [incarnation_after(LIFE, 5), LIFE], ids=["another", "of the same bytes"])
def test_a_member_that_lost_its_disk_hears_of_its_later_life(later: int, asks_itself: bool) -> None:
    a, b = group(2)
    a.begin(later)
    for number in range(5):
        a.set(1, (number,))
    exchange(a, b)
    a.begin(LIFE)
    exchange(a, b) if asks_itself else exchange(b, a)
    if asks_itself:
        exchange(b, a)  # Its own question brings nothing: it hears of itself from the others' copies.
    assert later == a.outlived


@pytest.mark.parametrize("seed", range(8))
def test_copies_come_to_be_alike_whatever_was_set_deleted_and_lost(seed: int) -> None:
    rng, members, lives = Random(seed), group(4), [LIFE] * 4
    for _ in range(400):
        one, other = rng.sample(range(4), 2)
        match rng.randrange(12):
            case 0:
                members[one].set(rng.randrange(4), (rng.randrange(100),))
            case 1:
                members[one].delete(rng.randrange(4))
            case 2 if rng.random() < 0.1:
                lives[one] = incarnation_after(lives[one], 1)
                members[one] = Scuttlebutt(4, one, lives[one], mark=MARK)
                members[one].set(0, (-1,))  # No member hears of a new life before it has said something.
            case _:
                syn = heard(members[one], members[one].ask(), Syn)
                ack = members[one].decode(members[other].answer(syn) or b"")
                if isinstance(ack, Ack) and rng.random() < 0.7:
                    members[one].take(rng.sample(ack.pieces, rng.randint(0, len(ack.pieces))), USUAL)
    for _ in range(3):
        for asker in members:
            for asked in members:
                if asker is not asked:
                    exchange(asker, asked)
    for place in range(4):
        assert [known(members[place], place)] * 4 == [known(member, place) for member in members]


def test_a_number_that_nobody_counts_to_is_passed_on_as_it_is_and_nobody_begins_a_life_because_of_it() -> None:
    for odd in (-1, (1 << 64) - 1):
        a, b = group(2)
        a.take([(1, 0, (LIFE, 1, 1, (odd,)), ())], USUAL)
        assert [(1, 0, (LIFE, 1, 1, (odd,)), ())] == heard(b, a.rest([(1, 0)]), Rest).pieces
        a.answer(heard(a, encode(Syn(MARK, 0, [odd, odd, LIFE, 1])), Syn))
        ack = heard(a, encode(Ack(MARK, [(1, odd, (odd, odd, odd, (odd,)), ())], [(odd, odd)])), Ack)
        a.take(ack.pieces, USUAL)
        a.rest(ack.wants)
        assert b.decode(a.ask()) is not None
    a, _ = group(2)
    a.answer(Syn(MARK, 0, [(1 << 60) + 1, 1]))
    a.take([(0, 0, (1 << 61, 0, 1, (1,)), ())], USUAL)
    assert 0 == a.outlived


def test_what_fits_into_no_answer_is_left_out_of_it_and_a_state_longer_than_a_datagram_comes_by_and_by() -> None:
    a, b, *_ = group(100)
    a.take([(1, 0, (LIFE, 1, 1, tuple(range(1 << 40, (1 << 40) + 125))), ())], USUAL)
    digest = [number for place in range(100) for number in ((LIFE << 32) + place if place > 1 else 0, 1)]
    ack = heard(b, a.answer(Syn(MARK, 0, digest)), Ack)
    assert ([], True) == (ack.pieces, len(ack.wants) > 10)
    a, b = group(2)
    for key in range(40):
        a.set(key, tuple(range(1 << 60, (1 << 60) + 10)))
    exchange(b, a)
    assert 0 < len(known(b, 0)) < 40
    for _ in range(20):
        exchange(b, a)
    assert known(a, 0) == known(b, 0)


def test_the_furthest_behind_goes_first() -> None:
    a, b = group(2 + 90)[:2]
    others = [Scuttlebutt(92, place, LIFE, mark=MARK) for place in range(2, 92)]
    for start in (1_000_000_000, 2_000_000_000):
        for number, other in enumerate(others):
            for version in range(1 + number):
                other.set(1, (start + version, 1_000_000_000, 1_000_000_000))
            exchange(other, a)
            if start == 1_000_000_000:
                exchange(other, b)
    exchange(b, a)
    behind = [place for place in range(2, 92) if b.versions[place] < a.versions[place]]
    assert behind == list(range(2, 2 + len(behind)))
    assert 30 < len(behind) < 80


@pytest.mark.parametrize("size", [3, 200])
def test_every_message_fits_into_a_datagram_and_all_is_known_in_the_end(size: int) -> None:
    rng, members = Random(size), group(size)
    for member in members:
        member.begin(incarnation_after(2**40, rng.getrandbits(16)))  # As long as incarnations can be.
        for key in range(4):
            member.set(key, tuple(rng.getrandbits(60) for _ in range(5)))
    for _ in range(60):
        for me, member in enumerate(members):
            exchange(member, members[(me + rng.randrange(1, size)) % size])
    assert all(known(one, place) == known(members[place], place) for one in members for place in range(size))


def test_others_marks_garbage_and_places_that_are_not_in_the_list_are_ignored() -> None:
    a, _ = group(2)
    stranger = Scuttlebutt(2, 1, LIFE, mark=MARK + 1)
    assert [None] * 4 == [a.decode(body) for body in (stranger.ask(), b"", b"\xff\x00garbage", a.ask()[:-1])]
    assert ({}, []) == a.take([(5, 0, (LIFE, 1, 1, (1,)), ()), (-1, 0, (LIFE, 1, 1, (1,)), ())], USUAL)
    assert a.answer(Syn(MARK, 1, [LIFE, 1, LIFE, 1])) is None
    assert a.rest([(9, 0), (-3, 0)]) is None
