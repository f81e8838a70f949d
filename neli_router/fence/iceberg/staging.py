"""The files of one commit to an Iceberg table, from the first byte until they have landed or are gone.

    begin --> stage --> look --> commit --> settle
      |         |         |         |          '-- the goal is removed, and every file that has not landed
      |         |         |         '------------- one snapshot names the files
      |         |         '----------------------- the footers are read, and local files are made durable
      |         '--------------------------------- data/_neli/NAME/neli_partition=3/*.parquet, by any program
      '------------------------------------------- _neli/NAME.json, the goal: terms, batches, the version before

A file is in the table if and only if a snapshot names it, so files are never renamed: they land where they were
written. That also works in an object store. NAME is drawn at random for each attempt, so two attempts never share a
file. Files contain the column `partition`, because not every engine takes it from the table's metadata.

**When may a sweep remove an attempt?** The fence decides, as for Delta tables: an attempt is dead once the table holds
a higher term, or a batch that is not before its own, in each of its partitions. If it is dead, all its files that no
snapshot names are orphans. That holds with any number of live writers, and with clocks that show anything. An attempt
that is not dead stays. It is dead as soon as its batch is repeated, or a new owner raises the term.

**A commit without an answer** may still be on its way to the catalog when its program has given up. If its files were
removed and it then landed, the table could not be read any more. So the attempt's own program also leaves the files of
a commit in doubt to `sweep`, unless the fence proves that it is dead.

A straggler, such as an executor whose driver has died, may write another file after the sweep. No reader looks at it,
but it stays until another engine removes files that no snapshot names.
"""

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from neli_router.fence.delta.layouts import columns_of_footer
from neli_router.fence.delta.staging import FLUSHES_AT_ONCE, flush
from neli_router.fence.iceberg.layouts import IcebergFormat
from neli_router.fence.refusals import TableMismatch, TableUnavailable
from neli_router.fence.tables import AnyStaging, Step

__all__ = ["Files", "IcebergStaging", "local"]

FOLDERS = "neli_partition"
"""The folders of an attempt are named by it and not by `partition`, which engines would then leave out of the files."""

GOALS, ROWS = "_neli", "data/_neli"
"""Below the table. Iceberg's own removal of orphans skips names that begin with an underscore."""


class Files:
    """The files of attempts, below the location of a table. It lists them, which Iceberg's own FileIO cannot."""

    def __init__(self, table: Table) -> None:
        self.io = table.io
        self._location = table.location().rstrip("/")
        scheme, netloc, self._root = PyArrowFileIO.parse_location(self._location)
        arrow = self.io if isinstance(self.io, PyArrowFileIO) else PyArrowFileIO(self.io.properties)
        self._system: FileSystem = arrow.fs_by_scheme(scheme, netloc)

    def at(self, path: str) -> str:
        return f"{self._location}/{path}"

    def below(self, path: str, *, folders: bool = False) -> list[str]:
        """Every file below `path`, as the table's metadata would name it. With `folders`, these too."""
        selector = FileSelector(f"{self._root}/{path}", allow_not_found=True, recursive=True)
        found = self._system.get_file_info(selector)
        return [self.at(it.path[len(self._root) + 1 :]) for it in found if folders or it.type == FileType.File]

    def write(self, path: str, text: str) -> None:
        with self.io.new_output(self.at(path)).create() as stream:
            stream.write(text.encode())

    def read(self, file: str) -> str:
        with self.io.new_input(file).open() as stream:
            return stream.read().decode()

    def begin(self, step: Step) -> None:
        self.write(f"{GOALS}/{step.name}.json", step.text())

    def unsettled(self) -> list[Step]:
        """The goals of all unsettled attempts, except those that are half written."""
        steps = []
        for file in self.below(GOALS):
            with suppress(OSError, ValueError, TypeError, KeyError):
                steps.append(Step.read(self.read(file)))
        return steps

    def clear(self, step: Step, landed: Collection[str]) -> int:
        """Remove the attempt except its files that `landed`; return how many other Parquet files it had."""
        folder = f"{ROWS}/{step.name}"
        files = self.below(folder)
        gone = [file for file in files if file not in landed]
        if len(gone) == len(files):
            with suppress(FileNotFoundError):  # An object store has no folders.
                self._system.delete_dir(f"{self._root}/{folder}")
        else:
            for file in gone:
                with suppress(FileNotFoundError):
                    self.io.delete(file)
        with suppress(FileNotFoundError):
            self.io.delete(self.at(f"{GOALS}/{step.name}.json"))
        return sum(file.endswith(".parquet") for file in gone)


class IcebergStaging(AnyStaging):
    """Rows on their way into a fenced Iceberg table. Made by `FencedIcebergTable.stage`; only one thread may use it at
    a time.

    `folder` is an address for programs that write Parquet themselves, mainly Spark: files below `neli_partition=N/`,
    with all columns of the table; those that came later may be missing. Names that begin with an underscore or a dot
    are skipped.
    """

    format: IcebergFormat

    folders = FOLDERS

    _looked: list[DataFile] | None

    def __init__(self, table: Table, step: Step, made: IcebergFormat) -> None:
        super().__init__(step)
        self.format, self._table, self._files = made, table, Files(table)
        self.is_in_doubt = False
        """Whether a commit got no answer, and may land later."""
        self._files.begin(step)

    @property
    def folder(self) -> str:
        return self._files.at(f"{ROWS}/{self.step.name}")

    def _write(self, rows: pa.Table, folder: str, name: str) -> None:
        with self._files.io.new_output(f"{self.folder}/{folder}/{name}").create() as stream:
            pq.write_table(rows, stream, compression="zstd")

    def count(self) -> int:
        return sum(file.record_count for file in self._looked_at())

    def place(self, partitions: Iterable[int]) -> list[DataFile]:
        """The staged files of `partitions`, made durable if they are local. May be called again.

        Raises TableMismatch if a file does not fit the table, TableUnavailable if it is gone, and OSError.
        """
        wanted = set(partitions)
        files = [file for file in self._looked_at() if file.record_count and file.partition[0] in wanted]
        if missing := [file.file_path for file in files if not self._files.io.new_input(file.file_path).exists()]:
            # A snapshot that names a missing file would make the table unreadable.
            raise TableUnavailable(
                f"the staged file {missing[0]} was wanted",
                "it is gone",
                "let nothing but `sweep` remove files below _neli, and repeat the batch",
            )
        paths = [path for file in files if (path := local(file.file_path)) is not None]
        with ThreadPoolExecutor(FLUSHES_AT_ONCE) as pool:
            for _ in pool.map(flush, [*paths, *{path.parent for path in paths}]):
                pass
        return files

    def settle(self, landed: Collection[str]) -> None:
        """Remove what is left of this attempt, except its files that `landed`."""
        self._files.clear(self.step, landed)

    def staged(self) -> set[str]:
        """The names of all files that have rows."""
        return {file.file_path for file in self._looked_at() if file.record_count}

    def _looked_at(self) -> list[DataFile]:
        if self._looked is None:
            found = list(self._found())
            with ThreadPoolExecutor(FLUSHES_AT_ONCE) as pool:  # An object store takes its time for each footer.
                self._looked = list(pool.map(lambda it: self._data_file(*it), found))
        return self._looked

    def _found(self) -> Iterator[tuple[int, str]]:
        files = self._files.below(f"{ROWS}/{self.step.name}", folders=True)
        below = [it.removeprefix(f"{self.folder}/").split("/") for it in sorted(files)]
        if any(path[0] == "_temporary" for path in below):
            raise self._unfinished()
        named = [path for path in below if len(path) == 2 and not path[1].startswith(("_", "."))]
        if self._written > len(named):
            raise TableUnavailable(
                "the rows that were staged were wanted",
                f"{len(named)} of {self._written} files are there",
                "let nothing but `sweep` remove files below _neli, and repeat the batch",
            )
        for folder, name in named:
            if folder.partition("=")[0] == FOLDERS:
                yield self._partition_of(folder), f"{self.folder}/{folder}/{name}"

    def _data_file(self, partition: int, file: str) -> DataFile:
        source = self._files.io.new_input(file)
        try:
            with source.open() as stream:
                footer = pq.read_metadata(stream)
        except pa.ArrowInvalid as error:
            name = file.rpartition("/")[2]
            raise TableMismatch("Parquet files were wanted", f"{name} is none", "begin a new attempt") from error
        name = file.rpartition("/")[2]
        self.format.require(columns_of_footer(footer.schema.to_arrow_schema()), f"the file {name}")
        schema, properties = self.format.schema, self._table.properties
        statistics = data_file_statistics_from_parquet_metadata(
            footer, compute_statistics_plan(schema, properties), parquet_path_to_id_mapping(schema)
        )
        if footer.num_rows and statistics.partition(self._table.spec(), schema)[0] != partition:
            raise TableMismatch(
                f"rows of partition {partition} alone were wanted in {name}",
                "its footer says that it has others, or does not say which",
                "write the rows of each partition into its own folder",
            )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file,
            file_format=FileFormat.PARQUET,
            partition=Record(partition),
            file_size_in_bytes=len(source),
            sort_order_id=None,
            spec_id=self._table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def local(file: str) -> Path | None:
    """The path of `file`, if it is a local one."""
    scheme, _, path = PyArrowFileIO.parse_location(file)
    return Path(path) if scheme == "file" else None
