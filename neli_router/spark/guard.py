"""The guard: watches the lease of a Spark job in a driver, and ends the job immediately when the lease is lost.

    with client.share() as share, guarded(spark, share) as guard:
        for batch in batches:
            if guard.ending:                 another member is to take a partition: finish, and leave
                break
            guard.check()                    raises LeaseLost once another member may act
            work(batch)                      its Spark jobs are cancelled if the lease is lost meanwhile

    WATCHING --revoked--> ENDING ---------------------------- the block ends --> OVER
        |                   |    '-- streaming queries end after their current batch
        '--fenced, or run out--> LOST: jobs are cancelled and queries stopped, again and again
                                   |-- the block ends, however --> LeaseLost
                                   '-- it does not, for END_MAX --> the process ends, with exit code 75

The guard learns of a loss from the client's thread, as soon as the agent reports it, and notices an expired lease by
its own clock: the agent may be dead, or this process may have been stopped. A separate thread does nothing else, so a
driver that hangs in Spark, or a Spark that does not answer, cannot keep it from ending the process.

**Cancelling is only a courtesy.** A job may swallow the error, a task may already have written, a stopped process knows
nothing. So everything that the job writes carries its term, and the fence of the table or the database refuses it
(`neli_router.fence`). The guard only makes a lost job stop soon, and leave the machine to others.

**Which jobs.** Measured on Spark 4.2, cancelling from a thread other than the job's:

    SparkSession.interruptTag       nothing, silently: in classic, it knows only the tags of its own thread
    SparkContext.cancelJobsWithTag  SQL and RDDs, of the tagged thread and of threads that inherit from it
    SparkSession.interruptAll       SQL of the session, from any thread; no RDDs; the only way over Connect; it also
                                    stops all streaming queries of the session

So the guard uses both: it tags the block's thread, and also interrupts the whole session. Give the guard a session of
its own (`spark.newSession()`) if other work must go on. A job on RDDs in a thread of a plain pool only stops when the
process ends; start such threads as `pyspark.InheritableThread`. Anything started after the loss is cancelled, too, for
as long as the block lasts. Over Connect, an operation that is cancelled while the server still plans it ends for the
client, but was seen to begin and go on in the server all the same: nothing on this side can reach it any longer, and it
keeps its cores. (Spark 4.2.1 does so on its own, if `interruptAll` comes within milliseconds of the operation.)

A program that holds Python's lock forever can only be ended from outside: `neli run -- spark-submit ...` does that, for
a role.

`run_job` turns a job into a program. A job that opens blocks again and again must report itself whether it is done: it
may have gone on with what was left, or others may have done the rest.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from neli_router.agent.client.leases import AgentLease, Share
from neli_router.core import logs
from neli_router.core.clock import host_clock
from neli_router.core.closing import anew
from neli_router.core.exit_codes import EXIT_DONE, EXIT_LOST, EXIT_NO_AGENT, EXIT_REFUSED, EXIT_USAGE, end_now
from neli_router.errors import ConfigError, LeaseLost, NeliError, NoAgent
from neli_router.fence import Refused
from neli_router.spark.sessions import context_of

__all__ = ["END_MAX", "Held", "LeaseGuard", "guarded", "run_job"]

END_MAX = 30.0
"""Seconds from the loss until a block that did not end ends the process. A longer time lets slow `finally` blocks clean
up, and lets a zombie use the machine for longer; its writes are refused all the same."""

AGAIN = 0.2
"""Seconds between two rounds of cancelling, and between two looks at a query's batch."""

JOIN_MAX = 1.0
"""Seconds to wait, when a block ends, for the guard's threads. They may hang in a Spark that does not answer."""


Held = AgentLease | Share
"""The right that a guard watches: a lease from `client.leading(role)` or `client.lease(role)`, or a share."""

_last: "LeaseGuard | None" = None
"""The last guard that ended in this process, for `run_job`."""


def guarded(spark: SparkSession, held: Held, *, end_within: float | None = END_MAX) -> "LeaseGuard":
    """A block of work on `spark` under `held`: `with guarded(spark, share) as guard`.

    Raises LeaseLost before anything begins if `held` does not hold now, and at the end of a block that lost it, instead
    of the error that the block raised. `end_within` says after how long a lost block that goes on ends the process;
    None, for a notebook, means never.
    """
    return LeaseGuard(spark, held, end_within)


class LeaseGuard:
    """The guard of one block. `check` and `ending` may be called from any thread."""

    def __init__(self, spark: SparkSession, held: Held, end_within: float | None) -> None:
        self._spark, self._held, self._end_within = spark, held, end_within
        self._tag = f"neli-guard-{uuid4().hex}"
        self._others: set[str] = set()
        """Streaming queries that were there before the block."""
        self._stopping: set[str] = set()
        self._news, self._over = threading.Event(), threading.Event()
        self._lost: NeliError | None = None
        self._threads: list[threading.Thread] = []
        self.was_revoked = False
        """Whether the block ended in time after it was asked to."""

    @property
    def ending(self) -> bool:
        """Whether it is time to finish and leave the block: another member is to take a partition, or may have taken
        it."""
        held = self._held
        return self._lost is not None or bool(held.ending if isinstance(held, Share) else held.revoked)

    def check(self) -> None:
        """Raise LeaseLost if the lease was lost. Costs about a microsecond: call it before each job, and in long
        loops."""
        if (lost := self._lost) is not None:
            raise anew(lost)
        self._held.check()

    def __enter__(self) -> Self:
        self._held.check()
        self._block = threading.get_ident()
        self._others = {query.id for query in self._spark.streams.active}
        if (context := context_of(self._spark)) is not None:
            context.addJobTag(self._tag)
        self._forget = self._held.on_news(self._news.set)
        self._start(self._watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _last
        _last, was_ending = self, self.ending
        self._over.set()
        self._news.set()
        self._forget()
        give_up_at = host_clock() + JOIN_MAX
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - host_clock()))
        with suppress(Exception):  # The block may have stopped its Spark.
            if (context := context_of(self._spark)) is not None:
                context.removeJobTag(self._tag)
        self.was_revoked = was_ending and self._lost is None
        if self._lost is None and not self._held.holds():
            self._lost = self._held.lost()
        # Ctrl-C stays Ctrl-C. An error of ours already says what happened.
        if self._lost is not None and isinstance(error, Exception | SystemExit | None) and not _is_loss(error):
            raise anew(self._lost) from error

    # The lease: a thread that does not call Spark

    def _watch(self) -> None:
        held, is_finishing = self._held, False
        while held.holds() and not self._over.is_set():
            if self.ending and not is_finishing:
                is_finishing = True
                self._start(self._finish)
            self._news.wait(held.remaining())
            self._news.clear()
        if self._over.is_set():
            return
        self._lost = held.lost()
        logs.logger().error("guard.lost", member=held.member, why=self._lost.found)
        self._start(self._cut)
        if not self._over.wait(self._end_within):
            late = f"THE JOB DID NOT STOP within {self._end_within:g} s of this, so its process ends"
            end_now(late, lost=self._lost, hanging=self._block)

    # Spark: threads that may hang

    def _cut(self) -> None:
        """Cancel everything that runs, until the block ends: work that starts after the loss is useless, too."""
        while not self._over.is_set():
            _attempt(self._cancel_jobs)
            _attempt(self._stop_queries)
            self._over.wait(AGAIN)

    def _cancel_jobs(self) -> None:
        if (context := context_of(self._spark)) is not None:
            context.cancelJobsWithTag(self._tag)
        self._spark.interruptAll()

    def _stop_queries(self) -> None:
        for query in self._queries():
            self._stop(query)

    def _finish(self) -> None:
        """Let each query finish its current batch, then stop it."""
        begun: dict[str, object] = {}

        def look() -> None:
            for query in self._queries():
                progress = query.lastProgress
                batch = None if progress is None else progress["batchId"]
                if not query.status["isTriggerActive"] or batch != begun.setdefault(query.id, batch):
                    self._stop(query)

        while not self._over.is_set() and self._lost is None:
            _attempt(look)
            self._over.wait(AGAIN)

    def _stop(self, query: StreamingQuery) -> None:
        # In a separate thread: stopping waits for the function of `foreachBatch`, which may hang.
        if query.id not in self._stopping:
            self._stopping.add(query.id)
            threading.Thread(target=_stop, args=(query,), name="neli-guard-stop", daemon=True).start()

    def _queries(self) -> list[StreamingQuery]:
        return [query for query in self._spark.streams.active if query.id not in self._others]

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"neli-guard{target.__name__}", daemon=True)
        self._threads.append(thread)
        thread.start()


def run_job(job: Callable[[], object], *, end_within: float | None = END_MAX) -> NoReturn:
    """Run `job` and end the process: the last line of a program for `spark-submit`, or for Python.

    `job` may return whether it is done, as True or False, like `StepLoop.run`. With any other result, it is done unless
    its last guarded block ended because it was asked to.

    0    the job is done
    1    it raised an error of its own; the traceback says where
    2    its configuration is not usable                    4    no agent answered
    5    another error of this library, such as of a ledger or a layout
    75   its lease was lost, a fence refused it as deposed, or it ended because partitions moved: run it again

    The reason is on standard error. A thread that goes on after a loss holds the process up for `end_within` at most.
    """
    code = _code_of(job)
    if code == EXIT_LOST and end_within is not None:
        late = f"A THREAD OF THE JOB WENT ON for {end_within:g} s, so its process ends"
        timer = threading.Timer(end_within, end_now, (late,))
        timer.daemon = True
        timer.start()
    sys.exit(code)


def _code_of(job: Callable[[], object]) -> int:
    try:
        answer = job()
    except NeliError as error:
        sys.stderr.write(f"neli: {type(error).__name__}: {error}\n")
        if _is_loss(error):
            return EXIT_LOST
        if isinstance(error, NoAgent):
            return EXIT_NO_AGENT
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_REFUSED
    is_done = answer if isinstance(answer, bool) else _last is None or not _last.was_revoked
    if not is_done:
        sys.stderr.write("neli: the job ended before it was done, because partitions moved: run it again\n")
    return EXIT_DONE if is_done else EXIT_LOST


def _is_loss(error: BaseException | None) -> bool:
    return isinstance(error, LeaseLost | Refused)


def _attempt(act: Callable[[], None]) -> None:
    """Call Spark; failures do not matter, because it is tried again. A Spark that is gone, or going, raises
    anything."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - the time limit of `_watch` still applies.
        logs.logger().warning("guard.cannot_ask_spark", error=type(error).__name__)


def _stop(query: StreamingQuery) -> None:
    with suppress(Exception):  # The query, or its Spark, has already ended.
        query.stop()
