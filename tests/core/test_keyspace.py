"""The keyspace: known hashes, the laws of the chain, Redis Cluster's tags, and invalid keys.

A key keeps its partition forever, or an upgrade would split every group: tests/vectors/hashing.jsonl.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import click
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neli_router.agent.server.requests import place
from neli_router.commands.conventions import role_given
from neli_router.commands.run import run_command
from neli_router.core.keyspace import PARTITIONS, SLOTS, SLOTS_MAX, Key, Layout, hasher
from neli_router.errors import BadKey, ConfigError
from tests.support.records import LAYOUTS
from tests.support.spellings import SPELLINGS, require_same

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("{}ab")
KEYS = TEXTS | st.binary() | TEXTS.map(str.encode)
CHARACTERS = st.characters(codec=None) | st.sampled_from("{}") | st.integers(0xD800, 0xDFFF).map(chr)
NO_KEYS: list[tuple[object, str]] = [
    *((7, "int"), (None, "NoneType"), (True, "bool"), (1.5, "float"), (["private"], "list"), (("a",), "tuple")),
    ("private\ud800", "str of length 8 with a lone surrogate"),
    (bytearray(b"private"), "bytearray of length 7"),
    (memoryview(b"private"), "memoryview of length 7"),
]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 0x00000000),
        (b"\x00", 0x514E28B7),
        (b"\x00\x00\x00\x00", 0x2362F9DE),
        (b"\xff\xff\xff\xff", 0x76293B50),
        (b"\x21\x43\x65\x87", 0xF55B516B),
        (b"\x21\x43\x65", 0x7E4A8634),
        ("test", 0xBA6BD213),
        ("Hello, world!", 0xC0363E43),
        ("The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_a_slot_is_the_published_murmur3_of_the_key(key: Key, expected: int) -> None:
    assert expected == Layout(slots=SLOTS_MAX).slot(key)
    assert expected % SLOTS == Layout().slot(key)
    # The signed hash, which is faster, would be wrong unless the number of slots is a power of two.
    assert expected % 1000 == hasher(Layout(slots=1000))(key)


@given(LAYOUTS, KEYS, st.integers())
def test_slots_and_partitions_stay_in_range_and_follow_the_chain(layout: Layout, key: Key, role: int) -> None:
    """NELI, section on roles: role j is filled by partition j mod M."""
    slot = layout.slot(key)
    assert 0 <= slot < layout.slots
    assert slot == hasher(layout)(key)
    assert layout.partition(key) == layout.partition_of_slot(slot) == slot % layout.partitions
    assert layout.partition(key) == layout.partition_of_role(key)
    partition = role % layout.partitions
    assert partition == layout.partition_of_role(partition)
    if partition != role:
        with pytest.raises(BadKey, match=rf"from 0 to {layout.partitions - 1}, but this number is none of them"):
            layout.partition_of_role(role)


@given(LAYOUTS, st.text(CHARACTERS, max_size=40))
@example(Layout(), "\ud800")
@example(Layout(), "{\udfff}a")
@example(Layout(tags=True), "{tag}\ud800")
def test_any_text_has_the_slot_of_its_bytes_or_is_refused_if_it_has_none(layout: Layout, key: str) -> None:
    """A surrogate outside the tag is refused, too: a text is a valid key in every layout or in none."""
    ways = (layout.slot, hasher(layout), layout.partition, layout.partition_of_role)
    if any(0xD800 <= ord(character) <= 0xDFFF for character in key):
        for way in ways:
            with pytest.raises(BadKey) as caught:
                way(key)
            # Python's own message about the text contains the text.
            assert caught.value.__context__ is None
            assert f"length {len(key)} " in caught.value.found
    else:
        slot = layout.slot(key.encode())
        partition = slot % layout.partitions
        assert [slot, slot, partition, partition] == [way(key) for way in ways]


def test_keys_spread_evenly_over_the_partitions() -> None:
    """With 400 keys a partition, a fair spread leaves its chi-square within five deviations of its mean."""
    counts = Counter(Layout().partition(f"customer-{number}") for number in range(400 * PARTITIONS))
    chi_square = sum((counts[partition] - 400) ** 2 / 400 for partition in range(PARTITIONS))
    freedom = PARTITIONS - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_what_is_no_role_is_refused() -> None:
    for role in (True, False, None, 1.0, bytearray(b"a"), "\ud800"):
        with pytest.raises(BadKey):
            Layout().partition_of_role(cast("Any", role))


def python(word: str, text: str) -> int:
    is_number = word == "partition" and text.removeprefix("-").isdecimal()
    return Layout().partition_of_role(int(text) if is_number else text if word == "key" else cast("Any", None))


def shell(word: str, text: str) -> int:
    try:
        given = run_command.make_context("run", [f"--{word}={text}", "--", "true"]).params
    except click.UsageError:
        raise SystemExit(2) from None
    return Layout().partition_of_role(role_given(given["key"], given["partition"]))


def http(word: str, text: str) -> int:
    return place({word: text}, Layout()).partition


@pytest.mark.parametrize("front", [python, shell, http])
@pytest.mark.parametrize(("word", "text", "expected"), SPELLINGS)
def test_each_spelling_means_the_same_partition_or_is_rejected(
    front: Callable[[str, str], int], word: str, text: str, expected: int | None
) -> None:
    """For Airflow: tests/provider/test_partitions.py."""
    require_same(front, word, text, expected)


def hashed_by_redis(key: bytes) -> bytes:
    """The part of `key` that Redis Cluster hashes, following its specification word for word, byte by byte."""
    opened = closed = None
    for at, character in enumerate(key):
        if opened is None and character == ord("{"):
            opened = at
        elif opened is not None and closed is None and character == ord("}"):
            closed = at
    if opened is None or closed is None or closed == opened + 1:
        return key
    return key[opened + 1 : closed]


@given(st.text(st.sampled_from("{}ab ö"), max_size=12).map(str.encode) | st.binary(max_size=20))
@example(b"foo{{bar}}zap")
@example(b"foo{}{bar}")
def test_tags_are_where_redis_cluster_has_them_in_any_key(key: bytes) -> None:
    assert Layout().slot(hashed_by_redis(key)) == Layout(tags=True).slot(key)


@pytest.mark.parametrize("layout", [Layout(), Layout(slots=1000), Layout(tags=True)], ids=Layout.spelled)
def test_what_is_no_key_is_refused_on_every_way_in_by_its_type_and_length_and_never_shown(layout: Layout) -> None:
    ways_in: Sequence[Callable[[Any], object]] = [layout.slot, layout.partition, hasher(layout)]
    for way_in, (key, found) in product(ways_in, NO_KEYS):
        with pytest.raises(BadKey) as caught:
            way_in(key)
        assert f"found a {found}" == caught.value.found
        assert "private" not in str(caught.value)
        assert caught.value.__context__ is None, "an error in the background may show the key"


def test_a_layout_survives_json_if_it_does_not_contradict_itself() -> None:
    layout = Layout(slots=4096, partitions=64, tags=True)
    encoded = msgspec.json.encode(layout)
    assert b'{"slots":4096,"partitions":64,"tags":true}' == encoded
    assert layout == msgspec.json.decode(encoded, type=Layout)
    assert Layout() == msgspec.json.decode(b"{}", type=Layout)
    with pytest.raises(msgspec.ValidationError, match="partitions=8 must be at most slots=4"):
        msgspec.json.decode(b'{"slots":4,"partitions":8}', type=Layout)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"slots": 0}, ["slots=0 must be a whole number of at least 1"]),
        ({"partitions": -1}, ["partitions=-1 must be a whole number of at least 1"]),
        ({"slots": True, "partitions": True}, ["slots=True must be a whole", "partitions=True must be a whole"]),
        ({"slots": 1.5, "partitions": "4", "tags": 1}, ["slots=1.5 must", "partitions='4' must", "tags=1 must be"]),
        ({"slots": 4, "partitions": 8}, ["partitions=8 must be at most slots=4"]),
        (
            {"slots": 2**32 + 1, "partitions": 0},
            ["partitions=0 must be", "slots=4294967297 must be at most 4294967296"],
        ),
    ],
)
def test_a_bad_layout_names_all_its_problems_at_once(settings: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout(**settings)
    assert len(expected) == len(caught.value.problems)
    assert all(problem.startswith(start) for problem, start in zip(caught.value.problems, expected, strict=True))


def test_the_largest_and_the_smallest_layout_are_fine_and_a_difference_spells_out_both() -> None:
    assert 2**32 == Layout(slots=2**32).slots
    assert 0 == Layout(slots=1, partitions=1).partition("anything")
    ours, theirs = Layout(), Layout(partitions=128, tags=True)
    expected = (
        "slots=16384, partitions=256, tags=off against slots=16384, partitions=128, tags=on (unequal: partitions, tags)"
    )
    assert expected == ours.difference(theirs)
    assert "" == ours.difference(Layout())
