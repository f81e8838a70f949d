"""The tables of an audit: its facts as rows, for further questions, written as Delta tables.

    Audit --tables_of--> tenures    a row per tenure: partition, term, member, when it began and ended, when it was led
                         moves      a row per partition that went from one member to another
                         members    a row per incarnation: joined, ended and how, Beats
                         takeovers  a row per member that died: partitions, from death to led again
                         findings   a row per finding, with its severity
          --write_tables--> FOLDER/tenures, FOLDER/moves, ...     replaced as a whole, atomically, each by one commit

Times are seconds on the audit's axis; `..._at` is the same on the wall clock, where that is known. Any engine that
reads Delta or Arrow can read them. No JVM is needed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from neli_router.errors import NeliError
from neli_router.status.audit import Audit

__all__ = ["tables_of", "write_tables"]

_TIME = pa.timestamp("us", tz="UTC")

SCHEMAS: Mapping[str, pa.Schema] = {
    "tenures": pa.schema(
        {
            "partition": pa.int64(),
            "term": pa.int64(),
            "member": pa.string(),
            "incarnation": pa.string(),
            "first_offset": pa.int64(),
            "last_offset": pa.int64(),
            "began_by": pa.string(),
            "ended_by": pa.string(),
            "since": pa.float64(),
            "until": pa.float64(),
            "led_from": pa.float64(),
            "led_until": pa.float64(),
            "since_at": _TIME,
            "until_at": _TIME,
        }
    ),
    "moves": pa.schema(
        {
            "offset": pa.int64(),
            "partition": pa.int64(),
            "source": pa.string(),
            "target": pa.string(),
            "cause": pa.string(),
            "by": pa.string(),
            "time": pa.float64(),
            "moved_at": _TIME,
        }
    ),
    "members": pa.schema(
        {
            "member": pa.string(),
            "incarnation": pa.string(),
            "address": pa.string(),
            "first_offset": pa.int64(),
            "last_offset": pa.int64(),
            "ended_by": pa.string(),
            "since": pa.float64(),
            "until": pa.float64(),
            "since_at": _TIME,
            "until_at": _TIME,
            "beats": pa.int64(),
            "late_beats": pa.int64(),
            "most_owned": pa.int64(),
        }
    ),
    "takeovers": pa.schema(
        {
            "offset": pa.int64(),
            "member": pa.string(),
            "incarnation": pa.string(),
            "partitions": pa.int64(),
            "died": pa.float64(),
            "led": pa.float64(),
            "seconds": pa.float64(),
            "error": pa.float64(),
            "died_at": _TIME,
        }
    ),
    "findings": pa.schema(
        {
            "severity": pa.string(),
            "kind": pa.string(),
            "text": pa.string(),
            "offset": pa.int64(),
            "time": pa.float64(),
            "found_at": _TIME,
        }
    ),
}
"""Null values: an offset that does not exist yet, a time that is not known, or `led` where it never was."""

Row = Sequence[object]


def tables_of(audit: Audit) -> dict[str, pa.Table]:
    """The tables by name."""
    rows = _rows(audit, lambda time: _micros(audit.wall(time)))
    return {name: _table(SCHEMAS[name], rows[name]) for name in SCHEMAS}


def write_tables(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write them below `folder`, each under its name, replacing any that are there. Raises NeliError."""
    try:
        for name, table in tables.items():
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            write_deltalake(place, table, mode="overwrite", schema_mode="overwrite")
    except DeltaError as error:
        raise NeliError(
            f"a Delta table was to be written to {folder}", f"that failed ({error})", "name a folder of its own"
        ) from None


def _rows(audit: Audit, at: Callable[[float], int | None]) -> dict[str, Iterable[Row]]:
    return {
        "tenures": (
            (
                *(it.partition, it.term, it.member, it.incarnation, it.first, it.last, it.cause, it.ending or None),
                *(it.since, it.until),
                *((it.led_from, it.led_until) if it.led_until > it.led_from else (None, None)),
                *(at(it.since), at(it.until)),
            )
            for it in audit.tenures
        ),
        "moves": (
            (it.offset, partition, it.source, it.target, it.cause, it.by, it.read_at, at(it.read_at))
            for it in audit.moves
            if it.source is not None and it.target is not None
            for partition in it.partitions
        ),
        "members": (
            (
                *(it.name, it.incarnation, it.address, it.first, it.ended, it.ending or None, it.since, it.until),
                *(at(it.since), at(it.until), it.beats, it.came_too_late, it.owned_max),
            )
            for it in audit.lives
        ),
        "takeovers": (
            (
                *(it.offset, it.member, it.incarnation, it.partitions, it.died),
                *((it.led, it.seconds) if isfinite(it.led) else (None, None)),
                *(it.error, at(it.died)),
            )
            for it in audit.takeovers
        ),
        "findings": (
            (it.severity, it.kind, it.text, it.offset, it.time, None if it.time is None else at(it.time))
            for it in audit.findings
        ),
    }


def _table(schema: pa.Schema, rows: Iterable[Row]) -> pa.Table:
    columns: list[list[Any]] = [[] for _ in schema]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


def _micros(wall: float | None) -> int | None:
    return None if wall is None or not isfinite(wall) else round(wall * 1e6)
