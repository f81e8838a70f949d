"""The servers of a ledger and the hosts of some members, in a network that can be cut.

    k1 k2 k3      KafkaCluster: a broker each, three replicas, two of them in sync for every append
    s1            LoneServer: one Redis, or one PostgreSQL and its standby; they keep what was acknowledged
    m1 m2 ...     hosts of members
    a1            host of the agent that is their witness: they are processes of one kernel, on separate links
    outside       host of the test itself: nothing ever happens to it

A test enters `outside` before it opens any client, because a client's threads stay where they were started.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from tests.support.servers import kafka as kafka_servers
from tests.support.servers import network as networks
from tests.support.servers import postgresql as postgresql_servers
from tests.support.servers import redis as redis_servers
from tests.support.servers.kafka import Kafka, Node
from tests.support.servers.network import Network
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis
from tests.support.waiting import until

__all__ = ["AGENT", "BROKERS", "OUTSIDE", "Cluster", "KafkaCluster", "LoneServer"]

BROKERS = ("k1", "k2", "k3")
LONE = "s1"
AGENT = "a1"
OUTSIDE = "outside"

ASK_MAX = 3.0
"""Seconds for a question to the brokers; some of them may be away."""

WELL_MAX = 120.0
"""Seconds for a broker to start and catch up on a busy machine."""

LOOK_EVERY = 0.05

SOON = {"wal_retrieve_retry_interval": "100ms"}
"""A standby looks again this soon for a primary that was away. PostgreSQL's own 5 s would hold all commits up."""


class KafkaCluster:
    """Use `started`."""

    hosts: tuple[str, ...] = BROKERS

    def __init__(self, network: Network, kafka: Kafka) -> None:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - a machine without it has no tests of Kafka.

        self.network, self.kafka = network, kafka
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})

    @staticmethod
    def missing() -> str:
        """Why this machine cannot have a Kafka cluster; empty if it can."""
        return kafka_servers.missing() or networks.missing()

    @classmethod
    @contextmanager
    def started(cls, members: Sequence[str]) -> Iterator["KafkaCluster"]:
        """Brokers that answer, and hosts for `members`; all are removed at the end."""
        with Network.started([*BROKERS, *members, AGENT, OUTSIDE]) as network, network.entered(OUTSIDE):
            hosts = [network.address(broker) for broker in BROKERS]
            prefixes = [network.prefix(broker) for broker in BROKERS]
            with Kafka.started(len(BROKERS), hosts=hosts, prefixes=prefixes) as kafka:
                yield cls(network, kafka)

    def ledger(self, group: str) -> str:
        # Without this number, the first member makes the topic with one replica for each broker that is up at that
        # moment. A broker whose heartbeats are late then, on a busy machine, would never get one.
        return f"kafka://{self.kafka.bootstrap}/{group}?replication={len(BROKERS)}"

    def node(self, host: str) -> Node:
        return self.kafka.nodes[BROKERS.index(host)]

    def leader(self, group: str) -> str | None:
        """The host of the server that takes the group's records, if all servers are well."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - as above.

        topic = f"{group}.ledger"
        try:
            partition = self._admin.list_topics(topic, timeout=ASK_MAX).topics[topic].partitions.get(0)
        except KafkaException:
            return None
        if partition is None or partition.leader < 1 or len(partition.isrs) < len(BROKERS):
            return None
        return BROKERS[partition.leader - 1]

    def await_all_well(self, group: str) -> None:
        """Wait until all servers have all of the group's records."""
        give_up_at = time.monotonic() + WELL_MAX
        while self.leader(group) is None:
            ended = [node.number for node in self.kafka.nodes if not node.running]
            assert not ended, f"these brokers ended on their own: {ended}\n{self.kafka.log()}"
            assert time.monotonic() < give_up_at, f"the brokers did not come back:\n{self.kafka.log()}"
            time.sleep(LOOK_EVERY)


class LoneServer:
    """Use `started`.

    PostgreSQL has a synchronous standby. `synchronous_standby_names` is set before the first record and stays set, so
    the standby has every record that a member could read. There is one exception: a primary that was killed and started
    again shows the records that it had stored, even if its standby never got them. So a failover waits until the
    standby has everything that its primary has.

    A promoted standby has inherited the setting: all commits wait until the new standby follows. Without the setting,
    the group would go on earlier. But a member that starts at that moment would refuse the ledger, because its address
    names a second server and nothing says that this server gets all records before it takes over.
    """

    hosts: tuple[str, ...] = (LONE,)

    def __init__(self, network: Network, server: Postgresql | Redis, standby: Postgresql | None = None) -> None:
        self.network, self.server, self.standby = network, server, standby

    @staticmethod
    def missing(kind: Literal["postgresql", "redis"]) -> str:
        """Why this machine cannot have one; empty if it can."""
        servers = postgresql_servers if kind == "postgresql" else redis_servers
        return servers.missing() or networks.missing()

    @classmethod
    @contextmanager
    def started(cls, kind: Literal["postgresql", "redis"], members: Sequence[str]) -> Iterator["LoneServer"]:
        """A server that answers, and hosts for `members`; all are removed at the end."""
        with Network.started([LONE, *members, AGENT, OUTSIDE]) as network, network.entered(OUTSIDE):
            host, prefix = network.address(LONE), network.prefix(LONE)
            if kind == "redis":
                with Redis.started(settings=redis_servers.DURABLE, host=host, prefix=prefix) as redis:
                    yield cls(network, redis)
                return
            settings = {**postgresql_servers.DURABLE, **SOON}
            with (
                Postgresql.started(settings=settings, host=host, prefix=prefix) as primary,
                primary.standby(synchronous=True) as standby,
            ):
                yield cls(network, primary, standby)

    def ledger(self, group: str) -> str:
        if isinstance(self.server, Redis) or self.standby is None:
            return self.server.url(group)
        return self.server.url(group, self.standby)

    def node(self, host: str) -> Postgresql | Redis:
        return self.server

    def leader(self, group: str) -> str | None:
        if isinstance(self.server, Redis):
            return LONE  # Undoing its faults includes waiting for its answer.
        return LONE if self.server.is_followed(synchronous=True) else None

    def await_all_well(self, group: str) -> None:
        self.server.wait()
        until(lambda: self.leader(group), "a server with its standby", patience=WELL_MAX)

    def fail_over(self) -> Callable[[], None]:
        """Kill the primary for good while a commit waits for the standby, and let the standby take over.

        No member may have seen that commit. Returns what makes a new standby, with the killed server's port and folder.
        """
        killed, promoted = self.server, self.standby
        assert isinstance(killed, Postgresql)
        assert promoted is not None
        promoted.freeze()
        killed.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")  # Or the rest is in its socket.
        missed = f"wait_event = 'SyncRep' OR pg_current_wal_flush_lsn() > '{killed.end()}'"
        until(lambda: killed.ask(f"SELECT pid FROM pg_stat_activity WHERE {missed}"), "a commit after the last copied")
        killed.kill()
        promoted.thaw()
        promoted.promote()
        self.server, self.standby = promoted, killed
        return lambda: killed.follow(promoted, synchronous=True)


Cluster = KafkaCluster | LoneServer
"""The servers that a storm strikes."""
