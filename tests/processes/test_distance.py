"""Real processes far from a real ledger: who is killed is taken over.

The band between a third and five sixths of a lease is the one where all lead and, by the first rule of suspicion, a
killed member was never expired.
"""

from pathlib import Path

import pytest

from neli_router.induction.records import Expire
from neli_router.processes.group import ProcessGroup, led_elsewhere
from neli_router.processes.history import history_of
from tests.support.processes.ledger_copy import LedgerCopy

pytestmark = pytest.mark.process

LEASE = 1.5
PARTITIONS = 8


def test_a_killed_members_partitions_are_led_again_in_the_band(tmp_path: Path) -> None:
    program = ("tests.support.processes.slow_worker", str(0.65 * LEASE))
    with (
        ProcessGroup(tmp_path, partitions=PARTITIONS, pause=LEASE / 20, program=program, lease=LEASE) as processes,
        LedgerCopy(processes.ledger) as copy,
    ):
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
