"""The simulator's broker and client library behind the subscription port, so that the port's contract covers them too.

    Taking --wait: the world goes on --> World --> Broker, Consumer --take--> the news that a pump takes

All subscriptions of a `SimulatedGroup` share one world. Its time advances only while one of them waits, so nothing here
takes real time. Nothing fails in this world; the simulator's own runs are for failures.
"""

from dataclasses import replace
from random import Random
from typing import Literal, cast

from neli_router.drivers.ledgers.base import require_not_closed
from neli_router.lab.sim.consumer_group.broker import Broker
from neli_router.lab.sim.consumer_group.consumer import Consumer
from neli_router.lab.sim.consumer_group.options import ConsumerOptions
from neli_router.lab.sim.consumer_group.process import SimulatedSubscription
from neli_router.lab.sim.thread import SimulatedThread
from neli_router.lab.sim.world import LocalClock, World
from neli_router.protocols.consumer_group.events import Message

__all__ = ["JoinedSubscription", "SimulatedGroup"]

STEP = 0.002
"""Seconds of the world's time between two looks for something to take."""


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

    def join(self) -> "JoinedSubscription":
        return JoinedSubscription(self)

    def _on_taken(self, label: str, partition: int, giving: int, *, silent: bool) -> None:
        for consumer in self.consumers:
            if consumer.label == label:
                consumer.on_taken(partition, giving)

    def _on_append(self, message: Message) -> None:
        for consumer in self.consumers:
            consumer.on_append(message)


class _Waiting:
    """Stands in for a simulated thread: the world goes on while it sleeps."""

    def __init__(self, world: World) -> None:
        self._world, self._woken, self.closed = world, False, False

    def moment(self) -> None:
        require_not_closed(SimulatedSubscription.address, closed=self.closed)

    def sleep(self, until: float) -> None:
        while not self._woken and self._world.now < until:
            self._world.run(min(until, self._world.now + STEP))
        self._woken = False

    def wake(self, time: float) -> None:
        if time > self._world.now:
            self._world.at(time, self.wake, time)
        else:
            self._woken = True


class JoinedSubscription(SimulatedSubscription):
    """One consumer. Used by one thread, and only one of a group at a time, except for `wake`."""

    def __init__(self, group: SimulatedGroup) -> None:
        self._waiting = waiting = _Waiting(group.world)
        label, clock = f"consumer-{len(group.consumers)}", LocalClock(0.0, [(0.0, 1.0)])
        consumer = Consumer(group.broker, label, clock=clock, on_news=waiting.wake)
        super().__init__(consumer, cast("SimulatedThread", waiting), clock)
        group.consumers.append(consumer)

    def close(self) -> None:
        if not self._waiting.closed:
            self._waiting.closed = True
            self._consumer.leave()
