"""The topic of a group: made if it is not there, and looked at for what it can promise.

    replication 1 ------------------------------.
    min.insync.replicas 1 ----------------------+--> acknowledged records may be lost: no NEVER_REWINDS, and why
    unclean.leader.election.enable=true --------+
    settings that cannot be seen ---------------'
    more partitions than one, compaction -----------> LedgerUnusable: no order, or records vanish from the middle
    retention that may end before a snapshot comes -> told; a newcomer may then find nothing to start from

A replica that is in sync has what was acknowledged, and only such a one becomes leader. With at least two of them at
every append, one may lose power without losing a record. With one, its power is everybody's.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from neli_router.errors import LedgerError, LedgerMissing, LedgerUnusable
from neli_router.ledgers.base import Promise
from neli_router.ledgers.kafka.address import KafkaAddress
from neli_router.ledgers.kafka.faults import UNKNOWN, answer, explain

__all__ = ["ASK_MAX", "MESSAGE_MAX", "Facts", "once_known", "require_topic", "topic_id"]

Answer = TypeVar("Answer")

ASK_MAX = 10.0
"""Seconds for each question to the brokers. They are asked when a handle is opened, never while a member leads."""

KNOWN_MAX = 5.0
KNOWN_EVERY = 0.05

REPLICATION = 3
IN_SYNC = 2

RETENTION_MIN = 24 * 3600 * 1000
"""Milliseconds. A lone member with a lease of half a minute writes two snapshots in about a day."""

MESSAGE_MAX = 8 * 2**20
"""Bytes of the largest record, which is a snapshot: some 100 for each partition and member."""

MADE_WITH: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # Members drop what no newcomer needs; time says nothing about that.
    "retention.bytes": "-1",
    "max.message.bytes": str(MESSAGE_MAX),
    "message.timestamp.type": "LogAppendTime",  # For people: when a record came, by one clock.
    "unclean.leader.election.enable": "false",
}


class Facts(NamedTuple):
    """What is known of a topic. `doubts` says in sentences what endangers which promise."""

    identity: str
    promises: frozenset[Promise]
    doubts: tuple[str, ...]


def require_topic(admin: AdminClient, at: KafkaAddress, *, create: bool) -> Facts:
    """The facts of the topic, made first if need be and allowed. Raises LedgerUnavailable or LedgerUnusable."""
    try:
        try:
            replicas = _replicas(admin, at)
        except KafkaException as error:
            if error.args[0].code() not in UNKNOWN:
                raise
            if not create:
                raise _missing(at, "it is not to be made here") from error
            _make(admin, at)
            replicas = once_known(lambda: _replicas(admin, at))
        if len(replicas) != 1:
            raise LedgerUnusable(
                f"the topic {at.topic} with one partition was wanted",
                f"{at.public} has it with {len(replicas)}, and there is no order among them",
                "choose another group name, or make the topic anew with one partition",
            )
        identity = once_known(lambda: topic_id(admin, at.topic))
    except KafkaException as error:
        raise explain(error.args[0], at, f"the topic {at.topic}") from error
    doubts = _doubts(admin, at, replicas[0])
    safe = not any(doubt.risky for doubt in doubts)
    promises = {Promise.DURABLE, Promise.MULTI_HOST} | ({Promise.NEVER_REWINDS} if safe else set())
    return Facts(identity, frozenset(promises), tuple(doubt.sentence for doubt in doubts))


def topic_id(admin: AdminClient, topic: str, timeout: float = ASK_MAX) -> str:
    """Which topic of that name it is: one made anew has another. Raises KafkaException."""
    (asked,) = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout).values()
    return str(answer(asked, timeout).topic_id)


def once_known(ask: Callable[[], Answer]) -> Answer:
    """The answer to a question about a topic that is there: of a new one, brokers learn one after another."""
    give_up_at = time.monotonic() + KNOWN_MAX
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in UNKNOWN or time.monotonic() >= give_up_at:
                raise
        time.sleep(KNOWN_EVERY)


class _Doubt(NamedTuple):
    sentence: str
    risky: bool


def _replicas(admin: AdminClient, at: KafkaAddress) -> list[int]:
    """The number of replicas of each partition."""
    found = admin.list_topics(at.topic, timeout=ASK_MAX).topics[at.topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return [len(partition.replicas) for partition in found.partitions.values()]


def _make(admin: AdminClient, at: KafkaAddress) -> None:
    brokers = len(admin.list_topics(at.topic, timeout=ASK_MAX).brokers)
    replication = at.replication or min(REPLICATION, brokers)
    settings = {**MADE_WITH, "min.insync.replicas": str(min(IN_SYNC, max(1, replication - 1)))}
    (made,) = admin.create_topics(
        [NewTopic(at.topic, 1, replication, config=settings)], request_timeout=ASK_MAX
    ).values()
    try:
        answer(made, ASK_MAX)
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise _missing(at, "this user may not make it") from error
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            raise LedgerUnusable(
                f"the topic {at.topic} with {replication} replicas was wanted",
                f"there are {brokers} brokers",
                "start more brokers, or say ?replication= in the address",
            ) from error
        if code != KafkaError.TOPIC_ALREADY_EXISTS:  # Somebody else was quicker, with the same settings.
            raise


def _missing(at: KafkaAddress, why: str) -> LedgerError:
    settings = " ".join(f"--config {name}={value}" for name, value in MADE_WITH.items())
    return LedgerMissing(
        f"the topic {at.topic} was wanted",
        f"{at.public} has none, and {why}",
        f"kafka-topics.sh --bootstrap-server {at.servers} --create --topic {at.topic} --partitions 1 "
        f"--replication-factor {at.replication or REPLICATION} --config min.insync.replicas={IN_SYNC} {settings}",
    )


def _doubts(admin: AdminClient, at: KafkaAddress, replicas: int) -> list[_Doubt]:
    try:
        resource = ConfigResource(ConfigResource.Type.TOPIC, at.topic)

        def settings() -> dict[str, Any]:
            (asked,) = admin.describe_configs([resource], request_timeout=ASK_MAX).values()
            return {name: entry.value for name, entry in answer(asked, ASK_MAX).items()}

        said = once_known(settings)
    except KafkaException as error:
        if error.args[0].code() not in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}:
            raise explain(error.args[0], at, f"the settings of {at.topic}") from error
        unseen = f"the settings of {at.topic} cannot be seen: grant DescribeConfigs on it"
        return [_Doubt(unseen, risky=True)]
    policy = str(said.get("cleanup.policy"))
    if "compact" in policy:
        raise LedgerUnusable(
            f"the topic {at.topic} with cleanup.policy=delete was wanted",
            f"it has {policy}, which takes records out of the middle",
            f"kafka-configs.sh --alter --topic {at.topic} --add-config cleanup.policy=delete; start a new group if "
            "records are missing already",
        )
    in_sync = int(said.get("min.insync.replicas") or 1)
    if in_sync > replicas:
        raise LedgerUnusable(
            f"the topic {at.topic} that can be appended to was wanted",
            f"min.insync.replicas is {in_sync} and it has {replicas} replicas",
            "add replicas, or lower min.insync.replicas",
        )
    doubts = []
    if replicas < IN_SYNC:
        doubts.append(
            _Doubt(f"{at.topic} has 1 replica: if its broker loses power, acknowledged records go", risky=True)
        )
    elif in_sync < IN_SYNC:
        alone = f"{at.topic} has min.insync.replicas=1: a record may be on one broker only, and go with its power"
        doubts.append(_Doubt(alone, risky=True))
    if said.get("unclean.leader.election.enable") == "true":
        unclean = (
            f"{at.topic} has unclean.leader.election.enable=true: a leader without the newest records may be chosen"
        )
        doubts.append(_Doubt(unclean, risky=True))
    retention = int(said.get("retention.ms") or -1)
    if 0 <= retention < RETENTION_MIN:
        short = (
            f"{at.topic} keeps records for {retention / 3_600_000:g} h (retention.ms): newcomers may find no snapshot"
        )
        doubts.append(_Doubt(short, risky=False))
    if int(said.get("retention.bytes") or -1) >= 0:
        small = f"{at.topic} keeps {said['retention.bytes']} bytes (retention.bytes): newcomers may find no snapshot"
        doubts.append(_Doubt(small, risky=False))
    return doubts
