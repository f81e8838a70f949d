"""The prober's questions and their timing, against brokers that a test answers for, on a clock that the test turns.

tests/chaos has real brokers.
"""

from types import SimpleNamespace

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from neli_router.drivers.ledgers.kafka import reader as module
from neli_router.drivers.ledgers.kafka.reader import LOOK_EVERY, LOOK_MAX, PAUSE, PROBE_EVERY, Prober
from neli_router.drivers.ledgers.kafka.topic import Questions

CLOCK: SimpleNamespace = SimpleNamespace(now=100.0, monotonic=lambda: CLOCK.now)
"""Stands still, except for the time that a test or a question takes."""


@pytest.fixture(autouse=True)
def _by_this_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", CLOCK)


class Brokers(Questions):
    """Brokers that answer what the test wants."""

    def __init__(self) -> None:
        self.high: int | None = 7
        self.leads = 1
        self.changed = ""
        self.takes = 0.0
        self.asked: list[str] = []

    def tip(self, timeout: float) -> int:
        self.asked.append("tip")
        CLOCK.now += self.takes
        if self.high is None:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET, "none leads"))
        return self.high

    def leader(self, timeout: float) -> int:
        self.asked.append("leader")
        return self.leads

    def changed_identity(self, timeout: float) -> str:
        self.asked.append("identity")
        return self.changed


class Reader:
    """The part of a reader that the prober uses."""

    def __init__(self) -> None:
        self.doubtful = self.waiting = False
        self.believes = True
        self.heard: list[object] = []

    def position(self) -> tuple[int, bool]:
        return 5, self.doubtful

    def identified(self, why: str) -> None:
        self.heard.append(why or "the same")

    def answered(self, before: int, high: int, asked_at: float) -> bool:
        self.heard.append(high)
        return self.believes

    def unanswered(self, error: KafkaError, asked_at: float) -> None:
        self.heard.append(error.name())

    def follow(self, *, anew: bool) -> bool:
        self.heard.append("look anew" if anew else "look")
        return self.waiting


def scene() -> tuple[Prober, Brokers, Reader]:
    brokers, reader = Brokers(), Reader()
    return Prober("test", brokers, reader, [reader]), brokers, reader  # type: ignore[arg-type]


def failing() -> tuple[Prober, Brokers, Reader]:
    """No broker leads, the question took its whole time, and the last leader was looked up."""
    prober, brokers, reader = scene()
    brokers.high, brokers.takes = None, LOOK_MAX
    prober._turn(urgent=False)
    prober._turn(urgent=False)
    brokers.takes = 0.0
    brokers.asked.clear()
    reader.heard.clear()
    return prober, brokers, reader


def test_in_calm_it_asks_for_the_tip_alone_and_sooner_while_something_is_to_move() -> None:
    prober, brokers, reader = scene()
    assert PROBE_EVERY == prober._turn(urgent=False)
    assert ["tip"] == brokers.asked
    assert [7, "look"] == reader.heard
    reader.waiting = True
    assert LOOK_EVERY == prober._turn(urgent=False)


def test_while_none_leads_it_looks_for_a_leader_and_seldom_asks_for_the_tip() -> None:
    prober, brokers, _ = failing()
    brokers.leads = -1
    assert LOOK_EVERY == prober._turn(urgent=False)
    assert LOOK_EVERY == prober._turn(urgent=False)
    assert ["leader", "leader"] == brokers.asked
    CLOCK.now += PAUSE
    prober._turn(urgent=False)
    assert ["leader", "leader", "leader", "tip"] == brokers.asked


def test_as_soon_as_another_leads_it_asks_that_one_and_all_followers_look_for_it() -> None:
    prober, brokers, reader = failing()
    brokers.leads, brokers.high = 2, 9
    assert PROBE_EVERY == prober._turn(urgent=False)
    assert ["leader", "tip"] == brokers.asked
    assert [9, "look anew"] == reader.heard
    prober._turn(urgent=False)
    assert [9, "look anew", 9, "look"] == reader.heard


def test_a_leader_that_says_no_at_once_is_asked_again_soon_and_anyone_if_it_is_urgent() -> None:
    prober, brokers, _ = failing()
    brokers.leads = 2
    for _ in range(2):
        assert LOOK_EVERY == prober._turn(urgent=False)
    assert ["leader", "tip", "leader", "tip"] == brokers.asked
    prober, brokers, _ = failing()
    prober._turn(urgent=True)
    assert "tip" in brokers.asked


def test_an_answer_that_cannot_be_believed_is_as_good_as_none() -> None:
    prober, brokers, reader = scene()
    reader.believes = False
    assert LOOK_EVERY == prober._turn(urgent=False)
    prober._turn(urgent=False)
    assert ["tip", "leader"] == brokers.asked[:2]


def test_if_it_may_be_another_topic_it_asks_for_that_first_and_if_it_is_for_nothing_more() -> None:
    prober, brokers, reader = scene()
    reader.doubtful = True
    assert prober._turn(urgent=False) is not None
    assert ["identity", "tip"] == brokers.asked
    brokers.changed = "another one"
    assert prober._turn(urgent=False) is None
    assert "another one" == reader.heard[-1]
