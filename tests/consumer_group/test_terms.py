"""Terms rise over the successive owners of a partition, whatever the broker, the network and zombies do.

A broker as careless as one may be: it expels consumers without a word, tells them late or never, lets those that it has
forgotten fetch and publish on, and delays and loses what is published. It keeps what `events` promises: an order of
inputs for each consumer, messages that begin at the end of the log as it was after Given, and no confirmation for a
consumer that the group has forgotten.
"""

from collections import deque
from collections.abc import Iterator
from random import Random

import pytest

from neli_router.consumer_group.contender import Contender
from neli_router.consumer_group.events import (
    AskedBack,
    BrokerEffect,
    BrokerInput,
    Confirm,
    Confirmed,
    GiveBack,
    Given,
    Lost,
    Message,
    Publish,
    Received,
)
from neli_router.consumer_group.fast_neli import FastNeli
from neli_router.consumer_group.neli import Neli
from neli_router.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.keyspace import Layout
from neli_router.protocol import TICK, Acquired, Released, Revoked

LAYOUT = Layout(slots=1, partitions=1)
PROTOCOLS = ["fast-neli", "available", "exclusive"]

COURSES, STEPS = 20, 1500
"""Enough for terms to fall in some courses when the group is not asked; few enough for a second."""


class Consumer:
    """A member's machine, and its client library: what that has taken from the broker and not yet handed over."""

    def __init__(self, machine: Contender) -> None:
        self.machine = machine
        self.inputs: deque[tuple[BrokerInput, int]] = deque()
        self.on_the_way: deque[Publish | Confirm] = deque()
        self.position: int | None = None
        """Where it fetches next; None before it has asked for the end of the log."""
        self.fetches = self.counted = False
        self.grant = 0
        """The number of the Given that the machine took last."""


class Course:
    """One course of one group of three, by chance."""

    def __init__(self, protocol: str, seed: int, *, asks_the_group: bool) -> None:
        self.dice, self.asks_the_group = Random(seed), asks_the_group
        self.now = 0.0
        self.log: list[tuple[float, bytes | None]] = []
        self.grants = 0
        self.owner: Consumer | None = None
        self.tenures: list[tuple[int, int]] = []
        """Of each tenure: the number of the Given that it followed, and its term."""
        self.consumers = [Consumer(self._machine(protocol, number)) for number in range(3)]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.dice.choice([0.0, 0.01, 0.1, 0.5])
            consumer = self.dice.choice(self.consumers)
            action = self.dice.choices(
                [self.turn, self.arrive, self.fetch, self.give, self.expel, self.ask_back, self.tell],
                [8, 8, 8, 3, 1, 1, 1],
            )[0]
            action(consumer)

    # The consumers

    def turn(self, consumer: Consumer) -> None:
        """Its machine takes some of what the client library has, or only the time."""
        for _ in range(self.dice.randint(1, 4)):
            event, grant = consumer.inputs.popleft() if consumer.inputs else (TICK, consumer.grant)
            if isinstance(event, Given):
                consumer.grant = grant
            for effect in consumer.machine.step(event, self.now):
                self._carry_out(consumer, effect)

    def fetch(self, consumer: Consumer) -> None:
        """Also for one that the group has forgotten."""
        if not consumer.fetches:
            return
        if consumer.position is None:
            consumer.position = len(self.log)
        first, consumer.position = consumer.position, len(self.log)
        messages = [Message(0, at, *self.log[at]) for at in range(first, len(self.log))]
        if messages:
            consumer.inputs.append((Received(messages, self.now), 0))

    def arrive(self, consumer: Consumer) -> None:
        """The broker takes some of what this consumer sent a while ago, if it was not lost."""
        for _ in range(min(len(consumer.on_the_way), self.dice.randint(1, 6))):
            match consumer.on_the_way.popleft():
                case Publish(bodies):
                    if self.dice.random() < 0.9:
                        self.log += [(self.now, body) for body in bodies.values()]
                case Confirm(offsets):
                    if consumer.counted or not self.asks_the_group:
                        consumer.inputs.append((Confirmed(offsets), 0))

    # The group

    def give(self, consumer: Consumer) -> None:
        if self.owner is None:
            self.owner, self.grants = consumer, self.grants + 1
            if consumer.fetches:  # It rejoins: first it hears that it had been expelled.
                consumer.inputs.append((Lost([0]), 0))
            consumer.counted = consumer.fetches = True
            consumer.position = None
            consumer.inputs.append((Given([0]), self.grants))

    def expel(self, consumer: Consumer) -> None:
        """The group forgets it, and it is not told."""
        consumer.counted = False
        if self.owner is consumer:
            self.owner = None

    def tell(self, consumer: Consumer) -> None:
        """A zombie hears that it was expelled."""
        if consumer.fetches and not consumer.counted:
            consumer.inputs.append((Lost([0]), 0))
            consumer.fetches = False

    def ask_back(self, consumer: Consumer) -> None:
        if self.owner is consumer:
            consumer.inputs.append((AskedBack([0]), 0))

    def _carry_out(self, consumer: Consumer, effect: BrokerEffect) -> None:
        match effect:
            case Publish() | Confirm():
                consumer.on_the_way.append(effect)
            case GiveBack():
                consumer.fetches = False
                if self.owner is consumer:
                    self.owner = None
            case Acquired(terms=terms):
                self.tenures += [(consumer.grant, term) for term in terms.values()]
            case Revoked(terms=terms):
                consumer.inputs.append((Released(terms), 0))
            case _:
                pass

    def _machine(self, protocol: str, number: int) -> Contender:
        name, rng = f"m{number}", Random(number)
        if protocol == "fast-neli":
            return FastNeli(FastNeliSettings(name=name, layout=LAYOUT), 1, 0.0, wall_nanoseconds=number, rng=rng)
        return Neli(NeliSettings(name=name, layout=LAYOUT, guarantee=protocol), 1, 0.0, rng=rng)  # type: ignore[arg-type]

    def falls(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Pairs of tenures of which the later owner's has no higher term."""
        return [
            (earlier, later)
            for earlier in self.tenures
            for later in self.tenures
            if earlier[0] < later[0] and earlier[1] >= later[1]
        ]


def courses(protocol: str, *, asks_the_group: bool = True) -> Iterator[Course]:
    for seed in range(COURSES):
        course = Course(protocol, seed, asks_the_group=asks_the_group)
        course.run(STEPS)
        yield course


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_later_owner_has_a_higher_term(protocol: str) -> None:
    found = list(courses(protocol))
    assert [] == [falls for course in found if (falls := course.falls())]
    assert all(len(course.tenures) == len(set(course.tenures)) for course in found)
    assert sum(len(course.tenures) for course in found) > COURSES  # Or the courses would show nothing.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_the_word_of_the_group_terms_fall(protocol: str) -> None:
    """So the courses above can fail, and the question is what keeps them from it."""
    assert any(course.falls() for course in courses(protocol, asks_the_group=False))
