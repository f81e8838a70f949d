"""A member on stage, and the broker's side of it by hand, as in the files of `rules/`.

    start neli beat=2                 first: the protocol, and differences from the settings in STARTS
    1 given 0 1 | asked_back 1 | lost 1
    2 message 0 1 age=0.5 body=5%b    one in each of these partitions, at the next offset, appended half a second ago;
                                      also age=none and offset=3
    2 returns sent=-2 wall=-3600      its last Heartbeat but one comes back, on a wall clock that was set back
    2 confirmed 1@9                   the group answers a question: the last one, unless it says which
    2 silent | confirming             the group stops answering, or answers each question immediately, as at first
    2 released 0 1 | close | close at_once | away | back | broken | tick
    2 ask                             no step: what it may act for, until when, and when it wants to be woken

The first message of a rule begins term 10. Advice for operators is not listed.
"""

import re
from collections.abc import Iterator
from random import Random
from typing import Any

from neli_router.core.keyspace import Layout
from neli_router.errors import LedgerUnusable
from neli_router.protocols.consumer_group.events import (
    AskedBack,
    BrokerAway,
    BrokerBack,
    BrokerBroken,
    BrokerEffect,
    BrokerInput,
    Confirm,
    Confirmed,
    GiveBack,
    Given,
    LeaveGroup,
    Lost,
    Message,
    Publish,
    Received,
)
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.protocol import TICK, Close, Notice, Released
from tests.protocols.rules import answered, news, numbers
from tests.support.records import value_of

__all__ = ["LAYOUT", "STARTS", "begun", "neli_settings", "played"]

LAYOUT = Layout(slots=16, partitions=4)

WALL = 1_700_000_000.0
"""This host's wall clock when its monotonic clock was 0."""

STARTS: dict[str, dict[str, Any]] = {
    "neli": {"threshold": 30.0},
    "exclusive": {"guarantee": "exclusive", "threshold": 4.0, "clock_error": 0.5},
    "fast-neli": {},
    "goneli": {"goneli": True, "layout": Layout(slots=16, partitions=1)},
}


def neli_settings(**told: object) -> NeliSettings:
    """Sessions of 10 s, as in the paper's example; a broadcast each second."""
    return NeliSettings(**{"name": "a", "layout": LAYOUT, "session": 10.0, "beat": 1.0, **told})  # type: ignore[arg-type]


def begun(start: str, *, partitions: int = 4, **told: Any) -> NeliMachine | FastNeliMachine:
    told = {**STARTS[start], **told}
    if start in {"neli", "exclusive"}:
        return NeliMachine(neli_settings(**told), partitions, rng=Random(7))
    settings = FastNeliSettings(**{"name": "a", "layout": LAYOUT, **told})
    return FastNeliMachine(settings, partitions, 0.0, wall_nanoseconds=int(WALL) * 10**9, rng=Random(7))


def played(lines: list[str]) -> Iterator[str]:
    """`lines` with the answers of the shipped machines."""
    stage: _Stage | None = None
    for line in lines:
        asked = line.split(" ->")[0]
        if line.startswith("start "):
            _, start, *told = asked.split()
            stage = _Stage(begun(start, **_options(told)))
        elif match := re.match(r"([\d.]+) (\w+) ?(.*)", asked):
            assert stage is not None
            yield from answered(asked, stage.answers(float(match[1]), match[2], match[3].split()))
            continue
        if not line.startswith("    ->"):  # Old answers are written again.
            yield line


def _options(words: list[str]) -> dict[str, Any]:
    return {key: value_of(text) for key, text in (word.split("=") for word in words)}


class _Stage:
    """One machine, and the broker around it."""

    def __init__(self, machine: NeliMachine | FastNeliMachine) -> None:
        self.machine = machine
        self.confirms = True
        self.published: list[dict[int, bytes | None]] = []
        self.asked: list[Confirm] = []
        self.offset = 8
        """The offset of the last message."""

    def answers(self, now: float, what: str, words: list[str]) -> list[str]:
        partitions = [int(word) for word in words if word.isdecimal()]
        told = dict(word.split("=") for word in words if "=" in word)
        event: BrokerInput
        match what:
            case "ask":
                return [self.standing(now)]
            case "silent" | "confirming":
                self.confirms = what == "confirming"
                return []
            case "message":
                self.offset = int(told.get("offset", self.offset + 1))
                age = told.get("age", "0")
                appended = None if age == "none" else WALL + now - float(age)
                body = told["body"].encode() if "body" in told else None
                event = Received([Message(i, self.offset, appended, body) for i in partitions], WALL + now)
            case "returns":
                self.offset += 1
                bodies = self.published[int(told.get("sent", "-1"))]
                messages = [Message(i, self.offset, None, body) for i, body in bodies.items()]
                event = Received(messages, WALL + float(told.get("wall", now)))
            case "confirmed":
                offsets = {int(i): int(offset) for i, offset in (word.split("@") for word in words)}
                event = Confirmed(offsets or self.asked[-1].offsets)
            case "released":
                event = Released({i: self.machine.leading[i] for i in partitions})
            case "given":
                event = Given(partitions)
            case "asked_back":
                event = AskedBack(partitions)
            case "lost":
                event = Lost(partitions)
            case "close":
                event = Close(at_once=words == ["at_once"])
            case "broken":
                event = BrokerBroken(LedgerUnusable("a topic was wanted", "it was deleted", "make it"))
            case "away":
                event = BrokerAway()
            case "back":
                event = BrokerBack()
            case _:
                assert what == "tick", f"unknown input: {what!r}"
                event = TICK
        return list(self.step(now, event))

    def step(self, now: float, event: BrokerInput) -> Iterator[str]:
        for effect in self.machine.step(event, now):
            if effect != Notice("group.advice", getattr(effect, "fields", {})):
                yield self.told(effect)
            if isinstance(effect, Publish):
                self.published.append(dict(effect.bodies))
            if isinstance(effect, Confirm):
                self.asked.append(effect)
                if self.confirms:
                    yield from self.step(now, Confirmed(effect.offsets))

    def told(self, effect: BrokerEffect) -> str:
        match effect:
            case Publish(bodies):
                said = {body.decode() for body in bodies.values() if body is not None}
                return " ".join(["Publish", *map(str, bodies), *said])
            case Confirm(offsets):
                return f"Confirm {numbers(offsets)}"
            case GiveBack(partitions):
                return f"GiveBack {' '.join(map(str, partitions))}"
            case LeaveGroup():
                return "LeaveGroup"
            case _:
                return news(effect)

    def standing(self, now: float) -> str:
        """The terms under which it may act. The program's standing must agree, and have ended for all older terms."""
        terms, standing = self.machine.tenures(now), self.machine.standing
        ends = sorted({standing.end(i, term) for i, term in terms.items() if i in self.machine.leading})
        assert all(end > now for end in ends)
        assert all(standing.end(i, term - 1) < now for i, term in terms.items())
        may = f"{numbers(terms)} until {' '.join(f'{end:g}' for end in ends)}" if terms else "nothing"
        vector = getattr(self.machine, "vector", None)
        heard = "" if vector is None else f", vector {' '.join(f'{at:g}' for at in vector)}"
        return f"may act for {may}, deadline {self.machine.deadline:g}{heard}"
