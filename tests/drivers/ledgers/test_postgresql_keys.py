"""Keys in SQL: the functions of a schema give the numbers that the library gives, for any key.

keys --unnest--> {schema}.hash, slot, partition --.
  '---mmh3, Layout------------------------------- = ?
"""

import random
from collections.abc import Iterator
from typing import Any

import mmh3
import psycopg
import pytest

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.postgresql.schema import install

pytestmark = pytest.mark.postgresql

SCHEMA = '"Some Keys"'
"""A name that must be quoted: no function may forget to."""

ODD = ["", "customer-7", "Zoë", "𝄞", "{a}b", "{}", "{}{a}", "{{a}}", "a}{b}c", "a{b", "}{", "{a}{b}", "\\x00", "'; --"]


@pytest.fixture(name="connection")
def _connection(postgresql: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgresql, autocommit=True) as connection:
        install(connection, SCHEMA)
        yield connection
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def numbers(connection: psycopg.Connection[Any], call: str, keys: list[Any], kind: str) -> list[int]:
    asked = f"SELECT {SCHEMA}.{call} FROM unnest(%s::{kind}[]) WITH ORDINALITY AS given(key, place) ORDER BY place"
    return [number for (number,) in connection.execute(asked, (keys,)).fetchall()]


def test_a_hundred_thousand_keys_have_the_same_hash_as_in_python(connection: psycopg.Connection[Any]) -> None:
    rng = random.Random(7)
    keys = [bytes(size) for size in range(65)] + [rng.randbytes(size) for size in range(65)]
    keys += [rng.randbytes(rng.randrange(24)) for _ in range(100_000 - len(keys))]
    assert [mmh3.hash(key, 0, signed=False) for key in keys] == numbers(connection, "hash(key)", keys, "bytea")


@pytest.mark.parametrize("layout", [Layout(), Layout(tags=True), Layout(10_007, 1_000), Layout(2**32, 3, tags=True)])
def test_slots_of_texts_and_bytes_are_those_of_the_layout(connection: psycopg.Connection[Any], layout: Layout) -> None:
    rng = random.Random(layout.slots)
    texts = [*ODD, *("".join(rng.choices("ab{}ü€𝄞", k=rng.randrange(12))) for _ in range(5_000))]
    odd_bytes = [
        *(text.encode() for text in ODD),
        b"\0",
        b"{\0}",
        b"\xff{\xfe}\xff",
        b"\\",
        *map(rng.randbytes, range(65)),
    ]
    for keys, kind in ((texts, "text"), (odd_bytes, "bytea")):
        call = f"slot(key, {layout.slots}, {layout.tags})"
        assert list(map(layout.slot, keys)) == numbers(connection, call, keys, kind)
    assert [Layout().slot("a{b}")] == numbers(connection, "slot(key)", ["a{b}"], "text")
    assert [None] == numbers(connection, "slot(key)", [None], "text")
