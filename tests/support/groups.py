"""Ledgers for tests of routers: with members, or with a driver that fails; and routers of given tables."""

import threading
from collections.abc import Callable

import pytest

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.errors import NeliError
from neli_router.protocols.induction.fold import FOLD_VERSIONS
from neli_router.protocols.induction.records import Genesis, Join, Record, encode
from neli_router.router.groups import Leader
from neli_router.router.router import Router
from neli_router.router.table import NoTable, Owner, View
from tests.support.waiting import until

__all__ = ["LAYOUT", "Flaky", "Plights", "flaky", "genesis", "join", "log_of", "named", "refused_by", "static", "write"]

LAYOUT = Layout(slots=64, partitions=4)
FOREVER = 3600.0
"""A lease after which no member is missed."""


def genesis(layout: Layout = LAYOUT, *, lease: float = FOREVER) -> Genesis:
    return Genesis(by="x", layout=layout, lease=lease, guarantee="exclusive", base=1_000, version=FOLD_VERSIONS[1])


def join(name: str, *, zone: str = "") -> Join:
    return Join(by=name, name=name, address=f"{name}:1", versions=FOLD_VERSIONS, at=0, zone=zone)


def write(ledger: Ledger, *records: Record) -> None:
    ledger.append([encode(record) for record in records])


def log_of(*names: str) -> MemoryLog:
    log = MemoryLog()
    write(MemoryLedger(log), genesis(), *map(join, names))
    return log


def static(*owners: str, layout: Layout | None = None) -> Router:
    """A router with these owners' addresses, one for each partition; each address is also the owner's name."""
    given = [Owner(name, name, partition, 1) for partition, name in enumerate(owners)]
    return Router.static(given, layout or Layout(slots=64, partitions=len(owners)))


def refused_by(act: Callable[[], object]) -> NeliError:
    with pytest.raises(NeliError) as caught:
        act()
    return caught.value


def named(leaders: list[Leader]) -> dict[str, str]:
    return {leader.group: leader.owner.name for leader in leaders}


class Flaky(MemoryLedger):
    """A ledger whose driver fails, or hangs, whenever the test wants it to."""

    failure: BaseException | None = None

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.flowing = threading.Event()
        self.flowing.set()
        self.closed = threading.Event()

    def read(self, timeout: float) -> list[Entry]:
        self.flowing.wait()
        return super().read(min(timeout, 0.01))

    def close(self) -> None:
        super().close()
        self.closed.set()

    def _require_open(self) -> None:  # Every call that needs the log begins with this one.
        if self.failure is not None:
            raise self.failure
        super()._require_open()


def flaky(log: MemoryLog, handles: list[Flaky]) -> Flaky:
    """One more handle of `log`, which is added to `handles`."""
    handles.append(Flaky(log))
    return handles[-1]


class Plights:
    """Every problem that a router had, as it happened; "none" while it has a table."""

    def __init__(self, router: Router) -> None:
        self.seen: list[str] = []
        self._taken = 0
        router.feed.show_to(self._show)

    def _show(self, view: View) -> None:
        self.seen.append(view.plight.name.lower() if isinstance(view, NoTable) else "none")

    def next(self) -> str:
        until(lambda: len(self.seen) > self._taken)
        self._taken += 1
        return self.seen[self._taken - 1]

    def await_one(self, plight: str) -> None:
        while self.next() != plight:
            pass
