"""All vectors but the ledgers: keys and their partitions, facts and their hashes, and odd lines.

`decoding.jsonl` is written by hand: add a line there to ask how readers take it. Only its `kind` is computed.
"""

import json
from typing import Any

import msgspec

from neli_router.core.keyspace import Key, Layout
from neli_router.protocols.induction.digest import digest_text, hash_of
from neli_router.protocols.induction.records import Genesis, Seat, decode
from tests.vectors.files import bytes_of, text_of

__all__ = ["decoding", "facts", "hashing"]

TEXTS = ("", "a", "alice", "42", "köln", "\U0001f600", "orders/2026-11-28", "x" * 300)
TAGGED = ("{customer-7}orders", "{customer-7}invoices", "{}orders", "a{b", "a}b{c}d", "{{c}}", "{a}{b}", "}{", "{é}")
HASHED: tuple[Key, ...] = (*TEXTS, *TAGGED, b"", b"alice", b"\xff\x00\xfe", b"{\xff}\x00")
LAYOUTS = (
    Layout(),
    Layout(tags=True),
    Layout(slots=1000, partitions=7),
    Layout(slots=2**32, partitions=65536),
    Layout(slots=1, partitions=1),
    Layout(slots=3, partitions=3, tags=True),
)

DOUBLES = (
    1.0,
    0.1,
    2.5,
    3600.0,
    1 / 3,
    1e-5,
    1.2345678901234567e-5,
    9.99e-6,
    1e-6,
    1.5e-7,
    5e-324,
    1e15,
    123456789012345.6,
)
FACTS: tuple[tuple[str, Any, Any], ...] = (
    ("genesis", None, Genesis(by="a", layout=Layout(), lease=1.0, guarantee="exclusive", base=0, version=3)),
    ("genesis_at", None, 0),
    ("seats", "a1", Seat("a1", 'köln & "co"\\<1>/', "10.0.0.1:80", 2, "x", (2, 3), 7)),
    *(("terms", 0, 0), ("terms", 11, 2**53 - 1), ("owners", 3, "a1"), ("pins", 3, "köln"), ("departed", 0, "a1")),
    *(("drains", "köln", 9), ("weights", "a", 0), ("clear", "a1", 12), ("graces", "a1", -0.0), ("graces", "a1", 0.0)),
    *(("loads", 2, double) for double in DOUBLES),
)


def hashing() -> str:
    """Keys, and their slots and partitions under several layouts."""
    return text_of(
        {
            **({"text": key} if isinstance(key, str) else {"hex": key.hex()}),
            **msgspec.structs.asdict(layout),
            "slot": layout.slot(key),
            "partition": layout.partition(key),
        }
        for key in HASHED
        for layout in LAYOUTS
    )


def facts() -> str:
    """Facts, as the digest sees them, and their hashes."""
    encode = msgspec.json.Encoder().encode
    return text_of({"fact": encode(fact).decode(), "hash": digest_text(hash_of(*fact))} for fact in FACTS)


def decoding(text: str) -> str:
    """The lines in `text`, with the kinds that readers take them for; null for those that they skip."""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    return text_of({**line, "kind": _kind(bytes_of(line))} for line in lines)


def _kind(line: bytes) -> str | None:
    record = decode(line)
    return None if record is None else type(record).__name__.lower()
