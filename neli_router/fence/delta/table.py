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

The numbers are remembered between looks: an entry of the log never changes, so the numbers at a later version are those
of the earlier version and the entries in between. Asking the library for each of 512 numbers takes a quarter of a
second.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from neli_router.core.keyspace import Layout
from neli_router.errors import NeliError
from neli_router.fence.delta.layouts import PARTITION, Format, format_of, local_path, require_columns
from neli_router.fence.delta.staging import Staging, abandoned, clear, flush
from neli_router.fence.refusals import FenceMisused, TableMismatch, TableUnavailable
from neli_router.fence.tables import AnyFencedTable, Judgement, Progress, Step

__all__ = ["FencedTable"]

TERM, BATCH = "neli.term", "neli.batch"

LOG = "_delta_log"


class FencedTable(AnyFencedTable[Staging]):
    """A Delta table in a local or shared file system, whose partitions are written under terms."""

    made: Format

    failures = (DeltaError,)

    spare_tries = 5
    """For a disk that is full or a server that is away."""

    def __init__(self, path: str | PathLike[str], *, layout: Layout | None = None) -> None:
        """Open it. Raises TableMismatch if it does not exist, is not a fenced table, or has another layout."""
        super().__init__()
        self.path = local_path(path)
        self.name, self.place = self.path.name, str(self.path)
        self._log = self.path / LOG
        self._open()
        if layout is not None and (difference := layout.difference(self.layout)):
            raise TableMismatch(
                f"the group's layout was wanted in the table at {self.path}",
                f"it has another one: {difference}",
                "name another table, or copy the rows into one that is made with the group's layout",
            )

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        schema: Any,
        layout: Layout,
        *,
        first_batch: int = 0,
        history: timedelta = timedelta(days=7),
    ) -> "FencedTable":
        """Make the table, or open an existing one if it is the same. Any number of callers may do so concurrently.

        `schema` is pyarrow's, deltalake's or Spark's; a column `partition` is added if it has none, and all columns may
        be null. Each partition is at batch `first_batch` - 1 before its first one. Versions older than `history` may be
        forgotten: each commit lists the log, so a longer history makes commits slower. Raises TableMismatch and
        ConfigError.
        """
        root, made = local_path(path), Format.made(schema, layout, first_batch)
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
        require_columns(table.made.columns, made.columns, "the schema given")
        if table.first_batch != first_batch:
            raise TableMismatch(
                f"first_batch={first_batch} was wanted in the table at {root}",
                f"it was made with {table.first_batch}",
                "count batches as the table does, or make another one",
            )
        return table

    # Questions

    def files(
        self,
        partitions: Iterable[int] | None = None,
        *,
        version: int | None = None,
        where: Sequence[tuple[str, str, Any]] = (),
    ) -> list[str]:
        """The absolute path of every file of `partitions`, now or at `version`: for engines that cannot read Delta.

        `where` skips files by their statistics, such as `[("at", ">=", monday), ("at", "<", friday)]`: those in which
        no row fulfils all conditions. The files that are left may have other rows, too. Raises FenceMisused.
        """
        wanted = None if partitions is None else sorted({str(partition) for partition in partitions})
        if wanted == []:  # The library takes an empty list to mean no condition.
            return []
        conditions = [*where] if wanted is None else [(PARTITION, "in", wanted), *where]
        with self._lock:
            self._look(sure=True)
            handle = self._handle if version is None else self._opened(version)
            try:
                # Spark takes a time without a zone for one in the session's zone, and would miss rows in skipped files.
                if unclear := [name for name, _, value in where if self._lacks_zone(name, value)]:
                    raise ValueError(f"a time without a zone for {unclear[0]!r}")
                found = handle.file_uris(file_pruning_predicate=conditions or None)
            except (DeltaError, TypeError, ValueError) as error:
                raise FenceMisused(
                    "conditions on columns of the table were wanted, such as ('at', '>=', a time with its zone)",
                    f"found {str(error).partition(chr(10))[0]}",
                    "compare a column with one value of its type, or with a list by 'in'",
                ) from error
            return sorted(unquote(file) for file in found)  # They are escaped like an address: a space as %20.

    def _lacks_zone(self, name: str, value: Any) -> bool:
        return isinstance(value, datetime) and value.tzinfo is None and self.made.columns.get(name) == "timestamp"

    # Maintenance

    def sweep(self) -> int:
        """Remove what killed programs left behind; return how many of their files no log entry named.

        Safe at any time, with any number of live writers: an attempt is removed only if the fence proves that it can
        never land. Its age does not matter.
        """
        found, strays = abandoned(self.path)  # First the attempts, then the log: so the log covers all of them.
        orphans = 0
        with self._lock:
            self._look(sure=True)
            for folder, step in found:
                if self._is_dead(step):
                    orphans += clear(self.path, folder, step, self._added_since(step.version))
        for folder in strays:
            shutil.rmtree(folder, ignore_errors=True)
        return orphans

    def maintain(self) -> None:
        """Write a checkpoint, and remove files that other programs' compaction replaced longer than a week ago.

        Commits also write checkpoints automatically now and then. Call this and `sweep` daily, from any one program.
        """
        with self._lock:
            self._look(sure=True)
            self._handle.create_checkpoint()
            if self._handle.vacuum():  # Lite: only files that the log itself lists as removed. See `staging`.
                self._handle.vacuum(dry_run=False)

    # One commit

    def _write(self, step: Step, verdict: Judgement, staging: Staging | None) -> None:
        moves = {
            **{f"{BATCH}/{partition}": batch for partition, batch in verdict.batches.items()},
            **{f"{TERM}/{partition}": term for partition, term in verdict.terms.items()},
        }
        self._handle.create_write_transaction(
            [] if staging is None else staging.place(verdict.landed),
            "append",
            self.made.schema,
            partition_by=[PARTITION],
            commit_properties=CommitProperties(
                custom_metadata={"neli": {"attempt": step.name, "after": step.after, "batch": step.batch}},
                app_transactions=[Transaction(name, value) for name, value in moves.items()],
            ),
        )

    def _harden(self, version: int) -> None:
        flush(self._path_of(version))
        flush(self._log)

    def _staging(self, step: Step) -> Staging:
        return Staging(self.path, step, self.made)

    def _settle(self, staging: Staging) -> None:
        staging.settle(self._added_since(staging.step.version))

    def _require_fitting(self, staging: Staging) -> None:
        require_columns(self.made.columns, staging.made.columns, "this attempt, which began with other ones")

    # The log

    def _opened(self, version: int | None = None) -> DeltaTable:
        wanted = f"a fenced table was wanted at {self.path}"
        try:
            return DeltaTable(str(self.path), version=version)
        except TableNotFoundError as error:
            remedy = "make it with FencedTable.create, or correct the path"
            raise TableMismatch(wanted, "there is no Delta table", remedy) from error
        except DeltaError as error:
            if version is not None:
                remedy = "name one from the table's history; old ones are forgotten"
                raise TableMismatch(f"{wanted}, at version {version}", "it has no such version", remedy) from error
            raise TableUnavailable(
                wanted, f"its log cannot be read ({error})", "see that it is a folder which this user may read"
            ) from error

    def _open(self) -> None:
        handle = self._opened()
        made = format_of(handle, self.path)
        if made.identity != getattr(self, "made", made).identity:
            raise TableMismatch(
                f"the table that was opened at {self.path} was wanted",
                "another one was made in its place meanwhile",
                "open it again if that was intended, and begin with `raise_terms`",
            )
        self._handle, self.made, self._known = handle, made, dict[str, int | None]()
        self._inode = self._log.stat().st_ino

    def _look(self, name: str = "", *, sure: bool = False) -> int | None:
        """Bring the handle, and all that is remembered about it, to the newest version. Returns the version that the
        attempt `name` made, if it is among the new ones.

        Without `sure`, it only checks whether the next entry exists, which needs no list of the whole log. On a shared
        file system the answer may be outdated, and then the next commit fails.
        """
        found, before = None, self._handle.version()
        try:
            if self._log.stat().st_ino != self._inode:
                raise FileNotFoundError(self._log)
            if not sure and not self._path_of(before + 1).exists():
                return None
            self._handle.update_incremental()
            for version in range(before + 1, self._handle.version() + 1):
                for action in self._entry(version):
                    match action:
                        case {"txn": {"appId": str(number), "version": int(value)}} if number in self._known:
                            self._known[number] = value
                        case {"commitInfo": {"neli": {"attempt": str(attempt)}}} if attempt == name:
                            found = version
                        case {"metaData": _} | {"protocol": _}:
                            self.made = format_of(self._handle, self.path)
        except (FileNotFoundError, DeltaError):
            self._open()  # The entries in between were removed because of their age: begin with the newest version.
        return found

    def _version(self) -> int:
        return self._handle.version()

    def _path_of(self, version: int) -> Path:
        return self._log / f"{version:020}.json"

    def _entry(self, version: int) -> list[dict[str, Any]]:
        text = self._path_of(version).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line]

    def _added_since(self, version: int) -> set[str] | None:
        """Every file that the log has named after `version`; None if the log does not reach back that far."""
        try:
            return {
                unquote(action["add"]["path"])
                for later in range(version + 1, self._handle.version() + 1)
                for action in self._entry(later)
                if "add" in action
            }
        except FileNotFoundError:
            return None

    def _progress(self, partition: int) -> Progress:
        batch = self._number(f"{BATCH}/{partition}")
        return Progress(self._number(f"{TERM}/{partition}"), self.made.start if batch is None else batch)

    def _number(self, name: str) -> int | None:
        if name not in self._known:
            self._known[name] = self._handle.transaction_version(name)
        return self._known[name]


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
