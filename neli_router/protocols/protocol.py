"""The program's side of every protocol: a member's settings, and the messages between a program and its machine.

    program --Released, Close--> machine --Acquired, Revoked, Fenced, Standby--> program's handler
    clock ---Tick (now)--------> machine --Notice, Stopped-----------> log, end of the member
                                    '----- standing -----------------> leases, at any time

    Acquired  prepare, then lead: leases are given when the handler has returned
    Revoked   finish what you are doing: the successor waits for you, at most `drain_timeout`
    Fenced    stop immediately: another member may lead already
    Standby   prepare what takes long: these come here if the zone that leads them is lost

            Acquired               Revoked                      (handed over)
    nothing --------> may lead ----------------> finishing --------------------> nothing
       ^                 '---------- Fenced ---------+
       '---------------------------------------------'

Acquired, Revoked and Standby reach the handler one after another, in order, on one thread. Fenced arrives on a separate
thread, even while the handler is busy with another event, because it must not wait. A handler that raises ends the
member: a partition that is half prepared or half finished cannot be led. A partition may be acquired again under a
higher term without being lost in between: leases of the old term are void then.

A machine does no I/O, and has no clock, thread or source of randomness of its own. It takes one input and the time, and
returns effects that must be carried out in order. `deadline` says when to step it with `TICK` if nothing comes first.
How a machine reaches the other members is up to its protocol: see `induction/events.py`.

The times that follow from the settings:

|<----------------- lease ----------------->|          how long a Beat proves anything, counted from its sending
|<-beat->|<-beat->|<-beat->| ...                       how often a Beat is sent: several may be lost
|<----- half a lease ---->|                            if my last Beat came back longer ago, I do not hear myself
|<------------------- wait ------------------>|        the lease as counted on the slowest allowed clock
|<-------------- suspicion ---------------->|<-stagger->|<-beat->|<- 3 D ->|        = hold, under `available`
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from neli_router.core.keyspace import Layout, spelled
from neli_router.errors import ConfigError, NeliError

__all__ = [
    "BASE_MAX",
    "BEATS_PER_LEASE",
    "DRIFT_MAX",
    "LEASE_MAX",
    "LEASE_MIN",
    "LOAD_MAX",
    "NAME_MAX",
    "NO_STANDING",
    "RECORD_MAX",
    "STAGGER_RANKS",
    "TICK",
    "WEIGHT_MAX",
    "Acquired",
    "Cause",
    "Close",
    "Event",
    "Fenced",
    "Guarantee",
    "Handler",
    "Machine",
    "News",
    "Notice",
    "Released",
    "Revoked",
    "Settings",
    "Standby",
    "Standing",
    "Stopped",
    "Tick",
    "wait_for",
]

NAME_MAX = 256
"""Longest name, address or zone, in characters. Names are for people and log lines; a longer one is a mistake."""

RECORD_MAX = 8 * 2**20
"""Bytes of the longest record, which is a snapshot: about 100 for each partition and member."""

BASE_MAX = 2**52
"""Terms count from a base. The wall clock, in microseconds, reaches this limit in the year 2112. The range above it is
room for offsets, so that terms stay in bounds."""

WEIGHT_MAX = 1_000_000
"""Weights are whole numbers, so that all members compute the same shares; a resolution of a million is fine enough."""

LOAD_MAX = 1e15
"""The largest load of one partition. Within it, a sum of loads is exact to far more digits than any measurement."""

BEATS_PER_LEASE = 6
"""More beats per lease make false suspicions rarer and cost records. With fewer than four, a single lost Beat would be
enough for a member not to hear itself."""

STAGGER_RANKS = 4
"""How many survivors wait for each other before they accuse; later ranks wait as long as the last of these. The wait
only saves records: a second accusation is void."""

STAGGERS_PER_LEASE = 20
"""A twentieth of a lease between accusers: at any sensible lease, several times what reading a record takes."""

LEASE_MIN = 0.01
LEASE_MAX = 3600.0
"""A lease is at least ten milliseconds, because thread switches would use up a shorter one, and at most an hour."""

DRIFT_MAX = 0.001
"""The most that one clock's rate may be off: 1000 parts in a million. Crystals are off by about 50, and slewing, which
our clock does not follow, by 500. Raising this lengthens every takeover by twice as much."""

Terms = Mapping[int, int]
"""Partition -> term."""

Guarantee = Literal["exclusive", "available"]

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
    "upgrade",
    "claim",
    "release",
    "silence",
    "hear",
    "elect",
    "vacate",
    "other",
]
"""Why a member came or went, or partitions moved, in a group of any protocol."""


def wait_for(lease: float, drift: float = DRIFT_MAX) -> float:
    """How long to wait, on this member's clock, for a lease that another member counts on its own clock."""
    return lease * (1 + drift) / (1 - drift)


class Settings(Struct, frozen=True, kw_only=True):
    """One member's settings. Times are in seconds. One `ConfigError` names everything that is wrong with them.

    Values of another kind than declared are refused before, by the program's configuration.
    """

    name: str
    layout: Layout
    lease: float = 1.0
    guarantee: Guarantee = "exclusive"
    beat: float | None = None
    """None means a sixth of the lease."""
    address: str = ""
    weight: int = 1
    zone: str = ""
    delay_max: float | None = None
    """D: under `available`, how late a record may be read for the guarantee to hold; None: a quarter of a lease."""
    drain_timeout: float = 30.0
    """How long a successor waits for the program to finish what was revoked. A longer timeout suits long work, but a
    program that hangs keeps its partitions for that long."""
    snapshot_every: int = 5000
    """Records between snapshots. More records slow down newcomers and lengthen the ledger, fewer cost bytes."""
    drift: float = DRIFT_MAX
    grace: float = 0.0
    """How long this member's partitions are kept for its name after it left or ended: for a restart. Meanwhile no
    member leads them. Not under `available`."""
    replace: bool = False
    """Take the name from a live member that has it. Otherwise a newcomer that hears that member gives up."""
    term_base: int = 0
    """Terms are above this. When a group moves to a new ledger, set this to the highest term that it ever had."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ConfigError(problems)

    def _problems(self) -> Iterator[str]:
        """Every contradiction, as a sentence that names the expected value, the actual value and the remedy."""
        for what, text in (("name", self.name), ("address", self.address), ("zone", self.zone)):
            if not (text.isprintable() and len(text) <= NAME_MAX):
                wanted = f"printable text of at most {NAME_MAX} characters"
                yield f"the {what} must be {wanted}, got {text!r:.60}: choose another"
        if not self.name:
            yield "the member's name is empty: give each process a name of its own"
        if not 0 <= self.weight <= WEIGHT_MAX:
            yield f"weight={self.weight!r} must be a whole number from 0 to {WEIGHT_MAX}: 1 for an equal share"
        if not 0 <= self.term_base <= BASE_MAX:
            yield f"term_base={self.term_base!r} must be a whole number from 0 to {BASE_MAX}: correct it"
        if self.guarantee not in ("exclusive", "available"):
            yield f"guarantee={self.guarantee!r} is unknown: choose 'exclusive' (at most one acts) or 'available'"
        times = {"lease": self.lease, "drift": self.drift, "drain_timeout": self.drain_timeout, "grace": self.grace}
        # Values that follow from the lease are not separate problems.
        times |= {what: time for what, time in (("beat", self.beat), ("delay_max", self.delay_max)) if time is not None}
        unfit = {what: value for what, value in times.items() if not 0 <= value < inf}
        for what, value in unfit.items():
            yield f"{what}={value!r} must be a number of seconds, at least 0: correct it"
        if self.snapshot_every < 100:
            yield f"snapshot_every={self.snapshot_every!r} must be a whole number of at least 100 records"
        if not unfit:  # The inequalities compare these times.
            yield from self._inequalities()

    def _inequalities(self) -> Iterator[str]:
        if not LEASE_MIN <= self.lease <= LEASE_MAX:
            yield f"lease={self.lease} must be from {LEASE_MIN} to {LEASE_MAX} seconds"
        elif not 0 < self.beat_every <= self.lease / 4:
            yield (
                f"beat={self.beat_every} must be above 0 and at most a quarter of lease={self.lease}, or one lost beat "
                f"would look like silence: lower beat to {self.lease / 4:g} or raise lease to {4 * self.beat_every:g}"
            )
        if self.grace > LEASE_MAX:
            yield f"grace={self.grace} must be at most {LEASE_MAX} seconds"
        if self.grace and not self.exclusive:
            yield f"grace={self.grace} must be 0 under available, which leaves no partition without a leader"
        if self.drift >= 0.1:
            yield f"drift={self.drift} must be under 0.1: no clock is off by a tenth of its rate"
        if self.delay > self.lease:
            wanted = f"at most lease={self.lease}"
            yield f"delay_max={self.delay} must be {wanted}: a member whose records take longer is expired"

    @property
    def exclusive(self) -> bool:
        return self.guarantee == "exclusive"

    @property
    def beat_every(self) -> float:
        return self.lease / BEATS_PER_LEASE if self.beat is None else self.beat

    @property
    def delay(self) -> float:
        return self.lease / 4 if self.delay_max is None else self.delay_max

    @property
    def wait(self) -> float:
        return wait_for(self.lease, self.drift)

    @property
    def stagger(self) -> float:
        return self.lease / STAGGERS_PER_LEASE

    @property
    def lasts(self) -> float:
        """How long a Beat that came back lets its sender act, counted from its sending."""
        return self.lease if self.exclusive else self.hold

    @property
    def hold(self) -> float:
        """Under `available`: long enough for the successor to suspect, to get the partition and to be heard."""
        return self.lease + STAGGER_RANKS * self.stagger + self.beat_every + 3 * self.delay


# From the program to its machine


@dataclass(frozen=True, slots=True)
class Released:
    """The program has finished its work for these partitions under these terms."""

    terms: Terms


@dataclass(frozen=True, slots=True)
class Close:
    """The program wants to leave the group: in good order, or `at_once` if it cannot wait or failed with `error`."""

    at_once: bool = False
    error: NeliError | None = None

    @property
    def reason(self) -> str:
        """Why a program that leaves without finishing loses its partitions, in words for the program."""
        return "the program left the group without finishing" if self.error is None else str(self.error)


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened, but time passed."""


TICK = Tick()


# From the machine to its program


def _counted(event: object, partitions: Collection[int]) -> str:
    count = len(partitions)
    which = f": {spelled(partitions)}" if partitions else ""
    return f"{type(event).__name__}({count} partition{'s' * (count != 1)}{which})"


@dataclass(frozen=True, slots=True, match_args=False)
class _AboutPartitions:
    __match_args__ = ("partitions",)

    terms: Terms
    """Partition -> its term, which every write for the partition should carry."""

    @property
    def partitions(self) -> tuple[int, ...]:
        """In ascending order."""
        return tuple(sorted(self.terms))

    def __str__(self) -> str:
        return _counted(self, self.terms)


@dataclass(frozen=True, slots=True, match_args=False)
class Acquired(_AboutPartitions):
    """These partitions now belong to this member. Prepare: each is led once the handler has returned.

    If this member lost its leases for a while, even during a handover, a partition may come back under the same term.
    """


@dataclass(frozen=True, slots=True, match_args=False)
class Revoked(_AboutPartitions):
    """Other members will get these partitions. Finish: each is handed over once the handler has returned and every
    `leading` block on it has ended, or after `drain_timeout`, preceded by Fenced."""


@dataclass(frozen=True, slots=True, match_args=False)
class Fenced(_AboutPartitions):
    """Another member may act for these partitions already. Stop immediately; nothing waits for the handler."""

    reason: str


@dataclass(frozen=True, slots=True)
class Standby:
    """This member now stands by for these partitions, which are led in other zones, and for no others. Nothing waits
    for the handler. A partition that is on its way to this member stays in the set until it is Acquired.
    """

    partitions: tuple[int, ...]
    """In ascending order."""

    def __str__(self) -> str:
        return _counted(self, self.partitions)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an operator would want in the log: a constant name, and fields."""

    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The machine has ended: on request or, with an error, because it must not go on."""

    error: NeliError | None


Event = Acquired | Revoked | Fenced | Standby

News = Event | Notice | Stopped
"""Everything that a machine reports to the program or to its operators."""

Handler = Callable[[Event], object]
"""The function that a program gives its member. Its result is ignored; raising ends the member."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The partitions that the program may act for, as a value that any thread can query. It expires as time passes."""

    terms: Terms
    until: float
    ends: Mapping[int, float]
    """The ends of single partitions that differ from `until`."""

    def end(self, partition: int, term: int) -> float:
        """Until when the program may act for `partition` under `term`; `-inf` if it may not."""
        if self.terms.get(partition) != term:
            return -inf
        return self.ends.get(partition, self.until)


NO_STANDING = Standing({}, -inf, {})


# The machine

Taken_contra = TypeVar("Taken_contra", contravariant=True)
Given_co = TypeVar("Given_co", covariant=True)


class Machine(Protocol[Taken_contra, Given_co]):
    """The interface of all protocols. In addition to the program's side, each takes and gives what its ledger needs."""

    @property
    def incarnation(self) -> str:
        """The member's current id, by which the others know it; empty for a machine that only reads."""

    @property
    def standing(self) -> Standing:
        """The partitions that the program was notified it may act for, and until when."""

    @property
    def deadline(self) -> float:
        """When to step with `TICK` if nothing comes first; `inf` means never."""

    @property
    def caught_up(self) -> bool:
        """Whether everything that existed at the start was read: until then, this may be the group's past."""

    @property
    def error(self) -> NeliError | None:
        """The error that stopped this machine, or will stop it as soon as it may; None while it goes on."""

    def step(self, event: Taken_contra, now: float) -> Sequence[Given_co]:
        """Take `event` at `now`, which never goes back."""

    def tenures(self, now: float) -> dict[int, int]:
        """Partition -> term, for all partitions that this member may act for at `now`."""
