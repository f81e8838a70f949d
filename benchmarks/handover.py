"""The time of a clean handover, from the signal to the last partition led elsewhere, over an append and its read.

    SIGTERM --> Revoked, handled --> Leave ---------------------------------> read by others --> they lead all of it
    Drain ----> read by its owner --> Revoked, handled --> Handovers, in turns --> read, each --> others lead all of it

Real processes share one ledger, with no work in flight: their handlers return immediately. A handover lasts from just
before the signal, or just before this process appends the Drain, until another process, by its own stamp, holds a lease
for the last of the partitions that the leaver led. In the same run, next to the idle group, a handle of another ledger
of the same kind repeatedly appends a record and reads it back, because a handover consists of such steps.

    sigterm_over_append_median, drain_over_append_median     the median of each over that of an append and its read
    append_to_read_ms_median, append_to_read_ms_p99
    moved_by_others                                          partitions of other members that moved anyway
    handover_records_median                                  records that a drain of one member takes
"""

import time
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from statistics import median, quantiles
from uuid import uuid4

from benchmarks import BenchmarkOptions, Figures, option, switch
from benchmarks._peers.ours import Sizes, await_led_elsewhere, balanced, patient_read
from benchmarks._places import LEDGERS, place
from neli_router.core.clock import host_clock
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger
from neli_router.lab.processes.group import MemberProcess, ProcessGroup
from neli_router.lab.referee import Life
from neli_router.protocols.induction.records import Drain, Undrain, encode

__all__ = ["Options", "run"]

APPENDS_PER_TRIAL = 30
APPEND = b"an append of about the size of a heartbeat, which says who, when, what it has read, and a digest of that" * 2
ASKER = "benchmark"
SPREAD = 0.02
"""The most seconds between two appends, so that they meet every moment of any cycle in a ledger."""

Led = set[tuple[int, int]]
"""Partitions and terms."""


@dataclass(slots=True)
class Found:
    """Seconds, and counts."""

    sigterm: list[float] = field(default_factory=list)
    drain: list[float] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    moved_by_others: int = 0


class Options(BenchmarkOptions):
    ledger: str = option("sqlite", choices=LEDGERS)
    lease: float = 1.0
    trials: int = 20
    members: int = 3
    partitions: int = 256
    seed: int = 1
    quick: bool = switch("5 of each kind")


def run(options: Options) -> Figures:
    trials, found = 5 if options.quick else max(1, options.trials), Found()
    with place(options.ledger) as there:
        sizes, rng = Sizes(options.members, options.partitions, there), Random(options.seed)
        with balanced(options.lease, sizes) as (group, _), closing(_beside(group)) as beside:
            ours = open_ledger(group.ledger, create=False, patience=1.0)
            with closing(ours):
                for _ in range(trials):
                    found.appends += _appends(beside, rng)
                    _sigterm(group, rng, found)
                    _drain(group, ours, rng, found)
            overlaps = len(group.verdict().overlaps)
    append = median(found.appends)
    return {
        "sigterm_over_append_median": median(found.sigterm) / append,
        "sigterm_over_append_max": max(found.sigterm) / append,
        "drain_over_append_median": median(found.drain) / append,
        "drain_over_append_max": max(found.drain) / append,
        "sigterm_ms_median": 1e3 * median(found.sigterm),
        "drain_ms_median": 1e3 * median(found.drain),
        "append_to_read_ms_median": 1e3 * append,
        "append_to_read_ms_p99": 1e3 * quantiles(found.appends, n=100)[-1],
        "handover_records_median": median(found.records),
        "moved_by_others": found.moved_by_others,
        "overlaps": overlaps,
        "trials": trials,
        "members": options.members,
        "partitions": options.partitions,
        "lease": options.lease,
        "ledger": options.ledger,
    }


def _sigterm(group: ProcessGroup, rng: Random, found: Found) -> None:
    leaver, leads, others = _chosen(group, rng)
    at = leaver.ask_to_leave()
    found.sigterm.append(await_led_elsewhere(group, leaver, leads, at) - at)
    assert leaver.exit_code() == 0, f"{leaver.life.label} did not leave in good order:\n{leaver.log}"
    group.read_notes()
    found.moved_by_others += _moved(others)
    group.start(leaver.life.name)
    group.settle()


def _drain(group: ProcessGroup, ledger: Ledger, rng: Random, found: Found) -> None:
    leaver, leads, others = _chosen(group, rng)
    before, at = ledger.tip(), host_clock()
    ledger.append([encode(Drain(by=ASKER, name=leaver.life.name))])
    found.drain.append(await_led_elsewhere(group, leaver, leads, at) - at)
    found.records.append(ledger.tip() - before)
    group.read_notes()
    found.moved_by_others += _moved(others)
    ledger.append([encode(Undrain(by=ASKER, name=leaver.life.name))])
    group.settle()


def _chosen(group: ProcessGroup, rng: Random) -> tuple[MemberProcess, list[int], list[tuple[Life, Led]]]:
    """The leaving process, the partitions that it leads, and each other process with its (partition, term) pairs."""
    time.sleep(SPREAD * rng.random())
    group.read_notes()
    running = group.running
    leaver = running.pop(rng.choice(sorted(running)))
    others = [(process.life, _led(process.life)) for process in running.values()]
    return leaver, list(leaver.life.held), others


def _led(life: Life) -> Led:
    return {(span.partition, span.term) for span in life.held.values()}


def _moved(others: list[tuple[Life, Led]]) -> int:
    """How many partitions the others no longer lead, or lead under another term."""
    return sum(len(led - _led(life)) for life, led in others)


def _beside(group: ProcessGroup) -> Ledger:
    """A ledger of the same kind in the same place, which no group uses."""
    address = f"{group.ledger.removesuffix('.db')}-beside-{uuid4().hex[:8]}"
    return open_ledger(address + (".db" if group.ledger.endswith(".db") else ""), create=True, patience=1.0)


def _appends(ledger: Ledger, rng: Random) -> list[float]:
    """Seconds from each append until the same handle has read the record."""
    took: list[float] = []
    while patient_read(ledger, 0.0):
        pass
    for _ in range(APPENDS_PER_TRIAL):
        time.sleep(SPREAD * rng.random())
        started = time.perf_counter()
        ledger.append([APPEND])
        while not patient_read(ledger, 1.0):
            pass
        took.append(time.perf_counter() - started)
    return took
