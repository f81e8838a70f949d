"""The ledger in Kafka, on real brokers: how it is set up, and what it does when they fail, lie or come back.

tests/drivers/ledgers/test_contract.py    what every ledger keeps; here is what only this one can meet
"""

import ctypes
import os
import time
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from neli_router.drivers.ledgers.base import Entry, Promise
from neli_router.drivers.ledgers.kafka.address import KafkaAddress, parse
from neli_router.drivers.ledgers.kafka.clients import serve
from neli_router.drivers.ledgers.kafka.ledger import KafkaLedger
from neli_router.drivers.ledgers.kafka.topic import delete_topic, once_known
from neli_router.errors import LedgerError, LedgerRewound, LedgerUnavailable, LedgerUnusable, RecordTooLong
from tests.conftest import require
from tests.support.asking import collected, through_trouble, trouble_of
from tests.support.servers.kafka import Kafka, missing
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.kafka


def opened(brokers: str, group: str, query: str = "") -> KafkaLedger:
    return KafkaLedger(address_of(brokers, group, query), patience=PATIENCE)


def address_of(brokers: str, group: str, query: str = "") -> KafkaAddress:
    address, problems = parse(f"//{brokers}/{group}{query}")
    assert address is not None, problems
    return address


def fresh() -> str:
    return f"test-{uuid4().hex}"


def make(brokers: str, group: str, *, partitions: int = 1, **settings: str) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(f"{group}.ledger", partitions, 1, config=named)])[f"{group}.ledger"].result(PATIENCE)


def take(ledger: KafkaLedger, count: int) -> list[Entry]:
    """The next `count` entries, whatever complaints come."""
    entries = collected(lambda: through_trouble(lambda: ledger.read(1.0)), count)
    assert count == len(entries)
    return entries


def complaint(ledger: KafkaLedger, kind: type[LedgerError] = LedgerUnavailable) -> LedgerError:
    """The complaint of a read, once it comes."""
    return trouble_of(lambda: ledger.read(0.1), kind=kind)


def test_one_replica_may_lose_records_and_says_so_and_settings_pass_through(kafka: str) -> None:
    with closing(opened(kafka, fresh(), "?client.id=jobs&socket.keepalive.enable=true")) as ledger:
        assert Promise.NEVER_REWINDS not in ledger.promises
        assert "has 1 replica" in ledger.doubts[0]
        ledger.append([b"one"])
        assert [b"one"] == [entry.payload for entry in take(ledger, 1)]
    with pytest.raises(LedgerUnusable, match=r"no\.such\.setting"):
        opened(kafka, fresh(), "?no.such.setting=1")


@pytest.mark.parametrize(
    ("partitions", "settings", "said"),
    [(2, {}, "there is no order among them"), (1, {"cleanup_policy": "compact"}, "takes records out of the middle")],
)
def test_a_topic_that_is_no_log_is_refused(kafka: str, partitions: int, settings: dict[str, str], said: str) -> None:
    group = fresh()
    make(kafka, group, partitions=partitions, **settings)
    with pytest.raises(LedgerUnusable, match=said):
        opened(kafka, group)


def test_a_topic_that_takes_no_snapshot_is_a_doubt_and_takes_the_other_records(kafka: str) -> None:
    group = fresh()
    make(kafka, group, max_message_bytes="2000", retention_ms="3600000")
    with closing(opened(kafka, group)) as ledger:
        assert any("keeps records for 1 h" in doubt for doubt in ledger.doubts)
        assert any("takes records of 2000 bytes at most" in doubt for doubt in ledger.doubts)
        ledger.append([os.urandom(5000)])  # Long even when it is compressed.
        # The broker may have accepted several short ones before its refusal came.
        trouble_of(lambda: ledger.append([b"short"]), kind=RecordTooLong)
        assert {b"short"} == {entry.payload for entry in until(lambda: ledger.read(1.0))}


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_a_question_is_asked_again_until_all_brokers_know_the_topic(code: int) -> None:
    answers: list[int | None] = [code, code, None]

    def ask() -> str:
        if (refused := answers.pop(0)) is not None:
            raise KafkaException(KafkaError(refused))
        return "known"

    assert ("known", []) == (once_known(ask), answers)


def test_a_transaction_that_hangs_stops_no_reader(kafka: str) -> None:
    group = fresh()
    with closing(opened(kafka, group)) as ledger:
        other = Producer({"bootstrap.servers": kafka, "transactional.id": group})
        other.init_transactions(PATIENCE)
        other.begin_transaction()
        other.produce(f"{group}.ledger", b"never committed")
        other.flush(PATIENCE)
        ledger.append([b"after it"])
        assert b"after it" == take(ledger, 2)[-1].payload
        other.abort_transaction(PATIENCE)


@pytest.mark.parametrize("more", [0, 3], ids=["shorter than before", "longer than before"])
def test_a_topic_that_was_made_anew_is_a_rewound_ledger(kafka: str, more: int) -> None:
    group = fresh()
    with closing(opened(kafka, group)) as ledger:
        ledger.append([b"one", b"two"])
        take(ledger, 2)
        delete_topic(address_of(kafka, group))
        complaint(ledger)
        with closing(opened(kafka, group)) as anew:
            anew.append([b"another"] * more)
            take(anew, more)
        complaint(ledger, LedgerRewound)
        with pytest.raises(LedgerRewound):  # Permanently.
            ledger.read(0)


def break_for_good(client: Consumer | Producer) -> None:
    """Use librdkafka's own means of testing how a program handles a fatal error."""
    package = Path(confluent_kafka.__file__).parent
    library = ctypes.CDLL(str(next(package.parent.glob("confluent_kafka.libs/librdkafka*"))))
    handle = ctypes.c_void_p.from_address(id(client) + object.__basicsize__)
    error = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert 0 == library.rd_kafka_test_fatal_error(handle, ctypes.c_int(error), b"as if")


def test_a_consumer_that_is_broken_for_good_is_replaced(kafka: str) -> None:
    with closing(opened(kafka, fresh())) as ledger:
        ledger.append([b"one"])
        take(ledger, 1)
        before = [ledger._reader._consumer]
        break_for_good(before[0])
        until(lambda: before[0] is not ledger._reader._consumer)
        ledger.append([b"two"])
        assert [b"two"] == [entry.payload for entry in take(ledger, 1)]
        before.clear()
    spent, started = time.process_time(), time.monotonic()
    time.sleep(1.0)
    assert time.process_time() - spent < (time.monotonic() - started) / 4, "something of it goes round in a circle"


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_producer_that_is_broken_for_good_is_replaced(kafka: str, *, asked_first: bool) -> None:
    with closing(opened(kafka, fresh())) as ledger:
        ledger.append([b"one"])
        take(ledger, 1)
        before = ledger._writer._producer
        break_for_good(before)
        if asked_first:
            ledger.acknowledged()
        with pytest.raises(LedgerUnavailable, match=r"fatal|out of order"):
            ledger.append([b"two"])
        assert before is not ledger._writer._producer
        with suppress(LedgerUnavailable):  # It reports the last trouble until something was delivered.
            ledger.append([b"three"])
        assert b"three" == take(ledger, 1 + asked_first)[-1].payload


def test_a_broker_that_is_frozen_is_no_silence_and_one_that_is_killed_is_read_on_from_the_same_place() -> None:
    require(missing())
    with Kafka.started() as node, closing(opened(node.bootstrap, fresh())) as ledger:
        ledger.append([b"one"])
        take(ledger, 1)
        node.nodes[0].freeze()
        assert "was wanted, but" in str(complaint(ledger))
        assert ledger.age() > 0.5
        node.nodes[0].thaw()
        ledger.append([b"two"])
        assert [b"two"] == [entry.payload for entry in take(ledger, 1)]
        node.nodes[0].kill()
        complaint(ledger)
        node.nodes[0].start()
        node.wait()
        # On a busy machine a broker may need longer to come back than a record is retried. If the broker died before it
        # acknowledged the last record, that record has failed by now, and this append raises its error. The new record
        # is queued all the same.
        with suppress(LedgerUnavailable):
            ledger.append([b"three"])
        assert [b"three"] == [entry.payload for entry in take(ledger, 1)]


@pytest.mark.process
def test_a_log_that_lost_its_tail_to_an_unclean_election_is_rewound_even_if_it_is_longer_again() -> None:
    """Node 1 leads, node 2 follows and is frozen until it is out of sync; then node 1 dies with the newest records."""
    require(missing())
    group = fresh()
    with Kafka.started(nodes=3) as cluster:
        first, second, third = cluster.nodes
        witness = f"{third.host}:{third.port}"  # This node stays up.
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        topic = NewTopic(f"{group}.ledger", 1, replica_assignment=[[1, 2]], config=settings)
        admin = AdminClient({"bootstrap.servers": witness})

        def is_everywhere() -> bool:
            # When a busy node is missing from the list for a moment, the client gives up what it asked that node.
            with suppress(KafkaException):
                admin.create_topics([topic])[topic.topic].result(PATIENCE)
            return all(in_sync(f"{node.host}:{node.port}", topic.topic) for node in cluster.nodes)

        until(is_everywhere)
        with closing(opened(cluster.bootstrap, group)) as ledger:
            assert any("unclean.leader.election.enable" in doubt for doubt in ledger.doubts)
            ledger.append([b"kept"])
            take(ledger, 1)
            second.freeze()
            until(lambda: in_sync(witness, f"{group}.ledger") == [1])
            # The frozen node may have left a request open, which the next append answers. So it may keep this record,
            # but none of those that follow.
            ledger.append([b"open"])
            take(ledger, 1)
            ledger.append([b"lost"] * 5)
            take(ledger, 5)
            first.kill()
            second.thaw()
            until(lambda: in_sync(witness, f"{group}.ledger") == [2])
            with closing(opened(cluster.bootstrap, group)) as other:
                other.append([b"instead"] * 20)
                read: list[bytes] = []
                while read.count(b"instead") < 20:
                    read += [entry.payload for entry in through_trouble(lambda: other.read(1.0))]
                assert 0 == read.count(b"lost")
            complaint(ledger, LedgerRewound)


def test_a_producer_that_breaks_while_it_tells_of_deliveries_is_broken_and_no_fault_of_ours() -> None:
    """The client has its fatal error set already when it calls us, and Python turns that into a SystemError."""
    fatal = KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER))

    def breaks(_: float) -> None:
        raise SystemError("a function returned a result with an exception set") from fatal

    def fails(_: float) -> None:
        raise SystemError("something else")

    with pytest.raises(KafkaException) as caught:
        serve(breaks, 0.0)
    assert fatal is caught.value
    with pytest.raises(SystemError, match="something else"):
        serve(fails, 0.0)


def in_sync(broker: str, topic: str) -> list[int]:
    """The in-sync replicas, as far as one broker knows; asked by a client that knows no other broker yet."""
    try:
        found = AdminClient({"bootstrap.servers": broker}).list_topics(topic, timeout=1).topics[topic]
    except KafkaException:
        return []
    return list(found.partitions[0].isrs) if found.partitions else []


def test_who_may_what_is_told_right_by_right() -> None:
    """These five rights are the minimum; with Create, it makes the topic."""
    require(missing())
    with Kafka.started(users={"admin": "secret of admin", "jobs": "secret"}) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, **kafka.as_admin})
        query = "?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"
        with pytest.raises(LedgerUnusable, match=r"check sasl\.username") as raised:
            opened(f"jobs:wrong@{kafka.bootstrap}", "jobs", query)
        assert "wrong@" not in str(raised.value)

        def open_as_jobs() -> KafkaLedger:
            return opened(f"jobs:secret@{kafka.bootstrap}", "jobs", query)

        with pytest.raises(LedgerUnavailable, match="grant this user Describe"):
            open_as_jobs()
        grant(admin, AclOperation.CREATE, AclOperation.DESCRIBE)
        with closing(open_as_jobs()) as ledger:
            assert "the settings of jobs.ledger cannot be seen: grant DescribeConfigs on it" in ledger.doubts
            assert Promise.NEVER_REWINDS not in ledger.promises
        grant(admin, AclOperation.DESCRIBE_CONFIGS, AclOperation.WRITE)
        with closing(open_as_jobs()) as ledger:
            assert not any("cannot be seen" in doubt for doubt in ledger.doubts)
            ledger.append([b"one", b"two"])
            until(lambda: "authorization" in str(complaint(ledger)))  # The first fetch may take its time.
            grant(admin, AclOperation.READ)
            assert [b"one", b"two"] == [entry.payload for entry in take(ledger, 2)]
            ledger.trim(1)
            until(lambda: "Delete" in str(trouble_of(lambda: ledger.trim(1))))
            assert 0 == ledger.start()
        with pytest.raises(LedgerUnavailable, match=r"grant this user .* Delete"):
            delete_topic(address_of(f"jobs:secret@{kafka.bootstrap}", "jobs", query))
        grant(admin, AclOperation.DELETE)
        with closing(open_as_jobs()) as ledger:
            ledger.tip()
            ledger.trim(1)
            until(lambda: ledger.start() == 1)
        assert "jobs.ledger" == delete_topic(address_of(f"jobs:secret@{kafka.bootstrap}", "jobs", query))


def grant(admin: AdminClient, *operations: AclOperation) -> None:
    place = (ResourceType.TOPIC, "jobs.ledger", ResourcePatternType.LITERAL)
    rights = [AclBinding(*place, "User:jobs", "*", one, AclPermissionType.ALLOW) for one in operations]
    for granted in admin.create_acls(rights).values():
        granted.result(PATIENCE)
