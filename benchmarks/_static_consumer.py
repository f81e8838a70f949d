"""A consumer with static membership as a process, with the notes of a member: a rival in the benchmark `restart`.

    start --> the same `group.instance.id` as before --on_assign--> acts for these partitions --SIGTERM--> close

It counts as acting for a partition from the moment at which librdkafka assigns it, although its first fetch takes a
little longer, and for as long as it polls. All settings but the assignor are librdkafka's own: the session lasts 45 s,
and the broker gives a static member that comes back within it what it had, without a rebalance.

    python -m benchmarks._static_consumer ORDER      ORDER as for `neli_router.lab.processes.worker`
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Consumer, TopicPartition

from neli_router.core.clock import host_clock
from neli_router.hosts.leash import end_with_parent
from neli_router.status import notes
from neli_router.status.notes import Notebook

__all__ = ["main"]

POLL = 0.02

ACTS_FOR = 0.25
"""Seconds for which one poll proves that it lives: more than a poll takes on a busy machine. A kill ends it sooner."""


def main(order: dict[str, Any]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the benchmark, which ends us.
    is_over: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
    end_with_parent()
    note, held, there = Notebook(Path(order["notes"])).write, dict[int, int](), urlsplit(order["config"]["ledger"])
    topic = there.path.strip("/")

    def given(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        held.update(dict.fromkeys((it.partition for it in partitions), int(1e6 * host_clock())))

    def gone(_: Consumer, partitions: list[TopicPartition]) -> None:
        terms = {it.partition: held.pop(it.partition) for it in partitions if it.partition in held}
        note(notes.Done(host_clock(), terms))

    consumer = Consumer(
        {
            "bootstrap.servers": there.netloc,
            "group.id": topic,
            "group.instance.id": order["config"]["name"],
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "latest",
        }
    )
    consumer.subscribe([topic], on_assign=given, on_revoke=gone, on_lost=gone)
    note(notes.Opened(host_clock()))
    while not is_over:
        consumer.poll(POLL)
        if held:
            now = host_clock()
            note(notes.Acts(now, now + ACTS_FOR, dict(held)))
    note(notes.Done(host_clock(), dict(held)))
    held.clear()
    consumer.close()
    note(notes.Left(host_clock()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
