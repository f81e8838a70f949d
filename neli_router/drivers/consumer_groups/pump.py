"""The pump of a subscription: one machine, one consumer of a broker's group, one loop.

    inbox --(Released, Close)--.
                               v
    subscription --wait, then the clock, then take--> machine.step --> publish the standing --> effects, in order
       ^                                                                                            |
       '------------------ publish, confirm, give back, leave ---------------------------------------'

Two orderings matter. The clock is read *before* the events are taken: see the port's fourth promise. The standing is
published *before* an effect is carried out, so that no thread of the program still sees a partition as led when it is
given back. Like a ledger's pump, it has no thread and no clock of its own.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from neli_router.drivers.consumer_groups.base import GroupSubscription
from neli_router.protocols.consumer_group.events import (
    BrokerAway,
    BrokerBack,
    BrokerEffect,
    BrokerInput,
    Confirm,
    GiveBack,
    LeaveGroup,
    Publish,
)
from neli_router.protocols.protocol import TICK, Machine, News, Notice

__all__ = ["SubscriptionPump"]

WAIT_MAX = 0.5
"""The longest wait for news, in seconds. A machine that leads nothing may have nothing to do for longer than this."""

GroupMachine = TypeVar("GroupMachine", bound=Machine[BrokerInput, BrokerEffect])


class SubscriptionPump(Generic[GroupMachine]):
    """Drives `machine`. Only one thread may call `turn`; any thread may call `post`.

    `publish` is called after every step, before the step's effects, and `explain` gets those effects before that.
    `tell` gets every effect that is not for the broker.
    """

    def __init__(
        self,
        subscription: GroupSubscription,
        machine: GroupMachine,
        *,
        clock: Callable[[], float],
        publish: Callable[[GroupMachine, float], None],
        tell: Callable[[News], None],
        explain: Callable[[Sequence[BrokerEffect]], None],
    ) -> None:
        self._subscription, self.machine, self._clock = subscription, machine, clock
        self._publish, self._tell, self._explain = publish, tell, explain
        self._inbox: deque[BrokerInput] = deque()

    def post(self, event: BrokerInput) -> None:
        """Let the machine take `event` soon. Callable from any thread."""
        self._inbox.append(event)
        self._subscription.wake()

    def turn(self) -> None:
        """Do one bounded piece of work: the inbox, and everything that has happened."""
        for _ in range(len(self._inbox)):
            self._step(self._inbox.popleft(), self._clock())
        if not self._inbox:
            self._subscription.wait(min(WAIT_MAX, max(0.0, self.machine.deadline - self._clock())))
        now = self._clock()
        for event in self._subscription.take() or (TICK,):
            if isinstance(event, BrokerAway | BrokerBack):
                self._tell(self._notice(event))
            self._step(event, now)

    def _step(self, event: BrokerInput, now: float) -> None:
        effects = self.machine.step(event, now)
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
