"""The wire: the requests of an agent's clients and its answers, as JSON over HTTP.

    GET  /v1/owner?key=K | key64=B | role=N      OwnerView      key64 is URL-safe base64, for keys that are no text
    POST /v1/owners           OwnersAsked        OwnersView
    GET  /v1/lease?role=N                        LeaseView      whether this host leads it now
    GET  /v1/leadership?role=N&timeout=S         LeaseView      waits until it does, at most S seconds
    GET  /v1/leadership/events?role=N            stream (LeaseView): waiting, acquired, renewed, revoked, fenced, ended
    GET  /v1/share?partitions=0,8-15             ShareView      those of them that this host may act for now
    GET  /v1/share/events?partitions=0,8-15      stream (ShareView): as of a role, and `more`
    GET  /v1/watch[?key=K | key64=B | role=N]    a stream: owner (OwnerView), for each change
    GET  /v1/table                               TableView
    GET  /v1/members                             MembersView
    GET  /v1/peers                               PeersView      of a group without a broker: who answers, who leads
    GET  /v1/moves?limit=N                       MovesView      one row a cause, source and target; the newest last
    GET  /v1/history?limit=N                     HistoryView    joins, ends, wishes, and what moved because of each
    GET  /v1/history/events                      stream (EventView): event, for each that is new or has grown
    GET  /v1/status                              StatusView     all of it, for the page
    GET  /v1/events                              a stream: status (StatusView) first, then changed (StatusView)
    POST /v1/drain undrain pin unpin weigh       WishAsked      WishView; with `"preview": true` only what it would do
    POST /v1/load             LoadAsked          LoadView       the same for loads, with how evenly they lie on members
    POST /v1/rebalance        RebalanceAsked     RebalanceView  leaders that are elected among peers move
    POST /v1/witness          WitnessAsked       a stream: registered (WitnessView); of `member/witness/registration.py`
    GET  /health  /ready  /metrics               for those who watch processes

A client that streams `leadership/events` *holds* the role from `acquired` on: it is handed over only when the stream
was closed, or after `drain_timeout`. A role that is a number is written so; anything else is a name.

A *share* is all partitions that this host leads, or those of them that `partitions` names: one stream holds them
together. `acquired` comes as soon as one is led, with all that are. `revoked` and `fenced` name the partitions that
they are about: the client finishes its work and closes the stream, or stops at once. Each is handed over when the
stream was closed, or after `drain_timeout`; the others are still held. `more` names partitions that are led since: this
stream does not hold them, and one that is opened anew does.

The `remaining` of an event was true when it was written, and the event may have lain around since. So a client that
hears one asks for the lease or the share, and counts the rest in the answer from before it asked. A lease with a rest
that is not led is being finished: it was revoked, and is not handed over yet.

A client may say in the header GUARDIAN the number of a child of its process: all that acts on its leases has ended when
both of them have. If the agent dies, the group then need not wait for those leases. Only `neli run` knows so much.

Any status but 200 comes with a `Refusal`, which has the three parts of the error: what was wanted, found, and what to
do.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from neli_router import errors
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, NeliError

__all__ = [
    "AGE_MAX",
    "BODY_MAX",
    "GUARDIAN",
    "KEY_MAX",
    "STATUS_OF",
    "Cause",
    "DrainView",
    "EventView",
    "HistoryView",
    "LeaseView",
    "LoadAsked",
    "LoadView",
    "MemberView",
    "MembersView",
    "MoveView",
    "MovedView",
    "MovesView",
    "OwnerView",
    "OwnersAsked",
    "OwnersView",
    "PartitionView",
    "PeerView",
    "PeersView",
    "RebalanceAsked",
    "RebalanceView",
    "Refusal",
    "ShareView",
    "StatusView",
    "TableView",
    "WishAsked",
    "WishView",
    "raised",
    "refusal",
]

AGE_MAX = 1e9
"""Stands for "never read", because JSON has no infinity."""

GUARDIAN = "neli-guardian"

BODY_MAX = 1 << 20
"""Bytes of a request's body: some ten thousand keys. More would let one client take the agent's memory."""

KEY_MAX = 8192
"""Characters of a key in an address, within the limits of every HTTP library."""


class _View(msgspec.Struct, frozen=True, omit_defaults=False, forbid_unknown_fields=False):
    """A newer agent may say more than an older client knows."""


class OwnerView(_View, frozen=True):
    """The owner of a partition; `name` is None if there is none, and then `why` says why."""

    partition: int
    name: str | None
    address: str = ""
    term: int = 0
    slot: int | None = None
    """Where the key hashed to; None for a role."""
    at: int = 0
    """The offset up to which the agent has read."""
    age: float = 0.0
    """How long ago it last read all there was, in seconds."""
    why: str = ""
    believed: bool = False
    """Whether only this agent's member says so, in a group without a ledger and without a store of owners. Route by it;
    another agent may say otherwise for a moment, and only the lease of `name` lets anybody act or write."""
    peer: str = ""
    """Of a group without a broker: the one that leads it, as the list spells it."""


class OwnersAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[str] = []
    keys64: list[str] = []


class OwnersView(_View, frozen=True):
    """The owners of `keys`, then of `keys64`, in their order."""

    owners: list[OwnerView]
    at: int
    age: float


class LeaseView(_View, frozen=True):
    """Whether the agent's member leads a role. `remaining` was true when it answered: count from before asking."""

    partition: int
    leads: bool
    member: str
    term: int = 0
    remaining: float = 0.0
    drain_timeout: float = 0.0
    why: str = ""
    """Why it does not lead, or was revoked or fenced."""


class ShareView(_View, frozen=True):
    """Partition -> term. `remaining` is the least rest of their leases, but of those in `rests`; it counts as in a
    LeaseView."""

    member: str
    terms: dict[int, int] = {}
    remaining: float = 0.0
    drain_timeout: float = 0.0
    why: str = ""
    """Why none is led, or these were revoked or fenced."""
    rests: dict[int, float] = {}
    """Of those that end sooner: they were revoked, and the time to finish is nearly over."""


class PartitionView(_View, frozen=True):
    """`owner` and `target` are places in the list of members, or None."""

    owner: int | None
    term: int
    target: int | None
    pinned: str | None = None
    load: float = 0.0


class TableView(_View, frozen=True):
    address: str
    slots: int
    partitions: list[PartitionView]
    at: int
    age: float
    tags: bool = False
    why: list[str] = []
    """Among peers, why each partition has this leader, or none, as far as this agent's member knows; not in a status.
    Empty elsewhere."""

    @property
    def layout(self) -> Layout | None:
        """How the group's keys fall into partitions; None until the agent knows the group."""
        return Layout(self.slots, len(self.partitions), self.tags) if self.slots else None


class MemberView(_View, frozen=True):
    name: str
    address: str
    zone: str
    weight: int
    """As it counts now, an operator's word before the member's own."""
    incarnation: str
    partitions: int
    load: float
    lease_left: float | None
    """By the agent's clock, from when it read the member's last Beat; None if it has read none yet."""
    lag: int | None
    """How many records the member had still to read when it last beat."""
    drained: bool
    joined: int
    """The offset at which it joined."""
    joined_ago: float | None = None
    """Seconds since the agent read that; None if it had joined before."""
    witness: str = ""
    """What would know for certain that it has died: the name of its host's agent, `child` or `peers`; empty if only its
    lease tells."""


class MembersView(_View, frozen=True):
    members: list[MemberView]
    at: int
    age: float
    are_peers: bool = False
    """Whether these are the peers of a list, because nothing tells their names and addresses."""


Cause = Literal[
    "join",
    "replace",
    "leave",
    "expire",
    "certify",
    "fence",
    "handover",
    "drain",
    "undrain",
    "pin",
    "unpin",
    "weigh",
    "load",
    "claim",
    "release",
    "silence",
    "hear",
    "elect",
    "vacate",
    "other",
]


class MoveView(_View, frozen=True):
    """Up to `offset`, partitions went from `source` to `target`, because of a record of the kind `cause` by `by`."""

    offset: int
    ago: float
    """Seconds since the agent read it."""
    partitions: list[int]
    source: str | None
    target: str | None
    cause: Cause
    by: str


class MovesView(_View, frozen=True):
    moves: list[MoveView]


class MovedView(_View, frozen=True):
    """Of one event: `number` partitions went from `source` to `target`; None is no member."""

    source: str | None
    target: str | None
    number: int
    partitions: list[int] = []
    """Empty if it was too long ago, or the answer would become too long."""


class EventView(_View, frozen=True):
    """One cause, and all that moved because of it. One that has grown is told again, with the same `offset`.

    `join`, `leave`, `expire` by `by`; `certify`: `by` knew that its process had ended; `replace`: a newer process took
    the name; `fence`: it was heard after it was expired or replaced, so it lived on and was fenced; a wish;
    `handover`: the reason was not read; in a borrowed group, which does not tell why, `claim`: `member` leads more, and
    `release`: it leads less, and no other leads that instead; among peers, as this agent's member sees them, `silence`:
    `member` answers no more, or is refused, `hear`: it does again, `elect`: it leads these, `vacate`: it leads these no
    more, and no other does yet; `other`: the records were not read.
    """

    offset: int
    ago: float
    """Seconds since the agent read it."""
    cause: Cause
    member: str
    """The member that it is about; empty if it is about none."""
    by: str
    moved: list[MovedView]
    partition: int | None = None
    """The one that a pin names."""
    last: int = 0
    """The newest record that belongs to it."""
    lasted: float = 0.0
    """Seconds from the first to that."""
    reason: str = ""
    """Why, where the protocol tells."""
    term: int = 0
    """Of `elect`: under which `member` was elected for all that moved; 0 if for some under another."""


class HistoryView(_View, frozen=True):
    """By offset, so the newest cause last. Events of members and all others are bounded apart."""

    events: list[EventView]
    at: int


class PeerView(_View, frozen=True):
    """One of the list of a group without a broker."""

    peer: str
    """As the list spells it."""
    state: str
    """`here` for the agent's own member, `alive`, `one-way` (it is heard, and does not answer), `refused` (what comes
    from it is), `silent`, or `unknown` for one that was not asked for long enough."""
    heard_ago: float | None
    """Seconds since something of it was taken; None if nothing ever was."""
    leads: int
    """Partitions that it leads, as far as this member knows."""
    reason: str = ""
    """Why what comes from it is refused."""
    name: str = ""
    """As it told some seconds ago, as all below; empty if it told nothing."""
    address: str = ""
    """Where its clients reach it."""
    shed: int | None = None
    """Partitions that it leads only while no other can; None if it told nothing: older releases do not."""
    drained: bool = False
    """Whether these are all that it could lead."""
    votes: bool = True
    """Whether it elects anything; not a second-class citizen of `gossip`, which watches."""


class PeersView(_View, frozen=True):
    """The list, as the agent's member sees it."""

    peers: list[PeerView]
    majority: int
    """How many of the `voters` elect a leader."""
    alive: int
    """How many of them answer; this member counts as one that does."""
    term: int
    """The highest that is known."""
    unled: int
    """Partitions that this member helps to elect a leader for, and knows none."""
    voters: int = 0
    """How many elect together: all, unless each partition has replicas of its own, or there are two classes. Then it is
    the set of them that lacks most for a majority, or has fewest to spare. 0 is from an older release, and is all."""


class StatusView(_View, frozen=True):
    """All that the page shows."""

    agent: str
    """The name of the agent's member."""
    version: str
    guarantee: str
    lease: float
    member: str
    """The phase of the agent's member: reading, founding, waiting, joining, member, leaving, stopped."""
    table: TableView
    members: list[MemberView]
    history: list[EventView]
    why: str = ""
    """Why partitions are unowned, or the table cannot be believed."""
    led: int = 0
    can_expire: bool = True
    """Whether the agent's member could expire one that dies: not if its own heartbeats come back too late for that."""
    protocol: str = "induction"
    """Another one takes no wishes, and has neither handovers that can be seen, nor lags, nor loads."""
    shed: int = 0
    """Partitions that the agent's member leads only while no other can."""
    store: str = ""
    """Where members and owners were read, if that is not the address of the table: a store of owners."""
    peers: PeersView | None = None
    """In a group without a broker. If it has no store either, members are peers, and owners their leaders."""


class WishAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`weight` None lets a member count with its own again."""

    name: str | None = None
    partition: int | None = None
    weight: int | None = None
    preview: bool = False


class WishView(_View, frozen=True):
    """The moves that the wish causes, or would: partitions that are to go from one member to another."""

    done: bool
    moves: list[MoveView]


class DrainView(WishView, frozen=True):
    """A wish that a drain begins or ends."""

    remark: str = ""
    """How it goes on, for people, where that does not show in the moves."""


class RebalanceAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without `to`, this agent's member passes what it leads to the peers that are preferred. With it, that peer shall
    lead `partitions`, or all."""

    to: str | None = None
    partitions: list[int] | None = None


class RebalanceView(_View, frozen=True):
    """It was asked for. Partitions move when their programs have finished."""

    member: str
    led: int
    """Partitions that this agent's member leads now."""


class LoadAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`loads` is partition -> load; 0 forgets one. With a `layout`, the agent refuses those of another group."""

    loads: dict[int, float]
    layout: Layout | None = None
    preview: bool = False


class LoadView(WishView, frozen=True):
    """How evenly loads lie: the largest load over weight, as a multiple of what is fair. 1 is even."""

    before: float
    """Where partitions are now."""
    after: float
    """Where they are to be, once all is handed over."""
    share: float
    """The largest part of the whole load that is fair for a member."""


class Refusal(_View, frozen=True):
    """An error, as it was raised: `kind` is its class in `neli_router.errors`."""

    kind: str
    wanted: str
    found: str
    remedy: str


STATUS_OF: Mapping[str, int] = {
    "BadKey": 400,
    "ConfigError": 400,
    "BadRequest": 400,
    "TokenWanted": 401,
    "NotFound": 404,
    "NoOwner": 404,
    "TooLarge": 413,
    "NotLeading": 409,
    "BeyondProtocol": 409,
}
"""The HTTP status of each kind; 503 for all others, which may heal by themselves."""


def refusal(error: NeliError) -> Refusal:
    """`error` as it goes over the wire."""
    return Refusal(type(error).__name__, error.wanted, error.found, error.remedy)


def raised(answer: Refusal) -> NeliError:
    """The error of `answer`, as the agent raised it, of the nearest class that this side knows."""
    if answer.kind == "ConfigError":
        return ConfigError(answer.remedy.split("; "))
    kind = getattr(errors, answer.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, NeliError)):
        kind = NeliError
    return kind(answer.wanted, answer.found, answer.remedy)
