"""Three brokers and some members' hosts in a network that can be cut.

    k1 k2 k3      a broker each, three replicas, two of them in sync for every append
    m1 m2 ...     hosts of members
    outside       where the test itself stands: nothing ever happens to that host

A test enters `outside` before it opens any client, because a client's threads stay where they were started.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.servers import kafka as kafka_servers
from tests.servers import network as networks
from tests.servers.kafka import Kafka, Node
from tests.servers.network import Network

__all__ = ["BROKERS", "OUTSIDE", "Cluster", "missing"]

BROKERS = ("k1", "k2", "k3")
OUTSIDE = "outside"

ASK_MAX = 3.0
"""Seconds for a question to the brokers; some of them may be away."""

WELL_MAX = 120.0
"""Seconds for a broker to start and to catch up, on a machine with other things to do."""

LOOK_EVERY = 0.05


def missing() -> str:
    """Why there can be no such cluster here, or nothing."""
    return kafka_servers.missing() or networks.missing()


class Partition(NamedTuple):
    """Where the ledger stands, by what a broker says."""

    leader: int
    """Its number, from 0; -1 if there is none."""
    in_sync: int


class Cluster:
    """Use `started`."""

    def __init__(self, network: Network, kafka: Kafka) -> None:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - a machine without it has no tests of Kafka.

        self.network, self.kafka = network, kafka
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})

    @classmethod
    @contextmanager
    def started(cls, members: Sequence[str]) -> Iterator["Cluster"]:
        """Brokers that answer, and hosts for `members`; all gone at the end."""
        with Network.started([*BROKERS, *members, OUTSIDE]) as network, network.entered(OUTSIDE):
            hosts = [network.address(broker) for broker in BROKERS]
            prefixes = [network.prefix(broker) for broker in BROKERS]
            with Kafka.started(len(BROKERS), hosts=hosts, prefixes=prefixes) as kafka:
                yield cls(network, kafka)

    def node(self, broker: str) -> Node:
        return self.kafka.nodes[BROKERS.index(broker)]

    def look(self, topic: str) -> Partition | None:
        """Who leads the one partition of `topic`, and how many replicas are in sync; None if nobody answers."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - as above.

        try:
            partition = self._admin.list_topics(topic, timeout=ASK_MAX).topics[topic].partitions.get(0)
        except KafkaException:
            return None
        return None if partition is None else Partition(partition.leader - 1, len(partition.isrs))

    def leader(self, topic: str) -> str | None:
        """The broker that leads `topic`, if all three are well."""
        found = self.look(topic)
        return BROKERS[found.leader] if found and found.leader >= 0 and found.in_sync == len(BROKERS) else None

    def await_all_well(self, topic: str) -> None:
        """Wait until all three brokers have all of `topic`."""
        give_up_at = time.monotonic() + WELL_MAX
        while self.leader(topic) is None:
            assert time.monotonic() < give_up_at, f"the brokers did not come back: {self.look(topic)}"
            time.sleep(LOOK_EVERY)
