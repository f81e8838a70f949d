"""The member for programs with an event loop: the same API, and waiting never blocks the loop.

    async with AsyncMember(config, on_event=handler) as member:        opens in a thread; the handler may be a coroutine
        async with member.leading("nightly") as lease:                 waits until it leads
            await work(term=lease.term)                                cancelled immediately if the lease is lost,
                                                                       and then the block raises LeaseLost

    membership --notified, on any thread--> Bridge --call_soon_threadsafe--> the loop: waiters wake, blocks look

The member itself still runs on threads of its own: on the loop, it would lose its leases whenever the loop is busy for
that long. Only the program's part, its handler and its blocks, runs on the loop. Handlers run there one after another,
except for Fenced, which may arrive while another handler is being awaited. A handler that is a plain function must not
block.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from inspect import isawaitable
from math import inf
from types import TracebackType
from typing import Any, Self, TypeVar

from neli_router.config.config import Config
from neli_router.core.clock import require_timeout
from neli_router.core.closing import AsyncClosing, anew
from neli_router.core.keyspace import Role
from neli_router.errors import Closed, ConfigError, LeaseLost, NeliError
from neli_router.member.background import RUN_MIN, BaseBackground, require_task
from neli_router.member.barrier import Period
from neli_router.member.cancellation import LeaseCancellation
from neli_router.member.engine import BREAK_OFF_MAX, FLUSH_MAX, START_MAX, Engine
from neli_router.member.leases import AsyncRevocation
from neli_router.member.member import BaseMember, Member
from neli_router.member.membership import Attempt, MemberLease
from neli_router.member.operator import BaseOperator
from neli_router.member.runtime import WAIT_MAX
from neli_router.member.wishes import WISH_MAX, CheckedWish
from neli_router.protocols.protocol import Event
from neli_router.router.async_router import AsyncRouter

__all__ = [
    "AsyncBackground",
    "AsyncBlock",
    "AsyncLease",
    "AsyncMember",
    "AsyncOperator",
    "AsyncTask",
    "Bridge",
    "opened_in_thread",
]

Opened = TypeVar("Opened", bound=Member)

TURNS_MAX = 1000
"""How many turns of a test's clock, each a heartbeat long, a wait takes while the loop's other tasks run in between."""


class Bridge:
    """From a member's threads to one event loop. Everything except `wake` belongs to that loop."""

    def __init__(self, engine: Engine, busy: "list[asyncio.Task[Any] | None]") -> None:
        self.engine, self.loop = engine, asyncio.get_running_loop()
        self.blocks: set[LeaseCancellation] = set()
        self.busy = busy
        """The tasks that the member's end would wait for: one for each block and each handler."""
        self.runners: set[asyncio.Task[None]] = set()
        """The tasks of backgrounds: the loop itself keeps no task alive."""
        self._changed = asyncio.Event()
        """Never stays set: it wakes those that wait for it at a change."""
        self._is_waking = False
        engine.membership.changed.tell(self.wake)

    def disconnect(self) -> None:
        self.engine.membership.changed.forget(self.wake)

    def wake(self) -> None:
        """Report that something changed. May be called from any thread; never waits, never raises."""
        if not self._is_waking:
            self._is_waking = True  # One call is enough until the loop has handled it.
            with contextlib.suppress(RuntimeError):  # The loop is closed, so no task waits on it any longer.
                self.loop.call_soon_threadsafe(self._awake)

    async def until(self, ready: Callable[[], bool], timeout: float | None) -> bool:  # noqa: ASYNC109 - see `wait`.
        """Wait for `ready()`, at most `timeout` seconds; return whether it became true. This is `wait` for a loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("an AsyncMember belongs to the event loop that opened it, and this is another one")
        self.engine.membership.require_own_process()
        if self.engine.runtime.is_turned:
            return await self._turned(ready, timeout)
        give_up_at = inf if timeout is None else self.loop.time() + timeout
        while not ready():
            patience = min(WAIT_MAX, give_up_at - self.loop.time())
            if patience <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._changed.wait()
        return True

    async def _turned(self, ready: Callable[[], bool], timeout: float | None) -> bool:  # noqa: ASYNC109 - as above.
        """The same in a test, where waiting turns the clock: in small steps, so that other tasks run in between."""
        runtime, changed = self.engine.runtime, self.engine.membership.changed
        give_up_at = inf if timeout is None else runtime.clock() + timeout
        for _ in range(TURNS_MAX):
            if runtime.wait(changed, ready, min(self.engine.beat_every, give_up_at - runtime.clock())):
                return True
            if runtime.clock() >= give_up_at:
                return False
            await asyncio.sleep(0)
        return runtime.wait(changed, ready, timeout)  # Without a timeout, this raises an error if the wait fails.

    async def lead(
        self,
        partition: int,
        timeout: float | None,  # noqa: ASYNC109 - as above.
        give_up: Callable[[], bool] = lambda: False,
        tell: Callable[[int], None] | None = None,
    ) -> Period | None:
        """`Membership.lead` for a loop. A cancellation cannot strike between entering and returning."""
        require_timeout(timeout)
        attempt = Attempt(self.engine.membership, partition, give_up, tell)
        await self.until(attempt.is_over, timeout)
        return attempt.outcome()

    def _awake(self) -> None:
        self._is_waking = False
        self._changed.set()
        self._changed.clear()
        for block in list(self.blocks):
            block.look()


class AsyncLease(MemberLease):
    """A Lease whose revocation can be awaited. Its other methods are plain calls: they have nothing to wait for."""

    __slots__ = ("_bridge",)

    def __init__(self, bridge: Bridge, period: Period, role: Role) -> None:
        super().__init__(bridge.engine.membership, period, role)
        self._bridge = bridge

    @property
    def revoked(self) -> AsyncRevocation:
        """Whether it is time to finish: true once another member is to get the partition, or has it."""
        return AsyncRevocation(self._is_revoked, self._bridge.until)


class AsyncBlock:
    """`async with member.leading(role) as lease`: one task's block of work, cancelled when its lease is lost."""

    def __init__(
        self,
        bridge: Bridge,
        role: Role,
        timeout: float | None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._bridge, self._role, self._timeout, self._give_up = bridge, role, timeout, give_up
        self._partition = bridge.engine.config.layout.partition_of_role(role)

    async def __aenter__(self) -> AsyncLease:
        tell = self._bridge.engine.tell_waiting
        period = await self._bridge.lead(self._partition, self._timeout, self._give_up, tell)
        if period is None:
            raise self._bridge.engine.membership.not_leading(self._partition, self._timeout)
        self._period, lease = period, AsyncLease(self._bridge, period, self._role)
        self._cancellation = LeaseCancellation(lease)
        self._bridge.blocks.add(self._cancellation)
        self._bridge.busy.append(self._cancellation.task)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bridge.blocks.discard(self._cancellation)
        self._bridge.busy.remove(self._cancellation.task)
        try:
            self._cancellation.end(kind, error)
        finally:
            self._bridge.engine.membership.leave(self._period)


AsyncTask = Callable[[AsyncLease], Awaitable[object]]
"""The function to run; it gets its lease. Its result is ignored."""


class AsyncBackground(BaseBackground):
    """The handle of a background task. Belongs to the loop; the task may use it, too. See Background for the rest."""

    def __init__(self, bridge: Bridge, task: AsyncTask, role: Role, *, interval: float) -> None:
        super().__init__(bridge.engine, role, interval)
        self._bridge, self._task = bridge, task
        self._runner = asyncio.create_task(self._run(), name=f"{bridge.engine.name}-background")
        bridge.runners.add(self._runner)
        self._runner.add_done_callback(bridge.runners.discard)

    @property
    def running(self) -> bool:
        return not self._runner.done()

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the same as in Background.
        done, _ = await asyncio.wait({self._runner}, timeout=timeout)
        if self._error is not None:
            raise anew(self._error)
        return bool(done)

    async def _run(self) -> None:
        try:
            while not self._is_over():
                try:
                    async with AsyncBlock(self._bridge, self._role, None, lambda: self._stopping) as lease:
                        await self._run_once(lease)
                except LeaseLost:
                    self._note("warning", "background.lease_lost")
                await self._bridge.until(self._is_over, max(RUN_MIN, self._interval))
        except NeliError:
            pass  # The task was stopped, or the member has ended; if by an error, `finally` takes that error.
        finally:
            self._error = self._error or self._membership.error
            self._engine.neglect(self._look)

    async def _run_once(self, lease: AsyncLease) -> None:
        self._began = self._membership.clock()
        try:
            await self._task(lease)
        except Exception as error:
            if isinstance(error, LeaseLost) and not lease.holds():
                raise
            self._fail(error)
        finally:
            self._began = inf


class AsyncOperator(BaseOperator[Coroutine[Any, Any, None]]):
    """The operator actions of an AsyncMember. See Operator for everything not documented here."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge.engine)
        self._bridge = bridge

    async def wish(self, wish: CheckedWish | None, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - the same as in Operator.
        if wish is None:
            return
        with contextlib.closing(self._steps(wish, timeout)) as steps:
            for ready, seconds in steps:
                await self._bridge.until(ready, seconds)


class AsyncMember(BaseMember, AsyncClosing):
    """A Member for one event loop; all of it belongs to that loop. See Member for everything not documented here.

    `source` is a configuration, or an existing member, which keeps its own handler. Nothing is opened before `open`,
    which `async with` calls; until then, everything else raises Closed.
    """

    def __init__(
        self, source: Config | Member | str, *, on_event: Callable[[Event], object] | None = None, wait: bool = False
    ) -> None:
        if isinstance(source, Member) and on_event is not None:
            raise ConfigError(["a member that exists has its own handler of events: give on_event to where it is made"])
        self._source = source if isinstance(source, Member) else Config.given(source)
        self._on_event, self._wait = on_event, wait
        self._busy: list[asyncio.Task[Any] | None] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parts: tuple[Member, Bridge, AsyncRouter] | None = None

    async def open(self, *, timeout: float = START_MAX) -> Self:  # noqa: ASYNC109 - the same as in Member.
        """Join, in a thread. Waits and raises like Member's constructor."""
        if self._parts is None:
            self._loop = asyncio.get_running_loop()
            member = self._source if isinstance(self._source, Member) else await self._opened(self._source, timeout)
            self._parts = member, Bridge(member.engine, self._busy), AsyncRouter(member.router)
        return self

    # Leading

    def leading(self, role: Role, *, timeout: float | None = None) -> AsyncBlock:
        """For `async with`: a block of work that is cancelled when its lease is lost, and then raises LeaseLost."""
        return AsyncBlock(self._bridge, role, timeout)

    def lease(self, role: Role) -> AsyncLease | None:
        """The lease of `role`, if this member leads it now. A handover does not wait for your work: see `leading`."""
        bridge, membership = self._bridge, self.engine.membership
        membership.require_alive()
        period = membership.period(self.layout.partition_of_role(role))
        return None if period is None else AsyncLease(bridge, period, role)

    async def pulse(self, timeout: float, *, role: Role = 0) -> bool:  # noqa: ASYNC109 - the same as in Member.
        """Whether this member leads `role`; if it does not, wait up to `timeout` seconds for that."""
        period = await self._bridge.lead(self.layout.partition_of_role(role), timeout)
        if period is not None:
            self.engine.membership.leave(period)
        return period is not None

    def background(self, task: AsyncTask, *, role: Role = 0, interval: float = 1.0) -> AsyncBackground:
        """Await `task(lease)` while this member leads `role`, again `interval` seconds after each run; see Member.

        A run whose lease is lost is cancelled immediately.
        """
        require_task(task, interval)
        self.engine.membership.require_open()
        return AsyncBackground(self._bridge, task, role, interval=interval)

    @property
    def operator(self) -> AsyncOperator:
        """Operator actions: drain, pin, weigh, load, rebalance ..."""
        return AsyncOperator(self._bridge)

    async def wait_ready(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the same as in Member.
        """Wait until this member's first share has settled; see Member."""
        bridge, membership = self._bridge, self.engine.membership
        with membership.watching_state():
            if not await bridge.until(membership.is_ready, timeout):
                raise membership.not_ready(timeout)
        membership.require_open()

    async def changes(self) -> AsyncIterator[Mapping[int, int]]:
        """The partitions that this member leads, now and after each change, for as long as it lives; see Member."""
        bridge, membership, seen = self._bridge, self.engine.membership, None
        while not membership.outcome():
            if (led := membership.led()) != seen:
                seen = led
                yield led
            await bridge.until(partial(membership.differs, seen), None)

    # State

    @property
    def router(self) -> AsyncRouter:
        """A router fed by what this member reads anyway. Closed with the member."""
        return self._opened_parts[2]

    @property
    def engine(self) -> Engine:
        return self._bridge.engine

    @property
    def closed(self) -> bool:
        """Whether this member has ended, for any reason."""
        return self._parts is not None and self._parts[0].closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended this member; None while it is alive, and if it was closed."""
        return None if self._parts is None else self._parts[0].error

    # The end

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the same as in Member.
        """Leave the group in good order; see Member. In a handler or a block of this member, only ask it to leave."""
        if self._parts is None or self.engine.membership.void is not None:
            return
        engine, until = self._bridge.engine, self._bridge.until
        engine.ask_close()
        if asyncio.current_task() in self._busy:
            return
        if not await until(lambda: engine.membership.is_over, timeout):
            engine.ask_close(at_once=True)
            await until(lambda: engine.membership.is_over, BREAK_OFF_MAX)
        await until(lambda: engine.journal.lane.is_over, FLUSH_MAX)
        if engine.published is not None:
            await asyncio.to_thread(engine.published.wait, FLUSH_MAX)
        self._bridge.disconnect()

    async def wait(self, *, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the same as in Member.
        """Wait, at most `timeout` seconds, until this member has ended; return whether it has. Raises what ended it."""
        membership = self.engine.membership
        await self._bridge.until(lambda: membership.is_over, timeout)
        return membership.outcome()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if kind is None and self.engine.membership.void is None:
            self.engine.membership.outcome()

    def __repr__(self) -> str:
        return f"<AsyncMember: {'not open' if self._parts is None else repr(self._parts[0])}>"

    # How

    @property
    def _opened_parts(self) -> tuple[Member, Bridge, AsyncRouter]:
        if self._parts is None:
            raise Closed(
                "an open member was needed", "this one was not opened yet", "use `async with`, or await `open()`"
            )
        return self._parts

    @property
    def _bridge(self) -> Bridge:
        return self._opened_parts[1]

    async def _opened(self, config: Config, timeout: float) -> Member:  # noqa: ASYNC109 - as above.
        tell = None if self._on_event is None else self._tell
        return await opened_in_thread(partial(Member, config, on_event=tell, timeout=timeout, wait=self._wait))

    def _tell(self, event: Event) -> None:
        """On a thread of the member: let the loop handle `event`, and wait until it has."""
        assert self._loop is not None, "a member that is not open has no events"
        handling = self._handle(event)
        try:
            handled = asyncio.run_coroutine_threadsafe(handling, self._loop)
        except RuntimeError:
            handling.close()  # The loop is closed: the program has ended, and so has this member.
            raise
        handled.result()

    async def _handle(self, event: Event) -> None:
        assert self._on_event is not None, "without a handler, no event is delivered"
        task = asyncio.current_task()
        self._busy.append(task)
        try:
            answer = self._on_event(event)
            if isawaitable(answer):
                await answer
        finally:
            self._busy.remove(task)


async def opened_in_thread(make: Callable[[], Opened]) -> Opened:
    """The member that `make` opens, which may take a while. If this is cancelled, that member leaves again."""
    opening = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread goes on, and nothing would close the member that it creates.
        opening.add_done_callback(_close_orphan)
        raise


def _close_orphan(opening: "asyncio.Future[Opened]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().engine.ask_close()
