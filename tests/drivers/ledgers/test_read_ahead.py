"""The queue between a reading thread and the pump: one read at a time, by a reader that asks no server."""

import time
from math import inf

import pytest

from neli_router.drivers.ledgers import read_ahead
from neli_router.drivers.ledgers.base import READ_BYTES_MAX, Entry
from neli_router.drivers.ledgers.read_ahead import AHEAD_MAX, ReadAhead
from neli_router.errors import LedgerRewound, LedgerUnavailable


class Reader(ReadAhead):
    """A reader whose thread is the test."""

    silent = False

    def _require_life(self, now: float, *, ends: bool) -> None:
        if self.silent and ends:
            raise LedgerUnavailable("a read was wanted", "no server answers", "wait")

    def extend(self, first: int, count: int) -> None:
        with self._changed:
            self._extend([Entry(offset, b"") for offset in range(first, first + count)])

    def know(self, at: float) -> None:
        with self._changed:
            self._known_at = at
            self._changed.notify_all()


@pytest.fixture
def reader() -> Reader:
    """A queue that had its first answer: there is nothing."""
    reader = Reader()
    reader.know(time.monotonic())
    return reader


def offsets(entries: list[Entry]) -> list[int]:
    return [entry.offset for entry in entries]


def test_the_queue_is_full_at_its_bound_and_has_room_after_a_read(reader: Reader) -> None:
    reader.extend(1, AHEAD_MAX)
    assert not reader._has_room
    reader.read(0)
    assert reader._has_room


def test_after_a_seek_an_empty_read_waits_for_the_first_answer(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "FIRST_MAX", 0.05)
    with reader._changed:
        reader._begin_turn(started := time.monotonic())
    assert [] == reader.read(0)
    assert time.monotonic() - started >= 0.05
    reader.know(time.monotonic())
    assert [] == reader.read(0)


def test_a_seek_drops_what_was_read_and_counts_a_turn(reader: Reader) -> None:
    reader.extend(1, 3)
    turn = reader._turn
    with reader._changed:
        reader._begin_turn(time.monotonic())
    assert (turn + 1, inf) == (reader._turn, reader.age())
    reader.know(time.monotonic())
    assert [] == reader.read(0)


def test_the_age_counts_from_the_question_and_is_endless_while_more_is_there(reader: Reader) -> None:
    assert 0 <= reader.age() < inf
    reader.know(time.monotonic() - 7)
    assert 7 <= reader.age() < inf
    reader.extend(1, 1)
    assert inf == reader.age()


def test_an_error_of_the_reading_thread_is_raised_at_each_read_as_one_of_its_own(reader: Reader) -> None:
    reader.extend(1, 1)
    reader.fail(LedgerRewound("all records were wanted", "one is gone", "stop"))
    reader.fail(LedgerRewound("all records were wanted", "two are gone", "stop"))
    raised = []
    for _ in range(2):
        with pytest.raises(LedgerRewound, match="one is gone") as caught:
            reader.read(0)
        raised.append(caught.value)
    assert raised[0] is not raised[1]


def test_what_is_held_back_waits_for_the_thread_to_make_sure(reader: Reader) -> None:
    reader.extend(1, 1)
    reader._held_back = True
    assert [] == reader.read(0)
    reader._held_back = False
    assert [1] == offsets(reader.read(0))


def test_silence_is_no_peace(reader: Reader) -> None:
    reader.silent = True
    with pytest.raises(LedgerUnavailable):
        reader.read(0)
    reader.extend(1, 1)
    assert [1] == offsets(reader.read(0))


def test_long_entries_end_a_read_and_fill_the_queue_sooner() -> None:
    """Anyone who may write may write a thousand records of a megabyte."""
    reader, long = Reader(), bytes(READ_BYTES_MAX // 2 + 1)
    with reader._changed:
        reader._extend([Entry(offset, long) for offset in range(1, 9)])
    assert not reader._has_room
    assert [[1, 2], [3, 4], [5, 6], [7, 8]] == [offsets(reader.read(0)) for _ in range(4)]
    assert reader._has_room
