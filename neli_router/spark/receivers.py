"""Receivers: SQL or Redis takes each batch of each partition once, from whichever Spark task comes first.

    driver                              a task on an executor                            receiver, in one transaction
    terms {3: 17, 8: 21}, batch 1041 -> all rows of 3, term 17 -> admit_batch("prices/3", 17, 1041)
                                                                    |-- new             write the rows, commit
                                                                    |-- written before  write nothing
                                                                    '-- a lower term    Refused, write nothing
    Landing, or Refused  <------------- the outcome for each partition

Three things may make Spark write twice, or too late. Stopping them does not need Spark's help:

- *A task runs twice*: it failed after its write, its executor was lost, or speculation started a second run alongside.
  Both runs carry the same batch. The second waits until the first has committed or was rolled back, and then finds the
  batch there, or writes it.
- *A driver was deposed*, and its tasks go on. They carry its term, and a newer owner has raised the fence.
- *An older batch is late*, after a newer one was written. Batches only grow, so it counts as already written.

A batch of a partition must be written whole, in one transaction. So all of its rows must reach one task, one after the
other: this module shuffles and sorts the data by partition, and does not leave that to the caller. If the rows of a
partition ever came from two tasks, the second would pass for a repetition; so the driver checks that, too.

A refused task does not fail: Spark would run it three more times, without effect. It goes on with its other partitions,
and the driver raises Refused when all have ended. Calling again with the same batch and the terms that are still held
is safe: what was written is not written again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row

from neli_router import fence
from neli_router.fence import FenceMisused, Refused
from neli_router.fence import redis as redis_fence
from neli_router.fence.statements import checked, checked_batch

__all__ = ["Landing", "RedisReceiver", "SqlReceiver"]

LANDED, BEFORE, REFUSED, FOREIGN = "landed", "before", "refused", "foreign"

_FIELDS = {"partition": pa.int64(), "rows": pa.int64(), "admitted": pa.int64(), "outcome": pa.string()}
_DECLARED = "partition BIGINT, rows BIGINT, admitted BIGINT, outcome STRING"
"""The same for Spark. A task sends the driver one row for each of its partitions."""


@dataclass(frozen=True, slots=True)
class Landing:
    """The outcome of a batch. All of its partitions are written now."""

    landed: Mapping[int, int]
    """Partition -> its number of rows, where this call wrote them."""
    before: frozenset[int]
    """Partitions where this batch, or a later one, had been written before: by an earlier call, or by the first of two
    runs of one task. (If Spark hears of the second run first, a partition that this call wrote is listed here.)"""


class _Receiver(ABC):
    """The common part of both receivers. Terms and batches are remembered under names such as `prices/3`."""

    def __init__(self, resource: str, connect: Callable[[], Any]) -> None:
        self._resource, self._connect = resource, connect

    def _name(self, partition: int) -> str:
        return f"{self._resource}/{partition}"

    def raise_terms(self, terms: Mapping[int, int]) -> None:
        """Raise the fence of each partition to its term. A new owner does this before it reads anything, including
        `progress`: from then on no older owner can write. Raises Refused."""
        with closing(self._connect()) as connection:
            self._raise(connection, {self._name(partition): terms[partition] for partition in sorted(terms)})

    def progress(self, partitions: Iterable[int]) -> dict[int, int | None]:
        """Partition -> the last batch written to it; None if there was none yet."""
        with closing(self._connect()) as connection:
            return {partition: self._last_batch(connection, self._name(partition)) for partition in sorted(partitions)}

    def _write(
        self, frame: DataFrame, write: Callable[..., Any], terms: Mapping[int, int], batch: int, partition: str
    ) -> Landing:
        if partition not in frame.columns:
            raise FenceMisused(
                f"a column {partition!r} with the partition of each row was wanted",
                f"found the columns {', '.join(frame.columns)}",
                "add it by with_partition(frame, key, layout), or name it: partition=",
            )
        for number, term in terms.items():
            checked_batch(checked(self._name(number), term)[0], batch)
        held = dict(terms)
        names = frame.columns
        place = names.index(partition)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            outcomes = list(self._outcomes(_rows(names, batches), place, held, batch, write))
            yield pa.RecordBatch.from_pylist(outcomes, schema=pa.schema(_FIELDS))

        # By position: mapInArrow takes a column with a dot in its name for a part of another column.
        bare = frame.toDF(*(f"c{number}" for number in range(len(names))))
        together = bare.repartition(f"c{place}").sortWithinPartitions(f"c{place}")
        return self._landing(together.mapInArrow(task, _DECLARED).collect(), held)

    def _outcomes(
        self, rows: Iterator[Row], place: int, terms: Mapping[int, int], batch: int, write: Callable[..., Any]
    ) -> Iterator[dict[str, int | str | None]]:
        """In a task: pass one partition after the other to the receiver."""
        connection = None
        try:
            for partition, its_rows in groupby(rows, lambda row: row[place]):
                if (term := terms.get(partition)) is None:
                    yield {"partition": partition, "outcome": FOREIGN}
                    continue
                connection = connection or self._connect()
                counted = _Counted(its_rows)
                try:
                    is_new = self._land(connection, self._name(partition), term, batch, counted, write)
                except Refused as refused:
                    yield {"partition": partition, "outcome": REFUSED, "admitted": refused.admitted}
                else:
                    yield {"partition": partition, "outcome": LANDED if is_new else BEFORE, "rows": counted.count}
        finally:
            if connection is not None:
                connection.close()  # This drops what was not committed.

    def _landing(self, outcomes: list[Row], terms: Mapping[int, int]) -> Landing:
        """In the driver: return the landing, or raise the error."""
        by_kind: dict[str, dict[Any, Row]] = {LANDED: {}, BEFORE: {}, REFUSED: {}, FOREIGN: {}}
        for outcome in outcomes:
            by_kind[outcome.outcome][outcome.partition] = outcome
        assert len(outcomes) == len({outcome.partition for outcome in outcomes}), "a partition came from two tasks"
        landing = Landing(
            {partition: row.rows for partition, row in by_kind[LANDED].items()}, frozenset(by_kind[BEFORE])
        )
        written = f"of this batch, {len(landing.landed)} partitions were written, and {len(landing.before)} were before"
        if lost := by_kind[REFUSED]:
            first = min(lost)
            refused = Refused.of(self._name(first), terms[first], lost[first].admitted)
            refused.add_note(f"refused: the partitions {', '.join(map(str, sorted(lost)))}; {written}")
            raise refused
        if foreign := by_kind[FOREIGN]:
            some = ", ".join("null" if partition is None else str(partition) for partition in list(foreign)[:5])
            misused = FenceMisused(
                "a term for the partition of each row was wanted",
                f"found rows of {len(foreign)} partitions without one, such as {some}",
                "keep only rows that you own: owned(frame, key, terms)",
            )
            misused.add_note(written)
            raise misused
        return landing

    @abstractmethod
    def _raise(self, connection: Any, terms: Mapping[str, int]) -> None: ...

    @abstractmethod
    def _last_batch(self, connection: Any, resource: str) -> int | None: ...

    @abstractmethod
    def _land(
        self, connection: Any, resource: str, term: int, batch: int, rows: Iterator[Row], write: Callable[..., Any]
    ) -> bool:
        """Write `rows` if the batch is new, and return whether it was. Raises Refused, and leaves no transaction
        open."""


class SqlReceiver(_Receiver):
    """Tables in SQLite or PostgreSQL whose fence was made by `fence.install`.

    `connect` opens a connection that is not in autocommit mode. It is called in the driver and in each task, so it must
    be a function that can be pickled, and everything that it needs must be on the executors.
    """

    def __init__(self, resource: str, connect: Callable[[], Any], *, paramstyle: str | None = None) -> None:
        super().__init__(resource, connect)
        self._paramstyle = paramstyle

    def write(
        self,
        frame: DataFrame,
        write: Callable[[Any, Iterator[Row]], object],
        *,
        terms: Mapping[int, int],
        batch: int,
        partition: str = "partition",
    ) -> Landing:
        """Write the rows of each partition by `write(connection, rows)`, each in a transaction, if the batch is new.

        `write` neither commits nor rolls back. It is called in a task, like `connect`. `terms` holds all partitions in
        the column `partition`. Raises Refused if some of them have newer owners; the other partitions are written then.
        """
        return self._write(frame, write, terms, batch, partition)

    def _raise(self, connection: Any, terms: Mapping[str, int]) -> None:
        for resource, term in sorted(terms.items()):  # In any other order, two drivers could wait for each other.
            fence.admit(connection, resource, term, paramstyle=self._paramstyle)
        connection.commit()

    def _last_batch(self, connection: Any, resource: str) -> int | None:
        return fence.admitted_batch(connection, resource, paramstyle=self._paramstyle)

    def _land(
        self, connection: Any, resource: str, term: int, batch: int, rows: Iterator[Row], write: Callable[..., Any]
    ) -> bool:
        try:
            is_new = fence.admit_batch(connection, resource, term, batch, paramstyle=self._paramstyle)
            if is_new:
                write(connection, rows)
        except Refused:  # The task goes on with its next partition, on the same connection.
            connection.rollback()
            raise
        connection.commit()
        return is_new


class RedisReceiver(_Receiver):
    """Keys in Redis. `connect` makes a client, in the driver and in each task, so it must be picklable."""

    def write(
        self,
        frame: DataFrame,
        commands: Callable[[Iterator[Row]], Iterable[redis_fence.Command]],
        *,
        terms: Mapping[int, int],
        batch: int,
        partition: str = "partition",
    ) -> Landing:
        """Carry out `commands(rows)` of each partition, in one step, if the batch is new.

        One step has at most BATCH_MAX commands of `fence.redis`. Everything else works as in SqlReceiver.write.
        """
        return self._write(frame, commands, terms, batch, partition)

    def _raise(self, connection: Any, terms: Mapping[str, int]) -> None:
        for resource, term in terms.items():
            redis_fence.admit(connection, resource, term)

    def _last_batch(self, connection: Any, resource: str) -> int | None:
        return redis_fence.admitted_batch(connection, resource)

    def _land(
        self, connection: Any, resource: str, term: int, batch: int, rows: Iterator[Row], write: Callable[..., Any]
    ) -> bool:
        return redis_fence.admit_batch(connection, resource, term, batch, *write(rows))


class _Counted(Iterator[Row]):
    """Rows, and how many of them were taken."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows, self.count = rows, 0

    def __next__(self) -> Row:
        row = next(self._rows)
        self.count += 1
        return row


def _rows(names: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    row = Row(*names)
    for batch in batches:
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield row(*values)
