"""The cost of junk in a ledger: a stranger appends lines that are not records, as fast as the ledger accepts them.

members, in real processes     lead, and look at their leases all the time
another process                appends: half of its lines are noise, half are Beats with a field too many

The run ends when each member has read all of it, that is, when a Beat that it sent after the last line has come back.

leases_lost             how often a partition's lease was found lost: 0
least_rest_share        the least remaining time of a lease at its renewal, over the lease; @L at lease L
rss_mib_max             the most memory of one member; rss_mib_calm is that before the junk
overlaps                pairs of processes that might act for one partition together: 0
appended_per_s          lines; the fewest of all leases
behind_s_max            the longest that a member took, after the last line, to read everything

A Beat comes back after everything that was appended before it. On SQLite, it also waits for the lock that the stranger
holds during each append. So a stranger that appends faster than a member reads, or that appends a lease's worth in one
transaction (--batch), costs the member its lease. This happens sooner on a busy machine: check what else runs on it.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

from benchmarks import BenchmarkOptions, Figures, option
from benchmarks._places import LEDGERS, options_at, place
from neli_router.core.clock import host_clock
from neli_router.drivers.open import open_ledger
from neli_router.errors import LedgerUnavailable
from neli_router.lab.processes.group import MemberProcess, ProcessGroup
from neli_router.status.notes import Acts, LeasesLost

__all__ = ["Options", "run"]

LOOKS_PER_LEASE = 100
FLOOD_MAX = 900.0
"""Seconds for all of the junk. A slower ledger is unsuitable for this benchmark."""

KINDS = 1000
"""Different lines of junk, so that a ledger with compression cannot merge them into one."""

UNCONFIRMED_MAX = 20_000
"""Lines in flight: enough to keep any ledger busy, and fewer than its queue holds."""

PAUSE = 0.005


class Options(BenchmarkOptions):
    records: int = option(1_000_000, "lines of junk at each lease")
    bytes: int = option(1024, "of a line")
    batch: int = option(100, "lines in one append, which SQLite takes as a whole")
    lease: tuple[float, ...] = (1.0, 2.0)
    ledger: str = option("sqlite", choices=LEDGERS)
    members: int = 3
    partitions: int = 64


def run(options: Options) -> Figures:
    with place(options.ledger) as there:
        found = {lease: _flooded(lease, there, options) for lease in options.lease}
    every = list(found.values())
    return {
        "leases_lost": sum(one.lost for one in every),
        "least_rest_share": min(one.rest / lease for lease, one in found.items()),
        **{f"least_rest_share@{lease:g}": one.rest / lease for lease, one in found.items()},
        "rss_mib_max": max(one.peak for one in every) / 2**20,
        "rss_mib_calm": max(one.peak_before for one in every) / 2**20,
        "overlaps": sum(one.overlaps for one in every),
        "appended_per_s": min(options.records / one.took for one in every),
        "behind_s_max": max(one.behind for one in every),
        "records": options.records,
        "bytes": options.bytes,
        "batch": options.batch,
        "members": options.members,
    }


@dataclass
class Flooded:
    """The members' notes, from just before the junk."""

    peak_before: int
    lost: int = 0
    rest: float = inf
    peak: int = 0
    overlaps: int = 0
    took: float = 0.0
    behind: float = 0.0
    _until: dict[str, float] = field(default_factory=dict)

    def listen(self, group: ProcessGroup) -> None:
        for process, note in group.read_notes():
            if isinstance(note, LeasesLost):
                self.lost += len(note.terms)
                self._until.pop(process.life.label, None)
            elif isinstance(note, Acts):
                before = self._until.get(process.life.label, inf)
                if note.since < before < note.until:  # At the end itself, the worker looked late: state unknown.
                    self.rest = min(self.rest, before - note.since)
                self._until[process.life.label] = note.until


def _flooded(lease: float, there: str, options: Options) -> Flooded:
    with tempfile.TemporaryDirectory(prefix="neli-junk-") as folder:
        named, pause = options_at(there, "junk"), lease / LOOKS_PER_LEASE
        with ProcessGroup(Path(folder), partitions=options.partitions, pause=pause, lease=lease, **named) as group:
            for number in range(options.members):
                group.start(f"m{number + 1}")
            group.settle()
            found = Flooded(max(map(_peak, group.processes)))
            ended_at = _flood(group, found, options)

            def all_read() -> bool:
                found.listen(group)
                return all(it.life.held and it.life.until > ended_at + lease for it in group.processes)

            group.wait_until(all_read, "the members were to read all of the junk")
            found.behind = host_clock() - ended_at
            found.peak = max(map(_peak, group.processes))
            found.overlaps = len(group.verdict().overlaps)
    return found


def _flood(group: ProcessGroup, found: Flooded, options: Options) -> float:
    """Let the stranger append everything; return when it has."""
    command = [sys.executable, "-m", "benchmarks.junk", group.ledger]
    command += [str(number) for number in (options.records, options.bytes, options.batch)]
    began = host_clock()
    with subprocess.Popen(command) as stranger:
        try:
            while stranger.poll() is None:
                if host_clock() > began + FLOOD_MAX:
                    raise TimeoutError(f"{options.records} lines were not appended within {FLOOD_MAX:g} s")
                found.listen(group)
                time.sleep(PAUSE)
        finally:
            stranger.kill()
    ended_at = host_clock()
    if stranger.returncode != 0:
        raise RuntimeError(f"the stranger ended with {stranger.returncode}")
    found.took = ended_at - began
    return ended_at


def _peak(process: MemberProcess) -> int:
    """The peak memory of the process, in bytes; 0 where /proc does not show it."""
    try:
        lines = Path(f"/proc/{process.life.pid}/status").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _append(address: str, records: int, size: int, batch: int) -> None:
    """Act as the stranger."""
    random = Random(os.getpid())
    almost = b'{"kind":"beat","by":"m1","v":1,"sent_at":1.0,"at":1,"digest":"0123456789abcdef","more":"%s"}'
    junk = [random.randbytes(size) for _ in range(KINDS // 2)]
    junk += [almost % random.randbytes(size).hex()[: size - len(almost) + 2].encode() for _ in range(KINDS // 2)]
    random.shuffle(junk)
    ledger = open_ledger(address, create=True, patience=1.0)
    try:
        sent = confirmed = 0
        while confirmed < records:
            try:
                if sent < records and sent - confirmed < UNCONFIRMED_MAX:
                    ledger.append([junk[(sent + i) % KINDS] for i in range(min(batch, records - sent))])
                    sent += min(batch, records - sent)
                else:
                    time.sleep(PAUSE)
            except LedgerUnavailable:  # A held lock, or a slow server: try again soon.
                time.sleep(PAUSE)
            confirmed += len(ledger.acknowledged())
    finally:
        ledger.close()


if __name__ == "__main__":
    _append(sys.argv[1], *map(int, sys.argv[2:]))
