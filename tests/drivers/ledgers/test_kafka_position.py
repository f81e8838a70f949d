"""The position of Kafka's reader: a pure state, fed with brokers' answers and with records that no broker wrote."""

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError

from neli_router.drivers.ledgers.kafka.position import QUIET_MAX, ConsumerState, Position

AWAY = KafkaError(KafkaError._TRANSPORT, "no broker")
FATAL = KafkaError(KafkaError._FATAL, "given up")
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no right")
GONE = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic")


def record(at: int, *, epoch: int = 1, payload: bytes = b"record", stamp: int | None = 1_500) -> Any:
    """The part of a Message that a position looks at."""
    time = (TIMESTAMP_NOT_AVAILABLE, 0) if stamp is None else (TIMESTAMP_CREATE_TIME, stamp)
    return SimpleNamespace(offset=lambda: at, leader_epoch=lambda: epoch, value=lambda: payload, timestamp=lambda: time)


def take(position: Position, *records: Any, now: float = 0.0) -> list[int]:
    return [entry.offset for entry in position.take([*records], now)]


def consumer(position: Position) -> ConsumerState:
    """For mypy, which assumes that an attribute stays unchanged after a comparison."""
    return position.consumer


@pytest.fixture
def position() -> Position:
    """A position at offset 5, assigned there, with nothing known yet."""
    position = Position(5, 0.0)
    assert (5, False) == position.begin()
    return position


def test_a_record_carries_the_time_that_the_topic_keeps(position: Position) -> None:
    entries = position.take([record(5), record(6, stamp=None)], 0.0)
    assert [(5, 1.5), (6, None)] == [(entry.offset, entry.time) for entry in entries]


def test_it_fetches_from_where_it_was_sought_once(position: Position) -> None:
    assert (None, False) == position.begin()
    position.seek(9, 1.0)
    assert (9, False) == position.begin()
    assert (None, False) == position.begin()
    position.seek(3, 2.0)
    position.fetch_anew()
    position.renewed()
    assert (3, False) == position.begin()  # A pending seek keeps its target.


def test_a_client_whose_position_does_not_move_looks_for_the_leader_once(position: Position) -> None:
    assert position.answered(5, 9, 1.0, 1.1)
    assert position.follow(anew=False, has_room=True)
    assert ConsumerState.SOUND is consumer(position)
    assert position.follow(anew=False, has_room=True)
    assert ConsumerState.ASTRAY is consumer(position)
    assert (None, True) == position.begin()
    assert ConsumerState.SOUND is consumer(position)


def test_a_client_that_moves_or_whose_queue_is_full_is_not_astray(position: Position) -> None:
    position.answered(5, 9, 1.0, 1.1)
    position.follow(anew=False, has_room=True)
    take(position, record(5))
    assert position.follow(anew=False, has_room=True)
    assert not position.follow(anew=False, has_room=False)
    assert ConsumerState.SOUND is consumer(position)
    assert not position.follow(anew=True, has_room=False)  # A new leader is looked for even if nothing waits.
    assert ConsumerState.ASTRAY is consumer(position)


def test_a_client_that_was_given_up_is_made_anew_and_fetches_from_the_same_place(position: Position) -> None:
    take(position, record(5))
    position.complained(AWAY)
    assert ConsumerState.SOUND is consumer(position)
    position.complained(FATAL)
    position.follow(anew=True, has_room=True)
    assert ConsumerState.BROKEN is consumer(position)
    position.renewed()
    assert (6, False) == position.begin()


def test_records_follow_each_other_and_at_another_leader_the_last_one_is_read_again(position: Position) -> None:
    assert [5, 6] == take(position, record(5), record(6))
    assert [7] == take(position, record(7))
    assert (8, None) == (position.next, position.fetch_from)
    assert [] == take(position, record(8, epoch=2))
    assert (7, 8) == (position.fetch_from, position.next)
    position.begin()
    assert [8] == take(position, record(7), record(8, epoch=2))  # The record is the same, so everything goes on.
    assert ("", 9) == (position.seam.found, position.next)


@pytest.mark.parametrize("instead", [record(5, epoch=2), record(5, payload=b"another"), record(6, epoch=2)])
def test_if_it_is_another_one_the_log_was_cut(position: Position, instead: Any) -> None:
    take(position, record(5))
    take(position, record(6, epoch=2))
    assert [] == take(position, instead)
    assert "the record at 5 is no longer the one" in position.seam.found


def test_if_it_was_trimmed_meanwhile_nothing_can_be_said_and_all_goes_on(position: Position) -> None:
    take(position, record(5))
    take(position, record(6, epoch=2))
    position.begin()
    position.fetch_anew(low=6)
    assert (6, False) == position.begin()
    assert [6] == take(position, record(6, epoch=2))


def test_what_is_known_is_as_old_as_the_question(position: Position) -> None:
    assert -inf == position.known_at
    assert position.answered(5, 6, 1.0, 1.5)
    assert -inf == position.known_at, "there is one more"
    take(position, record(5), now=1.6)
    assert 1.0 == position.known_at
    assert not position.answered(6, 5, 2.0, 2.1), "a broker that knows less than was read is not believed"
    assert position.answered(5, 6, 2.0, 2.1), "it was asked before"


def test_an_answer_from_before_a_seek_tells_nothing_about_after_it(position: Position) -> None:
    position.answered(5, 5, 1.0, 1.1)
    position.seek(3, 2.0)
    position.answered(3, 3, 1.9, 2.1)
    assert -inf == position.known_at
    position.answered(3, 3, 2.2, 2.3)
    assert 2.2 == position.known_at


@pytest.mark.parametrize(("error", "after", "doubtful"), [(AWAY, 0.9, False), (AWAY, 1.1, True), (GONE, 0.1, True)])
def test_it_may_be_another_topic_after_a_while_without_answers(error: KafkaError, after: float, doubtful: bool) -> None:
    position = Position(5, 0.0)
    position.answered(5, 5, 1.0, 1.0)
    position.unanswered(error, 1.0 + QUIET_MAX * after)
    assert (doubtful, doubtful) == (position.doubtful, position.known_at == -inf)
    position.assured(3.0)
    assert 1.0 == position.known_at


def test_records_end_the_trouble_and_an_answer_does_if_all_was_read(position: Position) -> None:
    position.complained(AWAY)
    position.answered(5, 9, 1.0, 1.1)
    assert (AWAY, 0.0) == (position.trouble, position.alive_at)
    take(position, record(5), now=2.0)
    assert (None, 2.0) == (position.trouble, position.alive_at)
    position.complained(AWAY)
    position.answered(6, 6, 3.0, 3.1)
    assert (None, 3.1) == (position.trouble, position.alive_at)


def test_a_right_that_is_missing_is_told_only_once_and_so_kept(position: Position) -> None:
    position.complained(DENIED)
    position.answered(5, 5, 1.0, 1.1)
    assert DENIED is position.trouble
    position.unanswered(AWAY, 2.0)  # A busy broker was late: seen on a machine with much else to do.
    position.complained(AWAY)
    assert DENIED is position.trouble
    take(position, record(5))
    assert None is position.trouble
