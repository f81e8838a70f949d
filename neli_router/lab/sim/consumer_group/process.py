"""A simulated process in a borrowed consumer group, and the subscription between its pump and its client library.

    pump --wait, take, publish, confirm, give back, leave: a moment each--> subscription --> client library --> broker

A pause stops either the whole process (frozen: its library sends no beats) or only its thread (stalled: its library
keeps the group believing in it).
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from neli_router.drivers.consumer_groups.base import BrokerNews, SubscriptionPump
from neli_router.lab.sim.consumer_group.broker import Broker, DayClock
from neli_router.lab.sim.consumer_group.consumer import Consumer
from neli_router.lab.sim.process import ProcessChecks, SimulatedProcess, SimulatedPump, watched
from neli_router.lab.sim.thread import TURN, SimulatedThread
from neli_router.lab.sim.world import LocalClock, World
from neli_router.protocols.consumer_group.events import Given
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings

__all__ = ["BorrowedMachine", "ConsumerProcess", "SimulatedSubscription"]

BorrowedMachine = NeliMachine | FastNeliMachine


class SimulatedSubscription:
    """A client library behind the subscription port."""

    address = "sim://broker/group"
    broker_times = True
    doubts: tuple[str, ...] = ()

    def __init__(self, consumer: Consumer, thread: SimulatedThread, clock: LocalClock) -> None:
        options = consumer.options
        self.partitions, self.session = options.partitions, options.session
        self.givings: dict[int, dict[int, int]] = {}
        """The identity of each `Given` that was taken -> the givings that its program has from then on."""
        self._consumer, self._thread, self._clock, self._world = consumer, thread, clock, consumer.world

    def wait(self, timeout: float) -> None:
        self._thread.moment()
        now = self._world.now
        until = min(self._clock.when(self._clock.at(now) + timeout), self._consumer.next_at())
        self._thread.sleep(max(until, now + TURN * self.session))

    def take(self) -> list[BrokerNews]:
        self._thread.moment()
        taken: list[BrokerNews] = []
        self.givings.clear()
        while True:
            # Asked at least once: a program that takes nothing at all looks like one that hangs.
            one: Any = self._consumer.take()
            if one is not None:
                taken.append(list(one) if isinstance(one, Sequence) else one)
                if isinstance(one, Given):
                    self.givings[id(one)] = dict(self._consumer.givings)
            if self._consumer.next_at() > self._world.now:
                return taken

    def publish(self, bodies: Mapping[int, bytes | None]) -> None:
        self._thread.moment()
        self._consumer.publish(bodies)

    def confirm(self, offsets: Mapping[int, int]) -> None:
        self._thread.moment()
        self._consumer.confirm(offsets)

    def give_back(self, partitions: Sequence[int]) -> None:
        self._thread.moment()
        self._consumer.give_back(partitions)

    def leave(self) -> None:
        self._thread.moment()
        self._consumer.leave()

    def wake(self) -> None:
        self._thread.wake(self._world.now)

    def close(self) -> None:
        self._consumer.close()


class ConsumerProcess(SimulatedProcess):
    """One process on one host, of the member called `name`."""

    def __init__(
        self,
        world: World,
        broker: Broker,
        checks: ProcessChecks["ConsumerProcess"],
        *,
        label: str,
        clock: LocalClock,
        day: DayClock,
        name: str,
    ) -> None:
        options = broker.options
        super().__init__(world, checks, label=label, clock=clock, habits=options, unit=options.session)
        self.options, self.day = options, day
        self.cut_until = 0.0
        self.givings: dict[int, int] = {}
        """Partition -> the last giving its machine was notified of, even when it is over."""
        self.tenures: dict[tuple[int, int], int] = {}
        """Partition and term -> the giving under which it was first acted on."""
        settings, dice = options.settings(name), Random(world.random.getrandbits(64))
        self.machine: BorrowedMachine = (
            FastNeliMachine(
                settings, options.partitions, self.now, wall_nanoseconds=round(1e9 * day.at(world.now)), rng=dice
            )
            if isinstance(settings, FastNeliSettings)
            else NeliMachine(settings, options.partitions, rng=dice)
        )
        self.consumer = Consumer(broker, label, clock=clock, on_news=self.thread.wake)
        self._subscription = SimulatedSubscription(self.consumer, self.thread, clock)
        self.thread.start(world.now)

    # For the world

    def pause(self, seconds: float, *, whole: bool = True) -> None:
        """Stop its thread for `seconds`; if the `whole` process is paused, its library stops, too."""
        if whole:
            self._freeze(self.world.now + seconds)
        self._stop_for(seconds, "frozen" if whole else "stalled")

    def cut_off(self, until: float) -> None:
        """Cut it off from everything of the broker, until then."""
        consumer = self.consumer
        self.cut_until = max(self.cut_until, until)
        for cut in ("group_cut_until", "fetch_cut_until", "mute_until"):
            setattr(consumer, cut, max(getattr(consumer, cut), until))

    def heal(self) -> None:
        self.cut_until = self.world.now
        self.day.set_right(self.world.now)
        self.consumer.heal()
        super().heal()

    # Its work

    def _open(self) -> SimulatedPump:
        return SubscriptionPump(
            self._subscription,
            watched(self.label, self.machine, self._before_step),
            clock=self.read_clock,
            wall=self._read_wall_clock,
            publish=self.publish,
            tell=self.tell,
            explain=self.explain,
        )

    def _close(self) -> None:
        if self.stopped is not None:
            self.consumer.leave()
        else:
            self.consumer.close()

    def _read_wall_clock(self) -> float:
        self.thread.moment()
        return self.day.at(self.world.now)

    def _before_step(self, event: object) -> None:
        self.givings.update(self._subscription.givings.get(id(event), {}))

    def _on_pause(self, until: float) -> None:
        super()._on_pause(until)
        self._freeze(until)

    def _freeze(self, until: float) -> None:
        self.consumer.frozen_until = max(self.consumer.frozen_until, until)
