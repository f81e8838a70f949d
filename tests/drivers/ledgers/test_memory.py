"""The ledger in memory, beyond the contract: it starts at one, drops immediately, and belongs to one process."""

import pytest

from neli_router.drivers.ledgers.base import Entry
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.open import open_ledger
from neli_router.errors import LedgerUnusable
from tests.support.forking import in_child


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


def test_members_that_name_the_same_memory_share_its_log_and_a_forked_child_has_one_of_its_own() -> None:
    first, second = (open_ledger("memory://test-config-shared", create=True, patience=1.0) for _ in range(2))
    other = open_ledger("memory:test-config-other", create=True, patience=1.0)
    first.append([b"x"])
    assert ([1], 0) == ([entry.offset for entry in second.read(0)], len(other.read(0)))
    assert [] == in_child(lambda: open_ledger("memory://test-config-shared", create=True, patience=1.0).read(0))
