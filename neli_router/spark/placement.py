"""Rows by owner: where they lie in a table, which of them a host reads, and which of its tasks works on them.

    rows --repartition_by_key--> a task for each partition --.write.partitionBy("partition")--> .../partition=3/...
                                                                                          |
    rows of mine <--each row's key is checked-- files of mine alone <--partition IN (3, 7), by owned--'
         '--repartition_by_owner--> one task per partition, or one per owner

**Only the column itself skips files.** It is part of the folder names, so Spark knows before it reads which files a
filter on it leaves. An expression of the slot says the same about every row, but Spark would have to read all rows to
evaluate it. So `owned` filters by the stored column, and also checks the key of each row that it reads: a row in a
partition where its key does not belong stops the job.

**A table of another layout** holds in each partition keys that belong to another member. Three checks detect that, the
cheapest first: the layout that `repartition_by_key` noted with the column, and that Spark keeps in every file;
partition numbers in the folder names that the layout does not have; and the rows. The first two run immediately, before
any job. The second is for files without a note: half of the layout's partitions would hold keys of mine in folders that
I never read, and all rows that I do read would be right.

**One task per partition.** Hashing the column, like `repartition("partition")`, puts several partitions into one task
and none into another. So the tasks are numbered here, and Spark uses the numbers unchanged.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import IntegralType, StructField

from neli_router.agent.client.leases import Share
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, NeliError
from neli_router.fence import TableMismatch
from neli_router.spark.slots import (
    NOTE,
    Key,
    column_of,
    layout_note,
    quoted,
    resolved,
    unused_name,
    with_layout_note,
    with_partition,
)

__all__ = ["FilesRead", "files_read", "owned", "repartition_by_key", "repartition_by_owner"]

PARTITION = "partition"

SHOWN_MAX = 5
"""Partition numbers in a message: there may be thousands."""


@dataclass(frozen=True, slots=True)
class FilesRead:
    """How many files of a table are read, and how many it has."""

    read: int
    total: int

    def __str__(self) -> str:
        return f"{self.read} of {self.total} files"


def repartition_by_key(
    df: DataFrame, key: Key, layout: Layout, *, name: str = PARTITION, tasks: int | None = None
) -> DataFrame:
    """`df` with the partition of each key, so that `.write.partitionBy("partition")` writes one file for each.

    Each task has whole partitions: one, or several if `tasks` are fewer than the partitions. A row without a key fails
    the job, because it belongs to no partition that an owner would read. Raises the errors of `with_partition`.
    """
    _, field = resolved(df, key)
    # The column of partitions loses its note when it becomes the names of folders.
    known = with_layout_note(df, field.name, layout) if isinstance(key, str) and field in df.schema.fields else df
    placed = with_partition(known, key, layout, name=name)
    missing = ConfigError([f"column {field.name!r} has a row without a key: drop or fill such rows first"])
    return placed.repartitionById(tasks or layout.partitions, _or_fail(_column(name), missing))


def owned(
    df: DataFrame,
    key: Key,
    share: Share | Iterable[int],
    layout: Layout | None = None,
    *,
    stored: str | None = PARTITION,
) -> DataFrame:
    """The rows of `df` whose keys are in the partitions of `share`, by the layout of its group.

    `share` may also be partitions, such as `share.terms`, with their `layout`. Without partitions, it is empty.

    The table is laid out by the column `stored`, and the files of other partitions are not read: see `files_read`. With
    `stored=None`, for a table that is not laid out, all files are read. A row without a key is in no partition.

    Raises BadKey for a column that cannot be a key, ConfigError for a missing column and for a partition that `layout`
    does not have or that is not the share's, and TableMismatch for a table that was laid out by another layout. If only
    its rows show that, the job fails with the same message.
    """
    if isinstance(share, Share):
        if layout is not None and (difference := layout.difference(share.layout)):
            raise ConfigError([f"layout is not that of the share's group: {difference}; leave it out"])
        layout, share = share.layout, share.terms
    if layout is None:
        raise ConfigError(["layout is missing: partitions need that of their group, which a share brings"])
    mine = sorted(set(share))
    if strange := [number for number in mine if not 0 <= number < layout.partitions]:
        raise ConfigError([f"partitions must be from 0 to {layout.partitions - 1}, and have {_some(strange)}"])
    computed = unused_name(df.columns, "partition")
    if stored is None:
        whole = with_partition(df, key, layout, name=computed)
        return whole.filter(sql.col(computed).isin(mine)).drop(computed)
    field = _stored(df, stored)
    _require_layout(df, field, resolved(df, key)[1], layout)
    column = _column(field.name)
    read = with_partition(df.filter(column.isin(mine)), key, layout, name=computed)
    other = _mismatch(f"a row of {field.name!r} has a key of another partition, or none", layout)
    agrees = column == sql.col(computed)
    return read.filter(_or_fail(sql.when(agrees, agrees), other)).drop(computed)


def files_read(df: DataFrame, partitions: Iterable[int], *, stored: str = PARTITION) -> FilesRead:
    """How many files of the table `df` are read by `owned`, judged by their folder names. Reads none of them.

    `df` is the opened table itself. Spark reports the same after reading, as the scan's `number of files read`.
    """
    mine, column = set(partitions), _stored(df, stored).name
    files = [_partition_of(file, column) for file in df.inputFiles()]
    return FilesRead(sum(number is None or number in mine for number in files), len(files))


def repartition_by_owner(
    df: DataFrame, partitions: Iterable[int], *, owners: Mapping[int, Hashable] | None = None, name: str = PARTITION
) -> DataFrame:
    """`df` in as many tasks as there are `partitions`, each with all rows of one, according to the column `name`.

    With `owners`, partition -> owner, there is one task for each owner. Tasks are in the order of the partitions, or of
    the owners' first partitions. A row of another partition, or of none, fails the job: it would have no task.
    """
    wanted = sorted(set(partitions))
    field = _stored(df, name)
    if unknown := [] if owners is None else [number for number in wanted if number not in owners]:
        raise ConfigError([f"owners must name one for each partition, and has none for {_some(unknown)}"])
    if not wanted:
        raise ConfigError(["partitions must be one or more, or there is no task for any row"])
    tasks: dict[Hashable, int] = {}
    task_of = {number: tasks.setdefault(owners[number] if owners else number, len(tasks)) for number in wanted}
    # A list, looked up by partition: a chain of conditions would be evaluated for each row.
    table = sql.lit([task_of.get(number) for number in range(wanted[-1] + 1)])
    stray = ConfigError([f"column {field.name!r} has a row of a partition that is not among those wanted"])
    return df.repartitionById(len(tasks), _or_fail(sql.get(table, _column(field.name)), stray))


def _column(name: str) -> Column:
    return sql.col(quoted(name))


def _or_fail(column: Column, error: NeliError) -> Column:
    """`column`; a row in which it is null fails the job with the message of `error`."""
    return sql.coalesce(column, sql.raise_error(str(error)))


def _stored(df: DataFrame, name: str) -> StructField:
    field = column_of(df, name)
    if not isinstance(field.dataType, IntegralType):
        kind = field.dataType.simpleString()
        raise ConfigError([f"column {field.name!r} must hold numbers of partitions, and holds {kind}"])
    return field


def _require_layout(df: DataFrame, stored: StructField, key: StructField, layout: Layout) -> None:
    """Compare what is known of the table's layout before any row is read. Raises TableMismatch."""
    # The column's own note comes first: the key's note may be older, from a table that the rows were in before.
    for field in (stored, key):
        if NOTE in field.metadata:
            if field.metadata[NOTE] != layout_note(layout):
                raise _mismatch(f"column {field.name!r} notes {field.metadata[NOTE]}", layout)
            return
    if df.isStreaming:
        return  # Its files do not exist yet.
    numbers = (_partition_of(file, stored.name) for file in df.inputFiles())
    if strange := sorted({number for number in numbers if number is not None and number >= layout.partitions}):
        raise _mismatch(f"it has the partitions {_some(strange)}", layout)


def _mismatch(found: str, layout: Layout) -> TableMismatch:
    return TableMismatch(
        f"a table that is laid out by {layout.spelled()} was wanted",
        found,
        "read it with the layout of the group that wrote it, or lay its rows out again",
    )


def _partition_of(file: str, column: str) -> int | None:
    """The partition in whose folder `file` lies; None if it is outside any such folder."""
    folders = [name.partition("=") for name in file.split("/")[:-1]]
    # Escaped twice: by Spark, as a folder name, and then as part of a URI.
    found = [value for name, _, value in folders if unquote(unquote(name)) == column and value.isdecimal()]
    return int(found[-1]) if found else None


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN_MAX]))
    return shown if len(numbers) <= SHOWN_MAX else f"{shown} and {len(numbers) - SHOWN_MAX} more"
