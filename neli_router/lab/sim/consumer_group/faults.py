"""The kinds of faults of a borrowed consumer group. `strikes` decides when they come and which members they hit.

They reach the client library from both sides: the program's thread stops while the library goes on, or the whole
process stops, or the network lets some requests through but not others. So the group may hear a member that hears
nothing, and may have forgotten a member that hears everything.
"""

from collections.abc import Callable

from neli_router.lab.sim.consumer_group.group import ConsumerGroup
from neli_router.lab.sim.consumer_group.options import ConsumerOptions
from neli_router.lab.sim.consumer_group.process import ConsumerProcess
from neli_router.lab.sim.strikes import Strikes
from neli_router.lab.sim.world import World
from neli_router.protocols.protocol import Close

__all__ = ["ConsumerFaults"]

MARGIN = 0.1
"""In sessions: in fair weather, the margin by which a cut is shorter or longer than a session."""


class ConsumerFaults(Strikes[ConsumerProcess]):
    """Phase one. `stop` ends it."""

    plots = frozenset({"backlog"})
    plot_weight = 3

    def __init__(self, world: World, group: ConsumerGroup, options: ConsumerOptions) -> None:
        self._group, self._options = group, options
        kinds: dict[str, Callable[[ConsumerProcess], None]] = {
            "backlog": self._backlog,
            "broken": group.break_for,
            "close": self._close,
            "drop": self._drop,
            "forget": self._forget,
            "freeze": self._freeze,
            "isolate": self._isolate,
            "join": lambda _: self._join_absent(),
            "kill": self._kill,
            "move": lambda _: group.broker.move(self._span(0.1, 2.0)),
            "mute": lambda victim: self._cut(victim, "mute_until"),
            "outage": lambda _: group.broker.go_away(self._span(0.1, 3.0)),
            "replay": self._replay,
            "stall": lambda victim: victim.pause(self._span(0.0, 7.0), whole=False),
            "stranger": self._stranger,
            "unfetch": lambda victim: self._cut(victim, "fetch_cut_until"),
            "ungroup": lambda victim: self._cut(victim, "group_cut_until"),
        }
        super().__init__(
            world,
            group,
            kinds,
            faults=options.faults,
            names=options.names,
            unit=options.session,
            faults_per_unit=options.faults_per_session,
            follow_up=options.follow_up,
        )

    # Processes

    def _kill(self, victim: ConsumerProcess) -> None:
        name = victim.label.partition("#")[0]
        victim.kill()
        if self._world.random.random() < 0.7:
            self._later(self._span(0.0, self._world.random.choice((0.05, 1.0, 3.0))), self._start, name)

    def _start(self, name: str) -> None:
        if not self._group.named(name):
            self._group.start(name)

    def _close(self, victim: ConsumerProcess) -> None:
        victim.post(Close())

    def _freeze(self, victim: ConsumerProcess) -> None:
        seconds = self._span(0.0, self._world.random.choice((0.3, 1.2, 4.0)))
        if self._world.random.random() < 0.6:
            victim.pause_inside(seconds)
        else:
            victim.pause(seconds)

    def _backlog(self, victim: ConsumerProcess) -> None:
        """The paper's failure, timed precisely: a leader pauses for less than T with messages waiting to be taken.
        Meanwhile the broker gives its partitions away, and the leader does not learn of it when it goes on."""
        group = self._group
        if leaders := [process for process in group.living if group.acting.terms(process)]:
            victim = self._world.random.choice(leaders)
        seconds = self._span(0.3, 1.0) * self._options.current
        if self._world.random.random() < 0.5:
            victim.pause(seconds, whole=False)
        else:
            victim.pause_inside(seconds)
        self._cut(victim, "group_cut_until")
        self._later(self._span(0.0, 0.1), self._forget, victim)

    # The network, the broker and the topic

    def _isolate(self, victim: ConsumerProcess) -> None:
        options = self._options
        if not options.fair:
            self._cut_off(victim, self._span(0.1, 3.0))
        elif self._world.now > victim.cut_until + 3 * options.session:  # Two short cuts could add up to any length.
            beats = 2 / options.beats_per_session + 4 * options.delay_max + MARGIN
            brief = self._world.random.random() < 0.5
            self._cut_off(victim, self._span(0.0, 1 - beats) if brief else self._span(1 + beats, 3.0))

    def _cut_off(self, victim: ConsumerProcess, seconds: float) -> None:
        until = self._world.now + seconds
        self._group.on_trouble(until)
        victim.cut_off(until)

    def _cut(self, victim: ConsumerProcess, what: str) -> None:
        until = self._world.now + self._span(0.1, 3.0)
        setattr(victim.consumer, what, max(getattr(victim.consumer, what), until))

    def _forget(self, victim: ConsumerProcess) -> None:
        """The broker treats a closed connection as the end of a consumer, before its session is over."""
        identity = self._group.broker.identity_of(victim.label)
        if identity is not None:
            self._group.broker.forget(identity, "lost its connection")

    def _drop(self, _: ConsumerProcess) -> None:
        self._group.drop(self._world.random.randrange(self._options.partitions))

    def _stranger(self, _: ConsumerProcess) -> None:
        """A message of another group on the same topic, or of no group."""
        random = self._world.random
        body = random.choice((None, b"", b"\xff\xfe", b"1%m1", b"%", b"99999999999999999999%m2", b"x%y%z"))
        self._group.broker.append(random.randrange(self._options.partitions), body)

    def _replay(self, _: ConsumerProcess) -> None:
        """A past message once more, as if a producer retried."""
        random, broker = self._world.random, self._group.broker
        partition = random.randrange(self._options.partitions)
        if broker.logs[partition]:
            broker.append(partition, random.choice(broker.logs[partition][-50:]).body)
