"""Where a benchmark's ledger may be: in a file, or on a server that is started for it or is there already.

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
    """Why there can be no ledger of this kind here, or nothing."""
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
    """Of members whose ledger is a new one `there`; none for a file, which is in their own folder."""
    # One broker has one replica, and may lose its tail with its power; and any Redis may.
    return {"ledger": f"{there}/{name}-{uuid4().hex}", "accept_rewinds": True} if there else {}
