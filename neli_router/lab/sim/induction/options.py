"""The options of a run: everything about it that a seed decides in advance.

    seed --Random--> weather --> a group, its ledger and network, which faults, how often --> one line that says it all

Not every run has every fault. A run in which everything goes wrong together rarely reaches the state in which a single
fault does harm. So each seed first draws which faults it has at all (a swarm), and how bad they are.

    foul      anything but the loss of a record that was read: every promise that does not depend on luck must hold
    fair      each record is read within D of its sending. Processes may die, join, leave and wish; no live process may
              ever be expired, and under `available` no live owner is ever missing
    slow      every record takes equally long, up to five sixths of a lease for a round trip, even after the faults.
              Leaders keep leading, no live process is expired, and the partitions of a dead process find new owners
    rewound   the ledger loses records that were read, once; then every process that could notice must stop
    rolling   foul, and an older release founded the group. Its members return with either release,
              and an operator upgrades again and again. No seed draws this weather: it must be asked for
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

from neli_router.core.keyspace import Layout
from neli_router.lab.sim.seed import SeedOptions
from neli_router.protocols.protocol import Guarantee, Settings

__all__ = ["FAIR_FAULTS", "FOUL_FAULTS", "NAMES_MAX", "STEPS_MAX", "Rewind", "RunOptions", "Weather"]

NAMES_MAX = 6
"""The most names in a group, each with one or two live processes. More members find only what six find, but slower."""

STEPS_MAX = 900
"""The number of machine steps after which a run's faults end, if its time is not over before: a large group takes many
in one lease. More find more in a seed, but a second then affords fewer seeds."""

LEASES_MAX = 40.0

SLOW_MIN, SLOW_SPARE = 0.2, 0.05
"""In slow weather, a round trip takes at least SLOW_MIN leases. Together with the time between two Beats, it leaves at
least SLOW_SPARE of a lease, by any clock, or nothing could be led without a break."""

FAIR_FAULTS = ("kill", "join", "close", "namesake", "drain", "pin", "weigh", "load", "stranger", "misfit")
FOUL_FAULTS = (
    *(*FAIR_FAULTS, "pause", "sleep", "deafen", "mute", "isolate", "outage", "slander", "forgery", "reboot"),
    *("inheritance", "snapshot", "waver"),
)

Weather = Literal["foul", "fair", "slow", "rewound", "rolling"]
Rewind = Literal["no", "back", "onward", "anew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(SeedOptions):
    """Times are in leases, except for the lease itself. Rates are chances, from 0 to 1."""

    weather: Weather
    guarantee: Guarantee
    members: int
    names: int
    """How many names there are, including those of members that join later."""
    partitions: int
    lease: float
    beats: int
    leases: float
    """The longest that phase one takes."""
    drift: float
    clocks: Literal["constant", "step"]
    delay: float
    """The mean time from sending to appending, and from there to each reader."""
    tail: float
    """How often it takes up to `tail_leases` instead."""
    tail_leases: float
    loss: float
    failed: float
    """How often an append raises but is appended later all the same."""
    repeated: float
    read_failed: float
    acknowledged: float
    batch_max: int
    sparse: bool
    """Whether the ledger skips offsets."""
    answer: float
    """The mean time in which a program answers Revoked."""
    hang: float
    """How often a program never answers."""
    drain_timeout: float
    snapshot_every: int
    retained: bool
    """Whether the ledger keeps what it may drop."""
    faults: tuple[str, ...]
    faults_per_lease: float
    follow_up: float
    """How often a fault is soon followed by another, aimed at the same member."""
    rewind: Rewind
    noticed: bool
    """Whether the driver notices that its position is beyond the tip."""
    grace: float
    """In leases: how long a member's partitions are kept for its name."""
    zones: int
    """In how many zones the members are."""
    witnessed: float
    """How often a process has a witness that certifies its death."""
    lent: float
    """How often a process that is killed while it leads has lent its lease to another process, which acts on."""

    @property
    def fair(self) -> bool:
        return self.weather == "fair"

    @property
    def slow(self) -> bool:
        return self.weather == "slow"

    @property
    def rolling(self) -> bool:
        return self.weather == "rolling"

    @property
    def exclusive(self) -> bool:
        return self.guarantee == "exclusive"

    def settings(self, name: str, weight: int = 1, *, replace: bool = False) -> Settings:
        """The settings of a member called `name`."""
        return Settings(
            name=name,
            layout=Layout(slots=64, partitions=self.partitions),
            lease=self.lease,
            guarantee=self.guarantee,
            beat=self.lease / self.beats,
            address=f"{name}.example:7000",
            weight=weight,
            zone=f"zone {sum(name.encode()) % self.zones}",
            drain_timeout=self.drain_timeout * self.lease,
            snapshot_every=self.snapshot_every,
            drift=self.drift,
            grace=self.grace * self.lease,
            replace=replace,
        )

    @classmethod
    def draw(cls, seed: int, random: Random, *, guarantee: Guarantee | None, weather: Weather | None) -> "RunOptions":
        """The options of `seed`; `guarantee` and `weather` override those drawn."""
        drawn_weather: Weather = random.choices(("foul", "fair", "slow", "rewound"), (56, 24, 8, 12))[0]
        drawn_guarantee: Guarantee = random.choices(("exclusive", "available"), (75, 25))[0]
        weather, guarantee = weather or drawn_weather, guarantee or drawn_guarantee
        foul = weather in {"foul", "rewound", "rolling"}
        # Separate, so that a seed's other draws stay the same.
        witnesses, graces, zones = (Random(f"{what} in {seed}") for what in ("witnessed", "graces", "zones"))
        members = random.choices((1, 2, 3, 4, 5, 6), (1, 4, 7, 5, 2, 1))[0]
        beats = random.choice((4, 4, 5, 6))

        def some(chance: float, least: float, most: float) -> float:
            """Off, or on to a degree that is small more often than large."""
            on, degree = random.random() < chance, random.random() ** 2
            return least + (most - least) * degree if on else 0.0

        available_faults = FOUL_FAULTS if foul else FAIR_FAULTS
        faults = tuple(fault for fault in available_faults if random.random() < (0.45 if foul else 0.6))
        if weather == "rewound":  # A misfit may found the new ledger; then all others are misfits.
            faults = tuple(fault for fault in faults if fault != "misfit")
        if weather == "fair" and guarantee == "exclusive" and random.random() < 0.6:
            faults = (*faults, "outage")
        drift = random.choice((0.001, 0.03, 0.09, 0.09))
        delay = random.choice((0.0002, 0.005, 0.03))
        if weather == "slow":
            delay = random.uniform(SLOW_MIN, (1 - 1 / beats) / (1 + drift) - SLOW_SPARE) / 2
        return cls(
            seed=seed,
            weather=weather,
            guarantee=guarantee,
            members=members,
            names=min(NAMES_MAX, members + random.randint(1, 2)),
            partitions=random.choice((1, 2, 3, 4, 6, 8, 12, 16)),
            lease=random.choice((0.25, 1.0, 1.0, 3.0)),
            beats=beats,
            leases=random.uniform(0.4, 1.0) * LEASES_MAX,
            drift=drift,
            clocks=random.choice(("constant", "step")),
            delay=delay,
            tail=some(0.5, 0.01, 0.2) if foul else 0.0,
            tail_leases=random.choice((0.3, 1.2, 3.0)),
            loss=some(0.5, 0.01, 0.3) if foul else 0.0,
            failed=some(0.5, 0.01, 0.2) if foul else 0.0,
            repeated=some(0.4, 0.01, 0.3),
            read_failed=some(0.3, 0.005, 0.05) if foul else 0.0,
            acknowledged=random.choice((0.0, 0.7, 1.0)),
            batch_max=random.choice((1, 3, 1000)),
            sparse=random.random() < 0.3,
            answer=random.choice((0.0, 0.02, 0.5)),
            hang=some(0.4, 0.05, 0.5),
            drain_timeout=random.choice((0.0, 0.3, 1.5)),
            snapshot_every=random.choice((100, 100, 250)),
            retained=random.random() < 0.3,
            faults=faults,
            faults_per_lease=random.choice((0.15, 0.5, 1.0, 2.0)) if foul else random.choice((0.15, 0.5, 1.0)),
            follow_up=random.choice((0.0, 0.4, 0.7)),
            rewind=random.choice(("back", "onward", "anew")) if weather == "rewound" else "no",
            noticed=random.random() < 0.5,
            grace=graces.choice((0.0, 0.0, 0.6, 2.0, 6.0)) if guarantee == "exclusive" else 0.0,
            zones=zones.choice((1, 2, 3, 3)),
            witnessed=witnesses.choice((0.0, 0.5, 1.0)),
            lent=witnesses.choice((0.0, 0.5, 1.0)) if guarantee == "exclusive" else 0.0,
        )
