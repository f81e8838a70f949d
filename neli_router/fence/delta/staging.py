"""The files of one commit, from the first byte until they have landed or are gone.

    begin --> stage --> place --> commit --> settle        every step leaves what another program needs to clean up
      |         |         |          |          |
      |         |         |          |          '-- the folder is removed
      |         |         |          '------------- one entry of Delta's log names the placed files
      |         |         '------------------------ each is renamed to partition=3/t9-b40-NAME-0.parquet
      |         '---------------------------------- _neli/NAME/rows/partition=3/*.parquet, written by any program
      '-------------------------------------------- _neli/NAME/step.json: terms, batches, the table's version before

A file is in the table if and only if the log names it, so no reader can see any of this before the commit. NAME is
drawn at random for each attempt, so two attempts never share a file, and neither removes the other's. Readers, and
vacuum in every mode, skip folders whose names begin with an underscore.

A program may be killed anywhere:

    killed                       it leaves                                  it is repaired by
    while it begins              a folder without a readable step.json      `sweep`, after a day
    while it stages              a folder with staged files                 `sweep`
    between stage and place      the same                                   `sweep`
    between place and commit     a folder; placed files that no log names   `sweep`
    between commit and answer    a folder; the table is complete            `sweep`; the batch is skipped if repeated

**When may a sweep remove an attempt?** Its age does not matter: a process that was stopped may wake up a month later
and commit. The fence decides: an attempt under term t for batch b is *dead* in a partition once the table holds a
higher term there, or a batch that is not before b. The table never takes either back, so the attempt's commit would be
refused or skipped at this version and at all later ones. If an attempt is dead in all its partitions, all its files
that no log entry ever named are orphans. That holds with any number of live writers, and with clocks that show
anything. An attempt that is not dead stays: it is the newest in its partition. It is dead as soon as its batch is
repeated, or a new owner raises the term. (When a compaction is dead, `upkeep` says.)

The folder is renamed before its files are removed: a zombie that is about to place its files then finds none, instead
of placing them just behind the sweep.

**Vacuum** by age would not be safe for placed files, whose commit may come at any time. So the fence only ever runs
Delta's "lite" vacuum, which removes what the log itself lists as removed, and never what it does not name. But each
checkpoint forgets the files that were removed more than a week ago, and after that no lite vacuum finds them. So the
fence also removes files of settled attempts that the table neither has nor lists as removed: see `settled`. VACUUM of
other engines removes unnamed files older than the retention (a week by default): so placing a file sets its time, and
an attempt must be stopped for a week between place and commit to be harmed. Its commit then finds the files gone and
fails, unless it was stopped after that check. Set the retention of other engines longer than any pause.
"""

import os
import re
import shutil
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from neli_router.fence.delta.layouts import PARTITION, Format, columns_of_footer
from neli_router.fence.delta.statistics import stats_of
from neli_router.fence.refusals import TableMismatch, TableUnavailable
from neli_router.fence.tables import AnyStaging, Step, require_columns

__all__ = ["FLUSHES_AT_ONCE", "Staging", "abandoned", "clear", "flush", "settled"]

ATTEMPTS = "_neli"
STEP = "step.json"
SWEPT = ".swept"
PLACED = re.compile(r"t\d+-b-?\d+-([0-9a-f]{16})-\d+\.parquet")

FLUSHES_AT_ONCE = 8
"""More threads gain nothing on one disk; they only wait."""

UNREADABLE_SECONDS_MAX = 24 * 60 * 60.0
"""A folder without a readable step.json is removed after this time. Either its program was killed at that moment, or it
was stopped, and fails when it goes on, before it has written a row."""


class Staging(AnyStaging):
    """Rows on their way into a fenced table. Made by `FencedTable.stage`; only one thread may use it at a time.

    `folder` is for programs that write Parquet themselves, mainly Spark: files below `partition=N/`, with all columns
    of the table except the partition; those that came later may be missing. Names that begin with an underscore or a
    dot are skipped.
    """

    format: Format

    folders = PARTITION

    _looked: "list[_File] | None"

    def __init__(self, root: Path, step: Step, made: Format) -> None:
        super().__init__(step)
        self.format, self._root, self._home = made, root, root / ATTEMPTS / step.name
        self._home.mkdir(parents=True)
        (self._home / STEP).write_text(step.text(), encoding="utf-8")

    @property
    def folder(self) -> Path:
        return self._home / "rows"

    def _write(self, rows: pa.Table, folder: str, name: str) -> None:
        (self.folder / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.folder / folder / name)

    def merge(self, partition: int, paths: Iterable[Path]) -> None:
        """Stage the rows of some of the table's files as one file. Raises OSError if one is gone."""
        schema, target = self.format.arrow, self.folder / f"{PARTITION}={partition}" / "0.parquet"
        target.parent.mkdir(parents=True)
        with pq.ParquetWriter(target, schema) as writer:
            for path in paths:
                # Times that Spark has written as INT96 would become nanoseconds, which end in the year 2262.
                with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                    for rows in file.iter_batches():
                        writer.write_batch(_with_columns(rows, schema))

    def count(self) -> int:
        return sum(file.rows for file in self._looked_at())

    def place(self, partitions: Iterable[int], *, has_new_rows: bool = True) -> list[AddAction | RemoveAction]:
        """Give the staged files of `partitions` their names in the table, and make them durable; return what the log
        must say about them. May be called again, also after it failed. Streams of other engines read only new rows.

        Raises TableMismatch if a file does not fit the table, TableUnavailable if a placed file is gone, and OSError.
        """
        files = [file for file in self._looked_at() if file.rows and file.partition in set(partitions)]
        fresh = [file for file in files if not file.is_placed]
        folders = {(self._root / file.name).parent for file in fresh}
        if new := [folder for folder in folders if not folder.exists()]:
            for folder in new:
                folder.mkdir(exist_ok=True)
            flush(self._root)
        for file in fresh:
            file.place(self._root)
        # Only now, and many together: a journal then writes them in one go, thirty times as fast as one by one.
        with ThreadPoolExecutor(FLUSHES_AT_ONCE) as pool:
            for paths in ([self._root / file.name for file in fresh], folders):
                deque(pool.map(flush, paths), maxlen=0)
        return [file.action(self._root, has_new_rows) for file in files]

    def settle(self, landed: Collection[str] | None) -> None:
        """Remove what is left of this attempt, except its files that `landed`: the names that the log has added since
        the attempt began, or None if they are not known."""
        for file in self._looked or ():
            if landed is not None and file.name not in landed:
                (self._root / file.name).unlink(missing_ok=True)
        shutil.rmtree(self._home, ignore_errors=True)

    def _looked_at(self) -> list["_File"]:
        if self._looked is None:  # All are read before the first one is moved, and never again.
            self._looked = [_File.staged(self, *found) for found in self._staged()]
        return self._looked

    def _staged(self) -> Iterator[tuple[int, Path, int]]:
        if not (self._home / STEP).exists():
            raise TableUnavailable(
                "the attempt's folder was wanted",
                "it is gone, and with it the rows that were staged",
                "let nothing but `sweep` remove folders in the table, and repeat the batch",
            )
        # Not only the folders of partitions: Spark's unfinished work is in `_temporary` next to them.
        if (self.folder / "_temporary").exists():
            raise self._unfinished()
        number = 0
        for folder in sorted(self.folder.glob(f"{PARTITION}=*")):
            partition = self._partition_of(folder.name)
            for path in sorted(folder.iterdir()):
                if not path.name.startswith(("_", ".")):
                    yield partition, path, number
                    number += 1


@dataclass(slots=True)
class _File:
    """One file of an attempt, first where it was staged and then where it was placed."""

    partition: int
    path: Path
    name: str
    rows: int
    stats: str
    is_placed: bool = False

    @classmethod
    def staged(cls, attempt: Staging, partition: int, path: Path, number: int) -> "_File":
        """The statistics come from the file's own footer: wrong ones would mislead readers that count or skip."""
        try:
            footer = pq.read_metadata(path)
        except pa.ArrowInvalid as error:
            raise TableMismatch("Parquet files were wanted", f"{path.name} is none", "begin a new attempt") from error
        inside = {name: kind for name, kind in attempt.format.columns.items() if name != PARTITION}
        found = columns_of_footer(footer.schema.to_arrow_schema())
        require_columns(inside, found, f"the file {path.name}", later=attempt.format.later)
        name = f"{_prefix(attempt.step, partition)}{number}.parquet"
        return cls(partition, path, name, footer.num_rows, stats_of(footer, inside))

    def place(self, root: Path) -> None:
        os.utime(self.path)
        self.path.rename(root / self.name)
        self.is_placed = True

    def action(self, root: Path, has_new_rows: bool) -> AddAction:
        try:
            size = (root / self.name).stat().st_size
        except FileNotFoundError:
            # A log entry that names a missing file would make the whole table unreadable.
            raise TableUnavailable(
                f"the placed file {self.name} was wanted",
                "it is gone",
                "let no VACUUM run with a retention shorter than a commit may take, and repeat the batch",
            ) from None
        now = int(time.time() * 1000)
        return AddAction(
            self.name, size, {PARTITION: str(self.partition)}, now, data_change=has_new_rows, stats=self.stats
        )


def _with_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`rows` with the columns of `schema`; those that they lack are null."""
    there = set(rows.schema.names)
    columns = [
        rows[field.name].cast(field.type) if field.name in there else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def abandoned(root: Path) -> tuple[list[tuple[Path, Step]], list[Path]]:
    """The folders of unsettled attempts, with their steps; and, after a day, those without a readable step."""
    found, strays = [], []
    for folder in sorted((root / ATTEMPTS).glob("*")):
        try:
            found.append((folder, Step.read((folder / STEP).read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError, KeyError):
            with suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > UNREADABLE_SECONDS_MAX:
                    strays.append(folder)
    return found, strays


def settled(root: Path) -> list[Path]:
    """The placed files below `root` whose attempts are settled: no commit will ever add them again.

    Look at the table after this: then each of them that has landed is in the table, or was removed from it.
    """
    found = [(path, match[1]) for path in root.glob(f"{PARTITION}=*/*") if (match := PLACED.fullmatch(path.name))]
    # First the files, then the attempts: one of the files whose attempt is not there now had its outcome before.
    unsettled = {folder.stem for folder in (root / ATTEMPTS).glob("*")}
    return [path for path, name in found if name not in unsettled]


def clear(root: Path, folder: Path, step: Step, landed: Collection[str] | None) -> int:
    """Remove a killed program's attempt, which can no longer land, except its files that `landed`. Returns how many
    other files had been placed.

    If `landed` is None, because the log does not reach back far enough, placed files are left alone.
    """
    swept = folder.with_suffix(SWEPT)
    with suppress(FileNotFoundError):
        folder.rename(swept)
    orphans = [
        path
        for partition in step.terms
        for path in root.glob(f"{_prefix(step, partition)}*")
        if landed is not None and str(path.relative_to(root)) not in landed
    ]
    for path in orphans:
        path.unlink(missing_ok=True)
    shutil.rmtree(swept, ignore_errors=True)
    return len(orphans)


def _prefix(step: Step, partition: int) -> str:
    """The prefix of the path of each of its placed files, below the table."""
    return f"{PARTITION}={partition}/t{step.terms[partition]}-b{step.batch}-{step.name}-"


def flush(path: Path) -> None:
    """Wait until the file or folder is on stable storage.

    Otherwise, after a power loss, the log could name a file that is empty, and the table could not be read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
