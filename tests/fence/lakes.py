"""Fenced tables of both formats, and what any engine reads of them.

    made("iceberg", folder) --> the table        again(table) --> the same, opened as by another program
    prices(table)   what another reader finds    orphans(table)   files that no reader looks at

`tests/fence/test_tables.py` holds both formats to one contract. Catalogs of Iceberg are SQLite in the table's folder.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from neli_router.core.keyspace import Layout
from neli_router.fence.delta import FencedTable
from neli_router.fence.tables import AnyFencedTable

__all__ = [
    "FORMATS",
    "LAYOUT",
    "SCHEMA",
    "AnyTable",
    "again",
    "commits",
    "commits_by",
    "files",
    "made",
    "meanwhile",
    "opened",
    "orphans",
    "prices",
    "read",
    "remade",
    "rows",
    "where",
]

os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Its own needs another package, and warns without it.

AnyTable = AnyFencedTable[Any]

FORMATS = ("delta", "iceberg")

LAYOUT = Layout(partitions=8)
SCHEMA = pa.schema([("instrument", pa.string()), ("price", pa.float64())])


@contextmanager
def made(format_: str, folder: Path, schema: Any = SCHEMA, layout: Layout = LAYOUT, **more: Any) -> Iterator[AnyTable]:
    if format_ == "delta":
        yield FencedTable.create(folder / "prices", schema, layout, **more)
        return
    table = _iceberg().create("lake.prices", schema, layout, folder, **more)
    try:
        yield table
    finally:
        table.catalog.close()


def remade(table: Any, schema: Any = SCHEMA, layout: Layout = LAYOUT, **more: Any) -> AnyTable:
    """The table from a program that would make it if it were not there."""
    place = (table.path,) if isinstance(table, FencedTable) else (table.name, table.catalog)
    made: AnyTable = type(table).create(place[0], schema, layout, *place[1:], **more)
    return made


def again(table: Any, **more: Any) -> AnyTable:
    place = (table.path,) if isinstance(table, FencedTable) else (table.name, table.catalog)
    opened: AnyTable = type(table)(*place, **more)
    return opened


def where(table: Any) -> str:
    """The text by which another process opens it."""
    if isinstance(table, FencedTable):
        return str(table.path)
    return str(table.catalog.properties["warehouse"].removeprefix("file://"))


def opened(place: str) -> AnyTable:
    return FencedTable(place) if (Path(place) / "_delta_log").exists() else _iceberg()("lake.prices", place)


def commits_by(table: Any) -> tuple[type, str, Exception]:
    """The class and method that make a commit, and an error of it that leaves the outcome open."""
    if isinstance(table, FencedTable):
        return DeltaTable, "create_write_transaction", DeltaError("the answer was lost")
    from pyiceberg.table import Table  # noqa: PLC0415 - see `_iceberg`.
    from sqlalchemy.exc import OperationalError  # noqa: PLC0415 - as above.

    return Table, "_do_commit", OperationalError("COMMIT", {}, ConnectionError("the answer was lost"))


def rows(*partitions: int, price: float = 1.0) -> pa.Table:
    """One row for each partition."""
    count = len(partitions)
    columns = {"instrument": ["NELI"] * count, "price": [float(price)] * count}
    return pa.table({**columns, "partition": pa.array(partitions, pa.int32())})


def read(table: Any) -> pa.Table:
    """All rows, as an engine that knows nothing of fences reads them."""
    if isinstance(table, FencedTable):
        return DeltaTable(str(table.path)).to_pyarrow_table()
    import polars as pl  # noqa: PLC0415 - it takes a second, and other processes only open tables.

    return pl.scan_iceberg(table.catalog.load_table(table.name).metadata_location).collect().to_arrow()


def commits(table: Any) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """The rows that each commit added, by its version, from the oldest to the newest."""
    if isinstance(table, FencedTable):
        for entry in sorted((table.path / "_delta_log").glob("*.json")):
            for add in (action["add"] for action in map(json.loads, entry.read_text().splitlines()) if "add" in action):
                part = {"partition": int(add["partitionValues"]["partition"])}
                added = pq.read_table(table.path / add["path"], partitioning=None).to_pylist()
                yield entry.stem, [it | part for it in added]
        return
    found = table.catalog.load_table(table.name)
    for snapshot in sorted(found.snapshots(), key=lambda it: it.sequence_number):
        for manifest in snapshot.manifests(found.io):
            for entry in manifest.fetch_manifest_entry(found.io):
                if manifest.added_snapshot_id == entry.snapshot_id == snapshot.snapshot_id:
                    file = entry.data_file.file_path.removeprefix("file://")
                    yield snapshot.snapshot_id, pq.read_table(file, partitioning=None).to_pylist()


def prices(table: AnyTable) -> list[tuple[int, float]]:
    """(partition, price) of all rows."""
    found = read(table)
    return sorted(zip(found["partition"].to_pylist(), found["price"].to_pylist(), strict=True))


def files(table: AnyTable) -> list[Path]:
    """Every file below the table, except its log or metadata."""
    root = Path(table.place.removeprefix("file://"))
    return [path for path in root.rglob("*") if path.is_file() and not {"_delta_log", "metadata"} & {*path.parts}]


def orphans(table: AnyTable) -> list[str]:
    """Every such file that no reader looks at."""
    known = {*table.files()}
    return sorted(path.name for path in files(table) if str(path) not in known)


def meanwhile(table: Any, happens: Callable[[], object], *, added: pa.Table | None = None, batch: int = 0) -> Any:
    """Append a batch of partition 1. Just before its first commit, after it was judged, something else happens."""
    with table.stage({1: 7}, batch) as staging:
        staging.write(rows(1) if added is None else added)
        place, events = staging.place, [happens]

        def placed(partitions: Iterable[int]) -> object:
            if events:
                events.pop()()
            return place(partitions)

        staging.place = placed
        return table.commit(staging)


def _iceberg() -> Any:
    from neli_router.fence.iceberg import FencedIcebergTable  # noqa: PLC0415 - it takes two seconds.

    return FencedIcebergTable
