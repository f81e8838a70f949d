"""The application: each request of the wire, and the method that answers it.

    connection --> guard --> path --+-- here: owner, owners, leader, table, members, peers, moves, history, status,
                                    |         ready, and the streams watch, events, history/events
                                    |-- lender.py: lease, share, leadership, leadership/events, share/events
                                    |-- lives.py: witness
                                    |-- progress.py: progress
                                    |-- wishes.py: drain, undrain, pin, unpin, weigh, load, rebalance
                                    '-- agent/page.py: /, /assets/

Routes are a dictionary, and endpoints are bare ASGI: owners are looked up thousands of times a second, and a framework
would add more cost to each request than the answer itself has. No answer occupies the loop for long: a request for many
owners is answered in runs, with other requests in between.
"""

import asyncio
from collections.abc import Callable, Mapping

from starlette.types import Receive, Scope, Send

from neli_router.agent import page, wire
from neli_router.agent.openapi import ENDPOINTS, document
from neli_router.agent.owners import age_of
from neli_router.agent.server import views
from neli_router.agent.server.connections import event
from neli_router.agent.server.hub import STATUS_PAUSE, Hub
from neli_router.agent.server.lender import Lender
from neli_router.agent.server.lives import Lives
from neli_router.agent.server.metrics import CONTENT_TYPE
from neli_router.agent.server.requests import (
    Answering,
    Place,
    Request,
    RequestRefused,
    Route,
    answer,
    answer_bytes,
    body_of,
    keys_asked,
    not_ready,
    number,
    place,
    queried,
    require_group,
)
from neli_router.agent.server.wishes import Wishes
from neli_router.config.protocols import ELECTED
from neli_router.core.clock import host_clock
from neli_router.errors import BeyondProtocol, NeliError, NoOwner
from neli_router.member.async_member import AsyncMember
from neli_router.router.table import At, Table
from neli_router.status.causes import SETTLED
from neli_router.status.chronicle import EVENTS_MAX
from neli_router.status.group_view import GroupView

__all__ = ["App"]

KEYS_MAX = 70_000
"""Keys in one request. More fit into a body only if they are too short to mean anything."""

RUN = 500
"""Keys that are looked up before another request gets its turn: half a millisecond."""

TEXT = CONTENT_TYPE.encode()


class App:
    """An ASGI application over one member. `metrics` gives the text of /metrics."""

    def __init__(self, member: AsyncMember, hub: Hub, lives: Lives, metrics: Callable[[], bytes], version: str) -> None:
        self._config, self._member, self._membership, self._hub = hub.config, hub.member, hub.membership, hub
        self._traffic, self._metrics_text, self._version = hub.traffic, metrics, version
        self._group_name = hub.config.group_name
        self._feed, self._layout = hub.member.router.feed, member.layout
        self._assets = page.load()
        self._status_json = (-1.0, -1, b"")
        lender, wishes = Lender(hub), Wishes(member, hub)
        endpoints: Mapping[tuple[str, str], Answering] = {
            ("GET", "/v1/owner"): self._owner,
            ("POST", "/v1/owners"): self._owners,
            ("GET", "/v1/leader"): self._leader,
            ("GET", "/v1/lease"): lender.lease,
            ("GET", "/v1/leadership"): lender.leadership,
            ("GET", "/v1/leadership/events"): lender.leadership_events,
            ("GET", "/v1/share"): lender.share,
            ("GET", "/v1/share/events"): lender.share_events,
            ("GET", "/v1/watch"): self._watch,
            ("GET", "/v1/table"): self._table,
            ("GET", "/v1/members"): self._members,
            ("GET", "/v1/peers"): self._peers,
            ("GET", "/v1/moves"): self._moves,
            ("GET", "/v1/history"): self._history,
            ("GET", "/v1/history/events"): self._history_events,
            ("GET", "/v1/status"): self._status,
            ("GET", "/v1/events"): self._events,
            ("POST", "/v1/progress"): hub.progress.report,
            ("POST", "/v1/witness"): lives.witness,
            ("GET", "/v1/openapi.json"): self._openapi,
            ("GET", "/health"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/metrics"): self._metrics,
            **wishes.endpoints,
        }
        self._routes = {
            asked: Route(endpoint, ENDPOINTS[asked].parameters if asked in ENDPOINTS else ())
            for asked, endpoint in endpoints.items()
        }
        self._paths = {path for _, path in self._routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        require_group(scope, self._group_name)
        method, path = scope["method"], scope["path"]
        route = self._routes.get((method, path))
        if route is None and method == "HEAD" and not _is_endless(path):
            route = self._routes.get(("GET", path))
        if route is not None:
            asked = {} if route.parameters is None else queried(scope["query_string"], route.parameters)
            await route.endpoint(Request(asked, scope, receive, send))
        elif method in {"GET", "HEAD"} and path in self._assets:
            await page.answer_asset(self._assets[path], scope, send)
        else:
            raise self._unknown(method, path)

    # Owners

    async def _owner(self, request: Request) -> None:
        await answer(request.send, self._owner_of(place(request.asked, self._layout)))

    async def _leader(self, request: Request) -> None:
        owner: wire.OwnerView | None = None
        refused: wire.Refusal | None = None
        may_act = False
        if request.asked:
            where = place(request.asked, self._layout)
            try:
                owner = self._owner_of(where)
            except NeliError as error:
                refused = wire.refusal(error)
            may_act = self._member.lease(where.partition) is not None
        view = wire.LeaderView(self._member.name, may_act, self._layout, owner, refused, self._address)
        await answer(request.send, view)

    def _owner_of(self, where: Place) -> wire.OwnerView:
        view = self._feed.view
        if not isinstance(view, Table):
            error = view.explain(f"the owner of partition {where.partition} was wanted")
            self._traffic.lookups[type(error).__name__] += 1
            raise error
        found = self._hub.owner_view(view, where.partition, where.slot, self._feed.at)
        self._traffic.lookups["owned" if found.name is not None else "NoOwner"] += 1
        if found.name is None:
            raise NoOwner(f"the owner of partition {where.partition} was wanted", found.why, view.why_unowned[1])
        return found

    async def _owners(self, request: Request) -> None:
        keys = keys_asked(await body_of(request.receive))
        if len(keys) > KEYS_MAX:
            found = f"these are {len(keys)}"
            raise RequestRefused("TooLarge", f"at most {KEYS_MAX} keys were wanted", found, "ask for them in parts")
        view, at, layout = self._feed.view, self._feed.at, self._layout
        if not isinstance(view, Table):
            raise view.explain("the owners of several keys were wanted")
        owners = []
        for number_of, key in enumerate(keys):
            if number_of % RUN == RUN - 1:
                await asyncio.sleep(0)
            slot = layout.slot(key)
            owners.append(self._hub.owner_view(view, layout.partition_of_slot(slot), slot, at))
        owned = sum(owner.name is not None for owner in owners)
        self._traffic.lookups.update({"owned": owned, "NoOwner": len(owners) - owned})
        await answer(request.send, wire.OwnersView(owners, at.offset, age_of(at)))

    # The group

    async def _table(self, request: Request) -> None:
        self._require_read("the table was wanted")
        await answer(request.send, views.table_view(self._group, self._address, self._at, self._membership.outlook))

    async def _members(self, request: Request) -> None:
        self._require_read("the members were wanted")
        members, at = views.member_views(self._group, host_clock()), self._at
        await answer(request.send, wire.MembersView(members, at.offset, age_of(at), are_peers=self._hub.is_alone))

    async def _peers(self, request: Request) -> None:
        if (outlook := self._membership.outlook) is None:
            protocol, wanted = self._config.protocol_name, "the peers of this member were wanted"
            if protocol in ELECTED:
                raise not_ready(
                    wanted, views.why_unled(outlook), "ask again in a second; the log says what keeps it from that"
                )
            raise BeyondProtocol(
                wanted,
                f"with the protocol {protocol!r} members do not elect among themselves",
                "ask for the members",
            )
        await answer(request.send, views.peers_view(outlook))

    @property
    def _group(self) -> GroupView:
        return self._hub.chronicle.group

    @property
    def _at(self) -> At:
        """How current the displayed group is."""
        return At(self._group.at, 0.0) if self._hub.is_alone else self._feed.at

    def _require_read(self, wanted: str) -> None:
        """Raise the reason if the ledger was never read: an empty list would look like an empty group."""
        if self._hub.is_alone:
            return
        view = self._feed.view
        if self._feed.at.age > wire.AGE_MAX and not isinstance(view, Table):
            raise view.explain(wanted)

    async def _moves(self, request: Request) -> None:
        limit = int(number(request.asked, "limit", default=views.MOVES_SHOWN, most=EVENTS_MAX))
        await answer(request.send, views.moves_view(self._group, host_clock(), limit))

    async def _history(self, request: Request) -> None:
        limit = int(number(request.asked, "limit", default=views.EVENTS_SHOWN, most=EVENTS_MAX))
        self._require_read("the history was wanted")
        group = self._group
        await answer(request.send, wire.HistoryView(views.history_views(group, host_clock(), limit), group.at))

    async def _status(self, request: Request) -> None:
        await answer(request.send, self._status_view())

    def _status_view(self) -> wire.StatusView:
        config, view, group, at = self._config, self._feed.view, self._group, self._at
        outlook, now = self._membership.outlook, host_clock()
        if self._hub.is_alone:
            why = views.why_unled(outlook)
        elif isinstance(view, Table):
            why = view.why_unowned[0] if None in view.partitions else ""
        else:
            error = view.explain("the table was wanted")
            why = f"{error.found}: {error.remedy}"
        return wire.StatusView(
            agent=self._member.name,
            version=self._version,
            guarantee=config.guarantee,
            lease=config.lease,
            member=self._doing(),
            table=views.table_view(group, self._address, at),
            members=views.member_views(group, now),
            history=views.history_views(group, now, views.EVENTS_SHOWN),
            why=why,
            led=0 if self._member.closed else len(self._member.led),
            can_expire=not self._membership.is_powerless,
            protocol=config.protocol_name,
            store="" if config.has_ledger or self._hub.is_alone else self._feed.address,
            shed=len(self._member.operator.shedding),
            idle=self._hub.demand.idle_for,
            behind=self._hub.progress.behind,
            peers=None if outlook is None else views.peers_view(outlook),
        )

    # Streams

    async def _watch(self, request: Request) -> None:
        partition = place(request.asked, self._layout).partition if request.asked else None
        with self._hub.serving(request.scope) as channel, self._hub.watching(channel, partition):
            await channel.carry(request.send)

    async def _events(self, request: Request) -> None:
        name, shown = "status", -1

        def look() -> None:
            nonlocal name, shown
            if shown != self._hub.status.version:
                shown = self._hub.status.version
                # Built here and not on change: a slow client gets the newest status instead of all of them.
                channel.put(self._status_event(name, shown))
                name = "changed"

        with self._hub.serving(request.scope) as channel, self._hub.status.showing(channel):
            await channel.carry(request.send, look)

    def _status_event(self, name: str, version: int) -> bytes:
        """The status as an event. It is built once, and all streams show the same one."""
        made_at, made_of, said = self._status_json
        now = asyncio.get_running_loop().time()
        if version != made_of or now - made_at > STATUS_PAUSE:
            said = event("changed", self._status_view())
            self._status_json = now, version, said
        return said.replace(b"changed", name.encode(), 1)

    async def _history_events(self, request: Request) -> None:
        events, is_growing = self._group.events, False
        told = {one.offset: one.last for one in events}  # /v1/history answers for the past.

        def look() -> None:
            nonlocal events, is_growing, told
            if not is_growing and events is self._group.events:
                return
            events, now = self._group.events, host_clock()
            for one in events:
                known = told.get(one.offset)
                # A growing event is sent when it begins and when it has settled, not 256 times in between.
                if known is None or (known < one.last and now - one.last_at >= SETTLED):
                    told[one.offset] = one.last
                    channel.put(event("event", views.event_view(one, now)))
            told = {one.offset: told[one.offset] for one in events}
            is_growing = any(told[one.offset] < one.last for one in events)

        with self._hub.serving(request.scope) as channel, self._hub.status.showing(channel):
            await channel.carry(request.send, look)

    # The process

    async def _openapi(self, request: Request) -> None:
        await answer(request.send, document(self._version))

    async def _health(self, request: Request) -> None:
        if self._member.closed:
            raise not_ready("a member that lives was wanted", self._hub.why(0), "start the agent again")
        if self._hub.is_stuck:
            raise not_ready("a member that lives was wanted", "its thread gives no sign", "start the agent again")
        await answer(request.send, {"alive": True, "member": self._doing()})

    async def _ready(self, request: Request) -> None:
        source, yet = "ledger", "it was not admitted yet, for which it must first have read along"
        if not self._config.has_ledger:
            source = "peers" if self._config.protocol_name in ELECTED else "broker"
            yet = "the store of owners does not show it yet"
        wanted, view = f"a member of the group that reads its {source} was wanted", self._feed.view
        if self._hub.is_ending:
            raise not_ready(wanted, self._hub.why(0), "ask another agent")
        if self._hub.is_stuck:
            raise not_ready(wanted, "the member's thread gives no sign", "start the agent again")
        if self._membership.obstacle:
            remedy = f"mend that, or correct the {source}'s address; the agent keeps trying"
            raise not_ready(wanted, f"the {source} is out of reach ({self._membership.obstacle})", remedy)
        if not isinstance(view, Table) and not self._hub.is_alone:
            error = view.explain(wanted)
            raise not_ready(wanted, error.found, error.remedy)
        if self._doing() != "member":
            raise not_ready(wanted, yet, "wait a lease")
        await answer(request.send, {"ready": True, "member": self._doing()})

    async def _metrics(self, request: Request) -> None:
        await answer_bytes(
            request.send, self._metrics_text(), [(b"content-type", TEXT), (b"cache-control", b"no-store")]
        )

    @property
    def _address(self) -> str:
        """The group's own address, even where its owners are read from elsewhere."""
        return self._feed.address if self._config.has_ledger else self._config.public_ledger

    def _doing(self) -> str:
        """The member's state in one word, as far as other programs can see it."""
        member, group = self._member, self._group
        if member.closed:
            return "stopped"
        if self._membership.closing:
            return "leaving"
        if self._hub.is_alone:
            return "member" if member.incarnation else "joining"
        if self._feed.at.age > wire.AGE_MAX or self._membership.obstacle:  # Never read to the end, or unreadable now.
            return "reading"
        if not group.is_founded:
            return "founding"
        return "member" if group.has(member.incarnation) else "joining"

    # Unknown paths

    def _unknown(self, method: str, path: str) -> RequestRefused:
        others = sorted(known for known, other in self._routes if other == path)
        if others:
            found, remedy = f"it does not take {method:.20}", f"send {' or '.join(others)}"
        else:
            found, remedy = "there is none at this path", f"there is {', '.join(sorted(self._paths))}"
        return RequestRefused("NotFound", "something to answer was wanted", found, remedy)


def _is_endless(path: str) -> bool:
    return path.endswith("events") or path in {"/v1/watch", "/v1/leadership"}
