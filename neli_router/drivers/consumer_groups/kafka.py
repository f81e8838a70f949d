"""A subscription in Kafka: one consumer that is in the group, one that reads, both on one thread, and a producer.

    coordinator --rebalance callbacks--> member --assigns, unassigns--> reader
                                          '---the polling thread---> [ events, bounded ] --wait, take--> the pump
    broker --messages--> reader ------------------'                                                       |
    broker <-------------------------- producer <-------- publish, give_back -----------------------------'
    broker <--which topic, how many partitions?-- the watching thread --BrokerAway, -Back, -Broken--> [ events ]

**Two consumers**, because librdkafka fetches nothing, of any partition, from the callback of a revocation until the
partitions are unassigned. A protocol that leads by what it hears would lose everything to a program that takes longer
than its proof lasts. So the member pauses what it is given, and never fetches. The reader is in no group, and reads
what the member has.

**Polling goes on** while the program finishes its work. The callback returns without unassigning, which the client
leaves to the application, and the polling thread unassigns when the program is done. Until then, librdkafka reports
nothing else about the group, not even that the group has forgotten this member. So the polling thread asks the group.

    AskedBack --give_back, all of them--> unassigned, and others may have them
        '-----patience, or the group refuses, or answers nothing for a session--> Lost, unassigned

    the pump hangs --events wait for a session, or TAKE_MAX--> polling stops --patience--> librdkafka leaves the group

`patience` is `max.poll.interval.ms`: it is also how long the brokers wait for an answer.

**Reading** starts at the end of the log at each assignment, whatever was committed.

**Confirming** is a commit. A fetch needs no membership, so a consumer that the coordinator took for dead goes on
reading until it learns of that; but its commits are refused, because of its generation or epoch. The offset in question
is committed above BEYOND. No consumer can start there, so one that looks at it, as goNELI does, goes to the end.

**Heartbeats** to the coordinator are sent only when librdkafka's main thread wakes, and it wakes only once a second if
left alone: with a session of less than two seconds, members flap. The timer for automatic commits keeps the thread
awake. It commits nothing, because nothing is stored to be committed.

**The topic** is made if it does not exist, for messages that are worth nothing after a few seconds. The watching thread
looks at it every second. If it has another number of partitions, the members still count on the old one; if it is gone
or was recreated, its offsets start over, and the terms with them.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient, ConfigResource

from neli_router.drivers.consumer_groups.address import GroupAddress
from neli_router.drivers.consumer_groups.base import TAKE_MAX, BrokerNews, GroupLook
from neli_router.drivers.ledgers.base import require_not_closed, require_own_process
from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.drivers.ledgers.kafka.clients import (
    ASK_MAX,
    COMMON,
    DENIED,
    UNKNOWN,
    answer,
    asking,
    explain,
    is_fatal,
    keep_in_children,
    serve,
    told,
)
from neli_router.drivers.ledgers.kafka.topic import IN_SYNC, TopicLook, found_or_made, look_at, once_known, settings_of
from neli_router.errors import ConfigError, GroupMismatch, LedgerUnavailable, LedgerUnusable, NeliError
from neli_router.protocols.consumer_group.events import (
    AskedBack,
    BrokerAway,
    BrokerBack,
    BrokerBroken,
    Confirmed,
    Given,
    Lost,
    Message,
)

__all__ = ["KafkaSubscription", "look_at_group"]

SLICE = 0.05
"""Seconds of one poll. `close`, and what the coordinator and the program say, may wait this long for the thread."""

WAKES_PER_SESSION = 20
HEARTBEATS_PER_SESSION = 10
"""More heartbeats cost requests. Fewer make handovers slow, because a member learns of a handover from the answer to
its next heartbeat; with fewer than three, one late heartbeat would end a session."""

WATCH_EVERY = 1.0
GONE_LOOKS = 3
"""How many looks in a row must find no topic, or a different one: a broker may learn late of a new topic."""

BEYOND = 2**62
"""Above every offset of any log."""

NO_QUESTION = -1
"""In place of an offset: a question of this driver, not of the machine. It is committed below BEYOND."""

FORGOTTEN = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION})
"""How a coordinator refuses the commit of a consumer that is not in the group any more."""

CLOSE_MAX = 3.0
"""Seconds that `close` waits for the consumer to leave its group, for which a broker must answer. If none does, the
consumer's thread ends later on its own, and the session ends at the broker."""

UNSUBSCRIBED_EVERY = 0.002

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
expelled member asks again, the others must join again, and so on. With 1 s, one or two of eight members were expelled;
with 1.2 s and 1.5 s, none in 12 trials each on a busy machine (`python -m benchmarks sessions`)."""

LOOK_MAX = 2.0


class KafkaSubscription:
    """One consumer. `session` and `patience` are in seconds; `patience` bounds how long a program may take to finish
    work that was revoked. Raises LedgerError, ConfigError or GroupMismatch if the consumer cannot be set up."""

    def __init__(self, address: GroupAddress, *, session: float, patience: float, create: bool = True) -> None:
        assert patience >= session, "Kafka refuses less"
        keep_in_children(self)
        self._address, self._at, self._process = address, address.at, os.getpid()
        self.session, self._patience = session, patience
        with asking(self._at, "the opening") as admin:
            self._topic, look = _examined(admin, address, session, create=create)
        self._admin = admin
        self.address, self.partitions, self.broker_times, self.doubts = look
        self._changed = threading.Condition()  # Reentrant, so a signal handler may call `wake` at any moment.
        self._events: deque[tuple[float, BrokerNews | Message]] = deque()
        """The events that wait, and when each arrived."""
        self._asked_back: set[int] = set()
        self._revoking: list[TopicPartition] = []
        """The partitions that librdkafka waits for, until the program has given back all that was asked back."""
        self._give_up_at = self._ask_at = self._counted_at = 0.0
        """The end of that wait, when to ask the group next, and when the group last counted this consumer."""
        self._to_confirm: dict[int, int] = {}
        self._woken = self._leaving = self._closed = self._broken = False
        self._heard = 0
        """How many rebalances the client has reported."""
        self._consumer_is_dead = False
        """Broken for good, by its own account. Closing such a consumer never ends, and keeps a core busy."""
        self._producer = Producer(
            {
                **COMMON,
                "linger.ms": 0,
                "message.timeout.ms": int(session * 1000),  # An older one is worth nothing.
                **self._at.client,
            }
        )
        self._reads: set[int] = set()
        self._reader = Consumer({**self._reader_settings(), "enable.auto.commit": False})
        self._consumer = Consumer(self._consumer_settings())
        self._consumer.subscribe([self._at.topic], on_assign=self._given, on_revoke=self._revoked, on_lost=self._lost)
        self._threads = [
            threading.Thread(target=run, name=f"neli-kafka-{name}-{self._at.group}", daemon=True)
            for name, run in (("consumer", self._poll), ("watch", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, timeout: float) -> None:
        self._require_open()
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._woken, timeout)
            self._woken = False

    def take(self) -> list[BrokerNews]:
        self._require_open()
        with self._changed:
            taken = [event for _, event in self._events]
            self._events.clear()
            self._changed.notify_all()
        return _gathered(taken)

    def publish(self, bodies: Mapping[int, bytes | None]) -> None:
        self._require_open()
        for partition, body in bodies.items():
            # The queue may be full, or the topic gone: messages may be lost, and others notice the silence.
            with suppress(BufferError, KafkaException):
                self._producer.produce(self._at.topic, body, partition=partition, on_delivery=self._delivered)
        with suppress(KafkaException):
            serve(self._producer.poll, 0)

    def confirm(self, offsets: Mapping[int, int]) -> None:
        self._require_open()
        with self._changed:
            self._to_confirm.update(offsets)

    def give_back(self, partitions: Sequence[int]) -> None:
        self._require_open()
        with self._changed:
            self._asked_back.difference_update(partitions)

    def leave(self) -> None:
        self._require_open()
        self._leave()

    def wake(self) -> None:
        if os.getpid() == self._process:  # In a child, a thread that no longer exists may hold the lock.
            with self._changed:
                self._woken = True
                self._changed.notify_all()

    def close(self) -> None:
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._leave()
        with suppress(KafkaException):
            self._producer.purge()
            serve(self._producer.flush, 0)
        give_up_at = time.monotonic() + CLOSE_MAX
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _leave(self) -> None:
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    def _require_open(self) -> None:
        require_own_process(self.address, self._process)
        require_not_closed(self.address, closed=self._closed)

    # The polling thread, and the callbacks that run on it

    def _poll(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._leaving or self._may_poll())
                if self._leaving:
                    break
            try:
                self._commit()
                self._revoke_when_done()
                said = self._consumer.poll(0 if self._reads else SLICE)
                if said is not None and (error := said.error()) is not None:
                    self._complained(error)
                first = self._reader.poll(SLICE) if self._reads else None
                if first is not None:
                    self._received([first, *self._reader.consume(TAKE_MAX - 1, 0)])
            except KafkaException as failure:
                self._complained(failure.args[0])
                time.sleep(SLICE)
        with suppress(KafkaException):
            self._revoke_when_done()  # Without this, the consumer would never close.
            if not self._consumer_is_dead:
                self._unsubscribe()
        if not self._consumer_is_dead:
            self._consumer.close()
        self._reader.close()

    def _unsubscribe(self) -> None:
        """Leave the group, and answer what it still reports. If a rebalance were reported only to `close`, the client
        might unassign after its group had ended, and wait for the answer forever, with Python's lock in its hand."""
        self._consumer.unsubscribe()
        give_up_at, last = time.monotonic() + CLOSE_MAX, -1
        while (self._heard > last or self._consumer.assignment()) and time.monotonic() < give_up_at:
            last = self._heard
            self._consumer.poll(0)
            time.sleep(UNSUBSCRIBED_EVERY)

    def _commit(self) -> None:
        """Carry out `confirm`. This is done here because the client lets no other thread call it during a poll, and a
        poll is nearly always running: a thread that asks then may wait forever."""
        with self._changed:
            offsets, self._to_confirm = self._to_confirm, {}
        if offsets:
            asked = [TopicPartition(self._at.topic, it, BEYOND + offset) for it, offset in offsets.items()]
            with suppress(KafkaException):
                self._consumer.commit(offsets=asked, asynchronous=True)

    def _may_poll(self) -> bool:
        """Not while the pump hangs: the brokers must notice that."""
        late = bool(self._events) and time.monotonic() - self._events[0][0] >= self.session
        return not self._broken and not late and len(self._events) < TAKE_MAX

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._heard += 1
        if self._leaving:
            return  # The client assigns them, and revokes them next.
        given = sorted(it.partition for it in partitions)
        if beyond := [it for it in given if it >= self.partitions]:
            self._break(_grown(self._at, self.partitions, max(beyond) + 1))
            return
        if given:
            self._put(Given(given))
        at_the_end = [TopicPartition(self._at.topic, it, OFFSET_END) for it in given]
        if self._address.eager:
            consumer.assign(at_the_end)
        else:
            consumer.incremental_assign(at_the_end)
        if given:
            consumer.pause(at_the_end)
            self._reader.incremental_assign(at_the_end)
            self._reads.update(given)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._heard += 1
        if not partitions or self._leaving:
            return
        self._revoking, self._ask_at, self._counted_at = partitions, 0.0, time.monotonic()
        self._give_up_at = self._counted_at + self._patience
        with self._changed:
            self._asked_back = {it.partition for it in partitions}
            self._put(AskedBack(sorted(self._asked_back)))
        # The client unassigns for a callback that made no such call. This call fails, and so unassigns nothing. If a
        # later client unassigned all the same, tests/drivers/consumer_groups/test_contract.py would fail.
        with suppress(KafkaException):
            consumer.incremental_unassign([TopicPartition(self._at.topic, self.partitions)])

    def _revoke_when_done(self) -> None:
        """Unassign what the coordinator asked back, once the program has given all of it back or cannot be waited for.

        librdkafka learns only after that if the group has forgotten this consumer, and then loses the rest, too."""
        if not self._revoking:
            return
        now = time.monotonic()
        with self._changed:
            is_over = now >= min(self._give_up_at, self._counted_at + self.session) or self._leaving or self._broken
            if self._asked_back and not is_over:
                if now >= self._ask_at:
                    self._ask_at = now + self.session / HEARTBEATS_PER_SESSION
                    self._to_confirm.setdefault(self._revoking[0].partition, NO_QUESTION)
                return
            late, self._asked_back = sorted(self._asked_back), set()
            if late and not self._leaving:
                self._put(Lost(late))
        revoked, self._revoking = self._revoking, []
        self._stop_reading(revoked)
        if self._address.eager:
            self._consumer.unassign()
        else:
            self._consumer.incremental_unassign(revoked)

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._heard += 1
        self._put(Lost(sorted(it.partition for it in partitions)))
        self._stop_reading(partitions)

    def _stop_reading(self, partitions: list[TopicPartition]) -> None:
        if read := [TopicPartition(it.topic, it.partition) for it in partitions if it.partition in self._reads]:
            self._reads.difference_update(it.partition for it in read)
            self._reader.incremental_unassign(read)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        errors = {it.code() for it in (error, *(it.error for it in partitions)) if it is not None}
        if not errors:
            self._counted_at = time.monotonic()
        elif errors & FORGOTTEN:
            self._counted_at = -math.inf
        offsets = {it.partition: it.offset - BEYOND for it in partitions if it.error is None and it.offset >= BEYOND}
        if error is None and offsets:
            self._put(Confirmed(offsets))

    def _received(self, messages: list[KafkaMessage]) -> None:
        with self._changed:
            for message in messages:
                error = message.error()
                if error is None:
                    self._put(_message(message))
                else:
                    self._complained(error)

    def _complained(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._consumer_is_dead = True
        if (why := self._reason_to_stop(error)) is not None:
            self._break(why)

    def _reason_to_stop(self, error: KafkaError) -> NeliError | None:
        """Why this consumer is of no further use, or None. librdkafka retries forever, and reports each failure."""
        group = f"the group {self._at.group} of {self._at.public}"
        match error.code():
            case KafkaError.INVALID_SESSION_TIMEOUT:
                problem = (
                    f"session={self.session:g} is refused by the broker of {self._at.public}: raise it, or lower the "
                    "broker's group.min.session.timeout.ms, which is 6000 if it was not set; its "
                    "group.max.session.timeout.ms is the bound above"
                )
                return ConfigError([problem])
            case KafkaError.INCONSISTENT_GROUP_PROTOCOL:
                return GroupMismatch(
                    f"{group} with {self._address.way} was wanted",
                    "its members have another way to share partitions",
                    "have one ?partition.assignment.strategy= or ?group.protocol= for all; goNELI has range,roundrobin",
                )
            case KafkaError.GROUP_AUTHORIZATION_FAILED:
                return LedgerUnavailable(
                    f"{group} was wanted", told(error), "grant this user Read on the consumer group"
                )
            case code if code in DENIED:
                return explain(error, self._at, "a read")
            case KafkaError.GROUP_MAX_SIZE_REACHED:
                return LedgerUnavailable(f"{group} was wanted", told(error), "raise group.max.size at the broker")
            case KafkaError.UNSUPPORTED_VERSION | KafkaError.UNSUPPORTED_ASSIGNOR | KafkaError._UNSUPPORTED_FEATURE:  # noqa: SLF001
                remedy = "group.protocol=consumer takes Kafka 4, and an assignor that it has: correct the address"
                return LedgerUnusable(f"{group} was wanted", told(error), remedy)
            case _ if is_fatal(error):
                return LedgerUnusable(f"{group} was wanted", told(error), "start this member again")
        return None

    # The watching thread

    def _watch(self) -> None:
        away, gone = False, 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._broken, WATCH_EVERY)
                if self._closed or self._broken:
                    return
            try:
                why = _unusable(self._admin, self._at, self._topic)
            except KafkaException:
                if not away:
                    self._put(BrokerAway())
                away = True
                continue
            if away:
                self._put(BrokerBack())
            away, gone = False, gone + 1 if why is not None else 0
            if why is not None and gone >= GONE_LOOKS:
                self._break(why)

    # All threads

    def _put(self, event: BrokerNews | Message) -> None:
        with self._changed:
            self._events.append((time.monotonic(), event))
            self._changed.notify_all()

    def _break(self, error: NeliError) -> None:
        with self._changed:
            if not self._broken:
                self._broken = True
                self._put(BrokerBroken(error))

    def _delivered(self, error: KafkaError | None, _message: KafkaMessage) -> None:
        """Note a lost message only if the right to write is missing: every other cause heals on its own."""
        if error is not None and error.code() in DENIED:
            self._break(explain(error, self._at, "a write"))

    def _reader_settings(self) -> dict[str, Any]:
        return {
            **COMMON,
            **self._at.client,
            "group.id": self._at.group,  # The client requires one, and uses it only to commit or to subscribe.
            "auto.offset.reset": "latest",
            "isolation.level": "read_uncommitted",
            "fetch.error.backoff.ms": 20,
        }

    def _consumer_settings(self) -> dict[str, Any]:
        milliseconds = self.session * 1000
        classic = {
            "session.timeout.ms": int(milliseconds),
            "heartbeat.interval.ms": max(1, int(milliseconds / HEARTBEATS_PER_SESSION)),
        }
        return {
            **self._reader_settings(),
            **self._address.sharing,
            **(classic if self._address.classic else {}),
            "max.poll.interval.ms": int(self._patience * 1000),
            "enable.auto.commit": True,
            "auto.commit.interval.ms": max(1, int(milliseconds / WAKES_PER_SESSION)),
            "enable.auto.offset.store": False,
            "on_commit": self._committed,
        }


def look_at_group(address: GroupAddress, session: float) -> GroupLook:
    """The topic and the group as a consumer would find them. Does not join, and creates nothing. Raises LedgerMissing
    if the topic does not exist yet, and otherwise whatever KafkaSubscription raises."""
    with asking(address.at, "the look at it") as admin:
        return _examined(admin, address, session, create=False)[1]


def _message(message: KafkaMessage) -> Message:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    whose, milliseconds = message.timestamp()
    appended_at = milliseconds / 1000 if whose == TIMESTAMP_LOG_APPEND_TIME else None
    return Message(partition, offset, appended_at, message.value())


def _gathered(taken: list[BrokerNews | Message]) -> list[BrokerNews]:
    """Merge neighbouring messages into one list."""
    gathered: list[BrokerNews] = []
    messages: list[Message] = []
    for one in taken:
        if isinstance(one, Message):
            if not messages:
                gathered.append(messages)
            messages.append(one)
        else:
            gathered.append(one)
            messages = []
    return gathered


def _examined(
    admin: AdminClient, address: GroupAddress, session: float, *, create: bool
) -> tuple[TopicLook, GroupLook]:
    """Find the topic, or create it if that is needed and allowed. Raises LedgerError, ConfigError if the group cannot
    have this session, or GroupMismatch if the topic has another number of partitions than the address says."""
    at, wanted = address.at, address.partitions
    try:
        replicas = found_or_made(admin, at, create=create, partitions=wanted or PARTITIONS, settings=MADE_WITH)
        seen = once_known(lambda: look_at(admin, at.topic))
    except KafkaException as error:
        raise explain(error.args[0], at, f"the topic {at.topic}") from error
    if wanted is not None and wanted != seen.partitions:
        raise GroupMismatch(
            f"the topic {at.topic} of {at.public} with {wanted} partitions was wanted",
            f"it has {seen.partitions}",
            f"say layout.partitions={seen.partitions}, and the same or nothing as ?partitions in the address",
        )
    broker_times, doubts = _judge(admin, at, min(replicas))
    doubts += _require_session(admin, address, session)
    if address.eager:
        doubts.append(
            f"{address.way} takes all partitions from all members at every change of the group, and range gives few "
            "members the low ones, which have the roles: say ?partition.assignment.strategy=cooperative-sticky, or "
            "group.protocol=consumer, unless goNELI is in the group"
        )
    return seen, GroupLook(at.public, seen.partitions, broker_times, tuple(doubts))


def _judge(admin: AdminClient, at: KafkaAddress, replicas: int) -> tuple[bool, list[str]]:
    """Whether messages carry the broker's times, and the doubts."""
    said = settings_of(admin, at)
    if said is None:  # The messages will show whose timestamps they carry.
        return True, [f"the settings of {at.topic} cannot be seen: grant DescribeConfigs on it"]
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
    return broker_times, doubts


def _require_session(admin: AdminClient, address: GroupAddress, session: float) -> list[str]:
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
        return []
    resource = ConfigResource(ConfigResource.Type.GROUP, address.at.group)
    try:
        (asked,) = admin.describe_configs([resource], request_timeout=ASK_MAX).values()
        said = answer(asked, ASK_MAX)["consumer.session.timeout.ms"].value
    except (KafkaException, KeyError):
        return [f"the session of {address.at.group} cannot be seen: grant DescribeConfigs on the group"]
    if int(said) == round(session * 1000):
        return []
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


def _unusable(admin: AdminClient, at: KafkaAddress, was: TopicLook) -> NeliError | None:
    """Why the topic cannot be used any longer, or None. Raises KafkaException if no broker answers."""
    try:
        seen = look_at(admin, at.topic, LOOK_MAX)
    except KafkaException as error:
        if error.args[0].code() not in UNKNOWN:
            raise
        return _gone(at, "it no longer exists")
    if seen.identity != was.identity:
        return _gone(at, f"it was deleted and recreated ({was.identity} became {seen.identity})")
    return None if seen.partitions == was.partitions else _grown(at, was.partitions, seen.partitions)


def _grown(at: KafkaAddress, was: int, now: int) -> GroupMismatch:
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
