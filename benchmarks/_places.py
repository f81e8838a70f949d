"""The places for a benchmark's ledger: a file, or a server that is started for it or already runs.

sqlite    a file in a folder that the benchmark makes
kafka     a topic of one broker; NELI_TEST_KAFKA=HOST:PORT names one that is there
redis     a stream of one Redis, which syncs each append; NELI_TEST_REDIS=redis://HOST:PORT names one that is there
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from tests.support.servers import kafka, redis
from tests.support.servers.kafka import Kafka
from tests.support.servers.redis import DURABLE, Redis

__all__ = ["LEDGERS", "missing", "options_at", "place"]

LEDGERS = ("sqlite", "kafka", "redis")


def missing(kind: str) -> str:
    """Why this kind of ledger is not available here; empty if it is."""
    if kind == "kafka" and not os.environ.get("NELI_TEST_KAFKA"):
        return kafka.missing()
    return redis.missing() if kind == "redis" and not os.environ.get("NELI_TEST_REDIS") else ""


@contextmanager
def place(kind: str) -> Iterator[str]:
    """The part of an address before the group, such as kafka://HOST:PORT; nothing for a file."""
    if kind == "sqlite":
        yield ""
    elif kind == "kafka":
        if there := os.environ.get("NELI_TEST_KAFKA"):
            yield f"kafka://{there}"
        else:
            with Kafka.started() as broker:
                yield f"kafka://{broker.bootstrap}"
    elif there := os.environ.get("NELI_TEST_REDIS"):
        yield there
    else:
        with Redis.started(settings=DURABLE) as server:
            yield server.url("").rstrip("/")


def options_at(there: str, name: str) -> dict[str, Any]:
    """Options of members with a new ledger `there`; none for a file, which is in their own folder."""
    # A single broker has one replica, and may lose its tail in a power failure. So may any Redis.
    return {"ledger": f"{there}/{name}-{uuid4().hex}", "accept_rewinds": True} if there else {}
