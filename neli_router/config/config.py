"""Configuration: one program's settings for its group, checked as a whole, and turned into a ledger.

    Config("sqlite:///var/lib/jobs/ledger.db", lease=0.5)   Config.of({"ledger": "memory://jobs", ...})
       |                                                       '-- an unknown option: the error suggests the nearest
       |-- all problems together --> ConfigError
       |-- open(config) --> Ledger                             by its address: see `ledgers/addresses.py`
       '-- owners_at(config.ownership) --> OwnersSource

A member without a configured name gets a fresh one each time it is opened. Host name and process number would not be
enough: in containers every process is number 1, and a server that loads the program before it forks would give all
workers the parent's number. If two live members have the same name, only one goes on: the older one, unless the newer
one is configured to take the name.
"""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any

from neli_router.core.keyspace import Layout
from neli_router.drivers.consumer_groups.base import GroupLook, GroupSubscription
from neli_router.drivers.consumer_groups.kafka import address as group_address
from neli_router.drivers.consumer_groups.kafka.address import GroupAddress
from neli_router.drivers.ledgers.addresses import (
    needing,
    open_ledger,
    owners_problems,
    problems_of,
    public_address,
    unknown,
)
from neli_router.drivers.ledgers.base import Ledger, Promise
from neli_router.drivers.ledgers.redis import address as redis_address
from neli_router.drivers.owners.base import OwnersSource
from neli_router.drivers.peers import address as peers_address
from neli_router.drivers.peers import udp as peer_sockets
from neli_router.drivers.peers.address import PeersAddress
from neli_router.drivers.peers.base import PeerLink
from neli_router.errors import BeyondProtocol, ConfigError
from neli_router.protocols.consumer_group.settings import FastNeliSettings, GroupSettings, NeliSettings
from neli_router.protocols.electors.preferences import preferred_rows
from neli_router.protocols.electors.settings import GossipSettings, TermSettings
from neli_router.protocols.protocol import Guarantee, Settings

__all__ = [
    "BORROWED",
    "ELECTED",
    "LEASES",
    "PROTOCOLS",
    "PROTOCOLS_OWN",
    "SHARERS",
    "WITNESSES",
    "Config",
    "look_at_group",
    "look_at_votes",
    "my_place",
    "open",
    "open_link",
    "owners_at",
    "owners_of",
    "peers_at",
    "read_peers_key",
    "require_promises",
    "subscribe",
    "try_to_listen",
]

PROTOCOLS = ("induction", "neli", "fast-neli", "term", "gossip")
"""The names that DESIGN and the papers use."""

BORROWED, ELECTED = PROTOCOLS[1:3], PROTOCOLS[3:]
"""The protocols that borrow a broker's consumer group, and those whose members elect among themselves."""

PROTOCOLS_OWN = float("nan")
"""Marks a lease that was not set. It is compared by identity, never used as a number."""

WITNESSES = ("auto", "agent", "child", "none")
"""The choices for a witness, which reports the death of a member's process: see `member/witness/choice.py`."""

KILL_HUNG_MIN = 0.5
"""Part of the lease: at least two beats, which may be a quarter of the lease apart."""

LEASES = {"induction": 1.0, "neli": 3.0, "fast-neli": 5.0, "term": 1.5, "gossip": 3.0}
"""The default lease of each protocol. With a broker's usual sessions, the borrowed protocols cannot have a shorter one.
`term` beats three times in it. `gossip` calls it P, and needs this long until all peers hear of a new favourite."""

BEATS = {"term": 3, "gossip": 10}
"""The default number of beats in a lease, for protocols between peers. More cost datagrams and forgive more loss."""

SHARERS = {
    **dict.fromkeys(BORROWED, "its broker shares the partitions out"),
    **dict.fromkeys(ELECTED, "its members elect who leads"),
}
"""The replacement for a ledger's table, as a clause."""

AVAILABLE_NELI_LEASE = 12.0
"""The default lease of `neli` under `available`: the old leader must last until a session of six seconds has ended."""

PARTITIONS_MAX = 4096
"""The most partitions for protocols between peers: more would need many datagrams at each beat."""

HOST_MAX = 64
"""How many characters of the host's name go into a fresh member's name: the most that Linux allows."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a member or a router. An immutable value, safe to share. `ConfigError` names all problems.

    Times are in seconds. `layout`, `lease` and `guarantee` belong to the group: a member whose values differ from the
    ledger's is refused. Everything else is this member's own.
    """

    ledger: str
    """Where the group's ledger is: `sqlite:///absolute/path`, `kafka://host:9092/group` ...: `ledgers/addresses.py`."""
    _: KW_ONLY
    name: str | None = None
    """The member's name. With a name that outlives a restart, a member gets its partitions back immediately and can be
    pinned and drained by name; None means a fresh name each time."""
    address: str = ""
    """Where clients reach this member: returned with every look-up, never used by us."""
    weight: int = 1
    """The share of partitions, relative to the others' weights; 0 asks for none."""
    zone: str = ""
    layout: Layout = Layout()  # noqa: RUF009 - an immutable value, like a number.
    lease: float = PROTOCOLS_OWN
    """How long a heartbeat proves anything. A shorter lease takes over sooner; a longer one forgives longer pauses of a
    process. One second for `induction`. For borrowed groups it is the paper's T, or goNELI's HeartbeatTimeout, and by
    default a value that suits a broker."""
    beat: float | None = None
    """Seconds between heartbeats; None means a sixth of the lease, or the same as goNELI. Shorter forgives more loss,
    and costs records."""
    guarantee: Guarantee = "exclusive"
    """`exclusive`: at most one acts for a partition, with a short gap. `available`: at least one, with an overlap."""
    delay_max: float | None = None
    """Under `available`, how late a record may be read; None means a quarter of the lease. Longer overlaps longer."""
    drain_timeout: float = 30.0
    """How long a successor waits for work in progress. A longer timeout suits long work, but a program that hangs holds
    up its successor for that long. If other processes act on leases, like an agent's clients, it must be no shorter
    than the lease: they may hear late that a lease is over, and rely on the end that they were given before the
    partition was asked for."""
    snapshot_every: int = 5000
    """Records between snapshots. More records slow down newcomers; fewer make the ledger larger."""
    protocol: str = "induction"
    """`induction`, which has a ledger; or a protocol that borrows a consumer group in Kafka: the paper's `neli`, or
    goNELI's `fast-neli`; or one whose members elect among themselves, only by messages: `term`, or `gossip`, whose one
    leader leads everything. Except with the first, members know only what they lead themselves, and learn who leads the
    rest from `ownership`."""
    policy: str | None = None
    """For `term`: which peer stands first. `priority` shares the partitions out and gives them back to a peer that
    returns; with `random`, a leader stays. None means `priority`."""
    replicas: int | None = None
    """For `term` under `priority`: how many peers elect the leader of each partition. None means all. Fewer cost fewer
    datagrams, but a partition has no leader when a majority of its few peers is away."""
    preferences: str | None = None
    """For `term` under `priority`: which peers should lead, best first. `"others,c:7801"` lets c lead nothing while
    another peer can; `"0-31: a:7801,b:7801"` is for some partitions; a `;` separates rules. None shares out evenly.
    Preferences are this member's own: see `electors/preferences.py`."""
    first_class: int | None = None
    """For `gossip`: how many peers vote and may lead. They gossip twice as often as the others, and the leader replaces
    those that are dead. None means all. In a large group, a few find a leader sooner, but survive fewer losses."""
    relay: bool = False
    """For `gossip`: report the latest that is known of a peer's clock, instead of what the peer last said itself. Leads
    last a little longer where news goes through others; it costs a little more work. Members may differ in this."""
    session: float | None = None
    """For a borrowed group: how long the broker waits for a silent consumer. None means a value fit for the lease."""
    clock_error: float = 0.5
    """For `neli` under `exclusive`: the most that this host's wall clock and any broker's differ."""
    groups: int = 1
    """For `neli`: how many groups share the topic. Each broadcasts n times less often."""
    term_base: int = 0
    """All terms are above this. When a group moves here from another ledger, or its topic is recreated, set this in all
    members to the highest term that it had, or to a higher number: docs/protocols.md has one for every move."""
    goneli: bool = False
    """For `fast-neli`: share a group with processes that run goNELI."""
    accept_rewinds: bool = False
    """Run an `exclusive` group on a ledger that may lose records it has shown: two members may then lead at once."""
    replace: bool = False
    """Take the name from a live member that has it, and end that member. Otherwise this member ends with NameTaken once
    it has heard the other: two processes that are both restarted whenever they end would swap the name forever."""
    max_age: float | None = 10.0
    """For look-ups: they raise if the ledger was last read longer ago than this. None goes on with the last table."""
    witness: str = "auto"
    """The witness that reports this process's death to the others, so that they need not wait for its lease: the host's
    `agent`, a `child` process of its own, or `none`. `auto` takes what is available at no cost: that agent, or
    otherwise, on SQLite, the other members. A member that passes its leases on to other processes needs `none`, or
    `child` and a pledge of until when they act: see docs/fencing.md."""
    kill_hung: float | None = None
    """The part of the lease for which this member's thread may be silent before its child witness kills the process.
    At least 0.5; None never kills it. A program that hangs is then certain to end, but so is one that was only paused.
    """
    ownership: str | None = None
    """Where this member records what it leads, for `Router.from_redis` and other clients: `redis://host:6379/group`, as
    in `ledgers/redis/address.py`. None records it nowhere."""

    def __post_init__(self) -> None:
        if self.lease is PROTOCOLS_OWN:
            object.__setattr__(self, "lease", _own_lease(self._values()))  # Frozen from here on.
        if problems := self._problems():
            raise ConfigError(problems)

    @classmethod
    def given(cls, source: "Config | str") -> "Config":
        """`source` itself, or the configuration with only this ledger address."""
        if isinstance(source, str):
            return cls(source)
        if not isinstance(source, Config):
            raise ConfigError([f"a Config, or the address of a ledger, was wanted, got a {type(source).__name__}"])
        return source

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Config":
        """The configuration with these options, in the form of a file; `layout` may also be a mapping."""
        known = [field.name for field in fields(cls)]
        problems = [unknown("option", name, known) for name in options if name not in known]
        chosen = {name: value for name, value in options.items() if name in known}
        if "ledger" not in chosen:
            protocol = chosen.get("protocol")
            problems.append(_NO_PEERS if protocol in ELECTED else _NO_LEDGER)
            chosen["ledger"] = _LONE_PEER if protocol in ELECTED else "memory://nowhere"
        if isinstance(chosen.get("layout"), Mapping):
            layout, sizes = chosen.pop("layout"), Layout.__struct_fields__
            problems += [unknown("option", name, sizes, "layout.") for name in layout if name not in sizes]
            try:
                chosen["layout"] = Layout(**{name: value for name, value in layout.items() if name in sizes})
            except ConfigError as error:
                problems += error.problems
        try:
            config = cls(**chosen)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        return config

    def settings(self) -> Settings:
        """The settings for a member's protocol, with a fresh name if none was given."""
        return _settings(self._values(), name=_fresh_name() if self.name is None else self.name)

    @property
    def has_ledger(self) -> bool:
        """Whether records say which member owns what. Without them, a member knows only what it leads itself."""
        return self.protocol == "induction"

    def group_settings(self) -> NeliSettings | FastNeliSettings:
        """The settings for the machine of a protocol that borrows a group, with a fresh name if none was given."""
        return _group_settings(self._values(), name=_fresh_name() if self.name is None else self.name)

    def peer_settings(self, me: int) -> TermSettings | GossipSettings:
        """The settings for the machine of a protocol between peers, for the member at place `me` of their list."""
        name = _fresh_name() if self.name is None else self.name
        return _peer_settings(self._values(), name=name, peers=peers_at(self).peers, me=me)

    def named(self) -> "Config":
        """This configuration, with a fresh name if none was given."""
        return replace(self, name=_fresh_name()) if self.name is None else self

    @property
    def public_ledger(self) -> str:
        """The ledger's address for people: without secrets, and the same for all members of the group."""
        if self.protocol in ELECTED and (address := _list_of(self.ledger)) is not None:
            return address.public
        return public_address(str(self.ledger))

    def __repr__(self) -> str:
        values = self._values()
        ledger = self.public_ledger
        del values["ledger"]
        if values["ownership"] is not None:
            values["ownership"] = public_address(str(values["ownership"]))
        return f"Config({ledger!r}, {', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _problems(self) -> list[str]:
        values, problems = self._values(), []
        for names, fits, wanted in _KINDS:
            for name in names:
                if not fits(values[name]):
                    problems.append(f"{name}={values[name]!r:.60} must be {wanted}")
                    values[name] = _STAND_INS[name]  # So that the other values can be checked, too.
        borrows, elects = values["protocol"] in BORROWED, values["protocol"] in ELECTED
        if values["lease"] is PROTOCOLS_OWN:
            values["lease"] = _own_lease(values)
        if borrows:
            problems += _group_problems(values["ledger"])
        elif elects:
            problems += _list_problems(values["ledger"])
        elif not values["ledger"].startswith("peers:"):
            problems += problems_of(values["ledger"])
        if values["ownership"] is not None:
            problems += owners_problems("ownership", values["ownership"])
        if values["protocol"] not in PROTOCOLS:
            problems.append(unknown("protocol", values["protocol"], PROTOCOLS))
        name = "fresh" if values["name"] is None else values["name"]
        # These are compared below, by the rules of the protocol.
        its = ("lease", "beat", "delay_max", "drain_timeout", "term_base")
        own = {field: value for field, value in values.items() if not ((borrows or elects) and field in its)}
        checks: list[Callable[[], object]] = [lambda: _settings(own, name=name)]
        if borrows:
            checks.append(lambda: _group_settings(values, name=name))
        elif elects and (listed := _list_of(values["ledger"])):
            checks.append(lambda: _peer_settings(values, name=name, peers=listed.peers, me=0))
        for check in checks:
            try:
                check()
            except ConfigError as error:
                problems += [problem for problem in error.problems if problem not in problems]
        problems += _misplaced(values)
        if values["witness"] not in WITNESSES:
            problems.append(unknown("witness", values["witness"], WITNESSES))
        elif (borrows or elects) and values["witness"] in ("agent", "child"):
            ends = "whose broker ends its members by a session" if borrows else "whose leaders end by their lease alone"
            problems.append(
                f"witness={values['witness']!r} is of no use to {values['protocol']}, {ends}: leave it out, or choose "
                "the protocol induction"
            )
        if (part := values["kill_hung"]) is not None:
            if not KILL_HUNG_MIN <= part < 1:
                wanted = f"from {KILL_HUNG_MIN} to below 1: one that lives gives a sign with each beat"
                problems.append(f"kill_hung={part!r} must be a part of the lease, {wanted}")
            if values["witness"] != "child":
                problems.append("kill_hung needs a witness that does it: add witness='child'")
        if values["max_age"] == 0:
            problems.append("max_age=0 would make every table too old: give it some seconds, or None for no limit")
        return problems


def open(config: Config, *, create: bool = True) -> Ledger:  # noqa: A001 - `config.open(...)` is how it reads.
    """The ledger of `config`; `create=False` refuses to create one. Raises LedgerUnusable or LedgerUnavailable."""
    if not config.has_ledger:
        raise BeyondProtocol(
            f"the ledger of {config.public_ledger} was wanted",
            f"a group of the protocol {config.protocol!r} has none: {SHARERS[config.protocol]}",
            "ask its members, or the store of owners that they have in common",
        )
    return open_ledger(config.ledger, create=create, patience=config.lease)


def subscribe(config: Config, settings: GroupSettings) -> GroupSubscription:
    """A consumer in the broker's group of `config`. Raises LedgerUnusable, LedgerUnavailable or GroupMismatch."""
    address = _group_at(config)
    with needing("kafka", "a consumer group in Kafka"):
        from neli_router.drivers.consumer_groups.kafka.subscription import KafkaSubscription  # noqa: PLC0415 - it may not be installed.
    session = settings.session_timeout
    return KafkaSubscription(
        address,
        session=session,
        # The broker waits for the program to finish, and a little longer for us to report it.
        patience=max(session, config.drain_timeout + session),
    )


def look_at_group(config: Config) -> GroupLook:
    """The topic and the group of `config`, without joining or creating anything. Raises LedgerMissing, and the errors
    of `subscribe`."""
    with needing("kafka", "a consumer group in Kafka"):
        from neli_router.drivers.consumer_groups.kafka import subscription  # noqa: PLC0415 - as above.
    return subscription.look_at_group(_group_at(config), config.group_settings().session_timeout)


def my_place(config: Config) -> int:
    """This member's place in the list of peers. Raises ConfigError if it cannot be determined."""
    return peer_sockets.my_place(peers_at(config))


def open_link(config: Config, clock: Callable[[], float]) -> PeerLink:
    """The link to the peers of `config`. Raises ConfigError and PeersUnusable."""
    return peer_sockets.open_link(peers_at(config), mark=_peers_mark(config), clock=clock)


def read_peers_key(config: Config) -> bytes:
    """The secret from which the key of `config`'s peers is derived. Raises ConfigError."""
    return peer_sockets.read_key(peers_at(config))


def try_to_listen(config: Config) -> None:
    """Listen for a moment where a member of `config` would. Raises ConfigError and PeersUnusable."""
    peer_sockets.try_to_listen(peers_at(config))


def look_at_votes(config: Config) -> Path:
    """The folder in which a member of `config` would keep its votes, after a check of the votes that are there.

    Raises ConfigError and PeersUnusable, like `open_link`.
    """
    return peer_sockets.look_at_votes(peers_at(config), mark=_peers_mark(config))


def peers_at(config: Config) -> PeersAddress:
    """The list of peers that `config` names."""
    address = _list_of(config.ledger)
    assert address is not None, "an address with problems was refused"
    return address


def _peers_mark(config: Config) -> bytes:
    # Everything that must be equal in all members. Otherwise two majorities might have no member in common, or one key
    # might be in two partitions. Settings that may change between releases of a program, such as the lease, are in the
    # members' messages instead, because stored votes belong to this mark.
    voters, layout = config.replicas or config.first_class or len(peers_at(config).peers), config.layout
    mark = f"{config.protocol} {layout.partitions} {voters}"
    if layout != Layout(partitions=layout.partitions):  # Otherwise, the mark of releases that only have partitions.
        mark += f" {layout.slots} {layout.tags}"
    return mark.encode()


def _list_of(url: object) -> PeersAddress | None:
    scheme, _, rest = str(url).partition(":")
    return peers_address.parse(rest)[0] if scheme == "peers" else None


def _list_problems(url: object) -> list[str]:
    """A sentence for each problem with the address of a list of peers."""
    scheme, _, rest = str(url).partition(":")
    shown = public_address(str(url))
    if scheme != "peers":
        return [f"ledger={shown!r:.200} is not a list of peers: write peers://a:7801,b:7801,c:7801/jobs"]
    return [f"ledger={shown!r:.200}: {problem}" for problem in peers_address.parse(rest)[1]]


def _misplaced(values: Mapping[str, Any]) -> list[str]:
    """A sentence for each option that the protocol does not use; ignoring them silently would look like acceptance."""
    protocol, found = values["protocol"], []
    for owner, options in (("term", ("policy", "replicas", "preferences")), ("gossip", ("first_class", "relay"))):
        if protocol != owner:
            has_none = f"is of the protocol {owner}, and {protocol} has none: leave it out"
            found += [f"{option} {has_none}" for option in options if values[option] not in (None, False)]
    if protocol == "term" and values["policy"] == "random" and values["preferences"] is not None:
        found.append("preferences are of policy='priority', and policy='random' has none: choose one of the two")
    if protocol in ELECTED and values["layout"].partitions > PARTITIONS_MAX:
        found.append(
            f"{values['layout'].partitions} partitions are too many for {protocol}, which keeps and says something of "
            f"each: have {PARTITIONS_MAX} at most, or choose the protocol induction"
        )
    if protocol in ("fast-neli", *ELECTED) and values["guarantee"] != "exclusive":
        instead = "neli" if protocol == "fast-neli" else "induction"
        found.append(f"guarantee='available' is not of {protocol}, which is exclusive: choose the protocol {instead}")
    if str(values["ledger"]).startswith("peers:") and protocol not in ELECTED:
        found.append(f"a list of peers is not a ledger of {protocol}: choose the protocol term or gossip")
    return found


def _group_at(config: Config) -> GroupAddress:
    address, _ = group_address.parse(config.ledger.partition(":")[2])
    assert address is not None, "an address with problems was refused"
    return replace(address, partitions=address.partitions or config.layout.partitions)


def _group_problems(url: object) -> list[str]:
    """A sentence for each problem with the address of a consumer group."""
    scheme, _, rest = str(url).partition(":")
    shown = public_address(str(url))
    if scheme != "kafka":
        return [f"ledger={shown!r:.200} has no consumer groups to borrow: write kafka://localhost:9092/jobs"]
    return [f"ledger={shown!r:.200}: {problem}" for problem in group_address.parse(rest)[1]]


def owners_at(url: str) -> OwnersSource:
    """The store of owners at `url`. Raises ConfigError, and MissingExtra if its client is not installed."""
    if problems := owners_problems("url", url):
        raise ConfigError(problems)
    with needing("redis", "owners in Redis"):
        from neli_router.drivers.owners.redis import RedisOwners  # noqa: PLC0415 - it may not be installed.
    scheme, _, rest = url.partition(":")
    at, _ = redis_address.parse(scheme, rest)
    assert at is not None, "an address with problems was refused"
    return OwnersSource(at.public, lambda: RedisOwners(at))


def owners_of(config: Config) -> OwnersSource:
    """The store in which the members of a group without a ledger record what they lead. Raises BeyondProtocol if they
    do not."""
    if config.ownership is None:
        wanted = f"the owners of all partitions of {config.public_ledger} were wanted"
        if config.protocol in ELECTED:
            raise BeyondProtocol(
                wanted,
                "only its members hear who leads, and no store of owners is named",
                "ask the router of a member, or its agent (`neli owner`); or give all members, and this, "
                "ownership='redis://host:6379/group'",
            )
        raise BeyondProtocol(
            wanted,
            f"a member of {config.protocol!r} knows only what it leads itself, and no store of owners is named",
            "give all members, and this, ownership='redis://host:6379/group', or choose the protocol 'induction'",
        )
    return owners_at(config.ownership)


def require_promises(config: Config, ledger: Ledger) -> None:
    """Raise ConfigError if `ledger` is not reliable enough for the promises of a member with `config`."""
    if config.guarantee == "exclusive" and Promise.NEVER_REWINDS not in ledger.promises and not config.accept_rewinds:
        why = f" ({'; '.join(ledger.doubts)})" if ledger.doubts else ""
        problem = (
            f"guarantee='exclusive' needs a ledger that never rewinds, and {ledger.address} may lose records that were "
            f"read, so that two members could lead at once{why}: mend that, choose another ledger or "
            "guarantee='available', or say accept_rewinds=True and fence every act that matters"
        )
        raise ConfigError([problem])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


_NO_LEDGER = "no ledger is named: say where it is, such as ledger='sqlite:///var/lib/jobs/ledger.db'"
_NO_PEERS = (
    "no peers are named to elect from: name them all, such as --peers a:7801,b:7801,c:7801 of an agent, or "
    "ledger='peers://a:7801,b:7801,c:7801/jobs'"
)
_LONE_PEER = "peers://127.0.0.1:1/neli"
"""Replaces a list that was not given, so that the other options can be checked."""

_STAND_INS: Mapping[str, Any] = {**{field.name: field.default for field in fields(Config)}, "ledger": "memory://x"}

_KINDS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("ledger", "address", "zone", "protocol", "guarantee", "witness"), lambda value: isinstance(value, str), "text"),
    (("ownership",), lambda value: value is None or isinstance(value, str), "an address, or None to publish nowhere"),
    (("policy",), lambda value: value is None or isinstance(value, str), "text, or None for the protocol's own"),
    (("preferences",), lambda value: value is None or isinstance(value, str), "text, or None to share out evenly"),
    (
        ("replicas", "first_class"),
        lambda value: value is None or (isinstance(value, int) and not isinstance(value, bool)),
        "a whole number, or None for all peers",
    ),
    (("name",), lambda value: value is None or isinstance(value, str), "text, or None for a fresh one"),
    (("layout",), lambda value: isinstance(value, Layout), "a Layout(slots=..., partitions=..., tags=...)"),
    (("lease", "drain_timeout"), _is_number, "a number of seconds, at least 0"),
    (
        ("beat", "delay_max", "max_age"),
        lambda value: value is None or _is_number(value),
        "a number of seconds, or None",
    ),
    (("kill_hung",), lambda value: value is None or _is_number(value), "a part of the lease, or None"),
    (("session",), lambda value: value is None or _is_number(value), "a number of seconds, or None"),
    (("clock_error",), _is_number, "a number of seconds, at least 0"),
    (("accept_rewinds", "replace", "goneli", "relay"), lambda value: isinstance(value, bool), "True or False"),
)
"""Checks for mistakes that a type checker finds in programs, but not in files, where most configurations come from."""


def _own_lease(values: Mapping[str, Any]) -> float:
    """The lease that suits the protocol."""
    if (values["protocol"], values["guarantee"]) == ("neli", "available"):
        return AVAILABLE_NELI_LEASE
    return next((lease for protocol, lease in LEASES.items() if protocol == values["protocol"]), LEASES["induction"])


def _settings(values: Mapping[str, Any], *, name: str) -> Settings:
    shared = {field: values[field] for field in Settings.__struct_fields__ if field in values}
    return Settings(**{**shared, "name": name})


def _group_settings(values: Mapping[str, Any], *, name: str) -> NeliSettings | FastNeliSettings:
    """The settings, under the names of the papers."""
    given = {field: values[field] for field in ("layout", "drain_timeout", "term_base", "session")}
    lease, beat = values["lease"], values["beat"]
    if values["protocol"] == "neli":
        given |= {field: values[field] for field in ("guarantee", "clock_error", "groups", "beat")}
        return NeliSettings(name=name, threshold=lease, **given)
    if beat is not None:
        given["min_poll_interval"] = beat
    return FastNeliSettings(name=name, heartbeat_timeout=lease, goneli=values["goneli"], **given)


def _peer_settings(
    values: Mapping[str, Any], *, name: str, peers: tuple[str, ...], me: int
) -> TermSettings | GossipSettings:
    lease, beat, protocol = values["lease"], values["beat"], values["protocol"]
    given = {field: values[field] for field in ("layout", "drain_timeout", "term_base")}
    given |= {"name": name, "peers": peers, "me": me, "lease": lease}
    given["beat"] = lease / BEATS[protocol] if beat is None else beat
    if protocol == "gossip":
        return GossipSettings(**given, first_class=values["first_class"], relay=values["relay"])
    policy: Any = values["policy"] or "priority"  # Checked by the settings.
    given |= {"policy": policy, "replicas": values["replicas"]}
    assigned = TermSettings(**given)
    if values["preferences"] is None or policy != "priority":
        return assigned
    rows = preferred_rows(values["preferences"], peers, assigned.layout.partitions, assigned.replicas or len(peers))
    return TermSettings(**given, priorities=rows)


def _fresh_name() -> str:
    host = "".join(character for character in socket.gethostname() if character.isprintable())[:HOST_MAX]
    return f"{host or 'host'}-{os.getpid()}-{os.urandom(4).hex()}"
