"""NeliHook: asks this host's agent, or a ledger, who owns what. The whole provider asks through it.

    connection `neli` --address, host and port, or nothing--> an agent:  Client, AsyncClient    leases, shares, push
                      --address: sqlite, kafka, redis-------> a ledger:  Router, AsyncRouter    questions and push
                      --ownership: redis, postgresql--------> what owners publish there: like a ledger

    with NeliHook() as hook:
        hook.owner("EURUSD").name                    one request; under a millisecond on a Unix socket
        with hook.leading("nightly") as lease:       waits until this host leads the role, and holds it
            work(term=lease.term)

    async with NeliHook() as hook:                   the same names with an `a`: no call blocks the loop
        async for news in hook.changes(): ...

An agent is a member, so it knows what *this host* leads. A ledger is only read: it says who owns what, and grants no
leases. The methods that need an agent say so when the connection names a ledger.

The connection is looked up once, when it is first needed: the constructor would ask for it at each parse of a Dag. In
an event loop it is looked up through Airflow's async call, because the other call waits for a thread that may wait for
the loop. Secrets stay in the connection: a password is the token of the agent, or the ledger's password, and no error,
no log and no `repr` contains it.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException, BaseHook, Connection

from airflow_provider._arguments import asked_role, fits_an_address, role_for
from airflow_provider.hooks import _changes as changes
from airflow_provider.hooks._changes import Away, Batch
from neli_router.agent import AgentLease, AsyncAgentLease, AsyncClient, Client, Share
from neli_router.agent.client import calls
from neli_router.agent.client.leading import LeadingBlock
from neli_router.agent.owners import owner_view
from neli_router.agent.wire import OwnerView, StatusView
from neli_router.config.agent_address import PORT, spell_place
from neli_router.core.keyspace import Key, Layout, Role
from neli_router.drivers.addresses import problems_of
from neli_router.drivers.open import owners_at
from neli_router.errors import ConfigError, GroupMismatch, NeliError, NoOwner
from neli_router.router.async_router import AsyncRouter
from neli_router.router.router import AWAIT_MAX, BaseRouter, Router
from neli_router.router.table import NO_MEMBER, NoTable, Table

__all__ = ["CONNECTION_ID", "LEASES", "LeaderHere", "NeliHook", "checked"]

CONNECTION_ID = "neli_default"

CONNECTION_TYPE = "neli"

LEASES = 2.0
"""A takeover takes one lease and a suspicion. After twice that time, the next leader has begun."""

OPTIONS = ("address", "ownership")


@dataclass(frozen=True, slots=True)
class _Target:
    """The target of a connection: an agent, unless one of the other two is given. Holds secrets, so it has no repr."""

    agent: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ledger: str = field(default="", repr=False)
    ownership: str = field(default="", repr=False)

    @property
    def is_agent(self) -> bool:
        return not (self.ledger or self.ownership)


class LeaderHere(NamedTuple):
    """The owner of a partition, as this host sees it."""

    owner: OwnerView
    member: str | None
    """This host's member; None if the connection is to a ledger, which knows no host."""
    may_act: bool
    """Whether this host leads the partition and may act for it now."""


class NeliHook(BaseHook):
    """Asks who owns a key, who leads a role, and what this host leads.

    Threads may share a hook; its async methods belong to one event loop. Errors are those of NELI Router: NoAgent if no
    agent answers, NoOwner if the partition has no owner, NotLeading if leadership did not come in time. A missing
    connection raises AirflowNotFoundException.

    :param neli_conn_id: a connection of the type `neli`
    :param timeout: seconds for each answer of an agent
    """

    conn_name_attr = "neli_conn_id"
    default_conn_name = CONNECTION_ID
    conn_type = CONNECTION_TYPE
    hook_name = "NELI Router"

    def __init__(self, neli_conn_id: str = CONNECTION_ID, *, timeout: float = calls.TIMEOUT) -> None:
        super().__init__()
        self.neli_conn_id, self._timeout = neli_conn_id, timeout
        self._target: _Target | None = None
        self._client: Client | None = None
        self._async_client: AsyncClient | None = None
        self._router: Router | None = None

    # The target

    def get_conn(self) -> Client | Router:
        """The agent's client, or a router of the ledger. Made once; `close` closes it."""
        if self._target is None:
            try:
                self._target = _target_of(self.get_connection(self.neli_conn_id))
            except AirflowNotFoundException:
                raise _missing(self.neli_conn_id) from None
        if not self._target.is_agent:
            router = self._router_of(self._target)
            router.await_table(AWAIT_MAX)
            return router
        if self._client is None:
            self._client = Client(self._target.agent, token=self._target.token, timeout=self._timeout)
        return self._client

    async def aget_conn(self) -> AsyncClient | AsyncRouter:
        """Like `get_conn`, for the running event loop. Made once; `aclose` closes it."""
        target = await self._atarget()
        if not target.is_agent:
            router = AsyncRouter(await asyncio.to_thread(self._router_of, target))  # Opening may wait for a driver.
            await router.await_table(AWAIT_MAX)
            return router
        return self._aclient_of(target)

    def close(self) -> None:
        """Close what was opened. Closing twice is fine."""
        if self._client is not None:
            self._client.close()
        if self._router is not None:
            self._router.close()

    async def aclose(self) -> None:
        """Close all that was opened, also by the synchronous methods. Closing twice is fine."""
        if self._async_client is not None:
            await self._async_client.close()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()

    # Questions

    def owner(self, key: Key) -> OwnerView:
        """The owner of `key`. Raises NoOwner, StaleTable, BadKey."""
        conn = self.get_conn()
        return conn.owner(key) if isinstance(conn, Client) else _named(_of_keys(conn, [key])[0])

    def owner_of_role(self, role: Role) -> OwnerView:
        """The member that leads `role`, a number or a name. Raises the errors of `owner`."""
        conn, role = self.get_conn(), self._role(role)
        return conn.owner_of_role(role) if isinstance(conn, Client) else _named(_of_role(conn, role))

    def owners(self, keys: Iterable[Key]) -> list[OwnerView]:
        """The owner of each of `keys`, in their order. A key without an owner gets a view that has no `name` and gives
        the reason."""
        conn = self.get_conn()
        return conn.owners(keys) if isinstance(conn, Client) else _of_keys(conn, keys)

    def layout(self, *, wanted: Layout | None = None) -> Layout:
        """How the group's keys fall into partitions. Raises GroupMismatch if `wanted` is another layout."""
        conn = self.get_conn()
        return checked(conn.call(calls.HERE).layout if isinstance(conn, Client) else conn.feed.layout, wanted)

    def leader(self, role: Role, *, wanted: Layout | None = None) -> LeaderHere:
        """The leader of `role`, and whether that is this host, in one question. Raises the errors of `owner`, and
        GroupMismatch if `wanted` is another layout than the group's."""
        conn, role = self.get_conn(), self._role(role)
        if not isinstance(conn, Client):
            checked(conn.feed.layout, wanted)
            return LeaderHere(_named(_of_role(conn, role)), None, may_act=False)
        seen = conn.call(calls.leader(role))
        checked(seen.layout, wanted)
        return LeaderHere(calls.led_by(seen), seen.member, may_act=seen.may_act)

    async def aowner(self, key: Key) -> OwnerView:
        conn = await self.aget_conn()
        return await conn.owner(key) if isinstance(conn, AsyncClient) else _named(_of_keys(conn, [key])[0])

    async def aowner_of_role(self, role: Role) -> OwnerView:
        conn, role = await self.aget_conn(), await self._arole(role)
        return await conn.owner_of_role(role) if isinstance(conn, AsyncClient) else _named(_of_role(conn, role))

    async def aowners(self, keys: Iterable[Key]) -> list[OwnerView]:
        conn = await self.aget_conn()
        return await conn.owners(keys) if isinstance(conn, AsyncClient) else _of_keys(conn, keys)

    async def alayout(self, *, wanted: Layout | None = None) -> Layout:
        return (await self.ahere(wanted=wanted))[0]

    async def ahere(self, *, wanted: Layout | None = None) -> tuple[Layout, str | None]:
        """The group's layout, and the name of this host's member (None if the connection is to a ledger), in one
        question. Raises the errors of `layout`."""
        conn = await self.aget_conn()
        if isinstance(conn, AsyncClient):
            seen = await conn.call(calls.HERE)
            return checked(seen.layout, wanted), seen.member
        return checked(conn.feed.layout, wanted), None

    # This host: a ledger does not know which member is this host's.

    def member(self) -> str:
        """The name of this host's member."""
        return self._agent("the name of this host's member").call(calls.HERE).member

    def group(self) -> str:
        """The group's address, without secrets. Terms of two groups have nothing to do with each other."""
        return self._agent("the group's address").call(calls.HERE).group

    def takeover_max(self) -> float:
        """Seconds after the death of a leader by which the next one has begun: twice the group's lease."""
        return LEASES * self._agent("the group's lease").status().lease

    def leads(self, role: Role, *, within: float = 0.0) -> bool:
        """Whether this host leads `role` now, or begins to `within` that many seconds (at most 3600). Holds nothing."""
        return self.lease(role, within=within) is not None

    def led(self) -> list[int]:
        """The partitions that this host leads now, in order. Holds nothing."""
        agent = self._agent("the list of what this host leads")
        return sorted(agent.call(calls.share(range(self.layout().partitions))).terms)

    def lease(self, role: Role, *, within: float = 0.0) -> AgentLease | None:
        """The lease of `role`, if this host leads it now or `within` that many seconds. It is not renewed."""
        return self._agent("a lease").lease(self._role(role), within=within)

    def leading(self, role: Role, *, timeout: float | None = None) -> LeadingBlock[AgentLease]:
        """A block of work for `role`: `with` waits until this host leads it, and holds it until the end of the
        block."""
        return self._agent("a lease").leading(self._role(role), timeout=timeout)

    def share(self, partitions: Iterable[int] | None = None, *, timeout: float | None = None) -> LeadingBlock[Share]:
        """A block of work for all partitions that this host leads, or for those of `partitions` that it leads."""
        return self._agent("a share").share(partitions, timeout=timeout)

    async def amember(self) -> str:
        return (await (await self._aagent("the name of this host's member")).call(calls.HERE)).member

    async def aleads(self, role: Role, *, within: float = 0.0) -> bool:
        return await self.alease(role, within=within) is not None

    async def aled(self) -> list[int]:
        agent = await self._aagent("the list of what this host leads")
        return sorted((await agent.call(calls.share(range((await self.alayout()).partitions)))).terms)

    async def alease(self, role: Role, *, within: float = 0.0) -> AsyncAgentLease | None:
        return await (await self._aagent("a lease")).lease(await self._arole(role), within=within)

    @asynccontextmanager
    async def aleading(self, role: Role, *, timeout: float | None = None) -> AsyncIterator[AsyncAgentLease]:  # noqa: ASYNC109 - same name as in `leading`.
        """A block of work, for `async with`: cancelled when its lease is lost, and then raises LeaseLost."""
        async with (await self._aagent("a lease")).leading(await self._arole(role), timeout=timeout) as lease:
            yield lease

    async def changes(self) -> AsyncGenerator[Batch | Away, None]:
        """All known owners in one batch, and then the changes. Never ends.

        If the agent or the ledger is away, it asks again on its own. It yields an outage once, as an Away, and the next
        batch contains all owners again. Raises only what waiting cannot fix: a connection that is wrong.
        """
        target = await self._atarget()
        if target.is_agent:
            follow = changes.of_agent(self._aclient_of(target))
        else:
            follow = changes.of_ledger(partial(self._router_of, target))
        async with aclosing(follow):
            async for news in follow:
                yield news

    # The test button in Airflow's connection form

    def test_connection(self) -> tuple[bool, str]:
        """Whether the connection works, and what answers."""
        try:
            with self:
                conn = self.get_conn()
                if isinstance(conn, Router):
                    return True, _described_ledger(conn)
                conn.lease(0)  # The status can be read without a token, a lease cannot.
                return True, _described(conn.status())
        except (NeliError, AirflowException) as error:
            return False, str(error)

    # Internals

    def _role(self, role: Role) -> int | str:
        """A role as an agent takes it. Raises BadKey."""
        return role_for(self.layout, asked_role(role))

    async def _arole(self, role: Role) -> int | str:
        asked = asked_role(role)
        return asked if fits_an_address(asked) else (await self.alayout()).partition_of_role(asked)

    def _agent(self, wanted: str) -> Client:
        conn = self.get_conn()
        if isinstance(conn, Client):
            return conn
        raise self.no_agent(wanted)

    async def _aagent(self, wanted: str) -> AsyncClient:
        target = await self._atarget()
        if target.is_agent:
            return self._aclient_of(target)
        raise self.no_agent(wanted)

    def no_agent(self, wanted: str) -> ConfigError:
        """The error of what only an agent can say."""
        problem = (
            f"{wanted} was wanted, but the connection {self.neli_conn_id!r} is to a ledger, which does not know this "
            "host: give it the address of this host's agent, such as unix:/run/neli/agent.sock"
        )
        return ConfigError([problem])

    async def _atarget(self) -> _Target:
        if self._target is None:
            try:
                self._target = _target_of(await self.aget_connection(self.neli_conn_id))
            except AirflowNotFoundException:
                raise _missing(self.neli_conn_id) from None
        return self._target

    def _aclient_of(self, target: _Target) -> AsyncClient:
        if self._async_client is None:
            self._async_client = AsyncClient(target.agent, token=target.token, timeout=self._timeout)
        return self._async_client

    def _router_of(self, target: _Target) -> Router:
        if self._router is None:
            if target.ownership:
                self._router = Router(owners_at(target.ownership), wait=False)
            else:
                self._router = Router(target.ledger, wait=False)
        return self._router


# The connection


def _missing(conn_id: str) -> AirflowNotFoundException:
    return AirflowNotFoundException(
        f"the connection {conn_id!r} was wanted, but it is not there: add it with "
        f"`airflow connections add {conn_id} --conn-type {CONNECTION_TYPE}`, and for an agent elsewhere than at its "
        f'default socket with --conn-extra \'{{"address": "unix:/run/neli/agent.sock"}}\''
    )


def _target_of(connection: Connection) -> _Target:
    """The target of `connection`. Raises AirflowException for another type, ConfigError for invalid settings."""
    conn_id = connection.conn_id
    if connection.conn_type != CONNECTION_TYPE:
        raise AirflowException(
            f"a connection of the type {CONNECTION_TYPE!r} was wanted, but {conn_id!r} is of the type "
            f"{connection.conn_type!r}: name another, or add one with "
            f"`airflow connections add NAME --conn-type {CONNECTION_TYPE}`"
        )
    (address, ownership), problems = _extra_of(connection)
    is_agent = not address or re.match(r"unix:|/|https?:", address) is not None
    if ownership and address:
        problems.append("address and ownership are both given: say which of the two to ask")
    if connection.host and (address or ownership):
        problems.append("a host is given, and an address, too: leave the host empty, or the address")
    if address and not is_agent:
        problems += problems_of(address)
    if problems:
        raise ConfigError([f"the connection {conn_id!r}: {problem}" for problem in problems])
    if ownership:
        return _Target(ownership=_with_password(ownership, connection))
    if not is_agent:
        return _Target(ledger=_with_password(address, connection))
    if connection.host:
        address = f"http://{spell_place(connection.host, connection.port or PORT)}"
    return _Target(agent=address or None, token=connection.password or None)


def _extra_of(connection: Connection) -> tuple[list[str], list[str]]:
    """The values of OPTIONS, and a sentence for each problem in the extra."""
    try:
        # Not `extra_dejson`, which talks to Airflow's supervisor again and may not be called from an event loop.
        extra: Any = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        return ["", ""], ['its extra is not JSON of the form {"address": "unix:/run/neli/agent.sock"}']
    values = [extra.get(name) or "" for name in OPTIONS]
    problems = [
        f"its extra has {name!r:.40}, which it has no use for: there is {', '.join(OPTIONS)}"
        for name in extra
        if name not in OPTIONS
    ]
    problems += [
        f"{name} must be text, got a {type(value).__name__}"
        for name, value in zip(OPTIONS, values, strict=True)
        if not isinstance(value, str)
    ]
    return [value if isinstance(value, str) else "" for value in values], problems


def _with_password(address: str, connection: Connection) -> str:
    """`address` with the connection's login and password, unless it has its own or is a file."""
    scheme, slashes, rest = address.partition("://")
    if not connection.password or scheme == "sqlite" or not slashes or "@" in rest.partition("/")[0]:
        return address
    return f"{scheme}://{quote(connection.login or '', safe='')}:{quote(connection.password, safe='')}@{rest}"


# A ledger's answers, in the form of an agent's


def _of_keys(router: BaseRouter, keys: Iterable[Key]) -> list[OwnerView]:
    layout = _layout_of(router)
    slots = [layout.slot(key) for key in keys]
    view, at = _believed(router), router.at
    return [owner_view(view, layout.partition_of_slot(slot), slot, at) for slot in slots]


def _of_role(router: BaseRouter, role: Role) -> OwnerView:
    return owner_view(_believed(router), _layout_of(router).partition_of_role(role), None, router.at)


def _layout_of(router: BaseRouter) -> Layout:
    layout = router.feed.layout
    return router.table.layout if layout is None else layout  # Without a table, that raises why there is none.


def _believed(router: BaseRouter) -> Table | NoTable:
    """The table, or the certainty that no member is alive. Raises the reason if neither can be believed."""
    view = router.feed.view
    if isinstance(view, NoTable) and view.plight not in NO_MEMBER:
        raise view.explain("the owner of a key or a role was wanted")
    return view


def _named(view: OwnerView) -> OwnerView:
    if view.name is None:
        raise NoOwner(f"an owner of partition {view.partition} was wanted", view.why, "start a member")
    return view


def checked(layout: Layout | None, wanted: Layout | None) -> Layout:
    """The layout of a group. Raises NoOwner if there is none, and GroupMismatch if it is not the wanted one."""
    if layout is None:
        raise NoOwner("the layout of the group was wanted", "no member ever joined it", "start a member")
    if wanted is not None and wanted != layout:
        raise GroupMismatch(
            "a group with the layout of this task was wanted",
            f"it has another: {wanted.difference(layout)}",
            "leave the layout to the group, or name the one that it has",
        )
    return layout


def _described(status: StatusView) -> str:
    layout = status.table.layout
    group = (
        f"{len(status.members)} members and {layout.partitions} partitions"
        if layout
        else "no member yet, it is starting"
    )
    trouble = f" {status.why}" if status.why else ""
    return f"The agent {status.agent} answers. Its group has {group}. It leads {status.led} of them.{trouble}"


def _described_ledger(router: Router) -> str:
    table = router.table
    owned = sum(owner is not None for owner in table.partitions)
    return (
        f"{table.address} was read. Its group has {len(table.members)} members, which own {owned} of "
        f"{table.layout.partitions} partitions. Leases need an agent."
    )
