"""The meaning of each record, in tables of small ledgers; then laws that hold for any ledger, tested by drawn stories.

`aab.` are owners or targets of partitions 0 to 3, `a@1003` is an owner under a term; see tests/support/records.py.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.protocols.induction.assignment import assign
from neli_router.protocols.induction.digest import difference
from neli_router.protocols.induction.fold import DEPARTED_MAX, MEMBERS_MAX, WISHES_MAX, State, fold, fold_beats
from neli_router.protocols.induction.records import (
    Certify,
    Drain,
    Expire,
    Handover,
    Leave,
    Load,
    Pin,
    Record,
    Snapshot,
    Upgrade,
    Weigh,
    decode,
    encode,
)
from neli_router.protocols.induction.snapshots import restore, snapshot
from tests.protocols.rules import Rule, rules_in
from tests.support.records import (
    BASE,
    LAYOUT,
    Plot,
    beat,
    folded,
    founded,
    genesis,
    handed_over,
    join,
    parsed,
    plots,
    story,
    table,
    targets,
)

LAW = settings(max_examples=60)


def give(partition: int) -> Handover:
    return Handover(by="a", terms={partition: 1001})


def drain(name: str) -> Drain:
    return Drain(by="op", name=name)


def weigh(name: str, weight: int) -> Weigh:
    return Weigh(by="op", name=name, weight=weight)


ONE = founded(join("a"))
TWO = founded(join("a"), join("b"))
"""a owns everything and should keep 0 and 2; the next record has offset 3."""
PAIR = (join("a"), join("b"), give(1), give(3))
"""Two members with two partitions each; the next record has offset 5."""
SHARED = founded(*PAIR)
WISHED = folded(Load(by="op", loads={0: 100.0, 2: 1.0}), drain("y"), state=SHARED)


PATIENT = [replace(join(q, versions=(2, 3)), v=2, grace=9.0) for q in "abc"]
TRIO = handed_over(folded(genesis(version=3), *PATIENT))
"""Each of the three owns something, and is granted a grace."""
STATES = {
    "NOTHING": State(),
    "EMPTY": founded(),
    "ONE": ONE,
    "TWO": TWO,
    "SHARED": SHARED,
    "WISHED": WISHED,
    "BATCHES": folded(genesis(version=3)),
    "TRIO": TRIO,
}


def unchanged_by(state: State, record: Record | None) -> bool:
    """Whether `record` takes its offset and does nothing else."""
    after = folded(record, state=state)
    return after == replace(state, at=state.at + 1) and after.targets is state.targets


def played(lines: list[str]) -> Iterator[str]:
    """A line has the name of a state to start from, unless it goes on from the line before, and the next records. The
    answer is what the last of them changed.
    """
    state = State()
    for line in lines:
        asked = line.partition(" ->")[0]
        if not asked or asked.startswith("#"):
            yield line
            continue
        *words, last = asked.split()
        if words and words[0] in STATES:
            state = STATES[words.pop(0)]
        for word in words:
            state = folded(parsed(word, state), state=state)
        record = None if last == "junk" else parsed(last, state)
        before, state = state, folded(record, state=state)
        yield f"{asked} -> {'void' if unchanged_by(before, record) else meaning(before, state)}"


def meaning(before: State, after: State) -> str:
    """The table, whether targets were computed again, and the other facts that there are."""
    targeted = "targets stay" if after.targets is before.targets else f"targets {targets(after)}"
    kinds = ((name, getattr(after, name)) for name in ("away", "clear", "drains", "pins", "weights", "loads"))
    told = (" ".join([name, *(f"{key}={value}" for key, value in facts.items())]) for name, facts in kinds if facts)
    return ", ".join([table(after), targeted, *told])


RULES = Path(__file__).parent / "rules"


@pytest.mark.parametrize("rule", rules_in(RULES / "void.txt"))
def test_it_is_void(rule: Rule, pytestconfig: pytest.Config) -> None:
    rule.require(played, pytestconfig)
    assert rule.text.rstrip().endswith("-> void")


@pytest.mark.parametrize("rule", rules_in(RULES / "fold.txt"))
def test_owners_and_targets(rule: Rule, pytestconfig: pytest.Config) -> None:
    rule.require(played, pytestconfig)


def test_the_genesis_sets_what_never_changes_while_the_ledger_lives_and_what_stands_before_it_is_void() -> None:
    state = folded(None, genesis(layout=Layout(slots=8, partitions=3)))
    assert (genesis(layout=Layout(slots=8, partitions=3)), 1, 2) == (state.genesis, state.genesis_at, state.version)
    before = (join("a"), beat("a"), drain("a"), Pin(by="a", partition=0, name="a"), Upgrade(by="a", version=1))
    state = folded(*before, genesis())
    assert replace(folded(genesis()), at=6, genesis_at=5) == replace(state, digest=folded(genesis()).digest)
    assert difference(State(), state) == state.digest


def test_neither_a_snapshot_of_another_state_nor_an_empty_load_means_anything() -> None:
    assert unchanged_by(SHARED, snapshot("a", founded(join("z"))))
    assert unchanged_by(SHARED, Load(by="a", loads={}))


def test_a_beat_of_a_member_is_its_last_and_changes_nothing_else() -> None:
    after = folded(beat("b"), state=SHARED)
    assert {"a": 1, "b": 5} == dict(after.last_beats)
    assert replace(SHARED, at=6, last_beats=after.last_beats, digest=after.digest) == after
    assert after.owners is SHARED.owners


def test_a_term_is_the_base_and_the_offset_of_its_beginning_or_the_writers_clock_if_that_is_higher() -> None:
    state = fold(fold(founded(), 77, join("a")), 90, beat("a"))  # A ledger may skip offsets.
    assert ((BASE + 77,) * 4, (77,) * 4, {"a": 90}, 91) == (state.terms, state.began, dict(state.last_beats), state.at)
    state = founded(join("a"), replace(join("b"), floor=5000), replace(join("c"), floor=4000))
    assert (1001,) * 4 == state.terms, "what is owned keeps its term"
    state = folded(give(0), give(1), state=state)
    assert ((5002, 5003), (4, 5)) == (state.terms[:2], state.began[:2])


def test_a_seat_is_what_the_join_said() -> None:
    state = founded(join("a", "alice", weight=3, address="host:1", versions=(1, 2)), join("b"))
    seat = state.seats["a"]
    said = (seat.incarnation, seat.name, seat.weight, seat.address, seat.versions, seat.joined)
    assert ("a", "alice", 3, "host:1", (1, 2), 1) == said
    assert (seat, None) == (state.holder("alice"), state.holder("a"))


@pytest.mark.parametrize(("at", "seated"), [(0, "a"), (1, "a"), (2, "c"), (3, "a"), (9, "a")])
def test_a_join_counts_only_if_its_writer_had_read_the_join_that_it_replaces(at: int, seated: str) -> None:
    """A Join beyond its own place is void, too: its writer had read records that this ledger lost."""
    assert [seated] == list(founded(join("a", "x"), join("c", "x", at=at)).seats)


def test_departed_members_and_certificates_of_strangers_are_remembered_up_to_a_bound_and_members_join_up_to_one() -> (
    None
):
    state = ONE
    for number in range(DEPARTED_MAX + 1):
        state = folded(join(f"x{number}", "x", at=state.at), state=state)  # Each replaces the previous one.
    assert DEPARTED_MAX == len(state.departed)
    state = folded(Leave(by="a"), state=state)
    assert (DEPARTED_MAX, "x1", "a") == (len(state.departed), state.departed[0], state.departed[-1])
    state = folded(*(Certify(by="w", incarnation=f"x{number}") for number in range(DEPARTED_MAX + 1)), state=ONE)
    assert (DEPARTED_MAX, "x1", ["a"]) == (len(state.departed), state.departed[0], list(state.seats))
    one = ONE.seats["a"]
    seats = {f"i{i}": replace(one, incarnation=f"i{i}", name=f"n{i}") for i in range(MEMBERS_MAX)}
    full = replace(ONE, seats=seats, last_beats=dict.fromkeys(seats, 1))
    assert unchanged_by(full, join("late", at=full.at))
    assert "again" in folded(join("again", "n7", at=full.at), state=full).seats
    fuller = replace(full, seats={name: seats[name] for name in list(seats)[1:]})
    assert "late" in folded(join("late", at=full.at), state=fuller).seats


def test_beyond_a_bound_of_drains_the_oldest_of_a_stranger_makes_room_or_the_newest_does_if_all_are_of_members() -> (
    None
):
    drains = ("a", *(f"x{i}" for i in range(WISHES_MAX - 1)), "one more")
    state = folded(*map(drain, drains), state=SHARED)
    assert [name for name in drains if name != "x0"] == list(state.drains)
    one = ONE.seats["a"]
    seats = {f"i{i}": replace(one, incarnation=f"i{i}", name=f"n{i}") for i in range(WISHES_MAX)}
    full = replace(founded(), seats=seats, drains={seat.name: 1 for seat in seats.values()})
    assert unchanged_by(full, drain("one too many"))
    flood: list[Record] = [wish for i in range(WISHES_MAX + 1) for wish in (drain(f"x{i}"), weigh(f"x{i}", 2))]
    state = folded(drain("b"), weigh("b", 3), *flood, drain("a"), weigh("a", 3), state=SHARED)
    assert (WISHES_MAX, WISHES_MAX) == (len(state.drains), len(state.weights))
    assert {"a", "b"} <= state.drains.keys() & state.weights.keys()
    assert state == restore(snapshot("a", state))


@pytest.mark.parametrize(
    ("known", "wanted", "version"),
    [
        ([(2, 3), (2, 4)], [3], 3),
        ([(2, 3), (2, 4)], [4], 2),
        ([(2, 2), (2, 3)], [3], 2),
        ([(2, 3)], [2], 2),
        ([], [3], 2),
        ([(2, 4), (2, 4)], [4, 3], 4),
    ],
    ids=["known to all", "not to one", "not to the other", "to where it is", "without members", "never back"],
)
def test_the_fold_changes_when_every_member_knows_the_version(
    known: list[tuple[int, int]], wanted: list[int], version: int
) -> None:
    joins = [join("abc"[place], versions=versions) for place, versions in enumerate(known)]
    state = founded(*joins, *(Upgrade(by="op", version=each) for each in wanted))
    assert version == state.version
    joined = [
        versions for versions in ((2, 2), (2, 9)) if "new" in folded(join("new", versions=versions), state=state).seats
    ]
    assert [(2, 2)] * (version == 2) + [(2, 9)] == joined, "who does not know the version cannot join"


BATCHED = founded(join("a", versions=(2, 3)), join("b", versions=(2, 3)), Upgrade(by="op", version=3))


def test_a_handover_gives_each_partition_that_its_writer_owns_under_that_term() -> None:
    owned = [i for i, target in enumerate(BATCHED.targets) if target == "b"]
    terms = {i: BATCHED.terms[i] for i in owned} | {99: 1001}
    after = folded(Handover(by="a", v=2, terms=terms), state=BATCHED)
    assert BATCHED.targets == after.owners
    assert {after.base + after.at - 1} == {after.terms[i] for i in owned}
    first, *others = owned
    some = folded(Handover(by="a", v=2, terms={**terms, first: 7}), state=BATCHED)
    assert ("a", ["b"] * len(others)) == (some.owners[first], [some.owners[i] for i in others])


def test_an_expire_ends_each_member_whose_last_beat_it_knows_and_computes_targets_once() -> None:
    state = handed_over(folded(*(join(q, versions=(2, 3)) for q in "cd"), state=BATCHED))
    last_beats = {**state.last_beats, "d": state.last_beats["d"] - 1, "x": 1}
    del last_beats["a"]
    computed: list[object] = []

    def assigned(*members: Any, **more: Any) -> tuple[str | None, ...]:
        computed.append(members)
        return assign(*members, **more)

    after = fold(state, state.at, Expire(by="a", v=2, last_beats=last_beats), assigned)
    assert ["a", "d"] == list(after.seats)
    assert {"a", "d"} == set(after.owners)
    assert all(owner == was for owner, was in zip(after.owners, state.owners, strict=True) if was in ("a", "d"))
    assert 1 == len(computed)


@pytest.mark.parametrize("record", ["handover", "expire", "ext"])
def test_what_older_members_cannot_read_is_void_until_the_version_that_all_members_know(record: str) -> None:
    leave = decode(b'{"kind":"leave","by":"b","v":2,"ext":{}}')
    written = {
        "handover": Handover(by="a", v=2, terms={i: SHARED.terms[i] for i in range(len(SHARED.terms))}),
        "expire": Expire(by="a", v=2, last_beats={"b": SHARED.last_beats["b"]}),
        "ext": leave,
    }
    assert unchanged_by(SHARED, written[record])
    assert not unchanged_by(replace(SHARED, version=3), written[record])


def zoned(members: str, zones: str, *, version: int = 3, partitions: int = 36) -> State:
    """The state at rest of a group whose members have joined from these zones."""
    joins = (join(member, zone=zone) for member, zone in zip(members, zones, strict=True))
    layout = Layout(slots=64, partitions=partitions)
    return handed_over(folded(genesis(version=version, layout=layout), *joins, state=State()))


SIX = zoned("abcdef", "xyzxyz")
"""Two members in each of three zones."""


def zone_of(state: State, incarnation: str | None) -> str:
    return "" if incarnation is None else state.seats[incarnation].zone


def require_standbys_elsewhere(state: State) -> None:
    for target, standby in zip(state.targets, state.standbys, strict=True):
        assert standby is not None
        assert state.is_member(standby)
        assert zone_of(state, standby) != zone_of(state, target)


def ended(state: State, *members: str) -> State:
    """The state after one record ended `members`."""
    by = next(member for member in state.seats if member not in members)
    last_beats = {member: state.last_beats[member] for member in members}
    return folded(Expire(by=by, v=2, last_beats=last_beats), state=state)


def shares(state: State) -> list[int]:
    return sorted(state.owners.count(member) for member in state.seats)


def test_each_partition_has_a_standby_in_another_zone_from_version_three_on() -> None:
    require_standbys_elsewhere(SIX)
    alone = zoned("abc", "xxx")
    assert () == alone.standbys
    older = zoned("abcd", "xxyy", version=2, partitions=6)
    assert () == older.standbys
    assert older.targets == zoned("abcd", "xxxx", version=2, partitions=6).targets, "there, zones change nothing"
    assert older.targets != zoned("abcd", "xxyy", partitions=6).targets
    upgraded = folded(Upgrade(by="op", version=3), state=older)
    assert older.targets == upgraded.targets
    require_standbys_elsewhere(upgraded)


@pytest.mark.parametrize("zone", ["ad", "be", "cf"])
def test_a_zone_that_is_lost_in_one_record_goes_to_its_standbys(zone: str) -> None:
    after = ended(SIX, *zone)
    lost = [i for i, owner in enumerate(SIX.owners) if owner in set(zone)]
    assert [SIX.standbys[i] for i in lost] == [after.owners[i] for i in lost]
    assert [owner for owner in SIX.owners if owner not in set(zone)] == [
        owner for i, owner in enumerate(after.owners) if i not in lost
    ]
    assert [9, 9, 9, 9] == shares(after)
    require_standbys_elsewhere(after)


def test_a_zone_that_is_lost_one_by_one_goes_to_its_standbys_as_far_as_shares_allow() -> None:
    """a has six partitions. The five others have room for one or two each, and d, of a's zone, is lost next."""
    first = ended(SIX, "a")
    went = {i: first.owners[i] for i, owner in enumerate(SIX.owners) if owner == "a"}
    assert sum(SIX.standbys[i] == owner for i, owner in went.items()) >= 4
    on_the_way = [i for i, owner in went.items() if owner == "d"]
    assert on_the_way
    assert [SIX.standbys[i] for i in on_the_way] == [first.standbys[i] for i in on_the_way]
    require_standbys_elsewhere(first)
    second = ended(first, "d")
    assert [first.standbys[i] for i, owner in enumerate(first.owners) if owner == "d"] == [
        second.owners[i] for i, owner in enumerate(first.owners) if owner == "d"
    ]
    assert [9, 9, 9, 9] == shares(second)


def test_a_standby_that_goes_away_or_departs_or_is_drained_is_replaced_in_that_record_and_its_successor_is_not() -> (
    None
):
    waits = folded(
        *(replace(join(member, zone=zone), v=2, grace=9.0) for member, zone in zip("abcd", "xyxy", strict=True)),
        state=folded(genesis(version=3), state=State()),
    )
    waits = handed_over(waits)
    assert "b" in waits.standbys
    for record in (Leave(by="b", grace=9.0), Leave(by="b"), drain("b")):
        after = folded(record, state=waits)
        assert "b" not in after.standbys
        require_standbys_elsewhere(after)
        assert difference(State(), after) == after.digest
    renewed = folded(join("e", "b", zone="y", at=waits.at), state=waits)
    assert waits.standbys == tuple("b" if standby == "e" else standby for standby in renewed.standbys)


def test_members_that_join_while_others_hand_over_get_what_was_promised_and_others_the_rest_of_it() -> None:
    """The owner is asked to let go of 12 partitions, then of 16, then of 18: always of the same and some more."""
    state = folded(genesis(version=3, layout=Layout(slots=64, partitions=24)), join("a"), state=State())
    promised: dict[str, set[int]] = {}
    for newcomer in "bcd":
        state = folded(join(newcomer), state=state)
        meant = {q: {i for i, target in enumerate(state.targets) if target == q} for q in state.seats if q != "a"}
        assert {24 // len(state.seats)} == {*map(len, meant.values())}
        assert all(meant[q] <= before for q, before in promised.items())
        assert set().union(*promised.values()) <= set().union(*meant.values())
        promised = meant
    after = ended(state, "b")
    assert {i for i, target in enumerate(after.targets) if target != "a"} <= set().union(*promised.values())
    older = folded(join("a"), join("b"), join("c"), state=folded(genesis(layout=Layout(slots=64, partitions=24))))
    assert "abc" * 8 == "".join(target or "" for target in older.targets), "there, a plan forgets the one before"


def in_bytes(state: State) -> bytes:
    return msgspec.json.encode(state, enc_hook=lambda last_beats: sorted(last_beats.items()))


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
                assert old[1] == new[1]  # A partition whose owner departed and that is unowned now keeps its old term.


@LAW
@given(plots)
def test_members_own_everything_and_only_a_handover_or_departure_takes_a_partition_from_its_owner(
    plot: list[Plot],
) -> None:
    entries = story(plot)
    states = states_of(entries)
    for state in states[1:]:
        assert all((owner in state.seats) == bool(state.seats) for owner in (*state.owners, *state.targets))
        assert state.seats.keys() == set(state.last_beats)
        assert len(state.seats) == len({seat.name for seat in state.seats.values()})
        assert not state.seats.keys() & set(state.departed)
        for target, standby in zip(state.targets, state.standbys, strict=False):
            assert standby is None or (state.is_member(standby) and zone_of(state, standby) != zone_of(state, target))
    for (_, record), before, after in zip(entries[1:], states[1:], states[2:], strict=False):
        for partition, owner in enumerate(before.owners):
            if owner is not None and after.terms[partition] != before.terms[partition] and owner in after.seats:
                assert Handover(by=owner, terms={partition: before.terms[partition]}) == record


@LAW
@given(plots, st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_a_state_never_changes_and_its_digest_is_that_of_the_whole(plot: list[Plot], gaps: list[int]) -> None:
    entries = story(plot, gaps=gaps)
    states = states_of(entries)
    written = [in_bytes(state) for state in states]
    for (offset, record), state in zip(entries, states, strict=False):
        fold(state, offset, record)
    assert written == [in_bytes(state) for state in states]
    assert [difference(State(), state) for state in states] == [state.digest for state in states]


@LAW
@given(plots, st.lists(st.tuples(st.sampled_from("abcdz"), st.integers(0, 2), st.booleans()), min_size=1))
def test_beats_in_a_row_lead_to_the_states_that_each_of_them_alone_leads_to(
    plot: list[Plot], told: list[tuple[str, int, bool]]
) -> None:
    before = states_of(story(plot))[-1]
    states, beats = [before], []
    for by, gap, is_short in told:
        offset, one = states[-1].at + gap, beat(by)
        beats.append((offset, replace(one, v=2, digest=UNSET) if is_short else one))
        states.append(fold(states[-1], *beats[-1]))
    assert (states[-1], [state.digest for state in states[1:]]) == fold_beats(before, beats)


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
    assert in_bytes(states[-1]) == in_bytes(state)  # The order of members and facts, too.
