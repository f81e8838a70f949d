"""The peers' side of the electors: the inputs of a machine from other members, and its effects on them.

    peers ----------Heard---------> machine --Send--> peers
    operator --Nominate, Prefer,--> machine --Keep--> disk
               Rebalance

These groups have no ledger and no broker. Every member knows all members by their places in one list, which is the same
for all, and sends them datagrams. Datagrams may be lost, duplicated, late and in any order. The link that delivers them
vouches for their senders. A body is a message between machines of one protocol, in bytes.

*Keep comes first.* Anything that a machine must remember across a restart, such as its vote, is on disk before any
later effect is carried out. A link that cannot keep it ends the member: a vote that is sent and then forgotten makes
two leaders of one term.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from neli_router.protocols.protocol import Close, News, Released, Tick

__all__ = [
    "BODY_MAX",
    "COUNT_MAX",
    "Heard",
    "Keep",
    "Led",
    "Nominate",
    "PeerEffect",
    "PeerInput",
    "Prefer",
    "Rebalance",
    "Send",
]

BODY_MAX = 1200
"""Bytes of the longest body. With all frames around it, it makes a datagram that no network splits."""

COUNT_MAX = 1 << 60
"""No process starts this often, and no member is elected this often. Counting on from a larger number would lead to
numbers that cannot be sent, so a peer that sends one is ignored."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The peer at place `sender` of the list sent this body."""

    sender: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Nominate:
    """An operator wants the peer at place `node` to lead these partitions; None means all of them."""

    node: int
    partitions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Prefer:
    """Change this member's priorities: partition -> priority. None restores the assigned ones. A restart keeps them."""

    priorities: Mapping[int, int] | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Pass each partition that this member leads to a living peer that is preferred, if there is one."""


PeerInput = Heard | Nominate | Prefer | Rebalance | Released | Close | Tick


@dataclass(frozen=True, slots=True)
class Send:
    """Send `body` to the peer at place `to`. It may be lost."""

    to: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Keep:
    """Have this on disk, in place of what was kept before, before any later effect is carried out."""

    memory: bytes


class Led(NamedTuple):
    """The leader of one partition, as this member believes; for display."""

    leader: int | None
    """The place of the leader."""
    term: int
    """The term that this member knows."""
    reason: str
    """Why the leader changed."""


PeerEffect = Send | Keep | News
"""The driver of the machine announces its tenures: they are in its standing."""
