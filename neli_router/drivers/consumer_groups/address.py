"""Parse the address of a consumer group in Kafka.

    kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/GROUP[?setting=value&...]
                                                     |
                                                     '--> the consumer group GROUP, and the topic GROUP.neli

    ?topic=jobs                                          another topic: several groups may share one
    ?partitions=12&replication=3                         for the topic, if this process creates it
    ?group.protocol=consumer                             the broker's own assignment, of Kafka 4 (KIP-848)
    ?partition.assignment.strategy=range,roundrobin      for the classic protocol; the default is cooperative-sticky

The address reads like a ledger's, and takes any setting of librdkafka by its name. The ways to share partitions differ
in how they treat members that a change does not involve:

    consumer, cooperative-sticky    these members keep what they have
    range, roundrobin               *eager*: all members give everything back, at every change

The members of a group must agree on one of these ways. goNELI with unchanged settings uses `range,roundrobin`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from neli_router.drivers.ledgers.kafka import address as kafka_address
from neli_router.drivers.ledgers.kafka.address import KafkaAddress

__all__ = ["GroupAddress", "parse"]

PARTITIONS_MAX = 10_000

EAGER = ("range", "roundrobin")
COOPERATIVE = "cooperative-sticky"

SHARING = ("group.protocol", "group.remote.assignor", "partition.assignment.strategy")

OURS: Mapping[str, str] = {
    "auto.commit.interval.ms": "it follows from the session",
    "auto.offset.reset": "old heartbeats prove nothing, so reading starts at the end",
    "bootstrap.servers": "they stand at the front of the address",
    "enable.auto.commit": "nothing is ever committed",
    "enable.auto.offset.store": "nothing is ever committed",
    "group.id": "it stands at the end of the address",
    "group.instance.id": "a member that left would keep its partitions until its session ends",
    "heartbeat.interval.ms": "it follows from the session",
    "isolation.level": "one hanging transaction would stop every reader",
    "max.poll.interval.ms": "it follows from the time that the program has to finish its work",
    "message.timeout.ms": "it follows from the session",
    "session.timeout.ms": "the protocol's times follow from it, so it is a setting of the member",
    "transactional.id": "heartbeats are published outside of transactions",
}


@dataclass(frozen=True)
class GroupAddress:
    """`at` has the settings of every client, perhaps secrets, and is never shown; `sharing` has those of consumers."""

    at: KafkaAddress
    partitions: int | None
    classic: bool
    eager: bool
    sharing: Mapping[str, str]

    @property
    def way(self) -> str:
        """How the group shares partitions, for people."""
        return self.sharing.get("partition.assignment.strategy", "group.protocol=consumer")


def parse(rest: str) -> tuple[GroupAddress | None, list[str]]:
    """The address in `rest`, the text after `kafka:`, or a sentence for each thing that is wrong with it."""
    at, problems = kafka_address.parse(rest, ours=OURS)
    if at is None:
        return None, problems
    client = dict(at.client)
    topic = str(client.pop("topic", f"{at.group}.neli"))
    if not kafka_address.GROUP.fullmatch(topic):
        problems.append("topic must be 1 to 200 letters, digits and ._-")
    count = str(client.pop("partitions", ""))
    if count and not (count.isascii() and count.isdigit() and 1 <= int(count) <= PARTITIONS_MAX):
        problems.append(f"partitions must be a whole number from 1 to {PARTITIONS_MAX}")
        count = ""
    sharing = {name: str(client.pop(name)) for name in SHARING if name in client}
    protocol = sharing.get("group.protocol", "classic")
    if protocol not in {"classic", "consumer"}:
        problems.append("group.protocol must be classic or consumer")
    classic, said = protocol == "classic", sharing.get("partition.assignment.strategy")
    strategies = [part.strip() for part in (said or COOPERATIVE).split(",")]
    if said is not None and not classic:
        problems.append(
            "partition.assignment.strategy is of the classic protocol, and group.protocol is consumer: leave one out"
        )
    elif not set(strategies) <= {*EAGER, COOPERATIVE}:
        problems.append(f"partition.assignment.strategy must be of {', '.join((*EAGER, COOPERATIVE))}")
    elif COOPERATIVE in strategies and len(strategies) > 1:
        problems.append(
            f"partition.assignment.strategy has {COOPERATIVE} next to another: they give partitions back in two ways, "
            "and the members of a group must agree on one"
        )
    if problems:
        return None, problems
    if classic:
        sharing["partition.assignment.strategy"] = ",".join(strategies)
    at = replace(at, topic=topic, client=client)
    eager = classic and COOPERATIVE not in strategies
    return GroupAddress(at, int(count) if count else None, classic, eager, sharing), []
