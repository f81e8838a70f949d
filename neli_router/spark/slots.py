"""The slot and the partition of every key as a column, in Spark's own SQL: identical, bit for bit, to `Layout`.

    key of whole words, 4, 8, 12 ... bytes --hash(START, key)----> hash --mod S--> slot --mod M--> partition
                                                                   ^
    any other, padded with zeros ----hash(START, ...)--> a hash   |
                                                             |     |
                             undo the finish and the last round,   |
                             finish with the true length ----------'

It needs no Python worker and no jar, so it also works over Spark Connect, and Spark compiles it with the rest of the
query. Spark's `hash()` is murmur3, too, but not quite the standard one that all our members use:

- It starts from 42, and we start from 0. It takes several columns, and starts each column from the result of the one
  before. So a first column, a number whose hash is 0, makes it start the key from 0.
- It treats the last one to three bytes in its own way. So we pad them with zeros to a round of four. The standard does
  the same, except for the end of a round: a rotation and a multiplication. These are undone, and before them the
  finish, which counts the padded length. Every step of murmur3 can be undone: a multiplication by an odd number is
  undone by that number's inverse modulo 2^32. A key of whole words needs none of this, and is not copied: for such a
  key, the columns of the other path are null.

**Numbers** stay below 2^32 in a BIGINT. The factors are signed, so that no product exceeds 64 bits: in ANSI mode, an
overflow is an error.

**Each step has a name**, and the next one reads it two or three times. One expression would hold a hundred hashes;
Spark's compiler would take long and then give up. So each step is a column over the one before it, and no filter on
the result may be pushed down into the steps (see `_left_here`). In a function of SQL, which has no columns of its own,
each step is the variable of a lambda: Spark does not compile that, but it is the same everywhere, in a filter, a join
or a view.

**No key, no slot**: a null gives a null, as is usual for columns. Text counts by its UTF-8 bytes, whatever its
collation, and bytes unchanged. Every other type is refused before anything is read.
"""

from collections.abc import Callable, Collection
from contextlib import suppress

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, CharType, IntegralType, StringType, StructField, VarcharType

from neli_router.core.keyspace import Layout
from neli_router.errors import BadKey, ConfigError

__all__ = [
    "NOTE",
    "Key",
    "column_of",
    "layout_note",
    "quoted",
    "register_functions",
    "resolved",
    "unused_name",
    "with_layout_note",
    "with_partition",
    "with_partition_of_role",
    "with_slot",
]

BITS = 2**32
MASK = BITS - 1

FIRST, SECOND = 0xCC9E2D51, 0x1B873593  # A round multiplies a word of the key by these ...
FIVE, ADDED = 5, 0xE6546B64  # ... and finally changes the state by these, after rotating it by 13 bits.
FINISH_FIRST, FINISH_SECOND = 0x85EBCA6B, 0xC2B2AE35

INT_MAX = 2**31
"""A column of INT holds numbers below this; only a layout with more slots needs a BIGINT."""

KEY_TYPES = (StringType, VarcharType, CharType, BinaryType)
SCRATCH = "_neli"

Key = str | Column
"""The keys of a DataFrame: a column by its name, with any characters; a path into a struct, "customer.id"; or an
expression."""

NOTE = "neli.layout"
"""The key in a column's metadata that holds the layout by which it was made. Spark keeps it in tables and in Parquet
files."""


def with_slot(df: DataFrame, key: Key, layout: Layout, *, name: str = "slot") -> DataFrame:
    """`df` with a last column `name`: the slot of each `key`, identical to `layout.slot`.

    Use it with `df.transform(with_slot, "key", layout)`. Nothing is read before the result is. Text and binary are
    keys; a null has a null slot. Slots are INT, or BIGINT if the layout has more than 2^31. Raises BadKey for a column
    of another type, and ConfigError if `key` is missing or `name` already exists.
    """
    return _hashed(df, key, layout.tags, name, _slot(layout))


def with_partition(df: DataFrame, key: Key, layout: Layout, *, name: str = "partition") -> DataFrame:
    """`df` with a last column `name`: the partition of each `key`; otherwise like `with_slot`."""
    return with_layout_note(_hashed(df, key, layout.tags, name, _partition(layout)), name, layout)


def with_partition_of_role(df: DataFrame, role: Key, layout: Layout, *, name: str = "partition") -> DataFrame:
    """`df` with the partition of each role. Text is a key, and a number is the partition itself; null if there is none.

    Numbers have their own function because 7 may be a partition or a key, and as a key it is hashed, as text or bytes.
    Raises the errors of `with_slot`.
    """
    column, field = resolved(df, role)
    if not isinstance(field.dataType, IntegralType):
        return with_partition(df, role, layout, name=name)
    number = column.cast("bigint")
    filled = sql.when(number.between(0, layout.partitions - 1), number)
    return df.withColumn(_new_name(df, name), filled.cast(_type(layout.partitions)))


def register_functions(spark: SparkSession, layout: Layout) -> None:
    """Let the SQL of this session say `neli_slot(key)` and `neli_partition(key)`, also in temporary views.

    Both are temporary functions, written in SQL: no Python worker computes them. They give what `with_slot` and
    `with_partition` give, a bit more slowly. A number counts as its text. A second call replaces them.
    """
    for name, result, size in (
        ("neli_slot", _slot(layout), layout.slots),
        ("neli_partition", _partition(layout), layout.partitions),
    ):
        steps, text = _program("key", layout.tags, result, lambda purpose: f"{SCRATCH}_{purpose}")
        for step, value in reversed([("key", "key"), *steps]):
            text = f"transform(array({value}), {step} -> {text})[0]"
        comment = f"NELI Router: {layout.slots} slots, {layout.partitions} partitions, tags {layout.tags}"
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(key STRING) RETURNS {_type(size)} COMMENT '{comment}' "
            f"RETURN {text}"
        )


def with_layout_note(df: DataFrame, name: str, layout: Layout) -> DataFrame:
    """`df` with `layout` noted in the metadata of the column `name`."""
    metadata = {**column_of(df, name).metadata, NOTE: layout_note(layout)}
    # Not `withMetadata`, which reads a dot in a name as a path into a struct.
    return df.withColumn(name, sql.col(quoted(name)).alias(name, metadata=metadata))


def layout_note(layout: Layout) -> dict[str, int | bool]:
    """`layout` in the form of a column's note."""
    return {"slots": layout.slots, "partitions": layout.partitions, "tags": layout.tags}


def resolved(df: DataFrame, key: Key) -> tuple[Column, StructField]:
    """`key` as an expression, and its name and type. Raises ConfigError for a name that `df` does not have; for an
    expression, Spark raises its own error."""
    if not isinstance(key, str):
        return key, df.select(key).schema.fields[0]
    try:
        field = column_of(df, key)
    except ConfigError:
        if "." in key and "*" not in key:
            with suppress(AnalysisException):  # The path is missing, too.
                return sql.col(key), df.select(key).schema.fields[0]
        raise
    return sql.col(quoted(field.name)), field


def column_of(df: DataFrame, name: str) -> StructField:
    """The one column of `df` that Spark finds under `name`, with any characters. Raises ConfigError."""
    fold = _fold(df)
    found = [field for field in df.schema.fields if fold(field.name) == fold(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError([f"column {name!r} must be there once, and is there {len(found)} times: rename the others"])
    raise ConfigError([f"column {name!r} is missing; there are {', '.join(map(repr, df.columns)) or 'none'}"])


def _new_name(df: DataFrame, name: str) -> str:
    """`name`, if no column has it yet: a user's column is never replaced silently. Raises ConfigError."""
    fold = _fold(df)
    if fold(name) in map(fold, df.columns):
        raise ConfigError([f"column {name!r} is there already, so it cannot be added: pass another name, or drop it"])
    return name


def unused_name(taken: Collection[str], purpose: str) -> str:
    """A name for a temporary column: none of `taken`, in any case."""
    lower, name = {column.lower() for column in taken}, f"{SCRATCH}_{purpose}"
    while name in lower:
        name = f"_{name}"
    return name


def quoted(name: str) -> str:
    """`name` in the form in which Spark reads a column's name: in backticks, including dots."""
    return f"`{name.replace('`', '``')}`"


def _fold(df: DataFrame) -> Callable[[str], str]:
    sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    return (lambda name: name) if sensitive else str.lower


def _hashed(df: DataFrame, key: Key, tags: bool, name: str, result: Callable[[str], str]) -> DataFrame:
    """`df` with `result` of the keys' unsigned murmur3 as the column `name`."""
    column, field = resolved(df, key)
    if not isinstance(field.dataType, KEY_TYPES):
        raise BadKey(
            f"a column of keys, string or binary, was wanted in {field.name!r}",
            f"found {field.dataType.simpleString()}",
            "make it text or bytes as every program of the group does, such as by .cast('string') for str(number)",
        )
    _new_name(df, name)
    taken = (*df.columns, name)
    given = unused_name(taken, "given")
    # Cast to text without checking the bytes, so that one path serves all kinds of keys; and drop any collation,
    # because `hash` may treat as equal what the collation calls equal.
    df = df.withColumn(given, column.cast("string"))
    steps, text = _program(given, tags, result, lambda purpose: unused_name(taken, purpose))
    for step, value in steps:
        df = df.withColumn(step, sql.expr(value))
    return df.withColumn(name, sql.expr(text)).drop(given, *{step for step, _ in steps})


# The program: steps in SQL, each of them a name and a value that reads the names before it


def _program(
    key: str, tags: bool, result: Callable[[str], str], named: Callable[[str], str]
) -> tuple[list[tuple[str, str]], str]:
    """The steps from `key` to its hash, and the `result` of that hash. `named` gives the names of the steps."""
    steps = list[tuple[str, str]]()

    def step(purpose: str, value: str) -> str:
        steps.append((named(purpose), value))
        return steps[-1][0]

    if tags:
        # The part between the first `{` and the first `}` after it, if it is not empty; otherwise all of the key.
        # Positions are counted in bytes. Functions that count characters fail on bytes that are not UTF-8.
        before = f"octet_length(substring_index({key}, '{{', 1))"  # All of it, if there is no `{`.
        rest = step("rest", f"CAST(substring(CAST({key} AS BINARY), {before} + 2, {2**31 - 1}) AS STRING)")
        tag = step("tag", f"substring_index({rest}, '}}', 1)")
        closed = f"octet_length({tag}) BETWEEN 1 AND octet_length({rest}) - 1"
        key = step("key", f"CASE WHEN {closed} THEN {tag} ELSE {key} END")
    size = step("size", f"octet_length({key})")
    is_odd = f"{size} & 3 != 0"  # Whether bytes are left after the last whole word.
    whole = step("whole", f"hash({START}, {key})")
    zeros = f"CASE {size} & 3 WHEN 1 THEN X'000000' WHEN 2 THEN X'0000' ELSE X'00' END"
    padded = f"hash({START}, concat({key}, CAST({zeros} AS STRING)))"
    hashed = step("hash", f"CASE WHEN {is_odd} THEN {_unsigned(padded)} END")
    for there in STEPS:
        hashed = step("hash", f"CASE WHEN {is_odd} THEN {there(hashed, size)} END")
    # In this order, because a null has no size, and must not reach `whole`: `hash` makes a number of a null, too.
    last = _left_here(result(hashed), hashed)
    return steps, f"CASE WHEN {size} & 3 = 0 THEN {result(_unsigned(whole))} ELSE {last} END"


# Murmur3, there and back. A state is a BIGINT from 0 to 2^32 - 1.


def _unsigned(value: str) -> str:
    return f"(CAST({value} AS BIGINT) & {MASK}L)"


def _times(state: str, factor: int) -> str:
    return _unsigned(f"({state} * {factor if factor < BITS // 2 else factor - BITS}L)")


def _shifted(state: str, *bits: int) -> str:
    """`state`, XORed with itself shifted right by each of `bits`."""
    return f"({' ^ '.join([state, *(f'shiftrightunsigned({state}, {count})' for count in bits)])})"


def _inverse(factor: int) -> int:
    return pow(factor, -1, BITS)


def _without_zeros(state: str, size: str) -> str:
    """The state with the end of the last round undone, which held our zeros; and with the true length counted."""
    turned = _times(f"({state} - {ADDED}L)", _inverse(FIVE))
    before = _unsigned(f"(shiftrightunsigned({turned}, 13) | shiftleft({turned}, {32 - 13}))")
    return f"{before} ^ {size}"


STEPS: tuple[Callable[[str, str], str], ...] = (
    # Undo Spark's finish: x ^ x >> 16 undoes itself, and x ^ x >> 13 needs one more term, as 2 * 13 is below 32.
    lambda state, _: _times(_shifted(state, 16), _inverse(FINISH_SECOND)),
    lambda state, _: _times(_shifted(state, 13, 26), _inverse(FINISH_FIRST)),
    lambda state, size: f"{_shifted(state, 16)} ^ (({size} + 3) & -4)",
    _without_zeros,
    # The standard's finish.
    lambda state, _: _times(_shifted(state, 16), FINISH_FIRST),
    lambda state, _: _times(_shifted(state, 13), FINISH_SECOND),
    lambda state, _: _shifted(state, 16),
)
"""From Spark's `hash` of a key padded with zeros to the standard hash of the key. Each step takes the state and the
key's size, and returns the next state."""


def _start() -> int:
    """The number, as a signed INT, whose hash in Spark is 0: murmur3 of one word from 42, undone from its end.

    The finish maps only 0 to 0, and it counts a length of 4, so the state before it was 4.
    """
    turned = (4 - ADDED) * _inverse(FIVE) % BITS
    word = _turned((_turned(turned, 32 - 13) ^ 42) * _inverse(SECOND) % BITS, 32 - 15) * _inverse(FIRST) % BITS
    return word if word < BITS // 2 else word - BITS


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) % BITS


START = _start()


# The result of the hash


def _slot(layout: Layout) -> Callable[[str], str]:
    return lambda hashed: _typed(_mod(hashed, layout.slots), layout.slots)


def _partition(layout: Layout) -> Callable[[str], str]:
    def partition(hashed: str) -> str:
        # If M divides S, as it usually does, the slot in between changes nothing.
        slot = hashed if layout.slots % layout.partitions == 0 else _mod(hashed, layout.slots)
        return _typed(_mod(slot, layout.partitions), layout.partitions)

    return partition


def _mod(value: str, size: int) -> str:
    """`value`, which is not negative, mod `size`: the lowest bits if that is enough, because a division is slow."""
    return f"({value} & {size - 1}L)" if BITS % size == 0 else f"({value} % {size}L)"


def _type(size: int) -> str:
    return "INT" if size <= INT_MAX else "BIGINT"


def _typed(value: str, size: int) -> str:
    return f"CAST({value} AS {_type(size)})"


def _left_here(result: str, state: str) -> str:
    """`result`, marked so that Spark does not compute it again for a filter below.

    Spark pushes a filter down through every column that it reads, and substitutes the column's definition. Step by
    step, the filter would become the one expression with a hundred hashes. Spark leaves a filter in place if the column
    is expensive to compute, and the only sign that it accepts is a function like RLIKE. So there is one, in a branch
    that no row reaches: no state is negative (for a null the result is null, too).
    """
    return f"CASE WHEN {state} >= 0 THEN {result} ELSE CAST(rlike(CAST({state} AS STRING), '-') AS INT) END"
