"""Leading: a block of work that runs while this host leads a role, or a share, on a thread or on an event loop.

    agent --acquired, renewed, revoked, fenced--> follower --take, confirm --> report --news--> the block, listeners
      ^                                              |
      '-------------- lease? share? -----------------'

    LISTENING --the stream broke--> LISTENING AGAIN --broke before it said a word--> OVER
        '-------- lost, ended, or closed by the caller -------------------------------^

The follower is a thread of a LeadingBlock or a task of an AsyncLeadingBlock. It listens to the agent and asks for the
lease at each piece of news. BaseLeadingBlock decides for both, and waits for nothing. The end of the stream is the
release: the agent then hands over the partitions that it was asked to hand over, and keeps the rest.

An AsyncLeadingBlock is cancelled when its lease is lost, and then raises LeaseLost (see `cancellation`).
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from neli_router.agent.client.calls import Call
from neli_router.agent.client.leases import AgentReport, Wait
from neli_router.agent.client.transport import AsyncTransport, BaseTransport, Stream, Transport
from neli_router.agent.wire import LeaseView, ShareView
from neli_router.core.clock import require_timeout
from neli_router.errors import NeliError, NoAgent
from neli_router.member.cancellation import LeaseCancellation
from neli_router.member.leases import BaseRight

__all__ = ["AsyncLeadingBlock", "BaseLeadingBlock", "LeadingBlock"]

PAUSE = 0.02
"""Seconds before a broken stream is opened again, so that an agent which breaks every stream is not asked in a tight
loop. During this pause the lease is not renewed."""

JOIN_MAX = 1.0
"""How long closing waits for the thread, which has nothing left to do by then."""

ENDED = "its block has ended"

Right = TypeVar("Right", bound=BaseRight)
View = LeaseView | ShareView

Question = Callable[[Iterable[int]], Call[Any]]
"""Makes the call that asks how much time is left on the leases of some partitions."""

Make = Callable[[AgentReport, Wait], Right]
"""Makes the block's lease or share, once something is held."""


class BaseLeadingBlock(Generic[Right]):
    """The knowledge and decisions that both forms share. It waits for nothing."""

    def __init__(
        self, transport: BaseTransport, stream: Call[Any], question: Question, make: Make[Right], timeout: float | None
    ) -> None:
        require_timeout(timeout)
        self._transport, self._timeout = transport, timeout
        self._stream_call, self._question, self._make = stream, question, make
        self.report = AgentReport()
        transport.reports.add(self.report)
        self.has_heard = False
        """Whether an agent has ever said anything."""
        self.trouble: NeliError | None = None
        """Why nothing more will be heard, if the agent is the cause."""

    _is_new: bool
    """Whether the present stream has said nothing yet."""
    _goes_on: bool
    """Whether to read on."""

    def _begin(self) -> None:
        """A stream begins."""
        self._is_new = self._goes_on = True

    def _take(self, name: str, view: View) -> bool:
        """Take note of an event. Returns whether to ask for the time left now; the answer is then the news."""
        self.has_heard, self._is_new, self.trouble = True, False, None
        must_ask = self.report.told(name, view)
        if name == "ended":
            self.trouble = self._hung_up(view.why)
        self._goes_on = not self.report.is_lost and name != "ended"
        if name == "revoked" or not must_ask:
            self._news()
        return must_ask

    def _news(self) -> None:
        """Wake everyone who waits for news."""
        raise NotImplementedError

    def _listens_again(self, error: NeliError | None) -> bool:
        """The stream is over, perhaps broken by `error`. Returns whether to open another, to save the lease."""
        if not self._goes_on or self.report.is_lost:
            return False
        self.trouble = error or self._hung_up()
        if error is not None and (self._is_new or not isinstance(error, NoAgent)):
            return False
        return self.report.end > self.report.clock()

    @property
    def why_lost(self) -> str:
        """Why the lease or share is lost, or is about to be."""
        if self.report.why:
            return self.report.why
        if isinstance(self.trouble, NoAgent):
            return f"the agent at {self._transport.address} is gone, and the lease ran out"
        return "the lease ran out without being renewed"

    def _refused(self) -> NeliError:
        return self.trouble or self.report.not_leading(self._timeout)

    def _hung_up(self, why: str = "") -> NoAgent:
        return NoAgent(
            f"the agent at {self._transport.address} was to say when this host leads",
            f"it ended the conversation{f' ({why})' if why else ''}",
            "it may be stopping or restarting: ask again in a moment",
        )


class LeadingBlock(BaseLeadingBlock[Right]):
    """`with client.leading(role) as lease`. One thread enters and leaves it; another one listens."""

    _transport: Transport

    def __init__(
        self, transport: Transport, stream: Call[Any], question: Question, make: Make[Right], timeout: float | None
    ) -> None:
        super().__init__(transport, stream, question, make, timeout)
        self._changed = threading.Condition()
        self.stream: Stream[Any] | None = None
        """The end of this stream gives the role back. A process that has a copy of the connection holds the role, too,
        even after this process is killed; `close` ends the stream for both."""
        self._closed = False
        self.is_over = False
        """Whether nothing more will be heard."""
        self._thread = threading.Thread(target=self._follow, name="neli-leading", daemon=True)

    def __enter__(self) -> Right:
        self._thread.start()
        try:
            self._wait(lambda: self.report.is_held or self.is_over, self._timeout)
            if not self.report.is_held:
                raise self._refused()
        except BaseException:
            self.close()
            raise
        self._right = self._make(self.report, self._wait)
        return self._right

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        try:
            if kind is None:
                self._right.check()
        finally:
            self.close()

    def start(self) -> None:
        """Listen from now on, without waiting for anything."""
        self._thread.start()

    def close(self) -> None:
        """Give the role back: from here on the lease does not hold."""
        with self._changed:
            self._closed = True
            self.report.lose(ENDED)
            if self.stream is not None:
                self.stream.cut()
        self._thread.join(JOIN_MAX)

    def _wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        with self._changed:
            return self.report.wait(self._changed.wait, ready, timeout)

    # The follower

    def _follow(self) -> None:
        try:
            while self._listen():
                with self._changed:
                    self._changed.wait(PAUSE)
        finally:
            self.is_over = True
            self._news()

    def _listen(self) -> bool:
        """Follow one stream to its end. Returns whether to follow another."""
        self._begin()
        try:
            with self._transport.stream(self._stream_call) as stream:
                with self._changed:
                    self.stream = stream
                    if self._closed:
                        return False
                for name, view in stream.events():
                    if self._take(name, view):
                        self._confirm()
                    if not self._goes_on:
                        break
        except NeliError as error:
            return self._listens_again(error)
        return self._listens_again(None)

    def _confirm(self) -> None:
        asked_at = self.report.clock()
        try:
            answer = self._transport.call(self._question(self.report.held()))
        except NeliError:
            return  # The next renewal asks again; until then the lease is unchanged.
        self.report.confirmed(answer, asked_at)
        self._news()

    def _news(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for listener in self.report.listeners:
            listener()


class AsyncLeadingBlock(BaseLeadingBlock[Right]):
    """`async with client.leading(role) as lease`: one task's work, cancelled when its lease is lost."""

    _transport: AsyncTransport

    def __init__(
        self, transport: AsyncTransport, stream: Call[Any], question: Question, make: Make[Right], timeout: float | None
    ) -> None:
        super().__init__(transport, stream, question, make, timeout)
        self._wait = partial(self.report.wait_async, self._sleep)
        self._bell = asyncio.Event()
        """Never stays set: it wakes those that wait for it at a piece of news."""
        self._cancellation: LeaseCancellation | None = None
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Right:
        report = self.report
        following = self._following = asyncio.create_task(self._follow())
        self._transport.followers.add(following)
        try:
            await self._wait(lambda: report.is_held or following.done(), self._timeout)
            if not report.is_held:
                raise self._refused()
        except BaseException:
            await self._release()
            raise
        right = self._make(report, self._wait)
        self._cancellation = LeaseCancellation(right)
        return right

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        cancellation, self._cancellation = self._cancellation, None
        assert cancellation is not None, "a block that is left was entered"
        try:
            cancellation.end(kind, error)
        finally:
            await self._release()

    async def _release(self) -> None:
        """Show the agent that the role is free; from here on the lease does not hold."""
        self.report.lose(ENDED)
        self._news()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._bell.wait()

    # The follower

    async def _follow(self) -> None:
        try:
            while await self._listen():  # noqa: ASYNC110 - a pause, not a poll.
                await asyncio.sleep(PAUSE)
        finally:
            asyncio.get_running_loop().call_soon(self._news)  # After this task counts as done.

    async def _listen(self) -> bool:
        self._begin()
        events = self._transport.stream(self._stream_call).events()
        try:
            async for name, view in events:
                if self._take(name, view):
                    await self._confirm()
                if not self._goes_on:
                    break
        except NeliError as error:
            return self._listens_again(error)
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # It is a generator, and so has more than an iterator.
        return self._listens_again(None)

    async def _confirm(self) -> None:
        asked_at = self.report.clock()
        try:
            answer = await self._transport.call(self._question(self.report.held()))
        except NeliError:
            return  # The next renewal asks again; until then the lease is unchanged.
        self.report.confirmed(answer, asked_at)
        self._news()

    def _news(self) -> None:
        self._bell.set()
        self._bell.clear()
        for listener in self.report.listeners:
            listener()
        if self._cancellation is not None:
            self._cancellation.look()
