"""The subscription port: one consumer of one topic, in one group with the other members.

    broker --gives, asks back, takes, messages--> subscription --wait, take--> pump --> machine
    broker <--------messages, questions---------- subscription <--publish, confirm, give_back---'

The broker gives each partition to one consumer at a time, as far as it knows. Everything that happens is taken in
order, as the events of `consumer_group/events.py`. `tests/drivers/consumer_groups/test_contract.py` holds every driver
to the promises below.

Four things must hold, or a protocol built on this port is not safe:

- *No message that was appended before `Given` is received under it.* What an earlier owner wrote proves nothing about
  the current one, and the first offset received is higher than any that an earlier owner received before it gave the
  partition back.
- *The broker waits.* After `AskedBack` it keeps the partitions for this consumer until `give_back`, unless it takes the
  consumer for dead, or its patience ends. Then `Lost` follows.
- *The group itself confirms.* Reading needs no membership; `confirm` does, and is answered in order with everything
  else: when `Confirmed` is taken, every `Given`, `AskedBack` and `Lost` that this consumer had heard of before it asked
  has been taken.
- *Times are taken late.* `take` reads the wall clock after the caller has read its own clock for the step. So a thread
  that stops between the two makes a message look older than it is, never younger.

Until it is closed, a handle belongs to the process that opened it, like a ledger's handle.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from neli_router.protocols.consumer_group.events import (
    AskedBack,
    BrokerAway,
    BrokerBack,
    BrokerBroken,
    Confirmed,
    Given,
    Lost,
    Received,
)

__all__ = ["TAKE_MAX", "BrokerNews", "GroupLook", "GroupSubscription"]

TAKE_MAX = 1000
"""The most messages that wait to be taken. When that many wait, or one has waited for a session, the driver stops
polling the broker: a member that hangs for longer than its patience then leaves the group."""

BrokerNews = Given | AskedBack | Lost | Received | Confirmed | BrokerAway | BrokerBack | BrokerBroken


class GroupLook(NamedTuple):
    """The topic and the group as a consumer would find them, in the terms of `GroupSubscription`."""

    address: str
    partitions: int
    broker_times: bool
    doubts: tuple[str, ...]


class GroupSubscription(Protocol):
    """Used by one thread at a time, except for `wake`. After `close`, a call of any other method raises Closed."""

    @property
    def address(self) -> str:
        """Where the topic and the group are, for people: contains no secrets."""

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
        """Everything that happened since the last call, in order. Returns immediately.

        Read the time for the machine's step between `wait` and `take`, as the port's fourth promise says.
        """

    def publish(self, bodies: Mapping[int, bytes | None]) -> None:
        """Queue a message for each of these partitions, in order. Returns immediately; messages may be lost."""

    def confirm(self, offsets: Mapping[int, int]) -> None:
        """Ask the group whether this consumer is still a member: `Confirmed` has the same offsets, or nothing comes."""

    def give_back(self, partitions: Sequence[int]) -> None:
        """Let the broker give these partitions, which it asked back, to others."""

    def leave(self) -> None:
        """Leave the group, which gives back all partitions. Returns immediately; `publish` still works afterwards."""

    def wake(self) -> None:
        """Make a `wait` in another thread return within ten milliseconds; if none is running, the next one does.

        Callable from any thread, and after `close`.
        """

    def close(self) -> None:
        """Leave the group and release everything. Bounded even if no broker answers; may be called twice."""
