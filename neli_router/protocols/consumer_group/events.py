"""The broker's side of the protocols that borrow a consumer group: a machine's inputs from it, and its effects on it.

    broker --Given, AskedBack, Lost, Received, Confirmed, BrokerAway, BrokerBack, BrokerBroken--> machine
    machine --Publish, Confirm, GiveBack, LeaveGroup--> broker

Each member publishes to the partitions of one topic, and consumes it in one group with the others. The broker gives
each partition to one consumer at a time, as far as it knows. A consumer does not learn who has the other partitions.

    nothing --Given--> given --AskedBack--> asked back --GiveBack (mine), or the broker's patience ends--> nothing
       ^                 '---------------------- Lost ------------------'

A broker that asks for a partition waits for the answer, so the program can finish its work first. It does not wait for
a member that it considers dead: that member learns of it late, or never, and may go on receiving for a while. So
messages that arrive prove nothing about the group. `Confirm` asks the group itself.

A driver guarantees an order: all inputs go through one queue, in the order in which its consumer heard of them. So when
`Confirmed` is taken, every Given, AskedBack and Lost that the consumer had heard of before it asked has been taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neli_router.errors import NeliError
from neli_router.protocols.protocol import Close, News, Released, Tick

__all__ = [
    "AskedBack",
    "BrokerAway",
    "BrokerBack",
    "BrokerBroken",
    "BrokerEffect",
    "BrokerInput",
    "Confirm",
    "Confirmed",
    "GiveBack",
    "Given",
    "LeaveGroup",
    "Lost",
    "Message",
    "Publish",
    "Received",
]


class Message(NamedTuple):
    """One message of the topic."""

    partition: int
    offset: int
    appended_at: float | None
    """Seconds since 1970 by the broker's clock, or None if the topic keeps the writers' times instead."""
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Given:
    """The broker gave these partitions to this consumer, in addition to those that it has.

    The messages of each partition begin at its end, which is looked up after the partition was given: never at a
    committed offset, and not where this consumer stood when it had the partition before.
    """

    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class AskedBack:
    """The broker wants these partitions back, and waits for `GiveBack` until its patience ends. Then it sends `Lost`
    before it takes them."""

    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class Lost:
    """The broker already took these partitions, or the group forgot this consumer."""

    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class Received:
    """The next messages of the given partitions, each partition in order.

    The time of the step is just *after* they were taken from the client library, where they may have waited. `wall` is
    this host's wall clock, in seconds since 1970: comparable with the broker's as far as both are synchronized. It is
    read *after* the time of the step. If the process pauses between the two, a message seems older than it is, and a
    leader ends too soon. The other way round it would seem younger, and two members could lead.
    """

    messages: Sequence[Message]
    wall: float


@dataclass(frozen=True, slots=True)
class Confirmed:
    """After `Confirm(offsets)` was given, the group's coordinator still counted this consumer as a member."""

    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class BrokerAway:
    """The broker cannot be reached."""


@dataclass(frozen=True, slots=True)
class BrokerBack:
    """The broker can be reached again."""


@dataclass(frozen=True, slots=True)
class BrokerBroken:
    """The topic or the group can no longer be used, and trying again will not help."""

    error: NeliError


BrokerInput = (
    Given | AskedBack | Lost | Received | Confirmed | BrokerAway | BrokerBack | BrokerBroken | Released | Close | Tick
)


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish these, in order: partition -> body. They may be lost."""

    bodies: Mapping[int, bytes | None]


@dataclass(frozen=True, slots=True)
class Confirm:
    """Ask the group's coordinator whether it still counts this consumer: partition -> offset of the message concerned.

    `Confirmed` carries the same offsets, and is the only answer: a group that refuses sends `Lost`, and a question
    that got lost is asked again. With Kafka this is a commit in the consumer's own generation (or member epoch), which
    the coordinator refuses for a consumer that it considers dead. We never read the committed offset, but goNELI begins
    there. So in a group with goNELI, commit an offset past the end of any log; from there a consumer goes to the end.
    """

    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The program is done with these partitions, which the broker asked back: it may give them to others."""

    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Leave the group now, so that others get this consumer's partitions. The machine may go on for a while."""


BrokerEffect = Publish | Confirm | GiveBack | LeaveGroup | News
"""No effect announces tenures: the driver announces them itself, from the machine's standing."""
