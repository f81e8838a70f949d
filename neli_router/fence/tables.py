"""A fenced table of any format: one commit adds rows and moves the fence, or does neither.

    holder, term 7    attempt, stage ...... paused for a minute ............ commit(40)  <-- Refused: 9 was committed
    holder, term 9                raise_terms({3: 9})   progress()   commit(40)   commit(41)

For each partition, the table stores two numbers: the highest term and the last batch. A batch is a step from one number
to a later one:

    the table's term   the table's batch      a step from `after` to `batch` under `term`
    higher             any                    is lost: a newer owner has the partition. Refused if all are
    not higher         `batch` or later       is skipped: it has landed before
    not higher         `after`                lands: rows, term and batch, in one commit
    not higher         anything else          is an error, BatchGap: a batch is missing, or was cut differently

A format provides one thing: a commit that fails if another writer moved the fence of our partitions between our look
and that commit. A failed commit is never repeated unchanged: the table is looked at and judged again. A library that
repeats it automatically would make a stale holder more dangerous, because its repetition succeeds.

**The table is the only witness.** A commit may have succeeded although its answer was lost. So an answer is never
trusted: after each try the table is read, and each commit carries the name of its attempt.

    look --> judge --> nothing to write -----------------------------> answer
      ^        |
      |        '--> place the files --> commit --any answer--> look --> our name? --> answer
      '-------------------------------------------------------------------- no

Threads may share a table; their commits take turns. After a fork, open the table again.
"""

import json
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from neli_router.core.keyspace import Layout
from neli_router.core.logs import logger
from neli_router.errors import NeliError
from neli_router.fence.refusals import BatchGap, FenceMisused, Refused, TableMismatch, TableUnavailable, tally
from neli_router.fence.statements import AnyLease, checked

__all__ = [
    "PARTITION",
    "WHOLE",
    "AnyFencedTable",
    "AnyStaging",
    "Columns",
    "Commit",
    "Condition",
    "Judgement",
    "Progress",
    "Step",
    "TableFormat",
    "Terms",
    "require_columns",
    "spelled",
]

RACES_MAX = 100
"""With a smaller number, a busy appender next to us could starve us. Pauses are short, so this many take a minute."""

PARTITION = "partition"
"""The column by which a table is laid out."""

WHOLE = ("byte", "short", "integer", "long")
"""Types that a column `partition` may have in rows: it becomes a folder name, which has no type."""

Columns = Mapping[str, Any]
"""Name -> type, in Delta's JSON, without nullability."""

Terms = Mapping[int, int] | AnyLease
"""Partition -> term, such as `share.terms`; or a lease, for its partition."""

Condition = tuple[str, str, Any]
"""A column, an operator and a value, such as ("at", ">=", monday)."""


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


@dataclass(frozen=True, slots=True)
class Step:
    """The goal of an attempt: one step from batch `after` to `batch`, for some partitions under their terms."""

    name: str
    terms: Mapping[int, int]
    after: int
    batch: int
    version: int
    """The table's version before the attempt began: its commit can only be a later one."""
    replaces: tuple[str, ...] = ()
    """For a compaction, which takes no step: the files that it takes out of the table."""

    @classmethod
    def drawn(
        cls, terms: Mapping[int, int], after: int, batch: int, version: int, replaces: Iterable[str] = ()
    ) -> "Step":
        return cls(secrets.token_hex(8), dict(terms), after, batch, version, tuple(replaces))

    @classmethod
    def read(cls, text: str) -> "Step":
        """The step that `text` wrote down. Raises ValueError, TypeError or KeyError for half of a text."""
        fields = json.loads(text)
        terms = {int(partition): int(term) for partition, term in fields.pop("terms").items()}
        return cls(terms=terms, replaces=tuple(fields.pop("replaces", ())), **fields)

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Judgement:
    """The effect of a step on each partition, judged at one version of the table."""

    landed: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    lost: dict[int, int] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)
    """The terms that the commit sets. Without any, there is nothing to commit."""
    batches: dict[int, int] = field(default_factory=dict)
    """The batches that it sets."""


@dataclass(frozen=True, slots=True)
class TableFormat(ABC):
    """The format that a fenced table was made with. Those of Delta and Iceberg derive from it."""

    identity: str
    """Drawn when the table was made: a table that was made again in its place has another one."""
    layout: Layout
    first_batch: int
    columns: Columns
    later: frozenset[str]
    """The columns that were added to the table after it was made, and that a writer may leave out."""

    @property
    def start(self) -> int:
        """The batch that every partition is at before its first one."""
        return self.first_batch - 1

    def require(self, found: Columns, whose: str) -> None:
        """Raise TableMismatch if `found` are not the table's columns; later ones may be missing."""
        require_columns(self.columns, found, whose, later=self.later)

    @abstractmethod
    def split(self, rows: Any) -> Iterable[tuple[int | None, Any]]:
        """The rows of each partition in a table of pyarrow, as the table's files have them. Raises TableMismatch."""

    @abstractmethod
    def spark_schema(self) -> dict[str, Any]:
        """All columns, in the form of Spark's `StructType.fromJson`."""


def require_columns(wanted: Columns, found: Columns, whose: str, *, later: Collection[str] = ()) -> None:
    """Raise TableMismatch, with a note on each column that differs. Those of `later` may be missing."""
    words = [
        *(f"{name} is missing" for name in wanted if name not in found and name not in later),
        *(f"{name} is not in the table" for name in found if name not in wanted),
        *(
            f"{name} is {spelled(found[name])} instead of {spelled(wanted[name])}"
            for name in wanted
            if name in found and found[name] != wanted[name] and not (name == PARTITION and found[name] in WHOLE)
        ),
    ]
    if words:
        raise TableMismatch(
            f"the table's columns were wanted in {whose}",
            f"found other ones: {'; '.join(words)}",
            "select, rename or cast them as the table has them; `add_columns` adds one to the table",
        )


def spelled(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


class AnyStaging(ABC):
    """The rows of one attempt, on their way into a table. Only one thread may use it at a time."""

    format: TableFormat

    folders: ClassVar[str]
    """Folders below `folder` are named by it. If it is not the column `partition`, files contain that column, too."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.has_landed = False
        """Whether all of it has landed, so that nothing must be looked up before it is settled."""
        self._written = 0
        self._looked: list[Any] | None = None
        """The staged files, once they were looked at."""

    @property
    @abstractmethod
    def folder(self) -> Path | str:
        """Where programs write Parquet themselves: a path, or the address of a folder."""

    @abstractmethod
    def count(self) -> int:
        """The number of staged rows. Nothing may be staged after this, because each file is read only once."""

    def write(self, rows: Any) -> None:
        """Stage `rows`, a table of pyarrow; their column `partition` says where they belong. May be called any number
        of times.

        Raises TableMismatch if the columns are not the table's. Raises FenceMisused for a row of a partition without a
        term, and after the rows were counted or committed.
        """
        if self._looked is not None:
            raise FenceMisused(
                "rows to stage were wanted before the commit", "found some after it", "begin another step for them"
            )
        for partition, some in self.format.split(rows):
            self._require_term(partition)
            self._write(some, f"{self.folders}={partition}", f"{self._written}.parquet")
            self._written += 1

    @abstractmethod
    def _write(self, rows: Any, folder: str, name: str) -> None:
        """Write a file of `rows` into `folder`, below that of the attempt."""

    def _partition_of(self, folder: str) -> int:
        """The partition by which a folder is named. Raises FenceMisused if the attempt has no term for it."""
        partition = folder.partition("=")[2]
        self._require_term(int(partition) if partition.isdecimal() else None)
        return int(partition)

    def _require_term(self, partition: int | None) -> None:
        if partition not in self.step.terms:
            raise FenceMisused(
                "rows of partitions that this attempt has a term for were wanted",
                f"found some of partition {partition}",
                "filter the rows by the partitions that are held, and drop rows without a key",
            )

    @staticmethod
    def _unfinished() -> TableUnavailable:
        """The error for a folder that has the `_temporary` of Spark."""
        return TableUnavailable(
            "finished files were wanted in the attempt's folder",
            "found Spark's `_temporary`: the job that writes them has failed, or is still running",
            "wait for the job to end, or begin a new attempt",
        )


S = TypeVar("S", bound=AnyStaging)


class AnyFencedTable(ABC, Generic[S]):
    """A table whose partitions are written under terms. The formats derive from it."""

    format: TableFormat
    """The table's format and columns, as of the last look."""

    name: str
    """The name in errors and logs."""

    place: str
    """Where the table is, for people."""

    base: Path | None
    """The folder below which folders say the partition of a file; None if each file has the column."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """The library's errors after which a commit may be tried again."""

    spare_tries: ClassVar[int] = 5
    """Tries beyond one for each partition: for a catalog or a disk that is away. More of them delay the error."""

    lost_races: ClassVar[tuple[type[Exception], ...]] = ()
    """Failures which only say that another commit succeeded. The first RACES_MAX of them use up no try."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    # Questions

    @property
    def layout(self) -> Layout:
        return self.format.layout

    @property
    def first_batch(self) -> int:
        return self.format.first_batch

    def require_layout(self, layout: Layout) -> None:
        """Raise TableMismatch if the table has another layout: a key's rows would be in another partition."""
        if difference := layout.difference(self.layout):
            raise TableMismatch(
                f"the group's layout was wanted in the table at {self.place}",
                f"it has another one: {difference}",
                "name another table, or copy the rows into one that is made with the group's layout",
            )

    def progress(self, partitions: Iterable[int] | None = None) -> dict[int, Progress]:
        """The progress of each of `partitions` (default: all)."""
        wanted = range(self.layout.partitions) if partitions is None else partitions
        with self._lock:
            self._look(sure=True)
            return {partition: self._progress(partition) for partition in wanted}

    def files(
        self,
        partitions: Iterable[int] | None = None,
        *,
        version: int | None = None,
        where: Sequence[Condition] = (),
    ) -> list[str]:
        """Every Parquet file of `partitions`, now or at `version`, for engines that cannot read the format: a path, or
        the address of a file that is not local.

        `where` skips files by their statistics, such as `[("at", ">=", monday), ("at", "<", friday)]`: those in which
        no row fulfils all conditions. The files that are left may have other rows, too. Raises FenceMisused;
        TableMismatch for an unknown version, or if another program has deleted single rows, which a list cannot say.
        """
        wanted = None if partitions is None else sorted({int(partition) for partition in partitions})
        if wanted == []:  # A library takes an empty list to mean no condition.
            return []
        conditions = [*where] if wanted is None else [(PARTITION, "in", wanted), *where]
        with self._lock:
            self._look(sure=True)
            try:
                return sorted(self._files(conditions, version))
            except (KeyError, TypeError, ValueError) as error:
                raise FenceMisused(
                    "conditions on columns of the table were wanted, such as ('at', '>=', a time with its zone)",
                    f"found {str(error).partition(chr(10))[0]}",
                    "compare a column with one value of its type, or with a list by 'in'",
                ) from error

    # Methods that move the fence

    def raise_terms(self, terms: Terms) -> Commit:
        """Raise the fence of each partition to its term, without rows. Call this first when partitions were acquired.

        From then on, an older owner is refused. Only afterwards is `progress` final. Raises Refused if all partitions
        have a higher term already; if only some have, they are `lost` in the result.
        """
        wanted = self._checked(terms)

        def judge() -> Judgement:
            verdict = Judgement()
            for partition, term in wanted.items():
                held = self._progress(partition).term
                if held is not None and held > term:
                    verdict.lost[partition] = held
                elif held == term:
                    verdict.skipped.append(partition)
                else:
                    verdict.landed.append(partition)
                    verdict.terms[partition] = term
            return verdict

        with self._lock:
            self._look(sure=True)  # If nothing is left to raise, no commit would detect that this look was outdated.
            step = Step.drawn(wanted, self.format.start, self.format.start, self._version())
            return self._land(step, judge, None)

    @contextmanager
    def stage(self, terms: Terms, batch: int, *, after: int | None = None) -> Iterator[S]:
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
            staging = self._staging(step)
        try:
            yield staging
        finally:
            # If this fails, a sweep does it later.
            with self._lock, suppress(OSError, NeliError, *self.failures):
                if not staging.has_landed:
                    self._look(sure=True)
                self._settle(staging)

    def commit(self, staging: S) -> Commit:
        """Make the staged rows land, in one step for all partitions that are not lost.

        Raises Refused, with the rival's term, if all are lost; BatchGap; TableMismatch if the staged files do not fit;
        TableUnavailable. After any error except TableUnavailable nothing has landed. Calling it again is always safe.
        """
        step = staging.step

        def judge() -> Judgement:
            self._require_fitting(staging)
            return self._judged(step)

        with self._lock:
            commit = self._land(step, judge, staging)
        staging.has_landed = len(commit.landed) == len(step.terms)
        return commit

    def append(self, rows: Any, terms: Terms, batch: int, *, after: int | None = None) -> Commit:
        """Stage, write and commit a table of pyarrow in one call: for programs without Spark. Raises the errors of all
        three."""
        with self.stage(terms, batch, after=after) as staging:
            staging.write(rows)
            return self.commit(staging)

    # Maintenance

    @abstractmethod
    def sweep(self) -> int:
        """Remove what killed programs left behind; return how many of their files the table never named."""

    @abstractmethod
    def maintain(self) -> None:
        """Keep the table's log short. Call this and `sweep` daily, from any one program."""

    # Methods that a format provides

    @abstractmethod
    def _look(self, name: str = "", *, sure: bool = False) -> int | None:
        """Bring all that is remembered about the table to its newest version. Returns the version that the attempt
        `name` made, if it is among the new ones. Without `sure`, what is remembered may do."""

    @abstractmethod
    def _version(self) -> int:
        """The version of the last look."""

    @abstractmethod
    def _progress(self, partition: int) -> Progress:
        """The progress of a partition, at the version of the last look."""

    @abstractmethod
    def _files(self, conditions: Sequence[Condition], version: int | None) -> Iterable[str]:
        """The files that may have rows that fulfil all `conditions`, at `version`, or at that of the last look. Raises
        KeyError, TypeError or ValueError for a condition that is none, and TableMismatch."""

    @abstractmethod
    def _write(self, step: Step, verdict: Judgement, staging: S | None) -> None:
        """Try once to commit what `verdict` says; fail if the fence was moved since the last look."""

    @abstractmethod
    def _harden(self, version: int) -> None:
        """Wait until the commit is on stable storage: an answer that a power loss takes back is worse than none."""

    @abstractmethod
    def _staging(self, step: Step) -> S: ...

    @abstractmethod
    def _settle(self, staging: S) -> None:
        """Remove what is left of the attempt, except its files that landed."""

    # Checks

    def _require_same(self, identity: str) -> None:
        """Raise TableMismatch unless it is the identity of the table that was opened."""
        if identity != self.format.identity:
            raise TableMismatch(
                f"the table that was opened at {self.place} was wanted",
                "another one was made in its place meanwhile",
                "open it again if that was intended, and begin with `raise_terms`",
            )

    def _require_made(self, columns: Mapping[str, Any], first_batch: int) -> None:
        """Raise TableMismatch if `create` would have made another table."""
        self.format.require(columns, "the schema given")
        if self.first_batch != first_batch:
            raise TableMismatch(
                f"first_batch={first_batch} was wanted in the table at {self.place}",
                f"it was made with {self.first_batch}",
                "count batches as the table does, or make another one",
            )

    def _require_fitting(self, staging: S) -> None:
        """Raise TableMismatch if the table's columns have changed since the attempt began."""
        self.format.require(staging.format.columns, "this attempt, which began with other ones")

    # One commit

    def _land(self, step: Step, judge: Callable[[], Judgement], staging: S | None) -> Commit:
        failures: tuple[type[Exception], ...] = (OSError, TableUnavailable, *self.failures)
        failure: Exception | None = None
        verdict, tries, races = Judgement(), 0, 0
        while tries < len(step.terms) + self.spare_tries:
            version = self._look(step.name, sure=failure is not None or bool(verdict.terms))
            if version is None:
                verdict = judge()
            if version is not None or not verdict.terms:
                return self._answer(step, verdict, version)
            try:
                # With nothing to land, the attempt may already be swept: only its higher term counts.
                self._write(step, verdict, staging if verdict.landed else None)
            except failures as error:
                # If the files are gone, a rival may have overtaken this step and swept it: the next look shows that,
                # and the result is then the rival's term.
                failure = error
                if isinstance(error, self.lost_races) and races < RACES_MAX:
                    races += 1
                    continue
            tries += 1
        if (version := self._look(step.name, sure=True)) is not None:
            return self._answer(step, verdict, version)
        if isinstance(failure, TableUnavailable):
            raise failure
        raise self._unavailable(step, f"each of {tries} tries failed ({type(failure).__name__})") from failure

    def _answer(self, step: Step, verdict: Judgement, version: int | None) -> Commit:
        if version is not None:
            try:
                self._harden(version)
            except OSError as error:
                raise self._unavailable(step, "it landed, but perhaps not on stable storage") from error
        for _ in verdict.landed:
            tally.count(refused=False)
        for partition, admitted in verdict.lost.items():
            tally.count(refused=True)
            logger().warning(
                "table.refused",
                table=self.place,
                partition=partition,
                term=step.terms[partition],
                admitted=admitted,
                batch=step.batch,
            )
        if verdict.lost and not verdict.landed and not verdict.skipped:
            partition, admitted = min(verdict.lost.items())
            raise Refused.of(f"{self.name}/{PARTITION}={partition}", step.terms[partition], admitted)
        return Commit(version, tuple(sorted(verdict.landed)), tuple(sorted(verdict.skipped)), verdict.lost)

    def _unavailable(self, step: Step, found: str) -> TableUnavailable:
        wanted = f"batch {step.batch} was to be committed to the table at {self.place}"
        return TableUnavailable(wanted, found, "look at the disk and the rights to write, and repeat the same batch")

    def _step(self, terms: Terms, batch: int, after: int | None) -> Step:
        wanted, after = self._checked(terms), batch - 1 if after is None else after
        if type(batch) is not int or type(after) is not int or not self.format.start <= after < batch:
            raise FenceMisused(
                f"a step from one batch to a later one was wanted, from {self.format.start} or above",
                f"found one from {after!r:.30} to {batch!r:.30}",
                "number the batches upwards; the table's `first_batch` says where they begin",
            )
        return Step.drawn(wanted, after, batch, self._version())

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

    def _judged(self, step: Step) -> Judgement:
        try:
            return self._verdict(step)
        except BatchGap:
            self._look(sure=True)  # A lost or skipped partition stays so. A gap may have been filled since.
            return self._verdict(step)

    def _verdict(self, step: Step) -> Judgement:
        """The outcome for each partition, by what the table held at the last look."""
        verdict = Judgement()
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
                verdict.batches[partition] = step.batch
            else:
                gaps[partition] = held.batch
            # Set it even if it stays the same, so that a rival that raises it in between conflicts, and is not
            # overlooked.
            if partition in verdict.landed or held.term != term:
                verdict.terms[partition] = term
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
        """Whether the step can no longer land anywhere: a higher term, or a batch that is not before its own, holds in
        each of its partitions, and the table takes neither back."""
        held = self._progress
        return all(
            held(partition).batch >= step.batch or (held(partition).term or 0) > term
            for partition, term in step.terms.items()
        )
