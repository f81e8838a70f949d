"""The digest differs between states, and costs only what changed.

Members of two releases compare digests, so a hash may change only with the fold's version: tests/vectors/facts.jsonl.
"""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from neli_router.protocols.induction.digest import difference, hash_of


class Sample(Struct, frozen=True, kw_only=True):
    """A state with facts of every shape."""

    at: int = 0
    one: int = 0
    row: tuple[int | None, ...] = ()
    named: dict[str, int] = {}
    digest: int = 0


samples = st.builds(
    Sample,
    at=st.integers(0, 9),
    one=st.integers(0, 9),
    row=st.lists(st.none() | st.integers(0, 9), max_size=4).map(tuple),
    named=st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
    digest=st.integers(0, 9),
)


def facts(state: Sample) -> tuple[object, ...]:
    """The facts that the digest covers. None is not a fact, so a row may or may not end in it."""
    row = {place: value for place, value in enumerate(state.row) if value is not None}
    return state.one, row, state.named


def test_a_hash_fits_sixty_four_bits_takes_no_name_for_two_facts_and_a_change_costs_the_facts_that_changed() -> None:
    hashes = [hash_of("terms", place, 1001) for place in range(200)]
    assert 200 == len(set(hashes))
    assert 2**63 < max(hashes) < 2**64
    assert hash_of("pins", 1, "x") != hash_of("pins", "1", "x"), "a number is not its text"
    named = (("a", 'b","c', "d"), ("a", "b", 'c","d'), ('a","b', "c", "d"), ("a", "b", "c"))
    assert 4 == len({hash_of(*fact) for fact in named})
    before, after = Sample(named={"a": 1, "b": 2}), Sample(named={"a": 1, "b": 3, "c": 4})
    changes = (hash_of("named", "b", 2), hash_of("named", "b", 3), hash_of("named", "c", 4))
    assert changes[0] ^ changes[1] ^ changes[2] == difference(before, after)
    for before, after in ((Sample(row=(4,)), Sample(row=(4, 5))), (Sample(row=(4, 5)), Sample(row=(4,)))):
        assert hash_of("row", 1, 5) == difference(before, after)
    # A state from a snapshot shares no objects with the folded state.
    one, other = (Sample(one=int("1000000"), row=(int("1000000"),), named={"a": int("1000000")}) for _ in range(2))
    assert one.one is not other.one
    assert 0 == difference(one, other)


@given(samples, samples)
def test_only_equal_states_have_no_difference(one: Sample, other: Sample) -> None:
    assert (facts(one) == facts(other)) == (difference(one, other) == 0)
    assert difference(one, other) == difference(other, one)


@given(st.lists(samples, min_size=1, max_size=6))
def test_differences_along_a_way_add_up_to_that_of_its_ends(states: list[Sample]) -> None:
    digest = 0
    for before, after in pairwise(states):
        digest ^= difference(before, after)
    assert difference(states[0], states[-1]) == digest
