"""The options of a run of a borrowed consumer group: everything about it that a seed decides in advance.

    seed --Random--> protocol and weather --> a topic, its broker, clients and hosts, which faults, how often

The paper proves its promises from assumptions, and says itself that these may fail. So each weather is defined by the
assumptions that it keeps:

    fair     all of them, and everything arrives soon. Processes may die, join and leave. In addition to safety,
             coverage is judged: each partition is led again in time, and no partition dries up
    foul     those that exclusivity needs: all clocks of the day are within e of each other, the broker's never goes
             back, and a consumer receives nothing that was appended after the broker took the partition from it.
             Everything else goes wrong: pauses at any moment, cut networks, a broker that forgets consumers early, a
             coordinator that moves, brokers that are unreachable, lost messages, retention
    beyond   not even those: a forgotten consumer goes on fetching until it learns of it, and clocks of the day are off
             by any amount. Two may act then, and only their terms keep their writes apart

`fast-neli` has no clock of the day, and no wait after a partition was given. Its exclusivity needs more: the broker
takes a partition only from a consumer that was silent for a whole session, and such a silence clearly outlasts the
session. So for `fast-neli` that rule is judged in fair weather only.

Times are in sessions (the broker's patience with a silent consumer), except for the session itself.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

from neli_router.core.keyspace import Layout
from neli_router.lab.sim.seed import SeedOptions
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.protocol import Guarantee

__all__ = ["FAIR_FAULTS", "FOUL_FAULTS", "BorrowedProtocol", "ConsumerOptions", "ConsumerWeather"]

BorrowedProtocol = Literal["neli", "fast-neli"]
ConsumerWeather = Literal["fair", "foul", "beyond"]

NAMES_MAX = 5
SESSIONS_MAX = 30.0

FAIR_FAULTS = ("kill", "join", "close", "isolate", "stranger")
FOUL_FAULTS = (
    *(*FAIR_FAULTS, "freeze", "stall", "unfetch", "ungroup", "mute", "outage", "move", "forget", "drop", "replay"),
    *("broken", "backlog"),
)

DRIFT = 0.001
"""The most by which the rate of a host's clock is off. The paper covers that by e."""

SPARE = 0.03
"""In sessions: the least slack left in each inequality, for drift and for the turns of threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(SeedOptions):
    """Rates are chances, from 0 to 1."""

    protocol: BorrowedProtocol
    weather: ConsumerWeather
    guarantee: Guarantee
    members: int
    names: int
    partitions: int
    session: float
    sessions: float
    """The longest that phase one takes."""
    current: float
    """`neli`: T, how long a receipt keeps a partition led. `fast-neli`: how long a member's own heartbeat does."""
    beat: float
    error: float
    """e: the most by which two clocks of the day differ, as configured for the members."""
    drift: float
    assignor: Literal["eager", "cooperative"]
    beats_per_session: int
    """How often a client library signals that it lives."""
    poll_patience: float
    """How long a program may take nothing from its client library, and give nothing back."""
    delay: float
    delay_max: float
    tail: float
    """How often something takes up to a session and a half instead."""
    loss: float
    batch_max: int
    sparse: bool
    """Whether the topic skips offsets."""
    deaf_while_draining: bool
    """Whether nothing is received until a partition that was asked back is given back."""
    answer: float
    hang: float
    drain_timeout: float
    groups: int
    """How many NELI groups share the topic."""
    faults: tuple[str, ...]
    faults_per_session: float
    follow_up: float

    def settings(self, name: str) -> NeliSettings | FastNeliSettings:
        """The settings of a member called `name`."""
        layout, session = Layout(slots=64, partitions=self.partitions), self.session
        drain_timeout = self.drain_timeout * session
        if self.protocol == "fast-neli":
            return FastNeliSettings(
                name=name,
                layout=layout,
                session=session,
                drain_timeout=drain_timeout,
                heartbeat_timeout=self.current * session,
                min_poll_interval=self.beat * session,
                group_heartbeat=session / self.beats_per_session,
            )
        return NeliSettings(
            name=name,
            layout=layout,
            session=session,
            drain_timeout=drain_timeout,
            guarantee=self.guarantee,
            threshold=self.current * session,
            clock_error=self.error * session,
            beat=self.beat / self.groups * session,
            groups=self.groups,
        )

    @property
    def fair(self) -> bool:
        return self.weather == "fair"

    @property
    def exclusive(self) -> bool:
        return self.guarantee == "exclusive"

    @property
    def at_most_one(self) -> bool:
        """Whether two may never act for one partition, by the assumptions that this run keeps."""
        return self.exclusive and (self.fair or (self.weather == "foul" and self.protocol == "neli"))

    @property
    def fenced_fetch(self) -> bool:
        """Whether a consumer receives nothing that was appended after the broker took the partition from it."""
        return self.weather != "beyond"

    @classmethod
    def draw(
        cls,
        seed: int,
        random: Random,
        *,
        protocol: BorrowedProtocol | None,
        guarantee: Guarantee | None,
        weather: ConsumerWeather | None,
    ) -> "ConsumerOptions":
        """The options of `seed`; arguments override what is drawn."""
        drawn_protocol: BorrowedProtocol = random.choices(("neli", "fast-neli"), (60, 40))[0]
        drawn_weather: ConsumerWeather = random.choices(("foul", "fair", "beyond"), (50, 30, 20))[0]
        drawn_guarantee: Guarantee = random.choices(("exclusive", "available"), (65, 35))[0]
        protocol, weather = protocol or drawn_protocol, weather or drawn_weather
        guarantee = "exclusive" if protocol == "fast-neli" else guarantee or drawn_guarantee
        fair = weather == "fair"
        members = random.choices((1, 2, 3, 4, 5), (1, 5, 7, 4, 1))[0]

        def some(chance: float, most: float) -> float:
            """Off, or on to a degree that is small more often than large."""
            on, degree = random.random() < chance, random.random() ** 2
            return most * degree if on else 0.0

        delay, delay_max = random.choice((0.0002, 0.002, 0.005)), 0.015
        beats_per_session = random.choice((5, 10, 20))
        error = random.choice((0.01, 0.1, 0.25)) if protocol == "neli" and guarantee == "exclusive" else 0.0
        share = random.uniform(0.3, 1.0)
        beats = random.choice((3.5, 4, 6))
        if guarantee == "available":
            # The paper leaves this to "greater than": the consumer's last sign of life, its successor's next one, and
            # the ways of both take time, too.
            current = (1.0 + 2 / beats_per_session + 6 * delay_max + SPARE) * (1 + 1 / beats) * (1.0 + share)
        elif protocol == "neli":
            # Where a host's clock is ahead of the broker's by e, messages count for T - e.
            least, most = 1.3 * error, (1.0 - error - SPARE) / (1 + 2 * DRIFT)
            current = least + (most - least) * share
        else:
            current = share / 3
        faults = tuple(
            fault for fault in (FAIR_FAULTS if fair else FOUL_FAULTS) if random.random() < (0.6 if fair else 0.45)
        )
        return cls(
            seed=seed,
            protocol=protocol,
            weather=weather,
            guarantee=guarantee,
            members=members,
            names=min(NAMES_MAX, members + random.randint(1, 2)),
            partitions=random.choice((1, 1, 2, 3, 4, 6)),
            session=random.choice((0.5, 1.0, 1.0, 10.0)),
            sessions=random.uniform(0.4, 1.0) * SESSIONS_MAX,
            current=current,
            beat=(current - error) / beats,
            error=error,
            drift=DRIFT,
            assignor=random.choice(("eager", "cooperative")),
            beats_per_session=beats_per_session,
            poll_patience=random.choice((2.0, 5.0)),
            delay=delay,
            delay_max=delay_max,
            tail=0.0 if fair else some(0.5, 0.2),
            loss=0.0 if fair else some(0.5, 0.3),
            batch_max=random.choice((1, 3, 1000)),
            sparse=random.random() < 0.3,
            deaf_while_draining=random.random() < 0.5,
            groups=random.choice((1, 1, 3)),
            answer=random.choice((0.0, 0.01, 0.2)),
            hang=some(0.4, 0.5),
            drain_timeout=random.choice((0.0, 0.2, 0.8)),
            faults=faults,
            faults_per_session=random.choice((0.15, 0.4)) if fair else random.choice((0.15, 0.5, 1.0)),
            follow_up=0.0 if fair else random.choice((0.0, 0.4, 0.7)),
        )
