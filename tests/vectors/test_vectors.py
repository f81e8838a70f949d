"""The vectors: our own code computes what they say, and they cover every kind of record."""

import json
from collections import defaultdict
from hashlib import sha256
from math import inf
from typing import cast, get_args

import pytest

from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.pump import oldest_state
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.fold import fold
from neli_router.protocols.induction.records import Record, decode
from tests.vectors.__main__ import FOLDER, written
from tests.vectors.files import described, read_ledger, start_of

SIZE_MAX = 600_000
"""Bytes of all files: people read them, and every clone has them."""

NAMES = sorted(path.name.removesuffix(".states.jsonl") for path in FOLDER.glob("*.states.jsonl"))


def content(name: str) -> str:
    return (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_ledger_folds_to_the_states_beside_it(name: str) -> None:
    head, *states = map(json.loads, content(f"{name}.states").splitlines())
    text = content(f"{name}.ledger")
    assert head["sha256"] == sha256(text.encode()).hexdigest()
    entries = read_ledger(text)
    snapshot, state = start_of(entries)
    started = head.get("snapshot"), head.get("at", 0), head.get("digest", digest_text(0))
    assert started == (snapshot, state.at, digest_text(state.digest))
    expected = {one["after"]: one for one in states}
    for offset, payload in entries:
        if offset < state.at:
            continue
        state = fold(state, offset, decode(payload))
        if (wanted := expected.pop(offset, None)) is None:
            continue
        found = {"after": offset, "digest": digest_text(state.digest)}
        if len(wanted) > len(found):
            found |= json.loads(json.dumps(described(state)))
        assert wanted == found
    assert {} == expected


def test_every_kind_of_record_counts_somewhere_and_is_void_somewhere() -> None:
    changed: defaultdict[bool, set[str]] = defaultdict(set)
    for name in NAMES:
        entries = read_ledger(content(f"{name}.ledger"))
        _, state = start_of(entries)
        for offset, payload in entries:
            if offset >= state.at:
                after = fold(state, offset, record := decode(payload))
                changed[after.digest != state.digest].add(type(record).__name__)
                state = after
    kinds = {kind.__name__ for kind in get_args(Record)}
    assert kinds - {"Snapshot"} == changed[True]
    assert {*kinds, "NoneType"} == changed[False]


class Retained:
    """A ledger that has dropped its beginning."""

    def __init__(self, entries: list[tuple[int, bytes]]) -> None:
        self._entries = [Entry(*entry) for entry in entries]
        self._position = 0
        self.address = "vectors"

    def start(self) -> int:
        return self._entries[0].offset

    def tip(self) -> int:
        return self._entries[-1].offset + 1

    def seek(self, offset: int) -> None:
        self._position = offset

    def read(self, timeout: float) -> list[Entry]:
        found = [entry for entry in self._entries if entry.offset >= self._position]
        self._position = self.tip()
        return found

    def age(self) -> float:
        return 0.0 if self._position == self.tip() else inf


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_starts_with_the_snapshot_that_is_named(name: str) -> None:
    entries = read_ledger(content(f"{name}.ledger"))
    assert start_of(entries)[1] == oldest_state(cast(Ledger, Retained(entries)))


def test_the_files_are_those_that_the_generator_writes_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the code finds these slots of keys, hashes of facts and kinds of lines. A change to the simulator would change
    the simulated ledgers, which are left out here."""
    monkeypatch.setattr("tests.vectors.__main__.SEEDS", {})
    for name, text in written():
        assert (FOLDER / name).read_text(encoding="utf-8") == text
    assert SIZE_MAX > sum(path.stat().st_size for path in FOLDER.glob("*.jsonl"))
