"""The pump of a link: its clock, its order, and its end when nothing can be kept."""

from collections.abc import Callable, Mapping, Sequence
from math import inf

import pytest

from neli_router.electors.events import Heard, Keep, Nominate, PeerEffect, PeerInput, Prefer, Rebalance, Send
from neli_router.errors import PeersUnusable
from neli_router.peers.pump import PeerPump
from neli_router.protocol import NO_STANDING, TICK, Acquired, Close, Fenced, News, Notice, Standing, Stopped, Tick


class Wire:
    """A link whose network and disk are a list: what was asked of it, in order."""

    def __init__(self, log: list[object]) -> None:
        self.log = log
        self.address, self.memory = "peers://a:1/jobs", b""
        self.doubts: Sequence[str] = ()
        self.counts: Mapping[str, int] = {}
        self.heard_at: Mapping[int, float] = {}
        self.silent: frozenset[int] = frozenset()
        self.refusals: Mapping[int, str] = {}
        self.words: Mapping[int, bytes] = {}
        self.coming: list[Heard | Notice] = []
        self.on_take: Callable[[], None] = lambda: None
        self.is_full = False

    def say(self, word: bytes) -> None:
        self.log.append(("say", word))

    def wait(self, timeout: float) -> None:
        self.log.append(("wait", round(timeout, 3)))

    def take(self) -> list[Heard | Notice]:
        self.on_take()
        coming, self.coming = self.coming, []
        return coming

    def send(self, to: int, body: bytes) -> None:
        self.log.append(("send", to, body))

    def keep(self, memory: bytes) -> None:
        if self.is_full:
            raise PeersUnusable("a memory was wanted", "the disk is full", "make room")
        self.log.append(("keep", memory))

    def wake(self) -> None:
        self.log.append("wake")

    def close(self) -> None:
        pass


class Voting:
    """A machine that votes for whoever it hears, and ends on Close."""

    incarnation, caught_up, error, heard_at = "1", True, None, 0.0
    standing: Standing = NO_STANDING
    deadline = inf

    def __init__(self, log: list[object]) -> None:
        self.log = log
        self.noisy = True
        self.said: dict[bytes, list[PeerEffect]] = {}

    def tenures(self, now: float) -> dict[int, int]:
        return {}

    def step(self, event: PeerInput, now: float) -> Sequence[PeerEffect]:
        self.log.append((now, event))
        match event:
            case Heard(_, body) if body in self.said:
                return self.said[body]
            case Heard(sender, body):
                return [Keep(body), Send(sender, b"yes"), *([Notice("voted", {})] if self.noisy else [])]
            case Close():
                return [Stopped(None)]
            case _:
                return []


class Stage:
    def __init__(self) -> None:
        self.log: list[object] = []
        self.now = 10.0
        self.link, self.machine = Wire(self.log), Voting(self.log)
        self.pump = PeerPump(
            self.link,
            self.machine,
            clock=lambda: self.now,
            publish=lambda _, now: self.log.append(("publish", now)),
            tell=self._tell,
            explain=lambda effects: self.log.append(("explain", len(effects))),
        )

    def _tell(self, news: News) -> None:
        self.log.append(("tell", news))

    def turn(self) -> list[object]:
        self.log.clear()
        self.pump.turn()
        return list(self.log)


def test_the_standing_is_published_before_the_effects_and_the_effects_are_in_their_order() -> None:
    stage = Stage()
    stage.link.coming = [Heard(2, b"term 7")]
    expected = [
        ("wait", 0.5),
        (10.0, Heard(2, b"term 7")),
        ("explain", 3),
        ("publish", 10.0),
        ("keep", b"term 7"),
        ("send", 2, b"yes"),
        ("tell", Notice("voted", {})),
    ]
    assert expected == stage.turn()


def test_a_turn_waits_for_the_disk_once_and_nothing_that_is_said_of_a_memory_comes_before_it() -> None:
    """A group that starts votes for hundreds of partitions at once. Who waited each time would always be late."""
    stage = Stage()
    stage.machine.noisy = False
    stage.link.coming = [Heard(1, b"term 7"), Heard(2, b"term 8"), Heard(1, b"term 9")]
    acts = [entry for entry in stage.turn() if isinstance(entry, tuple) and entry[0] in ("keep", "send")]
    assert [("keep", b"term 9"), ("send", 1, b"yes"), ("send", 2, b"yes"), ("send", 1, b"yes")] == acts
    stage.link.coming = [Heard(1, b"term 10")]
    assert ("keep", b"term 10") in stage.turn()


def test_what_is_lost_is_told_before_the_disk_is_waited_for_but_not_before_it_was_told_as_gained() -> None:
    stage = Stage()
    stage.machine.noisy = False
    lost, gained = Fenced({0: 6}, "overtaken"), Acquired({0: 9})
    stage.machine.said = {b"lose": [lost], b"gain": [Keep(b"9"), gained], b"lose 9": [Fenced({0: 9}, "overtaken")]}
    for bodies, expected in (
        ([b"term 7", b"lose"], [("tell", lost), ("keep", b"term 7"), ("send", 1, b"yes")]),
        ([b"gain", b"lose 9"], [("keep", b"9"), ("tell", gained), ("tell", Fenced({0: 9}, "overtaken"))]),
    ):
        stage.link.coming = [Heard(1, body) for body in bodies]
        acts = [entry for entry in stage.turn() if isinstance(entry, tuple) and entry[0] in ("keep", "send", "tell")]
        assert expected == acts


def test_the_time_of_a_step_is_not_before_its_datagram_was_taken() -> None:
    """A thread that sleeps between the wait and the take must not date what it takes before it was sent."""
    stage = Stage()

    def sleep() -> None:
        stage.now += 5.0
        stage.link.coming = [Heard(1, b"sent a moment ago")]

    stage.link.on_take = sleep
    assert (15.0, Heard(1, b"sent a moment ago")) in stage.turn()


def test_a_vote_that_cannot_be_kept_is_not_sent() -> None:
    stage = Stage()
    stage.link.is_full = True
    stage.link.coming = [Heard(2, b"term 7")]
    with pytest.raises(PeersUnusable):
        stage.turn()
    assert ("send", 2, b"yes") not in stage.log


def test_what_the_link_has_to_say_is_told_and_takes_no_step() -> None:
    stage = Stage()
    notice = Notice("peers.refused", {"reason": "key"})
    stage.link.coming = [notice]
    assert [("wait", 0.5), ("tell", notice), (10.0, TICK), ("publish", 10.0)] == stage.turn()


def test_what_is_posted_is_taken_before_the_network_and_wakes_it() -> None:
    stage = Stage()
    posted: list[PeerInput] = [Nominate(1), Prefer({0: 3}), Rebalance(), Close()]
    for event in posted:
        stage.pump.post(event)
    assert ["wake"] * 4 == stage.log
    steps = [entry[1] for entry in stage.turn() if isinstance(entry, tuple) and isinstance(entry[0], float)]
    assert [*posted, TICK] == steps


def test_it_waits_until_the_machines_deadline_and_no_longer() -> None:
    stage = Stage()
    for deadline, wait in ((10.125, 0.125), (9.0, 0.0), (inf, 0.5)):
        stage.machine.deadline = deadline
        assert ("wait", wait) == stage.turn()[0]


def test_many_datagrams_make_a_step_each_and_no_tick() -> None:
    stage = Stage()
    stage.link.coming = [Heard(1, b"a"), Heard(2, b"b")]
    steps = [entry[1] for entry in stage.turn() if isinstance(entry, tuple) and isinstance(entry[0], float)]
    assert [Heard(1, b"a"), Heard(2, b"b")] == steps
    assert not any(isinstance(step, Tick) for step in steps)
