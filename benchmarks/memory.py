"""Whether a member's memory and the cost of its steps stay constant over a million heartbeats.

A small group shares one ledger inside this process and lives as fast as it can: the clock is a number that jumps to the
next moment at which a member has something to do. Everything else is shipped code: pumps, machines, and a ledger that
they keep short with snapshots. Every few hundred heartbeats, time and memory are sampled. The second quarter of the
samples is compared with the last. The first is warm-up, in which Python's allocator and caches fill.

    growth             resident memory, mean of the last quarter over mean of the second
    blocks_growth      the same for the blocks that Python has allocated: sees small leaks, on every platform
    step_cost_growth   the same for the median time of a turn, over that of a fixed piece of work timed with it
    records_per_second how many records one core reads, decodes and folds, including all other work of a turn

The members run at their usual beat, so a turn finds one record for each member. A member that has to catch up reads a
thousand at a time: `catch_up_records_per_second`.
"""

import gc
import os
import resource
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import fmean, median

from benchmarks import BenchmarkOptions, Figures, option
from benchmarks._handle import Handle
from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.pump import Pump
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.machine import InductionMachine, Phase
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.induction.records import Beat, decode, encode
from neli_router.protocols.protocol import News, Settings, Stopped

__all__ = ["Group", "Options", "growth", "run"]

BEATS_PER_SAMPLE = 700
"""The ledger grows, and every snapshot cuts it back after 5000 records. A sample length that divides this would observe
the same few points of that wave again and again, and mistake their slow drift for growth."""

QUARTERS = 4

MOMENT = 1e-4
"""The least time that a round of turns takes on the group's clock: about as long as in production."""

YARDSTICK = encode(Beat(by="a member", sent_at=0.0, at=0, digest="0" * 16))
YARDSTICK_STATE = State(last_beats={"a member": 0})
YARDSTICK_RECORDS = 500
"""Takes a tenth of the time of a sample: long enough to be timed, short enough to be repeated each time."""

MEBIBYTE = 2**20


class Samples:
    """The cost of every few hundred heartbeats, and the memory in use after them. Allocates no blocks of its own."""

    def __init__(self) -> None:
        self.turn_us, self.turn_over_yardstick, self.records_per_second = array("d"), array("d"), array("d")
        self.resident, self.blocks = array("q"), array("q")

    def take(self, turn_us: float, records_per_second: float, yardstick_us: float) -> None:
        self.turn_us.append(turn_us)
        self.turn_over_yardstick.append(turn_us / yardstick_us)
        self.records_per_second.append(records_per_second)
        self.resident.append(_resident())
        self.blocks.append(sys.getallocatedblocks())


class Options(BenchmarkOptions):
    beats: int = option(1_000_000, "how many, by all members together (one minute)")
    members: int = 3
    partitions: int = 256
    ledger: str = option("memory", "SQLite takes much longer", choices=("memory", "sqlite"))


def run(options: Options) -> Figures:
    wanted = max(2 * QUARTERS, options.beats // BEATS_PER_SAMPLE)
    with _handles(options.ledger) as handle:
        group = Group(handle, members=options.members, partitions=options.partitions)
        group.gather()
        began_at = group.beats
        samples = Samples()
        for _ in range(wanted):
            group.live(samples)
        beats = group.beats - began_at
        retained = group.retained
        catch_up = _catch_up(handle)
    return {
        "growth": growth(samples.resident),
        "blocks_growth": growth(samples.blocks),
        "step_cost_growth": growth(samples.turn_over_yardstick, median),
        "turn_us_median": median(samples.turn_us),
        "records_per_second": median(samples.records_per_second),
        "catch_up_records_per_second": catch_up,
        "resident_mib": samples.resident[-1] / MEBIBYTE,
        "beats": beats,
        "records_retained": retained,
        "members": options.members,
        "partitions": options.partitions,
        "ledger": options.ledger,
    }


def growth(samples: Sequence[float], typical: Callable[[Sequence[float]], float] = fmean) -> float:
    """The typical sample of the last quarter over that of the second."""
    quarter = len(samples) // QUARTERS
    return typical(samples[-quarter:]) / typical(samples[quarter : 2 * quarter])


class Unhurried(Handle):
    """Never waits for a record: a reader that finds none continues at a later time instead."""

    appended = received = 0

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        super().append(payloads, lasting=lasting)
        self.appended += len(payloads)

    def read(self, timeout: float) -> list[Entry]:
        entries = super().read(0.0)
        self.received += len(entries)
        return entries


class Group:
    """All members, and their clock."""

    def __init__(self, handle: Callable[[], Ledger], *, members: int, partitions: int) -> None:
        self.turns = 0
        self._now = 0.0
        self._ledgers = [Unhurried(handle()) for _ in range(members)]
        settings = [Settings(name=f"member-{i}", layout=Layout(partitions=partitions)) for i in range(members)]
        self._pumps = [self._pump(*pair, Random(i)) for i, pair in enumerate(zip(self._ledgers, settings, strict=True))]

    def _pump(self, ledger: Ledger, settings: Settings, rng: Random) -> Pump[InductionMachine]:
        return Pump(
            ledger,
            lambda state, now: InductionMachine(settings, state, now, wall=0, rng=rng),
            clock=lambda: self._now,
            pause=lambda seconds: None,
            publish=lambda machine, now: _publish(machine),
            tell=_listen,
        )

    @property
    def beats(self) -> int:
        """Records sent so far. All but one in a few thousand are heartbeats."""
        return sum(ledger.appended for ledger in self._ledgers)

    @property
    def received(self) -> int:
        return sum(ledger.received for ledger in self._ledgers)

    @property
    def retained(self) -> int:
        ledger = self._ledgers[0]
        return ledger.tip() - ledger.start()

    def gather(self) -> None:
        """Turn until all have joined."""
        while any(pump.machine.phase is not Phase.MEMBER for pump in self._pumps):
            self._round()

    def live(self, samples: Samples) -> None:
        """Turn until enough heartbeats for a sample have passed, and take it."""
        enough, turns, received = self.beats + BEATS_PER_SAMPLE, self.turns, self.received
        started = time.process_time()  # Processor time, because other programs may use this machine, too.
        while self.beats < enough:
            self._round()
        took = time.process_time() - started
        state = self._pumps[0].machine.state
        assert len(self._pumps) == len(state.seats), "no member had a reason to expire another"
        samples.take(1e6 * took / (self.turns - turns), (self.received - received) / took, _yardstick_us())

    def _round(self) -> None:
        for pump in self._pumps:
            pump.turn()
        self.turns += len(self._pumps)
        self._now = max(self._now + MOMENT, min(pump.machine.deadline for pump in self._pumps))


def _publish(machine: InductionMachine) -> None:
    """The only costly part of a member's work after each step: taking the standing that leases ask for."""
    _ = machine.standing


def _listen(news: News) -> None:
    assert not (isinstance(news, Stopped) and news.error), f"the ledger must not fail, got {news}"


def _catch_up(handle: Callable[[], Ledger]) -> float:
    """Records per second for a reader of everything that is retained."""
    ledger = Unhurried(handle())
    ledger.seek(ledger.start())
    pump = Pump(
        ledger, Observer, clock=float, pause=lambda seconds: None, publish=lambda machine, now: None, tell=_listen
    )
    ledger.received = 0  # The search for a starting snapshot does not count.
    gc.collect()
    started = time.process_time()
    while not pump.machine.caught_up:
        pump.turn()
    return ledger.received / (time.process_time() - started)


def _yardstick_us() -> float:
    """The present time of the same piece of work: on a shared machine, speed varies from minute to minute."""
    started = time.process_time()
    for _ in range(YARDSTICK_RECORDS):
        fold(YARDSTICK_STATE, 1, decode(YARDSTICK))
    return 1e6 * (time.process_time() - started) / YARDSTICK_RECORDS


def _resident() -> int:
    """Bytes of this process in memory; on platforms that only report the peak, the peak."""
    with suppress(FileNotFoundError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts it in bytes, unlike Linux.


@contextmanager
def _handles(kind: str) -> Iterator[Callable[[], Ledger]]:
    """A function that returns one more handle of a fresh ledger."""
    with tempfile.TemporaryDirectory(prefix="neli-memory-") as folder:
        made: list[Ledger] = []
        log = MemoryLog()

        def handle() -> Ledger:
            made.append(MemoryLedger(log) if kind == "memory" else SqliteLedger(Path(folder) / "ledger.db"))
            return made[-1]

        try:
            yield handle
        finally:
            for ledger in made:
                ledger.close()
