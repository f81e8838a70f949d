"""One member process whose ledger is far away: every record takes the same time, in both directions.

    append --half a round trip--> the ledger --half a round trip--> read

The ledger is real, and so is the process, which a test may kill. Only the distance is simulated: a record reaches the
driver later than it was appended, and the member later than the driver read it. Records in transit when the process is
killed are lost, as on a real wire.

    python -m benchmarks._distant_worker ROUND_TRIP ORDER      ORDER as of neli_router.lab.processes.worker
"""

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from neli_router.config.config import Config
from neli_router.drivers.ledgers.base import Entry, Ledger, Promise
from neli_router.drivers.open import open_ledger
from neli_router.lab.processes import worker
from neli_router.member import runtime

__all__ = ["DistantLedger"]


class _Answer(NamedTuple):
    """The entries of one read of the near ledger, on their way to the member."""

    arrives_at: float
    entries: list[Entry]
    all_at: float
    """When these were all the entries there were to read; -inf if there were more."""


class DistantLedger:
    """The ledger `near`, seen from `half` a round trip away. Used by one thread at a time, except for `wake`."""

    def __init__(self, near: Ledger, half: float) -> None:
        self._near, self._half = near, half
        self._going: deque[tuple[float, Sequence[bytes], bool]] = deque()
        self._coming: deque[_Answer] = deque()
        self._confirmed: deque[tuple[float, list[int]]] = deque()
        self._all_at = -inf
        """When the member had read all entries there were; -inf if there are more, or some are on their way."""
        self._woken = False

    @property
    def promises(self) -> frozenset[Promise]:
        return self._near.promises

    @property
    def doubts(self) -> tuple[str, ...]:
        return self._near.doubts

    @property
    def address(self) -> str:
        return self._near.address

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._going.append((time.monotonic() + self._half, payloads, lasting))

    def acknowledged(self) -> list[int]:
        offsets: list[int] = []
        while self._confirmed and self._confirmed[0][0] <= time.monotonic():
            offsets += self._confirmed.popleft()[1]
        return offsets

    def read(self, timeout: float) -> list[Entry]:
        give_up_at = time.monotonic() + timeout
        while True:
            self._pass_on()
            now = time.monotonic()
            entries = self._arrived(now)
            if entries or self._woken or now >= give_up_at:
                self._woken = False
                return entries
            going = (at for at, _, _ in self._going)
            coming = (answer.arrives_at for answer in self._coming if answer.entries)
            self._ask(max(0.0, min(give_up_at, next(going, inf), next(coming, inf)) - now))

    def _pass_on(self) -> None:
        while self._going and self._going[0][0] <= time.monotonic():
            _, payloads, lasting = self._going.popleft()
            self._near.append(payloads, lasting=lasting)
            self._confirmed.append((time.monotonic() + self._half, self._near.acknowledged()))
        self._ask(0.0)

    def _ask(self, timeout: float) -> None:
        entries = self._near.read(timeout)
        now = time.monotonic()
        self._coming.append(_Answer(now + self._half, entries, now - self._near.age()))

    def _arrived(self, now: float) -> list[Entry]:
        """The entries of the next answer that has arrived and has any."""
        while self._coming and self._coming[0].arrives_at <= now:
            answer = self._coming.popleft()
            self._all_at = answer.all_at
            if answer.entries:
                return answer.entries
        return []

    def age(self) -> float:
        # By answers that arrived, not by the near ledger's own. After a seek, the near ledger is at the tip before any
        # of its entries arrive, and a member would consider them all lost.
        return time.monotonic() - self._all_at

    def seek(self, offset: int) -> None:
        self._coming.clear()
        self._all_at = -inf
        self._near.seek(offset)

    def start(self) -> int:
        return self._near.start()

    def tip(self) -> int:
        return self._near.tip()

    def trim(self, before: int) -> None:
        self._near.trim(before)

    def wake(self) -> None:
        self._woken = True
        self._near.wake()

    def close(self) -> None:
        self._near.close()


class _Distant(runtime.Runtime):
    def __init__(self, round_trip: float) -> None:
        self._half = round_trip / 2

    def ledger(self, config: Config) -> Ledger:
        return DistantLedger(open_ledger(config.common_ledger, create=True, patience=config.lease), self._half)


if __name__ == "__main__":
    order = json.loads(sys.argv[2])
    raise SystemExit(worker.main(order, runtime=_Distant(float(sys.argv[1]))))
