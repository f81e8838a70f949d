"""The topic of a group: created if it does not exist, and checked for what it can promise.

    settings --a way to lose acknowledged records, or they cannot be seen--> no NEVER_REWINDS, and a doubt that says why
        '------retention or a limit that a newcomer may feel---------------> a doubt
        '------several partitions, or compaction---------------------------> LedgerUnusable

An in-sync replica has all acknowledged records, and only an in-sync replica becomes leader. So if two replicas are in
sync at every append, one may lose power without losing a record.

**Questions** about the topic while it is in use go over a separate connection, because the client that fetches cannot
be asked. Its broker answers one question after another, so a question would wait behind a fetch that waits for records.
And confluent-kafka lets one thread at a time into a client: during a poll, others wait.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from neli_router.drivers.ledgers.base import Promise
from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.drivers.ledgers.kafka.clients import ASK_MAX, DENIED, UNKNOWN, answer, asking, explain
from neli_router.errors import LedgerError, LedgerMissing, LedgerUnusable
from neli_router.protocols.protocol import RECORD_MAX

__all__ = [
    "IN_SYNC",
    "Questions",
    "TopicLook",
    "delete_topic",
    "found_or_made",
    "look_at",
    "once_known",
    "require_topic",
    "settings_of",
]

Answer = TypeVar("Answer")

_OF_A_NEW_ONE = (
    *UNKNOWN,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""Answers of brokers, or from a client's outdated list, until all know a new topic and its leader."""

KNOWN_MAX = 5.0
KNOWN_EVERY = 0.05

REPLICATION = 3
IN_SYNC = 2

RETENTION_MIN = 24 * 3600 * 1000
"""Milliseconds. A lone member with a lease of half a minute writes two snapshots in about a day."""

MADE_WITH: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # Members drop the records that newcomers do not need; age says nothing about that.
    "retention.bytes": "-1",
    "max.message.bytes": str(RECORD_MAX),
    "message.timestamp.type": "LogAppendTime",  # For people: when a record arrived, by one clock.
    "unclean.leader.election.enable": "false",
}

_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class TopicLook(NamedTuple):
    """Which topic it is (a recreated one has another identity), and how many partitions it has now."""

    identity: str
    partitions: int


def require_topic(
    admin: AdminClient, at: KafkaAddress, *, create: bool
) -> tuple[str, frozenset[Promise], tuple[str, ...]]:
    """The topic's identity, its promises, and a sentence for each doubt. It is created first if that is needed and
    allowed. Raises LedgerUnavailable or LedgerUnusable."""
    try:
        replicas = found_or_made(admin, at, create=create)
        if len(replicas) != 1:
            raise LedgerUnusable(
                f"the topic {at.topic} with one partition was wanted",
                f"{at.public} has it with {len(replicas)}, and there is no order among them",
                "choose another group name, or recreate the topic with one partition",
            )
        identity = once_known(lambda: look_at(admin, at.topic)).identity
    except KafkaException as error:
        raise explain(error.args[0], at, f"the topic {at.topic}") from error
    risks, doubts = _doubts(admin, at, replicas[0])
    promises = {Promise.DURABLE, Promise.MULTI_HOST} | (set() if risks else {Promise.NEVER_REWINDS})
    return identity, frozenset(promises), (*risks, *doubts)


def look_at(admin: AdminClient, topic: str, timeout: float = ASK_MAX) -> TopicLook:
    """The topic as it is now. Raises KafkaException."""
    (asked,) = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout).values()
    found = answer(asked, timeout)
    return TopicLook(str(found.topic_id), len(found.partitions))


def delete_topic(at: KafkaAddress) -> str:
    """Delete the group's topic with all its records, and return its name. Raises LedgerError."""
    with asking(at, "the deletion") as admin:
        (dropped,) = admin.delete_topics([at.topic], operation_timeout=ASK_MAX, request_timeout=ASK_MAX).values()
        try:
            answer(dropped, ASK_MAX)
        except KafkaException as error:
            wanted = f"the topic {at.topic} of {at.public} was to be deleted"
            if error.args[0].code() in UNKNOWN:
                remedy = "correct the address, or there is nothing to do"
                raise LedgerMissing(wanted, "there is none", remedy) from error
            if error.args[0].code() == KafkaError.TOPIC_DELETION_DISABLED:
                found, remedy = "the brokers delete no topics", "set delete.topic.enable=true on them, then try again"
                raise LedgerUnusable(wanted, found, remedy) from error
            raise explain(error.args[0], at, f"the deletion of the topic {at.topic}") from error
    return at.topic


def once_known(ask: Callable[[], Answer]) -> Answer:
    """The answer to a question about a topic that exists: brokers learn of a new topic one after another."""
    give_up_at = time.monotonic() + KNOWN_MAX
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _OF_A_NEW_ONE or time.monotonic() >= give_up_at:
                raise
        time.sleep(KNOWN_EVERY)


def found_or_made(
    admin: AdminClient, at: KafkaAddress, *, create: bool, partitions: int = 1, settings: Mapping[str, str] = MADE_WITH
) -> list[int]:
    """The number of replicas of each partition. Creates the topic, with these settings, if that is needed and allowed.

    Raises LedgerError or KafkaException.
    """
    try:
        return _replicas(admin, at)
    except KafkaException as error:
        if error.args[0].code() not in UNKNOWN:
            raise
        if not create:
            raise _missing(at, "it is not to be made here", partitions, settings) from error
        _make(admin, at, partitions, settings)
        return once_known(lambda: _replicas(admin, at))


def _replicas(admin: AdminClient, at: KafkaAddress) -> list[int]:
    """The number of replicas of each partition."""
    found = admin.list_topics(at.topic, timeout=ASK_MAX).topics[at.topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return [len(partition.replicas) for partition in found.partitions.values()]


def _make(admin: AdminClient, at: KafkaAddress, partitions: int, settings: Mapping[str, str]) -> None:
    brokers = len(admin.list_topics(at.topic, timeout=ASK_MAX).brokers)
    replication = at.replication or min(REPLICATION, brokers)
    config = {**settings, "min.insync.replicas": str(min(IN_SYNC, max(1, replication - 1)))}
    (made,) = admin.create_topics(
        [NewTopic(at.topic, partitions, replication, config=config)], request_timeout=ASK_MAX
    ).values()
    try:
        answer(made, ASK_MAX)
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise _missing(at, "this user may not make it", partitions, settings) from error
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            raise LedgerUnusable(
                f"the topic {at.topic} with {replication} replicas was wanted",
                f"there are {brokers} brokers",
                "start more brokers, or say ?replication= in the address",
            ) from error
        if code != KafkaError.TOPIC_ALREADY_EXISTS:  # Another member was quicker, with the same settings.
            raise


def _missing(at: KafkaAddress, why: str, partitions: int, settings: Mapping[str, str]) -> LedgerError:
    config = " ".join(f"--config {name}={value}" for name, value in settings.items())
    return LedgerMissing(
        f"the topic {at.topic} was wanted",
        f"{at.public} has none, and {why}",
        f"kafka-topics.sh --bootstrap-server {at.servers} --create --topic {at.topic} --partitions {partitions} "
        f"--replication-factor {at.replication or REPLICATION} --config min.insync.replicas={IN_SYNC} {config}",
    )


def settings_of(admin: AdminClient, at: KafkaAddress) -> dict[str, Any] | None:
    """The settings of the topic, or None if this user may not see them. Raises LedgerError."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, at.topic)

    def ask() -> dict[str, Any]:
        (asked,) = admin.describe_configs([resource], request_timeout=ASK_MAX).values()
        return {name: entry.value for name, entry in answer(asked, ASK_MAX).items()}

    try:
        return once_known(ask)
    except KafkaException as error:
        if error.args[0].code() not in DENIED:
            raise explain(error.args[0], at, f"the settings of {at.topic}") from error
        return None


class Questions:
    """Questions about the one partition of `topic`. Any thread may ask them. All raise KafkaException."""

    def __init__(self, admin: AdminClient, topic: str, identity: str) -> None:
        self._admin, self._topic, self._identity = admin, topic, identity

    def watermarks(self, timeout: float) -> tuple[int, int]:
        """The lowest offset retained, and the one that the next record will have."""
        return self._offset(_EARLIEST, timeout), self.tip(timeout)

    def tip(self, timeout: float) -> int:
        return self._offset(_LATEST, timeout)

    def leader(self, timeout: float) -> int:
        """The number of the broker that leads the partition; -1 if none does."""
        partition = self._admin.list_topics(self._topic, timeout=timeout).topics[self._topic].partitions.get(0)
        return -1 if partition is None else partition.leader

    def changed_identity(self, timeout: float) -> str:
        """How the topic differs from the one that was opened, or nothing."""
        now = look_at(self._admin, self._topic, timeout).identity
        return "" if now == self._identity else f"the topic was deleted and recreated ({self._identity} became {now})"

    def drop(self, before: int, done: Callable[[Future[object]], None]) -> None:
        """Drop the records below `before`, which must not be above the tip. Returns immediately."""
        for future in self._admin.delete_records([TopicPartition(self._topic, 0, before)]).values():
            future.add_done_callback(done)

    def _offset(self, spec: OffsetSpec, timeout: float) -> int:
        (asked,) = self._admin.list_offsets({TopicPartition(self._topic, 0): spec}, request_timeout=timeout).values()
        offset = int(answer(asked, timeout).offset)
        if offset < 0:  # librdkafka answers like this, without an error, if the partition's broker said nothing.
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET, "no broker knows the offset"))  # noqa: SLF001
        return offset


def _doubts(admin: AdminClient, at: KafkaAddress, replicas: int) -> tuple[list[str], list[str]]:
    """The ways in which acknowledged records may be lost, and all other doubts."""
    said = settings_of(admin, at)
    if said is None:
        return [f"the settings of {at.topic} cannot be seen: grant DescribeConfigs on it"], []
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
    risks, doubts = [], []
    if replicas < IN_SYNC:
        risks.append(f"{at.topic} has 1 replica: if its broker loses power, acknowledged records go")
    elif in_sync < IN_SYNC:
        risks.append(f"{at.topic} has min.insync.replicas=1: a record may be on one broker only, and go with its power")
    if said.get("unclean.leader.election.enable") == "true":
        risks.append(
            f"{at.topic} has unclean.leader.election.enable=true: a leader without the newest records may be chosen"
        )
    retention = int(said.get("retention.ms") or -1)
    if 0 <= retention < RETENTION_MIN:
        hours = f"{retention / 3_600_000:g} h"
        doubts.append(f"{at.topic} keeps records for {hours} (retention.ms): newcomers may find no snapshot")
    if int(said.get("retention.bytes") or -1) >= 0:
        size = said["retention.bytes"]
        doubts.append(f"{at.topic} keeps {size} bytes (retention.bytes): newcomers may find no snapshot")
    longest = int(said.get("max.message.bytes") or RECORD_MAX)
    if longest < RECORD_MAX:
        doubts.append(
            f"{at.topic} takes records of {longest} bytes at most (max.message.bytes), and a snapshot may have "
            f"{RECORD_MAX}: without snapshots newcomers read all there is"
        )
    return risks, doubts
