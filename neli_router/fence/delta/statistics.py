"""The statistics of one file: how many rows, the least and the greatest value, and how many are null.

    footer of the file --> {"numRecords": 2, "minValues": {"at": ...}, "maxValues": {"at": ...}, "nullCount": {"at": 0}}
                                 |
    any reader of Delta: WHERE at >= '2026-03-01' skips each file whose greatest `at` is below

A reader believes them: it never opens a file that they rule out. So a bound may be too wide, but never too narrow, and
a value that the footer does not give exactly is left out. A reader that finds no bound reads the file.

    column                 least                           greatest
    whole numbers, dates   exact                           exact
    floats                 exact, if it is finite          left out: a NaN is above all numbers, and no footer says
                                                           whether there is one
    decimals               if JSON's numbers hold it       if JSON's numbers hold it
    text                   its first 32 characters         the same, and then the last character of Unicode
    timestamps             rounded down to milliseconds    rounded up: Delta has no microseconds here
    others                 left out                        left out

Only the first 32 columns have statistics, as Delta itself does it. A column that the file does not have is null in all
of its rows.
"""

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow.parquet as pq

from neli_router.fence.tables import Columns

__all__ = ["stats_of"]

COLUMNS_MAX = 32
"""More columns let readers skip more files, and make every entry of the log and every checkpoint longer."""

TEXT_MAX = 32
"""Characters of a text. A longer prefix distinguishes more values, at the same cost."""

LAST_CHARACTER = "\U0010ffff"

MILLISECOND = timedelta(milliseconds=1)


def stats_of(footer: pq.FileMetaData, columns: Columns) -> str:
    """The `stats` of a file in Delta's log. `columns` are the table's, without the partition."""
    schema = footer.schema
    leaves = {schema.column(number).path: number for number in range(footer.num_columns)}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    least, greatest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for name, kind in islice(columns.items(), COLUMNS_MAX):
        # In a footer, `a.b` may also be the field `b` of the column `a`.
        if not isinstance(kind, str) or "." in name:
            continue
        if name not in leaves:
            nulls[name] = footer.num_rows
            continue
        found = [(column.statistics, column.num_values) for column in (group.column(leaves[name]) for group in groups)]
        if any(one is None or not one.has_null_count for one, _ in found):
            continue
        nulls[name] = sum(one.null_count for one, _ in found)
        full = [one for one, values in found if one.null_count < values]
        if full and all(one.has_min_max for one in full):
            try:
                low, high = min(one.min for one in full), max(one.max for one in full)
            except (ValueError, OverflowError):  # Python has no such value, such as a date in the year 10000.
                continue
            least[name], greatest[name] = _floor(low), _ceiling(high)
    bounds = {"minValues": least, "maxValues": greatest}
    known = {what: {name: value for name, value in of.items() if value is not None} for what, of in bounds.items()}
    return json.dumps({"numRecords": footer.num_rows, **known, "nullCount": nulls})


def _floor(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value[:TEXT_MAX]
        case datetime():
            return _spelled(value)
    return _exact(value)


def _ceiling(value: Any) -> Any:
    match value:
        case float():
            return None
        case str():
            # The last character of Unicode could follow there, and more behind it.
            bounded = value[:TEXT_MAX] + LAST_CHARACTER if value[TEXT_MAX:] < LAST_CHARACTER else None
            return value if len(value) <= TEXT_MAX else bounded
        case datetime():
            try:
                return _spelled(value if value.microsecond % 1000 == 0 else value + MILLISECOND)
            except OverflowError:
                return None
    return _exact(value)


def _exact(value: Any) -> Any:
    match value:
        case bool() | bytes():
            return None
        case int():
            return value
        case date():
            return value.isoformat()
        case Decimal():
            return float(value) if Decimal(repr(float(value))) == value else None
    return None


def _spelled(at: datetime) -> str:
    """`at` in ISO 8601, without what is below a millisecond."""
    if at.tzinfo is None:
        return at.isoformat(timespec="milliseconds")
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
