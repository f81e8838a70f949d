"""A fenced table: one commit of Delta's log adds rows and moves the fence, or does neither.

    holder, term 7    attempt, stage ...... paused for a minute ............ commit(40)  <-- Refused: 9 was committed
    holder, term 9                raise_terms({3: 9})   progress()   commit(40)   commit(41)

For each partition P, the table stores two numbers as Delta's own transaction ids: the highest term (`neli.term/P`) and
the last batch (`neli.batch/P`). A batch is a step from one number to a later one:

    the table's term   the table's batch      a step from `after` to `batch` under `term`
    higher             any                    is lost: a newer owner has the partition. Refused if all are
    not higher         `batch` or later       is skipped: it has landed before
    not higher         `after`                lands: rows, term and batch, in one entry of the log
    not higher         anything else          is an error, BatchGap: a batch is missing, or was cut differently

**Why it is atomic.** The numbers are read at the version of one handle, and the commit is made on that same handle. An
entry of Delta's log is made by linking a finished file to the next version's name, which only one writer can do. If
another writer was faster, the library reads each entry in between before it tries the next version, and gives up if one
of them holds a transaction id that ours sets, too. So between our look and our commit, no other writer moved the fence
of our partitions. Looking and then writing by path would be two steps: writing loads the table again, and a zombie that
looked in time would get in. A test shows that it does.

**The log is the only witness.** A commit may have succeeded although its answer was lost. So an answer is never
trusted: after each attempt the log is read, and each entry carries the name of its attempt.

    look --> judge --> nothing to write -----------------------------> answer
      ^        |
      |        '--> place the files --> commit --any answer--> look --> our name? --> answer
      '-------------------------------------------------------------------- no

A failed try has met a rival in one of our partitions, and that partition is then lost or skipped. So at most one try
per partition is needed; a few more are for a table that cannot be written at this moment.

The numbers are remembered between looks: an entry of the log never changes, so the numbers at a later version are those
of the earlier version and the entries in between. Asking the library for each of 512 numbers takes a quarter of a
second.

Threads may share a table; their commits take turns. After a fork, open the table again.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from neli_router.core.keyspace import Layout
from neli_router.core.logs import logger
from neli_router.errors import NeliError
from neli_router.fence.delta.layouts import PARTITION, Format, format_of, local_path, require_columns
from neli_router.fence.delta.staging import Staging, Step, abandoned, clear, flush
from neli_router.fence.refusals import BatchGap, FenceMisused, Refused, TableMismatch, TableUnavailable, tally
from neli_router.fence.statements import AnyLease, checked

__all__ = ["Commit", "FencedTable", "Progress", "Terms"]

SPARE_TRIES = 5
"""Tries beyond one for each partition, for a disk that is full or a server that is away."""

TERM, BATCH = "neli.term", "neli.batch"

LOG = "_delta_log"

Terms = Mapping[int, int] | AnyLease
"""Partition -> term, such as `share.terms`; or a lease, for its partition."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a partition: the highest term committed, None if there is none yet, and the last batch."""

    term: int | None
    batch: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The outcome of a commit for each partition. `version` is the one that it made, None if it had nothing to do."""

    version: int | None
    landed: tuple[int, ...]
    skipped: tuple[int, ...]
    """Partitions that had landed before, under this term or an earlier one."""
    lost: Mapping[int, int]
    """Partition -> the higher term that a newer owner committed. Nothing of ours landed there."""


@dataclass(slots=True)
class _Verdict:
    landed: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    lost: dict[int, int] = field(default_factory=dict)
    moves: dict[str, int] = field(default_factory=dict)
    """The transaction ids that the commit sets."""


class FencedTable:
    """A Delta table in a local or shared file system, whose partitions are written under terms."""

    made: Format
    """The table's format and columns, as of the last look."""

    def __init__(self, path: str | PathLike[str], *, layout: Layout | None = None) -> None:
        """Open it. Raises TableMismatch if it does not exist, is not a fenced table, or has another layout."""
        self.path = local_path(path)
        self._lock = threading.RLock()
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

    @property
    def layout(self) -> Layout:
        return self.made.layout

    @property
    def first_batch(self) -> int:
        return self.made.first_batch

    def progress(self, partitions: Iterable[int] | None = None) -> dict[int, Progress]:
        """The progress of each of `partitions` (default: all)."""
        wanted = range(self.layout.partitions) if partitions is None else partitions
        with self._lock:
            self._look(sure=True)
            return {partition: self._progress(partition) for partition in wanted}

    def files(self, partitions: Iterable[int] | None = None, *, version: int | None = None) -> list[str]:
        """The absolute path of every file of `partitions`, now or at `version`: for engines that cannot read Delta."""
        with self._lock:
            self._look(sure=True)
            handle = self._handle if version is None else self._opened(version)
            wanted = None if partitions is None else sorted({str(partition) for partition in partitions})
            if wanted is None:
                found = handle.file_uris()
            else:  # The library takes an empty list to mean no condition.
                found = handle.file_uris(file_pruning_predicate=[(PARTITION, "in", wanted)]) if wanted else []
            return sorted(unquote(file) for file in found)  # They are escaped like an address: a space as %20.

    # Methods that move the fence

    def raise_terms(self, terms: Terms) -> Commit:
        """Raise the fence of each partition to its term, without rows. Call this first when partitions were acquired.

        From then on, an older owner is refused. Only afterwards is `progress` final. Raises Refused if all partitions
        have a higher term already; if only some have, they are `lost` in the result.
        """
        wanted = self._checked(terms)

        def judge() -> _Verdict:
            verdict = _Verdict()
            for partition, term in wanted.items():
                held = self._progress(partition).term
                if held is not None and held > term:
                    verdict.lost[partition] = held
                elif held == term:
                    verdict.skipped.append(partition)
                else:
                    verdict.landed.append(partition)
                    verdict.moves[f"{TERM}/{partition}"] = term
            return verdict

        with self._lock:
            self._look(sure=True)  # If nothing is left to raise, no commit would detect that this look was outdated.
            step = Step.drawn(wanted, self.made.start, self.made.start, self._handle.version())
            return self._land(step, judge, lambda _: [])

    @contextmanager
    def stage(self, terms: Terms, batch: int, *, after: int | None = None) -> Iterator[Staging]:
        """A place for the rows of one commit: stage rows in it, then `commit` it. Rows that do not land are removed.

        `terms` names every partition that takes the step from `after` (by default `batch` - 1) to `batch`, with rows or
        without. Raises Refused and BatchGap immediately, before any work is done, if the outcome is already clear.
        """
        with self._lock:
            self._look()
            step = self._step(terms, batch, after)
            verdict = self._judged(step)
            if verdict.lost and not verdict.landed and not verdict.skipped:
                self._answer(step, verdict, None)
            staging = Staging(self.path, step, self.made)
        try:
            yield staging
        finally:
            with self._lock, suppress(OSError, DeltaError, NeliError):  # If this fails, a sweep does it later.
                if not staging.has_landed:
                    self._look(sure=True)
                staging.settle(self._added_since(step.version))

    def commit(self, staging: Staging) -> Commit:
        """Make the staged rows land, in one step for all partitions that are not lost.

        Raises Refused, with the rival's term, if all are lost; BatchGap; TableMismatch if the staged files do not fit;
        TableUnavailable. After any error except TableUnavailable nothing has landed. Calling it again is always safe.
        """
        step = staging.step

        def judge() -> _Verdict:
            require_columns(self.made.columns, staging.made.columns, "this attempt, which began with other ones")
            return self._judged(step)

        with self._lock:
            commit = self._land(step, judge, staging.place)
        staging.has_landed = len(commit.landed) == len(step.terms)
        return commit

    def append(self, rows: pa.Table, terms: Terms, batch: int, *, after: int | None = None) -> Commit:
        """Stage, write and commit in one call: for programs without Spark. Raises the errors of all three."""
        with self.stage(terms, batch, after=after) as staging:
            staging.write(rows)
            return self.commit(staging)

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

    def _land(
        self, step: Step, judge: Callable[[], _Verdict], place: Callable[[list[int]], list[AddAction | RemoveAction]]
    ) -> Commit:
        failure: Exception | None = None
        verdict = _Verdict()
        for _ in range(len(step.terms) + SPARE_TRIES):
            version = self._look(step.name, sure=failure is not None or bool(verdict.moves))
            if version is None:
                verdict = judge()
            if version is not None or not verdict.moves:
                return self._answer(step, verdict, version)
            try:
                self._handle.create_write_transaction(
                    # With nothing to land, the attempt may already be swept: only its higher term counts.
                    place(verdict.landed) if verdict.landed else [],
                    "append",
                    self.made.schema,
                    partition_by=[PARTITION],
                    commit_properties=CommitProperties(
                        custom_metadata={"neli": {"attempt": step.name, "after": step.after, "batch": step.batch}},
                        app_transactions=[Transaction(name, value) for name, value in verdict.moves.items()],
                    ),
                )
            except (DeltaError, OSError, TableUnavailable) as error:
                # If the files are gone, a rival may have overtaken this step and swept it: the next look shows that,
                # and the result is then the rival's term.
                failure = error
        if (version := self._look(step.name, sure=True)) is not None:
            return self._answer(step, verdict, version)
        if isinstance(failure, TableUnavailable):
            raise failure
        found = f"each of {len(step.terms) + SPARE_TRIES} tries failed ({type(failure).__name__})"
        raise self._unavailable(step, found) from failure

    def _answer(self, step: Step, verdict: _Verdict, version: int | None) -> Commit:
        if version is not None:  # An answer that a power loss takes back would be worse than none.
            try:
                flush(self._path_of(version))
                flush(self._log)
            except OSError as error:
                raise self._unavailable(step, "it landed, but perhaps not on stable storage") from error
        for _ in verdict.landed:
            tally.count(refused=False)
        for partition, admitted in verdict.lost.items():
            tally.count(refused=True)
            logger().warning(
                "table.refused",
                table=str(self.path),
                partition=partition,
                term=step.terms[partition],
                admitted=admitted,
                batch=step.batch,
            )
        if verdict.lost and not verdict.landed and not verdict.skipped:
            partition, admitted = min(verdict.lost.items())
            raise Refused.of(f"{self.path.name}/{PARTITION}={partition}", step.terms[partition], admitted)
        return Commit(version, tuple(sorted(verdict.landed)), tuple(sorted(verdict.skipped)), verdict.lost)

    def _unavailable(self, step: Step, found: str) -> TableUnavailable:
        wanted = f"batch {step.batch} was to be committed to the table at {self.path}"
        return TableUnavailable(wanted, found, "look at the disk and the rights to write, and repeat the same batch")

    def _step(self, terms: Terms, batch: int, after: int | None) -> Step:
        wanted, after = self._checked(terms), batch - 1 if after is None else after
        if type(batch) is not int or type(after) is not int or not self.made.start <= after < batch:
            raise FenceMisused(
                f"a step from one batch to a later one was wanted, from {self.made.start} or above",
                f"found one from {after!r:.30} to {batch!r:.30}",
                "number the batches upwards; the table's `first_batch` says where they begin",
            )
        return Step.drawn(wanted, after, batch, self._handle.version())

    def _checked(self, terms: Terms) -> dict[int, int]:
        if isinstance(terms, AnyLease):
            terms = {terms.partition: terms.term}
        most = self.layout.partitions
        if not terms or not all(type(partition) is int and 0 <= partition < most for partition in terms):
            raise FenceMisused(
                f"a term for each of some partitions was wanted, which are numbers from 0 to {most - 1}",
                f"found {len(terms)} partitions, {sorted(map(str, terms))[:3]} among them",
                "pass the terms that are held, such as {3: lease.term}",
            )
        return {partition: checked(f"{PARTITION}={partition}", term)[1] for partition, term in sorted(terms.items())}

    def _judged(self, step: Step) -> _Verdict:
        try:
            return self._verdict(step)
        except BatchGap:
            self._look(sure=True)  # A lost or skipped partition stays so. A gap may have been filled since.
            return self._verdict(step)

    def _verdict(self, step: Step) -> _Verdict:
        """The outcome for each partition, by what the table holds at the handle's version."""
        verdict = _Verdict()
        gaps: dict[int, int] = {}
        for partition, term in step.terms.items():
            held = self._progress(partition)
            if held.term is not None and held.term > term:
                verdict.lost[partition] = held.term
                continue
            if held.batch >= step.batch:
                verdict.skipped.append(partition)
            elif held.batch == step.after:
                verdict.landed.append(partition)
                verdict.moves[f"{BATCH}/{partition}"] = step.batch
            else:
                gaps[partition] = held.batch
            # Set it even if it stays the same, so that a rival that raises it in between conflicts, and is not
            # overlooked.
            if partition in verdict.landed or held.term != term:
                verdict.moves[f"{TERM}/{partition}"] = term
        if gaps:
            partition, batch = min(gaps.items())
            raise BatchGap(
                f"a step from batch {batch} was wanted next in partition {partition}",
                f"found one from {step.after} to {step.batch}"
                + (f" (and so in {len(gaps) - 1} more partitions)" if len(gaps) > 1 else ""),
                "cut the input into the same steps in every program, and go on from where `progress` says",
            )
        return verdict

    def _is_dead(self, step: Step) -> bool:
        """Whether the step can no longer land anywhere: see the essay of `staging`."""
        held = self._progress
        return all(
            held(partition).batch >= step.batch or (held(partition).term or 0) > term
            for partition, term in step.terms.items()
        )

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
