"""The table: made from a fold's state, read by row or on the slow path, and compared with the next table."""

import re
from collections.abc import Sequence
from typing import Any, cast

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neli_router.core.keyspace import SLOTS_MAX, Key, Layout
from neli_router.errors import BadKey, ConfigError, NoOwner
from neli_router.protocols.induction.records import Leave, Record, Weigh
from neli_router.router.ledger_reader import table_of
from neli_router.router.router import Router
from neli_router.router.table import ROWS_MAX, Owner, Peer, Table
from neli_router.router.watch import Change, changes
from tests.support.groups import LAYOUT, genesis, join, refused_by
from tests.support.records import folded

LAYOUTS = st.builds(
    lambda slots, share, tags: Layout(slots=slots, partitions=max(1, int(min(slots, 600) * share)), tags=tags),
    st.integers(1, SLOTS_MAX) | st.integers(0, 32).map(lambda power: 2**power),
    st.floats(0, 1) | st.sampled_from([2**-power for power in range(9)]),
    st.booleans(),
)
KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.text("{}ab") | st.binary(), max_size=8)


def test_a_table_names_the_owner_and_term_of_each_partition_and_members_with_the_weights_set_last() -> None:
    state = folded(genesis(), join("a", zone="z"), join("b", zone="z"), Weigh(by="x", name="b", weight=7))
    table = table_of(state, "memory")
    assert tuple(Owner("a", "a:1", i, 1001) for i in range(4)) == table.partitions
    assert (Peer("a", "a:1", 1, "z"), Peer("b", "b:1", 7, "z")) == table.members
    assert (4, LAYOUT, "memory") == (table.offset, table.layout, table.address)
    assert "<Table of memory at 4: 2 members own 4 of 4 partitions>" == repr(table)


@given(LAYOUTS, KEYS)
def test_every_way_to_look_a_key_up_names_the_owner_of_its_partition(layout: Layout, keys: list[Key]) -> None:
    table = table_of(folded(genesis(layout), join("a")), "memory")
    expected = [table.partitions[layout.partition(key)] for key in keys]
    assert expected == [table.owner(key) for key in keys]
    assert expected == table.owners(keys)
    with Router.static(table.partitions, layout) as router:
        assert expected == [router.owner(key) for key in keys] == router.owners(keys)
    assert keys == table.held_by("a", keys)
    if table.rows:
        in_bytes = [key.encode() if isinstance(key, str) else key for key in keys]
        assert expected == [table.rows[mmh3.hash(key) & table.mask] for key in in_bytes]


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (Layout(), 256),
        (Layout(slots=16384, partitions=16384), 16384),
        (Layout(slots=2**32, partitions=8), 8),
        (Layout(slots=16384, partitions=300), 16384),
        (Layout(slots=1, partitions=1), 1),
        (Layout(slots=2 * ROWS_MAX, partitions=300), 0),
        (Layout(slots=16000, partitions=256), 0),
        (Layout(tags=True), 0),
    ],
)
def test_a_row_is_as_short_as_the_layout_allows(layout: Layout, rows: int) -> None:
    assert rows == len(table_of(folded(genesis(layout), join("a")), "memory").rows)


def test_a_table_with_a_hole_has_no_rows_but_the_same_mask() -> None:
    """A look-up in progress may have read one of them from the old table, and the other from the new table."""
    whole = Table.static([Owner("a", "", 0, 1), Owner("b", "", 1, 1)], Layout(slots=4, partitions=2))
    holed = Table.static([Owner("a", "", 0, 1), None], Layout(slots=4, partitions=2))
    assert (2, 0) == (len(whole.rows), len(holed.rows))
    assert whole.mask == holed.mask == 1


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([], "no member ever joined the group"),
        ([join("a"), Leave(by="a")], "the group no longer has a member: all of them left or were expired"),
    ],
)
def test_a_look_up_without_an_owner_says_why(records: Sequence[Record], found: str) -> None:
    table = table_of(folded(genesis(), *records), "sqlite:/x")
    wanted = f"the owner of slot {LAYOUT.slot('secret')} (partition {LAYOUT.partition('secret')} of sqlite:/x)"
    for ask in (lambda: table.owner("secret"), lambda: table.owners(["secret"])):
        refused = refused_by(ask)
        assert NoOwner is type(refused)
        assert (f"{wanted} was wanted", found, "start a member") == (refused.wanted, refused.found, refused.remedy)
    assert [] == table.held_by("a", ["secret"])


@pytest.mark.parametrize("layout", [Layout(), Layout(tags=True)])
def test_what_is_no_key_is_refused_among_many_too(layout: Layout) -> None:
    table = table_of(folded(genesis(layout), join("a")), "memory")
    for bad in (7, None, bytearray(b"ab"), memoryview(b"ab"), "\ud800", ("a",)):
        for keys in (["good", bad], iter(["good", bad])):
            with pytest.raises(BadKey) as caught:
                table.owners(cast("Any", keys))
            assert caught.value.__context__ is None
        with pytest.raises(BadKey):
            table.held_by("a", [cast("Any", bad)])
    # To Python, a text is a collection of texts, and each of its letters would have an owner.
    for one in ("abc", b"abc"):
        with pytest.raises(BadKey, match=r"several keys were wanted, but found one (str|bytes): put it into a list"):
            table.owners(cast("Any", one))


def test_a_table_made_from_the_one_before_is_the_same_as_one_made_anew() -> None:
    state = folded(genesis(Layout(slots=256, partitions=16)))
    table = table_of(state, "memory")
    for record in (join("a"), join("b"), Leave(by="a"), join("c"), Leave(by="b"), Leave(by="c")):
        after = folded(record, state=state)
        following = table_of(after, "memory", was=state, before=table)
        assert table_of(after, "memory").partitions == following.partitions
        pairs = zip(following.partitions, table.partitions, strict=True)
        assert all(new is old for new, old in pairs if new == old)
        state, table = after, following


def test_changes_are_what_differs_between_two_tables() -> None:
    layout = Layout(slots=4, partitions=4)
    a, b, c, again = Owner("a", "", 0, 1), Owner("b", "", 1, 1), Owner("c", "", 2, 1), Owner("c", "", 2, 5)
    before = Table.static([a, b, c, None], layout)
    after = Table.static([Owner("a", "", 0, 1), None, again, None], layout)
    assert [Change(1, b, None, 0), Change(2, c, again, 0)] == changes(before, after)
    assert [Change(0, None, a, 0), Change(2, None, again, 0)] == changes(None, after)
    assert [] == changes(before, before)


def test_a_static_table_is_a_list_or_a_mapping() -> None:
    layout = Layout(slots=8, partitions=2)
    a, b = Owner("a", "h:1", 0, 1), Owner("b", "h:2", 1, 1)
    assert Table.static([a, b], layout).partitions == Table.static({1: b, 0: a}, layout).partitions == (a, b)
    assert (Peer("a", "h:1", 1, ""), Peer("b", "h:2", 1, "")) == Table.static([a, b], layout).members
    with pytest.raises(NoOwner, match="it was given none: give the table an owner for every partition"):
        Table.static({0: a}, layout).owner_of_slot(1)


@pytest.mark.parametrize(
    ("owners", "problem"),
    [
        ([], "0 owners were given for 2 partitions"),
        ([Owner("a", "", 0, 1)] * 3, "3 owners were given for 2 partitions"),
        ([Owner("a", "", 1, 1), None], "the owner of partition 0 says that it owns 1: give an Owner"),
        ({2: Owner("a", "", 2, 1)}, "there is no partition 2: they count from 0 to 1"),
        ({"0": Owner("a", "", 0, 1)}, "there is no partition '0'"),
        (["a", "b"], "the owner of partition 0 is none: give an Owner"),
    ],
)
def test_a_static_table_that_makes_no_sense_is_refused(owners: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        Table.static(owners, Layout(slots=8, partitions=2))
