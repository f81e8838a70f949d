"""The peers' side of the electors: what a machine takes from the other members, and gives to them.

    peers ----------Heard---------> machine --Send--> peers
    operator --Nominate, Prefer,--> machine --Keep--> disk
               Rebalance

There is no ledger and no broker. Every member knows all members by their place in one list, which is the same for all,
and sends them datagrams. These may be lost, doubled, late and in any order; that they come from whom they say is
vouched for by the link that brought them. A body is whatever the machines of one protocol say to each other, in bytes.

*Keep comes first.* What a machine must remember over a restart (that it voted, for one) is on disk before any effect
behind it is carried out. A link that cannot keep it ends the member: a vote that is sent and forgotten makes two
leaders of one term.
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
"""Bytes of the longest body: with all frames around it a datagram that no network splits."""

COUNT_MAX = 1 << 60
"""No process starts so often, and nobody is elected so often. Whoever counted on from more would come to numbers that
cannot be sent, so it is not heard."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The peer at place `sender` of the list sent this body."""

    sender: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Nominate:
    """An operator wants the peer at place `node` to lead these partitions; None is all of them."""

    node: int
    partitions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Prefer:
    """This member's priorities are others from now on: partition -> priority. None is the assigned ones again. They
    are kept over a restart."""

    priorities: Mapping[int, int] | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """This member shall pass each partition that it leads to a living peer that is preferred, if there is one."""


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
    """Of one partition, for people: who leads it, as this member believes."""

    leader: int | None
    """The place of the leader."""
    term: int
    """The term that this member knows."""
    reason: str
    """Why the leader is another than before."""


PeerEffect = Send | Keep | News
"""Whoever drives the machine announces its tenures: they are in its standing."""
