"""Steps: a job lands each step of its input once in every partition, whichever hosts lead it meanwhile.

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
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from neli_router.agent.client.client import Client
from neli_router.agent.client.leases import Share
from neli_router.core.logs import logger
from neli_router.errors import NotLeading
from neli_router.fence.delta import FencedTable
from neli_router.spark.fenced import append_rows
from neli_router.spark.guard import guarded

__all__ = ["InputStep", "StepLoop", "StepSource", "StepWriter", "next_step"]

LOOK_EVERY = 0.2
"""Seconds between two looks at the input's tip while there is nothing to do. A shorter time publishes sooner, but asks
more often."""

SHARE_MAX = 10.0
"""Seconds to wait for a first partition before checking whether other hosts have done everything. It must be longer
than an agent with a usual lease needs to join; a shorter time ends a job sooner on a host that gets no partition."""


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


class StepSource(Protocol):
    """Input that is cut into steps."""

    def lanes(self) -> int: ...

    def tip(self, lane: int, known: int) -> int:
        """The current end of the lane; its last known end is `known`."""

    def frame(self, step: InputStep) -> DataFrame: ...


class StepWriter:
    """The steps of one share into one table."""

    def __init__(self, table: FencedTable, share: Share) -> None:
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


Transform = Callable[[DataFrame, Sequence[int]], DataFrame]
"""Turns input into the table's rows of these partitions."""


class StepLoop:
    """One host's job on one table: see `run`. Only one thread may use it at a time."""

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        table: FencedTable,
        source: StepSource,
        transform: Transform,
        *,
        longest: int = 1,
        until: int | None = None,
        once: bool = False,
        reopen: bool = True,
        partitions: Collection[int] | None = None,
    ) -> None:
        """`longest` bounds a step. `partitions` are those of this host that the job is for, by default all.

        With `until`, the job is done when the whole table has reached it; with `once`, when this host's partitions have
        everything that the input had at the start; otherwise it never ends. With `reopen=False` it also ends, not done,
        when its share was revoked or has grown."""
        self._spark, self._client, self._table = spark, client, table
        self._source, self._transform, self._longest = source, transform, longest
        self._once, self._reopen, self._partitions = once, reopen, partitions
        self._tips = [table.first_batch - 1] * source.lanes()
        self._ends = [until] * source.lanes()
        if once:
            self._look()
            self._ends = list(self._tips)

    def run(self) -> bool:
        """Land steps until the job ends; return whether it is done. Raises LeaseLost, Refused and NoAgent."""
        while not self._is_whole():
            try:
                with self._client.share(self._partitions, timeout=SHARE_MAX) as share, guarded(self._spark, share):
                    is_done = self._work(share)
            except NotLeading:  # Other hosts have all partitions. None of ours has moved, so nothing is left undone.
                if self._once:
                    return True
                continue
            if is_done or not self._reopen:
                return is_done
        return True

    def _work(self, share: Share) -> bool:
        """Land steps until the share should be closed; return whether the job is done."""
        writer = StepWriter(self._table, share)
        while not (share.ending or share.more):
            share.check()
            self._look()
            step = next_step(writer.progress, self._tips, longest=self._longest)
            if step is not None:
                writer.land(step, self._transform(self._source.frame(step), step.partitions))
            elif self._has_ended(writer.progress) if self._once else self._is_whole():
                return True
            else:
                share.ending.wait(LOOK_EVERY)
        return False

    def _look(self) -> None:
        for lane, known in enumerate(self._tips):
            tip, end = self._source.tip(lane, known), self._ends[lane]
            self._tips[lane] = tip if end is None else min(tip, end)

    def _is_whole(self) -> bool:
        """Whether the whole table has reached the end of the job."""
        if self._once or None in self._ends:
            return False
        return self._has_ended({partition: at.batch for partition, at in self._table.progress().items()})

    def _has_ended(self, progress: Mapping[int, int]) -> bool:
        ends = [(at, self._ends[partition % len(self._ends)]) for partition, at in progress.items()]
        return all(end is not None and at >= end for at, end in ends)
