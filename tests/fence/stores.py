"""A real Redis that member processes write to through a fence. It keeps all writes in the order in which they landed.

    a worker --admit(partition, term), and a row--> writes          one step, whatever happens to the worker
                  '--Refused----------------------> refusals
    a test   <------------------------------------- Writes

    python -m tests.fence.stores ADDRESS ORDER      a worker that writes (see `neli_router.lab.processes.worker`)

ADDRESS is `unix://...`, a file, so processes reach it from any network namespace. The worker's program is the worst
possible: it never checks its lease again, and goes on under each term that it was given until the fence refuses it.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import redis

from neli_router import fence
from neli_router.core.closing import Closing
from neli_router.fence import redis as redis_fence
from neli_router.lab.processes import worker
from tests.chaos.fenced import Writes, judged

__all__ = ["FencedStore"]


class FencedStore(Closing):
    """The server at `address`, as used by a process called `process`."""

    def __init__(self, address: str, process: str = "test") -> None:
        self.address, self._process = address, process
        self._redis = redis.Redis.from_url(address)
        self._terms: dict[int, int] = {}

    def write(self, terms: Mapping[int, int]) -> None:
        """Write under each term that the process was ever given, until the fence refuses it."""
        self._terms.update(terms)
        for number, term in list(self._terms.items()):
            row = json.dumps((number, term, self._process))
            try:
                redis_fence.admit(self._redis, f"partition {number}", term, ("RPUSH", "writes", row))
            except fence.Refused:
                self._redis.rpush("refusals", json.dumps((self._process, number, term)))
                del self._terms[number]

    def admit(self, term: int) -> None:
        """Raise the fence of partition 0, like a new owner. Raises Refused."""
        redis_fence.admit(self._redis, "partition 0", term)

    def admitted(self) -> int:
        """The highest term of partition 0; 0 if there was none."""
        return redis_fence.admitted(self._redis, "partition 0") or 0

    @property
    def writes(self) -> Writes:
        """All writes that have landed, and all that were refused."""
        names = ("writes", "refusals")
        return judged(*([tuple(json.loads(row)) for row in self._redis.lrange(name, 0, -1)] for name in names))

    def close(self) -> None:
        self._redis.close()


def main(address: str, order: str) -> int:
    """Be the member that `order` describes, and write for every partition that it ever led."""
    told = json.loads(order)
    with FencedStore(address, Path(told["notes"]).stem) as store:
        return worker.main(told, act=store.write)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
