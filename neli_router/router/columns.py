"""Whole columns of keys in one call: their partitions and their owners, for Arrow, pandas and polars.

    keys in Arrow, pandas, polars --handed over, not copied--> polars --murmur3--> partitions --take--> owners
    Python objects in a column -----one by one where polars refuses them-----------'

The answer is a column of the same kind and length as the keys, and is exactly what `Layout.partition` and
`Router.owner` say for each key. `polars-hash` computes the hash in place, without a Python object for each key;
`benchmarks/columns.py` compares it with mmh3. pandas and Arrow give their buffers to polars without copying. For an
encoded column (a dictionary in Arrow, a categorical in pandas), each distinct value is hashed once.

**Missing keys** stay missing in the answer, as usual for columns. Anything else that is not a key raises BadKey, as it
does for a single key. So does a column of numbers: "7", "7.0" and the bytes of a number are different keys, and only
the program knows which of them it means.

**Types of the answer.** Partitions are signed 64-bit integers: Delta and Spark have no unsigned integers, and the
difference of two unsigned integers wraps. pandas answers in `Int64`, whether or not keys are missing, because otherwise
the type could change from one batch to the next. Names of owners are encoded, since there are few of them.

Every package is imported by the first column that needs it. A column of Python objects in pandas works without polars,
but takes longer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from neli_router.core.keyspace import Layout, hasher
from neli_router.errors import BadKey, MissingExtra
from neli_router.router.async_router import AsyncRouter
from neli_router.router.router import Router
from neli_router.router.table import Owner, Table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["owners_of", "partitions_of"]

TAG = r"^[^{]*\{([^}]+)\}"
"""The part of a text that counts in a layout with tags: see `Layout`. Without a match, the whole text counts."""

Column = TypeVar("Column")


def partitions_of(column: Column, layout: Layout) -> Column:
    """The partition of each key in `column`: Arrow's Array or ChunkedArray, or a Series of pandas or polars.

    The answer is of the same kind, with pandas' index and the column's name; a missing key has a missing partition. A
    polars expression gives an expression, for a column of text or, in a layout without tags, of bytes; for other
    columns polars raises its own error. Raises BadKey.
    """
    partitions, _ = _functions(column)
    return cast("Column", partitions(column, layout))


def owners_of(column: Any, router: Router | AsyncRouter, *, whole: bool = False) -> Any:
    """The name of the member that owns each key in `column`, all from one table; or, with `whole`, its full `Owner`.

    Names are a dictionary (Arrow) or a categorical (pandas, polars). `whole` gives name, address, partition and term: a
    struct in Arrow and polars, a DataFrame in pandas. A missing key has no owner. Raises BadKey, NoOwner if any other
    key has no owner, and the errors of `router.owners`.
    """
    table, (_, owners) = router.table, _functions(column)
    return owners(column, table, whole=whole)


# polars


def _of_polars(column: Any, layout: Layout) -> Any:
    import polars as pl  # noqa: PLC0415 - the caller has it; here and below, only users of a package pay for it.

    if isinstance(column, pl.Expr):
        return _hashed(column, layout)
    if not isinstance(column, pl.Series):
        raise _no_column(f"found a {type(column).__name__}")
    # Renamed, because polars treats a name like ^key$ as a search for columns, even in methods of a Series.
    return _of_series(column.alias("key"), layout).alias(column.name)


def _of_series(keys: "pl.Series", layout: Layout) -> "pl.Series":
    import polars as pl  # noqa: PLC0415

    kind = keys.dtype
    if kind in (pl.Categorical, pl.Enum):
        keys, kind = keys.cast(pl.String), pl.String()
    if kind == pl.Null:
        return keys.cast(pl.Int64)
    if kind == pl.Object or (kind == pl.Binary and layout.tags):  # polars has no search in bytes to find a tag.
        return pl.Series(_one_by_one(keys.to_list(), layout), dtype=pl.Int64)
    if kind not in (pl.String, pl.Binary):
        raise _no_column(f"found a column of {kind.base_type()}")
    return keys.to_frame().select(_hashed(pl.col("key"), layout)).to_series()


def _hashed(keys: "pl.Expr", layout: Layout) -> "pl.Expr":
    polars = _polars()
    if layout.tags:
        keys = polars.coalesce(keys.str.extract(TAG, 1), keys)
    hashes = cast("Any", keys).nchash.murmur32(seed=0)
    return cast("pl.Expr", (hashes % layout.slots % layout.partitions).cast(polars.Int64))


def _owners_in_polars(column: Any, table: Table, *, whole: bool) -> Any:
    import polars as pl  # noqa: PLC0415

    if isinstance(column, pl.Expr):
        raise BadKey(
            "a column of keys was wanted, for owners are those of this moment",
            "found an expression, which is evaluated later",
            "put partitions_of into the expression, or collect first",
        )
    partitions = _of_polars(column, table.layout).alias("key")
    owners = _owners(table, lambda: partitions.unique().drop_nulls().to_list())
    rows = pl.DataFrame(
        owners, schema=dict(zip(Owner._fields, (pl.String, pl.String, pl.Int64, pl.Int64), strict=True))
    )
    answers = rows.to_struct() if whole else rows["name"].cast(pl.Categorical)
    return answers.gather(partitions).alias(column.name)


# Arrow


def _of_arrow(column: Any, layout: Layout) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_of_arrow(chunk, layout) for chunk in column.chunks], pa.int64())
    if not isinstance(column, pa.Array):
        raise _no_column(f"found a {type(column).__name__}")
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _of_arrow(column.dictionary, layout).take(column.indices)
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if not _holds_keys(kind):
        raise _no_column(f"found a column of {kind}")
    return _of_polars(_polars().from_arrow(column), layout).to_arrow()


def _holds_keys(kind: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415

    texts = {pa.string(), pa.large_string(), pa.string_view()}
    return kind in texts | {pa.binary(), pa.large_binary(), pa.binary_view()} or pa.types.is_fixed_size_binary(kind)


def _owners_in_arrow(column: Any, table: Table, *, whole: bool) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    partitions = _of_arrow(column, table.layout)
    owners = _owners(table, lambda: partitions.unique().drop_null().to_pylist())
    columns = [
        pa.array(values, kind)
        for values, kind in zip(owners.values(), (pa.string(), pa.string(), pa.int64(), pa.int64()), strict=True)
    ]
    answers = pa.StructArray.from_arrays(columns, list(owners)) if whole else columns[0].dictionary_encode()
    return answers.take(partitions)


# pandas


def _of_pandas(column: Any, layout: Layout) -> Any:
    import pandas as pd  # noqa: PLC0415

    if not isinstance(column, pd.Series):
        raise _no_column(f"found a {type(column).__name__}")
    kind, values = column.dtype, cast("Any", column.array)
    if isinstance(kind, pd.CategoricalDtype):
        # If all keys are missing, pandas treats the categories as numbers.
        keys = pd.Series(kind.categories) if len(kind.categories) else pd.Series([], dtype="object")
        distinct = _of_pandas(keys, layout).array
        answers = distinct.take(column.cat.codes, allow_fill=True)  # The code of a missing key is -1.
    elif isinstance(kind, pd.ArrowDtype):
        answers = pd.array(_of_arrow(values.__arrow_array__(), layout), dtype="int64[pyarrow]")
    elif isinstance(kind, pd.StringDtype) and kind.storage == "pyarrow":
        answers = cast("Any", pd.Int64Dtype()).__from_arrow__(_of_arrow(values.__arrow_array__(), layout))
    elif isinstance(kind, pd.StringDtype) or kind == "object":
        answers = _of_objects(column, layout)
    else:
        raise _no_column(f"found a column of {kind}")
    return pd.Series(answers, index=column.index, name=column.name)


def _of_objects(column: "pd.Series[Any]", layout: Layout) -> Any:
    import pandas as pd  # noqa: PLC0415

    if (texts := _texts(column)) is not None:
        partitions = _of_series(texts, layout)
        whole = partitions.fill_null(0).to_numpy(writable=True)
        return pd.arrays.IntegerArray(whole, partitions.is_null().to_numpy(writable=True))
    keys = (None if missing else key for key, missing in zip(column, column.isna(), strict=True))
    return pd.array(_one_by_one(keys, layout), dtype="Int64")


def _texts(column: "pd.Series[Any]") -> "pl.Series | None":
    """The column in polars; None if polars is not installed, or if the column has values other than texts."""
    try:
        polars = _polars()
        # From a list, because polars checks it strictly; from an array of objects, it converts numbers to texts.
        return cast("pl.Series", polars.Series("key", column.tolist(), dtype=polars.String))
    except (ImportError, TypeError, ValueError):
        return None


def _owners_in_pandas(column: Any, table: Table, *, whole: bool) -> Any:
    import pandas as pd  # noqa: PLC0415

    partitions = _of_pandas(column, table.layout)
    owners = _owners(table, lambda: partitions.dropna().unique().tolist())
    rows = partitions.fillna(-1).to_numpy("int64")
    if not whole:
        return pd.Series(pd.Categorical(owners["name"]).take(rows, allow_fill=True), column.index, name=column.name)
    kinds = zip(owners.items(), (None, None, "Int64", "Int64"), strict=True)  # None: this pandas' type for texts.
    columns = {
        field: pd.Series(values, dtype=kind).array.take(rows, allow_fill=True) for (field, values), kind in kinds
    }
    return pd.DataFrame(columns, index=column.index)


# All of them


_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "pandas": (_of_pandas, _owners_in_pandas),
    "polars": (_of_polars, _owners_in_polars),
    "pyarrow": (_of_arrow, _owners_in_arrow),
}


def _functions(column: object) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Those for partitions and for owners, by the package of the column's class, or of a class that it derives from."""
    for kind in type(column).__mro__:
        if found := _FUNCTIONS.get(kind.__module__.partition(".")[0]):
            return found
    raise _no_column(f"found a {type(column).__name__}")


def _one_by_one(keys: Iterable[Any], layout: Layout) -> list[int | None]:
    slot = hasher(layout)
    return [None if key is None else slot(key) % layout.partitions for key in keys]


def _owners(table: Table, met: Callable[[], Iterable[int]]) -> dict[str, list[Any]]:
    """Each field of an Owner as a list by partition. Raises NoOwner if a partition that occurs has no owner."""
    if None in table.partitions:
        for partition in met():
            table.owner_of_slot(partition)
    rows = [owner or (None, None, None, None) for owner in table.partitions]
    return {field: list(values) for field, values in zip(Owner._fields, zip(*rows, strict=True), strict=True)}


def _no_column(found: str) -> BadKey:
    return BadKey(
        "a column of keys was wanted: text or bytes, in Arrow's Array or ChunkedArray or a Series of pandas or polars",
        found,
        "pass one column, as frame['key'], with values encoded the same way in every program of the group",
    )


def _polars() -> Any:
    try:
        import polars as pl  # noqa: PLC0415
        import polars_hash  # noqa: F401, PLC0415 - it adds `nchash` to expressions.
    except ImportError as missing:
        package = (missing.name or "").partition(".")[0]
        raise MissingExtra.of(package, "for the partitions of a column", "columns") from None
    return pl
