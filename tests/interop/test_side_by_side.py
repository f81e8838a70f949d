"""Real goNELI processes and processes of ours in one group, started, asked to leave and killed: no two ever lead.

    goNELI --one write a line--------------.
    worker --one write a line: its notes---+--> the referee: tenures of both kinds, by one clock of the host
    topic  --every heartbeat-------------------> whose tenure began with which message

Both kinds read the host's clock in their own process, at the event itself. A claim of goNELI begins in the callback of
`LeaderAcquired`, before its program can find that it leads, and ends in that of `LeaderRevoked` or `LeaderFenced`,
after it has ceased to lead; a killed goNELI led until the kernel says that it is gone. A claim of ours is written
before it begins, and ends with a line written before the partition is given back, or with its lease
(`status/notes.py`). So the claims cover everything that the two could do. goNELI keeps leading while it hangs, and from
an assignment on before it has heard anything. Here it does neither: all leaders live until they are ended, and a
session is sixty of their beats.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Self
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import PATIENCE, MemberProcess
from neli_router.lab.referee import Life, judged
from tests.support.draws import say
from tests.support.servers.goneli import GoneliMember

pytestmark = [pytest.mark.kafka, pytest.mark.process, pytest.mark.timeout(1800)]

HEARTBEAT_TIMEOUT = 2.0
"""Seconds. The session is three times as long, and a kill is noticed after that."""

PAUSE = HEARTBEAT_TIMEOUT / 20

SOON_TOLD = {"heartbeat.interval.ms": "600", "max.poll.interval.ms": "12000"}
"""A process of goNELI learns of a change from the answer to a heartbeat of its client library, every three seconds by
default. And if the broker itself got no time and does not hear a member rejoin, the group waits for that member: by
default for five minutes, which is the longest `max.poll.interval.ms` of any member."""

LOOK_EVERY = 0.02

Course = tuple[tuple[str, str], ...]

COURSE: Course = (
    ("outrun", "goneli"),
    ("kill", "goneli"),
    ("leave", "goneli"),
    ("outrun", "ours"),
    ("kill", "goneli"),
    ("kill", "ours"),
    ("outrun", "ours"),
    ("kill", "ours"),
    ("leave", "ours"),
    ("outrun", "goneli"),
    ("leave", "ours"),
    ("leave", "goneli"),
)
"""How the leader loses the partition, and which kind has it then; a goNELI has it first. `outrun`: a newcomer joins
that the assignor prefers, and the former leader lives on alongside. Before each `kill` and `leave` another member is
there and waits."""

BODY = re.compile(rb"([0-9]{19})%([a-z0-9-]+)")
"""A heartbeat: when it was sent, in Unix nanoseconds, and who sent it."""


class Ours:
    """A process with a `Member`, which notes what it leads."""

    def __init__(self, folder: Path, ledger: str, name: str) -> None:
        config = {
            "ledger": ledger,
            "protocol": "fast-neli",
            "goneli": True,
            "layout": {"partitions": 1},
            "lease": HEARTBEAT_TIMEOUT,
            "drain_timeout": 6.0,
            "name": name,
        }
        order = {"config": config, "notes": str(folder / f"{name}.1.notes"), "pause": PAUSE}
        command = [sys.executable, "-P", "-m", "neli_router.lab.processes.worker", json.dumps(order)]
        self.name, self.process = name, MemberProcess(folder, f"{name}.1", command, {})

    @property
    def life(self) -> Life:
        self.process.fresh_notes()
        return self.process.life

    @property
    def leads(self) -> bool:
        life = self.life
        return self.process.is_running and 0 in life.held and host_clock() < life.until

    def ask_to_leave(self) -> float:
        return self.process.ask_to_leave()

    def leave(self) -> None:
        self.ask_to_leave()
        assert 0 == self.process.exit_code(), self.process.log

    def kill(self) -> float:
        return self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.end(0.0)


Contestant = Ours | GoneliMember


class Arena:
    """The group, its topic, and everything that was ever in it. `ended` is None while it lives."""

    def __init__(self, brokers: str, group: str, folder: Path, stack: ExitStack) -> None:
        self._brokers, self._group, self._folder, self._stack = brokers, group, folder, stack
        client: dict[str, str | int | float | bool] = {"bootstrap.servers": brokers, "log_level": 0}
        self._admin = AdminClient(client)
        reader = Consumer({**client, "group.id": f"{group}-reader", "enable.auto.commit": False})
        self._reader = stack.enter_context(closing(reader))
        self._reader.assign([TopicPartition(f"{group}.neli", 0, 0)])
        self.heartbeats: list[tuple[int, str]] = []
        """The offset of each heartbeat, and who sent it."""
        self.all: list[Contestant] = []
        self.alive: list[Contestant] = []

    def start(self, kind: str, *, first: bool = False) -> Contestant:
        """Start one more, behind all others in the order by which the assignors of both kinds give partition 0, or
        before them.

        That order is by the members' identities at the broker, which begin with their `client.id`.
        """
        assert len(self.alive) < 2
        others = [int(it.name.partition("-")[0]) for it in self.alive] or [500]
        rank = min(others) - 1 if first else max(others) + 1
        name = f"{rank}-{kind}-{len(self.all)}"
        contestant: Contestant
        if kind == "goneli":
            topic, settings = f"{self._group}.neli", {"client.id": name, **SOON_TOLD}
            contestant = GoneliMember(self._brokers, self._group, topic, name, HEARTBEAT_TIMEOUT, settings=settings)
        else:
            strategies = "partition.assignment.strategy=range,roundrobin"
            address = f"kafka://{self._brokers}/{self._group}?{strategies}&client.id={name}"
            contestant = Ours(self._folder, address, name)
        self._stack.enter_context(contestant)
        self.all.append(contestant)
        self.alive.append(contestant)
        return contestant

    def until(self, holds: Callable[[], bool], wanted: str) -> None:
        give_up_at = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < give_up_at, f"{wanted}, but {self.describe()}"
            time.sleep(LOOK_EVERY)
            self.read()

    def read(self) -> None:
        for message in self._reader.consume(1000, 0.0):
            assert message.error() is None, message.error()
            offset, body = message.offset(), message.value() or b""
            assert offset is not None
            found = BODY.fullmatch(body)
            assert found is not None, body
            assert abs(time.time() - int(found[1]) / 1e9) < PATIENCE, body
            self.heartbeats.append((offset, found[2].decode()))

    def settle(self, leader: Contestant) -> None:
        """Wait until `leader` leads, no other live process does, all of them are members, and one of its heartbeats was
        heard that was not there before it led."""
        self.until(lambda: self._leaders() == [leader], f"{leader.name} should lead alone")
        self.read()
        heard = len(self.heartbeats)
        self.until(lambda: leader.name in [by for _, by in self.heartbeats[heard:]], f"{leader.name} should beat")
        members = (ConsumerGroupState.STABLE, *sorted(it.name for it in self.alive))
        self.until(
            lambda: self._members() == members and self._leaders() == [leader], f"{leader.name} should go on to lead"
        )

    def _leaders(self) -> list[Contestant]:
        return [it for it in self.alive if it.leads]

    def _members(self) -> tuple[object, ...]:
        """The group's state, and its members, according to the broker."""
        try:
            found = self._admin.describe_consumer_groups([self._group])[self._group].result(PATIENCE)
        except KafkaException as error:
            return (str(error),)
        return (found.state, *sorted(member.client_id for member in found.members))

    def describe(self) -> str:
        lives = [it.life for it in self.all]
        spans = sorted((span for life in lives for span in life.spans), key=lambda span: span.since)
        logs = [it.process.log for it in self.alive if isinstance(it, Ours)]
        live = [it.name for it in self.alive]
        return "\n".join([*map(str, spans), f"they live: {live}; members: {self._members()}", *logs])


@pytest.fixture
def arena(kafka: str, group: str, tmp_path: Path) -> Iterator[Arena]:
    with ExitStack() as stack:
        yield Arena(kafka, group, tmp_path, stack)


def kind(name: str) -> str:
    return name.split("-")[1]


def test_the_course_has_every_change_between_the_kinds_and_within_them() -> None:
    kinds = ["goneli", *(successor for _, successor in COURSE)]
    changes = {(former, how, successor) for former, (how, successor) in zip(kinds, COURSE, strict=False)}
    assert 2 * 3 * 2 == len(changes)


def test_exactly_one_of_both_kinds_leads_through_starts_clean_stops_and_kills(arena: Arena) -> None:
    leader, leaving = arena.start("goneli"), list[Contestant]()
    arena.settle(leader)
    for how, successor in COURSE:
        if how == "outrun":
            heir = arena.start(successor, first=True)
        else:
            heir = next((it for it in arena.alive if it is not leader), None) or arena.start(successor)
            arena.settle(leader)
            arena.alive.remove(leader)
            if how == "kill":
                leader.kill()
            else:
                leader.ask_to_leave()
                leaving.append(leader)
        assert successor == kind(heir.name)
        arena.settle(heir)
        leader = heir
    for contestant in [*leaving, *arena.alive]:
        contestant.leave()
    arena.read()

    assert [] == judged([it.life for it in arena.all]).overlaps, arena.describe()
    tenures = sorted((span for it in arena.all for span in it.life.spans), key=lambda span: span.since)
    changes = [(kind(a.process), kind(b.process)) for a, b in pairwise(tenures) if a.process != b.process]
    assert len(changes) >= len(COURSE)
    assert {(one, other) for one in ("goneli", "ours") for other in ("goneli", "ours")} == set(changes)

    # Terms rise over our owners, whichever process led in between. Each is above the offset of its heartbeat by one.
    ours = [it.life for it in arena.all if isinstance(it, Ours)]
    assert [] == judged(ours).faults
    names = {1 + offset: name for offset, name in arena.heartbeats}
    assert [] == [span for life in ours for span in life.spans if names.get(span.term) != life.name]
    assert {it.name for it in arena.all} == set(names.values())
    took = tenures[-1].until - tenures[0].since
    say(f"{len(changes)} changes of leader in {took:.0f} s, {len(names)} heartbeats, {len(tenures)} tenures")


def test_two_that_lead_at_once_are_seen(kafka: str, tmp_path: Path, group: str) -> None:
    """In two groups, so that both may lead: otherwise the referee of the test above might be blind."""
    with ExitStack() as stack:
        one, other = (Arena(kafka, it, tmp_path, stack) for it in (group, f"{group}-{uuid4().hex}"))
        leaders = [one.start("goneli"), other.start("ours")]
        one.until(lambda: all(it.leads for it in leaders), "both should lead")
        assert 1 == len(judged([it.life for it in leaders]).overlaps)
