"""The member for programs with an event loop: the same API, and waiting never blocks the loop.

    async with AsyncMember(config, on_event=handler) as member:        opens in a thread; the handler may be a coroutine
        async with member.leading("nightly") as lease:                 waits until it leads
            await work(term=lease.term)                                cancelled immediately if the lease is lost,
                                                                       and then the block raises LeaseLost

The member itself still runs on threads of its own: on the loop, it would lose its leases whenever the loop is busy for
that long. Only the program's part, its handler and its blocks, runs on the loop. Handlers run there one after another,
except for Fenced, which may arrive while another handler is being awaited. A handler that is a plain function must not
block.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from inspect import isawaitable
from typing import Any, Self

from neli_router.config.config import Config
from neli_router.core.closing import AsyncClosing
from neli_router.core.keyspace import Role
from neli_router.errors import Closed, ConfigError
from neli_router.member.async_leading import AsyncBackground, AsyncBlock, AsyncLease, AsyncTask, Bridge
from neli_router.member.background import require_task
from neli_router.member.engine import BREAK_OFF_MAX, FLUSH_MAX, START_MAX, Engine
from neli_router.member.member import BaseMember, Member
from neli_router.member.operator import BaseOperator
from neli_router.member.wishes import WISH_MAX, CheckedWish
from neli_router.protocols.protocol import Event
from neli_router.router.async_router import AsyncRouter

__all__ = ["AsyncMember", "AsyncOperator"]


class AsyncOperator(BaseOperator[Coroutine[Any, Any, None]]):
    """The operator actions of an AsyncMember. See Operator for everything not documented here."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge.engine)
        self._bridge = bridge

    async def wish(self, wish: CheckedWish | None, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - the same as in Operator.
        if wish is None:
            return
        with self._wishing(wish, timeout) as attempt:
            if await self._bridge.until(attempt.is_due, timeout):
                await self._bridge.until(attempt.is_over, attempt.say())


class AsyncMember(BaseMember, AsyncClosing):
    """A Member for one event loop; all of it belongs to that loop. See Member for everything not documented here.

    `source` is a configuration, or an existing member, which keeps its own handler. Nothing is opened before `open`,
    which `async with` calls; until then, everything else raises Closed.
    """

    def __init__(self, source: Config | Member | str, *, on_event: Callable[[Event], object] | None = None) -> None:
        if isinstance(source, Member) and on_event is not None:
            raise ConfigError(["a member that exists has its own handler of events: give on_event to where it is made"])
        self._source = source if isinstance(source, Member) else Config.given(source)
        self._on_event = on_event
        self._busy: list[asyncio.Task[Any] | None] = []
        self._backgrounds: set[AsyncBackground] = set()
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
        background = AsyncBackground(self._bridge, task, role, interval=interval)
        self._backgrounds.add(background)  # The loop itself keeps no task alive.
        background.on_end(self._backgrounds.discard)
        return background

    @property
    def operator(self) -> AsyncOperator:
        """Operator actions: drain, pin, weigh, load, rebalance ..."""
        return AsyncOperator(self._bridge)

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
        return self._parts is not None and self._member.closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended this member; None while it is alive, and if it was closed."""
        return None if self._parts is None else self._member.error

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
        self._bridge.disconnect()

    async def await_closed(self, *, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the same as in Member.
        """Wait, at most `timeout` seconds, until this member has ended; return whether it has. Raises what ended it."""
        membership = self.engine.membership
        await self._bridge.until(lambda: membership.is_over, timeout)
        return membership.outcome()

    async def __aenter__(self) -> Self:
        return await self.open()

    def __repr__(self) -> str:
        return f"<AsyncMember: {'not open' if self._parts is None else repr(self._member)}>"

    # How

    @property
    def _opened_parts(self) -> tuple[Member, Bridge, AsyncRouter]:
        if self._parts is None:
            raise Closed(
                "an open member was needed", "this one was not opened yet", "use `async with`, or await `open()`"
            )
        return self._parts

    @property
    def _member(self) -> Member:
        return self._opened_parts[0]

    @property
    def _bridge(self) -> Bridge:
        return self._opened_parts[1]

    async def _opened(self, config: Config, timeout: float) -> Member:  # noqa: ASYNC109 - as above.
        make = partial(Member, config, on_event=None if self._on_event is None else self._tell, timeout=timeout)
        opening = asyncio.get_running_loop().run_in_executor(None, make)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on, and nothing would close the member that it creates.
            opening.add_done_callback(_close_orphan)
            raise

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


def _close_orphan(opening: "asyncio.Future[Member]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().engine.ask_close()
