"""The format of the ledger: its exact bytes, and that all readers skip anything that is not of this format."""

import json
from pathlib import Path
from typing import get_args

import pytest

from neli_router.core.keyspace import Layout
from neli_router.protocols.induction.records import (
    TIME_MAX,
    WHOLE_MAX,
    Beat,
    Certify,
    Drain,
    Expire,
    Genesis,
    Handover,
    Join,
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
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.protocols.protocol import BASE_MAX, LEASE_MAX, LEASE_MIN, NAME_MAX, RECORD_MAX, WEIGHT_MAX
from tests.support.records import founded, join

STATE = founded(
    Join(by="a1", name="alice", address="10.0.0.1:80", weight=2, zone="eu", versions=(2, 2), at=1),
    Drain(by="op", name="bob"),
    Pin(by="op", partition=1, name="bob"),
    Weigh(by="op", name="bob", weight=3),
    Load(by="op", loads={0: 2.5}),
    Join(by="b1", name="bob", versions=(2, 2), at=6, witness="agent"),
    Handover(by="a1", terms={1: 1001}),
    join("c"),
    Leave(by="c"),
)

RECORDS: list[Record] = [
    Genesis(by="a1", layout=Layout(), lease=0.3, guarantee="available", base=1_767_225_600_000_000, version=2, at=4),
    Join(by="a1", name="alice", address="10.0.0.1:80", weight=2, zone="eu", versions=(1, 2), at=7),
    Join(by="a1", name="alice", versions=(2, 2), at=7, witness="agent", floor=1_767_225_600_000_000),
    Beat(by="a1", sent_at=12.5, at=7, digest="00ff00ff00ff00ff"),
    Expire(by="a1", last_beats={"b1": 9}),
    Expire(by="a1", v=2, last_beats={"b1": 9, "c1": 4}),
    Certify(by="witness of alice", incarnation="a1"),
    *(Handover(by="a1", terms={3: 1001}), Handover(by="a1", v=2, terms={3: 1001, 5: 1002}), Leave(by="a1")),
    *(Drain(by="op", name="bob"), Undrain(by="op", name="bob")),
    *(Pin(by="op", partition=3, name="bob"), Unpin(by="op", partition=3)),
    *(Weigh(by="op", name="bob", weight=3), Weigh(by="op", name="bob", weight=None)),
    *(Load(by="op", loads={0: 2.5, 7: 1.0}), Upgrade(by="op", version=2), snapshot("a1", STATE)),
]
BYTES = (Path(__file__).parent / "rules" / "records.jsonl").read_bytes().splitlines()
WRITTEN = list(zip(RECORDS, BYTES, strict=True))
"""Every kind of record, and its bytes. Older members cannot read a record that changes here: it needs another `v`, or
a new fold version, so that they refuse the group."""

KINDS = [type(record).__name__ for record, _ in WRITTEN]


def without(payload: bytes, field: str) -> bytes:
    return json.dumps({key: value for key, value in json.loads(payload).items() if key != field}).encode()


def with_(payload: bytes, **fields: object) -> bytes:
    return json.dumps({**json.loads(payload), **fields}).encode()


def test_every_kind_of_record_is_written_down_here_snapshots_are_told_apart_and_fields_of_newer_releases_may_miss() -> (
    None
):
    assert {kind.__name__ for kind in get_args(Record)} == set(KINDS)
    genesis = decode(without(WRITTEN[0][1], "at"))
    assert isinstance(genesis, Genesis)
    assert 0 == genesis.at
    # A search for a snapshot in a long ledger decodes only records whose first bytes say that they are one.
    snapshots = [payload for record, payload in WRITTEN if b'"snapshot"' in payload[:40]]
    assert [encode(record) for record, _ in WRITTEN if isinstance(record, Snapshot)] == snapshots


@pytest.mark.parametrize(("record", "payload"), WRITTEN, ids=KINDS)
def test_the_bytes_of_a_record_never_change(record: Record, payload: bytes) -> None:
    """A record is one line of JSON that starts with its kind."""
    assert payload == encode(record)
    assert record == decode(payload)
    assert b"\n" not in payload
    fields = json.loads(payload)
    assert ("kind", type(record).__name__.lower()) == next(iter(fields.items()))
    assert {"v": record.v, "by": record.by}.items() <= fields.items()


@pytest.mark.parametrize("payload", [payload for _, payload in WRITTEN], ids=KINDS)
def test_a_record_that_says_what_we_do_not_know_may_have_any_meaning_so_it_is_none(payload: bytes) -> None:
    upper = json.loads(payload)["kind"].upper()
    odd: list[dict[str, object]] = [{"unknown": 1}, {"by": ""}, {"kind": "unheard"}, {"kind": upper}]
    odd += [{"v": version} for version in (0, 3, 1.0, "1", True, None)]
    odd += [{"v": 1, "ext": {}}]
    assert [] == [fields for fields in odd if decode(with_(payload, **fields)) is not None]
    assert [None, None] == [decode(without(payload, field)) for field in ("by", "kind")]


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 100_000,
        b'{"kind":"leave","by":' + b"[" * 100_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b',"kind":"leave","by":"a"}',
        b'{"kind":"leave","by":"a","unknown":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"kind":"upgrade","by":"a","version":' + b"9" * 100_000 + b"}",
    ],
    ids=lambda payload: repr(payload[:50]),
)
def test_what_is_nested_or_counts_without_end_is_none(payload: bytes) -> None:
    """Odd lines that are shorter are in tests/vectors/decoding.jsonl."""
    assert decode(payload) is None


PLACE = {kind: KINDS.index(kind) for kind in KINDS}
LONG, LONGER = "n" * NAME_MAX, "n" * (NAME_MAX + 1)
TEXT: list[tuple[object, object]] = [(LONG, LONGER), ("plain, spaced, é", "\x1b[2Ja")]
"""No text may be one that a terminal obeys."""
SOUND = {"slots": 4, "partitions": 4}

LIMITS: dict[str, dict[str, list[tuple[object, object]]]] = {
    "Leave": {"by": TEXT, "grace": [(0, -1), (LEASE_MAX, 2 * LEASE_MAX)]},
    "Join": {
        "name": [*TEXT, ("n", "")],
        "weight": [(WEIGHT_MAX, WEIGHT_MAX + 1), (0, -1), (1, 1.5)],
        **dict.fromkeys(("address", "zone", "witness"), TEXT),
        "versions": [([1, WHOLE_MAX], [1, 2**70]), ([1, 1], [1])],
    },
    "Weigh": {"weight": [(WEIGHT_MAX, WEIGHT_MAX + 1)]},
    "Certify": {"by": TEXT, "incarnation": [*TEXT, ("i", "")]},
    **{kind: {"name": [*TEXT, (LONG, "")]} for kind in ("Drain", "Undrain", "Pin")},
    "Expire": {"incarnation": TEXT},
    "Genesis": {
        "lease": [(LEASE_MIN, LEASE_MIN / 2), (LEASE_MAX, 2 * LEASE_MAX)],
        "guarantee": [("exclusive", "hopeful")],
        "base": [(BASE_MAX, BASE_MAX + 1)],
        "version": [(1, 0)],
        "layout": [(SOUND, {"slots": 4, "partitions": 5}), (SOUND, {**SOUND, "x": 1})],
    },
    "Beat": {
        "sent_at": [(TIME_MAX, 1.1 * TIME_MAX), (-TIME_MAX, -1.1 * TIME_MAX)],
        "digest": [("0" * 16, "0" * 15), ("f" * 16, "g" * 16), ("f" * 16, "f" * 16 + "\n")],
    },
    "Upgrade": {"version": [(1, 0)]},
    "Load": {
        "loads": [({"1": 1e15}, {"1": 2e15}), ({"1": 0}, {"1": -1}), ({"0": 1}, {"-1": 1}), ({"10": 1}, {"x": 1})]
    },
    "Snapshot": {"upto": [(0, -1)]},
}
"""Record and field -> pairs of a value that is allowed and one that is not."""


@pytest.mark.parametrize("kind", LIMITS)
def test_a_limit_is_a_limit(kind: str) -> None:
    payload = WRITTEN[PLACE[kind]][1]
    for field, limits in LIMITS[kind].items():
        for inside, outside in limits:
            assert decode(with_(payload, **{field: inside})) is not None, (field, inside)
            assert decode(with_(payload, **{field: outside})) is None, (field, outside)


def test_a_snapshot_of_an_impossible_state_is_none() -> None:
    """Members that start from a snapshot hash everything in it, so no number may be too large to hash."""
    payload = WRITTEN[PLACE["Snapshot"]][1]
    state: dict[str, object] = json.loads(payload)["state"]
    odd_seat: list[object] = ["a", "a", "", 1, "", [1, 2**70], 1]
    outside: tuple[tuple[str, object], ...] = (
        *(("genesis_at", -1), ("version", 2**70), ("last_beats", [2**70]), ("owners", [-2]), ("terms", [2**70])),
        *(("targets", [-2]), ("pins", {"0": ""}), ("drains", {"": 1}), ("weights", {"bob": -1})),
        *(("loads", {"0": -1.0}), ("departed", [7]), ("digest", "not a digest"), ("unknown", 1)),
        *(("seats", [["a"]]), ("seats", [odd_seat])),
    )
    assert decode(with_(payload, state=state)) is not None
    assert [] == [odd for odd in outside if decode(with_(payload, state={**state, odd[0]: odd[1]})) is not None]


def test_a_record_that_is_too_long_is_none_and_the_largest_base_leaves_room_for_terms() -> None:
    assert BASE_MAX <= WHOLE_MAX // 2 + 1
    assert 1_767_225_600_000_000 < BASE_MAX  # The year 2026, in microseconds.
    payload = WRITTEN[PLACE["Leave"]][1]
    padded = payload + b" " * (RECORD_MAX - len(payload))
    assert decode(padded) is not None
    assert decode(padded + b" ") is None
