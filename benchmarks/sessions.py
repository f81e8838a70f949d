"""How many members a consumer group expels wrongly, while gathering and at rest, by session and size.

    members, started together --> each has a share, nothing changed for two sessions --> left alone --> close
    |<--------------- gathering: settled_ms, expelled ------------->|<-- expelled_at_rest -->|

The consumers are librdkafka's own, on the classic protocol, each on its own thread of this process. Nothing is ours but
the few settings that matter. All of them are alive and none is slow, so every expulsion in the broker's log is a wrong
one.

librdkafka sends heartbeats when its main thread wakes. `--awake` chooses what wakes it: `commit` is the timer of
automatic commits, which our driver uses; `statistics` is the timer of statistics; both fire twenty times a session;
`nothing` adds no timer. librdkafka asks to join at most once a second, and is silent until then. So a member that must
join twice within a second is expelled if its session is shorter. The more members start, the more often this happens.

    expelled@S,N,A                  in all trials, for N members with a session of S seconds, kept awake by A
    settled@S,N,A                   how many trials settled within half a minute
    settled_ms_median@S,N,A, _max   how long these took

Here the broker accepts all of these sessions, because of `group.min.session.timeout.ms=100`; by default it accepts none
under 6 seconds. The benchmark takes about ten minutes, `--quick` two.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import BenchmarkOptions, Figures, option, switch
from tests.support.servers.kafka import Kafka
from tests.support.waiting import PATIENCE

__all__ = ["Options", "run"]

AWAKE = ("nothing", "commit", "statistics")
COOPERATIVE = "cooperative-sticky"
STRATEGIES = (COOPERATIVE, "range", "roundrobin")

HEARTBEATS_PER_SESSION = 10
WAKES_PER_SESSION = 20
"""The same as in our driver."""

PARTITIONS = 8
SETTLE_MAX = 30.0
POLL = 0.05
EXPELLED = "has failed, removing it from the group"
"""In the broker's log, after the group's name."""


class Sharing:
    """One consumer on a thread of its own: its partitions, and when they last changed."""

    def __init__(self, topic: str, settings: dict[str, object]) -> None:
        self.has: set[int] = set()
        self.changed_at = time.monotonic()
        self._is_cooperative = settings["partition.assignment.strategy"] == COOPERATIVE
        self._over = False
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._given, on_revoke=self._gone, on_lost=self._gone)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._over = True

    def await_left(self) -> None:
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._over:
            self._consumer.poll(POLL)
        self._consumer.close()

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.has |= {it.partition for it in partitions}
        self.changed_at = time.monotonic() if partitions else self.changed_at
        (consumer.incremental_assign if self._is_cooperative else consumer.assign)(partitions)

    def _gone(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.has -= {it.partition for it in partitions}
        self.changed_at = time.monotonic() if partitions else self.changed_at


class Broker:
    """A broker that accepts short sessions, and reports the members that it expelled."""

    def __init__(self, kafka: Kafka) -> None:
        self._bootstrap, self._log = kafka.bootstrap, kafka.nodes[0].folder / "log"
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def expelled(self, group: str) -> int:
        lines = Path(self._log).read_text(errors="replace").splitlines()
        return sum(EXPELLED in line and group in line for line in lines)

    @contextmanager
    def group(self, members: int, session: float, awake: str, strategy: str) -> Iterator[tuple[str, list[Sharing]]]:
        """Members that all start together; the group's name first."""
        group = f"sessions-{uuid4().hex}"
        self._admin.create_topics([NewTopic(group, PARTITIONS, 1)])[group].result(PATIENCE)
        settings: dict[str, object] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "session.timeout.ms": round(1000 * session),
            "heartbeat.interval.ms": round(1000 * session / HEARTBEATS_PER_SESSION),
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "latest",
            "enable.auto.commit": awake == "commit",
            "enable.auto.offset.store": False,
            "log_level": 0,
        }
        every = round(1000 * session / WAKES_PER_SESSION)
        if awake == "commit":
            settings["auto.commit.interval.ms"] = every
        elif awake == "statistics":
            settings |= {"statistics.interval.ms": every, "stats_cb": lambda _: None}
        sharing = [Sharing(group, settings) for _ in range(members)]
        try:
            yield group, sharing
        finally:
            for one in sharing:
                one.leave()
            for one in sharing:
                one.await_left()


class Options(BenchmarkOptions):
    session: tuple[float, ...] = option((0.5, 1.0, 2.0, 6.0), "seconds")
    members: tuple[int, ...] = option((2, 4, 8), f"at most {PARTITIONS}")
    awake: tuple[str, ...] = option(AWAKE[1:], "what keeps librdkafka awake", choices=AWAKE)
    strategy: str = option(COOPERATIVE, "how partitions are shared out", choices=STRATEGIES)
    trials: int = 2
    seconds: float = option(3.0, "for which a group that settled is left alone")
    quick: bool = switch("1 trial of 2 and 8 members, sessions of 0.5 and 2 s")

    def __post_init__(self) -> None:
        if not all(1 <= members <= PARTITIONS for members in self.members):
            raise ValueError(f"--members {list(self.members)}: each must get one of {PARTITIONS} partitions")


def run(options: Options) -> Figures:
    sessions, sizes, trials = (
        ((0.5, 2.0), (2, 8), 1) if options.quick else (options.session, options.members, options.trials)
    )
    figures: Figures = {}
    with Kafka.started(settings={"group.min.session.timeout.ms": 100}) as kafka:
        broker = Broker(kafka)
        for session in sessions:
            for members in sizes:
                for awake in options.awake:
                    found = [
                        _trial(broker, session, members, awake, options.strategy, options.seconds)
                        for _ in range(max(1, trials))
                    ]
                    cell = f"{session:g},{members},{awake}"
                    settled = [it for it, _, _ in found if it is not None]
                    figures[f"settled@{cell}"] = len(settled)
                    figures[f"expelled@{cell}"] = sum(it for _, it, _ in found)
                    figures[f"expelled_at_rest@{cell}"] = sum(it for _, _, it in found)
                    figures[f"settled_ms_median@{cell}"] = 1e3 * median(settled) if settled else None
                    figures[f"settled_ms_max@{cell}"] = 1e3 * max(settled) if settled else None
    return {**figures, "trials": trials, "strategy": options.strategy, "partitions": PARTITIONS}


def _trial(
    broker: Broker, session: float, members: int, awake: str, strategy: str, seconds: float
) -> tuple[float | None, int, int]:
    """Seconds until it settled, or None; the number expelled until then; and the number while it was left alone."""
    began = time.monotonic()
    with broker.group(members, session, awake, strategy) as (group, sharing):
        while True:
            last = max(one.changed_at for one in sharing)
            shares = [len(one.has) for one in sharing]
            is_shared = sum(shares) == PARTITIONS and min(shares) > 0
            if is_shared and time.monotonic() - last >= 2 * session:
                break
            if time.monotonic() - began > SETTLE_MAX:
                return None, broker.expelled(group), 0
            time.sleep(POLL)
        gathering = broker.expelled(group)
        time.sleep(seconds)
        return last - began, gathering, broker.expelled(group) - gathering
