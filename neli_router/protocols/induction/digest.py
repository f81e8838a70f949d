"""The digest: a sixty-four-bit fingerprint of a state.

Two members that folded the same records must hold the same state. If memory, a release or the ledger itself went wrong,
they do not, and it would show only when two of them act for one partition. So every Beat carries the digest of its
writer's state, and readers compare it with their own at the same offset.

    state = { fact, fact, ... }        digest = hash(fact) xor hash(fact) xor ...

With an exclusive-or of the facts' hashes, the cost of a change depends on the facts that it touches and not on the size
of the table, and the order in which the facts arose does not matter. The digest guards against accidents, not against
forgers.
"""

from collections.abc import Iterator
from itertools import compress, count
from operator import is_not
from typing import Any

import mmh3
import msgspec
from msgspec import Struct

__all__ = ["difference", "digest_text", "hash_of"]

NOT_FACTS = frozenset({"at", "digest"})  # `at` is compared separately, and a digest cannot contain itself.

_encode = msgspec.json.Encoder().encode


def digest_text(digest: int) -> str:
    """A digest in the form that records carry."""
    return f"{digest:016x}"


def hash_of(field: str, key: object, value: object) -> int:
    """The hash of one fact: `field` has `value` under `key`."""
    # JSON and not str(): a name that contains a separator must not read like two facts.
    return mmh3.mmh3_x64_128_uintdigest(_encode((field, key, value))) & 0xFFFF_FFFF_FFFF_FFFF


def difference(before: Struct, after: Struct) -> int:
    """The exclusive-or of the hashes of all facts that hold in only one of the two."""
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
        # Nearly all entries of a table are the same objects as before, and C finds the others much faster than a loop.
        for index in compress(count(), map(is_not, old, new)):
            if old[index] != new[index]:
                yield index, old[index], new[index]
        for index in range(min(len(old), len(new)), max(len(old), len(new))):
            yield index, old[index] if index < len(old) else None, new[index] if index < len(new) else None
    elif old != new:
        yield None, old, new
