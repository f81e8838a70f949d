"""The router for programs with an event loop: the same API, without ever blocking the loop.

    async with AsyncRouter("sqlite:///var/lib/jobs/ledger.db") as router:    opens in a thread, waits for the table
        router.owner("customer-7")                                           a plain call: there is nothing to wait for
        async for change in router.watch(): ...                              the reading thread wakes the loop

Look-ups are not coroutines. They take a fraction of a microsecond, and an `await` costs more than that.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import EllipsisType
from typing import Self

from neli_router.config.config import Config
from neli_router.core.closing import AsyncClosing
from neli_router.core.keyspace import Key, Layout
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import owners_at
from neli_router.drivers.owners.base import OwnersSource
from neli_router.errors import Closed
from neli_router.router.feed import Feed
from neli_router.router.reader import CLOSE_MAX
from neli_router.router.router import AWAIT_MAX, MAX_AGE, BaseRouter, Router
from neli_router.router.table import Owner, View
from neli_router.router.watch import Change, Gap

__all__ = ["AsyncRouter", "AsyncWatch"]


class AsyncRouter(BaseRouter, AsyncClosing):
    """A Router for one event loop. Look-ups may come from any thread; the coroutines belong to the loop.

    Takes the same arguments as Router, or an existing Router, such as a member's. Nothing is opened before `open`,
    which `async with` calls; until then, everything else raises Closed.
    """

    owner: Callable[[Key], Owner]
    """The owner of a key. This is the Router's method itself, so a call costs the same and raises the same errors."""

    def __init__(
        self,
        source: Router | Config | str | Callable[[], Ledger] | Feed | OwnersSource,
        *,
        layout: Layout | None = None,
        name: str | None = None,
        max_age: float | EllipsisType | None = ...,
    ) -> None:
        self._router: Router | None = None
        self.owner = self._owner_before_open
        if isinstance(source, Router):
            self._hold(source)
        else:
            self._make = partial(Router, source, layout=layout, name=name, max_age=max_age, wait=False)

    @classmethod
    def from_redis(
        cls, url: str, *, layout: Layout | None = None, name: str | None = None, max_age: float | None = MAX_AGE
    ) -> Self:
        """See Router. Raises ConfigError immediately; nothing is opened before `open`."""
        return cls(owners_at(url), layout=layout, name=name, max_age=max_age)

    @classmethod
    def from_postgresql(
        cls, url: str, *, layout: Layout | None = None, name: str | None = None, max_age: float | None = MAX_AGE
    ) -> Self:
        """See Router. Raises like `from_redis`."""
        return cls(owners_at(url), layout=layout, name=name, max_age=max_age)

    async def open(self, timeout: float = AWAIT_MAX) -> Self:  # noqa: ASYNC109 - the same name as in Router.
        """Open the ledger and wait for a table, at most `timeout` seconds. Raises like Router's constructor."""
        if self._router is None:
            # In a thread, because a driver may take its time. If we are cancelled meanwhile, the thread's router is
            # dropped, and its reader ends on its own.
            self._hold(await asyncio.to_thread(self._make))
        try:
            await self.await_table(timeout)
        except BaseException:
            await self.close(timeout=0)  # The caller has waited long enough.
            raise
        return self

    def mine(self, keys: Iterable[Key]) -> list[Key]:
        """See Router."""
        return self._opened.mine(keys)

    @property
    def feed(self) -> Feed:
        return self._opened.feed

    def watch(self) -> "AsyncWatch":
        """The changes of owners from now on, to iterate over or to take one by one, in this event loop."""
        return AsyncWatch(self.feed)

    async def await_table(self, timeout: float = AWAIT_MAX) -> None:  # noqa: ASYNC109 - the same name as in Router.
        """Wait until there is a table, or the certainty that no member is alive. Raises StaleTable after `timeout`."""
        feed, changed, wake = self.feed, asyncio.Event(), _waker()

        def show(_: View) -> None:
            wake(changed)

        feed.show_to(show)
        try:
            async with asyncio.timeout(timeout):
                while not feed.is_settled():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise feed.late(timeout) from None
        finally:
            feed.hide_from(show)

    async def reopen(self, timeout: float = AWAIT_MAX) -> None:  # noqa: ASYNC109 - the same name as in Router.
        """Open the ledger again: after a fork, in the child's own event loop, or after an error. See Router."""
        await asyncio.to_thread(self._opened.reopen, wait=False)
        await self.await_table(timeout)

    async def close(self, *, timeout: float = CLOSE_MAX) -> None:  # noqa: ASYNC109 - the same as in Router.
        """Stop reading and release the ledger; look-ups then raise Closed. May be called twice."""
        if self._router is not None:
            await asyncio.to_thread(self._router.close, timeout=timeout)

    async def __aenter__(self) -> Self:
        return await self.open()

    def __repr__(self) -> str:
        return "<AsyncRouter, not opened>" if self._router is None else f"<Async{repr(self._router)[1:]}"

    @property
    def _opened(self) -> Router:
        if self._router is None:
            remedy = "use `async with`, or await `open()`"
            raise Closed("an open router was wanted", "this one was not opened yet", remedy)
        return self._router

    def _hold(self, router: Router) -> None:
        self._router, self.owner = router, router.owner

    def _owner_before_open(self, key: Key) -> Owner:
        return self._opened.owner(key)


class AsyncWatch(AsyncClosing, AsyncIterator[Change | Gap]):
    """The changes after `table`, for one event loop; each goes to one of the waiting tasks. Otherwise like Watch."""

    def __init__(self, feed: Feed) -> None:
        self._changed = asyncio.Event()
        self._watch = feed.watch(tell=partial(_waker(), self._changed))
        self.table = self._watch.table
        """The table that the first change starts from; None if there was none yet."""

    async def take(self, timeout: float | None = None) -> Change | Gap | None:  # noqa: ASYNC109 - as in Watch.
        """The next change; None if there was none for `timeout` seconds, or if this watch or its router is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    self._changed.clear()
                    # `is_closed` comes first: `take` then still gets a change that is put between the two calls.
                    was_closed = self._watch.is_closed
                    taken = self._watch.take(0)
                    if taken is not None or was_closed:
                        return taken
                    await self._changed.wait()
        return None

    async def __anext__(self) -> Change | Gap:
        taken = await self.take()
        if taken is None:
            raise StopAsyncIteration
        return taken

    async def close(self) -> None:
        """Stop watching; changes that were not taken are dropped. May be called twice."""
        self._watch.close()


def _waker() -> Callable[[asyncio.Event], None]:
    """A function that sets an event of the running loop from any thread. If the loop is gone, it does nothing."""
    loop, process = asyncio.get_running_loop(), os.getpid()

    def wake(event: asyncio.Event) -> None:
        if os.getpid() != process:
            return  # A forked child shares the socket that wakes a loop, and would wake its parent's loop.
        # The loop may already have ended; its tasks are gone then, and the reader must not fail.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(event.set)

    return wake
