"""The form of the test vectors: ledgers, the states that they fold to, keys, facts and odd lines, all as plain JSON.

    ledger:  {"offset":7,"record":{...}}      states:  {"ledger":...,"sha256":...}    which ledger, and where to start
             {"offset":9,"text":"no JSON"}             {"after":7,"digest":...}       after each record
             {"offset":9,"hex":"ff00"}                 {"after":9,"digest":...,"owners":[...],...}     after some

Another language reads these files with its ordinary JSON decoder and compares. So they hold no lists of mixed types,
and no number above 2**53. Runs of partitions that are alike share one entry, so that people can read a table.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import groupby
from typing import Any

from neli_router.drivers.ledgers.pump import FIRST_OFFSET_MAX
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Snapshot, decode
from neli_router.protocols.induction.snapshots import BadSnapshot, restore

__all__ = [
    "KEYS",
    "Entries",
    "bytes_of",
    "described",
    "ledger_lines",
    "read_ledger",
    "start_of",
    "state_lines",
    "text_of",
]

KEYS = ("alice", "42", "orders/2026-11-28", "köln")
"""The keys that are looked up in each state that is written down."""

Entries = Sequence[tuple[int, bytes]]
"""The records of a ledger: offsets, and bytes."""


def text_of(lines: Iterable[object]) -> str:
    """JSON lines."""
    return "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)


def ledger_lines(entries: Entries) -> str:
    """A ledger as JSON lines. A record keeps its bytes; anything else becomes a text, or hexadecimal digits."""
    lines = []
    for offset, payload in entries:
        if decode(payload) is not None:
            lines.append(f'{{"offset":{offset},"record":{payload.decode()}}}\n')
            continue
        try:
            lines.append(text_of([{"offset": offset, "text": payload.decode()}]))
        except UnicodeDecodeError:
            lines.append(text_of([{"offset": offset, "hex": payload.hex()}]))
    return "".join(lines)


def read_ledger(text: str) -> list[tuple[int, bytes]]:
    """The entries of a ledger that `ledger_lines` wrote."""
    return [_entry(line) for line in text.removesuffix("\n").split("\n")]


def _entry(line: str) -> tuple[int, bytes]:
    fields = json.loads(line)
    offset = fields["offset"]
    if "record" in fields:
        # The bytes themselves, and not what another encoder makes of them.
        return offset, line.removeprefix(f'{{"offset":{offset},"record":').removesuffix("}").encode()
    return offset, bytes_of(fields)


def bytes_of(line: Mapping[str, Any]) -> bytes:
    """The bytes of a `text`, or of the digits in a `hex`."""
    return line["text"].encode() if "text" in line else bytes.fromhex(line["hex"])


def start_of(entries: Entries) -> tuple[int | None, State]:
    """Where a reader starts: the offset of the snapshot that it starts from, if the ledger dropped its beginning."""
    first = entries[0][0]
    if first <= FIRST_OFFSET_MAX:
        return None, State()
    for offset, payload in entries:
        record = decode(payload)
        if isinstance(record, Snapshot) and first <= record.upto <= offset:
            with suppress(BadSnapshot):
                return offset, restore(record)
    raise AssertionError("this ledger has no start")


def state_lines(name: str, about: str, entries: Entries, *, every: int) -> str:
    """The states of a ledger: the digest after each record, and after each of `every` and the last one all of it."""
    snapshot, state = start_of(entries)
    head: dict[str, Any] = {"ledger": f"{name}.ledger.jsonl", "about": about}
    head["sha256"] = sha256(ledger_lines(entries).encode()).hexdigest()
    if snapshot is not None:
        head |= {"snapshot": snapshot, "at": state.at, "digest": digest_text(state.digest)}
    lines = [head]
    folded = [(offset, payload) for offset, payload in entries if offset >= state.at]
    for count, (offset, payload) in enumerate(folded, 1):
        state = fold(state, offset, decode(payload))
        is_whole = count % every == 0 or count == len(folded)
        lines.append({"after": offset, "digest": digest_text(state.digest), **(described(state) if is_whole else {})})
    return text_of(lines)


def described(state: State) -> dict[str, Any]:
    """Everything in `state`. An empty text stands for no member."""
    if state.genesis is None:
        return {"version": 0}
    wishes = {"pins": state.pins, "drains": state.drains, "weights": state.weights, "loads": state.loads}
    more = {**wishes, "graces": state.graces, "away": state.away, "clear": state.clear, "departed": state.departed}
    return {
        "version": state.version,
        "base": state.base,
        "members": [*state.members],
        "seats": [
            {"incarnation": q, "name": seat.name, "joined": seat.joined, "last_beat": state.last_beats[q]}
            for q, seat in state.seats.items()
        ],
        "owners": [
            {"from": first, "to": last, "member": owner or "", "term": term, "began": began}
            for first, last, (owner, term, began) in _runs(zip(state.owners, state.terms, state.began, strict=True))
        ],
        "targets": [{"from": a, "to": b, "member": target or ""} for a, b, target in _runs(state.targets)],
        "standbys": [{"from": a, "to": b, "member": standby or ""} for a, b, standby in _runs(state.standbys)],
        **{field: value for field, value in more.items() if value},
        "lookups": [_looked_up(state, key) for key in KEYS],
    }


def _runs(table: Iterable[Any]) -> Iterator[tuple[int, int, Any]]:
    for value, run in groupby(enumerate(table), key=lambda place: place[1]):
        places = [i for i, _ in run]
        yield places[0], places[-1], value


def _looked_up(state: State, key: str) -> dict[str, Any]:
    assert state.genesis is not None
    partition = state.genesis.layout.partition(key)
    seat = state.seats.get(state.owners[partition] or "")
    found = {"name": "", "address": ""} if seat is None else {"name": seat.name, "address": seat.address}
    return {"key": key, "partition": partition, "term": state.terms[partition], **found}
