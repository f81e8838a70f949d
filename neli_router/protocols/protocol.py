"""The program's side of every protocol: a member's settings, and what it says to its machine and hears from it.

    program --Released, Close--> machine --Acquired, Revoked, Fenced--> program's handler
    clock ---Tick (now)--------> machine --Notice, Stopped-----------> log, end of the member
                                    '----- standing -----------------> leases, at any time

    Acquired  prepare, then lead: leases are given when the handler has returned
    Revoked   finish what you are doing: the successor waits for you, at most `drain_timeout`
    Fenced    stop at once: another member may lead already

            Acquired               Revoked                      (handed over)
    nothing --------> may lead ----------------> finishing --------------------> nothing
       ^                 '---------- Fenced ---------+
       '---------------------------------------------'

Acquired and Revoked reach the handler one after another, in order, on one thread. Fenced comes on a thread of its own,
even while the handler is busy with another event, because it must not wait. A handler that raises ends the member: a
partition that is half prepared or half finished cannot be led. A partition may be acquired again under a higher term
without a loss in between: leases of the old term are void then.

A machine does no I/O, has no clock, no thread and no randomness of its own. It takes one input and the time, and
answers with effects that must be carried out in their order. `deadline` says when to step it with `TICK` if nothing
comes first. How a machine reaches the other members is its own affair: see `induction/events.py`.

The times that follow from the settings:

|<----------------- lease ----------------->|          how long a Beat proves anything, from its sending
|<-beat->|<-beat->|<-beat->| ...                       how often one is sent: several may be lost
|<----- half a lease ---->|                            longer since my last Beat came back: I do not hear myself
|<------------------- wait ------------------>|        the lease as counted on the slowest allowed clock
|<-------------- suspicion ---------------->|<-stagger->|<-beat->|<- 3 D ->|        = hold, under `available`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from neli_router.core.keyspace import Layout
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
    "Standing",
    "Stopped",
    "Tick",
    "wait_for",
]

NAME_MAX = 256
"""Longest name, address or zone, in characters. A name is for people and log lines; longer ones are mistakes."""

RECORD_MAX = 8 * 2**20
"""Bytes of the longest record, which is a snapshot: some 100 for each partition and member."""

BASE_MAX = 2**52
"""Terms count from a base. The wall clock, in microseconds, gets there in the year 2112. The rest leaves room for
offsets, so that terms stay in bounds."""

WEIGHT_MAX = 1_000_000
"""Weights are whole numbers, so that every member divides the partitions alike; a million is fine enough."""

LOAD_MAX = 1e15
"""The most that one partition may be as load: a sum of loads is then exact to far more digits than any measurement."""

BEATS_PER_LEASE = 6
"""More beats a lease make false suspicions rarer and cost records; fewer than four, and one lost Beat would be enough
for a member not to hear itself."""

STAGGER_RANKS = 4
"""How many survivors wait for each other before they accuse; those that come after stand level with the last. The wait
is only there to spare records: an accusation that comes second is void."""

STAGGERS_PER_LEASE = 20
"""A twentieth of a lease between accusers is several times what a record takes to be read, at any sensible lease."""

LEASE_MIN = 0.01
LEASE_MAX = 3600.0
"""A lease has ten milliseconds at least, because shorter ones are eaten up by thread switches, and an hour at most."""

DRIFT_MAX = 0.001
"""The most that one clock's rate may be off: 1000 parts in a million, where crystals are off by 50 and slewing, which
our clock does not follow, by 500. Raising it lengthens every takeover by twice as much."""

Terms = Mapping[int, int]
"""Partition -> term."""

Guarantee = Literal["exclusive", "available"]


def wait_for(lease: float, drift: float = DRIFT_MAX) -> float:
    """How long to wait, on one's own clock, for a lease that another member counts on its clock."""
    return lease * (1 + drift) / (1 - drift)


class Settings(Struct, frozen=True, kw_only=True):
    """One member's settings. Times are in seconds. `ConfigError` names all that is wrong with them at once."""

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
    """D: under `available`, how late a record may be read for the guarantee to hold; None is a quarter of a lease."""
    drain_timeout: float = 30.0
    """How long a successor waits for the program to finish what was revoked. Longer is kinder to long work; a program
    that hangs keeps its partitions for that long."""
    snapshot_every: int = 5000
    """Records between snapshots. More makes newcomers start slower and the ledger longer, fewer costs bytes."""
    drift: float = DRIFT_MAX
    replace: bool = False
    """Take the name from a member that lives under it. Else a newcomer that hears it gives up."""
    term_base: int = 0
    """Terms are above this. A group that moves to a new ledger gives the highest term that it ever had."""

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise ConfigError(problems)

    def problems(self) -> list[str]:
        """Every contradiction, as a sentence that says what was wanted, what was found and what to do."""
        found: list[str] = []

        def need(holds: bool, sentence: str) -> None:
            if not holds:
                found.append(sentence)

        for what, text in (("name", self.name), ("address", self.address), ("zone", self.zone)):
            need(
                _is_text(text),
                f"the {what} must be printable text of at most {NAME_MAX} characters, got {text!r:.60}: choose another",
            )
        need(self.name != "", "the member's name is empty: give each process a name of its own")
        need(
            _is_whole(self.weight) and 0 <= self.weight <= WEIGHT_MAX,
            f"weight={self.weight!r} must be a whole number from 0 to {WEIGHT_MAX}: 1 for an equal share",
        )
        need(
            _is_whole(self.term_base) and 0 <= self.term_base <= BASE_MAX,
            f"term_base={self.term_base!r} must be a whole number from 0 to {BASE_MAX}: correct it",
        )
        need(
            self.guarantee in ("exclusive", "available"),
            f"guarantee={self.guarantee!r} is unknown: choose 'exclusive' (at most one acts) or 'available'",
        )
        times = {"lease": self.lease, "drift": self.drift, "drain_timeout": self.drain_timeout}
        # Those that follow from the lease are no problems of their own.
        times |= {what: time for what, time in (("beat", self.beat), ("delay_max", self.delay_max)) if time is not None}
        for what, value in times.items():
            need(_is_time(value), f"{what}={value!r} must be a number of seconds, at least 0: correct it")
        need(
            _is_whole(self.snapshot_every) and self.snapshot_every >= 100,
            f"snapshot_every={self.snapshot_every!r} must be a whole number of at least 100 records",
        )
        if not all(_is_time(value) for value in times.values()):
            return found  # The rest compares them.
        need(
            LEASE_MIN <= self.lease <= LEASE_MAX,
            f"lease={self.lease} must be from {LEASE_MIN} to {LEASE_MAX} seconds",
        )
        need(
            0 < self.beat_every <= self.lease / 4 or not LEASE_MIN <= self.lease <= LEASE_MAX,
            f"beat={self.beat_every} must be above 0 and at most a quarter of lease={self.lease}, or one lost beat "
            f"would look like silence: lower beat to {self.lease / 4:g} or raise lease to {4 * self.beat_every:g}",
        )
        need(self.drift < 0.1, f"drift={self.drift} must be under 0.1: no clock is off by a tenth of its rate")
        need(
            self.delay <= self.lease,
            f"delay_max={self.delay} must be at most lease={self.lease}: a member whose records take longer is expired",
        )
        return found

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
        """How long a Beat that came back lets its sender act, from its sending."""
        return self.lease if self.exclusive else self.hold

    @property
    def hold(self) -> float:
        """Under `available`: long enough for the successor to suspect, to be given the partition and to be heard."""
        return self.lease + STAGGER_RANKS * self.stagger + self.beat_every + 3 * self.delay


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= NAME_MAX


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# What the program says to its machine


@dataclass(frozen=True, slots=True)
class Released:
    """The program has finished what it did for these partitions under these terms."""

    terms: Terms


@dataclass(frozen=True, slots=True)
class Close:
    """The program wants to leave the group: in good order, or `at_once` when it cannot wait or failed by `error`."""

    at_once: bool = False
    error: NeliError | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened, but time passed."""


TICK = Tick()


# What the program hears from its machine


@dataclass(frozen=True, slots=True, match_args=False)
class _AboutPartitions:
    __match_args__ = ("partitions",)

    terms: Terms
    """Partition -> the term, which every write on its behalf should carry."""

    @property
    def partitions(self) -> tuple[int, ...]:
        """In ascending order."""
        return tuple(sorted(self.terms))


@dataclass(frozen=True, slots=True, match_args=False)
class Acquired(_AboutPartitions):
    """These partitions are this member's. Prepare: each is led when the handler has returned."""


@dataclass(frozen=True, slots=True, match_args=False)
class Revoked(_AboutPartitions):
    """Other members shall have these partitions. Finish: each is handed over when the handler has returned and every
    `leading` block on it has ended, or else after `drain_timeout`, with Fenced before."""


@dataclass(frozen=True, slots=True, match_args=False)
class Fenced(_AboutPartitions):
    """Another member may act for these partitions already. Stop at once; the handler is not waited for."""

    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something an operator would want in the log: a constant name, and fields."""

    event: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The machine has ended, because it was told to or, with an error, because it may not go on."""

    error: NeliError | None


Event = Acquired | Revoked | Fenced

News = Event | Notice | Stopped
"""All that a machine tells, to the program or to its operators."""

Handler = Callable[[Event], object]
"""The function that a program gives its member. Its result is not looked at; raising ends the member."""


@dataclass(frozen=True, slots=True)
class Standing:
    """For which partitions the program may act, as a value that any thread can ask: it ends as time passes."""

    terms: Terms
    until: float
    ends: Mapping[int, float]
    """Where a single partition ends at another time than `until`."""

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
    """The one shape of all protocols. Beside the program's side, each takes and gives what its own ledger needs."""

    @property
    def incarnation(self) -> str:
        """The id under which the member is known to the others at present; empty for a machine that only reads."""

    @property
    def standing(self) -> Standing:
        """For which partitions the program was told that it may act, and until when."""

    @property
    def deadline(self) -> float:
        """When to step with `TICK` if nothing comes first; `inf` means never."""

    @property
    def caught_up(self) -> bool:
        """Whether all was read that there was at the start: until then, what is known of the group may be its past."""

    @property
    def error(self) -> NeliError | None:
        """What this machine has stopped by, or will as soon as it may; None as long as it goes on."""

    @property
    def heard_at(self) -> float:
        """When a sign of life of any member was last read. Without any, when the machine began or stepped last."""

    def step(self, event: Taken_contra, now: float) -> Sequence[Given_co]:
        """Take `event` at `now`, which never goes back."""

    def tenures(self, now: float) -> dict[int, int]:
        """Partition -> term, for all partitions that this member may act for at `now`."""
