"""Members that join in succession get their share once, however close their joins are."""

import pytest

from neli_router.lab.sim.induction.group import SimulatedGroup
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Handover, decode
from tests.lab.sim.groups import LEASE, group

OWNERS, NEWCOMERS, PARTITIONS = 5, 3, 64


def grown(apart: float, *, answer: float = 0.0) -> tuple[State, SimulatedGroup, int]:
    """A group at rest to which members were added, `apart` leases from each other; the state before, and its place."""
    found = group(partitions=PARTITIONS, answer=answer, drain_timeout=30.0)
    found.heal()
    for number in range(OWNERS):
        found.start(f"m{number}")
    found.world.run(20 * LEASE)
    assert found.converged, found.describe()
    before, known = found.referee.state, len(found.log.payloads)
    for number in range(NEWCOMERS):
        found.start(f"n{number}")
        found.world.run(found.world.now + apart * LEASE)
    found.world.run(found.world.now + (10 + 10 * answer) * LEASE)
    assert found.converged, found.describe()
    return before, found, known


@pytest.mark.parametrize("apart", [0.0, 0.1, 0.25])
def test_joins_in_succession_move_no_partition_twice(apart: float) -> None:
    before, found, known = grown(apart)
    after = found.referee.state
    moved = [i for i in range(PARTITIONS) if before.owners[i] != after.owners[i]]
    records = map(decode, found.log.payloads[known:])
    assert moved == sorted(i for record in records if isinstance(record, Handover) for i in record.terms)
    assert len(moved) > PARTITIONS / 8


@pytest.mark.parametrize("apart", [1.0, 2.0])
def test_no_program_is_asked_for_a_partition_in_vain_if_members_join_while_programs_finish(apart: float) -> None:
    """A partition that was asked for comes back to its owner under a new term if the plan is another one by then."""
    state, found, known = grown(apart, answer=3.0)
    for offset, payload in zip(found.log.offsets[known:], found.log.payloads[known:], strict=True):
        before, record = state, decode(payload)
        state = fold(before, offset, record)
        if isinstance(record, Handover):
            assert [] == [i for i in record.terms if before.owners[i] == state.owners[i]]
