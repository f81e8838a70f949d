"""A member on stage, and the broker's side of it by hand.

The group confirms each question immediately, unless the scene says `confirms=False`. A scene returns the effects that
matter to a program, to the group and to operators. It keeps published messages in `published`, and advice in `advice`.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Generic, TypeVar

from neli_router.core.keyspace import Layout
from neli_router.protocols.consumer_group.events import (
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
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.machine import GroupMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.protocol import TICK, Fenced, Notice

LAYOUT = Layout(slots=16, partitions=4)

WALL = 1_700_000_000.0
"""This host's wall clock when its monotonic clock was 0."""


Driven = TypeVar("Driven", bound=GroupMachine)


class Scene(Generic[Driven]):
    def __init__(self, machine: Driven, *, confirms: bool = True) -> None:
        self.machine = machine
        self.confirms = confirms
        self.published: list[tuple[float, dict[int, bytes | None]]] = []
        self.asked: list[dict[int, int]] = []
        self.advice: list[Notice] = []
        self.offset = 8
        """The offset of the last message. The first message of a scene begins term 10."""

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
        """The partitions that it may act for, which the program's standing must equal."""
        may = self.machine.tenures(now)
        standing = self.machine.standing
        assert all(now < standing.end(i, term) for i, term in may.items() if i in self.machine.leading)
        return sorted(may)


class NeliScene(Scene[NeliMachine]):
    def __init__(self, settings: NeliSettings, *, confirms: bool = True, partitions: int = 4) -> None:
        super().__init__(NeliMachine(settings, partitions, 0.0, rng=Random(7)), confirms=confirms)


def neli_settings(**told: object) -> NeliSettings:
    """Sessions of 10 s, as in the paper's example; a broadcast each second."""
    return NeliSettings(**{"name": "a", "layout": LAYOUT, "session": 10.0, "beat": 1.0, **told})  # type: ignore[arg-type]


def fenced(effects: Sequence[BrokerEffect]) -> list[int]:
    """The partitions that the program must stop working on."""
    return [i for effect in effects if isinstance(effect, Fenced) for i in effect.partitions]


IN_EXCLUSIVE: dict[str, object] = {"guarantee": "exclusive", "threshold": 4.0, "clock_error": 0.5}
EXCLUSIVE = neli_settings(**IN_EXCLUSIVE)
AVAILABLE = neli_settings(threshold=30.0)


def available() -> NeliScene:
    """T = 30 s and sessions of 10 s: the paper's example."""
    return NeliScene(AVAILABLE)


def available_leader(*partitions: int, heard_at: float = 1.0) -> NeliScene:
    """It was given these at 0, and has led them since it heard them."""
    scene = available()
    scene.given(0.0, *partitions)
    scene.message(heard_at, *partitions)
    assert sorted(partitions) == scene.leads(heard_at)
    return scene


def exclusive() -> NeliScene:
    """T = 4 s, e = 0.5 s, sessions of 10 s."""
    return NeliScene(EXCLUSIVE)


def exclusive_leader(*partitions: int, **told: object) -> NeliScene:
    """It was given these at 0, heard them until 4.5 and has led them since then."""
    scene = NeliScene(neli_settings(**IN_EXCLUSIVE, **told))
    scene.given(0.0, *partitions)
    scene.message(4.0, *partitions)
    scene.step(4.5)
    assert sorted(partitions) == scene.leads(4.5)
    return scene


class FastScene(Scene[FastNeliMachine]):
    def __init__(self, settings: FastNeliSettings | None = None, *, partitions: int = 4, **told: Any) -> None:
        settings = settings or FastNeliSettings(name="a", layout=LAYOUT, **told)
        machine = FastNeliMachine(settings, partitions, 0.0, wall_nanoseconds=int(WALL) * 10**9, rng=Random(7))
        super().__init__(machine)

    def returns(self, now: float, *, sent: int = -1, wall: float | None = None) -> list[BrokerEffect]:
        """The member's last heartbeat, or an older one, comes back in all partitions that it was sent to."""
        _, bodies = self.published[sent]
        self.offset += 1
        messages = [Message(i, self.offset, None, body) for i, body in bodies.items()]
        return self.step(now, Received(messages, WALL + now if wall is None else wall))


def fast_leader(*partitions: int, **told: Any) -> FastScene:
    """It was given these at 0, and led them from then on: the first heartbeat came back immediately."""
    scene = FastScene(**told)
    scene.given(0.0, *partitions)
    scene.returns(0.0)
    assert sorted(partitions) == scene.leads(0.0)
    return scene
