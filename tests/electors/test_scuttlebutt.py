"""Scuttlebutt: what members know of each other's state, and that it is never what the owner did not say."""

from random import Random

import pytest

from neli_router.electors.events import BODY_MAX
from neli_router.electors.scuttlebutt import Ack, Scuttlebutt, Syn, incarnation_after

MARK = 7
LIFE = incarnation_after(0, 0xABCD)


def group(size: int, grace: float = 100.0) -> list[Scuttlebutt]:
    return [Scuttlebutt(size, me, LIFE, mark=MARK, grace=grace) for me in range(size)]


def exchange(asker: Scuttlebutt, asked: Scuttlebutt, now: float = 0.0) -> None:
    """A Syn, its Ack, and the Rest."""
    syn = asker.decode(asker.ask())
    assert isinstance(syn, Syn)
    body = asked.answer(syn)
    if body is not None:
        assert len(body) <= BODY_MAX
        ack = asker.decode(body)
        assert isinstance(ack, Ack)
        asker.take(ack.pieces, now)
        rest = asker.rest(ack.wants)
        if rest is not None:
            assert len(rest) <= BODY_MAX
            told = asked.decode(rest)
            assert told is not None
            assert not isinstance(told, Syn)
            asked.take(told.pieces, now)


def known(one: Scuttlebutt, place: int) -> dict[int, tuple[int, ...] | None]:
    return {key: value for key, (_, _, value) in one.replicas[place].keys.items()}


def test_one_exchange_brings_both_up_to_date() -> None:
    a, b = group(2)
    a.set(1, (10,))
    b.set(1, (20,))
    b.set(2, (21, 22))
    exchange(a, b)
    assert ({1: (20,), 2: (21, 22)}, {1: (10,)}) == (known(a, 1), known(b, 0))


def test_news_pass_through_others() -> None:
    a, b, c = group(3)
    a.set(1, (10,))
    exchange(a, b)
    exchange(b, c)
    assert {1: (10,)} == known(c, 0)


def test_copies_that_are_alike_need_no_answer() -> None:
    a, b = group(2)
    a.set(1, (10,))
    exchange(a, b)
    exchange(b, a)
    syn = b.decode(a.ask())
    assert isinstance(syn, Syn)
    assert b.answer(syn) is None


def test_an_older_piece_that_comes_late_changes_nothing() -> None:
    a, b = group(2)
    a.set(1, (10,))
    late = b.decode(a.farewell())
    a.set(1, (11,))
    exchange(a, b)
    assert late is not None
    assert not isinstance(late, Syn)
    assert [] == b.take(late.pieces, 0.0)
    assert {1: (11,)} == known(b, 0)


def test_a_piece_that_begins_after_what_the_copy_holds_is_not_taken() -> None:
    """The asker was restarted while the answer was on its way: it would believe to have the key that it lacks."""
    a, b = group(2)
    a.set(1, (10,))
    exchange(b, a)
    a.set(2, (20,))
    syn = a.decode(b.ask())
    assert isinstance(syn, Syn)
    body = a.answer(syn)
    assert body is not None
    restarted = Scuttlebutt(2, 1, incarnation_after(LIFE, 1), mark=MARK, grace=100.0)
    ack = restarted.decode(body)
    assert isinstance(ack, Ack)
    assert [] == restarted.take(ack.pieces, 0.0)
    exchange(restarted, a)
    assert {1: (10,), 2: (20,)} == known(restarted, 0)


def test_a_later_life_replaces_all_of_an_older_one() -> None:
    a, b = group(2)
    a.set(1, (10,))
    a.set(2, (20,))
    exchange(a, b)
    a.begin(incarnation_after(LIFE, 0))
    a.set(1, (11,))
    exchange(a, b)
    assert {1: (11,)} == known(b, 0)


def test_an_older_life_does_not_come_back() -> None:
    a, b, c = group(3)
    a.set(1, (10,))
    exchange(a, c)
    a.begin(incarnation_after(LIFE, 0))
    a.set(1, (11,))
    exchange(a, b)
    exchange(c, b)
    assert ({1: (11,)}, {1: (11,)}) == (known(b, 0), known(c, 0))


def test_a_later_life_is_later_whatever_was_drawn() -> None:
    assert incarnation_after(LIFE, 0) > incarnation_after(0, 0xFFFF)


@pytest.mark.parametrize("asks_itself", [False, True], ids=["it is asked", "it asks"])
def test_a_member_that_lost_its_disk_hears_of_its_later_life(asks_itself: bool) -> None:
    a, b = group(2)
    a.begin(later := incarnation_after(LIFE, 5))
    a.set(1, (10,))
    exchange(a, b)
    a.begin(LIFE)
    exchange(a, b) if asks_itself else exchange(b, a)
    if asks_itself:
        exchange(b, a)  # Its own question tells it nothing: it hears of itself from what others know.
    assert later == a.outlived


def test_the_same_life_with_more_behind_it_is_a_later_one() -> None:
    """Both lives drew the same bytes."""
    a, b = group(2)
    for number in range(5):
        a.set(1, (number,))
    exchange(a, b)
    a.begin(LIFE)
    exchange(b, a)
    assert LIFE == a.outlived


def test_a_deletion_travels() -> None:
    a, b, c = group(3)
    a.set(1, (10,))
    exchange(a, b)
    exchange(a, c)
    a.delete(1, 0.0)
    exchange(a, b)
    exchange(b, c)
    assert (None, None) == (b.replicas[0].get(1), c.replicas[0].get(1))


def test_a_deletion_is_forgotten_after_its_grace_and_copies_that_missed_it_begin_anew() -> None:
    a, b = group(2, grace=100.0)
    a.set(1, (10,))
    a.set(2, (20,))
    exchange(a, b)
    a.delete(1, 0.0)
    a.purge(99.0)
    assert {2: (20,), 1: None} == known(a, 0)
    a.purge(100.0)
    assert {2: (20,)} == known(a, 0)
    a.set(3, (30,))
    exchange(a, b)
    assert {2: (20,), 3: (30,)} == known(b, 0)


def test_a_key_that_was_set_again_outlives_the_grace_of_its_deletion() -> None:
    a, _ = group(2)
    a.set(1, (10,))
    a.delete(1, 0.0)
    a.set(1, (11,))
    a.purge(1000.0)
    assert {1: (11,)} == known(a, 0)


def test_deleting_what_is_not_there_changes_nothing() -> None:
    a, _ = group(2)
    a.delete(1, 0.0)
    assert (0, {}) == (a.own.version, known(a, 0))


def test_the_furthest_behind_goes_first() -> None:
    a, b = group(2 + 90)[:2]
    others = [Scuttlebutt(92, place, LIFE, mark=MARK, grace=100.0) for place in range(2, 92)]
    for number, other in enumerate(others):
        for version in range(1 + number):
            other.set(1, (1_000_000_000 + version, 1_000_000_000, 1_000_000_000))
        exchange(other, a)
    for other in others:
        exchange(other, b)
    for number, other in enumerate(others):
        for version in range(1 + number):
            other.set(1, (2_000_000_000 + version, 1_000_000_000, 1_000_000_000))
        exchange(other, a)
    exchange(b, a)
    behind = [place for place in range(2, 92) if b.replicas[place].version < a.replicas[place].version]
    assert behind == list(range(2, 2 + len(behind)))
    assert 30 < len(behind) < 80


@pytest.mark.parametrize("size", [3, 101, 200])
def test_every_message_fits_into_a_datagram_and_all_is_known_in_the_end(size: int) -> None:
    rng = Random(size)
    members = group(size)
    for member in members:
        member.begin(incarnation_after(2**40, rng.getrandbits(16)))  # As long as incarnations can be.
        for key in range(4):
            member.set(key, tuple(rng.getrandbits(60) for _ in range(5)))
    for _ in range(60):
        for me, member in enumerate(members):
            exchange(member, members[(me + rng.randrange(1, size)) % size])
    assert all(known(one, place) == known(members[place], place) for one in members for place in range(size))


def test_a_state_that_does_not_fit_at_once_comes_by_and_by() -> None:
    a, b = group(2)
    for key in range(40):
        a.set(key, tuple(range(10**12, 10**12 + 10)))
    exchange(b, a)
    assert 0 < len(known(b, 0)) < 40
    for _ in range(8):
        exchange(b, a)
    assert known(a, 0) == known(b, 0)


def test_others_marks_and_garbage_are_ignored() -> None:
    a, _ = group(2)
    stranger = Scuttlebutt(2, 1, LIFE, mark=MARK + 1, grace=100.0)
    assert [None] * 4 == [a.decode(body) for body in (stranger.ask(), b"", b"\xff\x00garbage", a.ask()[:-1])]


def test_places_that_are_not_in_the_list_are_ignored() -> None:
    a, _ = group(2)
    assert [] == a.take([(5, LIFE, 0, [(1, 1, (1,))]), (-1, LIFE, 0, [(1, 1, (1,))]), (1, LIFE, 0, [])], 0.0)
    assert a.answer(Syn(MARK, 1, [LIFE, 1, LIFE, 1])) is None
    assert a.rest([9, 0, -3, 0, 1]) is None
