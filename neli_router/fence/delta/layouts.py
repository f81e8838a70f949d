"""Which Delta tables are fenced: the layout, the first batch and the columns, kept in the table itself.

    version 0:  protocol 1/2    partitioned by `partition`    neli.format = 1    neli.slots, neli.partitions, neli.tags
                                                              neli.first_batch
    opened:     unchanged since creation?  --yes--> its terms may be read
                                           --no---> TableMismatch, before anything is written

A table that another layout filled would be silently wrong: its files hold other keys than their partition says. So the
layout is part of the table, and a program that brings another one is refused.

**Protocol.** A later program may switch on deletion vectors, column mapping, constraints or the expiry of transaction
ids. The first three make a file list wrong; the last makes the table forget its terms, and a zombie would be let in. A
table with any of these is no longer ours. That is reported when the table is opened, and at the first commit after the
change.

**Columns.** Delta describes columns in Spark's own JSON, so the same comparison serves a Spark DataFrame, an Arrow
table and the footer of a Parquet file. Names and types must agree; the order need not. Every column may be null: the
footer of a Parquet file from Spark always says so, so a promise of NOT NULL could not be kept. `create` makes all
columns nullable.

**Later columns.** The table keeps the names of the columns that it was made with, as `neli.columns`, and every writer
must bring these: a writer that forgets one has a fault. All other columns came later. A writer that does not know them
leaves them out, and they are null in its rows. So hosts can be upgraded one after the other.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field, Schema

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.fence.refusals import TableMismatch
from neli_router.fence.tables import PARTITION, WHOLE, Columns, TableFormat, require_columns, spelled

__all__ = [
    "PARTITION",
    "Format",
    "TableSchema",
    "columns_of",
    "columns_of_footer",
    "format_of",
    "local_path",
    "split_rows",
]

FORMAT = "1"

CHECKPOINT_EVERY = 20
"""Commits between two checkpoints. A larger number makes each commit read more of the log; a smaller one writes the
list of all files more often."""

FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""Features that a Delta table may require of its writers without changing the meaning of a file list."""

TYPES = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(\d+,\d+\)"
)


class _SparkSchema(Protocol):
    """Spark's StructType, without importing Spark."""

    def json(self) -> str: ...


TableSchema: TypeAlias = pa.Schema | Schema | _SparkSchema
"""The columns of a table, as pyarrow, deltalake or Spark has them."""


@dataclass(frozen=True, slots=True)
class Format(TableFormat):
    """The format of a Delta table."""

    schema: Schema

    @classmethod
    def of(cls, schema: TableSchema, layout: Layout, first_batch: int) -> "Format":
        """The format of a new table. `schema` is the same as in `FencedTable.create`."""
        if type(first_batch) is not int or first_batch < 0:
            raise ConfigError([f"first_batch={first_batch!r} must be a whole number of at least 0"])
        fields = _known_fields(schema)
        if (kind := columns_of(schema).get(PARTITION, "integer")) not in WHOLE:
            raise TableMismatch(
                f"whole numbers were wanted in the column {PARTITION!r}",
                f"found the type {spelled(kind)}",
                "give that column another name: this one says where a row belongs",
            )
        kept = [field | {"nullable": True} for field in fields if field["name"] != PARTITION]
        kept.append({"name": PARTITION, "type": "integer", "nullable": True, "metadata": {}})
        whole = Schema.from_json(json.dumps({"type": "struct", "fields": kept}))
        return cls("", layout, first_batch, columns_of(whole), frozenset(), whole)

    def lacks(self, schema: TableSchema) -> list[Field]:
        """The columns of `schema` that the table does not have, as it would have them. Raises TableMismatch."""
        fields = _known_fields(schema)
        common = {name: kind for name, kind in columns_of(schema).items() if name in self.columns}
        require_columns({name: self.columns[name] for name in common}, common, "the columns to add")
        fresh = [field | {"nullable": True} for field in fields if field["name"] not in self.columns]
        spelled = Counter(name.lower() for name in (*self.columns, *(field["name"] for field in fresh)))
        # Spark does not distinguish them, and could read neither.
        if twice := [name for name, count in spelled.items() if count > 1]:
            raise TableMismatch(
                "columns with other names than those of the table were wanted",
                f"found some that differ in case alone: {', '.join(twice)}",
                "choose other names",
            )
        return [Field.from_json(json.dumps(field)) for field in fresh]

    @property
    def arrow(self) -> pa.Schema:
        """The columns inside a file: all except the partition."""
        return pa.schema([field for field in pa.schema(self.schema.to_arrow()) if field.name != PARTITION])

    def split(self, rows: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
        return split_rows(rows, self, self.arrow)

    def spark_schema(self) -> dict[str, Any]:
        return dict(json.loads(self.schema.to_json()))

    def configuration(self, history: timedelta) -> dict[str, str | None]:
        return {
            "delta.logRetentionDuration": f"interval {int(history.total_seconds())} seconds",
            "neli.format": FORMAT,
            "neli.slots": str(self.layout.slots),
            "neli.partitions": str(self.layout.partitions),
            "neli.tags": str(self.layout.tags).lower(),
            "neli.first_batch": str(self.first_batch),
            "neli.columns": json.dumps([name for name in self.columns if name != PARTITION]),
            "delta.checkpointInterval": str(CHECKPOINT_EVERY),
        }


def format_of(handle: DeltaTable, place: Path) -> Format:
    """The format of the table at `place`. Raises TableMismatch if it is not, or no longer, a fenced table."""
    metadata, protocol, schema = handle.metadata(), handle.protocol(), handle.schema()
    found = metadata.configuration
    fields, columns = _fields(schema), columns_of(schema)
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())} - FEATURES
    problems = [
        (found.get("neli.format") != FORMAT, f"its neli.format is {found.get('neli.format')}, not {FORMAT}"),
        (metadata.partition_columns != [PARTITION], f"it is partitioned by {metadata.partition_columns}"),
        (columns.get(PARTITION) != "integer", f"it has no whole numbers in a column {PARTITION!r}"),
        (protocol.min_writer_version not in {2, 7}, f"it asks for writer version {protocol.min_writer_version}"),
        (bool(features), f"it has the features {', '.join(sorted(features))}"),
        ("delta.setTransactionRetentionDuration" in found, "it lets transaction ids expire, and with them its terms"),
        (not all(field["nullable"] for field in fields), "it has columns that may not be null"),
    ]
    if wrong := [problem for holds, problem in problems if holds]:
        raise TableMismatch(
            f"a table made by FencedTable.create was wanted at {place}",
            "; ".join(wrong),
            "name another place, and copy the rows into a new table",
        )
    try:
        layout = Layout(int(found["neli.slots"]), int(found["neli.partitions"]), found["neli.tags"] == "true")
        first_batch = int(found["neli.first_batch"])
        # Tables of an older version do not have it.
        first_columns = {PARTITION, *json.loads(found.get("neli.columns") or json.dumps([*columns]))}
    except (KeyError, TypeError, ValueError) as error:
        raise TableMismatch(
            f"a layout in the configuration of the table at {place} was wanted",
            f"found none that can be read ({type(error).__name__})",
            "restore the neli.* properties that the table was made with",
        ) from error
    return Format(str(metadata.id), layout, first_batch, columns, frozenset(columns.keys() - first_columns), schema)


def columns_of(schema: TableSchema) -> Columns:
    """The columns of a schema from pyarrow, deltalake or Spark."""
    return {field["name"]: _bare(field["type"]) for field in _fields(schema)}


def split_rows(rows: pa.Table, made: TableFormat, inside: pa.Schema) -> Iterator[tuple[int | None, pa.Table]]:
    """The rows of each partition, with those columns of `inside` that they have. Raises TableMismatch."""
    made.require(columns_of(rows.schema), "the rows")
    schema = pa.schema([field for field in inside if field.name in rows.column_names])
    for partition in pc.unique(rows[PARTITION]).to_pylist():
        yield partition, rows.filter(pc.equal(rows[PARTITION], partition)).select(schema.names).cast(schema)


def columns_of_footer(schema: pa.Schema) -> Columns:
    """The columns of a Parquet file, according to the Arrow schema of its footer."""
    # Spark writes its timestamps as INT96 by default. Arrow takes those for nanoseconds without a zone, which no fenced
    # table has.
    text = json.dumps(columns_of(schema)).replace('"timestamp_nanos_ntz"', '"timestamp"')
    columns: Columns = json.loads(text)
    return columns


def local_path(path: str | PathLike[str]) -> Path:
    """The absolute path of a table. Raises TableMismatch for an address of anything but files."""
    text = fspath(path)
    text = text.removeprefix("file://") if text.startswith("file:///") else text.removeprefix("file:")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text):
        raise TableMismatch(
            "a path in a local or shared file system was wanted",
            f"found an address of {text.partition(':')[0]!r}",
            "put the table where files can be renamed; docs/fencing.md says why an object store is not safe yet",
        )
    path = Path(text).absolute()
    if "%" in str(path):
        raise TableMismatch(
            "a path without a percent sign was wanted",
            f"found {str(path)!r}",
            "choose another: deltalake takes 'a%20b' for 'a b' when it reads the log, and finds another table there",
        )
    return path


def _known_fields(schema: TableSchema) -> list[dict[str, Any]]:
    if unknown := [name for name, kind in columns_of(schema).items() if not _is_known(kind)]:
        raise TableMismatch(
            "columns of types that every reader of Delta knows were wanted",
            f"found others: {', '.join(unknown)}",
            "choose whole numbers, floats, decimals, text, bytes, dates, or timestamps of microseconds",
        )
    return _fields(schema)


def _fields(schema: TableSchema) -> list[dict[str, Any]]:
    """The columns in Delta's JSON, which is Spark's own."""
    if isinstance(schema, Schema):
        text = schema.to_json()
    elif callable(spelled := getattr(schema, "json", None)):
        text = spelled()
    else:
        try:
            text = Schema.from_arrow(schema).to_json()  # type: ignore[arg-type]  # If it is none, it says so.
        except Exception as error:  # noqa: BLE001 - the library has no exception class for this.
            raise TableMismatch(
                "a schema was wanted that Delta can hold",
                f"found {str(error).partition(chr(10))[0]}",
                "cast the columns that it names to types that Delta has",
            ) from None
    fields: list[dict[str, Any]] = json.loads(text)["fields"]
    return fields


def _bare(kind: Any) -> Any:
    """A type without its nullability, which differs between writers of the same values."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return {"struct": {field["name"]: _bare(field["type"]) for field in fields}}
        case {"type": "array", "elementType": element}:
            return {"array": _bare(element)}
        case {"type": "map", "keyType": key, "valueType": value}:
            return {"map": [_bare(key), _bare(value)]}
    return kind


def _is_known(kind: Any) -> bool:
    match kind:
        case {"struct": fields}:
            return all(_is_known(field) for field in fields.values())
        case {"array": element}:
            return _is_known(element)
        case {"map": both}:
            return all(_is_known(one) for one in both)
    return isinstance(kind, str) and TYPES.fullmatch(kind) is not None
