"""One suite for every way to share partitions: the promises that machines rely on.

    WAYS["range"] ----------+
    WAYS["consumer"] -------+--> a fresh group for each test --> join() as many subscriptions as the test wants
    WAYS["simulated ..."] --+

To add a way, add a function that makes a group to WAYS. Nothing here assumes which member is given which partition. The
machines may rely on everything that these tests require of the simulated coordinator, and will find it in Kafka.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from typing import Literal
from uuid import uuid4

import pytest
from _pytest.mark import ParameterSet

from neli_router.drivers.consumer_groups.address import parse
from neli_router.drivers.consumer_groups.base import GroupSubscription
from neli_router.drivers.consumer_groups.memory import MemoryBroker, MemorySubscription
from neli_router.errors import Closed
from neli_router.protocols.consumer_group.events import AskedBack, Confirmed, Given, Lost
from tests.drivers.consumer_groups.simulated import SimulatedGroup
from tests.support.taking import Taking, until
from tests.support.waiting import PATIENCE

PARTITIONS = 4
ALL = set(range(PARTITIONS))

SESSION = 6.0
"""Seconds: no member of these tests dies, so no test waits for a session to end, and a busy machine ends none."""

Join = Callable[[], GroupSubscription]
"""Add one more subscription to the group."""

Server = Callable[[str], str]
"""The address of a running server, by the name of its fixture."""


def in_kafka(way: str, server: Server, patience: float) -> Join:
    from neli_router.drivers.consumer_groups.kafka import KafkaSubscription  # noqa: PLC0415 - as users do.

    address, problems = parse(f"//{server('kafka')}/contract-{uuid4().hex}?partitions={PARTITIONS}&{way}")
    assert address is not None, problems
    return lambda: KafkaSubscription(address, session=SESSION, patience=patience)


def simulated(
    assignor: Literal["eager", "cooperative"], _: Server, patience: float, *, deaf: bool, sparse: bool
) -> Join:
    times = {"session": SESSION, "patience": patience}
    return SimulatedGroup(assignor, partitions=PARTITIONS, deaf=deaf, sparse=sparse, **times).join


def in_memory(_: Server, patience: float) -> Join:
    # Each look turns the clock by a millisecond. In real time, the loop would keep a core busy: `wait` does not wait.
    broker = MemoryBroker(PARTITIONS, clock=count(0.0, 0.001).__next__, wall=time.time)
    return lambda: MemorySubscription(broker, session=SESSION, patience=patience)


WAYS: dict[str, Callable[[Server, float], Join]] = {
    "range": partial(in_kafka, "partition.assignment.strategy=range"),
    "cooperative-sticky": partial(in_kafka, "partition.assignment.strategy=cooperative-sticky"),
    "consumer": partial(in_kafka, "group.protocol=consumer"),
    "memory": in_memory,
    "simulated eager": partial(simulated, "eager", deaf=True, sparse=False),
    "simulated cooperative": partial(simulated, "cooperative", deaf=True, sparse=True),
    "simulated eager, which listens": partial(simulated, "eager", deaf=False, sparse=True),
    "simulated cooperative, which listens": partial(simulated, "cooperative", deaf=False, sparse=False),
}


def marked(ways: Iterable[str]) -> list[ParameterSet]:
    return [
        pytest.param(way, marks=() if way.startswith(("memory", "simulated")) else pytest.mark.kafka) for way in ways
    ]


BRIEF = [way for way in WAYS if way != "range"]
"""For tests that wait until a patience is over: Kafka's eager ways end it like the other classic one does."""


class Group:
    """A group whose members the test closes at its end, if they are still open."""

    def __init__(self, way: str, join: Join, stack: ExitStack) -> None:
        self._join, self._stack = join, stack
        self.listens = not way.startswith("simulated") or way.endswith("listens")

    def join(self) -> Taking:
        return Taking(self._stack.enter_context(closing(self._join())))

    def joined(self, count: int) -> list[Taking]:
        """`count` members that have shared all partitions out among them."""
        members = [self.join() for _ in range(count)]
        until(lambda: shared(members), *members)
        return members


def shared(members: list[Taking]) -> bool:
    each = [member.has for member in members]
    return all(each) and sum(map(len, each)) == PARTITIONS and set.union(*each) == ALL


def heard(body: bytes, by: Taking) -> bool:
    """Whether the member has heard itself. It misses everything that was published before it began to read."""
    by.subscription.publish({0: body})
    return any(message.body == body for message in by.messages)


@pytest.fixture(params=marked(WAYS))
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(request.param, WAYS[request.param](request.getfixturevalue, PATIENCE), stack)


@pytest.fixture(params=marked(BRIEF))
def impatient(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A group whose broker waits for an answer no longer than a session."""
    with ExitStack() as stack:
        yield Group(request.param, WAYS[request.param](request.getfixturevalue, SESSION), stack)


def test_a_member_alone_is_given_everything_once_hears_itself_and_is_confirmed(group: Group) -> None:
    (member,) = group.joined(1)
    assert member.subscription.broker_times
    assert PARTITIONS == member.subscription.partitions

    def both_heard() -> bool:
        member.subscription.publish({0: b"body", 3: None})
        return {(0, b"body"), (3, None)} <= {(it.partition, it.body) for it in member.messages}

    until(both_heard, member)
    assert None not in [it.appended_at for it in member.messages]
    offsets = [it.offset for it in member.messages if it.partition == 0]
    assert sorted(set(offsets)) == offsets
    member.subscription.confirm({0: 17, 2: 5})
    until(lambda: member.of(Confirmed), member)
    assert [Confirmed({0: 17, 2: 5})] == member.of(Confirmed)
    assert (ALL, []) == (member.has, member.of(AskedBack))


def test_members_share_the_partitions_out_and_who_leaves_or_closes_leaves_them_to_the_others_at_once(
    group: Group,
) -> None:
    one, two, three = group.joined(3)
    one.subscription.leave()
    until(lambda: two.has | three.has == ALL, two, three)

    def all_heard() -> bool:
        one.subscription.publish(dict.fromkeys(ALL, b"still here"))  # A member that left the group can still publish.
        return {message.partition for message in (*two.messages, *three.messages)} == ALL

    until(all_heard, two, three)
    two.subscription.close()
    until(lambda: three.has == ALL, three)


def test_a_member_is_asked_before_another_is_given(group: Group) -> None:
    (first,) = group.joined(1)
    first.holding = True
    second = group.join()
    until(lambda: first.of(AskedBack), first, second)
    before = len(second.of(Given))
    for _ in range(25):  # Half a second, in which a broker that does not wait would give them away.
        first.turn()
        second.turn()
    assert (0, before) == (len(second.has), len(second.of(Given)))
    if group.listens:  # It hears all its partitions, the ones that were asked back among them, and is confirmed.
        first.news = first.of(AskedBack)

        def all_heard() -> bool:
            first.subscription.publish(dict.fromkeys(ALL, b"still mine"))
            return {it.partition for it in first.messages if it.body == b"still mine"} == ALL

        until(all_heard, first, second)
        first.subscription.confirm({0: 17})
        until(lambda: first.of(Confirmed), first, second)
        assert [] == second.of(list)
    first.holding = False
    first.give_back()
    until(lambda: shared([first, second]), first, second)
    assert [] == first.of(Lost)


def test_the_patience_of_the_broker_ends(impatient: Group) -> None:
    """In Kafka, the member may keep what was not asked back; the simulated broker forgets the whole member."""
    (first,) = impatient.joined(1)
    first.holding = True
    second = impatient.join()
    until(lambda: first.of(Lost) and second.has, first, second)
    assert set(first.of(AskedBack)[0].partitions) <= set(first.of(Lost)[0].partitions)


def test_a_member_that_takes_nothing_leaves_the_group(impatient: Group) -> None:
    """A pump that hangs is detected: its events wait for too long, and that ends its membership."""
    (hung,) = impatient.joined(1)
    other = impatient.join()
    until(lambda: other.has == ALL, other)
    until(lambda: hung.of(Lost) or hung.of(AskedBack), hung, other)


def test_reading_begins_at_the_end_and_not_where_an_offset_was_confirmed(group: Group) -> None:
    """Offsets are compared, not bodies: what was in flight when its publisher closed may be appended later."""
    (first,) = group.joined(1)
    until(lambda: heard(b"old", first), first)
    first.subscription.confirm(dict.fromkeys(ALL, 0))
    until(lambda: first.of(Confirmed), first)
    highest = max(message.offset for message in first.messages)
    first.subscription.close()
    second = group.join()
    until(lambda: second.has == ALL and heard(b"new", second), second)
    assert highest < min(message.offset for message in second.messages)


def test_a_wait_ends_when_it_is_woken_and_a_handle_that_was_closed_says_so(group: Group) -> None:
    subscription = group.join().subscription
    waker = threading.Timer(0.1, subscription.wake)
    waker.start()
    subscription.wait(PATIENCE)
    subscription.wake()
    subscription.wait(PATIENCE)  # It was woken before it began.
    waker.join()
    subscription.close()
    subscription.close()
    subscription.wake()
    for call in (
        lambda: subscription.wait(0.0),
        subscription.take,
        lambda: subscription.publish({0: None}),
        lambda: subscription.confirm({0: 1}),
        lambda: subscription.give_back([0]),
        subscription.leave,
    ):
        with pytest.raises(Closed):
            call()
