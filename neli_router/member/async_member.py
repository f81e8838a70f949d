"""The member for programs with an event loop: the same names, and nothing that waits holds up the loop.

    async with AsyncMember(config, on_event=handler) as member:        opens in a thread; the handler may be a coroutine
        async with member.leading("nightly") as lease:                 waits until it leads
            await work(term=lease.term)                                cancelled at once if the lease is lost,
                                                                       and then the block raises LeaseLost

The member itself still lives on threads of its own: it would lose its leases to a loop that is busy for as long. Only
the program's part, its handler and its blocks, is on the loop. Handlers run there one after another, but for Fenced,
which may come while another one is awaited; a plain function must not block there.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Self

from neli_router.config.config import Config
from neli_router.core.closing import AsyncClosing
from neli_router.core.keyspace import Layout, Role
from neli_router.errors import Closed, ConfigError
from neli_router.hosts.process import ProcessMark
from neli_router.member import wishes
from neli_router.member.async_background import AsyncBackground, AsyncTask
from neli_router.member.async_leading import AsyncBlock, AsyncLease, Bridge
from neli_router.member.background import require_task
from neli_router.member.engine import BREAK_OFF_MAX, FLUSH_MAX, START_MAX
from neli_router.member.member import Member
from neli_router.member.wishes import WISH_MAX, CheckedWish
from neli_router.protocols.induction.fold import State
from neli_router.protocols.protocol import Event
from neli_router.router.async_router import AsyncRouter

__all__ = ["AsyncMember"]


class AsyncMember(AsyncClosing):
    """A Member for one event loop, to which all of it belongs. Member says all that is not said here.

    `source` is a configuration, or a member that exists, which keeps its own handler. Nothing is opened before `open`,
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
        """Join, in a thread. Waits, and raises, as Member's constructor does."""
        if self._parts is None:
            self._loop = asyncio.get_running_loop()
            member = self._source if isinstance(self._source, Member) else await self._opened(self._source, timeout)
            self._parts = member, Bridge(member.engine, self._busy), AsyncRouter(member.router)
        return self

    # Leading

    def leading(self, role: Role, *, timeout: float | None = None) -> AsyncBlock:
        """`async with` it: a block of work, which is cancelled when its lease is lost and then raises LeaseLost."""
        return AsyncBlock(self._bridge, role, timeout)

    def lease(self, role: Role) -> AsyncLease | None:
        """The lease of `role`, if this member leads it now. Its handover does not wait for the work: see `leading`."""
        bridge, membership = self._bridge, self._bridge.engine.membership
        membership.require_alive()
        grant = membership.grant(self.layout.partition_of_role(role))
        return None if grant is None else AsyncLease(bridge, grant, role)

    @property
    def led(self) -> Mapping[int, int]:
        """Partition -> term, for all that this member leads now."""
        return self._member.led

    async def pulse(self, timeout: float, *, role: Role = 0) -> bool:  # noqa: ASYNC109 - the same as in Member.
        """Whether this member leads `role`; if not, waits up to `timeout` seconds for it."""
        grant = await self._bridge.lead(self.layout.partition_of_role(role), timeout)
        if grant is not None:
            self._bridge.engine.membership.leave(grant)
        return grant is not None

    def pledge(self, seconds: float, *, processes: Sequence[ProcessMark] = ()) -> None:
        """Before another process is given a lease of this member; see Member."""
        self._member.pledge(seconds, processes=processes)

    def background(self, task: AsyncTask, *, role: Role = 0, interval: float = 1.0) -> AsyncBackground:
        """Await `task(lease)` whenever this member leads `role`, `interval` seconds after each end; see Member.

        A run whose lease is lost is cancelled at once.
        """
        require_task(task, interval)
        self._member.require_open()
        background = AsyncBackground(self._bridge, task, role, interval=interval)
        self._backgrounds.add(background)  # The loop itself keeps no task alive.
        background.on_end(self._backgrounds.discard)
        return background

    # What is known

    @property
    def name(self) -> str:
        return self._member.name

    @property
    def layout(self) -> Layout:
        return self._member.layout

    @property
    def incarnation(self) -> str:
        """The identity of this life: another after each start, and after having been expired."""
        return self._member.incarnation

    @property
    def router(self) -> AsyncRouter:
        """Who owns what, fed by what this member reads anyway. Closed with the member."""
        return self._opened_parts[2]

    @property
    def state(self) -> State:
        """All that the ledger says, as far as it was read."""
        return self._member.state

    @property
    def closed(self) -> bool:
        """Whether this member has ended, for whatever reason."""
        return self._parts is not None and self._member.closed

    @property
    def error(self) -> BaseException | None:
        """The error that ended this member; None while it lives, and if it was closed."""
        return None if self._parts is None else self._member.error

    # Elections and wishes: see Member

    def rebalance(self) -> None:
        self._member.rebalance()

    def nominate(self, peer: str, partitions: Iterable[int] | None = None) -> None:
        self._member.nominate(peer, partitions)

    def shed(self, partitions: Iterable[int] | None = None) -> None:
        self._member.shed(partitions)

    @property
    def shedding(self) -> frozenset[int]:
        return self._member.shedding

    async def drain(self, name: str, *, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - the same as in Member.
        if self._bridge.engine.drains_itself:
            self._member.drain(name)  # Which waits for nothing here.
        else:
            await self.wish(wishes.drain(name), timeout)

    async def undrain(self, name: str, *, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - as above.
        if self._bridge.engine.drains_itself:
            self._member.undrain(name)
        else:
            await self.wish(wishes.undrain(name), timeout)

    async def pin(self, partition: int, name: str, *, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - as above.
        await self.wish(wishes.pin(partition, name, self.layout), timeout)

    async def unpin(self, partition: int, *, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - as above.
        await self.wish(wishes.unpin(partition, self.layout), timeout)

    async def weigh(self, name: str, weight: int | None, *, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - as above.
        await self.wish(wishes.weigh(name, weight), timeout)

    async def load(self, loads: Mapping[int, float], *, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - as above.
        await self.wish(wishes.load(loads, self.layout), timeout)

    async def wish(self, wish: CheckedWish, timeout: float = WISH_MAX) -> None:  # noqa: ASYNC109 - as above.
        """Make a wish of `neli_router.member.wishes`."""
        with self._bridge.engine.wishing(wish, timeout) as attempt:
            if await self._bridge.until(attempt.is_due, timeout):
                await self._bridge.until(attempt.is_over, attempt.say())

    # The end

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the same as in Member.
        """Leave the group in good order; see Member. In a handler or a block of this member, it only asks for that."""
        if self._parts is None or self._bridge.engine.membership.void is not None:
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
        """Wait until this member has ended, at most `timeout` seconds; whether it has. Raises what ended it."""
        membership = self._bridge.engine.membership
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
            # The thread goes on, and the member that it makes would never be closed.
            opening.add_done_callback(_close_orphan)
            raise

    def _tell(self, event: Event) -> None:
        """On a thread of the member: let the loop handle it, and wait for that."""
        assert self._loop is not None, "a member that is not open tells nothing"
        handling = self._handle(event)
        try:
            handled = asyncio.run_coroutine_threadsafe(handling, self._loop)
        except RuntimeError:
            handling.close()  # The loop is closed: the program is over, and so is this member.
            raise
        handled.result()

    async def _handle(self, event: Event) -> None:
        assert self._on_event is not None, "without a handler there is nothing to tell"
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
        opening.result().ask_close()
