"""Real processes far from a real ledger: who is taken over at which round trip, and what operators hear above it.

The band between a third and five sixths of a lease is the one where all lead and, by the first rule of suspicion, a
killed member was never expired.
"""

import time
from contextlib import closing
from math import inf
from pathlib import Path

import pytest

from neli_router.induction.records import Expire
from neli_router.ledgers.addresses import open_ledger
from neli_router.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.processes.group import ProcessGroup, led_elsewhere
from neli_router.processes.history import history_of
from neli_router.status.inspection import Inspection
from tests.support.processes.ledger_copy import LedgerCopy
from tests.support.processes.slow_worker import DistantLedger

pytestmark = pytest.mark.process

LEASE = 1.5
PARTITIONS = 8


def group(folder: Path, round_trip: float, *, lease: float = LEASE) -> ProcessGroup:
    """A group whose members' records all take `round_trip` leases to come back."""
    program = ("tests.support.processes.slow_worker", str(round_trip * lease))
    return ProcessGroup(folder, partitions=PARTITIONS, pause=lease / 20, program=program, lease=lease)


def test_after_a_seek_a_distant_ledger_is_not_at_its_tip_before_its_records_have_come() -> None:
    """Or a member that reads its evidence again would miss every record of it, and say that the ledger lost them."""
    log = MemoryLog()
    log.append([b"a", b"b"])
    ledger = DistantLedger(MemoryLedger(log), 0.05)
    for _ in range(2):
        ledger.seek(log.start)
        assert inf == ledger.age()
        began_at = time.monotonic()
        while not (entries := ledger.read(0.001)):
            assert inf == ledger.age()
        assert [b"a", b"b"] == [entry.payload for entry in entries]
        assert 0.05 <= ledger.age() <= time.monotonic() - began_at


def test_a_killed_members_partitions_are_led_again_in_the_band(tmp_path: Path) -> None:
    with group(tmp_path, 0.65) as processes, LedgerCopy(processes.ledger) as copy:
        victim = processes.start("m1")
        for name in ("m2", "m3"):
            processes.start(name)
        processes.settle()
        lost = list(victim.life.held)
        killed_at = victim.kill()
        processes.settle()
        assert killed_at < led_elsewhere(processes.lives, victim.life, lost, killed_at) < float("inf")
        entries = copy.close()
    assert [] == processes.verdict().overlaps
    assert len(history_of(entries).departed_by(Expire)) >= 1


def test_above_the_band_the_members_say_that_they_can_expire_none(tmp_path: Path) -> None:
    with group(tmp_path, 0.95, lease=0.5) as processes:
        members = [processes.start(name) for name in ("m1", "m2")]
        processes.wait_until(
            lambda: all("member.powerless" in member.log for member in members), "both were to say that they cannot"
        )
        with closing(open_ledger(processes.ledger, create=False, patience=10.0)) as ledger:
            processes.wait_until(
                lambda: list(Inspection(ledger).powerless) == ["m1", "m2"], "the ledger was to show it"
            )
