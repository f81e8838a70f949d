"""Following on an event loop: the streams of an AsyncClient, and its blocks of work.

    agent --acquired, renewed, revoked, fenced--> a task --told, confirmed--> hold --> waiters, the block
      ^                                             |
      '------------------ lease? -------------------'

    block: RUNNING --lease lost or run out: task.cancel()--> CANCELLED --__aexit__--> LeaseLost
              '-- ended by itself --> the lease is checked once more

The task does what `Following` does on a thread. A timer looks when the lease is to end, because of that nobody is
told. Who asked for a cancellation takes it back, so that one from outside is never swallowed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from math import inf
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import httpx

from neli_router.agent.address import Address
from neli_router.agent.client import calls
from neli_router.agent.client.calls import Call, Events, event_of, no_agent
from neli_router.agent.client.endpoint import Line
from neli_router.agent.client.following import CONFIRM_MAX, PAUSE, hung_up
from neli_router.agent.client.leases import WAIT_MAX, AsyncAgentLease, Hold
from neli_router.closing import AsyncClosing
from neli_router.errors import NeliError, NoAgent
from neli_router.keyspace import Role

__all__ = ["AsyncAsker", "AsyncBlock", "AsyncStream", "idle"]

LOOK_MIN = 0.001
"""The least time between two looks at a lease that is about to end."""

Answer = TypeVar("Answer")


class AsyncAsker(Protocol):
    """What is needed of a client."""

    @property
    def address(self) -> Address: ...

    @property
    def closed(self) -> bool: ...

    async def call(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:  # noqa: ASYNC109 - as in Asker.
        """Ask, and decode the answer."""

    async def open(self, call: Call[Any]) -> httpx.Response:
        """Ask for a stream."""


class AsyncStream(AsyncClosing, Generic[Answer]):
    """The events of one request, as they come. `async for` waits for the next; `async with` closes it."""

    def __init__(self, client: AsyncAsker, call: Call[Answer]) -> None:
        self._client, self._call = client, call
        self._line: Line | None = None
        self._closed = False

    async def events(self) -> AsyncIterator[tuple[str, Answer]]:
        """Name and data of each. Ends when the stream does; raises NoAgent if it breaks."""
        response = await self._client.open(self._call)
        line = self._line = Line(response)
        events, trouble = Events(), None
        try:
            async for piece in response.aiter_raw():
                for name, content in events.feed(piece):
                    yield name, event_of(self._call, content, self._client.address)
        except (httpx.TransportError, httpx.StreamError, ValueError) as error:
            trouble = no_agent(self._client.address, error)
        finally:
            line.cut()
            await response.aclose()
        if trouble is not None and not (self._closed or self._client.closed):
            raise trouble

    async def __aiter__(self) -> AsyncIterator[Answer]:
        async for _, view in self.events():
            yield view

    async def close(self) -> None:
        """Want no more. Twice is fine."""
        self._closed = True
        if self._line is not None:
            self._line.cut()


class AsyncBlock:
    """`async with client.leading(role) as lease`: one task's block of work, cancelled when its lease is lost."""

    def __init__(self, client: AsyncAsker, role: Role, timeout: float | None) -> None:
        self._client, self._role, self._timeout = client, role, timeout
        self._call = calls.leadership(role)
        self.hold = Hold(role)
        self._trouble: NeliError | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[Any] | None = None
        self._following: asyncio.Task[None] | None = None
        self._was_lost = False

    async def __aenter__(self) -> AsyncAgentLease:
        hold, loop = self.hold, asyncio.get_running_loop()
        give_up_at = inf if self._timeout is None else hold.clock() + self._timeout
        following = self._following = loop.create_task(self._follow())
        try:
            await self.until(lambda: hold.is_held or following.done(), lambda: min(WAIT_MAX, give_up_at - hold.clock()))
            if not hold.is_held:
                raise self._trouble or hold.not_leading(self._timeout)
        except BaseException:
            await self.release("its block has ended")
            raise
        task = asyncio.current_task()
        assert task is not None, "only a task can await"
        self._task, self._cancelling = task, task.cancelling()
        self._lease = AsyncAgentLease(hold, self.until)
        # By a timer even if it is lost already: a task that cancels itself is cancelled at its next await.
        self._timer = loop.call_later(max(LOOK_MIN, hold.remaining()), self._look_at_end)
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        assert task is not None, "who leaves has entered"
        self._timer.cancel()
        lost = None if self._lease.holds() else self._lease.lost()
        try:
            if self._was_lost and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise (lost or self._lease.lost()) from error
            if kind is None and lost is not None:
                raise lost
        finally:
            await self.release("its block has ended")

    async def until(self, ready: Callable[[], bool], patience: Callable[[], float]) -> bool:
        """See `Following.until`."""
        while not ready():
            seconds = patience()
            if seconds <= 0:
                return ready()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            timer = asyncio.get_running_loop().call_later(seconds, _resolve, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        return True

    async def release(self, why: str) -> None:
        """Let the agent know that the role is free; from here on the lease does not hold."""
        self.hold.lose(why)
        self._news()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _follow(self) -> None:
        try:
            while await self._listen() and self.hold.remaining() > 0:  # noqa: ASYNC110 - a pause, not a poll.
                await asyncio.sleep(PAUSE)  # It broke, and there is something to save.
        except NeliError as error:
            self._trouble = error
        finally:
            asyncio.get_running_loop().call_soon(self._news)  # Once this task counts as done.

    async def _listen(self) -> bool:
        """Follow one stream to its end. Whether it broke after it had said something."""
        heard = False
        events = AsyncStream(self._client, self._call).events()
        try:
            async for name, view in events:
                heard = True
                await self._tell(name, view)
                if name == "ended":
                    self._trouble = hung_up(self._client.address, view.why)
                if self.hold.is_lost or name == "ended":
                    return False
            self._trouble = hung_up(self._client.address)
        except NoAgent as error:
            if not heard:
                raise
            self._trouble = error
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # It is a generator, which says more than an iterator.
        return True

    async def _tell(self, name: str, view: Any) -> None:
        must_ask = self.hold.told(name, view)
        if name != "renewed":
            self._news()
        if must_ask:
            asked_at = self.hold.clock()
            try:
                answer = await self._client.call(calls.lease(self._role), timeout=CONFIRM_MAX)
            except NeliError:
                return  # The next renewal asks again, and until then the lease is what it was.
            self.hold.confirmed(answer, asked_at)
            self._news()

    def _news(self) -> None:
        for waiter in self._waiters:
            _resolve(waiter)
        for listener in self.hold.listeners:
            listener()
        self._look()

    def _look(self) -> None:
        if self._task is not None and not self._was_lost and self.hold.remaining() <= 0:
            self._was_lost = True
            self._task.cancel(f"{self._lease!r} was lost")

    def _look_at_end(self) -> None:
        self._look()
        if not self._was_lost:
            self._timer = asyncio.get_running_loop().call_later(max(LOOK_MIN, self.hold.remaining()), self._look_at_end)


async def idle(ready: Callable[[], bool], patience: Callable[[], float]) -> bool:
    """The `until` of a lease that nobody follows: only time can end it."""
    while not ready():
        seconds = patience()
        if seconds <= 0:
            return ready()
        await asyncio.sleep(seconds)
    return True


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
