"""The keyspace: known hashes, the laws of the chain, Redis Cluster's tags, and what is not a key."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import mmh3
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neli_router.errors import BadKey, ConfigError
from neli_router.keyspace import PARTITIONS, SLOTS, SLOTS_MAX, Key, Layout, hasher, role_of

LAYOUTS = st.builds(
    lambda slots, share, tags: Layout(slots=slots, partitions=max(1, int(slots * share)), tags=tags),
    st.integers(1, SLOTS_MAX) | st.integers(0, 32).map(lambda power: 2**power),
    st.floats(0, 1),
    st.booleans(),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("{}ab")
KEYS = TEXTS | st.binary() | TEXTS.map(str.encode)
NO_KEYS = [
    "\ud800",
    "name \udfff",
    "{x}\ud800",
    7,
    None,
    True,
    1.5,
    bytearray(b"ab"),
    memoryview(b"ab"),
    ("a",),
    object(),
]


def murmur3_x86_32(text: bytes) -> int:
    """Austin Appleby's MurmurHash3_x86_32 with seed 0, written again from its description."""
    state = 0
    words = [text[at : at + 4] for at in range(0, len(text), 4)]
    for word in words:
        mixed = int.from_bytes(word, "little") * 0xCC9E2D51 & 0xFFFFFFFF
        state ^= (mixed << 15 | mixed >> 17) * 0x1B873593 & 0xFFFFFFFF
        if len(word) == 4:
            state = (state << 13 | state >> 19) & 0xFFFFFFFF
            state = state * 5 + 0xE6546B64 & 0xFFFFFFFF
    state ^= len(text)
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16


# Known answers.


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


@given(st.binary())
def test_a_slot_is_murmur3_written_again(key: bytes) -> None:
    assert murmur3_x86_32(key) % SLOTS == Layout().slot(key)


def test_a_key_keeps_its_partition_for_ever() -> None:
    """These stand in ledgers and tables that exist: a change here would split every group that is upgraded."""
    layout = Layout()
    expected = {"customer-7": (4758, 150), "orders/2031": (12757, 213), "Zoë": (11546, 26), "": (0, 0)}
    assert expected == {key: (layout.slot(key), layout.partition(key)) for key in expected}


def test_every_process_computes_the_same_slots_whatever_its_hash_seed() -> None:
    program = "from neli_router.keyspace import Layout; print([Layout().slot(f'key-{n}') for n in range(50)])"
    outputs = {
        subprocess.check_output([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, text=True)
        for seed in ("1", "2")
    }
    assert {f"{[Layout().slot(f'key-{n}') for n in range(50)]}\n"} == outputs


# The laws of the chain.


@given(LAYOUTS, KEYS)
def test_slots_and_partitions_stay_in_range_and_follow_the_chain(layout: Layout, key: Key) -> None:
    slot = layout.slot(key)
    assert 0 <= slot < layout.slots
    assert layout.partition(key) == layout.partition_of_slot(slot) == slot % layout.partitions
    assert 0 <= layout.partition(key) < layout.partitions


@given(LAYOUTS, TEXTS)
def test_text_and_its_utf8_bytes_are_one_key(layout: Layout, key: str) -> None:
    assert layout.slot(key) == layout.slot(key.encode())


@given(LAYOUTS, KEYS)
def test_the_hasher_gives_the_slots_of_its_layout(layout: Layout, key: Key) -> None:
    assert layout.slot(key) == hasher(layout)(key)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 32))
def test_the_signed_hash_has_the_slot_of_the_unsigned_one_when_slots_divide_all_hashes(signed: int, power: int) -> None:
    """The hasher's short cut: mod a power of two is a mask, and a mask does not see the sign."""
    slots = 2**power
    assert (signed % 2**32) % slots == signed & slots - 1


def test_the_signed_hash_would_be_wrong_for_another_number_of_slots() -> None:
    key = next(key for key in map(str, range(100)) if mmh3.hash(key) < 0)
    assert mmh3.hash(key, signed=False) % 1000 != mmh3.hash(key) % 1000
    assert mmh3.hash(key, signed=False) % 1000 == hasher(Layout(slots=1000))(key)


def test_keys_spread_evenly_over_the_partitions() -> None:
    """With 400 keys a partition, a fair spread leaves its chi-square within five deviations of its mean."""
    counts = Counter(Layout().partition(f"customer-{number}") for number in range(400 * PARTITIONS))
    chi_square = sum((counts[partition] - 400) ** 2 / 400 for partition in range(PARTITIONS))
    freedom = PARTITIONS - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


# Roles.


@given(LAYOUTS, st.integers())
def test_role_j_is_filled_by_partition_j_mod_m(layout: Layout, number: int) -> None:
    """NELI, section on roles: any number of them, at any time; ours may be negative, too."""
    assert number % layout.partitions == layout.partition_of_role(number)


@given(LAYOUTS, KEYS)
def test_a_named_role_is_a_key(layout: Layout, name: Key) -> None:
    assert layout.partition(name) == layout.partition_of_role(name)


@pytest.mark.parametrize("role", [True, False, None, 1.0, bytearray(b"a"), "\ud800"])
def test_what_is_no_role_is_refused(role: object) -> None:
    with pytest.raises(BadKey):
        Layout().partition_of_role(cast("Any", role))


@pytest.mark.parametrize(
    ("text", "role"), [("7", 7), ("-1", -1), ("007", 7), ("nightly", "nightly"), ("7a", "7a"), ("٣", "٣"), ("-", "-")]
)
def test_a_text_of_digits_is_a_number(text: str, role: int | str) -> None:
    assert role == role_of(text)


def test_a_number_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadKey, match="this number has 5000 characters"):
        role_of("9" * 5000)


# Tags.


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("{user1000}.following", "user1000"),
        ("{user1000}.followers", "user1000"),
        ("foo{bar}{zap}", "bar"),
        ("foo{{bar}}zap", "{bar"),
        ("foo{bar", "foo{bar"),
        ("foo}bar", "foo}bar"),
        ("}foo{bar}", "bar"),
        ("foo{}{bar}", "foo{}{bar}"),
        ("{}", "{}"),
        ("{", "{"),
        ("", ""),
        ("{ }", " "),
        ("order{Zoë}", "Zoë"),
    ],
)
def test_tags_follow_the_rule_of_redis_cluster(key: str, hashed: str) -> None:
    tagged, plain = Layout(tags=True), Layout()
    assert plain.slot(hashed) == tagged.slot(key)
    assert plain.slot(hashed) == tagged.slot(key.encode())


def test_tags_are_off_unless_asked_for() -> None:
    layout = Layout()
    assert layout.slot("{user1000}.following") != layout.slot("{user1000}.followers")


# What is not a key.


@pytest.mark.parametrize("layout", [Layout(), Layout(slots=1000), Layout(tags=True)], ids=Layout.spelled)
@pytest.mark.parametrize("key", NO_KEYS, ids=lambda key: type(key).__name__)
def test_what_is_no_key_is_refused_on_every_way_in(layout: Layout, key: object) -> None:
    ways_in: Sequence[Callable[[Any], object]] = [layout.slot, layout.partition, hasher(layout)]
    for way_in in ways_in:
        with pytest.raises(BadKey) as caught:
            way_in(key)
        assert caught.value.__context__ is None, "an error in the background may show the key"


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("private\ud800", "found a str of length 8 with a lone surrogate"),
        (bytearray(b"private"), "found a bytearray of length 7"),
        (memoryview(b"private"), "found a memoryview of length 7"),
        (["private"], "found a list"),
    ],
)
def test_a_refusal_names_the_type_and_length_and_never_shows_the_key(key: object, found: str) -> None:
    with pytest.raises(BadKey) as caught:
        Layout().slot(cast("Any", key))
    assert found == caught.value.found
    assert "private" not in str(caught.value)


# Layouts.


def test_a_layout_survives_json() -> None:
    layout = Layout(slots=4096, partitions=64, tags=True)
    encoded = msgspec.json.encode(layout)
    assert b'{"slots":4096,"partitions":64,"tags":true}' == encoded
    assert layout == msgspec.json.decode(encoded, type=Layout)
    assert Layout() == msgspec.json.decode(b"{}", type=Layout)


def test_a_layout_that_contradicts_itself_cannot_be_decoded() -> None:
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


def test_the_largest_and_the_smallest_layout_are_fine() -> None:
    assert 2**32 == Layout(slots=2**32).slots
    assert 0 == Layout(slots=1, partitions=1).partition("anything")


def test_a_difference_spells_out_both_layouts() -> None:
    ours, theirs = Layout(), Layout(partitions=128, tags=True)
    expected = (
        "slots=16384, partitions=256, tags=off against slots=16384, partitions=128, tags=on (unequal: partitions, tags)"
    )
    assert expected == ours.difference(theirs)
    assert "" == ours.difference(Layout())
