"""A fenced Delta table: one entry of Delta's log adds rows and moves the fence, or does neither.

    look: the ids at the handle's version --> judge --> place the files --> entry of the log, made on the same handle
                                                                              '-- a rival's id in between: it fails

For each partition P, the table stores two numbers as Delta's own transaction ids: the highest term (`neli.term/P`) and
the last batch (`neli.batch/P`). `fence.tables` decides by them what lands.

**Why it is atomic.** The numbers are read at the version of one handle, and the commit is made on that same handle. An
entry of Delta's log is made by linking a finished file to the next version's name, which only one writer can do. If
another writer was faster, the library reads each entry in between before it tries the next version, and gives up if one
of them holds a transaction id that ours sets, too. So between our look and our commit, no other writer moved the fence
of our partitions. Looking and then writing by path would be two steps: writing loads the table again, and a zombie that
looked in time would get in. A test shows that it does.

A failed try has met a rival in one of our partitions, and that partition is then lost or skipped. So at most one try
per partition is needed; a few more are for a table that cannot be written at this moment.

`log` reads the table's log and remembers what it says, and `upkeep` keeps the table good for years.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from neli_router.core.keyspace import Layout
from neli_router.errors import NeliError
from neli_router.fence.delta.layouts import PARTITION, Format, TableSchema, local_path
from neli_router.fence.delta.log import BATCH, LOG, TERM
from neli_router.fence.delta.staging import Staging
from neli_router.fence.delta.upkeep import KeptTable
from neli_router.fence.refusals import TableMismatch
from neli_router.fence.tables import Condition, Judgement, Step

__all__ = ["FencedTable"]


class FencedTable(KeptTable):
    """A Delta table in a local or shared file system, whose partitions are written under terms."""

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        schema: TableSchema,
        layout: Layout,
        *,
        first_batch: int = 0,
        history: timedelta = timedelta(days=7),
    ) -> "FencedTable":
        """Make the table, or open an existing one if it is the same. Any number of callers may do so concurrently.

        `schema` is pyarrow's, deltalake's or Spark's; a column `partition` is added if it has none, and all columns may
        be null. Each partition is at batch `first_batch` - 1 before its first one. Versions older than `history` may be
        forgotten: each commit lists the log, so a longer history makes commits slower. `schema` need not have columns
        that came later. Raises TableMismatch and ConfigError.
        """
        root, made = local_path(path), Format.of(schema, layout, first_batch)
        _require_room(root)
        failure: DeltaError | None = None
        try:
            DeltaTable.create(
                str(root),
                made.schema,
                mode="ignore",
                partition_by=[PARTITION],
                configuration=made.configuration(history),
                raise_if_key_not_exists=False,
                # The library would retry a lost race as the next version: a table with another identity.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError as error:  # If another program makes it at the same moment, it can be opened.
            failure = error
        try:
            table = cls(root, layout=layout)
        except NeliError as error:
            raise error from failure or error.__cause__
        table._require_made(made.columns, first_batch)
        return table

    def _files(self, conditions: Sequence[Condition], version: int | None) -> Iterable[str]:
        handle = self._handle if version is None else self._opened(version)
        # Spark takes a time without a zone for one in the session's zone, and would miss rows in skipped files.
        if unclear := [name for name, _, value in conditions if self._lacks_zone(name, value)]:
            raise ValueError(f"a time without a zone for {unclear[0]!r}")
        try:
            found = handle.file_uris(file_pruning_predicate=[*conditions] or None)
        except DeltaError as error:
            raise ValueError(error) from error
        return map(unquote, found)  # They are escaped like an address: a space as %20.

    def _lacks_zone(self, name: str, value: Any) -> bool:
        return isinstance(value, datetime) and value.tzinfo is None and self.format.columns.get(name) == "timestamp"

    # One commit

    def _write(self, step: Step, verdict: Judgement, staging: Staging | None) -> None:
        moves = {
            **{f"{BATCH}/{partition}": batch for partition, batch in verdict.batches.items()},
            **{f"{TERM}/{partition}": term for partition, term in verdict.terms.items()},
        }
        self._handle.create_write_transaction(
            [] if staging is None else staging.place(verdict.landed),
            "append",
            self.format.schema,
            partition_by=[PARTITION],
            commit_properties=CommitProperties(
                custom_metadata={"neli": {"attempt": step.name, "after": step.after, "batch": step.batch}},
                app_transactions=[Transaction(name, value) for name, value in moves.items()],
            ),
        )

    def _staging(self, step: Step) -> Staging:
        return Staging(self.path, step, self.format)

    def _settle(self, staging: Staging) -> None:
        staging.settle(self._added_since(staging.step.version))


def _require_room(root: Path) -> None:
    """Raise TableMismatch if other files are in the place of a new table."""
    try:
        # Engines treat these names as hidden; our staging folder is among them.
        strange = sorted(it.name for it in root.iterdir() if not it.name.startswith(("_", ".")))
    except OSError:  # It does not exist, or cannot be read: then the library says so.
        return
    # Check for the log last: a program that makes the table at this moment makes the log first.
    if strange and not (root / LOG).exists():
        # A reader of the folder would take them for rows, and another engine's vacuum would remove them.
        raise TableMismatch(
            f"a folder without other files was wanted at {root}, to make a fenced table in",
            f"{strange[0]!r} lies there, and no table",
            "name a new folder",
        )
