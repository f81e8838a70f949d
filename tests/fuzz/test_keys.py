"""Keys from anywhere: every text and every bytes has one slot or is refused, and tags fall where Redis Cluster's do.

tests/test_keyspace.py has the hash itself, and Redis' own examples. Here is its rule once more, written from the
words of the Redis Cluster specification: if the key has a `{`, and a `}` to the right of it, and one or more characters
between the first `{` and the first `}` after it, then only those are hashed.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neli_router.errors import BadKey
from neli_router.keyspace import SLOTS_MAX, Layout, hasher

LAW = settings(deadline=None, max_examples=300, derandomize=True)

CHARACTERS = st.characters(codec=None) | st.sampled_from("{}") | st.integers(0xD800, 0xDFFF).map(chr)
ANY_TEXT = st.text(CHARACTERS, max_size=40)
BRACED = st.text(st.sampled_from("{}ab ö"), max_size=12).map(str.encode) | st.binary(max_size=20)
LAYOUTS = st.builds(
    lambda slots, tags: Layout(slots=slots, partitions=min(slots, 256), tags=tags),
    st.sampled_from([1, 2, 1000, 16384, 2**31, SLOTS_MAX]),
    st.booleans(),
)


def hashed_by_redis(key: bytes) -> bytes:
    """The part of `key` that Redis Cluster hashes, found one byte after the other."""
    opened = closed = None
    for place, character in enumerate(key):
        if opened is None and character == ord("{"):
            opened = place
        elif opened is not None and closed is None and character == ord("}"):
            closed = place
    if opened is None or closed is None or closed == opened + 1:
        return key
    return key[opened + 1 : closed]


@LAW
@given(BRACED)
@example(b"{}{tag}")
@example(b"{{tag}}")
@example(b"}{tag")
def test_tags_are_where_redis_cluster_has_them(key: bytes) -> None:
    assert Layout().slot(hashed_by_redis(key)) == Layout(tags=True).slot(key)


@LAW
@given(LAYOUTS, ANY_TEXT)
@example(Layout(), "\ud800")
@example(Layout(), "{\udfff}a")
@example(Layout(tags=True), "{tag}\ud800")
def test_any_text_has_the_slot_of_its_bytes_or_is_refused_if_it_has_none(layout: Layout, key: str) -> None:
    """A surrogate outside of the tag is not let through either: a text is a key in every layout or in none."""
    ways = (layout.slot, hasher(layout), layout.partition, layout.partition_of_role)
    if any(0xD800 <= ord(character) <= 0xDFFF for character in key):
        for way in ways:
            with pytest.raises(BadKey) as caught:
                way(key)
            # Python's own message about the text has the text in it.
            assert caught.value.__context__ is None
            assert f"length {len(key)} " in caught.value.found
    else:
        slot = layout.slot(key.encode())
        assert 0 <= slot < layout.slots
        partition = slot % layout.partitions
        assert [slot, slot, partition, partition] == [way(key) for way in ways]


@LAW
@given(LAYOUTS, st.binary(max_size=100), st.integers())
def test_any_bytes_have_one_slot_and_any_number_is_a_role(layout: Layout, key: bytes, role: int) -> None:
    slot = layout.slot(key)
    assert 0 <= slot < layout.slots
    assert slot == hasher(layout)(key)
    assert slot % layout.partitions == layout.partition(key) == layout.partition_of_role(key)
    assert 0 <= layout.partition_of_role(role) < layout.partitions
