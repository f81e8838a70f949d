"""A fenced Iceberg table: one commit to its catalog adds rows and moves the fence, or does neither.

    look: load the table --> judge by its properties --> write manifests --> commit, asserting what was judged at
      ^                                                                        '-- anything else in between: it fails
      '-------------------- pause -------------------------------------------------'

For each partition, a property of the table stores the highest term and the last batch. `fence.tables` decides by them
what lands. The commit names its attempt in the snapshot's summary.

**Why it is atomic.** A catalog replaces a table's metadata by compare-and-swap. SQL catalogs compare the location of
the whole metadata. REST catalogs only check what a commit asserts, and repeat the swap themselves as long as that
holds. Properties cannot be asserted: two commits that only set properties would both succeed. Snapshots can. So every
move of the fence also makes a new snapshot of `main`, without files if it has no rows, and every commit asserts the
snapshot that it was judged at. The assertions also name the table itself, its schema and its partitioning.

**The tag.** An operator may roll `main` back, to the very snapshot that a zombie has judged at, and the zombie's
assertion holds again. Catalogs then still refuse its snapshot, whose sequence number is not above the last one, but by
an error of their own. So each move of the fence also moves a tag, `neli`, which no rollback touches, and a commit
asserts the tag, too: the zombie has lost a race, and judges again. The tag keeps one snapshot from expiring: the last
of ours.

**No automatic retry.** pyiceberg repeats an append that lost a race: it loads the table again, takes the new snapshot
for its assertion, and succeeds. A zombie that looked in time would get in, with its lower term. So a commit goes to
the catalog once. If it fails, the table is loaded and judged again. Plain appenders next to us move `main`; they cost
us another round, and lose nothing.

An answer of success is believed, because it contains the new metadata. After any other one the table is loaded, and
its snapshots say whether the attempt has landed.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
)
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
)
from sqlalchemy.exc import SQLAlchemyError

from neli_router.core.keyspace import Layout
from neli_router.fence.delta.layouts import TableSchema, columns_of
from neli_router.fence.delta.staging import flush
from neli_router.fence.iceberg.catalogs import AnyCatalog, opened
from neli_router.fence.iceberg.layouts import (
    IcebergFormat,
    columns_made,
    format_of,
    moves,
    progress_of,
    properties_of,
    spec_of,
)
from neli_router.fence.iceberg.staging import Files, IcebergStaging, local
from neli_router.fence.refusals import TableMismatch, TableUnavailable
from neli_router.fence.tables import AnyFencedTable, Condition, Judgement, Progress, Step

__all__ = ["FencedIcebergTable"]

ATTEMPT = "neli.attempt"
"""In a snapshot's summary."""

TAG = "neli"

CONDITIONS: dict[str, Callable[..., BooleanExpression]] = {
    "=": EqualTo,
    "==": EqualTo,
    "!=": NotEqualTo,
    "in": In,
    "not in": NotIn,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}

TRIES = 5
"""How often a program tries to make a table or to forget snapshots, if others are faster."""

PAUSE_MAX = 0.25
"""Seconds to wait at most after a lost race. A longer pause lets a busy appender starve us; a shorter one makes many
owners fail each other's commits more often."""


class FencedIcebergTable(AnyFencedTable[IcebergStaging]):
    """An Iceberg table, whose partitions are written under terms."""

    format: IcebergFormat

    failures = (CommitFailedException, CommitStateUnknownException, NoSuchTableError, RESTError, SQLAlchemyError)

    base = None

    lost_races = (CommitFailedException,)
    """Any commit to the table makes ours fail once, also a plain append."""

    def __init__(self, name: str, catalog: AnyCatalog, *, layout: Layout | None = None) -> None:
        """Open the table `name`, such as `"lake.prices"`, in `catalog`: a Catalog of pyiceberg, its name or properties,
        or the path of a folder with an embedded catalog of SQLite. Raises TableMismatch if it does not exist, is not a
        fenced table, or has another layout.
        """
        super().__init__()
        self.catalog: Catalog = opened(catalog)
        self.name = self.place = name
        self._table = self._loaded()
        self.place = self._table.location()
        self.format = format_of(self._table.metadata, self.place)
        self._seen = self._version()
        self._is_fresh = False
        """Whether the table is as its catalog answered our own commit, and must not be loaded for the next look."""
        self._lost_races = 0
        if layout is not None:
            self.require_layout(layout)

    @classmethod
    def create(
        cls,
        name: str,
        schema: TableSchema,
        layout: Layout,
        catalog: AnyCatalog,
        *,
        first_batch: int = 0,
        history: timedelta = timedelta(days=7),
    ) -> "FencedIcebergTable":
        """Make the table, or open an existing one if it is the same. Any number of callers may do so concurrently.

        `schema` is pyarrow's, deltalake's or Spark's; a column `partition` is added if it has none, and all columns may
        be null. Each partition is at batch `first_batch` - 1 before its first one. `maintain` forgets snapshots older
        than `history`. Raises TableMismatch and ConfigError.
        """
        columns = columns_made(schema, layout, first_batch)
        catalog = opened(catalog)
        numbered = assign_fresh_schema_ids(catalog._convert_schema_if_needed(columns))  # noqa: SLF001 - no other way.
        properties = properties_of(layout, first_batch, history)
        # Files of Spark have no numbers of columns.
        properties["schema.name-mapping.default"] = numbered.name_mapping.model_dump_json()
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                catalog.create_namespace_if_not_exists(catalog.namespace_from(name))
                catalog.create_table(name, numbered, partition_spec=spec_of(numbered), properties=properties)
                break
            except TableAlreadyExistsError:
                break
            except (NamespaceAlreadyExistsError, OSError, RESTError, SQLAlchemyError) as error:
                failure = error  # Perhaps another program makes the table or its namespace at the same moment.
                time.sleep(random.uniform(0, PAUSE_MAX))
        try:
            table = cls(name, catalog, layout=layout)
        except TableMismatch as error:
            raise error from failure or error.__cause__
        table._require_made(columns_of(columns), first_batch)
        return table

    def _files(self, conditions: Sequence[Condition], version: int | None) -> Iterable[str]:
        if version is not None and self._table.snapshot_by_id(version) is None:
            raise TableMismatch(
                f"a fenced table was wanted under the name {self.name}, at version {version}",
                "it has no such version",
                "name one from the table's history; old ones are forgotten",
            )
        filters = (CONDITIONS[operator](column, value) for column, operator, value in conditions)
        scan = self._table.scan(And(AlwaysTrue(), AlwaysTrue(), *filters), snapshot_id=version)
        tasks = list(scan.plan_files())
        if any(task.delete_files or task.file.file_format != FileFormat.PARQUET for task in tasks):
            raise TableMismatch(
                f"a list of Parquet files was wanted that is all of {self.name}",
                "another program deleted rows without rewriting their file, or wrote another format",
                "rewrite the data files with the engine that did, or read the table as Iceberg",
            )
        return (str(local(task.file.file_path) or task.file.file_path) for task in tasks)

    def sweep(self) -> int:
        """Remove what killed programs left behind; return how many of their files no snapshot names.

        Safe at any time, with any number of live writers: an attempt is removed only if the fence proves that it can
        never land. Its age does not matter.
        """
        files = Files(self._table)
        steps = files.unsettled()  # First the attempts, then the table: so the look covers all of them.
        with self._lock:
            self._look(sure=True)
            return sum(files.clear(step, self._named_since(step)) for step in steps if self._is_dead(step))

    def maintain(self) -> None:
        """Forget snapshots older than the table's `history`. Their files stay until an engine removes orphans.

        Call this and `sweep` daily, from any one program."""
        for _ in range(TRIES):
            with self._lock:
                self._look(sure=True)
                old = datetime.now(UTC) - self.format.history
                try:
                    self._table.maintenance.expire_snapshots().older_than(old).commit()
                except CommitFailedException:  # Another program's commit was faster.
                    continue
                self._look(sure=True)
                return
        raise TableUnavailable(
            f"old snapshots of {self.name} were to be forgotten",
            f"other commits were faster {TRIES} times",
            "call `maintain` again when the table is less busy",
        )

    # One commit

    def _write(self, step: Step, verdict: Judgement, staging: IcebergStaging | None) -> None:
        metadata = self._table.metadata
        files = [] if staging is None else staging.place(verdict.landed)
        # The library's own commit would repeat itself: see the essay.
        producer = self._table.transaction()._append_snapshot_producer({ATTEMPT: step.name})  # noqa: SLF001
        for file in files:
            producer.append_data_file(file)
        updates, asserted = producer._commit()  # noqa: SLF001 - as above: it writes manifests, and commits nothing.
        requirements: list[TableRequirement] = [
            *asserted,  # That `main` is where it was judged.
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        ]
        if metadata.snapshots:  # Before, Iceberg lets nothing but `main` be asserted.
            tag = metadata.refs.get(TAG)
            there = {"ref": TAG, "snapshot-id": None if tag is None else tag.snapshot_id}
            requirements.append(AssertRefSnapshotId.model_validate(there))
        tagged = SetSnapshotRefUpdate.model_validate(
            {"ref-name": TAG, "type": SnapshotRefType.TAG, "snapshot-id": producer.snapshot_id}
        )
        moved = SetPropertiesUpdate(updates=moves(metadata.properties, verdict, self.format.start))
        try:
            self._table._do_commit((*updates, tagged, moved), tuple(requirements))  # noqa: SLF001 - as above.
        except CommitFailedException:  # Only this answer is certain.
            producer._clean_all_uncommitted()  # noqa: SLF001 - as above.
            self._is_fresh = False
            self._lost_races += 1
            time.sleep(random.uniform(0, min(PAUSE_MAX, 0.01 * 2**self._lost_races)))
            raise
        except BaseException:
            if staging is not None:
                staging.is_in_doubt = True
            self._is_fresh = False
            raise
        self._is_fresh, self._lost_races = True, 0

    def _harden(self, version: int) -> None:
        snapshot = self._table.snapshot_by_id(version)
        assert snapshot is not None, "it was found in this metadata"
        made = [it.manifest_path for it in snapshot.manifests(self._table.io) if it.added_snapshot_id == version]
        for path in filter(None, map(local, [*made, snapshot.manifest_list, self._table.metadata_location])):
            flush(path)
            flush(path.parent)

    def _staging(self, step: Step) -> IcebergStaging:
        return IcebergStaging(self._table, step, self.format)

    def _settle(self, staging: IcebergStaging) -> None:
        if staging.has_landed:
            staging.settle(staging.staged())
        elif not staging.is_in_doubt or self._is_dead(staging.step):
            staging.settle(self._named_since(staging.step))

    # The catalog

    def _loaded(self) -> Table:
        wanted = f"a fenced Iceberg table was wanted under the name {self.name}"
        try:
            return self.catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            remedy = "make it with FencedIcebergTable.create, or correct the name"
            raise TableMismatch(wanted, "the catalog has none", remedy) from error
        except (OSError, RESTError, SQLAlchemyError) as error:
            remedy = "check that the catalog is there and the files can be read, and repeat the batch"
            raise TableUnavailable(wanted, f"it cannot be read ({type(error).__name__})", remedy) from error

    def _look(self, name: str = "", *, sure: bool = False) -> int | None:
        """Without `sure`, what the last look or commit has shown will do: the commit asserts that it is still true."""
        if not sure:
            return None
        table = self._table if self._is_fresh else self._loaded()
        self._is_fresh = False
        self._require_same(str(table.metadata.table_uuid))
        # Both or neither: with a table that is ours no longer, the next step must fail, too.
        self._table, self.format = table, format_of(table.metadata, self.place)
        seen, self._seen = self._seen, self._version()
        for snapshot in self._table.metadata.snapshots:
            if (snapshot.sequence_number or 0) > seen and snapshot.summary and snapshot.summary.get(ATTEMPT) == name:
                return snapshot.snapshot_id
        return None

    def _version(self) -> int:
        return self._table.last_sequence_number

    def _progress(self, partition: int) -> Progress:
        return progress_of(self._table.properties, partition, self.format.start)

    def _named_since(self, step: Step) -> set[str]:
        """Every data file that a snapshot names, among those that the table took since the attempt began."""
        manifests: dict[str, ManifestFile] = {}
        for snapshot in self._table.metadata.snapshots:
            if (snapshot.sequence_number or 0) > step.version:
                manifests |= {it.manifest_path: it for it in snapshot.manifests(self._table.io)}
        entries: list[ManifestEntry] = [
            entry
            for it in manifests.values()
            if it.content == ManifestContent.DATA and (it.sequence_number or 0) > step.version
            for entry in it.fetch_manifest_entry(self._table.io)
        ]
        return {entry.data_file.file_path for entry in entries}
