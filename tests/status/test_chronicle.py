"""The chronicle: records go in by incarnation, and history comes out by name.

Incarnations are single letters, and each member is called by a word; partition 0 is on the left.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neli_router.drivers.ledgers.base import Entry
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import (
    Certify,
    Drain,
    Expire,
    Handover,
    Leave,
    Pin,
    Record,
    Snapshot,
    Undrain,
    Upgrade,
    Weigh,
    encode,
)
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.status import chronicle
from neli_router.status.annals import Annals
from neli_router.status.chronicle import DELAYS_MAX, Chronicle
from neli_router.status.group_view import GroupEvent, Move
from tests.support.records import Plot, beat, expire, folded, founded, genesis, join, plots, story

LAW = settings(max_examples=60)

ALICE, BOB = join("a", "alice"), join("b", "bob")
GIVE = (Handover(by="a", terms={1: 1001}), Handover(by="a", terms={3: 1001}))
"""Brings two members to two partitions each; the next record is at offset 5."""


def reading(*records: Record | None, now: float = 0.0) -> Chronicle:
    """A chronicle that has read `records` from the ledger's beginning."""
    one = Chronicle()
    one.begin(State(), now)
    read_on(one, *records, now=now)
    return one


def read_on(one: Chronicle, *records: Record | None, now: float = 0.0) -> None:
    at = one.group.state.at
    one.read([(at + place, record) for place, record in enumerate(records)], now)


def spelled(moves: Sequence[Move]) -> list[str]:
    """For example "4: 1,3 alice -> bob, handover by alice"."""
    return [
        f"{move.offset}: {','.join(map(str, move.partitions))} {move.source} -> {move.target}, "
        f"{move.cause} by {move.by or '?'}"
        for move in moves
    ]


ALICE_CAME = "1: 0,1,2,3 None -> alice, join by alice"


def test_a_handover_whose_reason_was_not_read_is_told_and_a_ledger_made_anew_has_moved_nothing() -> None:
    one = Chronicle()
    one.begin(founded(ALICE, BOB), 0.0)
    read_on(one, *GIVE)
    told_before = one.group
    read_on(one, Leave(by="b"))
    assert ["4: 1,3 alice -> bob, handover by alice"] == spelled(told_before.moves)  # Old views never change.
    one = reading(genesis(), ALICE, BOB)
    one.begin(founded(ALICE, BOB, *GIVE, expire("b", "a", 1)), 3.0)
    assert [ALICE_CAME, "5: 0,1,2,3 alice -> bob, other by ?"] == spelled(one.group.moves)
    assert 1 == one.group.counts["restarts"]
    one = reading(genesis(), ALICE)
    one.begin(folded(genesis("z", lease=9.0), join("z", "zoe")), 3.0)
    assert [ALICE_CAME] == spelled(one.group.moves)
    assert "zoe" == one.group.state.seats["z"].name


def test_a_beat_tells_when_it_was_heard_and_how_far_its_writer_had_read_and_only_own_ones_are_timed() -> None:
    one = reading(genesis(), ALICE, now=1.0)
    assert {} == dict(one.group.vitals)
    read_on(one, beat("a", founded()), now=2.5)
    vital = one.group.vitals["a"]
    assert (2.5, 1, 2, 1) == (vital.heard_at, vital.at, vital.offset, vital.lag)
    read_on(one, BOB, Leave(by="a"), beat("a"))
    assert {} == dict(one.group.vitals)
    assert 1 == one.group.counts["beats"]
    one = reading(genesis(), ALICE, BOB)
    one.own = lambda: "b"
    read_on(one, beat("a", sent_at=1.0), beat("b", sent_at=1.25), now=1.5)
    assert [0.25] == list(one.beat_delays)
    read_on(one, *[beat("b")] * (DELAYS_MAX + 1))
    assert DELAYS_MAX == len(one.beat_delays)


def test_each_kind_of_record_is_counted_and_a_certified_death_apart_from_suspicions() -> None:
    whole = snapshot("a", folded(genesis(), ALICE))
    assert isinstance(whole, Snapshot)
    one = reading(
        *(genesis(), ALICE, whole, None, BOB, expire("a", "b", 99), expire("a", "b", 4), Leave(by="a")),
        *(join("c", "carol", at=8), Weigh(by="c", name="bob", weight=0), join("d", "carol", at=10)),
    )
    expected = {"records": 11, "skipped": 1, "joins": 4, "suspicions": 2, "expired": 1, "leaves": 1, "snapshots": 1}
    expected |= {"wishes": 1, "replaced": 1}
    assert expected == {kind: one.group.counts[kind] for kind in expected}
    one = reading(genesis(), ALICE, BOB, *GIVE, Certify(by="b", incarnation="a"), Certify(by="b", incarnation="a"))
    assert (1, 0, 0) == tuple(one.group.counts[kind] for kind in ("certified", "expired", "suspicions"))


def test_events_are_kept_up_to_a_bound_and_deaths_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = 50
    monkeypatch.setattr(chronicle, "EVENTS_MAX", kept)
    one = reading(genesis())
    for number in range(kept):
        seat = f"m{number}"
        read_on(one, join(seat, at=one.group.state.at), Leave(by=seat))
    assert (kept, f"m{kept - 1}") == (len(one.group.moves), one.group.moves[-1].source)
    assert 8 * kept == one.group.counts["moves"]
    one = reading(genesis(), ALICE, BOB, *GIVE, expire("a", "b", 2))
    for weight in range(2 * kept):
        read_on(one, Weigh(by="a", name="alice", weight=1 + weight % 7))
    assert ["join", "join", "expire"] == [event.cause for event in one.group.events[:3]]
    assert 3 + kept == len(one.group.events)
    one = reading(genesis(), ALICE)
    one._named = chronicle.PARTITIONS_MAX  # As if PARTITIONS_MAX had been moved before.
    read_on(one, Leave(by="a"))
    assert ["2: 0,1,2,3 alice -> None, leave by alice"] == spelled(one.group.moves)
    assert [4, 4] == [moved.number for event in one.group.events for moved in event.moved]


def told(events: Sequence[GroupEvent]) -> list[str]:
    """For example "3: drain of bob by op, 2 bob -> alice"."""
    return [
        f"{event.offset}: {event.cause} of {event.member or '?'} by {event.by or '?'}"
        + "".join(f", {moved.number} {moved.source} -> {moved.target}" for moved in event.moved)
        for event in events
    ]


def test_a_drain_is_one_event_with_all_that_it_moves_and_a_pin_says_which_partition() -> None:
    drain = Drain(by="op", name="bob")
    back = [Handover(by="b", terms={1: 1003}), Handover(by="b", terms={3: 1004})]
    one = reading(genesis(), ALICE, BOB, *GIVE, drain, now=5.0)
    read_on(one, *back, now=7.0)
    assert [
        "1: join of alice by alice, 4 None -> alice",
        "2: join of bob by bob, 2 alice -> bob",
        "5: drain of bob by op, 2 bob -> alice",
    ] == told(one.group.events)
    newest = one.group.events[-1]
    assert (5, 7, 5.0, 7.0) == (newest.offset, newest.last, newest.read_at, newest.last_at)
    assert (1, 3) == newest.moved[0].partitions
    one = reading(genesis(), ALICE, now=3.0)
    read_on(one, BOB, Pin(by="op", partition=3, name="bob"), now=4.0)
    pin = one.group.events[-1]
    assert ("pin", "bob", 3) == (pin.cause, pin.member, pin.partition)
    assert [7.0, 6.0] == [member.joined_ago for member in one.group.members(10.0)]
    assert [3.0] == [move.read_at for move in one.group.moves]


def test_a_grace_ends_in_an_event_that_names_its_member_and_so_do_the_ends_of_several() -> None:
    one = reading(genesis(version=3), ALICE, BOB, *GIVE)
    read_on(one, Leave(by="a", grace=9.0))
    assert [("alice", True), ("bob", False)] == [(it.name, it.away) for it in one.group.members(0.0)]
    read_on(one, expire("b", "a", 5))
    assert ["5: leave of alice by alice", "6: expire of alice by bob, 2 alice -> bob"] == told(one.group.events)[-2:]
    one = reading(genesis(version=3), ALICE, BOB, *GIVE)
    read_on(one, Leave(by="a", grace=9.0), Drain(by="o", name="alice"))
    assert "6: drain of alice by o, 2 alice -> bob" == told(one.group.events)[-1]
    one = reading(genesis(version=3), ALICE, *(join(name, name) for name in "vwxyz"))
    read_on(one, Expire(by="a", v=2, last_beats={name: 2 + place for place, name in enumerate("vwxyz")}))
    assert "7: expire of v, w, x and 2 more by alice" == told(one.group.events)[-1]


DEATH = "5: expire of alice by bob, 2 alice -> bob"
CERTIFIED = "5: certify of alice by bob, 2 alice -> bob"


@pytest.mark.parametrize(
    ("records", "events"),
    [
        ([join("c", "alice", at=2)], ["2: replace of alice by alice"]),
        # A wish moves nothing before its handovers.
        ([BOB, Weigh(by="a", name="bob", weight=0)], ["3: weigh of bob by alice"]),
        ([BOB, *GIVE, expire("b", "a", 1)], [DEATH]),
        # One event for two beats.
        ([BOB, *GIVE, expire("b", "a", 1), beat("a"), beat("a")], [DEATH, "6: fence of alice by alice"]),
        # A beat after the certificate and a certificate for a former member cause no event.
        ([BOB, *GIVE, Certify(by="b", incarnation="a"), beat("a")], [CERTIFIED]),
        ([BOB, Leave(by="b"), Certify(by="a", incarnation="b")], ["3: leave of bob by bob"]),
        ([Upgrade(by="op", version=3), Upgrade(by="op", version=9)], ["2: upgrade of ? by op"]),
        # A witness outside the group is shown under the name it gives itself.
        ([BOB, Certify(by="witness of bob", incarnation="b")], ["3: certify of bob by witness of bob"]),
        # A member that left is not fenced, and records without effect cause no event.
        ([BOB, Leave(by="b"), beat("b"), expire("a", "b", 99), Undrain(by="op", name="x")], ["3: leave of bob by bob"]),
    ],
)
def test_events_say_what_became_of_a_member(records: list[Record], events: list[str]) -> None:
    one = reading(genesis(), ALICE, *records)
    assert events == [line for line in told(one.group.events) if ": join of" not in line]


@LAW
@given(plots)
def test_a_chronicle_and_the_annals_of_the_same_ledger_tell_the_same_events(drawn: list[Plot]) -> None:
    entries = [(offset, record) for offset, record in story(drawn) if record is not None]
    one, annals = Chronicle(), Annals()
    one.begin(State(), 0.0)
    one.read(entries, 0.0)
    annals.read(Entry(offset, encode(record)) for offset, record in entries)
    assert told(one.group.events) == told([episode.told() for episode in annals.events])


@LAW
@given(plots, st.lists(st.integers(0, 40), max_size=5))
def test_however_records_come_the_moves_lead_from_nobody_to_the_owners(drawn: list[Plot], cuts: list[int]) -> None:
    entries = story(drawn)
    one = Chronicle()
    one.begin(State(), 0.0)
    edges = [0, *sorted(cut for cut in cuts if cut < len(entries)), len(entries)]
    for low, high in pairwise(edges):
        one.read(entries[low:high], float(low))
    assert folded(*(record for _, record in entries)) == one.group.state
    shown: dict[int, str | None] = {}
    for move in one.group.moves:
        for partition in move.partitions:
            assert shown.get(partition) == move.source
            shown[partition] = move.target
    names = {seat.incarnation: seat.name for seat in one.group.state.seats.values()}
    assert [owner and names[owner] for owner in one.group.state.owners] == [shown.get(place) for place in range(4)]
