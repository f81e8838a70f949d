"""The kinds of faults of a group without a broker. `strikes` decides when they come and which peers they hit.

Cutting off a peer completely is the easy case. Most elections break on graphs that are neither whole nor split in two:
A and B hear C but not each other, or A hears B but B does not hear A. They also break on a peer that dies between a
promise and its message, or comes back so soon that the promises of its previous life still hold.
"""

from collections.abc import Callable, Iterable

from neli_router.lab.sim.electors.group import ElectorGroup
from neli_router.lab.sim.electors.network import Way
from neli_router.lab.sim.electors.options import ElectorOptions
from neli_router.lab.sim.electors.process import ElectorProcess
from neli_router.lab.sim.strikes import Strikes
from neli_router.lab.sim.world import World
from neli_router.protocols.electors.events import Nominate, Prefer, Rebalance
from neli_router.protocols.electors.priority import LEAST
from neli_router.protocols.protocol import Close

__all__ = ["ElectorFaults"]


class ElectorFaults(Strikes[ElectorProcess]):
    """Phase one. `stop` ends it."""

    plots = frozenset({"ping_pong", "power_cut"})
    plot_weight = 2

    def __init__(self, world: World, group: ElectorGroup, options: ElectorOptions) -> None:
        self._group, self._options = group, options
        kinds: dict[str, Callable[[ElectorProcess], None]] = {
            "close": lambda victim: victim.post(Close(at_once=world.random.random() < 0.2)),
            "freeze": self._freeze,
            "isolate": lambda victim: self._cut(group.network.around(victim.place)),
            "join": lambda _: self._join_absent(),
            "kill": self._kill,
            "nominate": self._nominate,
            "one_way": self._one_way,
            "ping_pong": lambda _: self._ping_pong(),
            "power_cut": lambda _: self._power_cut(),
            "prefer": self._prefer,
            "rebalance": self._rebalance,
            "reboot": self._reboot,
            "slow": self._slow,
            "split": lambda _: self._cut(group.network.across(self._some_places())),
            "unpair": self._unpair,
        }
        super().__init__(
            world,
            group,
            kinds,
            faults=options.faults,
            names=options.size,
            unit=options.lease,
            faults_per_unit=options.faults_per_lease,
            follow_up=options.follow_up,
        )

    # Processes

    def _kill(self, victim: ElectorProcess) -> None:
        random = self._world.random
        victim.kill()
        if random.random() < 0.8:
            self._later(self._span(0.0, random.choice((0.05, 1.0, 3.0))), self._start, victim.place)

    def _reboot(self, victim: ElectorProcess) -> None:
        """It dies in the middle of something, and is back before any lease has ended."""
        victim.pause_inside(self._span(0.0, 0.3))
        self._later(self._span(0.0, 0.3), self._kill_and_start, victim)

    def _kill_and_start(self, victim: ElectorProcess) -> None:
        if victim.alive:
            victim.kill()
            self._later(self._span(0.0, 0.1), self._start, victim.place)

    def _power_cut(self) -> None:
        """All or nearly all peers die together, and come back one after another."""
        for process in list(self._group.living):
            if self._world.random.random() < 0.8:
                process.kill()
                self._later(self._span(0.0, self._world.random.choice((0.1, 1.0))), self._start, process.place)

    def _start(self, place: int) -> None:
        self._group.start(f"m{place + 1}")

    def _freeze(self, victim: ElectorProcess) -> None:
        seconds = self._span(0.0, self._world.random.choice((0.3, 1.2, 4.0)))
        if self._world.random.random() < 0.6:
            victim.pause_inside(seconds)
        else:
            victim.pause(seconds)

    # The network

    def _cut(self, ways: Iterable[Way]) -> None:
        self._group.network.cut(list(ways), self._world.now + self._span(0.1, self._world.random.choice((1.0, 4.0))))

    def _some_places(self) -> set[int]:
        random = self._world.random
        return set(random.sample(range(self._options.size), random.randint(0, self._options.size)))

    def _other(self, place: int) -> int:
        return self._world.random.choice([one for one in range(self._options.size) if one != place] or [place])

    def _unpair(self, victim: ElectorProcess) -> None:
        other = self._other(victim.place)
        self._cut([(victim.place, other), (other, victim.place)])

    def _one_way(self, victim: ElectorProcess) -> None:
        """Everything it says is lost, or everything said to it; or only what passes between it and one peer."""
        ways = list(self._group.network.around(victim.place))
        end = self._world.random.randint(0, 1)
        ways = [way for way in ways if way[end] == victim.place]
        if ways and self._world.random.random() < 0.5:
            ways = [self._world.random.choice(ways)]
        self._cut(ways)

    def _ping_pong(self) -> None:
        """Two peers hear everyone but each other for a long time: each considers the other dead."""
        if self._options.size >= 3:
            one, other = self._world.random.sample(range(self._options.size), 2)
            until = self._world.now + self._span(3.0, 8.0)
            self._group.network.cut([(one, other), (other, one)], until)

    def _slow(self, victim: ElectorProcess) -> None:
        ways = list(self._group.network.around(victim.place))
        random = self._world.random
        if random.random() < 0.5:
            ways = random.sample(ways, min(2, len(ways)))
        until = self._world.now + self._span(0.5, 3.0)
        self._group.network.slow_down(ways, until, self._span(0.0, random.choice((0.1, 1.0))))

    # Operators

    def _nominate(self, victim: ElectorProcess) -> None:
        """An operator asks any peer, and names any peer."""
        random = self._world.random
        partitions = random.choice((None, (random.randrange(self._options.partitions),)))
        self._group.operator_speaks()
        victim.post(Nominate(random.randrange(self._options.size), partitions))

    def _prefer(self, victim: ElectorProcess) -> None:
        random, options = self._world.random, self._options
        self._group.operator_speaks()
        wanted = {i: random.randint(1, max(1, options.replicas)) for i in range(options.partitions)}
        drained = dict.fromkeys(wanted, LEAST)
        shed = {i: LEAST for i in wanted if random.random() < 0.5}
        victim.post(Prefer(random.choice((None, wanted, drained, shed))))

    def _rebalance(self, victim: ElectorProcess) -> None:
        self._group.operator_speaks()
        victim.post(Rebalance())
