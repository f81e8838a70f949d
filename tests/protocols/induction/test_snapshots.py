"""A newcomer starts from a snapshot as if it had read everything, and from a damaged one not at all."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import (
    BATCHES,
    Drain,
    Handover,
    Image,
    Leave,
    Load,
    Pin,
    Snapshot,
    Weigh,
    decode,
    encode,
)
from neli_router.protocols.induction.snapshots import Archive, BadSnapshot, restore, snapshot
from tests.support.records import founded, join

STATE = founded(
    *(join("a"), join("b", weight=2), Handover(by="a", terms={1: 1001})),
    *(Drain(by="o", name="x"), Pin(by="o", partition=1, name="x"), Weigh(by="o", name="y", weight=2)),
    *(Load(by="o", loads={0: 1.5}), join("c"), Leave(by="c")),
)

DAMAGES: dict[str, dict[str, Any]] = {
    "genesis_at": {"genesis_at": 1},
    "version": {"version": 3},
    "another base": {"base": 1001},
    "a member too few": {"seats": [list(json.loads(encode(snapshot("z", STATE)))["state"]["seats"][0])]},
    "a beat too few": {"last_beats": [1]},
    "a beat too many": {"last_beats": [1, 2, 3]},
    "another beat": {"last_beats": [1, 3]},
    "another owner": {"owners": [1, 1, 0, 0]},
    "no owner in place of one": {"owners": [-1, 1, 0, 0]},
    "an owner that is not a member": {"owners": [7, 1, 0, 0]},
    "an owner too few": {"owners": [0, 1, 0]},
    "an absent owner too many": {"owners": [0, 1, 0, 0, -1]},
    "another term": {"terms": [1001, 1003, 1001, 1002]},
    "another beginning": {"began": [1, 3, 1, 2]},
    "another target": {"targets": [0, 0, 0, 0]},
    "another pin": {"pins": {"2": "x"}},
    "no drains": {"drains": {}},
    "another weight": {"weights": {"y": 3}},
    "another load": {"loads": {"0": 2.5}},
    "no departed member": {"departed": []},
    "a grace": {"graces": {"a": 5.0}},
    "one that is away": {"away": {"a": 5.0}},
    "one that is clear": {"clear": {"a": 1}},
    "another standby": {"standbys": [1, 1, 1, 1]},
    "a standby too few": {"standbys": [1, 0, 1]},
    "another digest": {"digest": "0" * 16},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_snapshot_that_contradicts_itself_is_refused(damage: dict[str, Any]) -> None:
    """Every part is damaged once, except in the genesis and the seats, whose parts the digest covers as one."""
    assert set(Image.__struct_fields__) - {"genesis"} == {part for each in DAMAGES.values() for part in each}
    fields = json.loads(encode(snapshot("z", STATE)))
    fields["v"] = BATCHES
    fields["state"].update(damage)
    record = decode(json.dumps(fields).encode())
    assert isinstance(record, Snapshot)
    with pytest.raises(BadSnapshot, match=f"snapshot upto {STATE.at} "):
        restore(record)


def test_a_snapshot_is_due_when_enough_was_read_since_the_last_and_members_take_turns() -> None:
    archive = Archive(100, at=50)  # A reader that starts from a snapshot counts from there.
    assert [False, True, False, False, True] == [archive.due(State(at=at), rank=0) for at in (149, 180, 181, 279, 280)]
    # Members leave it to those that joined before them, for one interval each.
    assert [(299, False), (300, True)] == [(at, Archive(100, at=0).due(State(at=at), rank=2)) for at in (299, 300)]
    large = State(owners=(None,) * 500)
    assert [False, True] == [Archive(100, at=0).due(replace(large, at=at), rank=0) for at in (499, 500)]


@pytest.mark.parametrize(("looked", "due_from"), [((), 180), ((150,), 250)], ids=["newer", "of long ago"])
def test_a_snapshot_of_another_member_spares_ones_own_if_it_is_newer(looked: tuple[int, ...], due_from: int) -> None:
    archive = Archive(100, at=0)
    assert [True] * len(looked) == [archive.due(State(at=at), rank=0) for at in looked]
    archive.read(replace(snapshot("b", STATE), upto=80))
    assert [False, True] == [archive.due(State(at=at), rank=0) for at in (due_from - 1, due_from)]


def uptos(archive: Archive, *read: int) -> list[int | None]:
    return [archive.read(replace(snapshot("b", STATE), upto=upto)) for upto in read]


def test_two_snapshots_are_kept_because_a_newcomer_may_be_reading_the_older_and_none_before_the_genesis() -> None:
    assert [None, 100, 200] == uptos(Archive(100, at=0), 100, 200, 300)
    assert [50, 100] == uptos(Archive(100, at=50), 100, 200), "the one that it started from counts"
    assert [None, None, 100] == uptos(Archive(100, at=0), 100, 100, 200), "one that was written twice is not two"
    assert [None, 100, None, 200] == uptos(Archive(100, at=0), 100, 200, 150, 300), "one that comes late drops nothing"
    with pytest.raises(AssertionError):
        snapshot("a", State())
    assert "000000000000002a" == digest_text(42), "a digest is sixteen hexadecimal digits"
