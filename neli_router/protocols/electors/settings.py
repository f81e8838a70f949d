"""Settings of a member in a group without a broker, and their limits.

    |<------------- lease ------------>|        how long a leader acts on a majority's last support, from its asking
    |<-beat->|<-beat->|<-beat->|                 `term`: the heartbeat; `misses` of them make a leader seem gone
    |<--------------- wait --------------->|     the lease as a supporter counts it, on the slowest allowed clock

`gossip` calls the lease P, and the beat its interval. INTERVALS_MIN says how many intervals must fit into P.

The list of peers is the electorate. Every promise rests on its length N: two halves that believe in different lists
would have two majorities. So all datagrams carry a mark of the list, and datagrams with another mark are refused.
"""

from math import ceil
from typing import ClassVar, Literal

from msgspec import Struct

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.protocols.protocol import BASE_MAX, DRIFT_MAX, LEASE_MAX, LEASE_MIN, wait_for

__all__ = ["MISSES", "PEERS_MAX", "PHI_MAX", "WINDOW", "GossipSettings", "PeerSettings", "Policy", "TermSettings"]

MISSES = 3
"""Heartbeats missed in a row until a leader counts as gone."""

PEERS_MAX = 200
"""A list of a hundred works. A datagram to each of many more peers, every beat, would be another protocol."""

INTERVALS_MIN = 5
"""The least number of gossip intervals in P: a change of favourite must have time to reach every member."""

PHI_MAX = 8
"""The suspicion from which a peer counts as dead: 8 is one mistake in a hundred million intervals."""

WINDOW = 100
"""The number of intervals between signs of life from which suspicion is computed."""

Policy = Literal["random", "priority"]


class PeerSettings(Struct, frozen=True, kw_only=True):
    """Settings that `term` and `gossip` share. Times are in seconds. `ConfigError` names all problems together."""

    name: str
    layout: Layout
    peers: tuple[str, ...]
    """The addresses of all members, in the same order everywhere. A member's id is its place in the list."""
    me: int
    lease: float
    beat: float
    drain_timeout: float = 30.0
    drift: float = DRIFT_MAX
    term_base: int = 0
    """Terms are above this."""

    beats_min: ClassVar[float] = MISSES
    """How many beats must fit into a lease."""

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise ConfigError(problems)

    @property
    def size(self) -> int:
        return len(self.peers)

    @property
    def voters(self) -> int:
        """N: how many peers elect together."""
        return self.size

    @property
    def wait(self) -> float:
        """How long a supporter keeps its promise, on its own clock."""
        return wait_for(self.lease, self.drift)

    def lease_over(self, links: int) -> float:
        """The shortest lease with which a leader leads without gaps, if each member reaches only `links` others."""
        return self.lease

    @property
    def doubts(self) -> list[str]:
        """Sentences about settings that cost more than they need to."""
        if (count := self.voters) % 2:
            return []
        quorum = count // 2 + 1
        borne = count - quorum
        failures = f"{borne or 'no'} failure{'s' * (borne > 1)}"
        who = "peers" if count == self.size else "that elect together"
        costs = f"{count} {who} need {quorum} for a majority, and bear {failures}"
        as_few = "as one alone does" if count == 2 else f"as {count - 1} do"
        return [f"{costs}, {as_few}: leave one out, or add one"]

    def problems(self) -> list[str]:
        """Every contradiction, as a sentence that says what was wanted, what was found and what to do."""
        found = []
        if not 1 <= len(self.peers) <= PEERS_MAX:
            found.append(f"{len(self.peers)} peers were named: name from 1 to {PEERS_MAX}, this member among them")
        if twice := sorted({peer for peer in self.peers if self.peers.count(peer) > 1}):
            found.append(f"peers are named twice ({', '.join(twice)}): name each once, or it would vote twice")
        if self.peers and not 0 <= self.me < len(self.peers):
            found.append(f"me={self.me} is not a place in the list of {len(self.peers)} peers: count from 0")
        if not LEASE_MIN <= self.lease <= LEASE_MAX:
            found.append(f"lease={self.lease} must be from {LEASE_MIN} to {LEASE_MAX} seconds")
        elif not 0 < self.beat <= self.lease / self.beats_min * (1 + 1e-9):
            most = self.lease / self.beats_min
            found.append(
                f"beat={self.beat:g} must be above 0 and at most lease/{self.beats_min:g}={most:g}: lower it, or raise "
                f"lease to {self.beat * self.beats_min:g}"
            )
        if not 0 <= self.drift < 0.1:
            found.append(f"drift={self.drift} must be under 0.1: no clock is off by a tenth of its rate")
        if self.drain_timeout < 0:
            found.append(f"drain_timeout={self.drain_timeout} must be at least 0 seconds")
        if not 0 <= self.term_base <= BASE_MAX:
            found.append(f"term_base={self.term_base} must be a whole number from 0 to {BASE_MAX}: correct it")
        return found


class TermSettings(PeerSettings, frozen=True, kw_only=True):
    """Settings of `term`. The beat is the heartbeat, and the lease is three of them or more."""

    policy: Policy = "random"
    """Which peer stands first: with `random`, the one that draws the shortest wait; with `priority`, by rank."""
    misses: int = MISSES
    """Heartbeats missed in a row until a leader counts as gone."""
    wait_max: float | None = None
    """The longest random wait. None means `misses` heartbeats: three by default, like BlazingMQ, which waits up to
    3 s."""
    replicas: int | None = None
    """How many peers elect the leader of each partition. None means all of them; with `random` it must be all."""
    scouting: bool = True
    """Ask whether a proposal would be honoured before it ends a term. Turn it off only for experiments."""
    transfer: bool = True
    """For `priority`: a leader passes a partition to a living peer that is preferred."""

    @property
    def voters(self) -> int:
        return self.replicas or self.size

    @property
    def longest_wait(self) -> float:
        return self.time_out if self.wait_max is None else self.wait_max

    @property
    def time_out(self) -> float:
        """How long a leader may be silent until it counts as gone."""
        return self.misses * self.beat

    def problems(self) -> list[str]:
        found = super().problems()
        if self.replicas is not None and not 1 <= self.replicas <= len(self.peers):
            found.append(f"replicas={self.replicas} must be from 1 to the {len(self.peers)} peers, or None for all")
        elif self.policy == "random" and self.replicas not in (None, len(self.peers)):
            found.append("replicas requires policy='priority', which assigns them: leave it out")
        if self.misses < 2:
            found.append(f"misses={self.misses} must be at least 2, or one late heartbeat would seem to end a leader")
        return found


class GossipSettings(PeerSettings, frozen=True, kw_only=True):
    """Settings of `gossip`. The beat is the gossip interval, and the lease is P."""

    relay: bool = False
    """Pass on what is known of a peer's clock in place of the peer's own last word: the text's own improvement."""
    first_class: int | None = None
    """How many peers vote, and gossip twice as often and among themselves; the leader chooses them. None means all."""
    phi_max: int = PHI_MAX
    window: int = WINDOW

    beats_min: ClassVar[float] = INTERVALS_MIN

    def lease_over(self, links: int) -> float:
        # A member asks any of the others at each interval, and reaches one of its few in one of `others / links`. So
        # many intervals pass for each hop, and about as many hops lead across the graph. P should be three times as
        # long: a ring of 7 led 0.57 to 0.69 of the time with 10 intervals in P, and 0.91 to 0.98 with 15.
        others = self.size - 1
        return 3 * ceil(others / links) * others / links * self.beat

    @property
    def voters(self) -> int:
        return self.first_class or self.size

    def problems(self) -> list[str]:
        found = super().problems()
        if self.first_class is not None and not 1 <= self.first_class <= len(self.peers):
            found.append(
                f"first_class={self.first_class} must be from 1 to the {len(self.peers)} peers, or None for all"
            )
        for name, least, most in (("phi_max", 1, 100), ("window", 2, 10_000)):
            if not least <= (value := getattr(self, name)) <= most:
                found.append(f"{name}={value} must be from {least} to {most}: leave it out for the usual one")
        return found
