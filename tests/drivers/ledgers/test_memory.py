"""The ledger in memory, beyond the contract: it starts at one, drops immediately, and refuses to be forked."""

import pytest

from neli_router.drivers.ledgers.base import Entry
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.errors import LedgerUnusable


def test_offsets_start_at_one_and_trimming_drops_at_once_and_never_above_the_tip() -> None:
    ledger = MemoryLedger(MemoryLog())
    assert 1 == ledger.start() == ledger.tip()
    ledger.append([b"a", b"b", b"c"])
    ledger.seek(-5)  # This means the first one.
    assert [Entry(1, b"a"), Entry(2, b"b"), Entry(3, b"c")] == ledger.read(0)
    for before, start in ((3, 3), (2, 3), (1000, 4)):  # An older wish changes nothing.
        ledger.trim(before)
        assert start == ledger.start()
    assert 4 == ledger.tip()


def test_a_log_of_another_process_is_refused_instead_of_made_twice() -> None:
    log = MemoryLog()
    log._process += 1  # As after a fork.
    with pytest.raises(LedgerUnusable, match=r"forked from it: make a new MemoryLog in this process"):
        MemoryLedger(log)
