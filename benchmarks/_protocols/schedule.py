"""The faults, which hit all sides at the same time, and how each side reacted.

    at rest --at a random moment--> kill -9 of each that leads partition 0 --> at rest --start--> at rest
            --at a random moment--> clean stop of each that leads partition 0 --> at rest --start--> at rest

A group is **at rest** when the broker or the ledger shows that all living members have joined; all partitions are led,
in even shares; and nothing has changed for a second.

A **change touches others** when tenures of uninvolved members are over at the next rest. At a start, some must end for
the newcomer's even share; that many do not count.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import Random

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from benchmarks._peers.ours import await_led_elsewhere
from benchmarks._protocols.side import Found, Side, Tenures
from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import MemberProcess
from neli_router.lab.referee import Life
from neli_router.router.router import Router
from tests.support.waiting import PATIENCE

__all__ = ["QUIET", "Schedule", "gap"]

QUIET = 1.0
SPREAD = 3.0
"""The most seconds from rest until a fault. By librdkafka's default, a consumer's heartbeats are this far apart, so a
fault comes at any moment between two."""

LOOK_EVERY = 0.1

Left = list[tuple[Side, MemberProcess, list[int]]]
"""The process of each side that was killed or left, and the partitions that it led."""


class Schedule:
    """`begun` starts all groups; each `round` adds to the `found` of the sides."""

    def __init__(self, sides: Sequence[Side], brokers: str, members: int, rng: Random) -> None:
        self._sides, self._members, self._rng = sides, members, rng
        self._admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
        self._routers: dict[str, Router] = {}

    @contextmanager
    def begun(self) -> Iterator[None]:
        """All groups at rest."""
        for number in range(self._members):
            for side in self._sides:
                side.group.start(f"m{number + 1}")
        with ExitStack() as stack:
            for side in self._sides:
                if not side.consumers:
                    side.group.wait_until(lambda it=side: it.is_shared(self._members), f"{side.name} was to settle")  # type: ignore[misc] # mypy knows no defaults of lambdas.
                    self._routers[side.name] = stack.enter_context(Router(side.group.ledger))
            self._rest(self._members)
            yield

    def round(self) -> None:
        self._start_again(self._fault("kill", lambda process: process.kill(), lambda found: found.takeovers))
        left = self._fault("stop", lambda process: process.ask_to_leave(), lambda found: found.handovers)
        for side, process, partitions in left:
            assert process.exit_code() == 0, f"{process.life.label} did not leave in good order:\n{process.log}"
            side.found.leaderless.append(max(gap(side, process.life, partition) for partition in partitions))
        self._start_again(left)

    def _fault(self, kind: str, act: Callable[[MemberProcess], float], took: Callable[[Found], list[float]]) -> Left:
        """Apply the fault to the leaders of partition 0, and wait for rest without them."""
        time.sleep(SPREAD * self._rng.random())
        left = [(side, it, list(it.life.held)) for side, it in self._leaders()]
        others = {side.name: side.tenures(but=process) for side, process, _ in left}
        at = [act(process) for _, process, _ in left]
        for (side, process, partitions), since in zip(left, at, strict=True):
            took(side.found).append(await_led_elsewhere(side.group, process, partitions, since) - since)
        self._rest(self._members - 1)
        self._count(kind, others)
        return left

    def _leaders(self) -> list[tuple[Side, MemberProcess]]:
        """The process of each side that leads partition 0, at a moment at which each side has one.

        A group at rest may lack it: a busy machine sometimes costs a member its short lease.
        """
        give_up_at = host_clock() + PATIENCE
        while True:
            for side in self._sides:
                side.group.read_notes()
            found = [(side, it) for side in self._sides if (it := side.leader()) is not None]
            if len(found) == len(self._sides):
                return found
            if host_clock() >= give_up_at:
                unled = {side.name for side in self._sides} - {side.name for side, _ in found}
                raise TimeoutError(f"{sorted(unled)} have no leader of partition 0 within {PATIENCE:g} s")
            time.sleep(LOOK_EVERY)

    def _start_again(self, left: Left) -> None:
        others = {side.name: side.tenures() for side in self._sides}
        for side, process, _ in left:
            side.group.start(process.life.name)
        self._rest(self._members)
        self._count("start", others)

    def _count(self, kind: str, others: Mapping[str, Sequence[Tenures]]) -> None:
        for side in self._sides:
            called_for = side.group.partitions // self._members if kind == "start" else 0
            ended = sum(tenures.ended() for tenures in others[side.name])
            side.found.taken[kind] += max(0, ended - called_for)

    def _rest(self, members: int) -> None:
        """Wait until all groups are at rest with this many members."""
        give_up_at = host_clock() + PATIENCE
        before: list[object] = []
        since = host_clock()
        while True:
            for side in self._sides:
                side.group.read_notes()
            led: list[object] = [side.led() for side in self._sides]
            unready = [side.name for side in self._sides if not side.is_shared(members)]
            if not unready:
                unready = [name for name, count in self._joined().items() if count != members]
            now = host_clock()
            if unready or led != before:
                before, since = led, now
            elif now - since >= QUIET:
                return
            if now >= give_up_at:
                said = "\n".join(it.log[-2000:] for side in self._sides for it in side.group.running.values())
                raise TimeoutError(f"{unready} are not at rest with {members} members; they lead {led}:\n{said}")
            time.sleep(LOOK_EVERY)

    def _joined(self) -> dict[str, int]:
        """How many members each group has; none while it is being gathered."""
        counts = {name: len(router.members) for name, router in self._routers.items()}
        borrowed = {side.consumers: side.name for side in self._sides if side.consumers}
        if borrowed:
            asked = self._admin.describe_consumer_groups([*borrowed], request_timeout=PATIENCE)
            for group, answer in asked.items():
                found = answer.result(PATIENCE)
                counts[borrowed[group]] = len(found.members) if found.state is ConsumerGroupState.STABLE else 0
        return counts


def gap(side: Side, leaver: Life, partition: int) -> float:
    """How long no process led it after one had left in good order."""
    ended = max(span.until for span in leaver.spans if span.partition == partition)
    spans = [span for life in side.group.lives if life is not leaver for span in life.spans]
    return max(0.0, min(it.since for it in spans if it.partition == partition and it.until > ended) - ended)
