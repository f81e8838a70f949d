"""The options of a run of a group without a broker: everything about it that a seed decides in advance.

    seed --Random--> protocol and weather --> peers, their network, disks and clocks, which faults, how often

Each weather is defined by what its runs may be judged for:

    fair      the network loses nothing and is fast. Peers may die, come back, leave, be cut off for a while, and
              operators may name leaders. In addition to safety, promptness is judged (a partition is led again in time)
              and stickiness (a leader with a majority stays the leader)
    foul      everything goes wrong together: loss, duplicates, reordering, cuts of one direction or of some pairs, slow
              links, pauses at any moment, power cuts. Safety is judged at all times, and liveness afterwards
    amnesiac  foul, and disks forget what they kept. No elector is safe under it, so no seed draws it: it shows what the
              disk is for

In every weather, the rates of clocks are as far apart as the settings allow. Times are in leases, except for the lease
itself.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

from neli_router.core.keyspace import Layout
from neli_router.lab.sim.seed import SeedOptions
from neli_router.protocols.electors.settings import MISSES, GossipSettings, PeerSettings, TermSettings
from neli_router.protocols.protocol import DRIFT_MAX

__all__ = ["FAIR_STRIKES", "FOUL_STRIKES", "ElectorOptions", "ElectorProtocol", "ElectorWeather"]

ElectorProtocol = Literal["term", "priority", "gossip"]
ElectorWeather = Literal["fair", "foul", "amnesiac"]

LEASES_MAX = 30.0

FAIR_STRIKES = ("kill", "join", "close", "isolate", "unpair", "nominate", "prefer", "rebalance")
FOUL_STRIKES = (*FAIR_STRIKES, "freeze", "reboot", "one_way", "split", "slow", "power_cut", "ping_pong")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectorOptions(SeedOptions):
    """Rates are chances, from 0 to 1."""

    protocol: ElectorProtocol
    weather: ElectorWeather
    size: int
    """How many peers there are."""
    partitions: int
    replicas: int
    """`priority`: how many of them elect the leader of each partition."""
    lease: float
    leases: float
    """The longest that phase one takes."""
    beats: float
    """How many beats make a lease."""
    wait_max: float
    """The longest random wait before a peer stands."""
    drift: float
    drain_timeout: float
    transfer: bool
    relay: bool
    first_class: int
    delay: float
    """The time that most ways take; each pair has its own share of it."""
    delay_max: float
    tail: float
    """How often a datagram takes up to a lease and a half instead."""
    loss: float
    duplicates: float
    answer: float
    hang: float
    faults: tuple[str, ...]
    faults_per_lease: float
    follow_up: float

    def settings(self, place: int) -> PeerSettings:
        """The settings of the peer at `place`."""
        common = {
            "name": f"m{place + 1}",
            "layout": Layout(slots=64, partitions=self.partitions),
            "peers": tuple(f"m{peer + 1}:7801" for peer in range(self.size)),
            "me": place,
            "lease": self.lease,
            "beat": self.lease / self.beats,
            "drain_timeout": self.drain_timeout * self.lease,
            "drift": self.drift,
        }
        if self.protocol == "gossip":
            return GossipSettings(**common, relay=self.relay, first_class=self.first_class)  # type: ignore[arg-type]
        return TermSettings(
            **common,  # type: ignore[arg-type]
            policy="priority" if self.protocol == "priority" else "random",
            wait_max=self.wait_max * self.lease,
            replicas=self.replicas,
            transfer=self.transfer,
        )

    @property
    def fair(self) -> bool:
        return self.weather == "fair"

    @property
    def exclusive(self) -> bool:
        return True

    @classmethod
    def draw(
        cls, seed: int, random: Random, *, protocol: ElectorProtocol | None, weather: ElectorWeather | None
    ) -> "ElectorOptions":
        """The options of `seed`; arguments override what is drawn."""
        drawn_protocol: ElectorProtocol = random.choices(("term", "priority", "gossip"), (40, 30, 30))[0]
        drawn_weather: ElectorWeather = random.choices(("foul", "fair"), (60, 40))[0]
        protocol, weather = protocol or drawn_protocol, weather or drawn_weather
        fair, gossip = weather == "fair", protocol == "gossip"
        size = random.choices((1, 2, 3, 4, 5, 7), (1, 2, 8, 3, 5, 2))[0]
        replicas = random.randint(min(size, 2), size) if protocol == "priority" else size

        def some(chance: float, most: float) -> float:
            """Off, or on to a degree that is small more often than large."""
            on, degree = random.random() < chance, random.random() ** 2
            return most * degree if on else 0.0

        beats = float(random.choice((10, 15, 20)) if gossip else random.choice((MISSES, MISSES, 4, 6)))
        delay_max = 0.05 / beats
        faults = tuple(
            fault for fault in (FAIR_STRIKES if fair else FOUL_STRIKES) if random.random() < (0.6 if fair else 0.45)
        )
        return cls(
            seed=seed,
            protocol=protocol,
            weather=weather,
            size=size,
            partitions=random.choice((1, 1, 1, 2, 3, 6)),
            replicas=replicas,
            lease=random.choice((0.5, 1.0, 10.0)),
            leases=random.uniform(0.4, 1.0) * LEASES_MAX,
            beats=beats,
            wait_max=random.choice((1.0, 1.0, 0.3, 0.1)) * MISSES / beats,
            drift=DRIFT_MAX,
            drain_timeout=random.choice((0.0, 0.2, 0.8)),
            transfer=random.random() < 0.7,
            relay=random.random() < 0.5,
            first_class=random.choice((size, size, random.randint(1, size))),
            delay=random.choice((0.01, 0.1, 0.4)) * delay_max,
            delay_max=delay_max,
            tail=0.0 if fair else some(0.5, 0.2),
            loss=0.0 if fair else some(0.5, 0.3),
            duplicates=some(0.4, 0.5),
            answer=random.choice((0.0, 0.01, 0.2)),
            hang=some(0.4, 0.5),
            faults=faults,
            faults_per_lease=random.choice((0.05, 0.15)) if fair else random.choice((0.15, 0.5, 1.0)),
            follow_up=0.0 if fair else random.choice((0.0, 0.4, 0.7)),
        )
