"""The simulator's broker and client library behind the subscription port, so that the port's contract covers them too.

    Taking --wait: the world goes on --> World --> Broker, Consumer --take--> the events that a machine takes

All subscriptions of a `SimulatedGroup` share one world. Its time advances only while one of them waits, so nothing here
takes real time. Nothing fails in this world; the simulator's own runs are for failures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Literal

from neli_router.drivers.consumer_groups.base import BrokerNews
from neli_router.drivers.ledgers.base import require_not_closed
from neli_router.lab.sim.consumer_group.broker import Broker
from neli_router.lab.sim.consumer_group.consumer import Consumer
from neli_router.lab.sim.consumer_group.options import ConsumerOptions
from neli_router.lab.sim.world import LocalClock, World
from neli_router.protocols.consumer_group.events import Message

__all__ = ["SimulatedGroup", "SimulatedSubscription"]

STEP = 0.002
"""Seconds of the world's time between two looks for something to take."""

ADDRESS = "sim://broker/group"


class SimulatedGroup:
    """A topic, its broker, and the consumers that have joined. `deaf`: nothing is received between AskedBack and giving
    back, like with a client whose callbacks block its polls."""

    def __init__(
        self,
        assignor: Literal["eager", "cooperative"],
        *,
        partitions: int,
        session: float,
        patience: float,
        deaf: bool,
        sparse: bool,
    ) -> None:
        self.world = World(1)
        drawn = ConsumerOptions.draw(1, Random(1), protocol="neli", guarantee="exclusive", weather="fair")
        self.options = replace(
            drawn,
            partitions=partitions,
            session=session,
            assignor=assignor,
            poll_patience=patience / session,
            deaf_while_draining=deaf,
            sparse=sparse,
            batch_max=3,
            faults=(),
        )
        self.consumers: list[Consumer] = []
        self.broker = Broker(
            self.world, self.options, on_given=lambda *_: None, on_taken=self._on_taken, on_append=self._on_append
        )

    def join(self) -> "SimulatedSubscription":
        return SimulatedSubscription(self)

    def _on_taken(self, label: str, partition: int, giving: int, *, silent: bool) -> None:
        for consumer in self.consumers:
            if consumer.label == label:
                consumer.on_taken(partition, giving)

    def _on_append(self, message: Message) -> None:
        for consumer in self.consumers:
            consumer.on_append(message)


class SimulatedSubscription:
    """One consumer. Used by one thread, and only one of a group at a time, except for `wake`."""

    address = ADDRESS
    broker_times = True
    doubts: tuple[str, ...] = ()

    def __init__(self, group: SimulatedGroup) -> None:
        self._group, self._world = group, group.world
        self.partitions, self.session = group.options.partitions, group.options.session
        self._woken = self._closed = False
        label = f"consumer-{len(group.consumers)}"
        clock = LocalClock(0.0, [(0.0, 1.0)])
        self._consumer = Consumer(group.broker, label, clock=clock, on_news=lambda _: None)
        group.consumers.append(self._consumer)

    def wait(self, timeout: float) -> None:
        self._require_open()
        until = self._world.now + timeout
        while not self._woken and self._world.now < until and self._consumer.next_at() > self._world.now:
            self._world.run(min(until, self._world.now + STEP))
        self._woken = False

    def take(self) -> list[BrokerNews]:
        self._require_open()
        taken: list[BrokerNews] = []
        while True:
            # Asked at least once: a program that takes nothing at all looks like one that hangs.
            one = self._consumer.take()
            if isinstance(one, Sequence):
                taken.append(list(one))
            elif one is not None:
                taken.append(one)  # type: ignore[arg-type] # A library reports nothing else.
            if self._consumer.next_at() > self._world.now:
                return taken

    def publish(self, bodies: Mapping[int, bytes | None]) -> None:
        self._require_open()
        self._consumer.publish(bodies)

    def confirm(self, offsets: Mapping[int, int]) -> None:
        self._require_open()
        self._consumer.confirm(offsets)

    def give_back(self, partitions: Sequence[int]) -> None:
        self._require_open()
        self._consumer.give_back(partitions)

    def leave(self) -> None:
        self._require_open()
        self._consumer.leave()

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.leave()

    def freeze(self, seconds: float) -> None:
        """Stop the whole process for this long: its library sends nothing and hears nothing."""
        self._consumer.frozen_until = self._world.now + seconds

    def _require_open(self) -> None:
        require_not_closed(self.address, closed=self._closed)
