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
overflow is an error. **One column per step**, each over the one before it, because each step reads it two or three
times. One expression would hold a hundred hashes; Spark's compiler would take long and then give up. For the same
reason (see `_left_here`), no filter on the result may be pushed down into the steps.

**No key, no slot**: a null gives a null, as is usual for columns. Text counts by its UTF-8 bytes, whatever its
collation, and bytes unchanged. Every other type is refused before anything is read.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, CharType, IntegralType, StringType, StructField, VarcharType

from neli_router.core.keyspace import Layout
from neli_router.errors import BadKey, ConfigError

__all__ = [
    "NOTE",
    "Key",
    "column_of",
    "noted",
    "noted_as",
    "quoted",
    "resolved",
    "unused_name",
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
    return _hashed(df, key, layout.tags, name, lambda hashed: _typed(_mod(hashed, layout.slots), layout.slots))


def with_partition(df: DataFrame, key: Key, layout: Layout, *, name: str = "partition") -> DataFrame:
    """`df` with a last column `name`: the partition of each `key`; otherwise like `with_slot`."""

    def partition(hashed: Column) -> Column:
        # If M divides S, as it usually does, the slot in between changes nothing.
        slot = hashed if layout.slots % layout.partitions == 0 else _mod(hashed, layout.slots)
        return _typed(_mod(slot, layout.partitions), layout.partitions)

    return noted(_hashed(df, key, layout.tags, name, partition), name, layout)


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
    return df.withColumn(_new_name(df, name), _typed(filled, layout.partitions))


def noted(df: DataFrame, name: str, layout: Layout) -> DataFrame:
    """`df` with `layout` noted in the metadata of the column `name`."""
    metadata = {**column_of(df, name).metadata, NOTE: noted_as(layout)}
    # Not `withMetadata`, which reads a dot in a name as a path into a struct.
    return df.withColumn(name, sql.col(quoted(name)).alias(name, metadata=metadata))


def noted_as(layout: Layout) -> dict[str, int | bool]:
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


def _hashed(df: DataFrame, key: Key, tags: bool, name: str, result: Callable[[Column], Column]) -> DataFrame:
    """`df` with `result` of the keys' unsigned murmur3 as the column `name`."""
    column, field = resolved(df, key)
    if not isinstance(field.dataType, KEY_TYPES):
        raise BadKey(
            f"a column of keys, string or binary, was wanted in {field.name!r}",
            f"found {field.dataType.simpleString()}",
            "make it text or bytes as every program of the group does, such as by .cast('string') for str(number)",
        )
    _new_name(df, name)
    steps = _Steps(df, (*df.columns, name))
    # Cast to text without checking the bytes, so that one path serves all kinds of keys; and drop any collation,
    # because `hash` may treat as equal what the collation calls equal.
    text = column.cast("string")
    if not isinstance(key, str):  # An expression is computed once, and not by each step.
        text = steps.column("key", text)
    if tags:
        text = _tag(steps, text)
    size = steps.column("size", sql.octet_length(text))
    odd = size.bitwiseAND(sql.lit(3))  # The number of bytes after the last whole word.
    whole = steps.column("whole", sql.hash(sql.lit(START), text))
    hashed = steps.column("hash", sql.when(odd != 0, _unsigned(sql.hash(sql.lit(START), _padded(text, odd)))))
    for step in STEPS:
        hashed = steps.column("hash", sql.when(odd != 0, step(hashed, size)))
    # In this order, because a null has no size, and must not reach `whole`: `hash` makes a number of a null, too.
    return steps.done(name, sql.when(odd == 0, result(_unsigned(whole))).otherwise(_left_here(result(hashed), hashed)))


class _Steps:
    """Columns over columns, under names that no column of the user has; all of them are dropped in the end."""

    def __init__(self, df: DataFrame, taken: Collection[str]) -> None:
        self._df, self._taken, self._names = df, taken, dict[str, str]()

    def column(self, name: str, column: Column) -> Column:
        """`column`, computed once for all its readers; an older one of this name is dropped."""
        scratch = self._names.setdefault(name, unused_name(self._taken, name))
        self._df = self._df.withColumn(scratch, column)
        return sql.col(scratch)

    def done(self, name: str, column: Column) -> DataFrame:
        return self._df.withColumn(name, column).drop(*self._names.values())


# The hashed text


def _tag(steps: _Steps, text: Column) -> Column:
    """The part between the first `{` and the first `}` after it, if it is not empty; otherwise all of `text`.

    Positions are counted in bytes. Functions that count characters fail on bytes that are not UTF-8.
    """
    before = sql.octet_length(sql.substring_index(text, "{", 1))  # All of it, if there is no `{`.
    rest = steps.column("rest", sql.substring(text.cast("binary"), before + 2, sql.lit(2**31 - 1)).cast("string"))
    tag = steps.column("tag", sql.substring_index(rest, "}", 1))
    closed = sql.octet_length(tag).between(1, sql.octet_length(rest) - 1)
    return steps.column("tag", sql.when(closed, tag).otherwise(text))


def _padded(text: Column, odd: Column) -> Column:
    """`text`, whose last word has only `odd` bytes, padded with zeros."""
    return sql.concat(text, sql.when(odd == 1, "\0\0\0").when(odd == 2, "\0\0").otherwise("\0"))


# Murmur3, there and back. A state is a BIGINT from 0 to 2^32 - 1.


def _unsigned(column: Column) -> Column:
    return column.cast("bigint").bitwiseAND(_bigint(MASK))


def _times(state: Column, factor: int) -> Column:
    return _unsigned(state * _bigint(factor if factor < BITS // 2 else factor - BITS))


def _shifted(state: Column, *bits: int) -> Column:
    """`state`, XORed with itself shifted right by each of `bits`."""
    return reduce(Column.bitwiseXOR, [sql.shiftrightunsigned(state, count) for count in bits], state)


def _inverse(factor: int) -> int:
    return pow(factor, -1, BITS)


def _without_zeros(state: Column, size: Column) -> Column:
    """The state with the end of the last round undone, which held our zeros; and with the true length counted."""
    turned = _times(state - _bigint(ADDED), _inverse(FIVE))
    before = _unsigned(sql.shiftrightunsigned(turned, 13).bitwiseOR(sql.shiftleft(turned, 32 - 13)))
    return before.bitwiseXOR(size.cast("bigint"))


STEPS: tuple[Callable[[Column, Column], Column], ...] = (
    # Undo Spark's finish: x ^ x >> 16 undoes itself, and x ^ x >> 13 needs one more term, as 2 * 13 is below 32.
    lambda state, _: _times(_shifted(state, 16), _inverse(FINISH_SECOND)),
    lambda state, _: _times(_shifted(state, 13, 26), _inverse(FINISH_FIRST)),
    lambda state, size: _shifted(state, 16).bitwiseXOR((size + 3).bitwiseAND(sql.lit(-4)).cast("bigint")),
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


def _mod(column: Column, size: int) -> Column:
    """`column`, which is not negative, mod `size`: the lowest bits if that is enough, because a division is slow."""
    return column.bitwiseAND(_bigint(size - 1)) if BITS % size == 0 else column % _bigint(size)


def _typed(column: Column, size: int) -> Column:
    return column.cast("int" if size <= INT_MAX else "bigint")


def _left_here(result: Column, state: Column) -> Column:
    """`result`, marked so that Spark does not compute it again for a filter below.

    Spark pushes a filter down through every column that it reads, and substitutes the column's definition. Step by
    step, the filter would become the one expression with a hundred hashes. Spark leaves a filter in place if the column
    is expensive to compute, and the only sign that it accepts is a function like RLIKE. So there is one, in a branch
    that no row reaches: no state is negative (for a null the result is null, too).
    """
    return sql.when(state >= 0, result).otherwise(sql.rlike(state.cast("string"), sql.lit("-")).cast("int"))


def _bigint(number: int) -> Column:
    return sql.lit(number).cast("bigint")
