"""The upkeep of a table that lives for years, next to any number of live writers.

    add_columns    older rows, and those of older writers, are null there
    compact        one file in place of many: no row changes, and neither does the fence
    sweep          what killed programs left behind is removed, once the table proves that it can never land
    maintain       a checkpoint, and the removal of files that were replaced long ago
    foreign        commits of programs that do not know terms: they add rows next to ours, or change them

**Columns.** The library commits new columns next to other commits, unless one of them has changed the columns, too:
then we look again. A commit of ours that meets new columns fails in the library. The table is then looked at and judged
again, like after every failed commit, and the rows land: a writer need not know all columns (see `layouts`).

**A compaction** reads some small files, stages their rows as one file, and exchanges them in one entry of the log:

    look: does the table hold a higher term?  --yes--> Refused
          was one of the files removed?       --yes--> another program has replaced it: drop ours
      ^   --neither--> commit as the very next version
      '---------- another commit was faster ----'

The commit must be the very next version. If it may be a later one, the library (1.6.6) looks for conflicts itself, and
in commits that change no rows it finds none: two compactions of the same files both land, and all rows are there twice.
Its own `optimize.compact` has this fault. Here, nothing lands between our look and our commit. So a compaction also
obeys the fence exactly, without setting an id: appends never conflict with it.

The attempt lies in `_neli` like that of a batch. It is dead once a higher term holds, or one of the files that it would
replace has left the table.
"""

import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties
from deltalake.exceptions import DeltaError
from deltalake.transaction import RemoveAction

from neli_router.core.logs import logger
from neli_router.errors import NeliError
from neli_router.fence.delta.layouts import PARTITION, TableSchema
from neli_router.fence.delta.log import LoggedTable
from neli_router.fence.delta.staging import Staging, abandoned, clear, settled
from neli_router.fence.refusals import Refused, TableUnavailable
from neli_router.fence.tables import Judgement, Step, Terms

__all__ = ["Compaction", "ForeignCommit", "KeptTable"]

TARGET_BYTES = 128 * 2**20
"""Larger files cost each compaction more, and let readers skip less; smaller ones leave readers more files to open."""

TRIES_MAX = 100
"""Each failed try has met another commit. More tries only help in a table with commits all the time."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """How many files were replaced, and how many took their place."""

    replaced: int
    made: int
    lost: Mapping[int, int]
    """Partition -> the higher term that a newer owner committed. Nothing of it was compacted."""


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit that changed rows and was not made by a `FencedTable`: the fence could neither refuse nor skip it."""

    version: int
    at: datetime
    engine: str
    operation: str
    added: int
    """Files with new rows; `removed` counts those whose rows are gone."""
    removed: int

    def __str__(self) -> str:
        return (
            f"version {self.version}, {self.at:%Y-%m-%d %H:%M:%S} UTC: {self.operation} by {self.engine}, "
            f"{self.added} files added, {self.removed} removed"
        )


class KeptTable(LoggedTable):
    """The part of a fenced table that keeps it good for years."""

    _noticed = -1
    """The last foreign commit that `sweep` has logged."""

    def add_columns(self, schema: TableSchema) -> tuple[str, ...]:
        """Add the columns of `schema` that the table does not have; return the names of those that this call added.

        They are null in the rows that are there, and in the rows of writers that leave them out. Any number of callers
        may add columns at the same time, next to any number of writers: no attempt is lost. Raises TableMismatch if the
        table has such a column with another type, and TableUnavailable.
        """
        failure: DeltaError | OSError | None = None
        added: tuple[str, ...] = ()
        for _ in range(TRIES_MAX):
            with self._lock:
                self._look(sure=True)
                if not (fresh := self.format.lacks(schema)):
                    return added
                try:
                    # Not our own handle: it would skip what others commit meanwhile, and forget their terms.
                    handle = self._opened()
                    handle.alter.add_columns(fresh)
                    self._harden(handle.version())
                    added = tuple(field.name for field in fresh)
                except (DeltaError, OSError) as error:  # Perhaps another program has changed the columns: look again.
                    failure = error
        raise self._worn_out("columns were to be added", failure) from failure

    def compact(self, terms: Terms, *, target: int = TARGET_BYTES) -> Compaction:
        """Replace small files of each partition by files of about `target` bytes. No row changes, and no progress.

        Safe next to any number of writers: an append that lands meanwhile stays, and the attempt of another `compact`
        for the same files is dropped. `maintain` removes the replaced files a week later. Raises Refused if newer
        owners have all of the partitions, and TableUnavailable.
        """
        wanted, replaced, made = self._checked(terms), 0, 0
        with self._lock:
            self._look(sure=True)
            version, held = self._version(), {partition: self._progress(partition) for partition in wanted}
            lost = {one: at.term for one, at in held.items() if at.term is not None and at.term > wanted[one]}
            # It reports the lost ones, and raises Refused if all are.
            start = Step.drawn(wanted, self.format.start, self.format.start, version)
            self._answer(start, Judgement(lost=lost, skipped=[*wanted.keys() - lost.keys()]), None)
            found = self._small_files(wanted.keys() - lost.keys(), target)
        for partition, paths in found:
            batch = held[partition].batch
            try:
                if self._exchange(Step.drawn({partition: wanted[partition]}, batch, batch, version, paths)):
                    replaced, made = replaced + len(paths), made + 1
            except Refused as error:
                lost[partition] = error.admitted or 0
                if len(lost) == len(wanted):
                    raise
        return Compaction(replaced, made, lost)

    def _small_files(self, partitions: Collection[int], target: int) -> list[tuple[int, list[str]]]:
        """Groups of a partition's files, each to be replaced by one; old next to old, so that times stay close."""
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        columns = (f"{PARTITION}.{PARTITION}", "modification_time", "path", "size_bytes")
        known = zip(*(actions[name].to_pylist() for name in columns), strict=True)
        small = [one for one in known if one[0] in partitions and one[-1] <= target // 2]
        found, total = list[tuple[int, list[str]]](), 0
        for partition, _, path, size in sorted(small):
            if not found or found[-1][0] != partition or total + size > target:
                found.append((partition, []))
                total = 0
            found[-1][1].append(unquote(path))
            total += size
        return [group for group in found if len(group[1]) > 1]

    def _exchange(self, step: Step) -> bool:
        """Replace some files by one; return False if another program was faster. Raises Refused."""
        ((partition, _),) = step.terms.items()
        with self._lock:
            staging = self._staging(step)
        try:
            staging.merge(partition, [self.path / path for path in step.replaces])
            with self._lock:
                return self._exchanged(staging)
        except FileNotFoundError:  # A vacuum took a file that was replaced long ago, or a sweep our dead attempt.
            with self._lock:
                self._look(sure=True)
                self._require_current(step)
            return False
        finally:
            with self._lock, suppress(OSError, NeliError, DeltaError):  # If this fails, a sweep does it later.
                self._look(sure=True)
                self._settle(staging)

    def _exchanged(self, staging: Staging) -> bool:
        step, seen, now = staging.step, staging.step.version, int(time.time() * 1000)
        ((partition, _),) = step.terms.items()
        removals = [
            RemoveAction(path, False, now, (self.path / path).stat().st_size, {PARTITION: str(partition)})  # noqa: FBT003
            for path in step.replaces
        ]
        failure: Exception | None = None
        for _ in range(TRIES_MAX):
            if (version := self._look(step.name, sure=True)) is not None:
                self._answer(step, Judgement(landed=[*step.terms]), version)
                return True
            self._require_current(step)
            removed = self._named_since(seen, "remove")
            if removed is None or not removed.isdisjoint(step.replaces):
                return False
            seen = self._version()
            try:
                self._handle.create_write_transaction(
                    [*staging.place(step.terms, has_new_rows=False), *removals],
                    "append",
                    self.format.schema,
                    partition_by=[PARTITION],
                    commit_properties=CommitProperties(
                        custom_metadata={"neli": {"attempt": step.name, "replaced": len(step.replaces)}},
                        # As the very next version or not at all: see above.
                        max_commit_retries=0,
                    ),
                )
            except (DeltaError, OSError, TableUnavailable) as error:
                failure = error
        raise self._worn_out("files were to be compacted", failure) from failure

    def _worn_out(self, wanted: str, failure: Exception | None) -> TableUnavailable:
        found = f"each of {TRIES_MAX} tries failed ({type(failure).__name__})"
        return TableUnavailable(
            f"{wanted} in the table at {self.path}", found, "look at the disk and the rights to write, and do it again"
        )

    def _require_current(self, step: Step) -> None:
        """Raise Refused if the table holds a higher term in the one partition of `step`."""
        ((partition, term),) = step.terms.items()
        held = self._progress(partition).term
        if held is not None and held > term:
            self._answer(step, Judgement(lost={partition: held}), None)

    def _is_dead(self, step: Step) -> bool:
        if not step.replaces:
            return super()._is_dead(step)
        there = {*self.files()}
        return any((self._progress(partition).term or 0) > term for partition, term in step.terms.items()) or any(
            str(self.path / path) not in there for path in step.replaces
        )

    def sweep(self) -> int:
        """Remove what killed programs left behind; return how many of their files no log entry named.

        Safe at any time, with any number of live writers: an attempt is removed only if the fence proves that it can
        never land. Its age does not matter. It also logs each commit of `foreign`, as `table.foreign`.
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
        for commit in self.foreign(after=self._noticed):
            self._noticed = commit.version
            logger().warning(
                "table.foreign",
                table=self.place,
                version=commit.version,
                engine=commit.engine,
                operation=commit.operation,
                added=commit.added,
                removed=commit.removed,
            )
        return orphans

    def foreign(self, *, after: int = -1) -> list[ForeignCommit]:
        """The commits of other programs that changed rows after version `after`, as far back as the log reaches.

        Rows that another engine only moved into other files, like a compaction, do not count.
        """
        versions = sorted(int(path.stem) for path in self._log.glob("*.json") if path.stem.isdecimal())
        found = []
        for version in versions:
            with suppress(FileNotFoundError):  # Its age was reached meanwhile.
                if version > after and (commit := _foreign(version, self._entry(version))) is not None:
                    found.append(commit)
        return found

    def maintain(self) -> None:
        """Write a checkpoint, and remove files that a compaction replaced longer than a week ago.

        Commits also write checkpoints automatically now and then. Call this and `sweep` daily, from any one program.
        """
        files = settled(self.path)
        with self._lock:
            self._look(sure=True)
            self._handle.create_checkpoint()
            if self._handle.vacuum():  # Lite: only files that the log itself lists as removed. See `staging`.
                self._handle.vacuum(dry_run=False)
            removed = self._handle.vacuum(0, enforce_retention_duration=False)  # All that are listed, of any age.
            known = {*self.files(), *(str(self.path / unquote(path)) for path in removed)}
        for path in files:
            if str(path) not in known:
                path.unlink(missing_ok=True)


def _foreign(version: int, entry: list[dict[str, Any]]) -> ForeignCommit | None:
    kinds = [kind for action in entry for kind, one in action.items() if one.get("dataChange", True)]
    about: dict[str, Any] = next((action["commitInfo"] for action in entry if "commitInfo" in action), {})
    if "attempt" in (about.get("neli") or {}) or not {"add", "remove"} & {*kinds}:
        return None
    at = datetime.fromtimestamp(about.get("timestamp", 0) / 1000, UTC)
    engine, operation = (str(about.get(name, "unknown")) for name in ("engineInfo", "operation"))
    return ForeignCommit(version, at, engine, operation, kinds.count("add"), kinds.count("remove"))
