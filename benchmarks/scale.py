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
few milliseconds, as often as one machine beats in a group of that size, and the snapshots that a group writes. The
process starts with such a snapshot. Measured after it has joined, for `--seconds`; then one of the others falls silent.

    member_core_percent            processor time of the member's process, of one core, with all its threads
    member_read_mb_per_second      payloads appended to the file meanwhile, which every member reads: 10**6 bytes
    beats_per_second               appended meanwhile; beats_wanted_per_second is what the group would send
    beat_bytes                     of one Beat
    start_core_ms                  processor time of the process until its Join, with the start of Python
    takeover_leases                from the silent member's last Beat until the member, the last in rank, has expired it

`--quick` has smaller groups, and 3 seconds.

**Curves.** `--curves` measures only this: the above in groups of several sizes, and larger groups in which MEMBERS_MAX
does not count, where only the machine is measured. It writes the figures, the plots and the tables of docs/scale.md. It
takes five minutes; with `--quick`, one, and then it writes nothing.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median

from msgspec.structs import asdict as layout_of

from benchmarks import BenchmarkOptions, Figure, Figures, option, switch
from benchmarks._crowd import Lone, beat_of, crowd, settings_of
from benchmarks._peers.ours import patient_read
from benchmarks._scale_page import DOCS, Point, publish
from benchmarks.agent import processor_seconds
from neli_router.core.clock import host_clock
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.pump import oldest_state
from neli_router.drivers.open import open_ledger
from neli_router.hosts.leash import end_with_parent
from neli_router.lab.processes.group import ProcessGroup
from neli_router.protocols.induction.fold import MEMBERS_MAX, State, fold, fold_beats
from neli_router.protocols.induction.records import Beat, Expire, Join, Record, Snapshot, decode, encode
from neli_router.protocols.induction.snapshots import interval, restore, snapshot
from tests.support.waiting import PATIENCE

__all__ = ["Options", "feed", "run"]

RECORDS_PER_STEP = 32
"""A step of a small group has one or two, and its own cost is then most of what is measured."""

WARM_UP_STEPS = 20

FEED_EVERY = 0.005

TRIES = 5
"""How often a crowd is measured, if its feeder stands still for a lease each time."""

FEEDER = "import sys; from benchmarks.scale import feed; feed(*sys.argv[1:])"
SNAPSHOT_EVERY = settings_of(1, 1, 1.0)[0].snapshot_every
FILLER = b"{}"
"""No reader takes it for a record, but it has an offset."""

SETTLE = 2.0
"""Leases after the Join."""

MEMBERS, QUICK_MEMBERS = (10, 30, 100, 300, 1000, 3000, 10_000), (10, 30)
PARTITIONS, QUICK_PARTITIONS = (256, 4096, 16_384, 65_536), (256,)
MEMBERS_FIXED, PARTITIONS_FIXED = 100, 4096
"""Each group of the curves has this number of members, or this number of partitions."""

CURVE_SECONDS = 6.0
RECORDS_DECODED, RECORDS_STEPPED = 1024, 3200


class Options(BenchmarkOptions):
    members: tuple[int, ...] = (10, 100, 1000, 5000)
    partitions: int = 256
    lease: float = 1.0
    records: int = option(6400, "read by one machine in each round")
    rounds: int = 5
    group: int = option(1000, "members of the group of the real member; 0 leaves that out")
    seconds: float = option(10.0, "for which the real member is measured")
    curves: bool = switch("only the curves of docs/scale.md, which it writes")
    quick: bool = switch("groups of 10 and 100, 3 seconds")


def run(options: Options) -> Figures:
    if options.curves:
        return _curves(options)
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


def _curves(options: Options) -> Figures:
    members, partitions = (QUICK_MEMBERS, QUICK_PARTITIONS) if options.quick else (MEMBERS, PARTITIONS)
    seconds = min(CURVE_SECONDS, options.seconds)
    sizes = [(size, PARTITIONS_FIXED) for size in members] + [(MEMBERS_FIXED, size) for size in partitions]
    points = [_point(*size, options.lease, seconds) for size in dict.fromkeys(sizes)]
    if not options.quick:
        publish(points, DOCS, lease=options.lease, seconds=seconds, fixed=(MEMBERS_FIXED, PARTITIONS_FIXED))
    return {
        f"{figure}@{point.members},{point.partitions}": value
        for point in points
        for figure, value in asdict(point).items()
        if figure not in {"members", "partitions"}
    }


def _point(members: int, partitions: int, lease: float, seconds: float) -> Point:
    lone = Lone(settings_of(members, partitions, lease))
    per_step = max(1, min(RECORDS_PER_STEP, len(lone.others) // 4))
    records = members / lone.period
    payloads = [encode(beat) for beat in lone.beats(RECORDS_DECODED)]
    decode_us = 1e6 * _processor(lambda: [decode(it) for it in payloads]) / len(payloads)
    image = encode(snapshot("benchmark", lone.machine.state))
    restore = _processor(lambda: restore_payload(image))
    snapshots = records / interval(SNAPSHOT_EVERY, lone.machine.state)
    step_us = _step_us(lone, RECORDS_STEPPED)
    real = _real(members, partitions, lease, seconds) if members <= MEMBERS_MAX else {}
    return Point(
        members=members,
        partitions=partitions,
        records_per_second=records + snapshots,
        bytes_per_second=records * sum(map(len, payloads)) / len(payloads) + snapshots * len(image),
        snapshot_bytes=len(image),
        machine_core_percent=100 * (records * (step_us + decode_us) / 1e6 + snapshots * restore),
        machine_start_ms=1e3 * restore,
        machine_takeover_leases=lone.takeover(per_step) / lease,
        core_percent=_number(real.get("member_core_percent")),
        start_ms=_number(real.get("start_core_ms")),
        takeover_leases=_number(real.get("takeover_leases")),
    )


def _number(figure: Figure) -> float | None:
    return None if figure is None else float(figure)


def _processor(work: Callable[[], object]) -> float:
    """The shortest of three times: processor seconds."""

    def once() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return min(once() for _ in range(3))


def restore_payload(payload: bytes) -> State:
    """The state in the payload of a snapshot."""
    record = decode(payload)
    assert isinstance(record, Snapshot)
    return restore(record)


class Stalled(Exception):
    """The feeder stood still for a lease, and so the member has expired all whom it beats for."""


def _real(members: int, partitions: int, lease: float, seconds: float) -> Figures:
    for _ in range(TRIES):
        with suppress(Stalled):
            return _measured(members, partitions, lease, seconds)
        print(f"scale: the feeder stood still for {lease:g} s: {members} members once more", file=sys.stderr)
    raise TimeoutError(f"a lease of {lease:g} s is too short for {members} members on this busy machine")


def _measured(members: int, partitions: int, lease: float, seconds: float) -> Figures:
    settings = settings_of(members, partitions, lease)
    period, state = Lone(settings).period, crowd(settings)
    with tempfile.TemporaryDirectory(prefix="neli-scale-") as name, ExitStack() as stack:
        folder = Path(name)
        group = stack.enter_context(
            ProcessGroup(
                folder,
                partitions=partitions,
                pause=lease,
                program=("benchmarks._large_member",),
                layout=layout_of(settings[0].layout),
                lease=lease,
                witness="none",
            )
        )
        ledger = stack.enter_context(closing(open_ledger(group.ledger, create=True, patience=10.0)))
        _write(ledger, state)
        member, silent = settings[-1].name, next(iter(state.seats))
        with _feeder(group.ledger, member, period) as feeder:
            _first(ledger, Beat)  # A member that is ready before the feeder expires all whom the feeder beats for.
            process = group.start(member)
            joined_at = _first(ledger, Join)
            starting = processor_seconds(process.life.pid)
            time.sleep(max(0.0, joined_at + SETTLE * lease - host_clock()))
            before, first, since = processor_seconds(process.life.pid), ledger.tip(), host_clock()
            time.sleep(seconds)
            used, last, took = processor_seconds(process.life.pid) - before, ledger.tip(), host_clock() - since
            ledger.seek(max(first, last - 2 * members))  # Its last Beat may be as old as an interval.
            feeder.send_signal(signal.SIGUSR1)
            takeover = _takeover(ledger, silent, feeder)
        payloads = _between(ledger, first, last)
        beats = [it for it in payloads if isinstance(decode(it), Beat)]
    return {
        "member_core_percent": 100 * used / took,
        "member_read_mb_per_second": sum(map(len, payloads)) / took / 1e6,
        "beats_per_second": len(beats) / took,
        "beats_wanted_per_second": members / period,
        "beat_bytes": median(map(len, beats)),
        "start_core_ms": 1e3 * starting,
        "takeover_leases": takeover / lease,
        "group": members,
        "seconds": seconds,
    }


def _takeover(ledger: Ledger, silent: str, feeder: subprocess.Popen[bytes]) -> float:
    """Seconds from the last Beat of `silent` until its Expire is read."""
    sent_at, give_up_at = host_clock(), host_clock() + PATIENCE
    while host_clock() < give_up_at:
        _require_beating(feeder)
        for entry in patient_read(ledger, FEED_EVERY):
            record = decode(entry.payload)
            if isinstance(record, Beat) and record.by == silent:
                sent_at = record.sent_at
            elif isinstance(record, Expire) and silent in record.last_beats:
                return host_clock() - sent_at
    raise TimeoutError(f"the member was to expire another within {PATIENCE:g} s")


def _write(ledger: Ledger, state: State) -> None:
    """Make `ledger` one that starts with the snapshot of `state`."""
    ledger.append([FILLER] * (state.at - ledger.tip()))
    ledger.append([encode(snapshot("benchmark", state))])
    while ledger.start() < state.at:
        ledger.trim(state.at)
    ledger.seek(state.at)


def _first(ledger: Ledger, kind: type[Record]) -> float:
    """Wait for the next record of that kind; return when it was read."""
    give_up_at = host_clock() + PATIENCE
    while host_clock() < give_up_at:
        for entry in patient_read(ledger, FEED_EVERY):
            if isinstance(decode(entry.payload), kind):
                return host_clock()
    raise TimeoutError(f"there was to be a {kind.__name__} within {PATIENCE:g} s")


def _between(ledger: Ledger, first: int, last: int) -> list[bytes]:
    ledger.seek(first)
    payloads: list[bytes] = []
    while entries := patient_read(ledger, 1.0):
        payloads += [entry.payload for entry in entries if entry.offset < last]
        if entries[-1].offset >= last - 1:
            break
    return payloads


def _require_beating(feeder: subprocess.Popen[bytes]) -> None:
    """Raises Stalled if the feeder has ended, and AssertionError if it has failed."""
    if (code := feeder.poll()) is not None:
        assert code == 0, "the feeder has failed"
        raise Stalled


@contextmanager
def _feeder(address: str, member: str, period: float) -> Iterator[subprocess.Popen[bytes]]:
    """A process that beats for all but `member`, for as long as the block lasts; from SIGUSR1 on, not for the first."""
    process = subprocess.Popen([sys.executable, "-c", FEEDER, address, member, str(period)])
    try:
        yield process
        _require_beating(process)
    finally:
        process.kill()
        process.wait()


def feed(address: str, member: str, period: str) -> None:
    """Beat for all members in the ledger's snapshot but `member`, every `period` seconds each, until killed.

    It ends when one is expired that it still beats for.
    """
    end_with_parent()
    every, silent = float(period), list[int]()
    signal.signal(signal.SIGUSR1, lambda *_: silent.append(0))
    with closing(open_ledger(address, create=False, patience=10.0)) as ledger:
        state = oldest_state(ledger)
        ledger.seek(state.at)
        others = [seat.incarnation for seat in state.seats.values() if seat.name != member]
        fed, began, sent, like, marked = frozenset(others), host_clock(), 0, None, state.at
        while True:
            for entry in ledger.read(0.0):
                record = decode(entry.payload)
                state = fold(state, entry.offset, record)
                if isinstance(record, Beat) and record.by not in fed:
                    like = record
                if isinstance(record, Expire) and not {others[place] for place in silent}.issuperset(record.last_beats):
                    return
            now = host_clock()
            due = int((now - began) / every * len(others))
            places = (number % len(others) for number in range(sent, due))
            beats = [encode(beat_of(like, others[place], now, state)) for place in places if place not in silent]
            ledger.append(beats, lasting=False)
            if state.at >= marked + interval(SNAPSHOT_EVERY, state):
                ledger.append([encode(snapshot("benchmark", state))])
                marked = state.at
            sent = due
            time.sleep(FEED_EVERY)
