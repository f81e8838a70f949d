"""The subscription port: one consumer of one topic, in one group with the other members.

    broker --gives, asks back, takes, messages--> subscription --wait, take--> pump --> machine
    broker <--------messages, questions---------- subscription <--publish, confirm, give_back---'

The broker gives each partition to one consumer at a time, as far as it knows. Everything that happens is taken in its
order, as the events of `consumer_group/events.py`. `tests/drivers/consumer_groups/test_contract.py` holds every driver
to the promises below.

Four things must be so, or a protocol that stands on this port is not safe:

- *No message that was appended before `Given` is received under it.* What an earlier owner wrote proves nothing about
  this one, and the first offset that is received is higher than any that an earlier owner received before it gave the
  partition back.
- *The broker waits.* After `AskedBack` it keeps the partitions for it until `give_back`, unless this consumer is
  dead to it, or its patience ends. Then `Lost` follows.
- *The group itself confirms.* A consumer may go on receiving after the broker took it for dead: reading takes no
  membership. `confirm` does, and is answered in the order of everything else: when `Confirmed` is taken, every `Given`,
  `AskedBack` and `Lost` that this consumer had heard of before it asked has been taken.
- *Times are taken late.* `take` reads the clock of the day after the caller has read its own clock for the step. So a
  thread that stops between the two makes a message look older than it is, never younger.

A handle belongs to the process that opened it, until it closes it, as a ledger's does.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from neli_router.protocols.consumer_group.events import AskedBack, Away, Back, Broken, Confirmed, Given, Lost, Received

__all__ = ["TAKE_MAX", "BrokerNews", "GroupLook", "GroupSubscription"]

TAKE_MAX = 1000
"""Messages that wait to be taken. When so many do, or one for a session, the driver stops asking the broker: a member
that hangs for longer than its patience then leaves the group."""

BrokerNews = Given | AskedBack | Lost | Received | Confirmed | Away | Back | Broken


class GroupLook(NamedTuple):
    """What a consumer would find, as `GroupSubscription` has it."""

    address: str
    partitions: int
    broker_times: bool
    doubts: tuple[str, ...]


class GroupSubscription(Protocol):
    """Used by one thread at a time, except for `wake`. After `close`, a call of any other method raises Closed."""

    @property
    def address(self) -> str:
        """Where the topic and the group are, for people: no secrets in it."""

    @property
    def partitions(self) -> int:
        """How many the topic has. It was asked of the broker at the start; a change of it is `Broken`."""

    @property
    def session(self) -> float:
        """Seconds for which the broker hears nothing of a consumer before it gives its partitions to others."""

    @property
    def broker_times(self) -> bool:
        """Whether messages carry the time at which the broker appended them."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence, for people, for each thing in the set-up that costs more than need be or endangers a promise."""

    def wait(self, timeout: float) -> None:
        """Until there is something to take, at most `timeout` seconds, or until `wake`."""

    def take(self) -> list[BrokerNews]:
        """All that happened since the last call, in order. Returns at once.

        Read the time for the machine's step between `wait` and `take`, as the port's third promise says.
        """

    def publish(self, bodies: Mapping[int, bytes | None]) -> None:
        """Queue a message for each of these partitions, in order. Returns at once; they may be lost."""

    def confirm(self, offsets: Mapping[int, int]) -> None:
        """Ask the group whether this consumer is still a member: `Confirmed` has the same offsets, or nothing comes."""

    def give_back(self, partitions: Sequence[int]) -> None:
        """Let the broker give these, which it asked back, to others."""

    def leave(self) -> None:
        """Leave the group, which gives everything back at once. Returns at once; `publish` goes on working."""

    def wake(self) -> None:
        """Make a `wait` in another thread return within ten milliseconds; if none is, the next one.

        Callable from any thread, and after `close`.
        """

    def close(self) -> None:
        """Leave the group and release everything. Bounded also where no broker answers; twice is fine."""
