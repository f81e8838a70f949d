"""Anyone who can write to the ledger can write records that no member would write.

A group of members reads such lines. If a member ended, or changed its incarnation, a line stopped or expired it.
"""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from neli_router import testing
from neli_router.drivers.ledgers.memory import MemoryLedger
from neli_router.member.member import Member
from neli_router.protocols.induction.digest import difference
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State
from neli_router.protocols.induction.records import Join, Record, encode
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.testing import Group

LEASE = 5.0
NAMES = ("a", "b", "c")


@pytest.fixture(name="group")
def three() -> Iterator[Group]:
    with testing.group(*NAMES, slots=64, partitions=8, lease=LEASE) as group:
        group.settle()
        yield group


def members(group: Group) -> list[Member]:
    return [group[name] for name in NAMES]


def write(group: Group, *records: Record) -> None:
    """Append `records`, and let every member read them and continue for longer than a lease."""
    MemoryLedger(group.log).append([encode(record) for record in records])
    group.advance(0.0)
    now = group.now
    assert all(member.engine.membership.standing.until <= now + LEASE for member in members(group))
    group.advance(1.2 * LEASE)


def test_joins_of_nobody_stop_nobody_nor_one_that_starts_after_all_of_it(group: Group) -> None:
    """Phantoms lose whatever they are given once nothing was heard from them for a lease."""
    before, at = [member.incarnation for member in members(group)], group["a"].state.at
    write(group, *(Join(by=f"phantom {i}", name=f"nobody {i}", versions=FOLD_VERSIONS, at=at) for i in range(100)))
    assert before == [member.incarnation for member in members(group)]
    late = group.join("late")  # It reads everything before this returns, and would raise any error that stops it.
    group.settle()
    assert [None] * 4 == [member.error for member in (*members(group), late)]


def test_a_newcomer_believes_no_snapshot_that_says_there_is_nobody(group: Group) -> None:
    """With such a table, a member would not wait, own everything by its own fold, and act alongside all others."""
    state = group["a"].state
    nobody_owns = (None,) * len(state.owners)
    empty = replace(state, seats={}, last_beats={}, owners=nobody_owns, targets=nobody_owns)
    write(group, snapshot("nobody", replace(empty, digest=difference(State(), empty))))
    newest = group.join("newest")
    assert group.wait(lambda: newest.incarnation in newest.state.seats, 10 * LEASE)
    assert set(NAMES) <= {seat.name for seat in newest.state.seats.values()}
    assert [None] * len(NAMES) == [member.error for member in members(group)]
    assert not set(newest.led) & {partition for member in members(group) for partition in member.led}
