"""What one member is told about itself and its group, and the times that follow from it.

|<----------------- lease ----------------->|          how long a Beat proves anything, from its sending
|<-beat->|<-beat->|<-beat->| ...                       how often one is sent: several may be lost
|<----- half a lease ---->|                            longer since my last Beat came back: I do not hear myself
|<------------------- wait ------------------>|        the lease as counted on the slowest allowed clock
|<-------------- suspicion ---------------->|<-stagger->|<-beat->|<- 3 D ->|        = hold, under `available`
"""

from msgspec import Struct

from neli_router.errors import ConfigError
from neli_router.induction.records import NAME_MAX, WEIGHT_MAX, Guarantee
from neli_router.induction.tenure import DRIFT_MAX, wait_for
from neli_router.keyspace import Layout

__all__ = ["BEATS_PER_LEASE", "STAGGER_RANKS", "Settings"]

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
"""Leases from ten milliseconds, where thread switches alone eat them up, to an hour, which nobody would wait for."""


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
            return found  # What follows compares them.
        need(
            LEASE_MIN <= self.lease <= LEASE_MAX,
            f"lease={self.lease} must be from {LEASE_MIN} to {LEASE_MAX} seconds",
        )
        need(
            0 < self.beat_every <= self.lease / 4,
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
