"""The ledger in memory, beyond the contract: it starts at one, drops at once, and refuses to be forked."""

import os
import signal
import threading

import pytest

from neli_router.errors import LedgerUnusable
from neli_router.ledgers.base import Entry, Promise
from neli_router.ledgers.memory import MemoryLedger, MemoryLog


def test_offsets_start_at_one_and_grow_by_one() -> None:
    ledger = MemoryLedger(MemoryLog())
    assert 1 == ledger.start() == ledger.tip()
    ledger.append([b"a", b"b"])
    ledger.append([b"c"])
    assert [1, 2, 3] == ledger.acknowledged()
    assert [Entry(1, b"a"), Entry(2, b"b"), Entry(3, b"c")] == ledger.read(0)


def test_two_logs_are_two_ledgers() -> None:
    one, two = MemoryLedger(MemoryLog()), MemoryLedger(MemoryLog())
    one.append([b"a"])
    assert [] == two.read(0)


def test_it_promises_only_what_a_process_can_keep() -> None:
    promises = MemoryLedger(MemoryLog()).promises
    assert Promise.DURABLE not in promises
    assert Promise.MULTI_HOST not in promises


def test_trimming_drops_at_once_and_never_above_the_tip() -> None:
    ledger = MemoryLedger(MemoryLog())
    ledger.append([b"a", b"b", b"c"])
    ledger.trim(3)
    assert 3 == ledger.start()
    ledger.trim(2)  # An older wish changes nothing.
    assert 3 == ledger.start()
    ledger.trim(1000)
    assert 4 == ledger.start() == ledger.tip()


def test_a_position_above_the_tip_waits_for_its_record() -> None:
    ledger = MemoryLedger(MemoryLog())
    ledger.seek(3)
    ledger.append([b"a", b"b"])
    assert [] == ledger.read(0)
    ledger.append([b"c"])
    assert [Entry(3, b"c")] == ledger.read(0)


def test_a_position_below_the_first_offset_is_the_first_offset() -> None:
    ledger = MemoryLedger(MemoryLog())
    ledger.append([b"a"])
    ledger.seek(-5)
    assert [Entry(1, b"a")] == ledger.read(0)


def test_a_read_may_wait_for_ever() -> None:
    ledger = MemoryLedger(MemoryLog())
    appending = threading.Timer(0.01, ledger.append, ([b"a"],))
    appending.start()
    assert [Entry(1, b"a")] == ledger.read(float("inf"))
    appending.join()


def test_a_signal_handler_may_wake_the_read_that_it_interrupts() -> None:
    ledger = MemoryLedger(MemoryLog())
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, lambda *_: ledger.wake())
    try:
        signalling = threading.Timer(0.01, signal.pthread_kill, (main, signal.SIGUSR1))
        signalling.start()
        assert [] == ledger.read(float("inf"))
        signalling.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_forked_child_is_refused_instead_of_given_a_log_of_its_own() -> None:
    log = MemoryLog()
    ledger = MemoryLedger(log)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: ledger.read(0), lambda: ledger.append([b"a"]), lambda: MemoryLedger(log)):
            try:
                call()
            except LedgerUnusable:
                refused += 1
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert 3 == os.waitstatus_to_exitcode(status)
    ledger.append([b"the parent goes on"])
    assert [Entry(1, b"the parent goes on")] == ledger.read(0)


def test_the_refusal_of_a_fork_says_what_to_do() -> None:
    log = MemoryLog()
    log._process += 1  # As if another process had made it.
    with pytest.raises(LedgerUnusable, match=r"forked from it: make a new MemoryLog in this process"):
        MemoryLedger(log)
