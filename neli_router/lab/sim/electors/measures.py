"""Measures of electors in virtual time: how evenly leaders are spread, and what a group costs by its size.

    balance   all at rest --a peer dies, and is back--> rest --> does any lead more than its share?     ... repeatedly
    fleet     all at rest --count datagrams--> the leader dies --> takeover;  it is cut off --> leaderless

Both run the shipped machines on a network that loses nothing. The checkers are off here, because they take most of the
time of a large group; `simulate` runs them. Which members act is read from the standing of programs.

Zeebe's text measures balance as successCount / totalCount over restarts; a restart is a success if no node leads more
than ceil(partitions / nodes).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from neli_router.errors import NeliError
from neli_router.lab.sim.electors.group import ElectorGroup
from neli_router.lab.sim.electors.insight import insight_of
from neli_router.lab.sim.electors.options import ElectorOptions, ElectorProtocol
from neli_router.lab.sim.electors.process import ElectorProcess
from neli_router.lab.sim.world import World
from neli_router.protocols.electors.settings import MISSES, Policy

__all__ = ["Fleet", "LeaderBalance", "balance", "balanced", "fleet"]

DOWN_LEASES = 2.0
"""How long a peer that restarts is away: long enough for others to lead what it led."""

REST_LEASES = 12.0
"""From its return until the leaders are counted. A preferred peer has to be there for three leases before it gets its
partitions back."""

DELAY = 0.005
"""Seconds that a datagram takes, more or less."""

SETTLED_MAX = 400.0
"""In leases: how long a fleet may take to elect its first leader before that counts as an error."""

PARTS = 12
"""The number of parts into which the time at rest is cut."""

LOOKS_PER_BEAT = 20
"""How precisely the moment is found at which a member begins to act."""


@dataclass(frozen=True, slots=True)
class LeaderBalance:
    """How many of `total` restarts left a balanced group."""

    success: int
    total: int
    most: Counter[int]
    """How many partitions the peer with the most led, and how often."""

    @property
    def share(self) -> float:
        return self.success / self.total


@dataclass(frozen=True, slots=True)
class Fleet:
    """The cost of a group of one size. Times are in seconds."""

    size: int
    takeovers: list[float]
    """From the death of a leader until another acts."""
    leaderless: list[float]
    """While its leader is cut off: from when the leader stops acting until another acts."""
    datagrams_per_second: float
    """Sent by all members together, at rest."""
    bytes_per_second: float
    x_real_time: list[float]
    """At rest, for each part of the time: simulated seconds for each second that `clock` shows. All parts do the same
    work, so differences come from other load on the machine."""


def balance(
    policy: Policy,
    nodes: int,
    partitions: int,
    restarts: int,
    seed: int,
    *,
    replicas: int | None = None,
    transfer: bool = True,
) -> LeaderBalance:
    """Restart a random node `restarts` times, and check each time when all is at rest."""
    protocol: ElectorProtocol = "priority" if policy == "priority" else "term"
    options = _options(protocol, nodes, lease=1.0, beats=MISSES, seed=seed)
    options = replace(options, partitions=partitions, replicas=replicas or nodes, transfer=transfer)
    if policy == "random":
        options = replace(options, replicas=nodes)
    world, group = _started(options)
    world.run(REST_LEASES * options.lease)
    success, most = 0, Counter[int]()
    for _ in range(restarts):
        victim = world.random.choice(group.living)
        victim.kill()
        world.run(world.now + DOWN_LEASES * options.lease)
        group.start(f"m{victim.place + 1}")
        world.run(world.now + REST_LEASES * options.lease)
        leaders = group.leaders
        success += balanced([leaders.get(i) for i in range(partitions)], nodes)
        most[max(Counter(leaders.values()).values(), default=0)] += 1
    return LeaderBalance(success, restarts, most)


def fleet(
    protocol: ElectorProtocol,
    size: int,
    *,
    clock: Callable[[], float],
    beat: float = 1.0,
    beats: float | None = None,
    partitions: int = 1,
    first_class: int | None = None,
    faults: int = 3,
    rest: float = 60.0,
    seed: int = 1,
) -> Fleet:
    """Run a group for `rest` seconds, and then let its leader die, and be cut off, `faults` times each.

    `beats` is how many beats make a lease, or P. The default is 3, and for `gossip` 15, the text's own estimate for a
    hundred members. `clock` is a real clock.
    """
    beats = (15.0 if protocol == "gossip" else float(MISSES)) if beats is None else beats
    options = _options(protocol, size, lease=beats * beat, beats=beats, seed=seed)
    world, group = _started(replace(options, partitions=partitions, first_class=first_class or size))
    group.run_until(lambda: bool(group.leaders))
    world.run(world.now + 2 * options.lease)
    before, bytes_before, x_real_time = group.counts["datagrams"], group.sent_bytes, list[float]()
    for _ in range(PARTS):
        began = clock()
        world.run(world.now + rest / PARTS)
        x_real_time.append(rest / PARTS / max(1e-9, clock() - began))
    datagrams, sent = group.counts["datagrams"] - before, group.sent_bytes - bytes_before
    takeovers, leaderless = [], []
    for _ in range(faults if size > 2 else 0):
        takeovers.append(_take_over(world, group, options))
        leaderless.append(_cut_off(world, group, options))
    return Fleet(size, takeovers, leaderless, datagrams / rest, sent / rest, x_real_time)


def _take_over(world: World, group: "_Crowd", options: ElectorOptions) -> float:
    leader = group.leaders[0]
    died_at = world.now + world.random.random() * options.lease / options.beats
    world.run(died_at)
    group.at(leader).kill()
    group.run_until(lambda: group.leaders.get(0, leader) != leader)
    took = world.now - died_at
    group.start(f"m{leader + 1}")
    group.settle()
    return took


def _cut_off(world: World, group: "_Crowd", options: ElectorOptions) -> float:
    leader = group.leaders[0]
    ways = list(group.network.around(leader))
    group.network.cut(ways, world.now + SETTLED_MAX * options.lease)
    group.run_until(lambda: group.leaders.get(0) != leader)
    ended_at = world.now
    group.run_until(lambda: group.leaders.get(0, leader) != leader)
    took = world.now - ended_at
    group.network.heal()
    group.settle()
    return took


class _Untold(World):
    """A world that records nothing of what happened in it."""

    def note(self, who: str, what: str, *details: object) -> None:
        pass

    def include(self, payload: bytes) -> None:
        pass


class _Crowd(ElectorGroup):
    """A group without checkers."""

    def __init__(self, world: World, options: ElectorOptions) -> None:
        super().__init__(world, options, insight_of(options))
        self.network.faultless = True

    def on_step(self, process: ElectorProcess) -> None:
        self.counts["steps"] += 1

    def on_end(self, process: ElectorProcess, *, error: NeliError | None) -> None:
        assert error is None, f"{process.label} ended by {error}"
        self.remove(process)

    @property
    def sent_bytes(self) -> int:
        return self.counts["bytes"]

    @property
    def leaders(self) -> dict[int, int]:
        """Partition -> the place of the peer whose program acts for it."""
        found: dict[int, int] = {}
        for process in self.living:
            standing = process.standing
            if standing.terms:
                now = process.now
                found |= {i: process.place for i, term in standing.terms.items() if now < standing.end(i, term)}
        return found

    def at(self, place: int) -> ElectorProcess:
        process = self.at_place(place)
        assert process is not None
        return process

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Run until `holds`, which must happen eventually."""
        step = self.options.lease / self.options.beats / LOOKS_PER_BEAT
        give_up_at = self.world.now + SETTLED_MAX * self.options.lease
        while not holds():
            assert self.world.now < give_up_at, f"nothing comes of it: {self.describe()}"
            self.world.run(self.world.now + step)

    def settle(self) -> None:
        """Wait until all are back, one leads, and nothing is on its way."""
        self.world.run(self.world.now + 5 * self.options.lease)
        self.run_until(lambda: bool(self.leaders))


def _options(protocol: ElectorProtocol, size: int, *, lease: float, beats: float, seed: int) -> ElectorOptions:
    """A group without faults, except those that are named."""
    drawn = ElectorOptions.draw(seed, Random(seed), protocol=protocol, weather="foul")
    return replace(
        drawn,
        size=size,
        replicas=size,
        partitions=1,
        lease=lease,
        beats=beats,
        wait_max=1.0 if protocol == "term" else 0.0,
        drain_timeout=0.5,
        transfer=True,
        relay=False,
        first_class=size,
        delay=DELAY / lease,
        delay_max=4 * DELAY / lease,
        tail=0.0,
        loss=0.0,
        duplicates=0.0,
        answer=0.0,
        hang=0.0,
        faults=(),
        faults_per_lease=0.0,
    )


def _started(options: ElectorOptions) -> tuple[World, _Crowd]:
    world = _Untold(options.seed)
    group = _Crowd(world, options)
    for place in range(options.size):
        world.at(world.random.random() * options.lease, group.start, f"m{place + 1}")
    return world, group


def balanced(leaders: Sequence[int | None], nodes: int) -> bool:
    """The text's measure: no node leads more than ceil(partitions / nodes). `leaders` has one per partition."""
    if None in leaders:
        return False  # Otherwise a group that leads nothing would do best.
    most = -(-len(leaders) // nodes)
    return max(Counter(leaders).values(), default=0) <= most
