"""The rivals: each one's name, why it is not available here, and the settings worth trying, from the smallest.

etcd        a lease's TTL        in whole seconds: one is the least
zookeeper   a session's timeout  the server is restarted for each, with matching ticks
redis_lock  a lock's TTL         starts at our lease, to measure both at equal TTL if that works
ours        a group's lease
"""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

from benchmarks._peers import etcd_server as etcd
from benchmarks._peers import zookeeper_server as zookeeper
from benchmarks._peers.contest import Contest
from benchmarks._peers.ours import Ours, Sizes
from tests.support.servers import redis

__all__ = ["Asked", "Rival", "ours", "rivals"]

LEASES = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
TTLS = (1.0, 2.0, 3.0, 5.0, 8.0)


class Asked(Protocol):
    """The interface of our group, and of the rivals' contests."""

    false_expiries: int

    def look(self) -> None:
        """Read the new notes, and count wrong expiries."""

    def takeover(self, rng: random.Random) -> float:
        """Kill a leader; return seconds until another leads."""


@dataclass(frozen=True, slots=True)
class Rival:
    """One way to get a role. `at` starts it, at a setting in seconds, with processes that want the role."""

    name: str
    missing: str
    """Why it is not available here; empty if it is."""
    settings: tuple[float, ...]
    at: Callable[[float], AbstractContextManager[Asked]]


def ours(sizes: Sizes) -> Rival:
    return Rival("ours", "", LEASES, lambda lease: Ours(lease, sizes))


def rivals() -> list[Rival]:
    no_kazoo = "" if find_spec("kazoo") else "kazoo is not installed"
    no_redis = "" if find_spec("redis") else "redis-py is not installed"
    return [
        Rival("etcd", etcd.missing(), TTLS, _etcd),
        Rival("zookeeper", zookeeper.missing() or no_kazoo, LEASES, _zookeeper),
        Rival("redis_lock", redis.missing() or no_redis, LEASES, _redis),
    ]


@contextmanager
def _etcd(ttl: float) -> Iterator[Asked]:
    with etcd.Etcd.started() as server, Contest("etcd", server.address, ttl) as contest:
        yield contest


@contextmanager
def _zookeeper(session: float) -> Iterator[Asked]:
    with (
        zookeeper.ZooKeeper.started(session) as server,
        Contest("zookeeper", server.address, session) as contest,
    ):
        yield contest


@contextmanager
def _redis(ttl: float) -> Iterator[Asked]:
    with redis.Redis.started() as server, Contest("redis_lock", server.socket, ttl) as contest:
        yield contest
