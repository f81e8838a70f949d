"""The places for a benchmark's ledger: a file, or a server that is started for it or already runs.

sqlite       a file in a folder that the benchmark makes
kafka        a topic of one broker; NELI_TEST_KAFKA=HOST:PORT names one that is there
postgresql   rows of one PostgreSQL, which syncs each append; NELI_TEST_POSTGRESQL=postgresql://HOST:PORT/DATABASE
redis        a stream of one Redis, which syncs each append; NELI_TEST_REDIS=redis://HOST:PORT names one that is there
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from tests.support.servers import kafka, postgresql, redis
from tests.support.servers.kafka import Kafka
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis

__all__ = ["LEDGERS", "missing", "options_at", "place"]

LEDGERS = ("sqlite", "kafka", "postgresql", "redis")

_MISSING = {"kafka": kafka.missing, "postgresql": postgresql.missing, "redis": redis.missing}
"""Each kind that needs a server, and the function that says why there is none."""


def missing(kind: str) -> str:
    """Why this kind of ledger is not available here; empty if it is."""
    return _MISSING[kind]() if kind in _MISSING and not _named(kind) else ""


@contextmanager
def place(kind: str) -> Iterator[str]:
    """The part of an address before the group, such as kafka://HOST:PORT; nothing for a file."""
    there = _named(kind)
    if kind == "sqlite" or there:
        yield f"kafka://{there}" if kind == "kafka" else there
    elif kind == "kafka":
        with Kafka.started() as broker:
            yield f"kafka://{broker.bootstrap}"
    elif kind == "postgresql":
        with Postgresql.started(settings=postgresql.DURABLE) as database:
            yield database.database
    else:
        with Redis.started(settings=redis.DURABLE) as server:
            yield server.url("").rstrip("/")


def _named(kind: str) -> str:
    """The server that the environment names for all benchmarks; empty if there is none."""
    return os.environ.get(f"NELI_TEST_{kind.upper()}", "") if kind in _MISSING else ""


def options_at(there: str, name: str) -> dict[str, Any]:
    """Options of members with a new ledger `there`; none for a file, which is in their own folder."""
    # A single broker has one replica, and may lose its tail in a power failure. So may any Redis.
    group = f"{name}-{uuid4().hex}"
    address = f"{there}?group={group}" if there.startswith("postgresql:") else f"{there}/{group}"
    return {"ledger": address, "accept_rewinds": True} if there else {}
