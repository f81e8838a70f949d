"""Members that join in succession get their share once, however close their joins are."""

import pytest

from neli_router.protocols.induction.records import Handover, decode
from tests.lab.sim.groups import LEASE, group

OWNERS, NEWCOMERS, PARTITIONS = 5, 3, 64


@pytest.mark.parametrize("apart", [0.0, 0.1, 0.25])
def test_joins_in_succession_move_no_partition_twice(apart: float) -> None:
    found = group(partitions=PARTITIONS)
    found.heal()
    for number in range(OWNERS):
        found.start(f"m{number}")
    found.world.run(20 * LEASE)
    assert found.converged, found.describe()
    before, known = found.referee.state, len(found.log.payloads)
    for number in range(NEWCOMERS):
        found.start(f"n{number}")
        found.world.run(found.world.now + apart * LEASE)
    found.world.run(found.world.now + 10 * LEASE)
    assert found.converged, found.describe()
    after = found.referee.state
    moved = [i for i in range(PARTITIONS) if before.owners[i] != after.owners[i]]
    records = map(decode, found.log.payloads[known:])
    assert moved == sorted(i for record in records if isinstance(record, Handover) for i in record.terms)
    assert len(moved) > PARTITIONS / 8
