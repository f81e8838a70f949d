"""What several groups are tried on: ledgers that say who is a member, and tables that are given."""

from neli_router.induction.records import Genesis, Join, encode
from neli_router.keyspace import Layout
from neli_router.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.router.groups import Leader
from neli_router.router.router import Router
from neli_router.router.table import Owner

__all__ = ["log_of", "named", "records_of", "static"]

FOREVER = 3600.0


def log_of(*names: str, partitions: int = 4) -> MemoryLog:
    log = MemoryLog()
    MemoryLedger(log).append([encode(record) for record in records_of(*names, partitions=partitions)])
    return log


def records_of(*names: str, partitions: int = 4, zone: str = "") -> list[Genesis | Join]:
    layout = Layout(slots=64, partitions=partitions)
    genesis = Genesis(by="x", layout=layout, lease=FOREVER, guarantee="exclusive", base=1_000, version=1)
    joins = [Join(by=name, name=name, address=f"{name}:1", versions=(1, 1), at=0, zone=zone) for name in names]
    return [genesis, *joins]


def static(*owners: str, layout: Layout | None = None) -> Router:
    """A router of these owners' addresses, one a partition; each is its own name."""
    given = [Owner(name, name, partition, 1) for partition, name in enumerate(owners)]
    return Router.static(given, layout or Layout(slots=64, partitions=len(owners)))


def named(leaders: list[Leader]) -> dict[str, str]:
    return {leader.group: leader.owner.name for leader in leaders}
