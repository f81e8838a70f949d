"""The topic of a consumer group: created if it does not exist, and watched while it is in use.

    not there --made: M partitions, LogAppendTime, short retention--> looked at
    there, goNELI's, say ---------------------------------------------'  |
                                                                         |
    look: other M ------------> GroupMismatch    the members count on M, and an older one does not know the new ones
          recreated, gone ----> LedgerUnusable   its offsets start over, and the terms with them
          no answer ----------> LedgerUnavailable, to be asked again

Messages are worth nothing after a few seconds, so a topic that is created here keeps them for minutes only.
"""

from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource

from neli_router.drivers.consumer_groups.kafka.address import GroupAddress
from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.drivers.ledgers.kafka.faults import UNKNOWN, answer, explain
from neli_router.drivers.ledgers.kafka.topic import ASK_MAX, IN_SYNC, found_or_made, once_known, settings_of
from neli_router.errors import ConfigError, GroupMismatch, LedgerUnusable, NeliError

__all__ = ["GroupTopic", "LookedAt", "grown", "look_at_topic", "require_group_topic", "require_session"]

PARTITIONS = 12
"""The number of partitions of a topic that is created, if the address does not say. The paper advises about as many as
there are members. More share the roles out more evenly, and each costs one message per beat from each member."""

MADE_WITH: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "600000",
    "segment.ms": "600000",  # The active segment is kept whole, for a week by default.
    "message.timestamp.type": "LogAppendTime",  # An exclusive group goes by the broker's clock, not by writers'.
    "unclean.leader.election.enable": "false",  # Offsets that went back would lower the terms.
}

CLASSIC_SESSION_MIN = 1.5
"""Seconds. librdkafka asks to join at most once a second, and sends no heartbeat until then. A shorter session expels a
member that must join twice within a second, which members that start a little apart force on each other. When the
expelled member asks again, the others must join again, and so on. With 0.5 s, two members settled in 2 of 5 trials, and
eight members in 1 of 5. With 0.9 s, eight members settled after ten had been expelled; with 1 s, after one or two. With
1.2 s and 1.5 s no member was expelled in 12 trials each on a busy machine. Measured with Kafka 4.3 and librdkafka 2.16,
by `python -m benchmarks sessions`."""

LOOK_MAX = 2.0


class LookedAt(NamedTuple):
    """Which topic it is, and how many partitions it has now."""

    identity: str
    partitions: int


class GroupTopic(NamedTuple):
    """The topic as found at the start. `doubts` are sentences for people."""

    seen: LookedAt
    broker_times: bool
    doubts: tuple[str, ...]


def require_group_topic(admin: AdminClient, address: GroupAddress, *, create: bool) -> GroupTopic:
    """Find the topic, or create it if that is needed and allowed. Raises LedgerError, or GroupMismatch if the topic has
    another number of partitions than the address says."""
    at, wanted = address.at, address.partitions
    try:
        replicas = found_or_made(admin, at, create=create, partitions=wanted or PARTITIONS, settings=MADE_WITH)
        seen = once_known(lambda: _look(admin, at.topic, ASK_MAX))
    except KafkaException as error:
        raise explain(error.args[0], at, f"the topic {at.topic}") from error
    if wanted is not None and wanted != seen.partitions:
        raise GroupMismatch(
            f"the topic {at.topic} of {at.public} with {wanted} partitions was wanted",
            f"it has {seen.partitions}",
            f"say layout.partitions={seen.partitions}, and the same or nothing as ?partitions in the address",
        )
    broker_times, doubts = _judge(admin, at, min(replicas))
    return GroupTopic(seen, broker_times, doubts)


def _judge(admin: AdminClient, at: KafkaAddress, replicas: int) -> tuple[bool, tuple[str, ...]]:
    said = settings_of(admin, at)
    if said is None:  # The messages will show whose timestamps they carry.
        return True, (f"the settings of {at.topic} cannot be seen: grant DescribeConfigs on it",)
    if "compact" in str(said.get("cleanup.policy")):
        raise LedgerUnusable(
            f"the topic {at.topic} with cleanup.policy=delete was wanted",
            "it is compacted, and takes no messages without a key",
            f"kafka-configs.sh --alter --topic {at.topic} --add-config cleanup.policy=delete",
        )
    doubts = []
    if replicas < IN_SYNC:
        doubts.append(f"{at.topic} has 1 replica: while its broker is away, nothing can lead")
    if said.get("unclean.leader.election.enable") == "true":
        doubts.append(f"{at.topic} has unclean.leader.election.enable=true: its offsets, and so terms, may go back")
    broker_times = said.get("message.timestamp.type") == "LogAppendTime"
    if not broker_times:
        doubts.append(
            f"{at.topic} keeps the writers' times (message.timestamp.type): no exclusive group of neli can use it"
        )
    return broker_times, tuple(doubts)


def require_session(admin: AdminClient, address: GroupAddress, session: float) -> tuple[str, ...]:
    """Raise ConfigError if the group cannot have, or would not survive, this session. Returns doubts, for people.

    For the classic protocol the broker has its own bounds, and refuses a session outside them when the consumer joins.
    """
    if address.classic:
        if session < CLASSIC_SESSION_MIN:
            problem = (
                f"session={session:g} is too short for the classic protocol: librdkafka asks to join at most once a "
                "second and is silent until then, so a member that must join twice within a second is expelled, and "
                f"the group may never settle. Say a session of {CLASSIC_SESSION_MIN:g} s or more, or "
                "group.protocol=consumer"
            )
            raise ConfigError([problem])
        return ()
    resource = ConfigResource(ConfigResource.Type.GROUP, address.at.group)
    try:
        (asked,) = admin.describe_configs([resource], request_timeout=ASK_MAX).values()
        said = answer(asked, ASK_MAX)["consumer.session.timeout.ms"].value
    except (KafkaException, KeyError):
        return (f"the session of {address.at.group} cannot be seen: grant DescribeConfigs on the group",)
    if int(said) == round(session * 1000):
        return ()
    group, broker = address.at.group, f"{int(said) / 1000:g}"
    alter = (
        f"kafka-configs.sh --bootstrap-server {address.at.servers} --alter --entity-type groups --entity-name {group}"
    )
    problem = (
        f"session={session:g} is not what the broker has for the group {group}, which is {broker}: with "
        f"group.protocol=consumer it is a setting of the broker. Say session={broker}, or {alter} --add-config "
        f"consumer.session.timeout.ms={round(session * 1000)}, not under its group.consumer.min.session.timeout.ms"
    )
    raise ConfigError([problem])


def look_at_topic(admin: AdminClient, at: KafkaAddress, was: LookedAt) -> NeliError | None:
    """Why the topic cannot be used any longer, or None. Raises KafkaException if no broker answers."""
    try:
        seen = _look(admin, at.topic, LOOK_MAX)
    except KafkaException as error:
        if error.args[0].code() not in UNKNOWN:
            raise
        return _gone(at, "it no longer exists")
    if seen.identity != was.identity:
        return _gone(at, f"it was deleted and recreated ({was.identity} became {seen.identity})")
    return None if seen.partitions == was.partitions else grown(at, was.partitions, seen.partitions)


def grown(at: KafkaAddress, was: int, now: int) -> GroupMismatch:
    """The error for a topic whose number of partitions has changed since the start."""
    return GroupMismatch(
        f"the topic {at.topic} of {at.public} with {was} partitions was wanted, as at the start",
        f"it has {now} now, and members that count on {was} and on {now} would find two owners for one role",
        "stop all members of the group, then start them again",
    )


def _gone(at: KafkaAddress, found: str) -> LedgerUnusable:
    return LedgerUnusable(
        f"the topic {at.topic} of {at.public} was wanted, unchanged since the start",
        f"{found}, and offsets that start over would lower the terms",
        "stop all members of the group, raise term_base to the highest term that was given, then start them again",
    )


def _look(admin: AdminClient, topic: str, timeout: float) -> LookedAt:
    (asked,) = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout).values()
    found = answer(asked, timeout)
    return LookedAt(str(found.topic_id), len(found.partitions))
