"""The wire: the requests of an agent's clients and its answers, as JSON over HTTP.

    GET /v1/owner?key=K  --> OwnerView       POST /v1/owners, OwnersAsked --> OwnersView
    GET /v1/watch        --> a stream: `event: owner`, `data:` an OwnerView, for each change
    any of them          --> Refusal, with a status of STATUS_OF

`openapi.py` lists all endpoints. `key64` is URL-safe base64, for keys that are not text.

A client that streams `leadership/events` *holds* the role from `acquired` on: the role is handed over only after the
stream closes, or after `drain_timeout`. Text is a key, also one of digits.

A *share* is all partitions that this host leads, or those of them that `partitions` names: one stream holds them
together. `acquired` comes as soon as the host leads one, and lists every partition that it leads. `revoked` and
`fenced` name the partitions they affect: on `revoked` the client finishes its work and closes the stream, on `fenced`
it stops immediately. Each named partition is handed over when the stream closes, or after `drain_timeout`; the others
are still held. `more` names partitions that the host has led since: a new stream will hold them.

The `remaining` of an event was true when the event was written, and the event may have been delayed since. So a client
that receives an event asks for the lease or the share, and counts the remaining time in the answer from before it
asked. A lease with time remaining that is not led is being finished: it was revoked but is not handed over yet.

A client may send the process ID of one of its child processes in the header GUARDIAN. This promises that everything
that acts on its leases has ended once both processes have. If the agent dies, the group then need not wait for those
leases to run out. Only `neli run` can promise that.

A client that knows its group names it in the header GROUP, as `drivers/addresses.py` spells it, encoded as for a URL.
An agent of another group refuses such a request with GroupMismatch, whatever it asks.

Any status but 200 comes with a `Refusal`: what was wanted, what was found, and what to do.
"""

from collections.abc import Mapping

import msgspec

from neli_router import errors
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, NeliError
from neli_router.protocols.protocol import Cause

__all__ = [
    "AGE_MAX",
    "BODY_MAX",
    "GROUP",
    "GUARDIAN",
    "KEY_MAX",
    "NAME_MAX",
    "STATUS_OF",
    "DrainView",
    "EventView",
    "HistoryView",
    "LeaderView",
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
    "ProgressAsked",
    "ProgressView",
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

GROUP, GUARDIAN = "neli-group", "neli-guardian"

BODY_MAX = 1 << 20
"""Bytes of a request's body: some ten thousand keys. More would let one client take the agent's memory."""

KEY_MAX = 8192
"""Characters of a key in an address, within the limits of every HTTP library."""

NAME_MAX = 200
"""Characters of a table's name: more would not fit into a legend."""


class _View(msgspec.Struct, frozen=True, omit_defaults=False, forbid_unknown_fields=False):
    """A newer agent may send fields that an older client does not know."""


class OwnerView(_View, frozen=True):
    """The owner of a partition. If there is none, `name` is None and `why` gives the reason."""

    partition: int
    name: str | None
    address: str = ""
    term: int = 0
    slot: int | None = None
    """Where the key hashed to; None for a partition."""
    at: int = 0
    """The offset up to which the agent has read."""
    age: float = 0.0
    """Seconds since it last read everything there was to read."""
    why: str = ""
    believed: bool = False
    """Whether only this agent's member says so, in a group without a ledger and without a store of owners. Route by it;
    another agent may say otherwise, and only the lease of `name` allows anyone to act."""
    peer: str = ""
    """The peer that leads the partition, as the list spells it, in a group without a broker."""


class OwnersAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[str] = []
    keys64: list[str] = []


class OwnersView(_View, frozen=True):
    """The owners of `keys`, then of `keys64`, in their order."""

    owners: list[OwnerView]
    at: int
    age: float


class Refusal(_View, frozen=True):
    """An error that the agent raised: `kind` is its class in `neli_router.errors`."""

    kind: str
    wanted: str
    found: str
    remedy: str


class LeaderView(_View, frozen=True):
    """A partition, and this agent's member: enough to decide whether to begin work, in one answer. It lends nothing.
    Without a key or a role, there is only the member and the layout."""

    member: str
    may_act: bool
    """Whether `member` leads the partition and may act for it now."""
    layout: Layout
    owner: OwnerView | None
    refusal: Refusal | None = None
    """Why the owner that was asked for cannot be named: the error that a question for the owner would raise."""
    group: str = ""
    """The group's address, without secrets."""


class LeaseView(_View, frozen=True):
    """Whether the agent's member leads a role. `remaining` was true when the agent answered: count from before
    asking."""

    partition: int
    leads: bool
    member: str
    term: int = 0
    remaining: float = 0.0
    drain_timeout: float = 0.0
    why: str = ""
    """Why it does not lead, or was revoked or fenced."""


class ShareView(_View, frozen=True):
    """Partition -> term. `remaining` is the shortest time left on any of their leases, except those in `rests`. Count
    it as in a LeaseView."""

    member: str
    terms: dict[int, int] = {}
    remaining: float = 0.0
    drain_timeout: float = 0.0
    why: str = ""
    """Why no partition is led, or why these were revoked or fenced."""
    rests: dict[int, float] = {}
    """The partitions whose time ends sooner: they were revoked, and the time to finish is nearly over."""
    layout: Layout | None = None
    """How keys fall into partitions: in the answer about a share, not in its events."""


class PartitionView(_View, frozen=True):
    """`owner`, `target` and `standby` are indexes into the list of members, or None."""

    owner: int | None
    term: int
    target: int | None
    pinned: str | None = None
    load: float = 0.0
    standby: int | None = None
    """The member in another zone that gets the partition if its owner is lost; None in a group with one zone."""


class TableView(_View, frozen=True):
    address: str
    slots: int
    partitions: list[PartitionView]
    at: int
    age: float
    tags: bool = False
    why: list[str] = []
    """Among peers: why each partition has this leader, or none, as far as this agent's member knows. A status leaves it
    out, and in other groups it is empty."""

    @property
    def layout(self) -> Layout | None:
        """How the group's keys map to partitions; None until the agent knows the group."""
        return Layout(self.slots, len(self.partitions), self.tags) if self.slots else None


class MemberView(_View, frozen=True):
    name: str
    address: str
    zone: str
    weight: int
    """The weight in effect now: an operator's override comes before the member's own."""
    incarnation: str
    partitions: int
    load: float
    lease_left: float | None
    """By the agent's clock, since it read the member's last Beat; None if it has read none, or the member is away."""
    lag: int | None
    """How many records the member still had to read when it last beat."""
    drained: bool
    joined: int
    """The offset at which it joined."""
    joined_ago: float | None = None
    """Seconds since the agent read that join; None if the member had joined before the agent started."""
    witness: str = ""
    """The witness that would certify its death: the name of its host's agent, `child` or `peers`. Empty if only the end
    of its lease shows it."""
    away: bool = False
    """Whether it has left or died, and what it had waits for a process of its name."""


class MembersView(_View, frozen=True):
    members: list[MemberView]
    at: int
    age: float
    are_peers: bool = False
    """Whether these are the peers of a list, because nothing reports the members' names and addresses."""


class MoveView(_View, frozen=True):
    """By `offset`, partitions had moved from `source` to `target` because of a record of the kind `cause` by `by`."""

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
    """Part of one event: `number` partitions went from `source` to `target`; None stands for no member."""

    source: str | None
    target: str | None
    number: int
    partitions: list[int] = []
    """Empty if the move is too old, or if the answer would become too long."""


class EventView(_View, frozen=True):
    """One cause, and everything that moved because of it. An event that has grown is sent again with the same `offset`.

    `join`, `leave`, `expire`: by `by`. `certify`: `by` knew that the member's process had ended. `replace`: a newer
    process took the name. `fence`: the member was heard after it was expired or replaced, so it lived on and was
    fenced. A wish has its own name. `handover`: the reason was not read.

    In a borrowed group, which gives no reasons, `claim`: `member` leads more, and `release`: it leads less and no other
    member leads those partitions instead.

    Among peers, as this agent's member sees them, `silence`: `member` no longer answers, or is refused. `hear`: it
    answers again. `elect`: it leads these. `vacate`: it no longer leads these, and no other peer does yet.

    `other`: the records were not read.
    """

    offset: int
    ago: float
    """Seconds since the agent read it."""
    cause: Cause
    member: str
    """The member that the event is about; empty if there is none."""
    by: str
    moved: list[MovedView]
    partition: int | None = None
    """The partition that a pin names."""
    last: int = 0
    """The newest record that belongs to the event."""
    lasted: float = 0.0
    """Seconds from the first record to the newest."""
    reason: str = ""
    """The reason, where the protocol gives one."""
    term: int = 0
    """The highest term under which a partition moved. For `elect`, 0 if the terms differ."""


class HistoryView(_View, frozen=True):
    """In order of offset, so the newest cause is last. Member events and all other events have separate limits."""

    events: list[EventView]
    at: int


class PeerView(_View, frozen=True):
    """One peer on the list of a group without a broker."""

    peer: str
    """As the list spells it."""
    state: str
    """`here` for the agent's own member, `alive`, `one-way` (it is heard but does not answer), `refused` (its messages
    are), `silent`, or `unknown` if the agent has not asked it for long enough."""
    heard_ago: float | None
    """Seconds since a message from it was accepted; None if none ever was."""
    leads: int
    """Partitions that it leads, as far as this member knows."""
    reason: str = ""
    """Why its messages are refused."""
    name: str = ""
    """As the peer reported it some seconds ago, like all fields below; empty if it reported nothing."""
    address: str = ""
    """Where its clients reach it."""
    shed: int | None = None
    """Partitions that it leads only while no other peer can; None if it did not say, as in older releases."""
    drained: bool = False
    """Whether the partitions in `shed` are all that it could lead."""
    votes: bool = True
    """Whether it votes in elections. A second-class citizen of `gossip` only watches."""


class PeersView(_View, frozen=True):
    """The list, as the agent's member sees it."""

    peers: list[PeerView]
    majority: int
    """How many of the `voters` elect a leader."""
    alive: int
    """How many of the `voters` answer, counting this member."""
    term: int
    """The highest known term."""
    unled: int
    """Partitions for which this member is a voter and knows no leader."""
    voters: int = 0
    """How many peers elect together: all of them, unless each partition has its own replicas, or there are two classes.
    Then it is the size of the set that lacks most for a majority, or has fewest to spare. 0 comes from an older
    release, and means all."""


class StatusView(_View, frozen=True):
    """Everything that the page shows."""

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
    """Whether the agent's member could expire a dead one. It cannot if its own heartbeats come back too late."""
    protocol: str = "induction"
    """Any other protocol takes no wishes, and has no visible handovers, no lags and no loads."""
    shed: int = 0
    """Partitions that the agent's member leads only while no other member can."""
    idle: float = 0.0
    """Seconds since the last client of the agent's leases; 0 while there is one."""
    behind: Mapping[str, Mapping[int, int]] = {}
    """Table -> partition -> steps that a job of this host is behind its input."""
    store: str = ""
    """Where members and owners were read, if not from the address of the table: a store of owners."""
    peers: PeersView | None = None
    """Only in a group without a broker. Without a store, the members are the peers, and the owners the leaders."""


class WishAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `weight` of None restores the member's own weight."""

    name: str | None = None
    partition: int | None = None
    weight: int | None = None
    preview: bool = False


class WishView(_View, frozen=True):
    """The moves that the wish causes or would cause, each from one member to another."""

    done: bool
    moves: list[MoveView]


class DrainView(WishView, frozen=True):
    """A wish that starts or ends a drain."""

    remark: str = ""
    """How the drain continues, in words, where the moves do not show it."""


class RebalanceAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without `to`, this agent's member passes what it leads to the preferred peers. With `to`, that peer is to lead
    `partitions`, or all of them."""

    to: str | None = None
    partitions: list[int] | None = None


class RebalanceView(_View, frozen=True):
    """The request was passed on. Partitions move once their programs have finished."""

    member: str
    led: int
    """Partitions that this agent's member leads now."""


class ProgressAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a job on `table` is behind: partition -> steps of its input. Empty when it gives its partitions back."""

    table: str
    behind: dict[int, int]


class ProgressView(_View, frozen=True):
    """For how many seconds the agent shows this, unless it is reported again."""

    kept: float


class LoadAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`loads` is partition -> load; 0 forgets one. With a `layout`, the agent refuses loads for another group's
    layout."""

    loads: dict[int, float]
    layout: Layout | None = None
    preview: bool = False


class LoadView(WishView, frozen=True):
    """How evenly the load is spread: the largest load over weight, as a multiple of the fair share. 1 is even."""

    before: float
    """With partitions where they are now."""
    after: float
    """With partitions where they will be, once all are handed over."""
    share: float
    """The largest fraction of the whole load that is fair for one member."""


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
    "GroupMismatch": 409,
}
"""The HTTP status of each kind; 503 for all others, which may recover without intervention."""


def refusal(error: NeliError) -> Refusal:
    """`error` as it goes over the wire."""
    return Refusal(type(error).__name__, error.wanted, error.found, error.remedy)


def raised(answer: Refusal) -> NeliError:
    """The error in `answer`, as the agent raised it, as the nearest class that this side knows."""
    if answer.kind == "ConfigError":
        return ConfigError(answer.remedy.split("; "))
    kind = getattr(errors, answer.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, NeliError)):
        kind = NeliError
    return kind(answer.wanted, answer.found, answer.remedy)
