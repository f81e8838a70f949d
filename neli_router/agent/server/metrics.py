"""The metrics: everything that an agent knows, in Prometheus' format, read at the moment of the scrape.

    chronicle (members, moves, counts) --.
    member (leases, partitions led) -----+--> MetricsSnapshot --> families (name, type, help, samples) --> text
    traffic (clients, look-ups) ---------+                            process, platform ---------'
    outlook (peers, link, elections) ----|
    fence.tally (writes refused) --------'
    beat delays --taken once each--> Delays

Only delays are counted here, because there are too many to keep; every other number is read from its source. So a
metric and a page never disagree, and an agent that is not scraped pays nothing. Names follow Prometheus' conventions:
base units, `_total` for counters that only grow, and a help text for each.

**Whose numbers.** Numbers about the agent (its lease, its clients, its fencings) are its own and may be summed over
agents. Numbers about the group (members, partitions, moves, suspicions) are the group's as this agent read it, and
every agent reports the same: aggregate them with `max`, not `sum`. Labels are members' names and outcomes, never keys.

Peers are named as their list spells them, and there are at most two hundred. Reasons come from fixed sets, and each is
present from the start.

A group without a ledger has no records, and no heartbeats that expire members; a member that leads nothing has no lease
there. Without a store of owners, no table has an age to measure. The series about these are left out, because a 0 would
mean that something is wrong.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from threading import Lock

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from neli_router.agent.server.connections import AgentTraffic
from neli_router.agent.server.lives import Lives
from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.drivers.peers.outlook import Outlook
from neli_router.fence import tally
from neli_router.member.served_member import ServedMember
from neli_router.status.group_view import GroupView

__all__ = ["BUCKETS", "CONTENT_TYPE", "AgentCollector", "Delays", "MetricsSnapshot", "render"]

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


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Everything that an agent knows at the moment of a scrape."""

    name: str
    """The name of the agent's own member."""
    protocol: str
    has_ledger: bool
    version: str
    """The version of this library."""
    guarantee: str
    lease: float
    """The group's lease, in seconds."""
    lease_left: float | None
    """Seconds left on the own member's lease; 0 if it has none. None without a ledger while it leads nothing: a standby
    member needs no lease there."""
    leases_left: Mapping[str, float]
    """Seconds left for every member that was heard, by its name."""
    delays: Delays
    """From sending the own member's Beats until they were read back."""
    counts: Mapping[str, int]
    """The chronicle's counts."""
    fenced: int
    """How many times the own member lost partitions without having handed them over."""
    refused_writes: int
    """Writes refused by the fences of this process."""
    table_age: float
    """Seconds since the agent had last read everything; `inf` if never."""
    lookups: Mapping[str, int]
    """How many keys and roles were looked up, by outcome: `owned`, or the error's kind."""
    members: int
    partitions: int
    owned: int
    """Partitions that have an owner."""
    led: int
    """Partitions that the own member may act for now."""
    is_powerless: bool
    """Whether the own member could not expire a dead one."""
    ledger_available: bool
    waiting: int
    """Clients that wait in a long poll."""
    streams: int
    """Clients that have an open stream of events."""
    witnessed: int
    """Members of this host whose deaths this agent would certify."""
    certificates: int
    """Deaths that it certified."""
    requests: Mapping[str, int]
    """How many requests were answered, by outcome: the HTTP status, or another word."""
    has_table: bool = True
    """Whether there is a ledger or a store that says who owns what."""
    outlook: Outlook | None = None
    """Only for a member that elects among its peers."""

    @classmethod
    def of(
        cls,
        config: Config,
        member: ServedMember,
        group: GroupView,
        traffic: AgentTraffic,
        delays: Delays,
        lives: Lives,
        *,
        fenced: int,
        version: str,
    ) -> "MetricsSnapshot":
        """Ask each part of an agent. Nothing here may take long."""
        now = host_clock()
        # Counted from sending the last Beat that came back, as the member itself does. If it were counted from the
        # Beat's return, this metric would not show a slow ledger.
        standing = member.standing
        lease_left = None if not (config.has_ledger or standing.terms) else max(0.0, standing.until - now)
        members = group.members(now)
        left = {one.name: one.lease_left for one in members if one.lease_left is not None}
        if lease_left is not None and member.name in left and group.has(member.incarnation):
            left[member.name] = lease_left
        return cls(
            name=member.name,
            protocol=config.protocol_name,
            has_ledger=config.has_ledger,
            version=version,
            guarantee=config.guarantee,
            lease=config.lease,
            lease_left=lease_left,
            leases_left=left,
            delays=delays,
            counts=group.counts,
            fenced=fenced,
            refused_writes=tally.refused,
            table_age=member.router.at.age,
            lookups=traffic.lookups,
            members=len(members),
            partitions=len(group.owners),
            owned=sum(one.partitions for one in members),
            led=0 if member.closed else len(member.led),
            is_powerless=member.is_powerless,
            ledger_available=not (member.obstacle or member.closed),
            waiting=traffic.waiting,
            streams=traffic.streams,
            witnessed=lives.witnessed,
            certificates=lives.certificates,
            requests=traffic.outcomes(),
            has_table=config.has_ledger or config.ownership is not None,
            outlook=member.outlook,
        )


class AgentCollector(Collector):
    """An agent's metrics, for any registry. Each scrape calls `take`."""

    def __init__(self, take: Callable[[], MetricsSnapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        agent = self._take()
        labels = ("member", "version", "guarantee", "protocol")
        about = GaugeMetricFamily("neli_agent_info", "The agent: always 1.", labels=labels)
        about.add_metric((agent.name, agent.version, agent.guarantee, agent.protocol), 1)
        yield about
        yield from _leases(agent)
        if agent.has_ledger:
            yield from _heartbeats(agent)
        counts = agent.counts
        for key, name, told in COUNTS:
            if not agent.has_ledger and key not in COUNTS_OF_OWNERS:
                continue
            yield CounterMetricFamily(name, told, value=counts.get(key, 0))
        yield CounterMetricFamily(
            "neli_fenced",
            "Times that this member was fenced: its work must have stopped immediately.",
            value=agent.fenced,
        )
        yield CounterMetricFamily(
            "neli_refused_writes", "Writes that a fence refused because of a newer owner.", value=agent.refused_writes
        )
        yield from _table(agent)
        if agent.outlook is not None:
            yield from _peers(agent.outlook)
        yield from _clients(agent)


def render(agent: MetricsSnapshot) -> bytes:
    """The answer to `/metrics`, including this process's own memory, CPU time and descriptors."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (AgentCollector(lambda: agent), _PROCESS, _PLATFORM):
        registry.register(collector)
    return generate_latest(registry)


def _leases(agent: MetricsSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("neli_lease_seconds", "How long a heartbeat proves anything.", value=agent.lease)
    if agent.lease_left is not None:
        left = max(0.0, agent.lease_left)  # A lease that has ended has nothing left; it is never negative.
        yield GaugeMetricFamily("neli_lease_left_seconds", "The rest of this member's lease.", value=left)
    members = GaugeMetricFamily(
        "neli_member_lease_left_seconds",
        "The rest of each member's lease, as this agent reads it.",
        labels=("member",),
    )
    for name, seconds in agent.leases_left.items():
        members.add_metric((name,), max(0.0, seconds))
    yield members


def _heartbeats(agent: MetricsSnapshot) -> Iterator[Metric]:
    can_expire = int(not agent.is_powerless)
    told = "Whether this member could expire a dead one: 0 if its heartbeats come back too late for that, else 1."
    yield GaugeMetricFamily("neli_can_expire", told, value=can_expire)
    buckets, total = agent.delays.taken()
    yield HistogramMetricFamily(
        "neli_append_to_read_seconds",
        "From the sending of a heartbeat until its sender read it back.",
        buckets=buckets,
        sum_value=total,
    )


def _table(agent: MetricsSnapshot) -> Iterator[Metric]:
    if agent.has_table:
        told, age = "Seconds since everything had been read.", max(0.0, agent.table_age)
        yield GaugeMetricFamily("neli_table_age_seconds", told, value=age)
    yield _by_outcome("neli_lookups", "Look-ups, by outcome.", agent.lookups)
    yield GaugeMetricFamily("neli_members", "Members of the group.", value=agent.members)
    partitions, owned = agent.partitions, agent.owned
    yield GaugeMetricFamily("neli_partitions", "Partitions of the group.", value=partitions)
    yield GaugeMetricFamily("neli_partitions_owned", "Partitions that a member owns.", value=owned)
    yield GaugeMetricFamily("neli_partitions_unowned", "Partitions that no member owns.", value=partitions - owned)
    yield GaugeMetricFamily("neli_partitions_led", "Partitions that this member may act for now.", value=agent.led)
    if agent.has_table:
        available = agent.ledger_available and agent.table_age < inf
        yield GaugeMetricFamily(
            "neli_ledger_available", "Whether this agent can read and append: 1 or 0.", value=int(available)
        )


def _peers(outlook: Outlook) -> Iterator[Metric]:
    told = "Members that the list of peers names, this one included."
    yield GaugeMetricFamily("neli_peers", told, value=len(outlook.peers))
    told = "Of these, how many answer this member, itself included."
    yield GaugeMetricFamily("neli_peers_alive", told, value=outlook.alive)
    yield GaugeMetricFamily("neli_peers_majority", "How many of them can elect a leader.", value=outlook.quorum)
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
    yield GaugeMetricFamily("neli_term", "The highest term that this member knows.", value=term)
    unled = sum(led.leader is None for led in known)
    told = "Partitions for which this member votes and knows no leader."
    yield GaugeMetricFamily("neli_partitions_unled", told, value=unled)
    told = "Times that this member took on a role, in one partition each: candidate, follower, leader."
    transitions = CounterMetricFamily("neli_transitions", told, labels=("role", "reason"))
    for pair, count in sorted(outlook.transitions.items()):
        transitions.add_metric(pair, count)
    yield transitions
    told = "Times that this member saw a partition's leader change."
    yield CounterMetricFamily("neli_leader_changes", told, value=outlook.leader_changes)


def _clients(agent: MetricsSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("neli_waiting_clients", "Clients that wait by a long poll.", value=agent.waiting)
    yield GaugeMetricFamily("neli_streams", "Streams of events that are open.", value=agent.streams)
    if agent.has_ledger:
        told = "Members of this host whose deaths this agent would certify to the group."
        yield GaugeMetricFamily("neli_witnessed_members", told, value=agent.witnessed)
        told = "Members whose deaths this agent has certified to the group."
        yield CounterMetricFamily("neli_certificates", told, value=agent.certificates)
    yield _by_outcome("neli_requests", "Requests that were answered, by outcome.", agent.requests)


def _by_outcome(name: str, told: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, told, labels=("outcome",))
    for outcome, count in sorted(counts.items()):
        family.add_metric((outcome,), count)
    return family
