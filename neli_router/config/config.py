"""Configuration: one program's settings for its group, checked as a whole.

    Config("sqlite:///var/lib/jobs/ledger.db", lease=0.5)   Config.of({"ledger": "memory://jobs", ...})
      |                                                       '-- an unknown option: the error suggests the nearest
      '-- all problems together --> ConfigError

A configuration opens nothing. `drivers/open.py` opens what its addresses name.

A member without a configured name gets a fresh one each time it is opened. Host name and process number would not be
enough: in containers every process is number 1, and a server that loads the program before it forks would give all
workers the parent's number. If two live members have the same name, only one goes on: the older one, unless the newer
one is configured to take the name.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from pathlib import PurePath
from typing import Any, cast

from neli_router.config.protocols import (
    ELECTED,
    PROTOCOLS,
    GroupOptions,
    Induction,
    PeerOptions,
    ProtocolOptions,
    documented,
    option,
    parsed_peers,
    wrong_kinds,
)
from neli_router.core.keyspace import Layout
from neli_router.drivers.addresses import group_name, owners_problems, public_address, unknown
from neli_router.drivers.consumer_groups import address as group_address
from neli_router.drivers.consumer_groups.address import GroupAddress
from neli_router.drivers.ledgers.base import Ledger, Promise
from neli_router.drivers.peers.address import PeersAddress
from neli_router.errors import BeyondProtocol, ConfigError
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.electors.settings import GossipSettings, TermSettings
from neli_router.protocols.protocol import Guarantee, Settings

__all__ = ["LONE_PEER", "PROTOCOLS_OWN", "SOME_LEDGER", "Config", "host_name"]

PROTOCOLS_OWN = float("nan")
"""The protocol's own lease. It stands for no number: it is looked for as an object."""

USUAL_LAYOUT = Layout()
"""The layout where none is chosen, with the protocol's own number of partitions. It is looked for as an object, too."""

HOST_MAX = 64
"""How many characters of the host's name go into a member's name: the most that Linux allows."""


@documented
@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a member or a router. An immutable value, safe to share. `ConfigError` names all problems.

    Times are in seconds. `layout`, `lease`, `guarantee` and `protocol` belong to the group: a member whose values
    differ from the ledger's is refused. Everything else is this member's own.
    """

    ledger: str = option(
        MISSING,
        "Where the group's ledger is, such as sqlite:///var/lib/jobs/ledger.db or kafka://host:9092/jobs. For term and "
        "gossip it is the list of peers: peers://a:7801,b:7801,c:7801/jobs. A `pathlib.Path` is an SQLite file.",
    )
    _: KW_ONLY
    protocol: ProtocolOptions | str = option(
        "induction",
        "How members agree: induction, over a ledger; neli or fast-neli, over a consumer group in Kafka; term or "
        "gossip, among peers alone. Or its options: Neli(groups=2), Term(replicas=5). Except with induction, members "
        "know only what they lead themselves, and learn who leads the rest from `ownership`.",
    )
    name: str | None = option(
        None,
        "The name of this member in its group. With a name that outlives a restart, a member gets its partitions back "
        "immediately and can be pinned and drained by name; None means a fresh name each time.",
    )
    address: str = option("", "Where clients reach this member; returned with every look-up, never used by us.")
    weight: int = option(1, "The share of partitions, relative to the others' weights; 0 asks for none.")
    zone: str = option(
        "",
        "Where it runs, such as a rack or a data centre: what may be lost as a whole. With induction, each partition "
        "has a standby in another zone, which gets it then.",
    )
    layout: Layout = USUAL_LAYOUT
    lease: float = option(
        PROTOCOLS_OWN,
        "How long a heartbeat proves anything, in seconds. The group's. A shorter lease takes over sooner; a longer "
        "one forgives longer pauses of a process.",
    )
    beat: float | None = option(
        None,
        "Seconds between heartbeats; None for what suits the protocol. Shorter forgives more loss, and costs records.",
    )
    guarantee: Guarantee = option(
        "exclusive",
        "exclusive: at most one acts for a partition, with a short gap; available: at least one, with an overlap. The "
        "group's.",
    )
    drain_timeout: float = option(
        30.0,
        "How long a successor waits for work in progress, in seconds. A longer timeout suits long work, but a program "
        "that hangs holds up its successor for that long. If other processes act on leases, like an agent's clients, "
        "it must be no shorter than the lease: they may hear late that a lease is over, and rely on the end that they "
        "were given before the partition was asked for.",
    )
    term_base: int = option(
        0,
        "A number that all terms are above, such as the highest term of a former ledger. When a group moves here from "
        "another ledger, or its topic is recreated, set this in all members: docs/protocols.md has a number for every "
        "move.",
    )
    max_age: float | None = option(
        10.0,
        "For look-ups, in seconds: they raise if the ledger was last read longer ago than this. None goes on with the "
        "last table.",
    )
    ownership: str | None = option(
        None,
        "The Redis or PostgreSQL where this member records what it leads, such as redis://host:6379/jobs or "
        "postgresql://host/database?group=jobs; agents of neli and fast-neli need it. `Router.from_redis`, "
        "`Router.from_postgresql` and other clients read it there. None records it nowhere.",
    )

    def __post_init__(self) -> None:
        found: list[str] = []
        if isinstance(given := cast("object", self.ledger), PurePath):
            object.__setattr__(self, "ledger", f"sqlite:{given}")
        if not isinstance(self.protocol, ProtocolOptions):  # Frozen from here on.
            object.__setattr__(self, "protocol", _named(self.protocol, found))
        if self.lease is PROTOCOLS_OWN:
            object.__setattr__(self, "lease", self.options.lease_for(self.guarantee))
        if self.layout is USUAL_LAYOUT and self.options.usual_partitions != self.layout.partitions:
            object.__setattr__(self, "layout", Layout(partitions=self.options.usual_partitions))
        if problems := [*found, *self._problems()]:
            raise ConfigError(problems)

    @property
    def options(self) -> ProtocolOptions:
        """The options of the protocol, also if it was only named."""
        assert isinstance(self.protocol, ProtocolOptions), "a name is replaced as soon as this is made"
        return self.protocol

    @property
    def protocol_name(self) -> str:
        return self.options.name

    @property
    def induction(self) -> Induction:
        """The options of `induction`, for code that runs in such groups only."""
        assert isinstance(self.options, Induction), "a group without a ledger has none of them"
        return self.options

    @classmethod
    def given(cls, source: "Config | str | PurePath") -> "Config":
        """`source` itself, or the configuration with only this ledger address."""
        if isinstance(source, str | PurePath):
            return cls(str(source) if isinstance(source, str) else f"sqlite:{source}")
        if not isinstance(source, Config):
            raise ConfigError([f"a Config, or the address of a ledger, was wanted, got a {type(source).__name__}"])
        return source

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Config":
        """The configuration with these options, in the form of a file: those of the protocol stand among the others,
        and `layout` may be a mapping."""
        shared, problems = {one.name for one in fields(cls)}, list[str]()
        chosen = {name: value for name, value in options.items() if name in shared}
        given = chosen.get("protocol", "induction")
        protocol = given if isinstance(given, ProtocolOptions) else _named(given, problems)
        own = {one.name for one in fields(protocol)}
        for name in options:
            if name not in shared | own:
                owners = [kind.name for kind in PROTOCOLS.values() if name in {one.name for one in fields(kind)}]
                elsewhere = f"{name} is an option of the protocol {' and '.join(owners)}, and {protocol.name} has none"
                problems.append(f"{elsewhere}: leave it out" if owners else unknown("option", name, shared | own))
        try:
            chosen["protocol"] = replace(protocol, **{name: value for name, value in options.items() if name in own})
        except ConfigError as error:
            problems += error.problems
            chosen["protocol"] = protocol
        if "ledger" not in chosen:
            problems.append(_NO_PEERS if protocol.name in ELECTED else _NO_LEDGER)
            chosen["ledger"] = LONE_PEER if protocol.name in ELECTED else SOME_LEDGER
        if isinstance(chosen.get("layout"), Mapping):
            layout, sizes = chosen.pop("layout"), Layout.__struct_fields__
            problems += [unknown("option", name, sizes, "layout.") for name in layout if name not in sizes]
            try:
                given_sizes = {name: value for name, value in layout.items() if name in sizes}
                chosen["layout"] = Layout(**{"partitions": protocol.usual_partitions, **given_sizes})
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
        """The settings for a member of a ledger, with a fresh name if none was given."""
        return self.induction.settings(self._shared(), name=self._name())

    def group_settings(self) -> NeliSettings | FastNeliSettings:
        """The settings for the machine of a protocol that borrows a group, with a fresh name if none was given."""
        assert isinstance(self.options, GroupOptions), "no other protocol borrows one"
        return self.options.settings(self._shared(), name=self._name())

    def peer_settings(self, me: int) -> TermSettings | GossipSettings:
        """The settings for the machine of a protocol between peers, for the member at place `me` of their list."""
        assert isinstance(self.options, PeerOptions), "no other protocol has peers"
        return self.options.settings(self._shared(), name=self._name(), peers=self.peers.peers, me=me)

    @property
    def has_ledger(self) -> bool:
        """Whether records say which member owns what. Without them, a member knows only what it leads itself."""
        return isinstance(self.options, Induction)

    @property
    def common_ledger(self) -> str:
        """The address of the ledger that all members read. Raises BeyondProtocol if the protocol has none."""
        if self.has_ledger:
            return self.ledger
        raise BeyondProtocol(
            f"the ledger of {self.public_ledger} was wanted",
            f"a group of the protocol {self.protocol_name!r} has none: {self.options.sharer}",
            "ask its members, or the store of owners that they have in common",
        )

    @property
    def common_owners(self) -> str:
        """The address of the store in which the members of a group without a ledger record what they lead.

        Raises BeyondProtocol if they do not.
        """
        if self.ownership is not None:
            return self.ownership
        wanted = f"the owners of all partitions of {self.public_ledger} were wanted"
        named = "give all members, and this, ownership='redis://host:6379/group'"
        if self.protocol_name in ELECTED:
            found = "only its members hear who leads"
            remedy = f"ask the router of a member, or its agent (`neli owner`); or {named}"
        else:
            found = f"a member of {self.protocol_name!r} knows only what it leads itself"
            remedy = f"{named}, or choose the protocol 'induction'"
        raise BeyondProtocol(wanted, f"{found}, and no store of owners is named", remedy)

    @property
    def group(self) -> GroupAddress:
        """The topic and the consumer group that the ledger's address names."""
        address, _ = group_address.parse(self.ledger.partition(":")[2])
        assert address is not None, "an address with problems was refused"
        return replace(address, partitions=address.partitions or self.layout.partitions)

    @property
    def peers(self) -> PeersAddress:
        """The list of peers that the ledger's address names."""
        listed, _ = parsed_peers(self.ledger)
        assert listed is not None, "an address with problems was refused"
        return listed

    @property
    def peers_mark(self) -> bytes:
        """Everything that must be equal in all peers.

        Otherwise two majorities might have no member in common, or one key might be in two partitions. Settings that
        may change between releases of a program, such as the lease, are in the members' messages instead, because
        stored votes belong to this mark.
        """
        assert isinstance(self.options, PeerOptions), "no other protocol has peers"
        layout, voters = self.layout, self.options.voters
        mark = f"{self.protocol_name} {layout.partitions} {len(self.peers.peers) if voters is None else voters}"
        if layout != Layout(partitions=layout.partitions):  # Otherwise, the mark of releases that only have partitions.
            mark += f" {layout.slots} {layout.tags}"
        return mark.encode()

    def require_promises(self, ledger: Ledger) -> None:
        """Raise ConfigError if `ledger` is not reliable enough for the promises of a member with this."""
        if self.induction.accept_rewinds or self.guarantee != "exclusive" or Promise.NEVER_REWINDS in ledger.promises:
            return
        why = f" ({'; '.join(ledger.doubts)})" if ledger.doubts else ""
        problem = (
            f"guarantee='exclusive' needs a ledger that never rewinds, and {ledger.address} may lose records that were "
            f"read, so that two members could lead at once{why}: mend that, choose another ledger or "
            "guarantee='available', or say accept_rewinds=True and fence every act that matters"
        )
        raise ConfigError([problem])

    def named(self) -> "Config":
        """This configuration, with a fresh name if none was given."""
        return replace(self, name=self._name()) if self.name is None else self

    @property
    def group_name(self) -> str:
        """The group's address as its agent and its clients compare it."""
        return group_name(self.ledger)

    @property
    def public_ledger(self) -> str:
        """The ledger's address for people: without secrets, and the same for all members of the group."""
        if self.protocol_name in ELECTED and (listed := parsed_peers(str(self.ledger))[0]) is not None:
            return listed.public
        return public_address(str(self.ledger))

    def __repr__(self) -> str:
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "ledger"}
        ledger = self.public_ledger
        if values["ownership"] is not None:
            values["ownership"] = public_address(str(values["ownership"]))
        return f"Config({ledger!r}, {', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _name(self) -> str:
        return f"{host_name()}-{os.getpid()}-{os.urandom(4).hex()}" if self.name is None else self.name

    def _shared(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "protocol"}

    def _problems(self) -> list[str]:
        values, problems = self._shared(), []
        for declared, sentence in wrong_kinds(self):
            problems.append(sentence)
            # To judge the rest.
            values[declared.name] = SOME_LEDGER if declared.name == "ledger" else declared.default
        if not isinstance(values["layout"], Layout):
            problems.append(f"layout={values['layout']!r:.60} must be a Layout(slots=..., partitions=..., tags=...)")
            values["layout"] = Layout()
        if values["lease"] is PROTOCOLS_OWN:
            values["lease"] = self.options.lease_for(values["guarantee"])
        problems += self.options.problems_with(values)
        if values["ownership"] is not None:
            problems += owners_problems("ownership", values["ownership"])
        if values["max_age"] == 0:
            problems.append("max_age=0 would make every table too old: give it some seconds, or None for no limit")
        return problems


SOME_LEDGER = "memory://nowhere"
LONE_PEER = "peers://127.0.0.1:1/neli"
"""These replace a ledger or a list that was not given, so that the other options can be judged."""

_NO_LEDGER = "no ledger is named: say where it is, such as ledger='sqlite:///var/lib/jobs/ledger.db'"
_NO_PEERS = (
    "no peers are named to elect from: name them all, such as --peers a:7801,b:7801,c:7801 of an agent, or "
    "ledger='peers://a:7801,b:7801,c:7801/jobs'"
)


def _named(protocol: object, problems: list[str]) -> ProtocolOptions:
    """The options of the protocol with that name; a sentence if there is none."""
    kind = PROTOCOLS.get(str(protocol))
    if kind is None:
        problems.append(unknown("protocol", getattr(protocol, "__name__", protocol), PROTOCOLS))
    return (kind or Induction)()


def host_name() -> str:
    """The host's name, as far as it is printable."""
    return "".join(character for character in socket.gethostname() if character.isprintable())[:HOST_MAX] or "host"
