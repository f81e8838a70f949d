"""Several groups, for programs with an event loop: the API of `Groups`, without ever blocking the loop.

    async with AsyncGroups({"blue": one, "green": two}) as groups:   opens in a thread, waits for the tables
        groups.owners("customer-7")                                  a plain call: there is nothing to wait for
        async for change in groups["green"].watch(): ...             that group's own AsyncRouter

`Groups` decides what the groups answer and which of them are left out; this module only does the waiting.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import EllipsisType
from typing import NoReturn, Self

from neli_router.core.closing import AsyncClosing
from neli_router.core.keyspace import Key, Role
from neli_router.errors import Closed, NeliError
from neli_router.router.async_router import AsyncRouter
from neli_router.router.groups import GRACE, Groups, Leader, SharedHost, Source, by_host
from neli_router.router.router import AWAIT_MAX
from neli_router.router.table import Peer

__all__ = ["AsyncGroups"]


class AsyncGroups(AsyncClosing):
    """Groups for one event loop. Look-ups may come from any thread; the coroutines belong to the loop.

    Takes the same arguments as Groups. Nothing is opened before `open`, which `async with` calls; until then,
    everything else raises Closed.
    """

    owners: Callable[[Key], list[Leader]]
    """See Groups; this is its method itself, so a call costs the same."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        max_age: float | Mapping[str, float | None] | EllipsisType | None = ...,
    ) -> None:
        self._make = partial(Groups, sources, max_age=max_age, wait=False)
        self._groups: Groups | None = None
        self._routers: dict[str, AsyncRouter] = {}
        self.owners = self._owners_before_open

    async def open(self, timeout: float = AWAIT_MAX) -> Self:  # noqa: ASYNC109 - the same name as in Groups.
        """Open every group and wait for tables. Raises the same errors as the constructor of Groups."""
        if self._groups is None:
            # In a thread, because a driver may take its time. If we are cancelled meanwhile, the thread's groups are
            # dropped, and their readers end on their own.
            groups = await asyncio.to_thread(self._make)
            self._routers = {group: AsyncRouter(groups[group]) for group in groups}
            self._groups, self.owners = groups, groups.owners
        try:
            await self.await_tables(timeout)
        except BaseException:
            await self.close()
            raise
        return self

    def owners_of_role(self, role: Role) -> list[Leader]:
        """See Groups."""
        return self._opened.owners_of_role(role)

    def __getitem__(self, group: str) -> AsyncRouter:
        """The router of `group`, for watching and for questions about a single group."""
        return self._routers[group] if self._groups is not None else self._refuse()

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)

    @property
    def errors(self) -> dict[str, NeliError]:
        """See Groups."""
        return self._opened.errors

    def shared_hosts(self, host_of: Callable[[Peer], str] = by_host) -> list[SharedHost]:
        """See Groups."""
        return self._opened.shared_hosts(host_of)

    def groups_on(self, host: str, host_of: Callable[[Peer], str] = by_host) -> list[str]:
        """See Groups."""
        return self._opened.groups_on(host, host_of)

    async def await_tables(self, timeout: float = AWAIT_MAX) -> None:  # noqa: ASYNC109 - the same name as in Groups.
        """Wait as `open` does. Raises LookupFailed if no group has a table after `timeout` seconds."""
        groups, loop = self._opened, asyncio.get_running_loop()
        give_up_at, is_first = loop.time() + timeout, True
        pending = {asyncio.ensure_future(_settled(router, timeout)) for router in self._routers.values()}
        try:
            while pending and (left := give_up_at - loop.time()) > 0:
                _, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if is_first and len(groups.errors) < len(groups):
                    is_first, give_up_at = False, min(give_up_at, loop.time() + GRACE)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        groups.await_tables(0)  # Does not wait, and raises if no group has a table.

    async def reopen(self, timeout: float = AWAIT_MAX) -> None:  # noqa: ASYNC109 - the same name as in Groups.
        """Open every group's ledger again: after a fork, in the child's own event loop, or after errors. See Groups."""
        await asyncio.to_thread(self._opened.reopen, wait=False)
        await self.await_tables(timeout)

    async def close(self) -> None:
        """Stop reading. Routers that were passed in stay open. May be called twice."""
        if self._groups is not None:
            await asyncio.to_thread(self._groups.close)

    async def __aenter__(self) -> Self:
        return await self.open()

    def __repr__(self) -> str:
        return "<AsyncGroups, not opened>" if self._groups is None else f"<Async{repr(self._groups)[1:]}"

    @property
    def _opened(self) -> Groups:
        return self._groups if self._groups is not None else self._refuse()

    def _owners_before_open(self, key: Key) -> list[Leader]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Closed("open groups were wanted", "these were not opened yet", "use `async with`, or await `open()`")


async def _settled(router: AsyncRouter, timeout: float) -> None:  # noqa: ASYNC109 - passed on.
    """Wait until this group has a table, or is known not to have one."""
    with contextlib.suppress(NeliError):
        await router.await_table(timeout)
