"""An idle group's load on its ledger, and how many records a second one core reads and folds.

    members of a group, with nothing to do --Beats--> ledger --an observer counts--> records and bytes a second

An idle group writes only heartbeats, one stream for each member, whatever the number of partitions. In addition, it
writes one snapshot every few thousand records. A snapshot is too rare for a run of seconds, so its share is calculated:
its size, divided by the records between two snapshots. That share grows with partitions, and is listed separately.

    records_per_second@MxP, bytes_per_second@MxP     for M members and P partitions, without snapshots
    snapshot_bytes@P                                 with the most members
    records_growth_by_members                        most members over fewest; in proportion, if each has one stream
    records_growth_by_partitions_max                 most partitions over fewest; 1 if they cost nothing
    bytes_growth_by_partitions_max                   the same for bytes, with the snapshots' share

Then a topic or a file is filled with the records of a busy life (Beats of eight members). A process restricted to one
core reads all of them and folds them like a router.

    fold_per_second         records over that process's processor time, with all threads of its client
    fold_per_second_wall    the same over wall time, in which other processes may have used that core
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from benchmarks import BenchmarkOptions, Figures, option, switch
from benchmarks._peers.ours import patient_read
from benchmarks._places import LEDGERS, options_at, place
from benchmarks.memory import Group
from neli_router.config.config import Config
from neli_router.config.protocols import Induction
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.pump import Pump
from neli_router.drivers.open import open_ledger
from neli_router.member.member import Member
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.induction.records import Snapshot, decode, encode
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.protocols.protocol import News, Stopped
from tests.support.waiting import until

__all__ = ["Options", "fold_all", "run"]

SETTLE_MAX = 240.0
"""Seconds. Sixteen members on one processor take over thousands of partitions from each other, one by one."""
LOOK_EVERY = 0.01
FOLD_MEMBERS = 8
FOLD_PARTITIONS = 256
APPEND_RUN = 500
"""Records in one append when a ledger is filled."""

SKIPPED = b"{}"
"""No reader takes it for a record, but it has an offset."""

FOLDER = "import sys; from benchmarks.cost import fold_all; print(fold_all(sys.argv[1]))"


class Options(BenchmarkOptions):
    ledger: str = option("sqlite", choices=LEDGERS)
    lease: float = option(1.0, "seconds; a member beats six times in one")
    members: tuple[int, ...] = (2, 4, 8, 16)
    partitions: tuple[int, ...] = (16, 256, 4096)
    seconds: float = option(10.0, "for each pair of the two; 0 leaves them out")
    records: int = option(300_000, "to read and fold; 0 leaves that out")
    quick: bool = switch("3 seconds for each pair of extremes, 50,000 records")


def run(options: Options) -> Figures:
    members, partitions = sorted(options.members), sorted(options.partitions)
    seconds, records = options.seconds, options.records
    if options.quick:
        members, partitions = [members[0], members[-1]], [partitions[0], partitions[-1]]
        seconds, records = min(3.0, seconds), min(50_000, records)
    with place(options.ledger) as there:
        idle = _idle(there, members, partitions, options.lease, seconds) if seconds > 0 else {}
        folded = _folded(there, records) if records > 0 else {}
    return {**idle, **folded, "lease": options.lease, "ledger": options.ledger}


def _idle(there: str, members: Sequence[int], partitions: Sequence[int], lease: float, seconds: float) -> Figures:
    figures: Figures = {}
    rates: dict[tuple[int, int], tuple[float, float, float]] = {}
    for width in partitions:
        for count in members:
            rates[count, width] = _rates(there, count, width, lease, seconds)
            figures[f"records_per_second@{count}x{width}"] = rates[count, width][0]
            figures[f"bytes_per_second@{count}x{width}"] = rates[count, width][1]
        figures[f"snapshot_bytes@{width}"] = rates[members[-1], width][2]
    fewest, most, narrow, wide = members[0], members[-1], partitions[0], partitions[-1]
    every = Induction().snapshot_every

    def all_bytes(count: int, width: int) -> float:
        rate, size, image = rates[count, width]
        return size + image * rate / every

    figures["records_growth_by_members"] = rates[most, narrow][0] / rates[fewest, narrow][0]
    figures["members_growth"] = most / fewest
    figures["records_growth_by_partitions_max"] = max(rates[it, wide][0] / rates[it, narrow][0] for it in members)
    figures["bytes_growth_by_partitions_max"] = max(all_bytes(it, wide) / all_bytes(it, narrow) for it in members)
    figures["seconds"] = seconds
    return figures


def _rates(there: str, count: int, width: int, lease: float, seconds: float) -> tuple[float, float, float]:
    """Records a second, bytes a second, and the bytes of a snapshot, for `count` members with `width` partitions."""
    with _address(there) as address, ExitStack() as stack:
        config = Config(
            address, layout=Layout(partitions=width), lease=lease, protocol=Induction(accept_rewinds=bool(there))
        )
        group = [stack.enter_context(Member(config)) for _ in range(count)]
        shares = [(width + rank) // count for rank in range(count)]
        until(lambda: sorted(len(it.led) for it in group) == shares, f"shares of {count} members", patience=SETTLE_MAX)
        time.sleep(lease)  # Let records finish that were under way before the group was idle.
        ledger = stack.enter_context(closing(open_ledger(address, create=False, patience=1.0)))
        first, started = ledger.tip(), host_clock()
        time.sleep(seconds)
        last, took = ledger.tip(), host_clock() - started
        ledger.seek(first)
        entries: list[Entry] = []
        while not entries or entries[-1].offset < last - 1:
            entries += patient_read(ledger, 1.0)
        entries = [entry for entry in entries if entry.offset < last]
        beats = [it.payload for it in entries if not isinstance(decode(it.payload), Snapshot)]
        pump = _pump(ledger)
        while not pump.machine.caught_up:
            pump.turn()
        image = encode(snapshot("reader", pump.machine.state))
    return len(beats) / took, sum(map(len, beats)) / took, float(len(image))


@contextmanager
def _address(there: str) -> Iterator[str]:
    if there:
        yield str(options_at(there, "cost")["ledger"])
        return
    with tempfile.TemporaryDirectory(prefix="neli-cost-") as folder:
        yield f"sqlite://{folder}/ledger.db"


def _folded(there: str, records: int) -> Figures:
    with _address(there) as address:
        payloads = _life(records)
        with closing(open_ledger(address, create=True, patience=60.0)) as ledger:
            if ledger.tip() == 0:  # Records contain offsets, and theirs begin with 1.
                payloads.insert(0, SKIPPED)
            for offset in range(0, len(payloads), APPEND_RUN):
                ledger.append(payloads[offset : offset + APPEND_RUN], lasting=False)
                _await_tip(ledger, offset)  # A driver's queue is bounded.
            _await_tip(ledger, len(payloads))
        made = subprocess.run([sys.executable, "-c", FOLDER, address], capture_output=True, text=True, check=False)
        assert made.returncode == 0, f"a process failed to fold {records} records:\n{made.stderr}"
    folded, processor, wall = json.loads(made.stdout)
    return {
        "fold_per_second": folded / processor,
        "fold_per_second_wall": folded / wall,
        "fold_records": folded,
        "fold_bytes_mean": sum(map(len, payloads)) / len(payloads),
    }


def _await_tip(ledger: Ledger, tip: int) -> None:
    while ledger.tip() < tip:
        ledger.acknowledged()
        time.sleep(LOOK_EVERY)


def _life(records: int) -> list[bytes]:
    """Payloads of a group's life from its genesis, in sequence from offset 1 on; without snapshots."""
    written: list[bytes] = []
    log = MemoryLog()

    class Copied(MemoryLedger):
        def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
            written.extend(payloads)
            super().append(payloads, lasting=lasting)

    group = Group(lambda: Copied(log), members=FOLD_MEMBERS, partitions=FOLD_PARTITIONS)
    group.gather()
    while group.beats < records:
        group._round()  # noqa: SLF001 - its own way to go on takes samples, which are not needed here.
    # A snapshot would let the reader start late, so a record that every reader skips replaces it.
    return [SKIPPED if isinstance(decode(payload), Snapshot) else payload for payload in written]


def _pump(ledger: Ledger) -> Pump[Observer]:
    return Pump(ledger, Observer, clock=host_clock, pause=time.sleep, publish=lambda observer, now: None, tell=_listen)


def _listen(news: News) -> None:
    assert not (isinstance(news, Stopped) and news.error), f"the ledger must not fail, got {news}"


def fold_all(address: str) -> str:
    """Read and fold the whole ledger in a separate process, on one core. Return records, processor and wall time."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with closing(open_ledger(address, create=False, patience=60.0)) as ledger:
        last = ledger.tip()
        pump = _pump(ledger)
        begun, started = time.process_time(), time.perf_counter()
        while pump.machine.state.at < last:
            pump.turn()
        processor, wall = time.process_time() - begun, time.perf_counter() - started
        return json.dumps([pump.machine.state.at, processor, wall])
