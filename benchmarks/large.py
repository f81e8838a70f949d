"""Large groups: a second process gets half of 65,536 partitions; 300 of 1,000 members expire together.

**A second member joins.** Real processes share one ledger. The first has led all partitions for a lease when the second
is started; neither has any work. Measured from the moment at which this process reads the second's Join, until both
lead half of them, or until `--limit` seconds have passed. Both note when they gained, lost and led what
(`_large_member.py`). A partition is led while one of them holds a lease for it. Each figure's name ends with @M.

    balanced_s               seconds until balanced; None beyond the limit
    fenced                   Fenced events of both, and fenced_partitions: 0 if both were always heard in time
    expired                  incarnations that joined again, because they had been expired
    leaderless_leases_max    the longest time for which one of the partitions had no leader, over the lease
    leaderless_leases_mean   the whole time that a partition had none, mean of all
    records, bytes           appended by both, and longest_record_bytes

**Many expire.** One process holds a group of `--members` members, with 4,096 partitions and a lease of 1 s. Most of
them only beat; three survivors are shipped machines, whose work takes the time that it takes on this processor
(`_mass_expiry.py`). Measured from the last moment at which the `--expiring` beat, until all three have read that every
partition has an owner that lives.

    expiry_taken_over_s      seconds, of which one lease is the least; None if it took longer than `--limit`
    expiry_fenced            Fenced events of the three, until two leases later
    expiry_expired           survivors that were expired, too
    expiry_step_leases_max   the longest step of one of the three, over the lease
    expiry_records           Expire records of the three; expiry_records_last of the one that stands for all the others
    expiry_wanted            members that were to expire

The default takes three minutes at most, and half of that on a machine that is not busy. `--quick` has 4,096 partitions,
and 30 of 100 members that expire.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from benchmarks import BenchmarkOptions, Figures, option, switch
from benchmarks._large_member import Tenant
from benchmarks._mass_expiry import SURVIVORS_MIN, MassExpiry
from benchmarks._peers.ours import patient_read
from benchmarks._places import LEDGERS, options_at, place
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import SLOTS
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger
from neli_router.lab.processes.group import ProcessGroup
from neli_router.protocols.induction.fold import MEMBERS_MAX
from neli_router.protocols.induction.records import Join, decode
from tests.support.waiting import PATIENCE

__all__ = ["Options", "leaderless", "run"]

LOOK_EVERY = 0.02

SMALL = 4096
"""Bytes. A longer record is no Join, and a snapshot of a large group takes long to decode."""

QUICK = ((4096, 0.5),)
QUICK_EXPIRY = (100, 30)

EXPIRY_PARTITIONS, EXPIRY_LEASE = 4096, 1.0


class Options(BenchmarkOptions):
    ledger: str = option("sqlite", choices=LEDGERS)
    partitions: tuple[int, ...] = option((65_536, 16_384), "of the group that a second member joins")
    lease: tuple[float, ...] = option((2.0, 0.5), "seconds, one for each of --partitions")
    limit: float = option(60.0, "seconds that a second member may take to get its half")
    members: int = option(1000, "of the group of which many expire; 0 leaves that out")
    expiring: int = option(300, "of these")
    quick: bool = switch("smaller groups")

    def __post_init__(self) -> None:
        if len(self.partitions) != len(self.lease):
            raise ValueError(f"--lease {list(self.lease)}: one is needed for each of --partitions")
        if self.members and not 0 < self.expiring <= self.members - SURVIVORS_MIN:
            raise ValueError(f"--expiring {self.expiring}: at least {SURVIVORS_MIN} of {self.members} must survive")
        if self.members > MEMBERS_MAX:
            raise ValueError(f"--members {self.members}: a group has at most {MEMBERS_MAX}")


def run(options: Options) -> Figures:
    sizes = QUICK if options.quick else tuple(zip(options.partitions, options.lease, strict=True))
    figures: Figures = {}
    with place(options.ledger) as there:
        for partitions, lease in sizes:
            joined = _joined(there, partitions, lease, options.limit)
            figures |= {f"{figure}@{partitions}": value for figure, value in joined.items()}
    members, expiring = QUICK_EXPIRY if options.quick and options.members else (options.members, options.expiring)
    if members:
        figures |= _expired(members, expiring, options.limit)
    return {**figures, "limit_s": options.limit, "ledger": options.ledger}


@dataclass(slots=True)
class _Followed:
    """The records that this process reads along."""

    ledger: Ledger
    authors: dict[str, None] = field(default_factory=dict)
    """Incarnations that asked to join."""
    joined_at: float = inf
    """When the Join of the second of them was read."""
    records: int = 0
    size: int = 0
    longest: int = 0

    def read(self, timeout: float = 0.0) -> None:
        for entry in patient_read(self.ledger, timeout):
            record = decode(entry.payload) if len(entry.payload) <= SMALL else None
            if isinstance(record, Join):
                self.authors[record.by] = None
                if len(self.authors) == 2:
                    self.joined_at = min(self.joined_at, host_clock())
            if self.joined_at < inf:
                self.records += 1
                self.size += len(entry.payload)
                self.longest = max(self.longest, len(entry.payload))


def _joined(there: str, partitions: int, lease: float, limit: float) -> Figures:
    with tempfile.TemporaryDirectory(prefix="neli-large-") as name, ExitStack() as stack:
        folder = Path(name)
        layout = {"partitions": partitions, "slots": max(SLOTS, partitions)}
        group = stack.enter_context(
            ProcessGroup(
                folder,
                partitions=partitions,
                pause=lease,
                program=("benchmarks._large_member",),
                **{"layout": layout, "lease": lease, "witness": "none", **options_at(there, "large")},
            )
        )
        ledger = stack.enter_context(closing(open_ledger(group.ledger, create=True, patience=10.0)))
        followed = _Followed(ledger)
        tenants = [Tenant(folder / f"{member}.1.notes") for member in ("m1", "m2")]
        first, second = tenants
        group.start("m1")
        _follow(followed, tenants, lambda: first.leads == partitions, PATIENCE)
        assert first.leads == partitions, f"one process was to lead everything:\n{group.processes[0].log}"
        _follow(followed, tenants, lambda: False, lease)
        before = first.fenced, first.fenced_partitions
        group.start("m2")
        _follow(followed, tenants, lambda: followed.joined_at < inf, PATIENCE)
        assert followed.joined_at < inf, f"the second process was to join:\n{group.processes[1].log}"
        half = [partitions // 2, partitions - partitions // 2]
        is_balanced = _follow(followed, tenants, lambda: sorted(it.leads for it in tenants) == half, limit)
        ended_at = max(it.at for it in tenants) if is_balanced else host_clock()
        followed.read()
    gaps = leaderless([span for it in tenants for span in it.spans], partitions, followed.joined_at, ended_at)
    return {
        "balanced_s": ended_at - followed.joined_at if is_balanced else None,
        "fenced": first.fenced + second.fenced - before[0],
        "fenced_partitions": first.fenced_partitions + second.fenced_partitions - before[1],
        "expired": len(followed.authors) - len(tenants),
        "leaderless_leases_max": max(longest for longest, _ in gaps) / lease,
        "leaderless_leases_mean": sum(whole for _, whole in gaps) / partitions / lease,
        "records": followed.records,
        "bytes": followed.size,
        "longest_record_bytes": followed.longest,
        "lease_s": lease,
    }


def _expired(members: int, expiring: int, limit: float) -> Figures:
    group = MassExpiry(members, EXPIRY_PARTITIONS, EXPIRY_LEASE, expiring)
    took = group.expire(limit)
    return {
        "expiry_taken_over_s": took,
        "expiry_fenced": group.fenced,
        "expiry_expired": group.expired,
        "expiry_step_leases_max": group.longest_step / EXPIRY_LEASE,
        "expiry_records": sum(group.accusations),
        "expiry_records_last": group.accusations[-1],
        "expiry_wanted": expiring,
        "expiry_members": members,
        "expiry_partitions": EXPIRY_PARTITIONS,
        "expiry_lease_s": EXPIRY_LEASE,
    }


def _follow(followed: _Followed, tenants: Sequence[Tenant], ready: Callable[[], bool], limit: float) -> bool:
    """Read along until `ready`; returns whether it was within `limit` seconds."""
    give_up_at = host_clock() + limit
    while True:
        for tenant in tenants:
            tenant.read()
        if ready():
            return True
        if host_clock() >= give_up_at:
            return False
        followed.read(LOOK_EVERY)


def leaderless(
    spans: Iterable[tuple[int, float, float]], partitions: int, since: float, until: float
) -> list[tuple[float, float]]:
    """For each partition: the longest time without a leader from `since` to `until`, and all such time together."""
    led = defaultdict[int, list[tuple[float, float]]](list)
    for partition, *span in spans:
        led[partition].append((span[0], span[1]))
    found: list[tuple[float, float]] = []
    for partition in range(partitions):
        gaps, covered = [0.0], since
        for begin, end in [*sorted(led[partition]), (until, until)]:
            gaps.append(max(0.0, min(begin, until) - covered))
            covered = max(covered, end)
        found.append((max(gaps), sum(gaps)))
    return found
