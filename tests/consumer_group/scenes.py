"""A member on stage, and the broker's side of it by hand.

The group confirms each question at once, unless the scene says `confirms=False`. Of the effects, a scene gives
those that matter to a program, to the group and to operators. What was published is kept in `published`, and advice in
`advice`.
"""

from collections.abc import Sequence
from random import Random
from typing import Generic, TypeVar

from neli_router.consumer_group.contender import Contender
from neli_router.consumer_group.events import (
    AskedBack,
    BrokerEffect,
    BrokerInput,
    Confirm,
    Confirmed,
    Given,
    Lost,
    Message,
    Publish,
    Received,
)
from neli_router.consumer_group.neli import Neli
from neli_router.consumer_group.settings import NeliSettings
from neli_router.keyspace import Layout
from neli_router.protocol import TICK, Fenced, Notice

__all__ = ["LAYOUT", "WALL", "NeliScene", "Scene", "fenced", "neli_settings"]

LAYOUT = Layout(slots=16, partitions=4)

WALL = 1_700_000_000.0
"""This host's clock of the day when its monotonic clock was 0."""


Driven = TypeVar("Driven", bound=Contender)


class Scene(Generic[Driven]):
    def __init__(self, machine: Driven, *, confirms: bool = True) -> None:
        self.machine = machine
        self.confirms = confirms
        self.published: list[tuple[float, dict[int, bytes | None]]] = []
        self.asked: list[dict[int, int]] = []
        self.advice: list[Notice] = []
        self.offset = 8
        """Of the last message. The first one of a scene begins term 10."""

    def step(self, now: float, event: BrokerInput = TICK) -> list[BrokerEffect]:
        told: list[BrokerEffect] = []
        for effect in self.machine.step(event, now):
            match effect:
                case Publish(bodies):
                    self.published.append((now, dict(bodies)))
                case Confirm(offsets):
                    self.asked.append(dict(offsets))
                    if self.confirms:
                        told += self.step(now, Confirmed(offsets))
                case Notice("group.advice"):
                    self.advice.append(effect)
                case _:
                    told.append(effect)
        return told

    def given(self, now: float, *partitions: int) -> list[BrokerEffect]:
        return self.step(now, Given(partitions))

    def asked_back(self, now: float, *partitions: int) -> list[BrokerEffect]:
        return self.step(now, AskedBack(partitions))

    def lost(self, now: float, *partitions: int) -> list[BrokerEffect]:
        return self.step(now, Lost(partitions))

    def confirmed(self, now: float) -> list[BrokerEffect]:
        """The group answers the last question."""
        return self.step(now, Confirmed(self.asked[-1]))

    def message(
        self,
        now: float,
        *partitions: int,
        body: bytes | None = None,
        age: float | None = 0.0,
        offset: int | None = None,
    ) -> list[BrokerEffect]:
        """One message in each of `partitions`, all at the next offset, which the broker appended `age` ago."""
        self.offset = self.offset + 1 if offset is None else offset
        appended = None if age is None else WALL + now - age
        return self.received(now, [Message(i, self.offset, appended, body) for i in partitions])

    def received(self, now: float, messages: Sequence[Message]) -> list[BrokerEffect]:
        return self.step(now, Received(messages, WALL + now))

    def leads(self, now: float) -> list[int]:
        """What it may act for, which is also what the program's standing says."""
        may = self.machine.tenures(now)
        standing = self.machine.standing
        assert all(now < standing.end(i, term) for i, term in may.items() if i in self.machine.leading)
        return sorted(may)


class NeliScene(Scene[Neli]):
    def __init__(self, settings: NeliSettings, *, confirms: bool = True, seed: int = 7) -> None:
        super().__init__(Neli(settings, settings.layout.partitions, 0.0, rng=Random(seed)), confirms=confirms)


def neli_settings(**told: object) -> NeliSettings:
    """Sessions of 10 s, as in the paper's example; a broadcast each second."""
    return NeliSettings(**{"name": "a", "layout": LAYOUT, "session": 10.0, "beat": 1.0, **told})  # type: ignore[arg-type]


def fenced(effects: Sequence[BrokerEffect]) -> list[int]:
    """The partitions that the program was told to stop for."""
    return [i for effect in effects if isinstance(effect, Fenced) for i in effect.partitions]
