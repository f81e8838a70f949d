"""The miniature of a borrowed group: two members, and so few messages and ticks that all worlds can be counted.

    coordinator  each partition is free, or held by giving 1, 2, 3 ...
                     | Given, Confirmed, Lost
                     v
    place        changes not taken yet --> machine (the shipped one) --> what it sent, not appended yet
                                              ^                                         |
    log          ... |-- at most `apart` messages that some place has not read yet --| end

A world is all of that and the time, in whole ticks. Nothing in it ever changes: a step makes another world, and a
machine takes its step as a copy of itself.

These rules must hold in each world:

    at most one acts   for a partition, if the protocol promises it and the bounds keep its assumptions
    terms grow         over all tenures that were acted on, as in the simulator: a tenure under an earlier giving has a
                       lower term than one under a later giving
    evidence ends      under `available`, no process acts for longer than T after it last received anything
    belief             a program believes no more than its machine
    it settles         if nothing fails from here on, each partition ends up led by its holder, under this giving, and
                       by no other. So no partition dries up while one process lives
"""

from dataclasses import dataclass
from functools import cache
from math import inf
from random import Random
from typing import NamedTuple, TypeVar

from neli_router.core.keyspace import Layout
from neli_router.lab.sim.consumer_group.options import BorrowedProtocol
from neli_router.lab.sim.consumer_group.process import BorrowedMachine
from neli_router.lab.sim.explore import Profile
from neli_router.protocols.consumer_group.events import BrokerInput, Lost, Message
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.protocol import Guarantee

__all__ = [
    "FAST_NELI_PROFILES",
    "NELI_PROFILES",
    "ActedTerms",
    "ConsumerBounds",
    "ConsumerMiniature",
    "MemberPlace",
    "ReadPosition",
    "Told",
    "broken_consumer_rule",
    "founded",
    "started",
    "twin",
]

NANOSECONDS = 10**9

CHANGING: dict[type, tuple[str, ...]] = {
    NeliMachine: ("_tenures", "_offsets", "vector"),
    FastNeliMachine: ("_tenures", "_offsets", "_sent", "_since", "_proven"),
}
"""The containers that a machine changes during a step, apart from what it holds and what its program believes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConsumerBounds:
    """The bounds of an exploration. Times are in ticks."""

    protocol: BorrowedProtocol
    guarantee: Guarantee = "exclusive"
    partitions: int = 1
    apart: int = 1
    error: int = 1
    """e of `neli` under `exclusive`. With 0, traces are easier to read, but less is found."""
    zombies: bool = False
    """Whether a consumer goes on fetching what the broker has given to another. Then two may lead, as the papers say,
    and only their terms are judged."""
    session: int | None = None
    """How long the broker of `fast-neli` waits for a silent member; None means as long as members assume."""
    leave: bool = True
    crash: bool = True
    states_max: int | None = None

    def __str__(self) -> str:
        settings = self.settings("any")
        if isinstance(settings, FastNeliSettings):
            times = f"heartbeat timeout {settings.heartbeat_timeout:g} ticks, session {self.patience}"
        else:
            times = f"T={settings.t:g} ticks" + (f", e={settings.clock_error:g}" if settings.exclusive else "")
        partitions = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        limit = "all states" if self.states_max is None else f"at most {self.states_max:,} states"
        return (
            f"{self.protocol}, {self.guarantee}: 2 members, {partitions}, {times}, readers at most {self.apart} "
            f"messages behind, {'with' if self.zombies else 'without'} fetching zombies, "
            f"{'with' if self.leave else 'without'} clean stops, {'with' if self.crash else 'without'} kills; {limit}"
        )

    def settings(self, name: str) -> NeliSettings | FastNeliSettings:
        """The smallest settings the inequalities allow. A beat is a third of a tick, so one is due in every tick."""
        return _settings(self.protocol, self.guarantee, self.partitions, self.error, name)

    @property
    def patience(self) -> int:
        """The session that the broker keeps."""
        return int(self.settings("any").session_timeout) if self.session is None else self.session

    @property
    def at_most_one(self) -> bool:
        return self.guarantee == "exclusive" and not self.zombies

    def machine(self, name: str, now: int, born: int) -> BorrowedMachine:
        settings, dice = self.settings(name), Random(born)
        if isinstance(settings, FastNeliSettings):
            return FastNeliMachine(settings, self.partitions, now, wall_nanoseconds=now * NANOSECONDS + born, rng=dice)
        return NeliMachine(settings, self.partitions, rng=dice)


NELI_PROFILES = {
    "test": Profile(
        "The same as `exclusive`, `available` and `zombies`: seconds.",
        ConsumerBounds("neli", leave=False, crash=False),
        ConsumerBounds("neli", guarantee="available", leave=False, crash=False, states_max=12_000),
        ConsumerBounds("neli", zombies=True, leave=False, crash=False, states_max=4_000),
    ),
    "exclusive": Profile(
        "Two members: the broker may forget either at any time, and give its partitions away.",
        ConsumerBounds("neli", leave=False, crash=False),
    ),
    "exact-clocks": Profile(
        "As `exclusive`, with clocks that agree.", ConsumerBounds("neli", error=0, leave=False, crash=False)
    ),
    "available": Profile(
        "As `exclusive`, under the other guarantee.",
        ConsumerBounds("neli", guarantee="available", leave=False, crash=False, states_max=12_000),
    ),
    "zombies": Profile(
        "As `exclusive`, and a forgotten member goes on fetching.",
        ConsumerBounds("neli", zombies=True, leave=False, crash=False, states_max=4_000),
    ),
    "full": Profile(
        "Members also stop or are killed, read further apart, and share two partitions: under an hour.",
        ConsumerBounds("neli"),
        ConsumerBounds("neli", guarantee="available"),
        ConsumerBounds("neli", zombies=True, leave=False, crash=False),
        ConsumerBounds("neli", apart=2, leave=False, crash=False),
        ConsumerBounds("neli", partitions=2, leave=False, crash=False, states_max=300_000),
    ),
}
FAST_NELI_PROFILES = {
    "test": Profile(
        "The same as `exclusive` and `zombies`: seconds.",
        ConsumerBounds("fast-neli", leave=False, crash=False, states_max=12_000),
        ConsumerBounds("fast-neli", zombies=True, leave=False, crash=False, states_max=4_000),
    ),
    "exclusive": Profile(
        "Two members: the broker forgets one that freezes, and gives its partitions away.",
        ConsumerBounds("fast-neli", leave=False, crash=False, states_max=12_000),
    ),
    "zombies": Profile(
        "As `exclusive`, but the broker forgets members at any time, and they go on fetching.",
        ConsumerBounds("fast-neli", zombies=True, leave=False, crash=False, states_max=4_000),
    ),
    "full": Profile(
        "Members also stop or are killed, read further apart, and share two partitions: under an hour.",
        ConsumerBounds("fast-neli"),
        ConsumerBounds("fast-neli", zombies=True),
        ConsumerBounds("fast-neli", apart=2, leave=False, crash=False),
        ConsumerBounds("fast-neli", partitions=2, leave=False, crash=False, states_max=300_000),
    ),
}
"""All bounds of `full` with one partition are complete: 24,000 to 205,000 worlds each, in one to ten minutes."""


@cache
def _settings(
    protocol: BorrowedProtocol, guarantee: Guarantee, partitions: int, error: int, name: str
) -> NeliSettings | FastNeliSettings:
    layout = Layout(slots=partitions, partitions=partitions)
    if protocol == "fast-neli":
        return FastNeliSettings(
            name=name, layout=layout, drain_timeout=1, heartbeat_timeout=1, min_poll_interval=1 / 3, session=3
        )
    return NeliSettings(
        name=name,
        layout=layout,
        drain_timeout=1,
        guarantee=guarantee,
        threshold=2,
        clock_error=error,
        beat=1 / 3,
        session=4 if guarantee == "exclusive" else 1,
    )


class Told(NamedTuple):
    """A change that the coordinator has sent to a consumer, and that its program has not taken yet."""

    event: BrokerInput
    givings: tuple[tuple[int, int], ...] = ()
    """For Given: each partition, and the number of its giving."""


class ReadPosition(NamedTuple):
    """Where a place reads one partition: the offset of the next message, and the offset where the broker stops it."""

    next: int
    stop: float = inf


class ActedTerms(NamedTuple):
    """The lowest and the highest term that was acted under, by one giving."""

    giving: int
    low: int
    high: int


class MemberPlace(NamedTuple):
    """One of the two hosts: a process, or a dead process whose death the coordinator has not noticed."""

    name: str
    machine: BorrowedMachine | None
    frozen: bool
    heard_at: int
    """When the coordinator last heard from it."""
    changes: tuple[Told, ...]
    unsent: tuple[tuple[int, bytes | None], ...]
    """Its messages that may still be appended: partition and body."""
    given: tuple[int, ...]
    """Partition -> the last giving its machine was notified of."""
    positions: tuple[ReadPosition | None, ...]
    received_at: tuple[float, ...]
    """Partition -> when it last received a message of it, under `available`."""
    acts: tuple[tuple[int, int] | None, ...]
    """Partition -> the term under which it may act now, and the giving under which it first did."""

    @property
    def is_member(self) -> bool:
        """Whether the coordinator counts it. A forgotten member joins again once its program has taken the Lost."""
        if self.machine is not None and self.machine._left:  # noqa: SLF001 - no program needs to know.
            return False
        return not any(isinstance(told.event, Lost) for told in self.changes)


class ConsumerMiniature(NamedTuple):
    now: int
    places: tuple[MemberPlace, ...]
    holders: tuple[int | None, ...]
    """Partition -> the place that holds it, according to the coordinator."""
    givings: tuple[int, ...]
    """Partition -> the number of the newest giving."""
    logs: tuple[tuple[Message, ...], ...]
    """Partition -> the messages that some place has yet to read."""
    ends: tuple[int, ...]
    """Partition -> the offset of the next message."""
    acted: tuple[tuple[ActedTerms, ...], ...]
    """Partition -> the terms that were acted under."""
    born: int
    broken: str | None = None
    """The rule that the last step broke."""


def founded(bounds: ConsumerBounds) -> ConsumerMiniature:
    """The first world: two processes have started."""
    nothing = (0,) * bounds.partitions
    free = (None,) * bounds.partitions
    empty = ((),) * bounds.partitions
    places = tuple(started(f"m{index}", bounds, 0, index) for index in range(2))
    return ConsumerMiniature(0, places, free, nothing, empty, nothing, empty, len(places))


def started(name: str, bounds: ConsumerBounds, now: int, born: int) -> MemberPlace:
    """A place with a new process."""
    free = (None,) * bounds.partitions
    never = (-inf,) * bounds.partitions
    machine, nothing = bounds.machine(name, now, born), (0,) * bounds.partitions
    return MemberPlace(
        name,
        machine,
        frozen=False,
        heard_at=now,
        changes=(),
        unsent=(),
        given=nothing,
        positions=free,
        received_at=never,
        acts=free,
    )


def _acting(world: ConsumerMiniature, partition: int) -> list[str]:
    return [place.name for place in world.places if place.acts[partition] is not None]


def broken_consumer_rule(world: ConsumerMiniature, bounds: ConsumerBounds) -> str | None:
    """The rule that this world breaks, or None."""
    if world.broken is not None:
        return world.broken
    for partition in range(bounds.partitions):
        if bounds.at_most_one and len(active := _acting(world, partition)) > 1:
            return f"at most one acts: {' and '.join(active)} both may, for partition {partition}"
    found = (_unfounded(world, place, place.machine) for place in world.places if place.machine is not None)
    return next((problem for problem in found if problem is not None), None)


def _unfounded(world: ConsumerMiniature, place: MemberPlace, machine: BorrowedMachine) -> str | None:
    """A tenure without evidence, or a belief without a tenure."""
    if any(place.acts) and isinstance(machine, NeliMachine) and not machine.settings.exclusive:
        for partition, act in enumerate(place.acts):
            if act is not None and world.now >= place.received_at[partition] + machine.settings.t:
                return f"evidence ends: {place.name} acts for partition {partition}, which it has not heard for T"
    if machine.leading:
        standing = machine.standing
        for partition, term in standing.terms.items():
            act = place.acts[partition]
            if world.now < standing.end(partition, term) and (act is None or act[0] != term):
                return f"belief is within tenure: the program of {place.name} leads partition {partition} under {term}"
    return None


def twin(machine: BorrowedMachine) -> BorrowedMachine:
    """A copy that shares nothing mutable."""
    copy = _shallow(machine)
    fields = vars(copy)
    for name in CHANGING[type(machine)]:
        fields[name] = fields[name].copy()
    fields["_held"] = {partition: _shallow(held) for partition, held in fields["_held"].items()}
    belief = fields["_belief"] = _shallow(fields["_belief"])
    belief.leading, belief._draining = belief.leading.copy(), belief._draining.copy()  # noqa: SLF001 - as above.
    belief._succeeded = belief._succeeded.copy()  # noqa: SLF001 - as above.
    return copy


def _shallow(one: T) -> T:
    copy: T = object.__new__(type(one))
    vars(copy).update(vars(one))
    return copy
