"""The metrics: what an agent knows, in Prometheus' words, read at the moment of the scrape.

    chronicle, feed, hub, server --> Facts --> families (name, type, help, samples) --> text for Prometheus
    beat delays --taken once each--> Delays ----'            process, platform ---------'

Nothing is counted here but delays, which are too many to keep: everything else is asked of whoever knows it, so that a
metric and a page never disagree, and a scrape that nobody makes costs nothing. Names follow Prometheus' conventions:
base units, `_total` for what only grows, a word of help for each.

**Whose numbers.** What is about the agent (its lease, its clients, what it was fenced from) is its own and may be
summed over agents. What is about the group (members, partitions, moves, suspicions) is the group's as this agent read
it, and every agent says the same: take `max` of it, not `sum`. Labels are members' names and outcomes, never keys.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import inf
from threading import Lock
from typing import Protocol

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

__all__ = ["BUCKETS", "CONTENT_TYPE", "AgentCollector", "Delays", "Facts", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds. From what a local file takes to what no lease survives; a bucket more is a series more for each agent."""

COUNTS = (
    ("records", "neli_records", "Records of the ledger that this agent has read."),
    ("skipped", "neli_skipped_records", "Records that no fold of this version understands, and so all skip."),
    ("suspicions", "neli_suspicions", "Times that a member was accused of silence, rightly or not."),
    ("expired", "neli_expired_members", "Members that an accusation ended."),
    ("handovers", "neli_handovers", "Partitions that a living owner handed over."),
    ("moves", "neli_moves", "Partitions that went from one member to another."),
)
"""Of `Facts.counts`: key, name, help."""

_PROCESS = ProcessCollector(registry=None)
_PLATFORM = PlatformCollector(registry=None)


class Delays:
    """A histogram of what is put into `source`; each value is taken out of it once. From any thread."""

    def __init__(self, source: deque[float]) -> None:
        self._source, self._lock = source, Lock()
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def taken(self) -> tuple[list[tuple[str, float]], float]:
        """How many were at most as large as each bound, all so far, and their sum."""
        with self._lock:
            for _ in range(len(self._source)):  # Bounded: others may go on putting in as fast as we take out.
                delay = self._source.popleft()
                self._counts[bisect_left(BUCKETS, delay)] += 1
                self._sum += delay
            bounds = [*(repr(bound) for bound in BUCKETS), "+Inf"]
            return list(zip(bounds, map(float, accumulate(self._counts)), strict=True)), self._sum


class Facts(Protocol):
    """What an agent knows now. Reading an attribute must be quick: a scrape reads each once."""

    @property
    def name(self) -> str:
        """The member's."""

    @property
    def version(self) -> str:
        """Of this library."""

    @property
    def guarantee(self) -> str: ...

    @property
    def lease(self) -> float:
        """The group's, in seconds."""

    @property
    def lease_left(self) -> float:
        """Of the own member, in seconds; 0 if it has none."""

    @property
    def leases_left(self) -> Mapping[str, float]:
        """Of every member that was heard, by its name."""

    @property
    def delays(self) -> Delays:
        """From the sending of the own Beats until they were read back."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The chronicle's."""

    @property
    def fenced(self) -> int:
        """How many times the own member lost partitions without having handed them over."""

    @property
    def refused_writes(self) -> int:
        """`fence.tally.refused` of this process, and what it was told of others'."""

    @property
    def table_age(self) -> float:
        """Seconds since all there was had been read; `inf` if never."""

    @property
    def lookups(self) -> Mapping[str, int]:
        """How many keys and roles were looked up, by outcome: `owned`, or the error's kind."""

    @property
    def members(self) -> int: ...

    @property
    def partitions(self) -> int: ...

    @property
    def owned(self) -> int:
        """Partitions that anybody owns."""

    @property
    def led(self) -> int:
        """Partitions that the own member may act for now."""

    @property
    def ledger_available(self) -> bool: ...

    @property
    def waiting(self) -> int:
        """Clients that wait for something by a long poll."""

    @property
    def streams(self) -> int:
        """Clients that a stream of events is open to."""

    @property
    def requests(self) -> Mapping[str, int]:
        """How many were answered, by outcome: the HTTP status, or another word."""


class AgentCollector(Collector):
    """`agent`'s metrics, for a registry of one's own."""

    def __init__(self, agent: Facts) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        agent = self._agent
        about = GaugeMetricFamily("neli_agent_info", "The agent: always 1.", labels=("member", "version", "guarantee"))
        about.add_metric((agent.name, agent.version, agent.guarantee), 1)
        yield about
        yield from _leases(agent)
        yield _delays(agent)
        counts = agent.counts
        for key, name, told in COUNTS:
            yield CounterMetricFamily(name, told, value=counts.get(key, 0))
        yield CounterMetricFamily(
            "neli_fenced", "Times that this member was fenced: it must have stopped at once.", value=agent.fenced
        )
        yield CounterMetricFamily(
            "neli_refused_writes", "Writes that a fence refused because of a newer owner.", value=agent.refused_writes
        )
        yield from _table(agent)
        yield from _clients(agent)


def render(agent: Facts) -> bytes:
    """What `/metrics` answers, with this process' own memory, time and descriptors."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (AgentCollector(agent), _PROCESS, _PLATFORM):
        registry.register(collector)
    return generate_latest(registry)


def _leases(agent: Facts) -> Iterator[Metric]:
    yield GaugeMetricFamily("neli_lease_seconds", "How long a heartbeat proves anything.", value=agent.lease)
    left = max(0.0, agent.lease_left)  # A lease that has ended has nothing left, and not a debt.
    yield GaugeMetricFamily("neli_lease_left_seconds", "What is left of this member's lease.", value=left)
    members = GaugeMetricFamily(
        "neli_member_lease_left_seconds",
        "What is left of each member's lease, as this agent reads it.",
        labels=("member",),
    )
    for name, seconds in agent.leases_left.items():
        members.add_metric((name,), max(0.0, seconds))
    yield members


def _delays(agent: Facts) -> Metric:
    buckets, total = agent.delays.taken()
    return HistogramMetricFamily(
        "neli_append_to_read_seconds",
        "From the sending of a heartbeat until its sender read it back.",
        buckets=buckets,
        sum_value=total,
    )


def _table(agent: Facts) -> Iterator[Metric]:
    age = agent.table_age
    yield GaugeMetricFamily("neli_table_age_seconds", "Since all there was had been read.", value=max(0.0, age))
    yield _by_outcome("neli_lookups", "Look-ups, by outcome.", agent.lookups)
    yield GaugeMetricFamily("neli_members", "Members of the group.", value=agent.members)
    partitions, owned = agent.partitions, agent.owned
    yield GaugeMetricFamily("neli_partitions", "Partitions of the group.", value=partitions)
    yield GaugeMetricFamily("neli_partitions_owned", "Partitions that a member owns.", value=owned)
    yield GaugeMetricFamily("neli_partitions_unowned", "Partitions that nobody owns.", value=partitions - owned)
    yield GaugeMetricFamily("neli_partitions_led", "Partitions that this member may act for now.", value=agent.led)
    available = agent.ledger_available and age < inf
    yield GaugeMetricFamily(
        "neli_ledger_available", "Whether this agent can read and append: 1 or 0.", value=int(available)
    )


def _clients(agent: Facts) -> Iterator[Metric]:
    yield GaugeMetricFamily("neli_waiting_clients", "Clients that wait by a long poll.", value=agent.waiting)
    yield GaugeMetricFamily("neli_streams", "Streams of events that are open.", value=agent.streams)
    yield _by_outcome("neli_requests", "Requests that were answered, by outcome.", agent.requests)


def _by_outcome(name: str, told: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, told, labels=("outcome",))
    for outcome, count in sorted(counts.items()):
        family.add_metric((outcome,), count)
    return family
