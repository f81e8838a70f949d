"""The statistics of files in a fenced table: readers skip files by them, and never a file with a row that they want."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from neli_router.core.keyspace import Layout
from neli_router.fence import FenceMisused
from neli_router.fence.delta import FencedTable
from neli_router.fence.delta.layouts import columns_of
from neli_router.fence.delta.statistics import COLUMNS_MAX, stats_of

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
ZONED, PLAIN = pa.timestamp("us", "UTC"), pa.timestamp("us")
LAST, HOUR = "\U0010ffff", timedelta(hours=1)


def stats(rows: pa.Table, columns: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    file = BytesIO()
    pq.write_table(rows, file, **options)
    found: dict[str, Any] = json.loads(stats_of(pq.read_metadata(file), columns or columns_of(rows.schema)))
    return found


@pytest.mark.parametrize(
    ("kind", "values", "least", "greatest"),
    [
        (pa.int64(), [2**62 + 1, None, -5], -5, 2**62 + 1),
        (pa.float64(), [1.5, float("nan"), 0.5], 0.5, None),
        (pa.float64(), [float("-inf"), 0.5], None, None),
        (pa.string(), ["b", "a" * 33], "a" * 32, "b"),
        (pa.string(), ["ü" * 32, "ü" * 33], "ü" * 32, "ü" * 32 + LAST),
        (pa.string(), ["ü" * 32 + LAST * 2], "ü" * 32, None),
        (pa.date32(), [date(9999, 12, 31), date(1, 1, 1)], "0001-01-01", "9999-12-31"),
        (pa.date32(), pa.array([0, 2**30], pa.int32()), None, None),
        (ZONED, [AT, AT + timedelta(days=1)], "2026-01-02T03:04:05.678Z", "2026-01-03T03:04:05.679Z"),
        (ZONED, [datetime(1969, 12, 31, 23, 59, 59, 500, UTC)], "1969-12-31T23:59:59.000Z", "1969-12-31T23:59:59.001Z"),
        (ZONED, [AT, datetime.max.replace(tzinfo=UTC)], "2026-01-02T03:04:05.678Z", None),
        (PLAIN, [AT.replace(tzinfo=None)], "2026-01-02T03:04:05.678", "2026-01-02T03:04:05.679"),
        (pa.decimal128(20, 2), [Decimal("-1.25"), Decimal("123456789012345678.91")], -1.25, None),
        (pa.bool_(), [True, False], None, None),
        (pa.binary(), [b"a"], None, None),
        (pa.list_(pa.int64()), [[1]], None, None),
        (pa.int64(), [None, None], None, None),
    ],
)
def test_a_bound_is_as_wide_as_the_values_or_left_out(kind: Any, values: Any, least: Any, greatest: Any) -> None:
    column = values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)
    found = stats(pa.table({"x": column, "y.z": column}))
    bounds = [{"x": bound} if bound is not None else {} for bound in (least, greatest)]
    assert [len(values), *bounds] == [found[key] for key in ("numRecords", "minValues", "maxValues")]
    assert ({} if pa.types.is_list(kind) else {"x": column.null_count}) == found["nullCount"]


def test_bounds_cover_all_row_groups_and_the_first_columns_and_a_missing_column_is_null() -> None:
    rows = pa.table({"x": [3, None, None, None, 9, 1]})
    found = stats(rows, {"x": "long", "later": "long"}, row_group_size=2)
    assert {"numRecords": 6, "minValues": {"x": 1}, "maxValues": {"x": 9}, "nullCount": {"x": 3, "later": 6}} == found
    # Without statistics in one group, nothing is known of the others either.
    assert {} == stats(rows, write_statistics=False)["nullCount"]
    wide = pa.table({f"c{number}": [1] for number in range(COLUMNS_MAX + 1)})
    assert COLUMNS_MAX == len(stats(wide)["minValues"])


def test_readers_skip_files_by_a_range_of_time_and_miss_no_row(tmp_path: Path) -> None:
    table = FencedTable.create(tmp_path / "ticks", pa.schema([("at", ZONED)]), Layout(partitions=8))
    days = [AT + timedelta(days=day) for day in range(10)]
    for batch, day in enumerate(days):
        table.append(pa.table({"at": pa.array([day, day + HOUR], ZONED), "partition": [1, 1]}), {1: 7}, batch)
    read = DeltaTable(str(table.path)).to_pyarrow_dataset()
    for first, files, rows in (days[7], 3, 6), (days[7] + HOUR, 3, 5), (days[7] + 2 * HOUR, 2, 4):
        assert files == len(table.files([1, 2], where=[("at", ">=", first)]))
        wanted = pc.field("at") >= first
        assert (files, rows) == (len([*read.get_fragments(wanted)]), read.count_rows(filter=wanted))
    assert [] == table.files(where=[("at", ">", days[3]), ("at", "<", days[3])])[1:]
    assert [] == table.files([2], where=[("at", ">=", days[0])])
    for name, value in (("at", days[0].replace(tzinfo=None)), ("to", days[0]), ("at", "noon"), ("at", None)):
        with pytest.raises(FenceMisused, match="conditions on columns"):
            table.files(where=[(name, ">=", value)])
