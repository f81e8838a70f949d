"""Real processes far from a real ledger: who is taken over at which round trip, and what operators hear above it.

The band between a third and five sixths of a lease is the one where all lead and, by the first rule of suspicion, a
killed member was never expired.
"""

from contextlib import closing
from pathlib import Path

import pytest

from neli_router.induction.records import Expire
from neli_router.ledgers.addresses import open_ledger
from neli_router.processes.group import ProcessGroup, led_elsewhere
from neli_router.processes.history import history_of
from neli_router.status.inspection import Inspection
from tests.support.processes.ledger_copy import LedgerCopy

pytestmark = pytest.mark.process

LEASE = 1.5
PARTITIONS = 8


def group(folder: Path, round_trip: float, *, lease: float = LEASE) -> ProcessGroup:
    """A group whose members' records all take `round_trip` leases to come back."""
    program = ("tests.support.processes.slow_worker", str(round_trip * lease))
    return ProcessGroup(folder, partitions=PARTITIONS, pause=lease / 20, program=program, lease=lease)


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
