"""Believed owners: the table that a member among peers builds from what it knows, and why entries are missing."""

from dataclasses import replace

import pytest

from neli_router.core.keyspace import Layout
from neli_router.drivers.peers.outlook import Outlook, PeerCard
from neli_router.errors import NoOwner
from neli_router.member.footing import BelievedOwners
from neli_router.protocols.electors.events import Led
from neli_router.router.table import Owner, Peer, Table
from tests.drivers.peers.test_outlook import START

LAYOUT = Layout(slots=4, partitions=2)
WELL = replace(
    START,
    leaders=(Led(1, 7, "2 of 3 support it"), Led(2, 8, "2 of 3 support it")),
    cards={0: PeerCard("m0"), 1: PeerCard("m1", "10.0.0.1:9000", drained=True)},
)


def believed() -> BelievedOwners:
    return BelievedOwners("peers://a:1,b:1,c:1/jobs", LAYOUT)


def shown(owners: BelievedOwners, outlook: Outlook) -> Table:
    table = owners.reading(outlook).table
    assert table is not None
    return table


def test_an_owner_is_called_as_it_says_itself_or_as_in_the_list_in_one_table_until_an_owner_changes() -> None:
    reading = believed().reading(WELL)
    assert reading.table is not None
    assert (Owner("m1", "10.0.0.1:9000", 0, 7), Owner("c:1", "", 1, 8)) == reading.table.partitions
    assert (Peer("m0", "", 1, ""), Peer("m1", "10.0.0.1:9000", 0, ""), Peer("c:1", "", 1, "")) == reading.table.members
    assert WELL.at == reading.read_at
    assert 2 == len(reading.table.rows)  # All leaders are known, so look-ups take the fast path.
    owners = believed()
    first = shown(owners, WELL)
    later = replace(WELL, at=101.0, leaders=(Led(1, 7, "it says so"), WELL.leaders[1]))
    assert first is shown(owners, later)
    assert first is not shown(owners, replace(later, leaders=(Led(0, 9, "it won"), WELL.leaders[1])))
    assert first is not shown(owners, replace(WELL, cards={}))


def test_a_partition_without_a_leader_says_why_and_anew_when_the_reason_changes() -> None:
    owners = believed()
    unled = replace(WELL, leaders=(Led(None, 7, "its leader was missed"), WELL.leaders[1]))
    for expected, outlook in (
        ("an election is under way: its leader was missed", unled),
        ("1 of 3 peers answer, this one included, and it takes 2", replace(unled, silent=frozenset({1, 2}))),
        ("it takes no part in the election for some", replace(WELL, leaders=(None, WELL.leaders[1]))),
    ):
        with pytest.raises(NoOwner, match=expected) as raised:
            shown(owners, outlook).owner_of_role(0)
        assert "`neli peers`" in raised.value.remedy
