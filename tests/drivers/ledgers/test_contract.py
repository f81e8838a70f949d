"""One suite for every ledger driver: the promises that members rely on.

     DRIVERS ["memory"] ---+
     DRIVERS ["sqlite"] ---+--> a fresh ledger for each test --> open() as many handles as the test wants
     another factory ... --+

To add a driver, add a factory to DRIVERS. The factory declares the driver's promises, and the tests for a promise run
for the drivers that give it. Nothing here assumes that an append is finished when the call returns, that offsets have
no holes, or that they start at any number; drivers that guarantee more have tests of their own for it.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from _pytest.mark.structures import ParameterSet

from neli_router.drivers.ledgers.base import READ_MAX, Entry, Ledger, Promise
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.open import open_ledger
from neli_router.errors import Closed, LedgerTrimmed
from tests.support.asking import entries, settled, write
from tests.support.forking import in_child, raised_by
from tests.support.processes.forked import Program
from tests.support.waiting import PATIENCE, beside


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


def at(address: str, asked: str = "redis") -> Place:
    """The ledger at an address, in the form that programs use. `asked` is the driver whose server may answer late."""
    opener = (
        "from neli_router.drivers.open import open_ledger\n"
        f"from neli_router.drivers.ledgers.{asked} import link\n"
        f"link.ANSWER_MAX = {PATIENCE}\n"
        f"ledger = open_ledger({address!r}, create=True, patience={PATIENCE})\n"
    )
    return Place(lambda: open_ledger(address, create=True, patience=PATIENCE), opener)


def in_sqlite(folder: Path, _server: Server) -> Place:
    # On a busy machine one writer may hold the lock for longer than a member waits before it tries again, or may be
    # faster than the others for that long.
    opener = (
        "from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger\n"
        f"ledger = SqliteLedger({str(folder / 'ledger.db')!r}, busy_max={PATIENCE})\n"
    )
    return replace(at(f"sqlite://{folder / 'ledger.db'}"), opener=opener)


def on(kind: str, address: str) -> Callable[[Path, Server], Place]:
    """On a server of that kind, at an address with the server's own in it."""
    asked = "postgresql" if kind == "postgresql" else "redis"
    return lambda _, server: at(address.format(server(kind)) + f"contract-{uuid4().hex}", asked)


DRIVERS = {
    "kafka": Driver(on("kafka", "kafka://{}/"), frozenset({Promise.DURABLE, Promise.MULTI_HOST})),
    "memory": Driver(in_memory, frozenset({Promise.NEVER_REWINDS})),
    "postgresql": Driver(
        on("postgresql", "{}?group="), frozenset({Promise.DURABLE, Promise.MULTI_HOST, Promise.NEVER_REWINDS})
    ),
    "redis": Driver(on("redis", "{}/"), frozenset({Promise.DURABLE, Promise.MULTI_HOST})),
    "sqlite": Driver(in_sqlite, frozenset({Promise.DURABLE, Promise.NEVER_REWINDS})),
}

SERVERS = {"kafka": pytest.mark.kafka, "postgresql": pytest.mark.postgresql, "redis": pytest.mark.redis}


def parameters(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=SERVERS.get(name, ())) for name in names]


def for_those(driving: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("driver", parameters(driving), indirect=True)


@pytest.fixture(params=parameters(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


@pytest.fixture
def place(driver: Driver, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A fresh ledger of the driver. Each handle that the test opens is closed afterwards."""
    fresh = driver.make(tmp_path, request.getfixturevalue)
    with ExitStack() as stack:
        yield replace(fresh, open=lambda: stack.enter_context(closing(fresh.open())))


def payloads(found: Iterable[Entry]) -> list[bytes]:
    return [entry.payload for entry in found]


def numbered(count: int, name: str = "record") -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


def test_a_new_ledger_is_empty_and_says_what_it_promises_and_where_it_is(driver: Driver, place: Place) -> None:
    ledger, other = place.open(), place.open()
    assert driver.promises == ledger.promises
    assert "" != ledger.address == other.address
    ledger.append([])  # This changes nothing.
    assert [] == ledger.read(0)
    assert ledger.start() == ledger.tip()
    assert [] == ledger.acknowledged()


def test_what_is_appended_is_read_back_in_order_at_the_offsets_that_are_acknowledged(place: Place) -> None:
    ledger = place.open()
    for number, payload in enumerate(numbered(20)):
        ledger.append([payload, b"and more"], lasting=number % 2 == 0)  # Records that need not last keep their order.
    offsets = settled(ledger, 40)
    assert [] == ledger.acknowledged()
    found = entries(ledger, 40)
    assert (numbered(20), offsets) == (payloads(found[::2]), [entry.offset for entry in found])
    opaque = [b"", b"\x00", bytes(range(256)), "Schlüssel".encode(), bytes(2**20)]
    write(ledger, *opaque)
    assert opaque == payloads(entries(ledger, len(opaque)))


def test_two_writers_learn_of_their_own_appends_and_two_readers_see_the_same(place: Place) -> None:
    one, two = place.open(), place.open()
    offsets: list[int] = []
    for ledger, other in ((one, two), (two, one)) * 10:
        offsets += write(ledger, b"a", b"b")
        assert [] == other.acknowledged()
    assert sorted(set(offsets)) == offsets
    assert entries(one, 40) == entries(two, 40)


def test_one_read_returns_no_more_than_it_may(place: Place) -> None:
    writer, reader = place.open(), place.open()
    writer.append(numbered(READ_MAX + 5))
    settled(writer, READ_MAX + 5)
    first = reader.read(1.0)
    assert READ_MAX >= len(first)
    assert numbered(READ_MAX + 5) == payloads(first + entries(reader, READ_MAX + 5 - len(first)))


def test_an_empty_read_means_at_the_tip(place: Place) -> None:
    """So another member, even one that does not wait, has read what was acknowledged before the start of its `age`."""
    writer, reader = place.open(), place.open()
    assert [] == reader.read(0)
    for payload in numbered(20):
        write(writer, payload)
        acknowledged_at = time.monotonic()
        while not (found := reader.read(0)):
            elapsed = time.monotonic() - acknowledged_at
            assert elapsed <= reader.age()
        assert [payload] == payloads(found)
        assert [] == reader.read(0)


def test_a_read_waits_for_what_is_appended_meanwhile(place: Place) -> None:
    writer, reader = place.open(), place.open()
    assert [] == reader.read(0)
    assert [] == reader.read(0.01)  # It gives up when its time is over.
    appending = threading.Timer(0.05, writer.append, ([b"late"],))
    appending.start()
    found = reader.read(PATIENCE)
    appending.join()
    assert [b"late"] == payloads(found)


def test_a_wake_up_ends_one_read_also_one_that_comes_later(place: Place) -> None:
    """Otherwise a pump that must stop just before it reads would wait for its whole timeout, or spin from then on."""
    ledger = place.open()
    started = time.monotonic()
    ledger.wake()
    assert [] == ledger.read(PATIENCE)
    waking = threading.Timer(0.05, ledger.wake)
    waking.start()
    assert [] == ledger.read(PATIENCE)
    waking.join()
    assert time.monotonic() < started + PATIENCE
    reads, started = 0, time.monotonic()
    while time.monotonic() < started + 0.1:
        assert [] == ledger.read(0.1)
        reads += 1
    assert reads <= 3


@for_those(["memory", "sqlite"])
def test_a_signal_handler_may_wake_the_read_that_it_interrupts(place: Place) -> None:
    ledger, is_over = place.open(), threading.Event()

    def signal_it() -> None:
        while not is_over.wait(0.01):  # Again and again: it does not end a wait that begins just after it.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: ledger.wake())
    try:
        with beside(signal_it, end=is_over.set):
            assert [] == ledger.read(float("inf"))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_new_handle_stands_at_the_start_and_a_seek_reads_on_from_there(place: Place) -> None:
    ledger = place.open()
    offsets = write(ledger, *numbered(5))
    late = place.open()
    assert offsets[0] == late.start()
    everything = entries(late, 5)
    assert numbered(5) == payloads(everything)
    for position, offset in enumerate(offsets):
        ledger.seek(offset)
        assert everything[position:] == entries(ledger, 5 - position)
    late.seek(late.tip())
    assert [] == late.read(0)
    write(ledger, b"new")
    assert [b"new"] == payloads(entries(late, 1))


@for_those(["memory", "sqlite"])
def test_a_position_above_the_tip_waits_for_its_record(place: Place) -> None:
    ledger = place.open()
    ledger.seek(3)
    ledger.append([b"a", b"b"])
    assert [] == ledger.read(0)
    ledger.append([b"c"])
    assert [Entry(3, b"c")] == ledger.read(0)


def test_trimming_keeps_what_it_must_and_a_position_below_the_start_is_an_error_and_not_a_gap(place: Place) -> None:
    """A fold that silently skipped records would differ from the fold of all other members."""
    ledger, behind = place.open(), place.open()
    offsets = write(ledger, *numbered(10))
    everything = entries(ledger, 10)
    ledger.trim(offsets[6])
    first = ledger.start()
    assert first <= offsets[6]
    if first > offsets[0]:  # The port allows a driver to drop later, or never.
        behind.seek(offsets[0])  # It may have read ahead before that.
        said = rf"offset {offsets[0]} was wanted, but .* starts at {first}: start again from a snapshot"
        for timeout in (0, 0.01):
            with pytest.raises(LedgerTrimmed, match=said):
                behind.read(timeout)
    behind.seek(first)
    assert everything[offsets.index(first) :] == entries(behind, 10 - offsets.index(first))
    ledger.trim(ledger.tip())
    if ledger.start() == ledger.tip():  # Even if nothing is left.
        behind.seek(offsets[0])
        with pytest.raises(LedgerTrimmed):
            behind.read(0)
        behind.seek(behind.tip())
    assert [] == behind.read(0)


def test_a_reader_at_the_tip_does_not_notice_a_trim_and_one_above_it_spares_what_comes(place: Place) -> None:
    writer, reader = place.open(), place.open()
    write(writer, *numbered(10))
    entries(reader, 10)
    for beyond in (0, 1000):
        writer.trim(writer.tip() + beyond)
        assert [] == reader.read(0)
        write(writer, *numbered(3))
        assert numbered(3) == payloads(entries(reader, 3))


def test_an_offset_is_never_given_twice_and_the_tip_is_not_above_what_comes_next(place: Place) -> None:
    """Terms are offsets: if an offset came back, a zombie could pass a fence."""
    given, other = list[int](), place.open()
    for _ in range(5):
        ledger = place.open()
        tip = ledger.tip()
        given += write(ledger, *numbered(3))
        assert tip <= given[-3]
        assert given[-1] < ledger.tip() == other.tip()
        ledger.trim(ledger.tip())
        assert ledger.tip() > given[-1]
    assert sorted(set(given)) == given


def test_a_closed_handle_says_so_and_no_other_is_closed(place: Place) -> None:
    one, two = place.open(), place.open()
    write(one, b"kept")
    one.close()
    one.close()
    for call in (lambda: one.read(0), lambda: one.append([b"too late"]), one.tip, one.start):
        with pytest.raises(Closed):
            call()
    one.wake()  # As from a thread that has not learned of the close yet: no error.
    assert [b"kept"] == payloads(entries(two, 1))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(place: Place) -> None:
    ledger = place.open()
    write(ledger, b"one")

    def child() -> list[str]:
        calls = (lambda: ledger.read(0), lambda: ledger.append([b"x"]), ledger.tip, ledger.start)
        return [*map(raised_by, calls), raised_by(ledger.wake), raised_by(ledger.close)]

    assert ["LedgerUnusable"] * 4 + ["nothing"] * 2 == in_child(child)
    write(ledger, b"two")
    assert [b"one", b"two"] == payloads(entries(ledger, 2))


def require_each_once_and_in_its_writers_order(found: list[Entry], writers: int, count: int) -> None:
    offsets = [entry.offset for entry in found]
    assert sorted(set(offsets)) == offsets
    for writer in range(writers):
        name = f"writer {writer}:"
        assert numbered(count, name) == [one for one in payloads(found) if one.startswith(name.encode())]


@for_those(["memory"])  # In the tests of the others, processes write.
def test_concurrent_threads_lose_and_double_nothing(place: Place) -> None:
    writers, count = 4, 50
    reader = place.open()

    def work(name: str, ledger: Ledger) -> None:
        for payload in numbered(count, name):
            ledger.append([payload], lasting=False)
        settled(ledger, count)

    with beside(*(partial(work, f"writer {writer}:", place.open()) for writer in range(writers))):
        found = entries(reader, writers * count)
    require_each_once_and_in_its_writers_order(found, writers, count)
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


@for_those(name for name, driver in DRIVERS.items() if Promise.DURABLE in driver.promises)
def test_concurrent_processes_lose_and_double_nothing_and_what_they_wrote_survives_them(
    place: Place, tmp_path: Path
) -> None:
    writers, count = 2, 80
    reader = place.open()
    with ExitStack() as ending:
        processes = [
            ending.enter_context(Program(place.opener + WRITER, f"writer {writer}:", str(count), folder=tmp_path))
            for writer in range(writers)
        ]
        require_each_once_and_in_its_writers_order(entries(reader, writers * count), writers, count)
        for process in processes:
            assert "done\n" == process.stdout.readline()
        reader.close()
        for process in processes:
            process.kill()
    require_each_once_and_in_its_writers_order(entries(place.open(), writers * count), writers, count)
