"""One suite for every ledger driver: the promises that members rely upon.

     DRIVERS ["memory"] ---+
     DRIVERS ["sqlite"] ---+--> a fresh ledger for each test --> open() as many handles as the test wants
     another factory ... --+

A driver joins by adding a factory to DRIVERS. It declares its promises there, and the tests that belong to a promise
run for those who give it. Nothing here assumes that an append is finished when the call returns, that offsets have no
holes, or that they start at any number; drivers that know more say so in tests of their own.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest
from _pytest.mark.structures import ParameterSet

import neli_router
from neli_router.errors import Closed, LedgerTrimmed
from neli_router.ledgers.addresses import open_ledger
from neli_router.ledgers.base import READ_MAX, Entry, Ledger, Promise
from neli_router.ledgers.memory import MemoryLedger, MemoryLog

PATIENCE = 180.0
"""Seconds after which something that must happen has failed to. Never waited for when all is well."""

ROOT = Path(neli_router.__file__).parents[1]


@dataclass(frozen=True)
class Place:
    """One fresh ledger."""

    open: Callable[[], Ledger]
    opener: str = ""
    """Python lines with which another process opens one more handle, `ledger`; none if no other process can."""


Server = Callable[[str], str]
"""The address of a running server, by the name of its fixture."""


@dataclass(frozen=True)
class Driver:
    make: Callable[[Path, Server], Place]
    promises: frozenset[Promise]


def in_memory(_folder: Path, _server: Server) -> Place:
    log = MemoryLog()
    return Place(lambda: MemoryLedger(log))


def at(address: str) -> Place:
    """The ledger at an address, as programs name it."""
    opener = (
        "from neli_router.ledgers.addresses import open_ledger\n"
        f"ledger = open_ledger({address!r}, create=True, patience=1.0)\n"
    )
    return Place(lambda: open_ledger(address, create=True, patience=1.0), opener)


def in_sqlite(folder: Path, _server: Server) -> Place:
    # On a busy machine one writer may hold the lock for longer than a member waits for it before it tries again, or be
    # faster than the others for so long.
    opener = (
        "from neli_router.ledgers.sqlite.ledger import SqliteLedger\n"
        f"ledger = SqliteLedger({str(folder / 'ledger.db')!r}, busy_max={PATIENCE})\n"
    )
    return replace(at(f"sqlite://{folder / 'ledger.db'}"), opener=opener)


def in_kafka(_folder: Path, server: Server) -> Place:
    return at(f"kafka://{server('kafka')}/contract-{uuid4().hex}")


def in_redis(_folder: Path, server: Server) -> Place:
    return at(f"{server('redis')}/contract-{uuid4().hex}")


DRIVERS = {
    "kafka": Driver(in_kafka, frozenset({Promise.DURABLE, Promise.MULTI_HOST})),
    "memory": Driver(in_memory, frozenset({Promise.NEVER_REWINDS})),
    "redis": Driver(in_redis, frozenset({Promise.DURABLE, Promise.MULTI_HOST})),
    "sqlite": Driver(in_sqlite, frozenset({Promise.DURABLE, Promise.NEVER_REWINDS})),
}

SERVERS = {"kafka": pytest.mark.kafka, "redis": pytest.mark.redis}


def parameters(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=SERVERS.get(name, ())) for name in names]


durable = pytest.mark.parametrize(
    "driver",
    parameters(name for name, driver in DRIVERS.items() if Promise.DURABLE in driver.promises),
    indirect=True,
)


@pytest.fixture(params=parameters(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


@pytest.fixture
def place(driver: Driver, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A fresh ledger of the driver; each handle that the test opens is closed after it."""
    fresh = driver.make(tmp_path, request.getfixturevalue)
    handles: list[Ledger] = []

    def open_one() -> Ledger:
        handles.append(fresh.open())
        return handles[-1]

    yield replace(fresh, open=open_one)
    for handle in handles:
        handle.close()


def settle(ledger: Ledger, count: int) -> list[int]:
    """The offsets of the next `count` own appends, once the ledger has acknowledged them."""
    offsets: list[int] = []
    give_up_at = time.monotonic() + PATIENCE
    while len(offsets) < count and time.monotonic() < give_up_at:
        offsets += ledger.acknowledged() or []
        time.sleep(0 if offsets else 0.001)
    assert count == len(offsets)
    return offsets


def take(ledger: Ledger, count: int) -> list[Entry]:
    """The next `count` entries, however many reads that takes."""
    entries: list[Entry] = []
    give_up_at = time.monotonic() + PATIENCE
    while len(entries) < count and time.monotonic() < give_up_at:
        entries += ledger.read(1.0)
    assert count == len(entries)
    return entries


def write(ledger: Ledger, *payloads: bytes) -> list[int]:
    ledger.append(payloads)
    return settle(ledger, len(payloads))


def numbered(count: int, name: str = "record") -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


# Order and offsets


def test_a_driver_gives_the_promises_that_it_declares(driver: Driver, place: Place) -> None:
    assert driver.promises == place.open().promises


def test_a_ledger_says_where_it_is(place: Place) -> None:
    first, second = place.open(), place.open()
    assert "" != first.address
    assert first.address == second.address


def test_a_new_ledger_is_empty(place: Place) -> None:
    ledger = place.open()
    assert [] == ledger.read(0)
    assert ledger.start() == ledger.tip()
    assert [] == ledger.acknowledged()


def test_what_is_appended_is_read_back_in_order(place: Place) -> None:
    ledger = place.open()
    ledger.append(numbered(3))
    ledger.append([b"one more"])
    assert [*numbered(3), b"one more"] == [entry.payload for entry in take(ledger, 4)]


def test_acknowledged_offsets_are_those_that_are_read_back(place: Place) -> None:
    ledger = place.open()
    offsets = write(ledger, *numbered(5))
    assert offsets == [entry.offset for entry in take(ledger, 5)]
    assert [] == ledger.acknowledged()


def test_one_handle_learns_of_its_own_appends_only(place: Place) -> None:
    ledger, other = place.open(), place.open()
    offsets = write(ledger, b"mine")
    assert [] == other.acknowledged()
    assert offsets < write(other, b"yours")
    assert [] == ledger.acknowledged()


def test_two_readers_see_the_same_entries_at_the_same_offsets(place: Place) -> None:
    one, two = place.open(), place.open()
    for number in range(20):
        (one if number % 3 else two).append([f"record {number}".encode()])
        settle(one if number % 3 else two, 1)
    assert take(one, 20) == take(two, 20)


def test_records_that_need_not_last_keep_their_order(place: Place) -> None:
    ledger = place.open()
    for number, payload in enumerate(numbered(20)):
        ledger.append([payload], lasting=number % 2 == 0)
    assert numbered(20) == [entry.payload for entry in take(ledger, 20)]


def test_offsets_only_grow(place: Place) -> None:
    one, two = place.open(), place.open()
    offsets = [offset for ledger in (one, two) * 10 for offset in write(ledger, b"a", b"b")]
    assert sorted(set(offsets)) == offsets


def test_an_append_of_nothing_changes_nothing(place: Place) -> None:
    ledger = place.open()
    before = ledger.tip()
    ledger.append([])
    assert before == ledger.tip()
    assert [] == ledger.read(0)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00", bytes(range(256)), "Schlüssel".encode(), bytes(2**20)],
    ids=["empty", "zero", "every byte", "text", "1 MiB"],
)
def test_payloads_are_opaque(place: Place, payload: bytes) -> None:
    writer, reader = place.open(), place.open()
    write(writer, payload)
    assert [payload] == [entry.payload for entry in take(reader, 1)]


# Reading


def test_one_read_returns_no_more_than_it_may(place: Place) -> None:
    writer, reader = place.open(), place.open()
    writer.append(numbered(READ_MAX + 5))
    settle(writer, READ_MAX + 5)
    first = reader.read(1.0)
    assert READ_MAX >= len(first)
    assert numbered(READ_MAX + 5) == [entry.payload for entry in first + take(reader, READ_MAX + 5 - len(first))]


def test_an_empty_read_means_at_the_tip(place: Place) -> None:
    """So what was acknowledged to one member before its `age` was read by another, even by one that does not wait."""
    writer, reader = place.open(), place.open()
    assert [] == reader.read(0)
    for payload in numbered(20):
        write(writer, payload)
        acknowledged_at = time.monotonic()
        while not (entries := reader.read(0)):
            elapsed = time.monotonic() - acknowledged_at
            assert elapsed <= reader.age()
        assert [payload] == [entry.payload for entry in entries]
        assert [] == reader.read(0)


def test_a_read_waits_for_what_is_appended_meanwhile(place: Place) -> None:
    writer, reader = place.open(), place.open()
    assert [] == reader.read(0)
    appending = threading.Timer(0.05, writer.append, ([b"late"],))
    appending.start()
    entries = reader.read(PATIENCE)
    appending.join()
    assert [b"late"] == [entry.payload for entry in entries]


def test_a_read_gives_up_when_its_time_is_over(place: Place) -> None:
    ledger = place.open()
    started = time.monotonic()
    entries: list[Entry] = []
    while time.monotonic() < started + 0.05:  # It may return early, but never empty-handed for ever.
        entries += ledger.read(0.05)
    assert [] == entries
    assert time.monotonic() < started + PATIENCE


def test_a_waiting_read_returns_when_it_is_woken(place: Place) -> None:
    ledger = place.open()
    returned: list[list[Entry]] = []
    reading = threading.Thread(target=lambda: returned.append(ledger.read(PATIENCE)))
    started = time.monotonic()
    reading.start()
    ledger.wake()
    reading.join()
    assert [[]] == returned
    assert time.monotonic() < started + PATIENCE


def test_a_wake_up_that_comes_before_the_read_counts_for_it(place: Place) -> None:
    """Or a pump that is told to stop just before it reads would wait for its whole timeout."""
    ledger = place.open()
    started = time.monotonic()
    ledger.wake()
    assert [] == ledger.read(PATIENCE)
    assert time.monotonic() < started + PATIENCE


def test_one_wake_up_ends_one_read(place: Place) -> None:
    """Or a pump would spin from its first wake-up on."""
    ledger = place.open()
    ledger.wake()
    reads, started = 0, time.monotonic()
    while time.monotonic() < started + 0.1:
        assert [] == ledger.read(0.1)
        reads += 1
    assert reads <= 3


# Positions


def test_a_new_handle_stands_at_the_start(place: Place) -> None:
    writer = place.open()
    offsets = write(writer, *numbered(3))
    late = place.open()
    assert offsets[0] == late.start()
    assert numbered(3) == [entry.payload for entry in take(late, 3)]


def test_seek_reads_on_from_there(place: Place) -> None:
    ledger = place.open()
    offsets = write(ledger, *numbered(5))
    everything = take(ledger, 5)
    for position, offset in enumerate(offsets):
        ledger.seek(offset)
        assert everything[position:] == take(ledger, 5 - position)


def test_seek_to_the_tip_reads_only_what_comes_then(place: Place) -> None:
    ledger = place.open()
    write(ledger, *numbered(3))
    ledger.seek(ledger.tip())
    assert [] == ledger.read(0)
    write(ledger, b"new")
    assert [b"new"] == [entry.payload for entry in take(ledger, 1)]


def test_the_tip_is_above_what_is_there_and_not_above_what_comes_next(place: Place) -> None:
    ledger, other = place.open(), place.open()
    for payload in numbered(5):
        before = ledger.tip()
        (offset,) = write(ledger, payload)
        assert before <= offset < ledger.tip()
        assert ledger.tip() == other.tip()
    assert ledger.start() <= ledger.tip()


# Trimming


def test_trimming_keeps_what_it_must_keep(place: Place) -> None:
    ledger = place.open()
    offsets = write(ledger, *numbered(10))
    everything = take(ledger, 10)
    ledger.trim(offsets[6])
    assert ledger.start() <= offsets[6]
    late = place.open()
    late.seek(offsets[6])
    assert everything[6:] == take(late, 4)


def test_a_position_below_the_start_is_an_error_and_not_a_gap(place: Place) -> None:
    """A fold that silently skipped records would be another fold than that of all other members."""
    ledger, behind = place.open(), place.open()
    offsets = write(ledger, *numbered(10))
    ledger.trim(offsets[6])
    if ledger.start() > offsets[0]:  # The port allows a driver to drop later, or never.
        behind.seek(offsets[0])  # It may have read ahead before that.
        with pytest.raises(LedgerTrimmed, match=str(ledger.start())):
            behind.read(0)
        with pytest.raises(LedgerTrimmed):
            behind.read(0.01)
    behind.seek(behind.start())
    assert offsets[-1] == take(behind, 10 - offsets.index(behind.start()))[-1].offset


def test_a_position_below_the_start_is_an_error_even_when_nothing_is_left(place: Place) -> None:
    ledger, behind = place.open(), place.open()
    offsets = write(ledger, *numbered(10))
    ledger.trim(ledger.tip())
    if ledger.start() == ledger.tip():
        behind.seek(offsets[0])
        with pytest.raises(LedgerTrimmed):
            behind.read(0)
        behind.seek(behind.tip())
    else:
        take(behind, 10)
    assert [] == behind.read(0)


def test_a_reader_at_the_tip_does_not_notice_a_trim(place: Place) -> None:
    writer, reader = place.open(), place.open()
    write(writer, *numbered(10))
    take(reader, 10)
    writer.trim(writer.tip())
    assert [] == reader.read(0)
    write(writer, b"new")
    assert [b"new"] == [entry.payload for entry in take(reader, 1)]


def test_an_offset_is_never_given_twice(place: Place) -> None:
    """Terms are offsets: one that came back would let a zombie pass a fence."""
    given: list[int] = []
    for _ in range(5):
        ledger = place.open()
        tip = ledger.tip()
        given += write(ledger, *numbered(3))
        assert tip <= given[-3]
        ledger.trim(ledger.tip())
        assert ledger.tip() > given[-1]
    assert sorted(set(given)) == given


def test_trimming_what_is_not_there_yet_spares_what_comes(place: Place) -> None:
    ledger, reader = place.open(), place.open()
    ledger.trim(ledger.tip() + 1000)
    write(ledger, *numbered(3))
    assert numbered(3) == [entry.payload for entry in take(reader, 3)]


# Closing


def test_closing_twice_is_fine_and_closes_one_handle_only(place: Place) -> None:
    one, two = place.open(), place.open()
    write(one, b"kept")
    one.close()
    one.close()
    assert [b"kept"] == [entry.payload for entry in take(two, 1)]


def test_a_closed_handle_says_so(place: Place) -> None:
    ledger = place.open()
    ledger.close()
    with pytest.raises(Closed):
        ledger.read(0)
    with pytest.raises(Closed):
        ledger.append([b"too late"])
    with pytest.raises(Closed):
        ledger.tip()
    with pytest.raises(Closed):
        ledger.start()
    ledger.wake()  # From a thread that has not heard yet: no error.


# Many writers


def require_each_once_and_in_its_writers_order(entries: list[Entry], writers: int, count: int) -> None:
    offsets = [entry.offset for entry in entries]
    assert sorted(set(offsets)) == offsets
    for writer in range(writers):
        name = f"writer {writer}:"
        mine = [entry.payload for entry in entries if entry.payload.startswith(name.encode())]
        assert numbered(count, name) == mine


def test_concurrent_threads_lose_and_double_nothing(place: Place) -> None:
    writers, count = 4, 50
    reader = place.open()

    def work(name: str, ledger: Ledger) -> None:
        for payload in numbered(count, name):
            ledger.append([payload], lasting=False)
        settle(ledger, count)

    threads = [threading.Thread(target=work, args=(f"writer {writer}:", place.open())) for writer in range(writers)]
    for thread in threads:
        thread.start()
    entries = take(reader, writers * count)
    for thread in threads:
        thread.join()
    require_each_once_and_in_its_writers_order(entries, writers, count)
    assert [] == reader.read(0)


WRITER = """
import sys, time
name, count = sys.argv[1], int(sys.argv[2])
acknowledged = 0
for number in range(count):
    ledger.append([f"{name} {number}".encode()], lasting=number % 8 == 0)
    acknowledged += len(ledger.acknowledged())
give_up_at = time.monotonic() + 60
while acknowledged < count and time.monotonic() < give_up_at:  # The process that started this may be gone.
    acknowledged += len(ledger.acknowledged())
    time.sleep(0.001)
print("done" if acknowledged == count else acknowledged, flush=True)
sys.stdin.read()  # To be killed here, with everything acknowledged and nothing closed.
"""


def start_writer(place: Place, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", place.opener + WRITER, name, str(count)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@durable
def test_concurrent_processes_lose_and_double_nothing(place: Place) -> None:
    writers, count = 3, 60
    reader = place.open()
    with ExitStack() as ending:
        names = [f"writer {writer}:" for writer in range(writers)]
        processes = [ending.enter_context(start_writer(place, name, count)) for name in names]
        entries = take(reader, writers * count)
        for process in processes:
            output, _ = process.communicate()
            assert "done\n" == output
    require_each_once_and_in_its_writers_order(entries, writers, count)


@durable
def test_what_was_acknowledged_survives_the_death_of_every_process(place: Place) -> None:
    with start_writer(place, "writer 0:", 20) as process:
        assert process.stdout is not None
        assert "done\n" == process.stdout.readline()
        process.kill()
    require_each_once_and_in_its_writers_order(take(place.open(), 20), 1, 20)
