"""Steps: a job lands each step of its input once in every partition, whichever hosts lead it meanwhile.

    run_job(StepLoop(ParquetSteps("/shared/orders", key="customer"), totals, "/shared/totals").run)

    input      1     2     3     4     5     6            numbered, and the same for every host
    table      partition 0 |=================|            landed up to 5, by this host
               partition 1 |=================|
               partition 2 |==========|                   landed up to 3, by a host that was killed then
                                '-----> next: partition 2, from 3 to 5; then 0, 1 and 2, from 5 to 6

The table holds the progress of each partition, and moves it in the same commit that lands the rows. So nothing else has
to be remembered, and a host that takes over a partition goes on where the table is:

    share of the host --> raise the terms --> read the progress --> step, commit, step, commit ... --> close the share
        ^                                                                                                  |
        '---- a partition was revoked or gained: finish the step, and open the share again -----------------'
              one was lost: stop immediately (see `guard`)

The terms come first. From then on the table refuses earlier leaders, including a driver that was stopped in the middle
of its commit and wakes up later: so the progress that is read next is final.

**One step serves all partitions at its beginning**, in one Spark job and one commit. After a takeover, some partitions
are further back. They catch up first, in steps that end where the next partitions are, and then all go on together.

**No query of Structured Streaming** drives the steps. Spark numbers micro-batches from 0 for each query, so two hosts
would give the same number to different input, and a takeover would begin from scratch.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from neli_router.agent.client.client import Client
from neli_router.agent.client.leases import Share
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.core.logs import logger
from neli_router.errors import ConfigError, NeliError, NotLeading
from neli_router.fence.delta import FencedTable
from neli_router.fence.tables import PARTITION, AnyFencedTable
from neli_router.spark.fenced import append_rows
from neli_router.spark.guard import guarded
from neli_router.spark.sessions import session
from neli_router.spark.slots import with_partition
from neli_router.spark.sources import StepSource

__all__ = ["InputStep", "StepLoop", "StepWriter", "next_step"]

LOOK_EVERY = 0.2
"""Seconds between two looks at the input's tip while there is nothing to do. A shorter time publishes sooner, but asks
more often."""

SHARE_MAX = 10.0
"""Seconds to wait for a first partition before checking whether other hosts have done everything. It must be longer
than an agent with a usual lease needs to join; a shorter time ends a job sooner on a host that gets no partition."""

REPORT_EVERY = 2.0
"""Seconds between two reports of how far the job is behind."""

HELD = "spark.neli.partitions"
"""The setting in which an Airflow task that holds partitions names them to the job that it submits."""


@dataclass(frozen=True, slots=True)
class InputStep:
    """The next input of some partitions: all of their lane's input behind `after`, up to and including `upto`."""

    lane: int
    after: int
    upto: int
    partitions: tuple[int, ...]


def next_step(progress: Mapping[int, int], tips: Sequence[int], *, longest: int) -> InputStep | None:
    """The step of the partitions that are furthest behind the tip of their lane; None if all have reached it.

    Partition i is in lane i mod the number of lanes. A step is at most `longest` long, and ends where other partitions
    of the lane are, so that they go on together.
    """
    behind = {partition: tips[partition % len(tips)] - at for partition, at in progress.items()}
    furthest = max(behind, key=lambda partition: behind[partition], default=None)
    if furthest is None or behind[furthest] <= 0:
        return None
    lane, after = furthest % len(tips), progress[furthest]
    fellows = {partition: at for partition, at in progress.items() if partition % len(tips) == lane}
    upto = min(tips[lane], after + longest, *(at for at in fellows.values() if at > after))
    return InputStep(lane, after, upto, tuple(sorted(partition for partition, at in fellows.items() if at == after)))


class StepWriter:
    """The steps of one share into one table."""

    def __init__(self, table: AnyFencedTable[Any], share: Share) -> None:
        """First raises the terms in the table; raises Refused if newer owners have all of these partitions."""
        lost = table.raise_terms(share.terms).lost
        self._table, self._member = table, share.member
        self.terms = {partition: term for partition, term in share.terms.items() if partition not in lost}
        self.progress = {partition: at.batch for partition, at in table.progress(self.terms).items()}

    def land(self, step: InputStep, rows: DataFrame) -> None:
        """Write `rows` and commit them as `step`. Raises Refused if newer owners have all of its partitions."""
        terms = {partition: self.terms[partition] for partition in step.partitions}
        commit = append_rows(rows, self._table, terms, step.upto, after=step.after)
        for partition in (*commit.landed, *commit.skipped):
            self.progress[partition] = step.upto
        for partition in commit.lost:  # The guard reports it, too; until then, the others go on.
            del self.progress[partition], self.terms[partition]
        logger().info(
            "step.landed",
            table=self._table.name,
            member=self._member,
            lane=step.lane,
            after=step.after,
            upto=step.upto,
            version=commit.version,
            landed=len(commit.landed),
            skipped=len(commit.skipped),
            lost=len(commit.lost),
        )


Transform = Callable[[DataFrame], DataFrame]
"""Turns input rows into the table's. Both have the column `partition`; a group of rows must be of one partition."""


class StepLoop:
    """One host's job on one table: see `run`. Only one thread may use it at a time."""

    def __init__(
        self,
        source: StepSource,
        transform: Transform,
        table: AnyFencedTable[Any] | str | PathLike[str],
        *,
        client: Client | None = None,
        spark: SparkSession | None = None,
        partitions: Collection[int] | None = None,
    ) -> None:
        """Rows of `source` become rows of `table` by `transform`, a function like those of `df.transform`.

        A Delta table that is named by its path is made, if there is none yet, with the columns that `transform` gives.
        `client` asks this host's agent by default. Without `spark`, the program's session is used, or a new one, once
        the agent has answered. `partitions` are those of this host that the job is for: by default those that an
        Airflow task holds for it; without a task, all.
        """
        self._source, self._transform, self._table = source, transform, table
        self._client, self._spark, self._partitions = client, spark, partitions

    def run(self, until: int | Literal["now"] | None = None, *, reopen: bool = True) -> bool:
        """Land steps until the job ends; return whether it is done. Raises LeaseLost, Refused and NoAgent, and
        TableMismatch for a table of another layout than the group's.

        With a number, the job is done when the whole table has reached that step; with "now", when this host's
        partitions have everything that the input has at the start; without either, it never ends. With `reopen=False`
        it also ends, not done, when its share was revoked or has grown.
        """
        with ExitStack() as stack:
            client = self._client or stack.enter_context(Client())
            layout = client.layout()  # First: Spark takes seconds to start.
            if isinstance(self._table, AnyFencedTable):
                self._table.require_layout(layout)
            if (spark := self._spark or SparkSession.getActiveSession()) is None:
                spark = session()
                stack.callback(spark.stop)  # Sessions of Spark Connect do not support `with`.
            partitions = self._partitions
            if partitions is None and (held := spark.conf.get(HELD, None)):
                partitions = [int(partition) for partition in held.split(",")]
            run = _StepRun(self._source, self._transform, self._table, until, client, layout, spark, partitions)
            return run.landed(reopen=reopen)


class _StepRun:
    """One run of a loop: its table, and how much of the input it knows and is to land."""

    def __init__(
        self,
        source: StepSource,
        transform: Transform,
        table: AnyFencedTable[Any] | str | PathLike[str],
        until: int | Literal["now"] | None,
        client: Client,
        layout: Layout,
        spark: SparkSession,
        partitions: Collection[int] | None,
    ) -> None:
        self._source, self._transform, self._client, self._layout = source, transform, client, layout
        self._spark, self._partitions = spark, partitions
        lanes = source.lanes()  # Before the table: an address without input leaves no table behind.
        self._table: AnyFencedTable[Any] = table if isinstance(table, AnyFencedTable) else self._made(table)
        self._tips = [self._table.first_batch - 1] * lanes
        self._ends: list[int | None] = [None if until == "now" else until] * lanes
        self._only_now = until == "now"
        if self._only_now:
            self._look()
            self._ends = list(self._tips)

    def landed(self, *, reopen: bool) -> bool:
        while not self._is_whole():
            try:
                with self._client.share(self._partitions, timeout=SHARE_MAX) as share, guarded(self._spark, share):
                    is_done = self._work(share)
            except NotLeading:  # Other hosts have all partitions. None of ours has moved, so nothing is left undone.
                if self._only_now:
                    return True
                continue
            if is_done or not reopen:
                return is_done
        return True

    def _work(self, share: Share) -> bool:
        """Land steps until the share should be closed; return whether the job is done."""
        writer, report = StepWriter(self._table, share), _Report(self._client, self._table.name)
        with closing(report):
            return self._stepped(share, writer, report)

    def _stepped(self, share: Share, writer: StepWriter, report: "_Report") -> bool:
        while not (share.ending or share.more):
            share.check()
            self._look()
            report.send({at: self._tips[at % len(self._tips)] - done for at, done in writer.progress.items()})
            step = next_step(writer.progress, self._tips, longest=self._source.longest)
            if step is not None:
                writer.land(step, self._rows(step))
            elif self._has_ended(writer.progress) if self._only_now else self._is_whole():
                return True
            else:
                share.ending.wait(LOOK_EVERY)
        return False

    def _rows(self, step: InputStep) -> DataFrame:
        """The table's rows of that step."""
        frame = self._source.frame(self._spark, self._layout, step.lane, step.after, step.upto)
        placed = with_partition(frame, self._source.key, self._layout)
        missing = ConfigError(["a row of the input has no key: fill it, or leave such rows out of the input"])
        partition = sql.coalesce(PARTITION, sql.raise_error(sql.lit(str(missing))))
        return self._transform(placed.where(partition.isin(*step.partitions)))

    def _made(self, path: str | PathLike[str]) -> FencedTable:
        """The table at `path`, whose columns are those that the function gives for no rows."""
        schema = self._rows(InputStep(0, 0, 0, (0,))).schema
        if PARTITION not in schema.names:
            raise ConfigError([f"the function must keep the column {PARTITION!r}: group by it, or select it, too"])
        # Steps are counted from 1: a table at 0 has landed none.
        return FencedTable.create(fspath(path), schema, self._layout, first_batch=1)

    def _look(self) -> None:
        for lane, known in enumerate(self._tips):
            tip, end = self._source.tip(lane, known), self._ends[lane]
            self._tips[lane] = tip if end is None else min(tip, end)

    def _is_whole(self) -> bool:
        """Whether the whole table has reached the end of the job."""
        if self._only_now or None in self._ends:
            return False
        return self._has_ended({partition: at.batch for partition, at in self._table.progress().items()})

    def _has_ended(self, progress: Mapping[int, int]) -> bool:
        ends = [(at, self._ends[partition % len(self._ends)]) for partition, at in progress.items()]
        return all(end is not None and at >= end for at, end in ends)


class _Report:
    """Reports to the agent how far the job is behind, for metrics. No failure of this ends the job."""

    def __init__(self, client: Client, table: str) -> None:
        self._client, self._table, self._next_at = client, table, 0.0

    def send(self, behind: Mapping[int, int]) -> None:
        now = host_clock()
        if now >= self._next_at:
            self._next_at = now + REPORT_EVERY
            with suppress(
                NeliError
            ):  # An older agent does not know it, and one that has ended is noticed by the share.
                self._client.progress(self._table, {at: max(0, steps) for at, steps in behind.items()})

    def close(self) -> None:
        self._next_at = 0.0
        self.send({})
