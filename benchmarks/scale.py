"""The cost of reading one heartbeat in groups of 10 to 1,000 members, and of being a member of 1,000.

**One Beat.** A shipped machine is a member of a group whose other members only beat (`_crowd.py`), all as often as the
machine itself would if nothing ever changed. The time is the processor's, between the call of `fold_beats` or of
`step(Read(...))` and its return, over the records in it: reading bytes, decoding and writing are not in it. A step gets
as many records in every group, so that its own cost does not hide how the cost of a Beat grows.

    fold_us@N, beat_us@N           in the fold alone, in the whole step; for a group of N members, medians of --rounds
    beat_us_1000_over_10           largest group over smallest, median of the ratios; fold_us_1000_over_10 likewise
    beats_per_lease@N              that one member sends
    members_max                    no group is larger: a size above it is left out

**One member.** A member process and a feeder share an SQLite file. The feeder appends the Beats of all the others every
few milliseconds, as often as one machine beats in a group of that size. Measured after the member has joined, for
`--seconds`.

    member_core_percent            processor time of the member's process, of one core, with all its threads
    member_read_mb_per_second      payloads appended to the file meanwhile, which every member reads: 10**6 bytes
    beats_per_second               appended meanwhile; beats_wanted_per_second is what the group would send
    beat_bytes                     of one Beat

`--quick` has smaller groups, and 3 seconds.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median

from benchmarks import BenchmarkOptions, Figures, option, switch
from benchmarks._crowd import Lone, beat_of, crowd, settings_of
from benchmarks._peers.ours import patient_read
from benchmarks.agent import processor_seconds
from neli_router.core.clock import host_clock
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.pump import oldest_state
from neli_router.drivers.open import open_ledger
from neli_router.hosts.leash import end_with_parent
from neli_router.lab.processes.group import ProcessGroup
from neli_router.lab.referee import LifePhase
from neli_router.protocols.induction.fold import MEMBERS_MAX, State, fold, fold_beats
from neli_router.protocols.induction.records import Beat, Join, decode, encode
from neli_router.protocols.induction.snapshots import snapshot

__all__ = ["Options", "feed", "run"]

RECORDS_PER_STEP = 32
"""A step of a small group has one or two, and its own cost is then most of what is measured."""

WARM_UP_STEPS = 20

FEED_EVERY = 0.005
FEEDER = "import sys; from benchmarks.scale import feed; feed(*sys.argv[1:])"
FILLER = b"{}"
"""No reader takes it for a record, but it has an offset."""

SETTLE = 2.0
"""Leases after the Join."""

START_MAX = 60.0


class Options(BenchmarkOptions):
    members: tuple[int, ...] = (10, 100, 1000, 5000)
    partitions: int = 256
    lease: float = 1.0
    records: int = option(6400, "read by one machine in each round")
    rounds: int = 5
    group: int = option(1000, "members of the group of the real member; 0 leaves that out")
    seconds: float = option(10.0, "for which the real member is measured")
    quick: bool = switch("groups of 10 and 100, 3 seconds")


def run(options: Options) -> Figures:
    wanted, group, seconds = options.members, options.group, options.seconds
    if options.quick:
        wanted, group, seconds = (10, 100), min(100, group), min(3.0, seconds)
    sizes = sorted({size for size in wanted if 2 <= size <= MEMBERS_MAX})
    figures: Figures = {}
    lones = {size: Lone(settings_of(size, options.partitions, options.lease)) for size in sizes}
    rounds = [
        {size: (_fold_us(lone, options.records), _step_us(lone, options.records)) for size, lone in lones.items()}
        for _ in range(max(1, options.rounds))
    ]
    for size, lone in lones.items():
        figures[f"fold_us@{size}"] = median(it[size][0] for it in rounds)
        figures[f"beat_us@{size}"] = median(it[size][1] for it in rounds)
        figures[f"beats_per_lease@{size}"] = options.lease / lone.period
    if len(sizes) > 1:
        few, many = sizes[0], sizes[-1]
        figures[f"fold_us_{many}_over_{few}"] = median(it[many][0] / it[few][0] for it in rounds)
        figures[f"beat_us_{many}_over_{few}"] = median(it[many][1] / it[few][1] for it in rounds)
    figures["members_max"] = MEMBERS_MAX
    if group:
        figures |= _real(min(group, MEMBERS_MAX), options.partitions, options.lease, seconds)
    return {**figures, "partitions": options.partitions, "lease_s": options.lease}


def _fold_us(lone: Lone, records: int) -> float:
    """Microseconds of processor time of the fold of one Beat of the others, as many at a time as a step has."""
    state = lone.machine.state
    entries = list(enumerate(lone.beats(records), start=state.at))
    reads = [entries[place : place + RECORDS_PER_STEP] for place in range(0, records, RECORDS_PER_STEP)]
    started = time.process_time()
    for beats in reads:
        state, _ = fold_beats(state, beats)
    return 1e6 * (time.process_time() - started) / records


def _step_us(lone: Lone, records: int) -> float:
    """Microseconds of processor time of a step, over the records in it."""
    for _ in range(WARM_UP_STEPS):
        lone.step(RECORDS_PER_STEP)
    steps = [lone.step(RECORDS_PER_STEP) for _ in range(max(1, records // RECORDS_PER_STEP))]
    return 1e6 * sum(took for took, _ in steps) / sum(count for _, count in steps)


def _real(members: int, partitions: int, lease: float, seconds: float) -> Figures:
    settings = settings_of(members, partitions, lease)
    period = Lone(settings).period
    with tempfile.TemporaryDirectory(prefix="neli-scale-") as name, ExitStack() as stack:
        folder = Path(name)
        group = stack.enter_context(
            ProcessGroup(folder, partitions=partitions, pause=lease, lease=lease, witness="none")
        )
        ledger = stack.enter_context(closing(open_ledger(group.ledger, create=True, patience=10.0)))
        _write(ledger, crowd(settings))
        member = settings[-1].name
        with _feeder(group.ledger, member, period):
            process = group.start(member)
            group.wait_until(lambda: process.life.phase is LifePhase.MEMBER, "the member was to open the ledger")
            joined_at = _joined_at(ledger)
            time.sleep(max(0.0, joined_at + SETTLE * lease - host_clock()))
            before, first, since = processor_seconds(process.life.pid), ledger.tip(), host_clock()
            time.sleep(seconds)
            used, last, took = processor_seconds(process.life.pid) - before, ledger.tip(), host_clock() - since
        payloads = _between(ledger, first, last)
        beats = [it for it in payloads if isinstance(decode(it), Beat)]
    return {
        "member_core_percent": 100 * used / took,
        "member_read_mb_per_second": sum(map(len, payloads)) / took / 1e6,
        "beats_per_second": len(beats) / took,
        "beats_wanted_per_second": members / period,
        "beat_bytes": median(map(len, beats)),
        "group": members,
        "seconds": seconds,
    }


def _write(ledger: Ledger, state: State) -> None:
    """Make `ledger` one that starts with the snapshot of `state`."""
    ledger.append([FILLER] * (state.at - ledger.tip()))
    ledger.append([encode(snapshot("benchmark", state))])
    while ledger.start() < state.at:
        ledger.trim(state.at)
    ledger.seek(state.at)


def _joined_at(ledger: Ledger) -> float:
    """Wait for the first Join; return when it was read."""
    give_up_at = host_clock() + START_MAX
    while host_clock() < give_up_at:
        for entry in patient_read(ledger, FEED_EVERY):
            if isinstance(decode(entry.payload), Join):
                return host_clock()
    raise TimeoutError(f"the member was to join within {START_MAX:g} s")


def _between(ledger: Ledger, first: int, last: int) -> list[bytes]:
    ledger.seek(first)
    payloads: list[bytes] = []
    while entries := patient_read(ledger, 1.0):
        payloads += [entry.payload for entry in entries if entry.offset < last]
        if entries[-1].offset >= last - 1:
            break
    return payloads


@contextmanager
def _feeder(address: str, member: str, period: float) -> Iterator[None]:
    """A process that beats for all but `member`, for as long as the block lasts."""
    process = subprocess.Popen([sys.executable, "-c", FEEDER, address, member, str(period)])
    try:
        yield
        assert process.poll() is None, "the feeder was to beat until the end"
    finally:
        process.kill()
        process.wait()


def feed(address: str, member: str, period: str) -> None:
    """Beat for all members in the ledger's snapshot but `member`, every `period` seconds each, until killed."""
    end_with_parent()
    every = float(period)
    with closing(open_ledger(address, create=False, patience=10.0)) as ledger:
        state = oldest_state(ledger)
        ledger.seek(state.at)
        others = [seat.incarnation for seat in state.seats.values() if seat.name != member]
        fed, began, sent, like = frozenset(others), host_clock(), 0, None
        while True:
            for entry in ledger.read(0.0):
                record = decode(entry.payload)
                state = fold(state, entry.offset, record)
                if isinstance(record, Beat) and record.by not in fed:
                    like = record
            now = host_clock()
            due = int((now - began) / every * len(others))
            names = (others[number % len(others)] for number in range(sent, due))
            ledger.append([encode(beat_of(like, name, now, state)) for name in names], lasting=False)
            sent = due
            time.sleep(FEED_EVERY)
