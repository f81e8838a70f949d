"""The contract of the three pumps, which drive a ledger, a subscription and a link; then tests of the last two alone.

    port --wait, news, clock--> pump --input, time--> machine --> explain, publish the standing, effects in order

The port logs what the pump asks of it, and the machine logs its steps, into the same log. The clock moves only when a
test moves it. tests/drivers/ledgers/test_pump.py covers the rest of the ledger's pump.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest

from neli_router.drivers.consumer_groups.base import SubscriptionPump
from neli_router.drivers.ledgers.pump import Pump
from neli_router.drivers.peers.base import PeerPump
from neli_router.errors import PeersUnusable
from neli_router.protocols.consumer_group.events import (
    BrokerAway,
    BrokerBack,
    Confirm,
    GiveBack,
    Given,
    LeaveGroup,
    Message,
    Publish,
    Received,
)
from neli_router.protocols.electors.events import Heard, Keep, Nominate, Send
from neli_router.protocols.induction.events import Append, Read
from neli_router.protocols.induction.records import Drain, encode
from neli_router.protocols.protocol import TICK, Acquired, Close, Fenced, Notice, Stopped
from tests.drivers.ledgers.tape import Scripted, Tape

WAIT_MAX = 0.5

WISH = Drain(by="operator", name="x")


class Port:
    """A subscription and a link in one."""

    address = "port"

    def __init__(self, log: list[Any]) -> None:
        self._log = log
        self.coming: list[Any] = []
        self.is_full = False
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while the port waits."""
        self.on_take: Callable[[], None] = lambda: None

    def wait(self, timeout: float) -> None:
        self._log.append(("wait", timeout))
        self.meanwhile()

    def take(self) -> list[Any]:
        self.on_take()
        coming, self.coming = self.coming, []
        return coming

    def keep(self, memory: bytes) -> None:
        if self.is_full:
            raise PeersUnusable("a memory was wanted", "the disk is full", "make room")
        self._log.append(("keep", memory))

    def wake(self) -> None:
        self._log.append(("wake",))

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Log any other call."""
        return lambda *arguments: self._log.append((name, *arguments))


class Bench:
    """A pump, its port and its machine, and a log of everything that they do, in order."""

    idle: Any = TICK
    """The input of a step when nothing came."""
    news: Any
    effect: Any
    done: Any
    """The port's entry in the log when `effect` is carried out."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.now, self.stalls = 10.0, 0.0
        self.machine: Any = Scripted(self.log)
        self.port: Any = Port(self.log)
        self.pump: Any = self.pumping(
            clock=self.clock,
            publish=lambda _, now: self.log.append(("standing", now)),
            tell=lambda news: self.log.append(("tell", news)),
            explain=lambda effects: self.log.append(("explain", len(effects))),
        )
        self.log.clear()

    def pumping(self, **callbacks: Any) -> Any:
        raise NotImplementedError

    def clock(self) -> float:
        """The time; then the thread stalls."""
        now, self.now = self.now, self.now + self.stalls
        return now

    def turn(self) -> list[Any]:
        self.log.clear()
        self.pump.turn()
        return list(self.log)

    def steps(self) -> list[Any]:
        """The inputs of one turn."""
        return [entry[1] for entry in self.turn() if isinstance(entry[0], float)]

    def acts(self, *coming: Any) -> list[Any]:
        """The acts of one turn in which `coming` arrived."""
        self.port.coming = [*coming]
        return [entry for entry in self.turn() if entry[0] in ("keep", "send", "tell")]


class OfLedger(Bench):
    idle = news = Read([], 0.0)
    effect = Append([WISH], lasting=False)
    done = ("append", [encode(WISH)], False)

    def pumping(self, **callbacks: Any) -> Any:
        self.port = Tape()
        self.port.log = self.log
        return Pump(self.port, lambda state, now: self.machine, pause=lambda _: None, **callbacks)


class OfSubscription(Bench):
    news = Given([0])
    effect = Publish({3: b"beat"})
    done = ("publish", {3: b"beat"})

    def pumping(self, **callbacks: Any) -> Any:
        return SubscriptionPump(self.port, self.machine, wall=lambda: 1000.0 + self.now, **callbacks)


class OfPeers(Bench):
    news = Heard(1, b"sent a moment ago")
    effect = Send(2, b"yes")
    done = ("send", 2, b"yes")

    def pumping(self, **callbacks: Any) -> Any:
        return PeerPump(self.port, self.machine, **callbacks)


@pytest.fixture(params=[OfLedger, OfSubscription, OfPeers])
def bench(request: pytest.FixtureRequest) -> Bench:
    kind: type[Bench] = request.param
    return kind()


def test_a_turn_waits_until_the_machines_deadline_and_never_for_long(bench: Bench) -> None:
    for deadline, timeout in ((10.25, 0.25), (99.0, WAIT_MAX), (inf, WAIT_MAX), (10.0, 0.0), (3.0, 0.0), (-inf, 0.0)):
        bench.machine.deadline = deadline
        assert [("wait", timeout), (10.0, bench.idle), ("standing", 10.0)] == bench.turn()


def test_the_time_of_a_step_is_not_before_its_news_was_taken(bench: Bench) -> None:
    """A message may have been sent during the wait that brought it, and the thread may sleep before it takes it."""

    def sleep() -> None:
        bench.now += 5.0

    bench.port.meanwhile = bench.port.on_take = sleep
    bench.port.coming = [bench.news]
    log = bench.turn()
    assert bench.now > 10.0
    assert (bench.now, bench.news) in log


def test_the_standing_is_published_before_the_effects_and_the_effects_are_in_their_order(bench: Bench) -> None:
    """No thread of the program may still see a partition as led when it is on its way to another member."""
    acquired, stopped = Acquired({0: 1}), Stopped(None)
    bench.machine.answers[Close] = [bench.effect, acquired, bench.effect, stopped]
    bench.pump.post(Close())
    assert [
        (10.0, Close()),
        ("explain", 4),
        ("standing", 10.0),
        bench.done,
        ("tell", acquired),
        bench.done,
        ("tell", stopped),
    ] == bench.turn()[:7]


def test_what_is_posted_wakes_the_port_and_is_taken_in_its_order_before_what_comes(bench: Bench) -> None:
    for event in (TICK, Close()):
        bench.pump.post(event)
    assert [("wake",), ("wake",)] == bench.log
    assert [TICK, Close(), bench.idle] == bench.steps()


def test_what_a_step_posts_is_left_for_the_next_turn_and_this_one_does_not_wait_for_long(bench: Bench) -> None:
    """A machine whose answers post again must not keep the pump from reading, and must not be kept waiting."""
    bench.machine.deadline, bench.machine.on_step = 99.0, lambda: bench.pump.post(TICK)
    bench.pump.post(Close())
    assert [Close(), bench.idle] == bench.steps()
    assert not any(entry[1] for entry in bench.log if entry[0] == "wait")


def test_what_passes_between_the_age_of_a_read_and_its_step_makes_it_older() -> None:
    """A thread that stalls between the two must not take the ledger for fresher than it was."""
    bench = OfLedger()
    bench.stalls = 5.0
    assert (20.0, Read([], 5.0)) in bench.turn()
    assert 15.0 == bench.pump.fresh_at


def test_the_wall_clock_is_read_after_the_time_of_the_step() -> None:
    """A thread that sleeps between the two must make a message look older than it is, never younger."""
    bench = OfSubscription()
    message = Message(0, 7, 1014.0, None)
    bench.port.coming, bench.stalls = [[message]], 5.0
    assert (15.0, Received([message], 1020.0)) in bench.turn()


def test_each_effect_of_a_group_is_one_call_of_its_subscription() -> None:
    bench = OfSubscription()
    bench.port.coming = [Given([0])]
    bench.machine.answers[Given] = [Publish({0: None}), Confirm({0: 7}), GiveBack([0]), LeaveGroup()]
    assert [("publish", {0: None}), ("confirm", {0: 7}), ("give_back", [0]), ("leave",)] == bench.turn()[-4:]


def test_a_broker_that_goes_away_and_comes_back_is_told_and_the_machine_hears_it() -> None:
    bench = OfSubscription()
    bench.port.coming = [BrokerAway(), BrokerBack()]
    fields = {"what": "read", "ledger": "port"}
    assert [
        ("tell", Notice("ledger.unavailable", {**fields, "error": "no broker answers"})),
        (10.0, BrokerAway()),
        ("standing", 10.0),
        ("tell", Notice("ledger.available", fields)),
        (10.0, BrokerBack()),
        ("standing", 10.0),
    ] == bench.turn()[1:]


class Voting(Scripted):
    """Votes for every peer that it hears, unless it should say something else."""

    def __init__(self, log: list[Any], **said: Sequence[Any]) -> None:
        super().__init__(log)
        self._said = said

    def step(self, event: Any, now: float) -> list[Any]:
        super().step(event, now)
        if not isinstance(event, Heard):
            return []
        return [*self._said.get(event.body.decode(), [Keep(event.body), Send(event.sender, b"yes")])]


def voting(**said: Sequence[Any]) -> Bench:
    bench = OfPeers()
    bench.pump.machine = Voting(bench.log, **said)
    return bench


def test_many_datagrams_make_a_step_each_and_no_tick_and_what_the_link_has_to_say_makes_none() -> None:
    bench, notice = OfPeers(), Notice("peers.refused", {"reason": "key"})
    bench.port.coming = [Heard(1, b"a"), notice, Heard(2, b"b")]
    assert [Heard(1, b"a"), Heard(2, b"b")] == bench.steps()
    bench.port.coming = [notice]
    assert [("tell", notice), (10.0, TICK), ("standing", 10.0)] == bench.turn()[1:]


def test_a_turn_waits_for_the_disk_once_and_nothing_that_is_said_of_a_memory_comes_before_it() -> None:
    """A group that starts has hundreds of votes in one turn. A flush for each would make all of them late."""
    bench = voting()
    said = [("send", 1, b"yes"), ("send", 2, b"yes"), ("send", 1, b"yes")]
    assert [("keep", b"9"), *said] == bench.acts(Heard(1, b"7"), Heard(2, b"8"), Heard(1, b"9"))
    assert [("keep", b"10"), ("send", 1, b"yes")] == bench.acts(Heard(1, b"10"))
    bench.pump.post(Heard(1, b"11"))
    assert [("keep", b"11"), ("send", 1, b"yes"), ("wait", 0.0)] == [
        entry for entry in bench.turn() if entry[0] in ("keep", "send", "wait")
    ]


def test_what_is_lost_is_told_before_the_disk_is_waited_for_but_not_before_it_was_told_as_gained() -> None:
    lost, gained, lost_again = Fenced({0: 6}, "overtaken"), Acquired({0: 9}), Fenced({0: 9}, "overtaken")
    bench = voting(lose=[lost], gain=[Keep(b"9"), gained], lose_9=[lost_again])
    vote = [("tell", lost), ("keep", b"term 7"), ("send", 1, b"yes")]
    assert vote == bench.acts(Heard(1, b"term 7"), Heard(1, b"lose"))
    both = [("keep", b"9"), ("tell", gained), ("tell", lost_again)]
    assert both == bench.acts(Heard(1, b"gain"), Heard(1, b"lose_9"))


def test_a_vote_that_cannot_be_kept_is_not_sent_and_ends_the_pump() -> None:
    bench = voting()
    bench.port.is_full, bench.port.coming = True, [Heard(2, b"term 7")]
    bench.pump.post(Nominate(1))
    with pytest.raises(PeersUnusable):
        bench.turn()
    assert ("send", 2, b"yes") not in bench.log
