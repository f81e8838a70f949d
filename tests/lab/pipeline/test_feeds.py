"""Feeds: a step has the same ticks for every reader, in a folder and in a topic, and missing ticks are reported."""

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyarrow import parquet

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, NeliError
from neli_router.lab.pipeline.feeds import TickTopic, feed_at
from neli_router.lab.pipeline.ticks import SCHEMA, Market
from neli_router.spark.feeds import MESSAGES, NumberedFiles, Topic
from tests.support.waiting import PATIENCE, until

LAYOUT = Layout(partitions=16)
TICKS, INTERVALS = 3000, 5
NewTopic = Callable[[int], str]


@pytest.fixture(name="intervals")
def some() -> list[pa.Table]:
    return list(Market(instruments=40).split(TICKS, INTERVALS))


def producer_for(address: str, **settings: Any) -> tuple[Producer, str]:
    """A producer for the topic at this address, and the topic's name."""
    servers, name = address.removeprefix("kafka://").split("/")
    return Producer({"bootstrap.servers": servers, **settings}), name


def read(feed: Topic, lane: int, after: int, upto: int) -> pa.Table:
    """The ticks of that step; each lies under its key, with its offset and a time."""
    messages = pa.Table.from_batches(feed.read(lane, after, upto, LAYOUT), schema=MESSAGES).to_pylist()
    assert all(after <= it["offset"] < upto and it["timestamp"].year > 2025 for it in messages)
    ticks = pa.Table.from_pylist([msgspec.json.decode(it["value"]) for it in messages], schema=SCHEMA)
    assert [it["key"].decode() for it in messages] == ticks["instrument"].to_pylist()
    return ticks


def test_a_step_of_a_folder_ends_with_a_whole_file(tmp_path: Path, intervals: list[pa.Table]) -> None:
    feed = NumberedFiles(tmp_path / "ticks")
    assert 0 == feed.tip(0, 0)  # It is not there yet.
    assert [1, 2, 3, 4, 5] == [feed.append(interval) for interval in intervals]
    assert (1, 5) == (feed.lanes(), feed.tip(0, 2))
    assert intervals[3] == parquet.read_table(feed.checked(4, SCHEMA.names), schema=SCHEMA)
    (tmp_path / "ticks" / ".00000006.unfinished").write_bytes(b"PAR1 and then nothing")
    assert 5 == feed.tip(0, 5)
    assert 6 == feed.append(intervals[1])
    (parts := feed.path(7)).mkdir()  # As Spark writes it: in parts, and whole when it says so.
    parquet.write_table(intervals[3], parts / "part-00000.parquet")
    assert 6 == feed.tip(0, 5)
    (parts / "_SUCCESS").touch()
    assert (7, parts) == (feed.tip(0, 5), feed.checked(7, SCHEMA.names))


def test_a_file_without_the_columns_of_ticks_is_an_error_and_no_empty_step(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"instrument": ["ACME"], "price": [1.0]}), tmp_path / "00000001.parquet")
    (tmp_path / "00000002.parquet").write_text("no Parquet")
    for number, found in ((1, "no column ask, at, bid, sequence, size"), (2, "cannot be read")):
        with pytest.raises(NeliError, match=rf"0000000{number}\.parquet, but it .*{found}"):
            NumberedFiles(tmp_path).checked(number, SCHEMA.names)


@pytest.mark.kafka
def test_every_tick_of_a_topic_is_in_its_lane_in_order_and_once(new_topic: NewTopic, intervals: list[pa.Table]) -> None:
    feed = TickTopic(new_topic(3), LAYOUT)
    for interval in intervals:
        feed.append(interval)
    assert (3, 3) == (feed.lanes(), deepcopy(feed).lanes())  # A copy, like the one sent to a worker.
    lanes = [read(feed, lane, 0, feed.tip(lane, 0)) for lane in range(3)]
    for lane, ticks in enumerate(lanes):
        assert {lane} == {LAYOUT.partition(name) % 3 for name in ticks["instrument"].to_pylist()}
    order = [("instrument", "ascending"), ("sequence", "ascending")]
    assert pa.concat_tables(intervals).sort_by(order) == pa.concat_tables(lanes).sort_by(order)


@pytest.mark.kafka
def test_steps_end_at_any_offset_and_dropped_ones_are_an_error(new_topic: NewTopic, intervals: list[pa.Table]) -> None:
    address = new_topic(1)
    feed = TickTopic(address, LAYOUT)
    feed.append(intervals[0])
    steps = [read(feed, 0, after, upto) for after, upto in pairwise([0, 1, 17, 400, feed.tip(0, 0)])]
    assert [1, 16, 383, 200] == [step.num_rows for step in steps]
    assert intervals[0] == pa.concat_tables(steps).combine_chunks()
    servers, name = address.removeprefix("kafka://").split("/")
    client = AdminClient({"bootstrap.servers": servers})
    for done in client.delete_records([TopicPartition(name, 0, 10)]).values():
        done.result(PATIENCE)
    with pytest.raises(NeliError, match="it has those from 10 to 600"):
        read(feed, 0, 0, 600)


@pytest.mark.kafka
def test_no_reader_waits_for_the_offset_of_a_transactions_end(new_topic: NewTopic) -> None:
    address = new_topic(1)
    feed = Topic(address)
    producer, name = producer_for(address, **{"transactional.id": uuid4().hex})
    producer.init_transactions(60)
    producer.begin_transaction()
    for body in (b"1", b"2", b"3"):
        producer.produce(name, body, key="ACME", partition=0)
    producer.commit_transaction(60)
    # The broker marks the end of the transaction a moment after it has accepted it.
    until(lambda: feed.tip(0, 0) == 4, "the tip behind the end of the transaction")
    assert 3 == sum(batch.num_rows for batch in feed.read(0, 0, 4, LAYOUT))


@pytest.mark.kafka
def test_a_message_in_the_wrong_lane_or_without_a_key_and_no_topic_are_errors(kafka: str, new_topic: NewTopic) -> None:
    right = LAYOUT.partition("ACME") % 2
    address = new_topic(2)
    producer, name = producer_for(address)
    for offset, (key, found) in enumerate((("ACME", f"some that belong to partition {right}"), (None, "some without"))):
        producer.produce(name, b"{}", key=key, partition=1 - right)
        assert 0 == producer.flush(60)
        with pytest.raises(NeliError, match=f"the messages of its own lane, but it has {found}"):
            list(Topic(address).read(1 - right, offset, offset + 1, LAYOUT))
    with pytest.raises(NeliError, match="make it, or correct the address"):
        Topic(f"kafka://{kafka}/ticks-{uuid4().hex}").lanes()


def test_the_address_of_a_feed_says_what_it_is_and_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(feed_at(str(tmp_path), LAYOUT), NumberedFiles)
    assert tmp_path / "ticks" == NumberedFiles(Path("ticks")).folder  # For a process in another working folder.
    topic = feed_at("kafka://anna:secret@localhost:9092/ticks", LAYOUT)
    assert (True, False) == (isinstance(topic, TickTopic), "secret" in repr(topic))
    with pytest.raises(ConfigError, match="the topic of the input: a group was wanted"):
        feed_at("kafka://localhost:9092", LAYOUT)
    with pytest.raises(ConfigError, match="must be a path"):
        feed_at("s3://bucket/ticks", LAYOUT)
