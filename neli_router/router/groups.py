"""Several groups for the same roles: each has its own owner for every key, so one owner remains when other groups fail.

    ledger of "blue"  --Router--> Owner(anna)  --.
                                                  >-- Groups.owners("customer-7") --> [blue: anna, green: gerd]
    ledger of "green" --Router--> Owner(gerd)  --'        a group that has no answer is left out

    async with AsyncGroups({"blue": one, "green": two}) as groups:   opens in a thread, waits for the tables
        groups.owners("customer-7")                                  a plain call: there is nothing to wait for
        async for change in groups["green"].watch(): ...             that group's own AsyncRouter

One group has a gap whenever an owner dies. With two or more *disjoint* groups, on separate ledgers, every role has one
owner in each group, and if one owner dies the other goes on. All work is then done twice; docs/groups.md says when that
is right, and how to keep the groups on different hosts.

`owners` raises only if no group has an answer. Each group has its own reader and its own `max_age`: a group whose
ledger cannot be read is left out once its table is too old, and returns automatically. The same goes for a group whose
ledger does not exist yet. The `exclusive` guarantee and the terms hold within a group; a fence must track the terms of
each group separately.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from math import gcd
from types import EllipsisType
from typing import NamedTuple, Self

from neli_router.config.config import Config
from neli_router.core.closing import AsyncClosing, Closing
from neli_router.core.keyspace import Key
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger
from neli_router.errors import (
    BadKey,
    Closed,
    ConfigError,
    GroupMismatch,
    LedgerUnavailable,
    LedgerUnusable,
    LookupFailed,
    NeliError,
)
from neli_router.router.async_router import AsyncRouter
from neli_router.router.router import AWAIT_MAX, Router
from neli_router.router.table import NoTable, Owner, Peer, Table, View

__all__ = ["GRACE", "AsyncGroups", "BaseGroups", "Groups", "Leader", "SharedHost", "Source", "by_host", "by_zone"]

GRACE = 2.0
"""Seconds that the other groups may take for their first table once one has answered. Raising it slows down a start
while a group is down; lowering it lets a router that has just started name fewer owners than exist."""

LOOK_EVERY = 0.01
"""Seconds between two checks of which groups have answered, while they are opened."""

Source = str | Config | Callable[[], Ledger] | Router
"""Where a group's table comes from: anything that a Router takes, or a Router that the program opens and closes."""


class Leader(NamedTuple):
    """The owner in one group."""

    group: str
    owner: Owner


class SharedHost(NamedTuple):
    """Two groups have owners of the same roles on one host, and would lose both together with it."""

    host: str
    groups: tuple[str, str]
    roles: tuple[int, ...]
    """For groups with M partitions each, numbers below M. If the groups' partition counts differ, numbers below their
    greatest common divisor g; then r stands for some of r, r + g, r + 2g ..."""


def by_host(peer: Peer) -> str:
    """The host in a member's address; empty if it has none."""
    place = peer.address.partition("://")[2] or peer.address
    place = place.partition("/")[0].rpartition("@")[2]
    if place.startswith("["):  # IPv6, as in [::1]:80.
        return place.partition("]")[0][1:]
    return place if place.count(":") > 1 else place.partition(":")[0]


def by_zone(peer: Peer) -> str:
    """A member's zone; empty if it has none."""
    return peer.zone


class BaseGroups:
    """The part that waits for nothing, and so is the same with and without an event loop."""

    def _each(self) -> Mapping[str, Router]:
        """The router of each group."""
        raise NotImplementedError

    def _pauses(self, timeout: float) -> Iterator[float]:
        """Seconds to sleep, again and again, until every group has answered, or the others' time is over. Raises
        LookupFailed if no group has a table after `timeout` seconds."""
        give_up_at, is_first = time.monotonic() + timeout, True
        pending = list(self._each().values())
        while (pending := [router for router in pending if not _is_settled(router)]) and time.monotonic() < give_up_at:
            if is_first and self._tables():
                is_first, give_up_at = False, min(give_up_at, time.monotonic() + GRACE)
            yield LOOK_EVERY
        if not self._tables():
            raise _failed("a table of any group was wanted", self.errors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._each())

    def __len__(self) -> int:
        return len(self._each())

    @property
    def errors(self) -> dict[str, NeliError]:
        """The error of each group without a table. Empty if all is well."""
        views = self._views().items()
        return {group: view.explain("the table was wanted") for group, view in views if isinstance(view, NoTable)}

    def shared_hosts(self, host_of: Callable[[Peer], str] = by_host) -> list[SharedHost]:
        """Hosts on which two groups have their leaders of the same role. Groups without a table are left out.

        A member for which `host_of` is empty is not on any host. Raises GroupMismatch if groups hash keys differently.
        """
        tables = self._tables()
        found: list[SharedHost] = []
        for (one, ours), (other, theirs) in combinations(tables.items(), 2):
            if (ours.layout.slots, ours.layout.tags) != (theirs.layout.slots, theirs.layout.tags):
                raise GroupMismatch(
                    f"the same roles were wanted in {one} and {other}",
                    f"their layouts differ: {ours.layout.difference(theirs.layout)}",
                    "give all groups the same slots and tags; the number of partitions may differ",
                )
            width = gcd(ours.layout.partitions, theirs.layout.partitions)
            left, right = _roles_by_host(ours, host_of, width), _roles_by_host(theirs, host_of, width)
            shared = {host: left[host] & right[host] for host in sorted(left.keys() & right.keys())}
            found += [SharedHost(host, (one, other), tuple(sorted(roles))) for host, roles in shared.items() if roles]
        return found

    def groups_on(self, host: str, host_of: Callable[[Peer], str] = by_host) -> list[str]:
        """The groups with a member on `host`: joining another group from there exposes both to the same failure."""
        return [group for group, table in self._tables().items() if host in map(host_of, table.members)]

    def _tables(self) -> dict[str, Table]:
        return {group: view for group, view in self._views().items() if isinstance(view, Table)}

    def _views(self) -> dict[str, View]:
        return {group: router.feed.view for group, router in self._each().items()}


class Groups(BaseGroups, Closing):
    """Names the owners of a key in several groups. May be shared between threads, except for `close` and `reopen`.

    `sources` maps a name of your choice to each group's source; answers come in its order. `max_age` is the same as for
    a Router, for all groups or by the group's name; a Router that is passed in has its own. Waits until every group has
    a table, at most `GRACE` seconds longer than for the first, and raises if none has one within `timeout`.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        max_age: float | Mapping[str, float | None] | EllipsisType | None = ...,
        wait: bool = True,
        timeout: float = AWAIT_MAX,
    ) -> None:
        if problems := _problems(sources, max_age):
            raise ConfigError(problems)
        self._routers: dict[str, Router] = {}
        self._ours: list[Router] = []
        try:
            for group, source in sources.items():
                age = max_age.get(group, ...) if isinstance(max_age, Mapping) else max_age
                self._routers[group] = source if isinstance(source, Router) else self._open(source, age)
            self._owner_in = [(group, router.owner) for group, router in self._routers.items()]
            if wait:
                self.await_tables(timeout)
        except BaseException:
            self.close()
            raise

    # Look-ups

    def owners(self, key: Key) -> list[Leader]:
        """The owners of `key`, one from each group that has an answer. Raises BadKey, and LookupFailed if none has.

        If all groups fail for the same reason, raises the error of a Router: NoOwner, StaleTable, Forked, Closed.
        """
        try:
            return [Leader(group, owner(key)) for group, owner in self._owner_in]
        except NeliError:
            pass  # One group has no answer. The error raised below must not carry this error as its context.
        found: list[Leader] = []
        errors: dict[str, NeliError] = {}
        for group, router in self._each().items():
            try:
                found.append(Leader(group, router.owner(key)))
            except BadKey:
                raise
            except NeliError as error:
                errors[group] = error
        if not found:
            raise _failed("owners of a key were wanted", errors)
        return found

    # State

    def __getitem__(self, group: str) -> Router:
        """The router of `group`, for watching and for questions about a single group."""
        return self._routers[group]

    def await_tables(self, timeout: float = AWAIT_MAX) -> None:
        """Wait like the constructor. Raises LookupFailed if no group has a table after `timeout` seconds."""
        for pause in self._pauses(timeout):
            time.sleep(pause)

    # Life

    def reopen(self, *, wait: bool = True, timeout: float = AWAIT_MAX) -> None:
        """Open every group's ledger again, in this process: after a fork, or after errors that were fixed.

        Routers that were passed in are not reopened; that is up to their owner.
        """
        for router in self._ours:
            router.reopen(wait=False)
        if wait:
            self.await_tables(timeout)

    def close(self) -> None:
        """Stop reading. Routers that were passed in stay open. May be called twice."""
        for router in self._ours:
            router.close()

    def __repr__(self) -> str:
        return f"<Groups {', '.join(f'{group}: {router!r}' for group, router in self._routers.items())}>"

    # Implementation

    def _each(self) -> Mapping[str, Router]:
        return self._routers

    def _open(self, source: str | Config | Callable[[], Ledger], age: float | EllipsisType | None) -> Router:
        layout, address = None, ""
        if isinstance(source, Config):
            layout, age = source.layout, source.max_age if isinstance(age, EllipsisType) else age
        if not callable(source):
            config = Config.given(source)
            address = config.public_ledger
            source = partial(open_ledger, config.common_ledger, create=False, patience=config.lease)
        router = Router(partial(_patiently, source), layout=layout, max_age=age, wait=False)
        router.feed.address = router.feed.address or address
        self._ours.append(router)
        return router


class AsyncGroups(BaseGroups, AsyncClosing):
    """Groups for one event loop. Look-ups may come from any thread; the coroutines belong to the loop.

    Takes the same arguments as Groups. Until `open`, which `async with` calls, everything else raises Closed.
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
        self._wrapped: dict[str, AsyncRouter] = {}
        self.owners = self._owners_before_open

    async def open(self, timeout: float = AWAIT_MAX) -> Self:  # noqa: ASYNC109 - the same name as in Groups.
        """Open every group and wait for tables. Raises the same errors as the constructor of Groups."""
        if self._groups is None:
            # In a thread, because a driver may take its time. If we are cancelled meanwhile, the thread's groups are
            # dropped, and their readers end on their own.
            self._groups = await asyncio.to_thread(self._make)
            self.owners = self._groups.owners
        try:
            await self.await_tables(timeout)
        except BaseException:
            await self.close()
            raise
        return self

    def __getitem__(self, group: str) -> AsyncRouter:
        """The router of `group`, for watching and for questions about a single group."""
        if group not in self._wrapped:
            self._wrapped[group] = AsyncRouter(self._opened[group])
        return self._wrapped[group]

    async def await_tables(self, timeout: float = AWAIT_MAX) -> None:  # noqa: ASYNC109 - the same name as in Groups.
        """Wait as `open` does. Raises LookupFailed if no group has a table after `timeout` seconds."""
        for pause in self._pauses(timeout):
            await asyncio.sleep(pause)

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

    def _each(self) -> Mapping[str, Router]:
        groups = self._opened
        return {group: groups[group] for group in groups}

    @property
    def _opened(self) -> Groups:
        if self._groups is None:
            raise Closed("open groups were wanted", "these were not opened yet", "use `async with`, or await `open()`")
        return self._groups

    def _owners_before_open(self, key: Key) -> list[Leader]:
        return self._opened.owners(key)


def _patiently(open_ledger: Callable[[], Ledger]) -> Ledger:
    """A ledger that is unusable stops a lone router. Here other groups answer, so opening it is tried again."""
    try:
        return open_ledger()
    except LedgerUnusable as error:
        raise LedgerUnavailable(error.wanted, error.found, error.remedy) from error


def _is_settled(router: Router) -> bool:
    try:
        return router.feed.is_settled()
    except NeliError:
        return True  # The router stopped, and no table will come.


def _roles_by_host(table: Table, host_of: Callable[[Peer], str], width: int) -> dict[str, set[int]]:
    hosts = {peer.name: host_of(peer) for peer in table.members}
    roles: dict[str, set[int]] = {}
    for owner in table.partitions:
        if owner is not None and (host := hosts.get(owner.name)):
            roles.setdefault(host, set()).add(owner.partition % width)
    return roles


def _failed(wanted: str, errors: Mapping[str, NeliError]) -> NeliError:
    found = "; ".join(f"group {group}: {error.found}" for group, error in errors.items())
    remedies = dict.fromkeys(error.remedy for error in errors.values())
    kinds = {type(error) for error in errors.values()}
    kind = kinds.pop() if len(kinds) == 1 else LookupFailed
    if not issubclass(kind, LookupFailed | Closed):
        kind = LookupFailed  # For example, a rewound ledger concerns one group; here the error is that none answers.
    return kind(wanted, f"no group has an answer ({found})", "; or ".join(remedies))


def _problems(sources: Mapping[str, Source], max_age: object) -> list[str]:
    problems = [] if sources else ["there is no group: name one at least, as Groups({'blue': address})"]
    addresses: dict[str, str] = {}
    for group, source in sources.items():
        address = source.ledger if isinstance(source, Config) else source
        if isinstance(address, str) and (other := addresses.setdefault(address, group)) != group:
            problems.append(
                f"{other} and {group} have one ledger, so they are one group: give each a ledger of its own"
            )
    if isinstance(max_age, Mapping) and (strangers := [group for group in max_age if group not in sources]):
        problems.append(f"max_age names {strangers[0]!r}, and there is no such group: there is {', '.join(sources)}")
    return problems
