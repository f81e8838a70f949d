"""A role from Redis: redis-py's lock, with a TTL that its holder renews.

    acquire: SET role token NX PX ttl, again and again --> acquired --> extend, three a TTL
                                                              '--> no longer ours: start over

When a process dies, its key expires, and the next process that asks gets the lock. Processes do not queue, and the
delay depends on how often they ask: ten times a TTL here. The lock gives no fencing token, and does not notice if Redis
forgets it: after a restart without a log, or a failover, two processes hold it.
"""

import time

from redis import Redis
from redis.exceptions import LockError
from redis.lock import Lock

from benchmarks._peers.contender import Notebook

__all__ = ["contend"]

RENEWALS_PER_TTL = 3
ASKED_PER_TTL = 10


def contend(address: str, setting: float, _name: str, notebook: Notebook) -> None:
    """Contend for the role, with a lock that lasts `setting` seconds."""
    client = Redis(unix_socket_path=address)
    while True:
        lock = Lock(client, "role", timeout=setting, sleep=setting / ASKED_PER_TTL)
        notebook.write("waits")
        lock.acquire()
        notebook.write("holds")
        due = time.monotonic()
        try:
            while True:
                due += setting / RENEWALS_PER_TTL
                time.sleep(max(0.0, due - time.monotonic()))
                lock.extend(setting, replace_ttl=True)
        except LockError:
            notebook.write("lost")
