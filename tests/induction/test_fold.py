"""What each record means, one rule a test; then the laws that hold whatever is written, by drawn stories.

`aab.` are owners or targets of partitions 0 to 3, `a@1003` is an owner under a term; see scenes.py.
"""

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from neli_router.induction.digest import difference
from neli_router.induction.fold import DEPARTED_MAX, MEMBERS_MAX, WISHES_MAX, State, fold
from neli_router.induction.records import (
    Certify,
    Drain,
    Handover,
    Leave,
    Load,
    Pin,
    Record,
    Snapshot,
    Undrain,
    Unpin,
    Upgrade,
    Weigh,
    decode,
    encode,
)
from neli_router.induction.snapshots import restore, snapshot
from neli_router.keyspace import Layout
from tests.support.records import (
    BASE,
    LAYOUT,
    Plot,
    beat,
    expire,
    folded,
    founded,
    genesis,
    join,
    owners,
    plots,
    story,
    table,
    targets,
)

LAW = settings(deadline=None, max_examples=60)  # A law holds at whatever speed this machine has to spare.

PAIR = (join("a"), join("b"), Handover(by="a", partition=1, term=1001), Handover(by="a", partition=3, term=1001))
"""Two members with two partitions each; the next record stands at offset 5."""


def unchanged_by(state: State, record: Record | None) -> bool:
    """Whether `record` takes its offset and does nothing else."""
    return folded(record, state=state) == replace(state, at=state.at + 1)


# Genesis


def test_the_genesis_sets_what_never_changes_while_the_ledger_lives() -> None:
    state = folded(None, genesis(layout=Layout(slots=8, partitions=3)))
    assert genesis(layout=Layout(slots=8, partitions=3)) == state.genesis
    assert (1, 1) == (state.genesis_at, state.version)


def test_a_group_without_members_has_partitions_without_an_owner() -> None:
    assert "-@0 -@0 -@0 -@0" == table(founded())
    assert "...." == targets(founded())


def test_what_stands_before_the_genesis_is_void() -> None:
    before = (
        join("a"),
        beat("a"),
        Drain(by="a", name="a"),
        Pin(by="a", partition=0, name="a"),
        Upgrade(by="a", version=1),
    )
    state = folded(*before, genesis())
    assert replace(folded(genesis()), at=6, genesis_at=5) == replace(state, digest=folded(genesis()).digest)
    assert difference(State(), state) == state.digest


def test_the_first_genesis_counts_and_a_second_is_void() -> None:
    assert unchanged_by(founded(join("a")), genesis("b", layout=Layout(slots=99, partitions=9), lease=1.0))


# Beat


def test_a_beat_of_a_member_is_its_last() -> None:
    state = founded(join("a"), join("b"), beat("a"))
    assert {"a": 3, "b": 2} == state.last_beats


def test_a_beat_changes_neither_members_nor_table() -> None:
    before = founded(*PAIR)
    after = folded(beat("b"), state=before)
    assert replace(before, at=6, last_beats=after.last_beats, digest=after.digest) == after
    assert after.owners is before.owners


def test_the_beat_of_a_stranger_is_void() -> None:
    assert unchanged_by(founded(join("a")), beat("b"))


def test_a_beat_in_flight_when_its_writer_departed_brings_no_member_back() -> None:
    assert unchanged_by(founded(join("a"), join("b"), expire("a", "b", 2)), beat("b"))


def test_a_beat_before_the_genesis_is_void() -> None:
    assert State(at=1) == folded(beat("a"))


# Join


def test_the_first_member_owns_everything_from_its_join_on() -> None:
    assert "a@1001 a@1001 a@1001 a@1001" == table(founded(join("a")))


def test_a_term_is_the_base_and_the_offset_at_which_the_ownership_began() -> None:
    state = fold(founded(), 77, join("a"))
    assert (BASE + 77,) * 4 == state.terms
    assert 78 == state.at


def test_a_seat_is_what_the_join_said() -> None:
    record = join("a", "alice", weight=3, address="host:1", versions=(1, 2))
    seat = founded(record).seats["a"]
    assert ("a", "alice", 3, "host:1", (1, 2), 1) == (
        seat.incarnation,
        seat.name,
        seat.weight,
        seat.address,
        seat.versions,
        seat.joined,
    )


def test_a_join_takes_nothing_from_a_live_owner_and_gives_a_new_target() -> None:
    state = founded(join("a"), join("b"))
    assert "aaaa" == owners(state)
    assert (2, 2) == (targets(state).count("a"), targets(state).count("b"))


def test_a_second_join_of_one_incarnation_is_void() -> None:
    assert unchanged_by(founded(join("a"), join("b")), join("a", "other", at=3))


def test_a_join_under_a_members_name_expires_the_older_in_the_same_record() -> None:
    state = founded(join("a", "x"), join("c", "x", at=2))
    assert ["c"] == list(state.seats)
    assert ("a",) == state.departed


def test_a_member_that_joins_again_under_its_name_keeps_its_partitions_with_new_terms() -> None:
    assert "a@1001 b@1003 a@1001 b@1004" == table(founded(*PAIR))
    state = founded(*PAIR, join("c", "a", at=5))
    assert "c@1005 b@1003 c@1005 b@1004" == table(state)
    assert owners(state) == targets(state)


def test_a_member_that_joins_again_keeps_what_its_older_self_was_to_keep() -> None:
    """The older a had all and was to give every other to b. Now b's part has no owner, so b gets it at once."""
    state = founded(join("a"), join("b"))
    assert ("aaaa", "abab") == (owners(state), targets(state))
    assert "cbcb" == owners(folded(join("c", "a", at=3), state=state))


def test_a_member_that_joins_again_is_handed_nothing_that_another_still_owns() -> None:
    """The older b was to get two of a's four; the newer gets the same target, and still waits for a's Handovers."""
    state = founded(join("a"), join("b"), join("c", "b", at=3))
    assert "a@1001 a@1001 a@1001 a@1001" == table(state)
    assert 2 == targets(state).count("c")


def test_what_the_newer_self_is_not_to_have_goes_to_its_target_at_once() -> None:
    """c takes a's seat with a quarter of its weight: no live member owns the rest, so none needs to hand it over."""
    state = founded(join("a", weight=3), join("b", weight=3), join("c", "a", at=3, weight=1))
    assert owners(state) == targets(state)
    assert {BASE + 3} == set(state.terms)
    assert (1, 3) == (owners(state).count("c"), owners(state).count("b"))


@pytest.mark.parametrize(("at", "seated"), [(0, "a"), (1, "a"), (2, "c"), (3, "a"), (9, "a")])
def test_a_join_counts_only_if_its_writer_had_read_the_join_that_it_replaces(at: int, seated: str) -> None:
    """And none beyond its own place: the writer had read records that this ledger lost."""
    assert [seated] == list(founded(join("a", "x"), join("c", "x", at=at)).seats)


@pytest.mark.parametrize(("versions", "joins"), [((1, 1), True), ((1, 9), True), ((2, 9), False), ((0, 0), False)])
def test_a_member_that_does_not_know_the_groups_fold_cannot_join(versions: tuple[int, int], joins: bool) -> None:
    assert joins == ("a" in founded(join("a", versions=versions)).seats)


@pytest.mark.parametrize(
    "end",
    [Leave(by="b"), expire("a", "b", 2), join("c", "b", at=3)],
    ids=["left", "was expired", "was replaced"],
)
def test_an_incarnation_that_departed_never_comes_back(end: Record) -> None:
    assert unchanged_by(founded(join("a"), join("b"), end), join("b", "a new name", at=4))


def test_the_departed_are_remembered_up_to_a_bound() -> None:
    state = founded(join("a"))
    for number in range(DEPARTED_MAX + 1):
        state = folded(join(f"x{number}", "x", at=state.at), state=state)  # Each replaces the one before.
    assert DEPARTED_MAX == len(state.departed)
    state = folded(Leave(by="a"), state=state)
    assert (DEPARTED_MAX, "x1", "a") == (len(state.departed), state.departed[0], state.departed[-1])


# Expire


def test_an_accusation_with_the_present_last_beat_ends_a_membership() -> None:
    state = founded(join("a"), join("b"), beat("b"), expire("a", "b", 3))
    assert ["a"] == list(state.seats)
    assert {"a": 1} == state.last_beats
    assert ("b",) == state.departed


def test_a_join_is_a_first_beat() -> None:
    assert ["a"] == list(founded(join("a"), join("b"), expire("a", "b", 2)).seats)


@pytest.mark.parametrize("last_beat", [0, 2, 4, 5, 99])
def test_a_stale_suspicion_is_void(last_beat: int) -> None:
    assert unchanged_by(founded(join("a"), join("b"), beat("b")), expire("a", "b", last_beat))


def test_the_accusation_of_a_stranger_is_void() -> None:
    assert unchanged_by(founded(join("a"), join("b")), expire("c", "b", 2))


def test_an_accusation_by_who_departed_is_void() -> None:
    assert unchanged_by(founded(join("a"), join("b"), join("c"), Leave(by="c")), expire("c", "b", 2))


def test_a_stranger_cannot_be_expired() -> None:
    assert unchanged_by(founded(join("a")), expire("a", "b", 0))


def test_an_accusation_comes_second_and_is_void() -> None:
    assert unchanged_by(founded(join("a"), join("b"), join("c"), expire("a", "b", 2)), expire("c", "b", 2))


def test_the_partitions_of_the_expired_go_to_their_new_owners_in_that_very_record() -> None:
    assert "a@1001 a@1005 a@1001 a@1005" == table(founded(*PAIR, expire("a", "b", 2)))


def test_when_the_last_member_is_gone_there_is_no_owner_and_the_next_gets_new_terms() -> None:
    state = founded(join("a"), expire("a", "a", 1))
    assert "-@1001 -@1001 -@1001 -@1001" == table(state)
    assert "...." == targets(state)
    assert "b@1003 b@1003 b@1003 b@1003" == table(folded(join("b"), state=state))


# Leave


def test_a_member_that_leaves_gives_its_partitions_away_in_that_very_record() -> None:
    state = founded(*PAIR, Leave(by="a"))
    assert "b@1005 b@1003 b@1005 b@1004" == table(state)
    assert (["b"], ("a",)) == (list(state.seats), state.departed)


def test_a_stranger_cannot_leave() -> None:
    assert unchanged_by(founded(*PAIR), Leave(by="c"))


def test_this_version_of_the_fold_grants_no_grace() -> None:
    assert founded(*PAIR, Leave(by="a")) == founded(*PAIR, Leave(by="a", grace=60.0))


# Certify


def certify(incarnation: str, by: str = "witness of x") -> Certify:
    return Certify(by=by, incarnation=incarnation)


@pytest.mark.parametrize("by", ["b", "witness of alice", "a"], ids=["a member", "a stranger", "itself"])
def test_a_certificate_is_a_leave_on_behalf_of_the_dead(by: str) -> None:
    assert founded(*PAIR, Leave(by="a")) == founded(*PAIR, certify("a", by))


@pytest.mark.parametrize(
    "before",
    [
        [join("a"), Leave(by="a")],
        [join("a"), join("b"), expire("b", "a", 1)],
        [join("a", "x"), join("b", "x", at=2)],
        [join("a"), certify("a")],
        [certify("a")],
    ],
    ids=["it left", "it was expired", "it was replaced", "it was certified", "it was certified before it joined"],
)
def test_a_certificate_of_one_that_departed_changes_nothing(before: list[Record]) -> None:
    assert unchanged_by(founded(*before), certify("a"))


def test_a_join_that_comes_after_its_writers_certificate_is_void() -> None:
    """The two have different writers, so a Join may be overtaken."""
    state = founded(join("b"), certify("a"))
    assert (("a",), "bbbb") == (state.departed, owners(state))
    assert unchanged_by(state, join("a", at=3))
    assert unchanged_by(state, join("a", "b", at=3))  # Nor does it end the member of its name.


def test_a_certificate_is_of_one_incarnation_and_not_of_another_of_its_life() -> None:
    state = founded(join("one0000", "x"), join("one0001", "x", at=2))
    assert unchanged_by(state, certify("one0000"))
    assert {} == founded(join("one0000", "x"), join("one0001", "x", at=2), certify("one0001")).seats


def test_certificates_of_strangers_are_remembered_up_to_the_same_bound() -> None:
    state = founded(join("a"), *(certify(f"x{number}") for number in range(DEPARTED_MAX + 1)))
    assert (DEPARTED_MAX, "x1") == (len(state.departed), state.departed[0])
    assert ["a"] == list(state.seats)


def test_a_certificate_before_the_genesis_is_void() -> None:
    assert unchanged_by(State(), certify("a"))


# Handover


def test_a_live_owner_keeps_a_partition_until_its_own_handover() -> None:
    state = founded(join("a"), join("b"), beat("b"), beat("a"))
    assert "aaaa" == owners(state)
    assert "aaab" == owners(folded(Handover(by="a", partition=3, term=1001), state=state))


def test_the_target_owns_from_the_handover_on_and_the_others_are_untouched() -> None:
    state = founded(join("a"), join("b"), Handover(by="a", partition=3, term=1001))
    assert "a@1001 a@1001 a@1001 b@1003" == table(state)


def test_the_target_at_that_very_record_owns_it_and_not_the_one_when_it_was_sent() -> None:
    """a means to give to b; before its Handover is appended, b leaves and c comes."""
    state = founded(join("a"), join("b"), Leave(by="b"), join("c"))
    partition = targets(state).index("c")
    assert "c" == owners(folded(Handover(by="a", partition=partition, term=1001), state=state))[partition]


def test_a_handover_that_crossed_a_change_of_target_gives_the_old_owner_a_new_term() -> None:
    state = founded(join("a"), join("b"), Leave(by="b"), Handover(by="a", partition=3, term=1001))
    assert "a@1001 a@1001 a@1001 a@1004" == table(state)


@pytest.mark.parametrize(
    "record",
    [
        Handover(by="b", partition=3, term=1001),
        Handover(by="c", partition=3, term=1001),
        Handover(by="a", partition=3, term=1000),
        Handover(by="a", partition=3, term=1002),
        Handover(by="a", partition=4, term=1001),
    ],
    ids=["by its target", "by a stranger", "of an older term", "of a term to come", "of no partition"],
)
def test_a_handover_is_void(record: Record) -> None:
    assert unchanged_by(founded(join("a"), join("b")), record)


def test_a_handover_that_comes_twice_gives_once() -> None:
    once = founded(join("a"), join("b"), Handover(by="a", partition=3, term=1001))
    assert unchanged_by(once, Handover(by="a", partition=3, term=1001))


def test_a_handover_by_who_departed_is_void() -> None:
    assert unchanged_by(founded(join("a"), join("b"), Leave(by="a")), Handover(by="a", partition=0, term=1001))


def test_a_handover_of_a_partition_without_an_owner_is_void() -> None:
    assert unchanged_by(founded(), Handover(by="a", partition=0, term=0))


# Wishes


def test_a_drained_member_is_to_own_nothing_and_keeps_what_it_has_until_its_handovers() -> None:
    state = founded(*PAIR, Drain(by="b", name="a"))
    assert ("abab", "bbbb") == (owners(state), targets(state))


def test_a_drain_is_taken_back() -> None:
    state = founded(*PAIR, Drain(by="b", name="a"), Undrain(by="b", name="a"))
    assert ("abab", {}) == (targets(state), state.drains)


def test_a_drain_goes_by_name_so_it_meets_a_later_member_of_that_name() -> None:
    state = founded(join("a"), Drain(by="a", name="x"), join("b", "x"))
    assert ("aaaa", {"x": 2}) == (targets(state), state.drains)


def test_drains_are_kept_with_their_offsets_in_the_order_in_which_they_came() -> None:
    state = founded(Drain(by="a", name="y"), Drain(by="a", name="x"), Drain(by="a", name="y"))
    assert [("y", 1), ("x", 2)] == list(state.drains.items())


def test_a_pinned_partition_is_to_belong_to_its_name() -> None:
    state = founded(*PAIR, Pin(by="a", partition=0, name="b"))
    assert ("abab", "b") == (owners(state), targets(state)[0])


def test_a_pin_waits_for_its_name_to_become_a_member() -> None:
    waiting = founded(join("a"), Pin(by="a", partition=1, name="x"))
    assert ("aaaa", {1: "x"}) == (targets(waiting), waiting.pins)
    state = folded(join("b", "x"), state=waiting)
    assert "b" == targets(state)[1]


def test_a_later_pin_of_one_partition_replaces_the_earlier() -> None:
    assert {1: "y"} == founded(Pin(by="a", partition=1, name="x"), Pin(by="a", partition=1, name="y")).pins


def test_a_pin_is_taken_back() -> None:
    state = founded(*PAIR, Pin(by="a", partition=0, name="b"), Unpin(by="a", partition=0))
    assert ("abab", {}) == (targets(state), state.pins)


def test_a_weight_by_name_outranks_what_a_member_says_of_itself() -> None:
    state = founded(join("a"), join("b"), Weigh(by="a", name="b", weight=3))
    assert 3 == targets(state).count("b")


def test_a_weight_waits_for_its_name_to_become_a_member() -> None:
    assert "aaaa" == targets(founded(join("a"), Weigh(by="a", name="b", weight=0), join("b", weight=5)))


def test_a_weight_is_taken_back() -> None:
    weighed = (Weigh(by="a", name="b", weight=3), Weigh(by="a", name="b", weight=None))
    state = founded(join("a"), join("b"), *weighed)
    assert (2, {}) == (targets(state).count("b"), state.weights)


def test_loads_are_kept_by_partition_and_zero_forgets_one() -> None:
    state = founded(Load(by="a", loads={0: 5.0, 1: 2.0}), Load(by="a", loads={1: 0.0, 2: 7.0}))
    assert {0: 5.0, 2: 7.0} == state.loads


def test_loads_give_a_new_target() -> None:
    """Each has two; the two hottest are parted."""
    state = founded(*PAIR, Load(by="a", loads={0: 9.0, 1: 1.0, 2: 9.0, 3: 1.0}))
    assert "abab" == owners(state)
    assert targets(state)[0] != targets(state)[2]
    assert targets(state)[1] != targets(state)[3]


@pytest.mark.parametrize(
    "record",
    [
        Pin(by="a", partition=4, name="b"),
        Unpin(by="a", partition=0),
        Undrain(by="a", name="b"),
        Weigh(by="a", name="b", weight=None),
        Load(by="a", loads={4: 1.0}),
        Load(by="a", loads={0: 0.0}),
        Load(by="a", loads={}),
    ],
    ids=[
        "pin no partition",
        "unpin unpinned",
        "undrain undrained",
        "unweigh",
        "load no partition",
        "unload",
        "no load",
    ],
)
def test_a_wish_about_what_is_not_there_is_void(record: Record) -> None:
    assert unchanged_by(founded(*PAIR), record)


@pytest.mark.parametrize(
    "record",
    [
        Drain(by="c", name="b"),
        Pin(by="c", partition=0, name="b"),
        Weigh(by="c", name="b", weight=2),
        Load(by="c", loads={0: 1.0}),
    ],
    ids=["drain", "pin", "weigh", "load"],
)
def test_a_wish_said_twice_changes_nothing(record: Record) -> None:
    once = founded(join("a"), join("b"), record)
    assert unchanged_by(once, record)
    assert once.targets is folded(record, state=once).targets


def test_the_wish_of_a_stranger_counts() -> None:
    """Operators have no seat."""
    assert "bbbb" == targets(founded(*PAIR, Drain(by="operator", name="a")))


def test_wishes_outlive_those_they_are_about() -> None:
    wishes = (Drain(by="o", name="a"), Pin(by="o", partition=0, name="a"), Weigh(by="o", name="a", weight=7))
    state = founded(join("a"), *wishes, Leave(by="a"))
    assert ({"a": 2}, {0: "a"}, {"a": 7}) == (state.drains, state.pins, state.weights)


def test_beyond_a_bound_of_drains_the_oldest_of_a_name_that_no_member_has_makes_room() -> None:
    drains = ("a", *(f"x{i}" for i in range(WISHES_MAX - 1)), "one more")
    state = founded(*PAIR, *(Drain(by="op", name=name) for name in drains))
    assert [name for name in drains if name != "x0"] == list(state.drains)


def test_a_flood_of_wishes_about_strangers_keeps_nobody_from_draining_or_weighing_a_member() -> None:
    flood: list[Record] = [Drain(by="op", name=f"x{i}") for i in range(2 * WISHES_MAX)]
    flood += [Weigh(by="op", name=f"x{i}", weight=2) for i in range(2 * WISHES_MAX)]
    state = founded(*PAIR, Drain(by="op", name="b"), Weigh(by="op", name="b", weight=3), *flood)
    state = folded(Drain(by="op", name="a"), Weigh(by="op", name="a", weight=3), state=state)
    assert (WISHES_MAX, WISHES_MAX) == (len(state.drains), len(state.weights))
    assert {"a", "b"} <= state.drains.keys() & state.weights.keys()
    assert state == restore(snapshot("a", state))


def test_drains_of_as_many_members_as_there_may_be_leave_no_room_for_a_stranger() -> None:
    one = founded(join("a")).seats["a"]
    seats = {f"i{i}": replace(one, incarnation=f"i{i}", name=f"n{i}") for i in range(WISHES_MAX)}
    full = replace(founded(), seats=seats, drains={seat.name: 1 for seat in seats.values()})
    assert unchanged_by(full, Drain(by="op", name="one too many"))


def test_a_join_beyond_the_most_members_is_void_but_not_one_under_a_name_that_is_there() -> None:
    full = founded(*(join(f"i{i}", f"n{i}", at=1) for i in range(MEMBERS_MAX)))
    assert MEMBERS_MAX == len(full.seats)
    assert unchanged_by(full, join("late", at=full.at))
    assert "again" in folded(join("again", "n7", at=full.at), state=full).seats


@pytest.mark.parametrize("name", ["a", "x"], ids=["a member", "nobody"])
def test_taking_back_what_was_never_wished_changes_nothing(name: str) -> None:
    before = founded(*PAIR, Load(by="op", loads={0: 100.0, 2: 1.0}), Drain(by="op", name="y"))
    for record in (Undrain(by="op", name=name), Weigh(by="op", name=name, weight=None), Unpin(by="op", partition=0)):
        assert unchanged_by(before, record)
        assert folded(record, state=before).targets is before.targets


def test_a_wish_about_a_name_that_no_member_has_makes_no_new_target() -> None:
    before = founded(*PAIR)
    for record in (Drain(by="op", name="x"), Weigh(by="op", name="x", weight=3), Pin(by="op", partition=0, name="x")):
        after = folded(record, state=before)
        assert not unchanged_by(before, record)
        assert after.targets is before.targets


def test_a_change_of_target_takes_nothing_from_anybody() -> None:
    before = founded(*PAIR)
    for record in (join("c"), Drain(by="a", name="b"), Pin(by="a", partition=0, name="b")):
        after = folded(record, state=before)
        assert before.targets != after.targets
        assert table(before) == table(after)


# Upgrade


@pytest.mark.parametrize(
    ("known", "wanted", "version"),
    [
        ([(1, 2), (1, 3)], 2, 2),
        ([(1, 2), (1, 3)], 3, 1),
        ([(1, 1), (1, 2)], 2, 1),
        ([(1, 2)], 1, 1),
        ([], 2, 1),
    ],
    ids=["known to all", "not known to one", "not known to the other", "to where it is", "without members"],
)
def test_the_fold_changes_when_every_member_knows_the_version(
    known: list[tuple[int, int]], wanted: int, version: int
) -> None:
    joins = [join("abc"[place], versions=versions) for place, versions in enumerate(known)]
    assert version == founded(*joins, Upgrade(by="o", version=wanted)).version


def test_the_fold_never_goes_back_to_an_older_version() -> None:
    joins = [join("a", versions=(1, 3)), join("b", versions=(1, 3))]
    assert 3 == founded(*joins, Upgrade(by="o", version=3), Upgrade(by="o", version=2)).version


def test_after_an_upgrade_who_does_not_know_the_version_cannot_join() -> None:
    state = founded(join("a", versions=(1, 2)), Upgrade(by="a", version=2), join("b", versions=(1, 1)))
    assert ["a"] == list(state.seats)


# What changes nothing


def test_bytes_that_are_no_record_take_their_offset_and_change_nothing() -> None:
    assert unchanged_by(founded(*PAIR), None)
    assert unchanged_by(State(), None)


def test_a_snapshot_changes_nothing() -> None:
    assert unchanged_by(founded(*PAIR), snapshot("a", founded(join("z"))))


def test_a_ledger_may_skip_offsets() -> None:
    state = fold(fold(founded(), 10, join("a")), 20, beat("a"))
    assert (21, 20, 1010) == (state.at, state.last_beats["a"], state.terms[0])


def test_a_member_is_found_by_its_name() -> None:
    state = founded(join("a", "x"), join("b", "y"))
    assert state.seats["b"] is state.holder("y")
    assert state.holder("b") is None


# Laws


def states_of(entries: list[tuple[int, Record | None]]) -> list[State]:
    """The state before the first entry, and after each."""
    states = [State()]
    for offset, record in entries:
        states.append(fold(states[-1], offset, record))
    return states


@LAW
@given(plots, st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_a_later_owner_always_has_a_higher_term(plot: list[Plot], gaps: list[int]) -> None:
    states = states_of(story(plot, gaps=gaps))
    for before, after in pairwise(states[1:]):
        for partition in range(LAYOUT.partitions):
            old = (before.owners[partition], before.terms[partition])
            new = (after.owners[partition], after.terms[partition])
            if new[0] is not None and new != old:
                assert BASE + after.at - 1 == new[1] > old[1]
            else:
                assert old[1] == new[1]  # One whose owner departed, and that has none now, keeps its term in mind.


@LAW
@given(plots)
def test_everything_has_an_owner_as_soon_as_there_is_a_member_and_owners_are_members(plot: list[Plot]) -> None:
    for state in states_of(story(plot))[1:]:
        assert all((owner in state.seats) == bool(state.seats) for owner in (*state.owners, *state.targets))
        assert list(state.seats) == list(state.last_beats)
        assert len(state.seats) == len({seat.name for seat in state.seats.values()})
        assert not state.seats.keys() & set(state.departed)


@LAW
@given(plots)
def test_only_its_own_handover_or_departure_takes_a_partition_from_its_owner(plot: list[Plot]) -> None:
    entries = story(plot)
    states = states_of(entries)
    for (_, record), before, after in zip(entries[1:], states[1:], states[2:], strict=False):
        for partition, owner in enumerate(before.owners):
            if owner is not None and after.terms[partition] != before.terms[partition] and owner in after.seats:
                assert Handover(by=owner, partition=partition, term=before.terms[partition]) == record


@LAW
@given(plots)
def test_a_state_is_a_value_that_never_changes(plot: list[Plot]) -> None:
    entries = story(plot)
    states = states_of(entries)
    written = [msgspec.json.encode(state) for state in states]
    for (offset, record), state in zip(entries, states, strict=False):
        fold(state, offset, record)
    assert written == [msgspec.json.encode(state) for state in states]


@LAW
@given(plots, st.integers(0, 40))
def test_a_start_from_a_snapshot_leads_to_the_very_state_of_a_reader_of_everything(
    plot: list[Plot], place: int
) -> None:
    entries = story(plot)
    states = states_of(entries)
    place = 1 + place % len(entries)
    payload = encode(snapshot("z", states[place]))
    record = decode(payload)
    assert isinstance(record, Snapshot)
    state = restore(record)
    assert states[place] == state
    for offset, entry in entries[place:]:
        state = fold(state, offset, entry)
    assert states[-1] == state
    assert msgspec.json.encode(states[-1]) == msgspec.json.encode(state)  # The order of members and facts, too.


@LAW
@given(plots)
def test_records_mean_the_same_after_they_were_written_and_read(plot: list[Plot]) -> None:
    entries = story(plot)
    read = [(offset, None if record is None else decode(encode(record))) for offset, record in entries]
    assert states_of(entries)[-1] == states_of(read)[-1]


@LAW
@given(plots, st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_the_digest_kept_along_the_way_is_that_of_the_whole(plot: list[Plot], gaps: list[int]) -> None:
    for state in states_of(story(plot, gaps=gaps)):
        assert difference(State(), state) == state.digest


SEATED = founded(
    *PAIR,
    Drain(by="o", name="x"),
    Pin(by="o", partition=1, name="x"),
    Weigh(by="o", name="x", weight=2),
    Load(by="o", loads={0: 1.0}),
    join("c"),
    Leave(by="c"),
)

FACTS: dict[str, Callable[[State], State]] = {
    "genesis": lambda state: replace(state, genesis=genesis(lease=7.0)),
    "genesis_at": lambda state: replace(state, genesis_at=1),
    "version": lambda state: replace(state, version=2),
    "seats": lambda state: replace(state, seats={**state.seats, "a": replace(state.seats["a"], weight=2)}),
    "last_beats": lambda state: replace(state, last_beats={**state.last_beats, "a": 9}),
    "owners": lambda state: replace(state, owners=("b", *state.owners[1:])),
    "terms": lambda state: replace(state, terms=(*state.terms[:3], 1005)),
    "targets": lambda state: replace(state, targets=(None, *state.targets[1:])),
    "pins": lambda state: replace(state, pins={2: "x"}),
    "drains": lambda state: replace(state, drains={"x": 9}),
    "weights": lambda state: replace(state, weights={"x": 3}),
    "loads": lambda state: replace(state, loads={0: 1.5}),
    "departed": lambda state: replace(state, departed=(*state.departed, "d")),
}


def test_every_fact_of_the_state_has_its_case_here() -> None:
    assert set(State.__struct_fields__) - {"at", "digest"} == set(FACTS)


@pytest.mark.parametrize("fact", FACTS)
def test_the_digest_differs_if_a_single_fact_does(fact: str) -> None:
    changed = FACTS[fact](SEATED)
    assert SEATED != changed
    assert SEATED.digest != difference(State(), changed)
    assert SEATED.digest ^ difference(SEATED, changed) == difference(State(), changed)
