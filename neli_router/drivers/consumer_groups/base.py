"""The subscription port: one consumer of one topic, in one group with the other members; and the pump that drives it.

    broker --gives, asks back, takes, messages--> subscription --wait, take, then the clocks--> machine.step
    broker <---------messages, questions--------- subscription <--publish, confirm, give_back, leave-'

The broker gives each partition to one consumer at a time, as far as it knows. Everything that happens is taken in
order, as the events of `consumer_group/events.py`. `tests/drivers/consumer_groups/test_contract.py` holds every driver
to the promises below.

Three things must hold, or a protocol built on this port is not safe:

- *No message that was appended before `Given` is received under it.* What an earlier owner wrote proves nothing about
  the current one, and the first offset received is higher than any that an earlier owner received before it gave the
  partition back.
- *The broker waits.* After `AskedBack` it keeps the partitions for this consumer until `give_back`, unless it takes the
  consumer for dead, or its patience ends. Then `Lost` follows. Messages of all its partitions are received meanwhile:
  otherwise a program that takes its time would lose even those that were not asked back.
- *The group itself confirms.* Reading needs no membership; `confirm` does, and is answered in order with everything
  else: when `Confirmed` is taken, every `Given`, `AskedBack` and `Lost` that this consumer had heard of before it asked
  has been taken.

Until it is closed, a handle belongs to the process that opened it, like a ledger's handle.

**The pump** keeps three orderings, because its thread may stop for any time between two calls:

- It reads the clock *after* it has taken the events. A new owner waits from Given until the old owner has ended. If the
  clock were read first, that wait would begin, and end, too early.
- It reads the wall clock *after* the clock. A message's age is taken by the wall clock, and counted back from the time
  of the step. The other way round a message would look younger than it is, and an old owner would end too late.
- It publishes the standing *before* an effect is carried out, so that no thread of the program still sees a partition
  as led when it is given back.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from neli_router.drivers.handle import Handle
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
from neli_router.protocols.protocol import TICK, Machine, News, Notice

__all__ = ["TAKE_MAX", "BrokerNews", "GroupLook", "GroupSubscription", "SubscriptionPump"]

TAKE_MAX = 1000
"""The most messages that wait to be taken. When that many wait, or one has waited for a session, the driver stops
polling the broker: a member that hangs for longer than its patience then leaves the group."""

WAIT_MAX = 0.5
"""The longest wait for news, in seconds. A machine that leads nothing may have nothing to do for longer than this."""

BrokerNews = Given | AskedBack | Lost | list[Message] | Confirmed | BrokerAway | BrokerBack | BrokerBroken
"""The news of a subscription. Neighbouring messages come as one list."""

GroupMachine = TypeVar("GroupMachine", bound=Machine[BrokerInput, BrokerEffect])


class GroupLook(NamedTuple):
    """The topic and the group as a consumer would find them, in the terms of `GroupSubscription`."""

    address: str
    partitions: int
    broker_times: bool
    doubts: tuple[str, ...]


class GroupSubscription(Handle, Protocol):
    """One consumer. `wake` ends a `wait`, and `close` leaves the group."""

    @property
    def partitions(self) -> int:
        """How many the topic has. The broker was asked at the start; if the number changes, `BrokerBroken` follows."""

    @property
    def session(self) -> float:
        """Seconds of silence from a consumer after which the broker gives its partitions to others."""

    @property
    def broker_times(self) -> bool:
        """Whether messages carry the time at which the broker appended them."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence, for people, for each part of the set-up that wastes something or endangers a promise."""

    def wait(self, timeout: float) -> None:
        """Wait until there is something to take, for at most `timeout` seconds, or until `wake`."""

    def take(self) -> list[BrokerNews]:
        """Everything that happened since the last call, in order. Returns immediately."""

    def publish(self, bodies: Mapping[int, bytes | None]) -> None:
        """Queue a message for each of these partitions, in order. Returns immediately; messages may be lost."""

    def confirm(self, offsets: Mapping[int, int]) -> None:
        """Ask the group whether this consumer is still a member: `Confirmed` has the same offsets, or nothing comes."""

    def give_back(self, partitions: Sequence[int]) -> None:
        """Let the broker give these partitions, which it asked back, to others."""

    def leave(self) -> None:
        """Leave the group, which gives back all partitions. Returns immediately; `publish` still works afterwards."""


class SubscriptionPump(Generic[GroupMachine]):
    """Drives `machine`. Only one thread may call `turn`; any thread may call `post`.

    `publish` is called after every step, before the step's effects, and `explain` gets those effects before that.
    `tell` receives every effect that is not for the broker. `wall` gives the seconds since 1970.
    """

    def __init__(
        self,
        subscription: GroupSubscription,
        machine: GroupMachine,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        publish: Callable[[GroupMachine, float], None],
        tell: Callable[[News], None],
        explain: Callable[[Sequence[BrokerEffect]], None],
    ) -> None:
        self._subscription, self.machine, self._clock, self._wall = subscription, machine, clock, wall
        self._publish, self._tell, self._explain = publish, tell, explain
        self._inbox: deque[BrokerInput] = deque()

    def post(self, event: BrokerInput) -> None:
        """Let the machine take `event` soon. Callable from any thread."""
        self._inbox.append(event)
        self._subscription.wake()

    def turn(self) -> None:
        """Do one bounded piece of work: the inbox, and everything that has happened."""
        for _ in range(len(self._inbox)):
            self._step(self._inbox.popleft())
        if not self._inbox:
            self._subscription.wait(min(WAIT_MAX, max(0.0, self.machine.deadline - self._clock())))
        for event in self._subscription.take() or (TICK,):
            if isinstance(event, BrokerAway | BrokerBack):
                self._tell(self._notice(event))
            self._step(event)

    def _step(self, event: BrokerNews | BrokerInput) -> None:
        now = self._clock()  # After `event` was taken, and before the wall clock: see above.
        effects = self.machine.step(Received(event, self._wall()) if isinstance(event, list) else event, now)
        if effects:
            self._explain(effects)
        self._publish(self.machine, now)
        for effect in effects:
            match effect:
                case Publish(bodies):
                    self._subscription.publish(bodies)
                case Confirm(offsets):
                    self._subscription.confirm(offsets)
                case GiveBack(partitions):
                    self._subscription.give_back(partitions)
                case LeaveGroup():
                    self._subscription.leave()
                case _:
                    self._tell(effect)

    def _notice(self, event: BrokerAway | BrokerBack) -> Notice:
        fields: dict[str, object] = {"what": "read", "ledger": self._subscription.address}
        if isinstance(event, BrokerBack):
            return Notice("ledger.available", fields)
        return Notice("ledger.unavailable", {**fields, "error": "no broker answers"})
