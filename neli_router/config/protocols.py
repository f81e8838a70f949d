"""The options of each protocol, one class a protocol: `Config("kafka://...", protocol=Neli(groups=2))`.

Options that all protocols have are in `Config`. An option is declared once, here or there, as a field with its text.
Flags, variables, `neli.toml`, the help and the errors are made from that. A class judges its own values when it is
made. `Config` then asks it to judge the options that all have: an address, a lease or a guarantee may suit one protocol
and not another.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from textwrap import fill, indent
from typing import Any, ClassVar, TypeVar

from neli_router.core.keyspace import PARTITIONS
from neli_router.drivers.addresses import problems_of, public_address
from neli_router.drivers.consumer_groups import address as group_address
from neli_router.drivers.peers import address as peers_address
from neli_router.drivers.peers.address import PeersAddress
from neli_router.errors import ConfigError
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.electors.settings import MISSES, PHI_MAX, WINDOW, GossipSettings, TermSettings
from neli_router.protocols.protocol import Guarantee, Settings

__all__ = [
    "BORROWED",
    "ELECTED",
    "PROTOCOLS",
    "FastNeli",
    "Gossip",
    "GroupOptions",
    "Induction",
    "Neli",
    "PeerOptions",
    "ProtocolOptions",
    "Term",
    "documented",
    "is_whole",
    "option",
    "parsed_peers",
    "text_of",
    "wrong_kinds",
]

WITNESSES = ("auto", "agent", "child", "none")
"""The choices of who reports the death of a member's process: see `Runtime.witness` in `member/runtime.py`."""

AVAILABLE_NELI_LEASE = 12.0
"""The lease of `neli` under `available`: the old leader must last until a session of six seconds has ended."""

PARTITIONS_MAX = 4096
"""The most partitions for protocols between peers: more would need many datagrams at each beat."""

WIDTH = 100
"""Columns of an option's text in `help`."""

Kind = TypeVar("Kind", bound=type)

Shared = Mapping[str, Any]
"""The options that all protocols have, by name."""


def option(default: Any, text: str) -> Any:
    """A field with its text: a sentence for the help of a flag, then what else there is to know."""
    return field(default=default, metadata={"text": text})


def text_of(declared: "Field[Any]") -> str:
    """The text that an option was declared with."""
    return str(declared.metadata.get("text", ""))


def documented(kind: Kind) -> Kind:
    """Add its options to the documentation of a dataclass, so that `help` shows them."""
    told = [
        f"{one.name} = {one.default!r}\n{indent(fill(text_of(one), WIDTH), '    ')}"
        for one in fields(kind)
        if text_of(one)
    ]
    kind.__doc__ = "\n\n".join([f"{kind.__doc__}", *(indent(text, "    ") for text in told)])
    return kind


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_KINDS: Mapping[object, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (is_whole, "a whole number"),
    int | None: (lambda value: value is None or is_whole(value), "a whole number, or None"),
    float: (_is_number, "a number of seconds, at least 0"),
    float | None: (lambda value: value is None or _is_number(value), "a number of seconds, or None"),
    str: (lambda value: isinstance(value, str), "text"),
    Guarantee: (lambda value: isinstance(value, str), "text"),
    str | None: (lambda value: value is None or isinstance(value, str), "text, or None"),
    "lease": (lambda value: _is_number(value) and value > 0, "a number of seconds above 0"),
}
"""Mistakes that a type checker would find in a program, but not in a file, where most configurations come from."""


def wrong_kinds(options: Any) -> Iterator[tuple["Field[Any]", str]]:
    """Each field of a dataclass with a value of another kind than declared, and a sentence about it."""
    for declared in fields(options):
        fits, wanted = _KINDS.get(declared.name) or _KINDS.get(declared.type, (lambda _: True, ""))
        value = getattr(options, declared.name)
        if not fits(value):
            yield declared, f"{declared.name}={value!r:.60} must be {wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolOptions:
    """The options of one protocol. `ConfigError` names everything that is wrong with them."""

    name: ClassVar[str] = ""
    """By the names of DESIGN and the papers."""
    usual_lease: ClassVar[float] = 1.0
    """The lease where none is chosen."""
    usual_partitions: ClassVar[int] = PARTITIONS
    """The layout's partitions where none are chosen."""
    sharer: ClassVar[str] = ""
    """The replacement for a ledger's table, as a clause."""

    def __post_init__(self) -> None:
        found = [sentence for _, sentence in wrong_kinds(self)] or list(self._problems())
        if found:
            raise ConfigError(found)

    def lease_for(self, guarantee: object) -> float:
        """The lease where none is chosen."""
        return self.usual_lease

    def problems_with(self, shared: Shared) -> Iterator[str]:
        """A sentence for each of the shared options with a value that this protocol cannot have."""
        raise NotImplementedError

    def _problems(self) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(ProtocolOptions):
    """The common part of the protocols that borrow a consumer group."""

    usual_partitions: ClassVar[int] = 16
    """Each costs messages at every beat, and the paper advises as many as members. Fewer leave members idle sooner."""
    sharer: ClassVar[str] = "its broker shares the partitions out"

    def settings(self, shared: Shared, *, name: str) -> NeliSettings | FastNeliSettings:
        """The settings of the protocol's machine, by the names of the papers."""
        raise NotImplementedError

    def problems_with(self, shared: Shared) -> Iterator[str]:
        scheme, _, rest = shared["ledger"].partition(":")
        shown = public_address(shared["ledger"])
        if scheme == "peers":
            yield _not_for_peers(self.name)
        elif scheme == "kafka":
            yield from (f"ledger={shown!r:.200}: {problem}" for problem in group_address.parse(rest)[1])
        else:
            yield f"ledger={shown!r:.200} has no consumer groups to borrow: write kafka://localhost:9092/jobs"
        yield from _problems_together(
            lambda: _settings(shared, but=JUDGED_BY_MACHINES), lambda: self.settings(shared, name="fresh")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions(ProtocolOptions):
    """The common part of the protocols whose members elect among themselves."""

    sharer: ClassVar[str] = "its members elect who leads"
    usual_beats: ClassVar[int] = 1
    """How many beats a lease has where no beat is chosen."""

    @property
    def voters(self) -> int | None:
        """How many peers elect together; None for all."""
        raise NotImplementedError

    def settings(self, shared: Shared, *, name: str, peers: tuple[str, ...], me: int) -> TermSettings | GossipSettings:
        """The settings of the protocol's machine, for the member at place `me` of the list."""
        raise NotImplementedError

    def problems_with(self, shared: Shared) -> Iterator[str]:
        listed, found = parsed_peers(shared["ledger"])
        yield from found
        checks: list[Callable[[], object]] = [lambda: _settings(shared, but=JUDGED_BY_MACHINES)]
        if listed is not None:
            checks.append(lambda: self.settings(shared, name="fresh", peers=listed.peers, me=0))
        yield from _problems_together(*checks)
        if (partitions := shared["layout"].partitions) > PARTITIONS_MAX:
            yield (
                f"{partitions} partitions are too many for {self.name}, which keeps and says something of each: have "
                f"{PARTITIONS_MAX} at most, or choose the protocol induction"
            )
        if shared["guarantee"] != "exclusive":
            yield _always_exclusive(self.name, "induction")

    def _timed(self, shared: Shared) -> dict[str, Any]:
        lease, beat = shared["lease"], shared["beat"]
        given = {name: shared[name] for name in ("layout", "drain_timeout", "term_base", "lease")}
        return given | {"beat": lease / self.usual_beats if beat is None else beat}


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Induction(ProtocolOptions):
    """The default: members share one ledger, in Kafka, Redis or SQLite."""

    name: ClassVar[str] = "induction"

    delay_max: float | None = option(
        None,
        "Under available, how late a record may be read, in seconds; None for a quarter of the lease. Longer overlaps "
        "longer.",
    )
    snapshot_every: int = option(
        5000,
        "Records between snapshots, at least: a large table needs more. More records slow down newcomers; fewer make "
        "the ledger larger.",
    )
    accept_rewinds: bool = option(
        False,  # noqa: FBT003 - a default, named by its field.
        "Run an exclusive group on a ledger that may lose records it has shown: two members may then lead at the same "
        "time.",
    )
    grace: float = option(
        0.0,
        "How long this member's partitions wait for a process of its name after it left or ended, in seconds; 0 for "
        "not at all. A rolling restart then moves nothing, but until the process is back no member leads them. A "
        "member that is drained, or ends with an error of its program, has none.",
    )
    replace: bool = option(
        False,  # noqa: FBT003 - as above.
        "Take the name from a live member that has it, and end that member. Otherwise this member ends with NameTaken "
        "once it has heard the other: two processes that are both restarted whenever they end would swap the name "
        "forever.",
    )
    witness: str = option(
        "auto",
        "The witness that reports this process's death, so that the others need not wait for its lease: auto, agent, "
        "child or none. `agent` is the host's agent, `child` a process of its own. `auto` takes what is available at "
        "no cost: the agent, or otherwise, on SQLite, the other members. A member that passes its leases on to other "
        "processes needs `none`, or `child` and a pledge of until when they act: see docs/fencing.md.",
    )

    def settings(self, shared: Shared, *, name: str) -> Settings:
        """The settings of the protocol's machine."""
        own: dict[str, Any] = {
            "delay_max": self.delay_max,
            "snapshot_every": self.snapshot_every,
            "grace": self.grace,
            "replace": self.replace,
        }
        return _settings({**shared, **own, "name": name})

    def problems_with(self, shared: Shared) -> Iterator[str]:
        address = shared["ledger"]
        if address.startswith("peers:"):
            yield _not_for_peers(self.name)
        else:
            yield from problems_of(address)
        yield from _problems_together(lambda: self.settings(shared, name=shared["name"]))

    def _problems(self) -> Iterator[str]:
        if self.witness not in WITNESSES:
            yield f"witness={self.witness!r:.60} is unknown: choose {', '.join(WITNESSES[:-1])} or {WITNESSES[-1]}"


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Neli(GroupOptions):
    """The paper's NELI, which borrows a consumer group in Kafka. The lease is the paper's T."""

    name: ClassVar[str] = "neli"
    usual_lease: ClassVar[float] = 3.0

    groups: int = option(
        1,
        "How many groups share the topic. Each broadcasts n times less often, but at least three times in T: at the "
        "usual beat, 2 halves the messages of each, and more change nothing.",
    )
    clock_error: float = option(
        0.5, "The most that this host's wall clock and any broker's differ, in seconds. Used only under exclusive."
    )
    session: float | None = option(
        None, "How long the broker waits for a silent member, in seconds; None for a value that suits the lease."
    )

    def lease_for(self, guarantee: object) -> float:
        return AVAILABLE_NELI_LEASE if guarantee == "available" else self.usual_lease

    def settings(self, shared: Shared, *, name: str) -> NeliSettings:
        given = {one: shared[one] for one in ("layout", "drain_timeout", "term_base", "guarantee", "beat")}
        own: dict[str, Any] = {"clock_error": self.clock_error, "groups": self.groups, "session": self.session}
        return NeliSettings(name=name, threshold=shared["lease"], **own, **given)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class FastNeli(GroupOptions):
    """goNELI's Fast NELI, which borrows a consumer group in Kafka. The lease is goNELI's HeartbeatTimeout."""

    name: ClassVar[str] = "fast-neli"
    usual_lease: ClassVar[float] = 5.0

    goneli: bool = option(
        False,  # noqa: FBT003 - a default, named by its field.
        "Share the group with processes that run goNELI.",
    )
    session: float | None = option(
        None, "How long the broker waits for a silent member, in seconds; None for three leases."
    )

    def settings(self, shared: Shared, *, name: str) -> FastNeliSettings:
        given = {one: shared[one] for one in ("layout", "drain_timeout", "term_base")}
        if shared["beat"] is not None:
            given["min_poll_interval"] = shared["beat"]
        own: dict[str, Any] = {"goneli": self.goneli, "session": self.session}
        return FastNeliSettings(name=name, heartbeat_timeout=shared["lease"], **own, **given)

    def problems_with(self, shared: Shared) -> Iterator[str]:
        yield from GroupOptions.problems_with(self, shared)
        if shared["guarantee"] != "exclusive":
            yield _always_exclusive(self.name, "neli")


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Term(PeerOptions):
    """BlazingMQ's elector: a list of peers elects a leader for each partition."""

    name: ClassVar[str] = "term"
    usual_lease: ClassVar[float] = 1.5
    usual_beats: ClassVar[int] = 3

    policy: str = option(
        "priority",
        "Which peer stands first: priority or random. `priority` shares the partitions out and gives them back to a "
        "peer that returns; with `random`, a leader stays.",
    )
    replicas: int | None = option(
        None,
        "How many peers elect each partition's leader; None for all. Only with priority. Fewer cost fewer datagrams, "
        "but a partition has no leader when a majority of its few peers is away.",
    )
    misses: int = option(
        MISSES,
        "How many heartbeats a leader must miss in a row until its peers elect another. More take over later; fewer "
        "replace a living leader that is late. Members may differ in this.",
    )
    wait_max: float | None = option(
        None,
        "The longest random wait before a peer stands, in seconds; None for as long as `misses` heartbeats take. Only "
        "with random. A shorter wait takes over sooner, and lets more peers stand at the same time.",
    )

    @property
    def voters(self) -> int | None:
        return self.replicas

    def settings(self, shared: Shared, *, name: str, peers: tuple[str, ...], me: int) -> TermSettings:
        own: dict[str, Any] = {one: getattr(self, one) for one in ("policy", "replicas", "misses", "wait_max")}
        return TermSettings(name=name, peers=peers, me=me, **own, **self._timed(shared))

    def _problems(self) -> Iterator[str]:
        if self.policy not in ("random", "priority"):
            yield f"policy={self.policy!r} is unknown: choose 'random' or 'priority'"
        elif self.policy == "priority" and self.wait_max is not None:
            yield "wait_max requires policy='random', which draws waits: leave it out"


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Gossip(PeerOptions):
    """Leader election on top of Scuttlebutt: a list of peers elects one leader for everything. The lease is P."""

    name: ClassVar[str] = "gossip"
    usual_lease: ClassVar[float] = 3.0
    usual_beats: ClassVar[int] = 10

    first_class: int | None = option(
        None,
        "How many peers vote and may lead; None for all. They gossip twice as often as the others, and the leader "
        "replaces those that are dead. In a large group, a few find a leader sooner, but survive fewer losses.",
    )
    relay: bool = option(
        False,  # noqa: FBT003 - a default, named by its field.
        "Report the latest that is known of a peer's clock, instead of what the peer last said itself. Leads last a "
        "little longer where news goes through others, at the cost of a little more work. Members may differ in this.",
    )
    phi_max: int = option(
        PHI_MAX,
        "The suspicion from which a silent peer counts as dead: 8 is wrong once in a hundred million intervals. A "
        "lower one looks for another leader sooner, and more often without need. Members may differ in this.",
    )
    window: int = option(
        WINDOW,
        "How many of a peer's last intervals suspicion is computed from. More forget a slow network later. Members may "
        "differ in this.",
    )

    @property
    def voters(self) -> int | None:
        return self.first_class

    def settings(self, shared: Shared, *, name: str, peers: tuple[str, ...], me: int) -> GossipSettings:
        own: dict[str, Any] = {one: getattr(self, one) for one in ("first_class", "relay", "phi_max", "window")}
        return GossipSettings(name=name, peers=peers, me=me, **own, **self._timed(shared))


PROTOCOLS: Mapping[str, type[ProtocolOptions]] = {kind.name: kind for kind in (Induction, Neli, FastNeli, Term, Gossip)}

BORROWED, ELECTED = (Neli.name, FastNeli.name), (Term.name, Gossip.name)
"""The protocols that borrow a broker's consumer group, and those whose members elect among themselves."""

JUDGED_BY_MACHINES = frozenset({"lease", "beat", "drain_timeout", "term_base"})
"""Each protocol without a ledger has rules of its own for these."""


def parsed_peers(ledger: str) -> tuple[PeersAddress | None, list[str]]:
    """The list of peers at this address, and a sentence for each problem with it."""
    scheme, _, rest = ledger.partition(":")
    shown = public_address(ledger)
    if scheme != "peers":
        return None, [f"ledger={shown!r:.200} is not a list of peers: write peers://a:7801,b:7801,c:7801/jobs"]
    listed, problems = peers_address.parse(rest)
    return listed, [f"ledger={shown!r:.200}: {problem}" for problem in problems]


def _not_for_peers(protocol: str) -> str:
    return f"a list of peers is not a ledger of {protocol}: choose the protocol term or gossip"


def _always_exclusive(protocol: str, instead: str) -> str:
    return f"guarantee='available' is not of {protocol}, which is exclusive: choose the protocol {instead}"


def _settings(values: Shared, *, but: Collection[str] = ()) -> Settings:
    """The settings of a ledger's member. All protocols share their rules, `but` those for some."""
    shared = {one: values[one] for one in Settings.__struct_fields__ if one in values and one not in but}
    return Settings(**{**shared, "name": "fresh" if values["name"] is None else values["name"]})


def _problems_together(*checks: Callable[[], object]) -> list[str]:
    found: list[str] = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            found += [problem for problem in error.problems if problem not in found]
    return found
