"""The metrics: everything that an agent knows, in Prometheus' format, read at the moment of the scrape.

    chronicle (members, moves, counts) --.
    member (leases, partitions led) -----+--> MetricsSnapshot --> families (name, type, help, samples) --> text
    traffic (clients, look-ups) ---------+                            process, platform ---------'
    outlook (peers, link, elections) ----|
    fence.tally (writes refused) --------'
    beat delays --taken once each--> Delays

Only delays are counted here, because there are too many to keep; every other number is read from its source. So a
metric and a page never disagree, and an agent that is not scraped pays nothing.

**Whose numbers.** Numbers about the agent (its lease, its clients, its fencings) are its own and may be summed over
agents. Numbers about the group (members, partitions, moves, suspicions) are the group's, and every agent reports the
same: aggregate them with `max`, not `sum`. Labels are the names of members and peers, outcomes and reasons, never keys.

A group without a ledger has no records, and no heartbeats that expire members; a member that leads nothing has no lease
there. Without a store of owners, no table has an age to measure. The series about these are left out, because a 0 would
mean that something is wrong.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from threading import Lock

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from neli_router.agent.server.connections import AgentTraffic
from neli_router.agent.server.hub import Hub
from neli_router.agent.server.lives import Lives
from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.drivers.peers.outlook import Outlook
from neli_router.fence import tally

__all__ = ["BUCKETS", "CONTENT_TYPE", "Delays", "MetricsSnapshot", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds. From the delay of a local file to one that no lease survives. Each bucket adds one series per agent."""

COUNTS = (
    ("records", "neli_records", "Records of the ledger that this agent has read."),
    ("skipped", "neli_skipped_records", "Records that no fold of this version understands; all members skip them."),
    ("suspicions", "neli_suspicions", "Times that a member was accused of silence, rightly or not."),
    ("expired", "neli_expired_members", "Members that were ended because they were silent."),
    ("certified", "neli_certified_members", "Members whose death a witness certified."),
    ("handovers", "neli_handovers", "Partitions that a living owner handed over."),
    ("moves", "neli_moves", "Partitions that went from one member to another."),
)
"""The entries of `MetricsSnapshot.counts`: key, name, help."""

CAN_EXPIRE = "Whether this member could expire a dead one: 0 if its heartbeats come back too late for that, else 1."

COUNTS_OF_OWNERS = frozenset({"expired", "moves"})
"""The counters that a store of owners provides. One that cannot count is left out: 0 would mean that nothing
happened."""

_PROCESS = ProcessCollector(registry=None)
_PLATFORM = PlatformCollector(registry=None)


class Delays:
    """A histogram of the values in `source`, each of which is taken out once. Can be used from any thread."""

    def __init__(self, source: deque[float]) -> None:
        self._source, self._lock = source, Lock()
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def taken(self) -> tuple[list[tuple[str, float]], float]:
        """For each bound, how many values were at most that large; and the sum of all values."""
        with self._lock:
            for _ in range(len(self._source)):  # Bounded, because values may arrive faster than this loop takes them.
                delay = self._source.popleft()
                self._counts[bisect_left(BUCKETS, delay)] += 1
                self._sum += delay
            bounds = [*(repr(bound) for bound in BUCKETS), "+Inf"]
            return list(zip(bounds, map(float, accumulate(self._counts)), strict=True)), self._sum


@dataclass(frozen=True, slots=True, eq=False)
class MetricsSnapshot(Collector):
    """Everything that an agent knows at the moment of a scrape. The help of each metric says what its field counts."""

    config: Config
    name: str
    """The name of the agent's own member."""
    version: str
    lease_left: float | None
    """Seconds left on the own member's lease; negative if it has ended. None without a ledger while it leads nothing: a
    standby member needs no lease there."""
    leases_left: Mapping[str, float]
    """Seconds left for every member that was heard, by its name."""
    delays: Delays
    counts: Mapping[str, int]
    """The chronicle's counts."""
    fenced: int
    refused_writes: int
    table_age: float
    """`inf` if the agent never read everything."""
    members: int
    partitions: int
    owned: int
    led: int
    idle: float
    behind: Mapping[str, Mapping[int, int]]
    is_powerless: bool
    """Whether the own member could not expire a dead one."""
    ledger_available: bool
    witnessed: int
    certificates: int
    traffic: AgentTraffic
    outlook: Outlook | None = None
    """Only for a member that elects among its peers."""

    @classmethod
    def of(cls, hub: Hub, lives: Lives, delays: Delays, *, fenced: int, version: str) -> "MetricsSnapshot":
        """Ask each part of an agent. Nothing here may take long."""
        now, config, group = host_clock(), hub.config, hub.chronicle.group
        member, membership = hub.member, hub.membership
        # Counted from sending the last Beat that came back, as the member itself does. If it were counted from the
        # Beat's return, this metric would not show a slow ledger.
        standing = membership.standing
        lease_left = standing.until - now if config.has_ledger or standing.terms else None
        members = group.members(now)
        left = {one.name: one.lease_left for one in members if one.lease_left is not None}
        if lease_left is not None and member.name in left and group.has(member.incarnation):
            left[member.name] = lease_left
        return cls(
            config=config,
            name=member.name,
            version=version,
            lease_left=lease_left,
            leases_left=left,
            delays=delays,
            counts=group.counts,
            fenced=fenced,
            refused_writes=tally.refused,
            table_age=member.router.at.age,
            members=len(members),
            partitions=len(group.owners),
            owned=sum(one.partitions for one in members),
            led=0 if member.closed else len(member.led),
            idle=hub.demand.idle_for,
            behind=hub.progress.behind,
            is_powerless=membership.is_powerless,
            ledger_available=not (membership.obstacle or member.closed),
            witnessed=lives.witnessed,
            certificates=lives.certificates,
            traffic=hub.traffic,
            outlook=membership.outlook,
        )

    def collect(self) -> Iterator[Metric]:
        config, has_ledger = self.config, self.config.has_ledger
        has_table = has_ledger or config.ownership is not None
        labels = ("member", "version", "guarantee", "protocol")
        about = GaugeMetricFamily("neli_agent_info", "The agent: always 1.", labels=labels)
        about.add_metric((self.name, self.version, config.guarantee, config.protocol_name), 1)
        yield about
        yield _gauge("neli_lease_seconds", "How long a heartbeat proves anything.", config.lease)
        if self.lease_left is not None:
            yield _gauge("neli_lease_left_seconds", "The rest of this member's lease.", max(0.0, self.lease_left))
        told = "The rest of each member's lease, as this agent reads it."
        members = GaugeMetricFamily("neli_member_lease_left_seconds", told, labels=("member",))
        for name, seconds in self.leases_left.items():
            members.add_metric((name,), max(0.0, seconds))
        yield members
        if has_ledger:
            yield _gauge("neli_can_expire", CAN_EXPIRE, not self.is_powerless)
            told = "From the sending of a heartbeat until its sender read it back."
            buckets, total = self.delays.taken()
            yield HistogramMetricFamily("neli_append_to_read_seconds", told, buckets=buckets, sum_value=total)
        for key, name, told in COUNTS:
            if has_ledger or key in COUNTS_OF_OWNERS:
                yield CounterMetricFamily(name, told, value=self.counts.get(key, 0))
        told = "Times that this member was fenced: its work must have stopped immediately."
        yield CounterMetricFamily("neli_fenced", told, value=self.fenced)
        told = "Writes that a fence refused because of a newer owner."
        yield CounterMetricFamily("neli_refused_writes", told, value=self.refused_writes)
        if has_table:
            told = "Seconds since everything had been read."
            yield _gauge("neli_table_age_seconds", told, max(0.0, self.table_age))
        yield _by_outcome("neli_lookups", "Look-ups, by outcome.", self.traffic.lookups)
        yield _gauge("neli_members", "Members of the group.", self.members)
        yield _gauge("neli_partitions", "Partitions of the group.", self.partitions)
        yield _gauge("neli_partitions_owned", "Partitions that a member owns.", self.owned)
        yield _gauge("neli_partitions_unowned", "Partitions that no member owns.", self.partitions - self.owned)
        yield _gauge("neli_partitions_led", "Partitions that this member may act for now.", self.led)
        yield _gauge("neli_idle_seconds", "Since the last client that wanted a lease; 0 while there is one.", self.idle)
        told = "Steps of its input that a job of this host has yet to land, by its last report."
        behind = GaugeMetricFamily("neli_steps_behind", told, labels=("table", "partition"))
        for table, steps in sorted(self.behind.items()):
            for partition, count in sorted(steps.items()):
                behind.add_metric((table, str(partition)), count)
        yield behind
        if has_table:
            available = self.ledger_available and self.table_age < inf
            yield _gauge("neli_ledger_available", "Whether this agent can read and append: 1 or 0.", available)
        if self.outlook is not None:
            yield from _peers(self.outlook)
        yield _gauge("neli_waiting_clients", "Clients that wait by a long poll.", self.traffic.waiting)
        yield _gauge("neli_streams", "Streams of events that are open.", self.traffic.streams)
        if has_ledger:
            told = "Members of this host whose deaths this agent would certify to the group."
            yield _gauge("neli_witnessed_members", told, self.witnessed)
            told = "Members whose deaths this agent has certified to the group."
            yield CounterMetricFamily("neli_certificates", told, value=self.certificates)
        yield _by_outcome("neli_requests", "Requests that were answered, by outcome.", self.traffic.outcomes())


def render(agent: MetricsSnapshot) -> bytes:
    """The answer to `/metrics`, including this process's own memory, CPU time and descriptors."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (agent, _PROCESS, _PLATFORM):
        registry.register(collector)
    return generate_latest(registry)


def _peers(outlook: Outlook) -> Iterator[Metric]:
    told = "Members that the list of peers names, this one included."
    yield _gauge("neli_peers", told, len(outlook.peers))
    told = "Of these, how many answer this member, itself included."
    yield _gauge("neli_peers_alive", told, outlook.alive)
    yield _gauge("neli_peers_majority", "How many of them can elect a leader.", outlook.quorum)
    alive = GaugeMetricFamily("neli_peer_alive", "Whether the peer answers this member: 1 or 0.", labels=("peer",))
    told = "Seconds since a message from the peer was accepted, or since this member started."
    ages = GaugeMetricFamily("neli_peer_age_seconds", told, labels=("peer",))
    for place, peer in enumerate(outlook.peers):
        if place != outlook.me:
            alive.add_metric((peer,), int(outlook.state(place) == "alive"))
            ages.add_metric((peer,), outlook.silent_for(place))
    yield alive
    yield ages
    counts = outlook.counts
    kinds = {kind: counts.get(kind, 0) for kind in ("sent", "taken", "unsent")}
    told = "Datagrams: sent to peers, taken from them, or unsent because no address was known."
    yield _by_outcome("neli_datagrams", told, kinds)
    told = "Datagrams that were refused, by reason."
    refused = CounterMetricFamily("neli_refused_datagrams", told, labels=("reason",))
    for key, count in sorted(counts.items()):
        kind, _, reason = key.partition(".")
        if kind == "refused":
            refused.add_metric((reason,), count)
    yield refused
    known = [led for led in outlook.leaders if led is not None]
    term = max((led.term for led in known), default=0)
    yield _gauge("neli_term", "The highest term that this member knows.", term)
    unled = sum(led.leader is None for led in known)
    told = "Partitions for which this member votes and knows no leader."
    yield _gauge("neli_partitions_unled", told, unled)
    told = "Times that this member took on a role, in one partition each: candidate, follower, leader."
    transitions = CounterMetricFamily("neli_transitions", told, labels=("role", "reason"))
    for pair, count in sorted(outlook.transitions.items()):
        transitions.add_metric(pair, count)
    yield transitions
    told = "Times that this member saw a partition's leader change."
    yield CounterMetricFamily("neli_leader_changes", told, value=outlook.leader_changes)


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=float(value))


def _by_outcome(name: str, told: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, told, labels=("outcome",))
    for outcome, count in sorted(counts.items()):
        family.add_metric((outcome,), count)
    return family
