"""Background: a task that runs again and again while this member leads its role.

    waiting --led--> running the task --returned--> pausing for `interval` --> waiting ...
                        |-- longer than a lease ----> warned about, once a run: it cannot be stopped from outside
                        |-- its lease was lost -----> waiting: the task should check its lease, and raise or return
                        '-- raised anything else ---> ended; `wait` raises it

Each run is a `leading` block: the handover of the role waits until it ends, and so does a member that is closing.
"""

from collections.abc import Callable
from math import inf

from neli_router.core.closing import anew
from neli_router.core.keyspace import Role
from neli_router.errors import Closed, ConfigError, LeaseLost, NeliError
from neli_router.member.barrier import Period
from neli_router.member.engine import Engine, place_of
from neli_router.member.membership import Lease

__all__ = ["RUN_MIN", "Background", "BaseBackground", "Task", "require_task"]

RUN_MIN = 0.001
"""The minimum time from one start to the next: a task without work and interval must not burn a core."""

Task = Callable[[Lease], object]
"""The function to run; it gets its lease. Its result is ignored."""


class BaseBackground:
    """The common part of both forms: how it is stopped, when it is over, how a run is watched and its end logged."""

    def __init__(self, engine: Engine, role: Role, interval: float) -> None:
        self._engine, self._membership = engine, engine.membership
        self._role, self._interval = role, interval
        self._partition = engine.config.layout.partition_of_role(role)
        self._stopping = False
        self._error: BaseException | None = None
        self._began = inf
        engine.oversee(self._look)

    def stop(self) -> None:
        """Start no further run. Does not wait for a run in progress; `wait` does."""
        self._stopping = True
        if self._membership.void is None:
            self._membership.notify()

    def _is_over(self) -> bool:
        membership = self._membership
        return self._stopping or self._error is not None or membership.closing or membership.is_over

    def _look(self, now: float) -> None:
        """Warn, once per run, that it takes longer than the lease. Called by the engine's thread, as ours is busy."""
        lease = self._engine.lease
        if now - self._began > lease:
            ran_for, self._began = now - self._began, inf
            self._note("warning", "background.overrun", ran_for=round(ran_for, 3), lease=lease)

    def _fail(self, error: BaseException) -> None:
        """Keep `error` for `wait`; the task does not run again."""
        self._error = error
        self._note("error", "background.failed", error=type(error).__name__, where=place_of(error))

    def _note(self, level: str, event: str, **fields: object) -> None:
        self._engine.journal.note(level, event, partition=self._partition, **fields)


def require_task(task: object, interval: object) -> None:
    """Raise ConfigError unless `task` can be run, and `interval` is a valid pause between runs."""
    problems = [] if callable(task) else [f"a task must be a function of one lease, got a {type(task).__name__}"]
    if not (isinstance(interval, int | float) and interval >= 0):
        problems.append(f"interval={interval!r:.40} must be a number of seconds, at least 0")
    if problems:
        raise ConfigError(problems)


class Background(BaseBackground):
    """The handle of a background task. May be shared between threads; the task may use it, too."""

    def __init__(self, engine: Engine, task: Task, role: Role, *, interval: float) -> None:
        super().__init__(engine, role, interval)
        self.name = f"{engine.name}-background"
        self._task = task
        self._next_at = -inf
        self._ended = self._running = False

    @property
    def running(self) -> bool:
        """Whether the task may run again: it was not stopped, has not failed, and the member is alive."""
        return not self._ended

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, at most `timeout` seconds, until the task will never run again; return whether that is so.

        Each call raises what the task raised, or what ended the member.
        """
        self._membership.wait(lambda: self._ended or self._membership.void is not None, timeout)
        self._membership.require_own_process()
        if self._error is not None:
            raise anew(self._error)
        return self._ended

    # The loop

    @property
    def deadline(self) -> float:
        # Without the role, it depends on what the other members do.
        can_run = not self._ended and not self._running and self._membership.period(self._partition) is not None
        return self._next_at if can_run else inf

    def run(self) -> None:
        while not self._ended:
            try:
                period = self._membership.lead(self._partition, None, lambda: self._stopping, self._engine.tell_waiting)
            except NeliError as error:
                self._end(None if isinstance(error, Closed) else error)
            else:
                self._run(period)
                self._membership.wait(self._is_over, self._next_at - self._membership.clock())

    def turn(self) -> bool:
        if self._ended or self._running:
            return False
        if self._is_over():
            self._end(self._membership.error)
            return True
        is_due = self._membership.clock() >= self._next_at
        periods = self._membership.enter([self._partition]) if is_due else []
        for period in periods:
            self._run(period)
        return bool(periods)

    def _run(self, period: Period | None) -> None:
        if period is None:
            self._end(None)
            return
        lease = Lease(self._membership, period, self._role)
        self._running, self._began = True, self._membership.clock()
        began = self._began
        try:
            with self._membership.working(period):
                self._task(lease)
                lease.check()
        except BaseException as error:
            if isinstance(error, LeaseLost) and not lease.holds():
                self._note("warning", "background.lease_lost", term=period.term)
            else:
                self._fail(error)
                self._end(error)
            if self._engine.runtime.is_turned and not isinstance(error, Exception):
                raise  # Ctrl-C, in a test.
        finally:
            self._running, self._began = False, inf
            self._next_at = max(began + RUN_MIN, self._membership.clock() + self._interval)

    def _end(self, error: BaseException | None) -> None:
        self._engine.neglect(self._look)
        self._error, self._ended = error, True
        self._membership.notify()
