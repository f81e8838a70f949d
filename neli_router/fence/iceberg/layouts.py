"""Which Iceberg tables are fenced: the layout, the first batch and the columns, kept in the table itself.

    made:     partitioned by identity(partition)   format 2   neli.format = 1   neli.slots, neli.partitions, neli.tags
    opened:   unchanged, or with more columns?     --yes--> its terms may be read     neli.first_batch
                                                   --no---> TableMismatch, before anything is written

A table that another layout filled would be silently wrong: its files hold other keys than their partition says. So the
layout is part of the table, and a program that brings another one is refused.

**Changes by other programs.** Columns may be added; a writer that does not know them leaves them out. A column that was
renamed, retyped or removed makes a file list wrong, because a list is read by names; so does another partitioning.
Format 3 brings deletion vectors. A table with any of these is no longer ours. That is reported when the table is
opened, and at the first commit after the change: each commit asserts the schema and the partitioning at which it was
judged.

**Columns.** Types are compared in Spark's own words, as for Delta tables. Iceberg has no types for whole numbers of
fewer than 32 bits. Every column may be null.

**Progress.** Term and batch of partition 3 are the table's property `neli.at.3`. Properties outlive expired snapshots,
and writers that know nothing of us leave them alone.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from deltalake import Schema as DeltaSchema
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform

from neli_router.core.keyspace import Layout
from neli_router.fence.delta.layouts import Format as DeltaFormat
from neli_router.fence.delta.layouts import TableSchema, columns_of, split_rows
from neli_router.fence.refusals import TableMismatch
from neli_router.fence.tables import PARTITION, Judgement, Progress, TableFormat

__all__ = ["IcebergFormat", "columns_made", "format_of", "moves", "progress_of", "properties_of", "spec_of"]

FORMAT = "1"

AT = "neli.at."

HISTORY = "neli.history_seconds"

PARTITION_FIELD = 1000
"""Iceberg numbers the fields of a partition from here."""


@dataclass(frozen=True, slots=True)
class IcebergFormat(TableFormat):
    """The format of a fenced Iceberg table."""

    schema: Schema
    history: timedelta

    @property
    def arrow(self) -> pa.Schema:
        """All columns, with Iceberg's numbers of them."""
        return schema_to_pyarrow(self.schema)

    def split(self, rows: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
        return split_rows(rows, self, self.arrow)

    def spark_schema(self) -> dict[str, Any]:
        # Spark would look for the numbers of columns in every file, and its own files have none.
        plain = schema_to_pyarrow(self.schema, include_field_ids=False)
        return dict(json.loads(DeltaSchema.from_arrow(plain).to_json()))


def columns_made(schema: TableSchema, layout: Layout, first_batch: int) -> pa.Schema:
    """The columns of a new table. `schema` is the same as in `FencedIcebergTable.create`."""
    made = DeltaFormat.of(schema, layout, first_batch)
    if short := [name for name, kind in made.columns.items() if "byte" in _words(kind) or "short" in _words(kind)]:
        raise TableMismatch(
            "columns of types that Iceberg has were wanted",
            f"found shorter whole numbers: {', '.join(short)}",
            "cast them to whole numbers of 32 or 64 bits",
        )
    return pa.schema(made.schema.to_arrow())


def spec_of(schema: Schema) -> PartitionSpec:
    source = schema.find_field(PARTITION).field_id
    return PartitionSpec(PartitionField(source, PARTITION_FIELD, IdentityTransform(), PARTITION))


def properties_of(layout: Layout, first_batch: int, history: timedelta) -> dict[str, str]:
    return {
        "neli.format": FORMAT,
        "neli.slots": str(layout.slots),
        "neli.partitions": str(layout.partitions),
        "neli.tags": str(layout.tags).lower(),
        "neli.first_batch": str(first_batch),
        HISTORY: str(int(history.total_seconds())),
        # Each commit writes the metadata, and one more manifest. Without these two, neither is ever cleaned up, and
        # reads and commits become slower.
        "write.metadata.delete-after-commit.enabled": "true",
        "commit.manifest-merge.enabled": "true",
    }


def format_of(metadata: TableMetadata, place: str) -> IcebergFormat:
    """The format of the table at `place`. Raises TableMismatch if it is not, or no longer, a fenced table."""
    found, schema, specs = metadata.properties, metadata.schema(), metadata.partition_specs
    columns = columns_of(schema_to_pyarrow(schema, include_field_ids=False))
    now = {field.field_id: (field.name, field.field_type) for field in schema.fields}
    first = min(metadata.schemas, key=lambda older: older.schema_id)
    later = frozenset(columns.keys() - {field.name for field in first.fields})
    earlier = [field for older in metadata.schemas for field in older.fields]
    changed = [it.name for it in earlier if now.get(it.field_id) != (it.name, it.field_type)]
    split = [(str(field.transform), field.name) for spec in specs for field in spec.fields]
    problems = [
        (found.get("neli.format") != FORMAT, f"its neli.format is {found.get('neli.format')}, not {FORMAT}"),
        (split != [("identity", PARTITION)], f"it is partitioned by {split}"),
        (columns.get(PARTITION) != "integer", f"it has no whole numbers in a column {PARTITION!r}"),
        (metadata.format_version != 2, f"it has Iceberg's format {metadata.format_version}"),
        (bool(changed), f"columns were renamed, retyped or removed: {', '.join(sorted({*changed}))}"),
        (any(field.required for field in schema.fields), "it has columns that may not be null"),
    ]
    if wrong := [problem for holds, problem in problems if holds]:
        raise TableMismatch(
            f"a table made by FencedIcebergTable.create was wanted at {place}",
            "; ".join(wrong),
            "name another table, and copy the rows into a new one",
        )
    try:
        layout = Layout(int(found["neli.slots"]), int(found["neli.partitions"]), found["neli.tags"] == "true")
        first_batch, history = int(found["neli.first_batch"]), timedelta(seconds=int(found[HISTORY]))
    except (KeyError, ValueError) as error:
        raise TableMismatch(
            f"a layout in the properties of the table at {place} was wanted",
            f"found none that can be read ({type(error).__name__})",
            "restore the neli.* properties that the table was made with",
        ) from error
    return IcebergFormat(str(metadata.table_uuid), layout, first_batch, columns, later, schema, history)


def progress_of(properties: Mapping[str, str], partition: int, start: int) -> Progress:
    text = properties.get(f"{AT}{partition}")
    if text is None:
        return Progress(None, start)
    term, batch = map(int, text.split())
    return Progress(term, batch)


def moves(properties: Mapping[str, str], judged: Judgement, start: int) -> dict[str, str]:
    """The properties that a commit sets."""
    return {
        f"{AT}{partition}": f"{term} {judged.batches.get(partition, progress_of(properties, partition, start).batch)}"
        for partition, term in judged.terms.items()
    }


def _words(kind: Any) -> str:
    return json.dumps(kind)
