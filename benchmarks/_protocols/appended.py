"""Records that groups at rest append to the broker: counted by their topics' ends, and read back for the rest.

    ends of all topics --seconds--> ends of all topics --read what lies between--> bytes; commits, by group

The broker keeps the commits of all groups in its own topic, whose keys name the group.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks._protocols.side import Side
from neli_router.core.clock import host_clock
from tests.support.waiting import PATIENCE

__all__ = ["Appended", "appended"]

COMMITS = "__consumer_offsets"

Ends = Mapping[tuple[str, int], int]


class Appended(NamedTuple):
    """In one second: messages to the group's topic, the bytes of their keys and values, and commits of the group."""

    messages: float
    size: float
    commits: float


def appended(brokers: str, sides: Sequence[Side], seconds: float) -> dict[str, Appended]:
    """Each side's appends, by its name. The sides are at rest, and stay so for `seconds`."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    topics = [COMMITS, *(side.topic for side in sides)]
    began, first = host_clock(), _ends(admin, topics)
    time.sleep(seconds)
    took, last = host_clock() - began, _ends(admin, topics)
    sizes, commits = _read(brokers, sides, first, last)
    messages = Counter[str]()
    for (topic, partition), end in last.items():
        messages[topic] += end - first[topic, partition]
    return {
        side.name: Appended(messages[side.topic] / took, sizes[side.topic] / took, commits[side.name] / took)
        for side in sides
    }


def _ends(admin: AdminClient, topics: Sequence[str]) -> Ends:
    known = admin.list_topics(timeout=PATIENCE).topics
    places = [
        TopicPartition(topic, partition) for topic in topics if topic in known for partition in known[topic].partitions
    ]
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call] # It has no types of its own.
    asked = admin.list_offsets(dict.fromkeys(places, latest), request_timeout=PATIENCE)
    return {(place.topic, place.partition): answer.result(PATIENCE).offset for place, answer in asked.items()}


def _read(brokers: str, sides: Sequence[Side], first: Ends, last: Ends) -> tuple[Counter[str], Counter[str]]:
    """The bytes of each topic, and the commits of each side, between these ends."""
    sizes, commits = Counter[str](), Counter[str]()
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "benchmark", "enable.auto.commit": False})
    left = {place for place, end in last.items() if end > first[place]}
    consumer.assign([TopicPartition(*place, first[place]) for place in left])
    while left:
        message = consumer.poll(PATIENCE)
        assert message is not None, f"the broker did not return all appended records: {left}"
        assert message.error() is None, message.error()
        place = (str(message.topic()), int(message.partition() or 0))
        offset, key = int(message.offset() or 0), bytes(message.key() or b"")
        if offset < last[place]:
            sizes[place[0]] += len(key) + len(message.value() or b"")
            if place[0] == COMMITS:
                commits.update(side.name for side in sides if side.consumers and side.consumers.encode() in key)
        if offset + 1 >= last[place]:
            left.discard(place)
    consumer.close()
    return sizes, commits
