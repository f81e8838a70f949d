"""Consumer groups on real brokers: faults that only Kafka can cause, and refusals that give the reason.

tests/drivers/consumer_groups/test_contract.py    what every way to share partitions keeps
"""

import gc
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from neli_router.drivers.consumer_groups.address import parse
from neli_router.drivers.consumer_groups.kafka import KafkaSubscription
from neli_router.drivers.ledgers.kafka.clients import asking
from neli_router.drivers.ledgers.kafka.topic import settings_of
from neli_router.errors import ConfigError, GroupMismatch, LedgerMissing, LedgerUnusable, NeliError
from neli_router.protocols.consumer_group.events import AskedBack, BrokerAway, BrokerBack, Confirmed
from tests.conftest import require
from tests.support.forking import in_child, raised_by
from tests.support.processes.forked import Program
from tests.support.servers.kafka import SHORT_GROUPS, Kafka, missing
from tests.support.taking import Taking, until
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.kafka

PARTITIONS = 4
ALL = set(range(PARTITIONS))
SESSION = 6.0

COOPERATIVE = "partition.assignment.strategy=cooperative-sticky"
EAGER = "partition.assignment.strategy=range,roundrobin"
BY_BROKER = "group.protocol=consumer"

Join = Callable[..., Taking]


def opened(brokers: str, group: str, *options: str, session: float = SESSION, create: bool = True) -> KafkaSubscription:
    address, problems = parse(f"//{brokers}/{group}?{'&'.join(options)}")
    assert address is not None, problems
    return KafkaSubscription(address, session=session, patience=PATIENCE, create=create)


def fresh() -> str:
    return f"group-{uuid4().hex}"


def test_a_child_of_a_fork_frees_no_client_of_its_parent(kafka: str) -> None:
    """librdkafka would wait for threads that the child does not have, or crash."""
    gc.disable()  # Everything closed and forgotten is garbage now, which the child must collect.
    try:
        opened(kafka, fresh()).close()
        assert isinstance(in_child(gc.collect), int)
    finally:
        gc.enable()


def make(brokers: str, topic: str, *, partitions: int = PARTITIONS, **settings: str) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, partitions, 1, config=named)])[topic].result(PATIENCE)


@pytest.fixture
def join(kafka: str) -> Iterator[Join]:
    """Join as one more member of a group of four partitions, closed at the end of the test."""
    with ExitStack() as stack:

        def make_one(group: str, *options: str, **settings: float) -> Taking:
            subscription = opened(kafka, group, f"partitions={PARTITIONS}", *options, **settings)  # type: ignore[arg-type]
            return Taking(stack.enter_context(closing(subscription)))

        yield make_one


def require_break(kind: type[NeliError], said: str, member: Taking, *others: Taking) -> None:
    until(lambda: member.error, member, *others)
    with pytest.raises(kind, match=said):
        raise member.error or AssertionError


def test_a_topic_is_made_with_the_times_of_the_broker_and_a_short_memory(kafka: str) -> None:
    group = fresh()
    with closing(opened(kafka, group, "partitions=3")) as subscription:
        assert (3, True) == (subscription.partitions, subscription.broker_times)
    address, _ = parse(f"//{kafka}/{group}")
    assert address is not None
    with asking(address.at, "a look") as admin:
        said = settings_of(admin, address.at)
    assert said is not None
    assert ("LogAppendTime", "600000") == (said["message.timestamp.type"], said["retention.ms"])


def test_a_topic_that_is_there_is_taken_as_it_is_unless_it_is_compacted_or_has_other_partitions(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, compacted = fresh(), fresh()
    make(kafka, f"{group}.neli", partitions=7)
    # A partition alone may have lost a replica to a reassignment, which takes several brokers.
    monkeypatch.setattr("neli_router.drivers.consumer_groups.kafka.found_or_made", lambda *_, **__: [2, 1])
    with closing(opened(kafka, group)) as subscription:
        assert (7, False) == (subscription.partitions, subscription.broker_times)
        for doubt in ("has 1 replica", "keeps the writers' times"):
            assert doubt in str(subscription.doubts)
    monkeypatch.undo()
    with pytest.raises(GroupMismatch, match=r"with 3 partitions was wanted, but it has 7: say layout.partitions=7"):
        opened(kafka, group, "partitions=3")
    make(kafka, f"{compacted}.neli", cleanup_policy="compact")
    with pytest.raises(LedgerUnusable, match="takes no messages without a key"):
        opened(kafka, compacted)


def test_a_topic_that_is_not_to_be_made_is_missing(kafka: str) -> None:
    with pytest.raises(LedgerMissing, match=r"kafka-topics.sh .*--partitions 3 .*message.timestamp.type=LogAppendTime"):
        opened(kafka, fresh(), "partitions=3", create=False)


def test_a_session_under_the_broker_s_minimum_is_refused_and_the_setting_named(join: Join) -> None:
    member = join(fresh(), session=1.5)
    require_break(ConfigError, r"session=1\.5 is refused.* group\.min\.session\.timeout\.ms", member)


@pytest.mark.parametrize(
    ("way", "session", "said"),
    [
        (BY_BROKER, 10.0, r"session=10 is not what the broker has .* which is 6: .*--entity-type groups"),
        # librdkafka waits a second before it joins again, in silence: a group with shorter sessions never settles.
        (COOPERATIVE, 1.4, r"session=1\.4 is too short .* Say a session of 1\.5 s or more"),
        (EAGER, 1.4, r"session=1\.4 is too short .* Say a session of 1\.5 s or more"),
    ],
)
def test_times_that_endanger_a_group_are_refused(kafka: str, way: str, session: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened(kafka, fresh(), way, session=session)


def test_eight_members_that_start_at_once_settle_with_a_short_session(kafka: str) -> None:
    group = fresh()
    with ExitStack() as stack:
        members = [
            Taking(stack.enter_context(closing(opened(kafka, group, "partitions=8", session=2.0)))) for _ in range(8)
        ]
        until(lambda: all(member.has for member in members), *members)


def test_members_with_two_ways_to_share_are_told_so(join: Join) -> None:
    group = fresh()
    first = settled(join, group)
    second = join(group, EAGER)
    (eager,) = [doubt for doubt in second.subscription.doubts if "roundrobin" in doubt]
    assert "takes all partitions from all members at every change" in eager
    require_break(GroupMismatch, "range,roundrobin was wanted", second, first)
    assert ALL == first.has


@pytest.mark.parametrize("way", [COOPERATIVE, BY_BROKER, EAGER])
def test_a_change_touches_no_member_that_it_does_not_concern_unless_the_assignor_is_eager(join: Join, way: str) -> None:
    group = fresh()
    members = [join(group, way) for _ in range(3)]
    until(lambda: all(it.has for it in members) and set.union(*(it.has for it in members)) == ALL, *members)
    leaver = min(members, key=lambda it: len(it.has))
    stayers = [it for it in members if it is not leaver]
    had = [set(it.has) for it in stayers]
    for it in members:
        it.news.clear()
    leaver.subscription.close()
    until(lambda: set.union(*(it.has for it in stayers)) == ALL, *stayers)
    asked = [[set(one.partitions) for one in it.of(AskedBack)] for it in stayers]
    if way == EAGER:
        assert had == [each[0] for each in asked]
    else:
        assert [[], []] == asked
        assert [True, True] == [before <= it.has for before, it in zip(had, stayers, strict=True)]


PAUSED = """
import json, sys, time
from neli_router.protocols.consumer_group.events import AskedBack
from neli_router.drivers.consumer_groups.address import parse
from neli_router.drivers.consumer_groups.kafka import KafkaSubscription
address, _ = parse(sys.argv[1])
notes = open(sys.argv[2], "a")
subscription = KafkaSubscription(address, session=6.0, patience=60.0)
beat_at = 0.0
while True:
    subscription.wait(0.1)
    for news in subscription.take():
        heard = [[message.partition, message.offset] for message in news] if isinstance(news, list) else []
        heard += [list(item) for item in getattr(news, "offsets", {}).items()]
        print(json.dumps([type(news).__name__, sorted(getattr(news, "partitions", [])), heard]), file=notes, flush=True)
        if isinstance(news, AskedBack):
            subscription.give_back(news.partitions)
        if isinstance(news, list):
            subscription.confirm(dict(heard))
    if time.monotonic() >= beat_at:
        beat_at = time.monotonic() + 0.2
        subscription.publish(dict.fromkeys(range(4), b"beat"))
"""


Taken = tuple[str, set[int], set[tuple[int, int]]]
"""The kind of an event, its partitions, and the partitions and offsets that were received or confirmed with it."""


def told(notes: Path) -> list[Taken]:
    lines = notes.read_text(encoding="utf-8").split("\n")[:-1]
    return [(kind, set(partitions), {*map(tuple, heard)}) for kind, partitions, heard in map(json.loads, lines)]


def test_a_pause_longer_than_the_session_loses_everything(kafka: str, join: Join, tmp_path: Path) -> None:
    """The process wakes, may go on receiving, and gets no confirmation until it has heard that it lost everything."""
    group, notes = fresh(), tmp_path / "notes"
    notes.touch()

    def took(kind: str, partitions: set[int]) -> bool:
        return (kind, partitions) in [one[:2] for one in told(notes)]

    with Program(PAUSED, f"//{kafka}/{group}?partitions={PARTITIONS}", str(notes), folder=tmp_path) as paused:
        until(lambda: took("Given", ALL) and took("Confirmed", set()))
        paused.send_signal(signal.SIGSTOP)
        other = join(group)
        until(lambda: other.has == ALL, other)
        asleep = len(told(notes))
        paused.send_signal(signal.SIGCONT)
        until(lambda: took("Lost", ALL), other)
    taken = told(notes)
    lost = [kind for kind, *_ in taken].index("Lost", asleep)
    # Answers may still come for messages received before the pause, but never for messages received after it.
    asked = set.union(*(heard for kind, _, heard in taken[:asleep] if kind == "list"))
    confirmed = [heard for kind, _, heard in taken[asleep:lost] if kind == "Confirmed"]
    assert [] == [offsets for offsets in confirmed if not offsets <= asked]


def settled(join: Join, group: str) -> Taking:
    member = join(group)
    until(lambda: member.has == ALL, member)
    return member


def test_a_confirmed_offset_is_no_place_to_begin(kafka: str, join: Join) -> None:
    """goNELI would begin there, and take old heartbeats for new ones."""
    member, topic = settled(join, group := fresh()), f"{group}.neli"
    member.subscription.confirm({0: 0})
    until(lambda: member.of(Confirmed), member)
    with closing(Consumer({"bootstrap.servers": kafka, "group.id": group})) as other:
        (committed,) = other.committed([partition := TopicPartition(topic, 0)], PATIENCE)
        assert committed.offset > other.get_watermark_offsets(partition, PATIENCE)[1]


def test_a_topic_that_grows_breaks_the_subscription(kafka: str, join: Join) -> None:
    member, topic = settled(join, group := fresh()), f"{group}.neli"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(PATIENCE)
    require_break(GroupMismatch, "with 4 partitions was wanted, as at the start, but it has 6 now", member)
    assert ALL >= member.has


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_is_deleted_breaks_the_subscription(kafka: str, join: Join, *, anew: bool) -> None:
    member, topic = settled(join, group := fresh()), f"{group}.neli"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(PATIENCE)
    if anew:  # The broker takes a while to forget the old one with that name.
        until(lambda: "nothing" == raised_by(lambda: make(kafka, topic)))
    require_break(LedgerUnusable, "would lower the terms", member)


def test_a_reader_that_is_refused_breaks_the_subscription(kafka: str) -> None:
    refusal: Any = SimpleNamespace(error=lambda: KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with closing(opened(kafka, fresh())) as subscription:
        subscription._received([refusal])
        require_break(NeliError, "a read", Taking(subscription))


def test_a_broker_that_goes_away_and_comes_back_is_told_and_nobody_waits_for_it_to_close() -> None:
    require(missing())
    with Kafka.started(settings=SHORT_GROUPS) as node:
        subscription = opened(node.bootstrap, fresh(), "partitions=4")
        member = Taking(subscription)
        until(lambda: member.has == ALL, member)
        node.nodes[0].freeze()
        until(lambda: member.of(BrokerAway), member)
        subscription.confirm({0: 1})
        assert [] == member.of(Confirmed)
        node.nodes[0].thaw()
        until(lambda: member.of(BrokerBack), member)

        def heard() -> bool:
            subscription.publish({0: b"back"})
            return member.has == ALL and any(it.body == b"back" for it in member.messages)

        until(heard, member)
        node.nodes[0].freeze()
        closer = threading.Thread(target=subscription.close)
        closer.start()
        closer.join(PATIENCE)
        assert not closer.is_alive()


def test_no_broker_is_an_error_with_the_reason() -> None:
    with pytest.raises(NeliError, match=r"the opening of kafka://127\.0\.0\.1:1/nowhere was wanted"):
        opened("127.0.0.1:1", "nowhere")
