"""Wishes over HTTP: drain, undrain, pin, unpin, weigh, load and rebalance, and what each would move.

    POST --WishAsked--> does the member exist? --> what it would move --preview--> answered, and nothing done
                                                            '--> written to the group, read back, answered

The group accepts a wish for a member that is absent, and keeps it until one of that name joins. But a person who types
an unknown name has more often made a typo. So an agent refuses names that no member has now, and suggests the nearest;
only taking a wish back works for every name. A program that wants to name absent members uses a Member.

**Repeated loads.** For each change, assignment moves only a limited number of partitions for the sake of load, and a
record that changes nothing is not a change. So if the group knows exactly these loads already, they are sent again
twice as large. That is the same in another unit, and assignment continues from where it stopped.
"""

from collections.abc import Mapping
from functools import partial

from starlette.types import Send

from neli_router.agent import wire
from neli_router.agent.server import views
from neli_router.agent.server.hub import Hub
from neli_router.agent.server.requests import Answering, Request, answer, body_of, decoded, not_ready
from neli_router.config.protocols import ELECTED, Term
from neli_router.errors import ConfigError, StaleTable
from neli_router.member import wishes
from neli_router.member.async_member import AsyncMember
from neli_router.member.wishes import CheckedWish
from neli_router.protocols.protocol import LOAD_MAX, Cause
from neli_router.status.group_view import GroupView

__all__ = ["Wishes"]

NAMED: Mapping[Cause, tuple[str, ...]] = {
    "drain": ("name",),
    "undrain": ("name",),
    "pin": ("partition", "name"),
    "unpin": ("partition",),
    "weigh": ("name",),
}
"""The wishes that name something, and what they need."""


class Wishes:
    """The endpoints that change something."""

    def __init__(self, member: AsyncMember, hub: Hub) -> None:
        self._config, self._chronicle = hub.config, hub.chronicle
        self._member, self._membership = member, hub.membership
        self.endpoints: Mapping[tuple[str, str], Answering] = {
            ("POST", "/v1/rebalance"): self._rebalance,
            **{("POST", f"/v1/{kind}"): partial(self._wish, kind) for kind in (*NAMED, "load")},
        }

    async def _wish(self, kind: Cause, request: Request) -> None:
        body, send = await body_of(request.receive), request.send
        if self._config.protocol_name in ELECTED and kind in ("drain", "undrain"):
            await self._drain_itself(kind, body, send)
            return
        if not self._config.has_ledger:
            raise wishes.no_wishes(f"the wish {kind!r}", self._config.protocol_name)
        member, group = self._member, self._chronicle.group
        asked: wire.WishAsked | wire.LoadAsked
        if kind == "load":
            asked = decoded(wire.LoadAsked, body, '{"loads": {"17": 2.5}}')
            wish = self._load(asked, group)
        else:
            asked = _wish_asked(body, kind)
            wish = self._checked(kind, asked)
        if not group.is_founded:
            raise StaleTable(
                f"{wish.what} was wanted", "no group was read from the ledger yet", "wait until the agent is ready"
            )
        if wish.name:
            wishes.require_member(wish.name, group.names)
        record = wish.record(member.incarnation)
        moves = views.planned_views(group.moves_by(record), group.at, kind, member.name)
        if not asked.preview:
            await member.operator.wish(wish)
        done = not asked.preview
        view = wire.LoadView(done, moves, *group.balance_by(record)) if kind == "load" else wire.WishView(done, moves)
        await answer(send, view)

    async def _rebalance(self, request: Request) -> None:
        asked = decoded(wire.RebalanceAsked, await body_of(request.receive), '{"to": "host-1:7801"}')
        if asked.to is not None:
            self._require_answers(asked.to)
            self._member.operator.nominate(asked.to, asked.partitions)
        elif asked.partitions is None:
            self._member.operator.rebalance()
        else:
            raise ConfigError(["partitions need a peer to lead them: name one with `to`"])
        await answer(request.send, wire.RebalanceView(self._member.name, len(self._member.led)))

    def _require_answers(self, peer: str) -> None:
        """Raise why `peer` cannot be elected now: otherwise its nomination would fail without any notice."""
        outlook = self._membership.outlook
        if outlook is None or peer not in outlook.peers:
            return
        others = ", ".join(
            other for i, other in enumerate(outlook.peers) if other != peer and outlook.state(i) in ("alive", "here")
        )
        name = f"or name another of {others}" if others else "or name another"
        match outlook.state(place := outlook.peers.index(peer)):
            case "silent":
                found, remedy = f"it has been silent for {outlook.silent_for(place):.0f} s", f"start it, {name}"
            case "one-way":
                found = "it is heard and does not answer"
                remedy = f"if that lasts, see what keeps from it what is sent to it; {name}"
            case "refused":
                found = f"what comes from it is refused ({outlook.refusals[place]})"
                remedy = f"mend that, see `neli peers`, {name}"
            case _:
                return
        raise not_ready(f"{peer} was to lead", found, remedy)

    async def _drain_itself(self, kind: Cause, body: bytes, send: Send) -> None:
        """The same where a member drains itself: see `Operator.drain`. The peers that take over are not known yet."""
        asked, name, is_drain = _wish_asked(body, kind), self._member.name, kind == "drain"
        operator = self._member.operator
        operator.require_itself(asked.name or "")
        was_shedding = bool(operator.shedding)
        led = self._passed_on() if is_drain else []
        if not asked.preview:
            operator.shed(None if is_drain else ())
        moves = views.planned_views([(i, name, None) for i in led], 0, kind, name)
        options = self._config.options
        prefers = isinstance(options, Term) and options.policy != "random"
        if is_drain:
            remark = "Until `neli drain --undo`, also after a restart, this member leads only while no other peer can."
            if led:
                remark = f"Each goes to the peer that is elected for it. {remark}"
            elif self._member.led:
                remark = f"No other peer can lead now: what this member leads stays with it until one can. {remark}"
        elif not was_shedding:
            remark = "It was not drained."
        elif prefers:
            remark = "Its peers give back what it is preferred for, one partition after another, within some seconds."
        else:
            remark = "This member may be elected again. The present leader stays until it is gone or another is named."
        await answer(send, wire.DrainView(not asked.preview, moves, remark))

    def _passed_on(self) -> list[int]:
        """Partitions that this member leads and another peer can lead: one that answers and is not drained itself."""
        if (outlook := self._membership.outlook) is None:
            return []
        others = {place for place in range(len(outlook.peers)) if outlook.state(place) == "alive"}
        able = {place for place in others if (card := outlook.cards.get(place)) is None or not card.drained}
        replicas = self._member.operator.replicas()
        return [i for i in sorted(self._member.led) if not able.isdisjoint(replicas[i])]

    def _load(self, asked: wire.LoadAsked, group: GroupView) -> CheckedWish:
        layout = self._member.layout
        if not asked.loads:
            raise ConfigError(["load needs the load of at least one partition: give some"])
        if asked.layout is not None and (unequal := asked.layout.difference(layout)):
            raise ConfigError([f"these loads are of another layout than the group's: {unequal}"])
        wish = wishes.load(asked.loads, layout)
        # Scale the loads only if they are all that the group knows. Otherwise the others' would be in another unit.
        if not wish.shown(group.state) or group.loads.keys() - asked.loads.keys():
            return wish
        factor = 2.0 if max(asked.loads.values()) <= LOAD_MAX / 2 else 0.5
        return wishes.load({partition: factor * load for partition, load in asked.loads.items()}, layout)

    def _checked(self, kind: Cause, asked: wire.WishAsked) -> CheckedWish:
        name, partition, layout = asked.name or "", asked.partition or 0, self._member.layout
        match kind:
            case "drain":
                return wishes.drain(name)
            case "undrain":
                return wishes.undrain(name)
            case "pin":
                return wishes.pin(partition, name, layout)
            case "unpin":
                return wishes.unpin(partition, layout)
            case _:
                return wishes.weigh(name, asked.weight)


def _wish_asked(body: bytes, kind: Cause) -> wire.WishAsked:
    """A wish with all that it needs. Fields that it would ignore are refused."""
    asked = decoded(wire.WishAsked, body, '{"name": "host-1"}')
    taken = (*NAMED[kind], "weight") if kind == "weigh" else NAMED[kind]
    problems = [f"{kind} needs a {part}: give one" for part in NAMED[kind] if getattr(asked, part) is None]
    problems += [
        f"{kind} takes no {part}: leave it out"
        for part in ("name", "partition", "weight")
        if part not in taken and getattr(asked, part) is not None
    ]
    if problems:
        raise ConfigError(problems)
    return asked
