"""What may happen to a cluster and the group on it, and how each of it ends again.

    to a member      kill       kill -9; a while later a new process starts under its name
                     stop       stands still past its lease, then goes on
                     cut off    no broker hears it, and it hears none
                     torn       the same with one or two of the three brokers
                     mute       what it sends to the brokers is lost; what they send, arrives
                     deaf       the other way round
                     slow       everything takes longer on its link
                     clock      its wall clock jumps, and stays there
    to the leader    dead       kill -9 of the broker that leads; a while later it starts again
                     frozen     stands still: its connections stay, and nobody answers
                     island     it hears no other broker; members may still reach it, and one of them only it

A fault is drawn in two steps: what (by the deck), and to whom and for how long (here). It says what it did, and how to
undo that, which is called once.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from benchmarks._processes.group import Life
from tests.chaos.cluster import BROKERS, Cluster
from tests.chaos.wall_clock import WallClock

__all__ = ["LEADER_FAULTS", "MEMBER_FAULTS", "Fault", "Stage", "begin_leader_fault", "begin_member_fault"]

MEMBER_FAULTS = ("kill", "stop", "cut off", "torn", "mute", "deaf", "slow", "clock")
LEADER_FAULTS = ("dead", "frozen", "island")

STEPS = (-86_400, -3600, -10, 0, 10, 3600, 86_400)
"""Seconds that the stepped wall clock is ahead."""

LEADER_SECONDS = (2.0, 6.0)
"""A broker's session is 1.5 s: long enough for another to lead, most of the time."""


class Fault(NamedTuple):
    """It has begun, and ends after `seconds` when all in `undo` is called."""

    kind: str
    whom: str
    seconds: float
    undo: Sequence[Callable[[], object]]


class Stage(Protocol):
    """What faults happen to."""

    cluster: Cluster
    clock: WallClock | None
    lease: float

    def life(self, name: str) -> Life:
        """The newest process of that name."""

    def start(self, name: str) -> None:
        """Start another."""


def begin_member_fault(kind: str, name: str, stage: Stage, rng: random.Random) -> Fault:
    """Let it happen to the member `name`."""
    network, life = stage.cluster.network, stage.life(name)
    seconds = stage.lease * rng.uniform(0.2, 4)
    match kind:
        case "kill":
            life.kill()
            return Fault(kind, name, seconds, [partial(stage.start, name)])
        case "stop":
            life.stop()
            return Fault(kind, name, stage.lease + seconds, [life.resume])
        case "cut off" | "torn":
            brokers = BROKERS if kind == "cut off" else sorted(rng.sample(BROKERS, rng.choice([1, 2])))
            for broker in brokers:
                network.cut(name, broker)
            whom = f"{name} from {' and '.join(brokers)}"
            return Fault(kind, whom, seconds, [partial(network.mend, name, broker) for broker in brokers])
        case "mute":
            for broker in BROKERS:
                network.lose(name, broker)
            return Fault(kind, name, seconds, [partial(network.carry, name, broker) for broker in BROKERS])
        case "deaf":
            for broker in BROKERS:
                network.lose(broker, name)
            return Fault(kind, name, seconds, [partial(network.carry, broker, name) for broker in BROKERS])
        case "slow":
            how, _, _ = network.slow(name).partition(" ")
            return Fault(kind, f"{name} by {how}", seconds, [partial(network.hurry, name)])
        case _:
            assert kind == "clock", f"there is no fault {kind!r}"
            assert stage.clock is not None
            ahead = rng.choice(STEPS)
            stage.clock.step(ahead)
            return Fault(kind, f"{name} to {ahead:+d} s", 0.0, [])


def begin_leader_fault(kind: str, broker: str, friend: str | None, stage: Stage, rng: random.Random) -> Fault:
    """Let it happen to `broker`, which leads. An island may have a `friend`, a member that reaches nobody else."""
    network, node = stage.cluster.network, stage.cluster.node(broker)
    seconds = rng.uniform(*LEADER_SECONDS)
    match kind:
        case "dead":
            node.kill()
            return Fault(kind, broker, seconds, [node.start])
        case "frozen":
            node.freeze()
            return Fault(kind, broker, seconds, [node.thaw])
        case _:
            assert kind == "island", f"there is no fault {kind!r}"
            inhabitants = [broker] if friend is None else [broker, friend]
            pairs = [(one, other) for one in inhabitants for other in BROKERS if other != broker]
            for one, other in pairs:
                network.cut(one, other)
            return Fault(kind, " with ".join(inhabitants), seconds, [partial(network.mend, *pair) for pair in pairs])
