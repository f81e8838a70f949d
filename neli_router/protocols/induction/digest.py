"""The digest: sixty-four bits that tell two states apart.

Two members that folded the same records must hold the same state; if memory, a release or the ledger itself went
wrong, they do not, and it would show only when two of them act for one partition. So every Beat carries the digest
of its writer's state, and readers compare it with their own at the same offset.

    state = { fact, fact, ... }        digest = hash(fact) xor hash(fact) xor ...

The exclusive-or of a hash of each fact lets a change cost the facts it touches, not the size of the table, and it does
not depend on the order in which the facts came to be. It guards against accidents, not against forgers.
"""

from collections.abc import Iterator
from itertools import compress, count
from operator import is_not
from typing import Any

import mmh3
import msgspec
from msgspec import Struct

__all__ = ["difference", "hash_of"]

NOT_FACTS = frozenset({"at", "digest"})  # Where the state stands is compared beside it, and it cannot contain itself.

_encode = msgspec.json.Encoder().encode


def hash_of(field: str, key: object, value: object) -> int:
    """The hash of one fact: `field` has `value` under `key`."""
    # JSON and not str(): a name with a separator in it must not read like two facts.
    return mmh3.mmh3_x64_128_uintdigest(_encode((field, key, value))) & 0xFFFF_FFFF_FFFF_FFFF


def difference(before: Struct, after: Struct) -> int:
    """The exclusive-or of all facts that hold in only one of the two."""
    digest = 0
    for field in before.__struct_fields__:
        old, new = getattr(before, field), getattr(after, field)
        if old is new or field in NOT_FACTS:
            continue
        for key, was, now in _changes(old, new):
            digest ^= 0 if was is None else hash_of(field, key, was)
            digest ^= 0 if now is None else hash_of(field, key, now)
    return digest


def _changes(old: Any, new: Any) -> Iterator[tuple[object, object, object]]:
    if isinstance(old, dict):
        for key in {**old, **new}:
            was, now = old.get(key), new.get(key)
            if was != now:
                yield key, was, now
    elif isinstance(old, tuple):
        # Nearly all of a table are the very objects of before, and C finds the others much sooner than a loop.
        for index in compress(count(), map(is_not, old, new)):
            if old[index] != new[index]:
                yield index, old[index], new[index]
        for index in range(min(len(old), len(new)), max(len(old), len(new))):
            yield index, old[index] if index < len(old) else None, new[index] if index < len(new) else None
    elif old != new:
        yield None, old, new
