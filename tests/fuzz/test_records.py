"""Arbitrary records: every record that can be made is read back unchanged, and nothing that is read does harm.

    a class --its own bounds--> any record --encode--> bytes --cut, spliced, flipped--> decode --> Record | None

tests/protocols/induction/test_records.py tests the format and its limits, and changes one field or one byte of a few
records. Here the records themselves are drawn, from the bounds that their classes declare, so that a new kind of
record, or a new field, is fuzzed from its first day.
"""

import re
from contextlib import suppress
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw, inspect

from neli_router.core.keyspace import SLOTS_MAX, Layout
from neli_router.protocols.induction.fold import fold
from neli_router.protocols.induction.records import BATCHES, Record, Snapshot, decode, encode
from neli_router.protocols.induction.snapshots import BadSnapshot, restore, snapshot
from tests.support.records import founded, join

LAW = settings(max_examples=60)

LAYOUTS = st.builds(
    lambda slots, partitions, tags: Layout(slots=slots, partitions=min(slots, partitions), tags=tags),
    st.integers(1, SLOTS_MAX),
    st.integers(1, 64),  # A table is made for them.
    st.booleans(),
)


def values_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may hold."""
    match kind:
        case inspect.StructType(cls=cls) if cls is Layout:
            return LAYOUTS  # Its parts depend on each other, which their types do not express.
        case inspect.StructType(cls=cls, fields=fields):
            drawn = {
                field.name: st.just(UNSET) | values_of(field.type) if field.default is UNSET else values_of(field.type)
                for field in fields
            }
            return st.builds(cls, **drawn)
        case inspect.IntType(ge=least, le=most):
            return st.integers(least, most)
        case inspect.FloatType(ge=least, gt=above, le=most):
            bound = above if least is None else least
            return st.floats(bound, most, exclude_min=above is not None, allow_nan=False, allow_infinity=False)
        case inspect.StrType(pattern=pattern, min_length=least, max_length=int(most)) if pattern is not None:
            return st.text(min_size=least or 0, max_size=most).filter(re.compile(pattern).search)
        case inspect.StrType(pattern=pattern) if pattern is not None:
            return st.from_regex(pattern)
        case inspect.StrType(min_length=least, max_length=most):
            return st.text(min_size=least or 0, max_size=most)
        case inspect.LiteralType(values=values):
            return st.sampled_from(sorted(values, key=str))
        case inspect.ListType(item_type=item):
            return st.lists(values_of(item), max_size=3)
        case inspect.DictType(key_type=key, value_type=value, min_length=least):
            return st.dictionaries(values_of(key), values_of(value), min_size=least or 0, max_size=3)
        case inspect.RawType():
            return st.sampled_from([Raw(b"1"), Raw(b'{"a":[null]}')])
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(values_of, items))
        case inspect.UnionType(types=types):
            return st.one_of(*map(values_of, types))
        case inspect.NoneType():
            return st.none()
    raise AssertionError(f"a record has a field of a type that is not fuzzed yet: {kind}")


def in_its_format(record: Record) -> bool:
    """Whether `record` says no more than its format can."""
    if isinstance(record, Snapshot) and record.state.genesis.ext is not UNSET:
        return False
    named = getattr(record, "terms", getattr(record, "last_beats", {}))
    return record.v >= BATCHES or (record.ext is UNSET and len(named) < 2)


RECORDS: st.SearchStrategy[Record] = st.one_of(
    *(values_of(inspect.type_info(kind)).filter(in_its_format) for kind in get_args(Record))
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The bytes of a record after an accident: pieces lost, doubled, overwritten, or taken from another record."""
    payload = encode(draw(RECORDS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(payload)))
        end = draw(st.integers(start, min(len(payload), start + 16)))
        other = encode(draw(RECORDS))
        piece = draw(st.binary(max_size=8) | st.just(payload[start:end] * 2) | st.just(other[start : start + 16]))
        payload = payload[:start] + piece + payload[end:]
    return payload


@LAW
@given(st.lists(RECORDS.map(encode) | damaged(), max_size=8))
def test_any_bytes_are_a_record_or_none_and_whatever_they_are_folds(payloads: list[bytes]) -> None:
    """A program that can append must not be able to stop the readers."""
    state = founded(join("a"), join("b"))
    for offset, payload in enumerate(payloads, start=state.at):
        record = decode(payload)
        assert record is None or record == decode(encode(record))
        state = fold(state, offset, record)
        assert offset + 1 == state.at
    if state.genesis is not None:  # Whatever the result is, it can be stored, and started from.
        assert state == restore(snapshot("z", state))


@LAW
@given(RECORDS)
def test_any_record_is_read_as_it_was_written(record: Record) -> None:
    payload = encode(record)
    assert record == decode(payload)
    assert b"\n" not in payload


@LAW
@given(values_of(inspect.type_info(Snapshot)))
def test_a_snapshot_of_anything_is_restored_or_refused(record: Snapshot) -> None:
    with suppress(BadSnapshot):
        assert record.upto == restore(record).at
