"""The simulated network between peers: each direction of each pair is a way of its own.

    sender --lost, doubled--> way from a to b: its delay, and sometimes a long one --> receiver, if it lived when
                              cut or slow until some time                              the datagram was sent

Every way has its own delay, and datagrams overtake each other on it. A cut drops what is sent while it lasts; datagrams
that are already on their way arrive. A cut may affect one direction, one pair, all pairs of a peer or a line through
the group, so any graph is possible: A and B hear C but not each other, or A hears B but B does not hear A.

A real member's link refuses datagrams that were sent before its process lived (see `peers.base`). So does this network.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator

from neli_router.lab.sim.electors.options import ElectorOptions
from neli_router.lab.sim.world import World

__all__ = ["Network", "Way"]

TAIL_MAX = 1.5
"""In leases: the longest that a datagram takes. It has to be longer than a lease: old news must do no harm."""

Way = tuple[int, int]
"""From one place to another."""


class Network:
    """`deliver` takes the receiver's place, the sender's, a body and when it was sent."""

    def __init__(
        self,
        world: World,
        options: ElectorOptions,
        counts: Counter[str],
        *,
        deliver: Callable[[int, int, bytes, float], None],
    ) -> None:
        self._world, self._options, self._counts, self._deliver = world, options, counts, deliver
        random, places = world.random, range(options.size)
        self._delays = {
            (a, b): min(options.delay * random.uniform(0.3, 2.0), options.delay_max / 2) * options.lease
            for a in places
            for b in places
        }
        self._cut_until: dict[Way, float] = {}
        self._slow_until: dict[Way, tuple[float, float]] = {}
        """Way -> until when it is slow, and how many additional seconds it takes."""
        self.faultless = options.fair
        """Whether nothing is lost or late."""

    def send(self, sender: int, to: int, body: bytes) -> None:
        world, options = self._world, self._options
        self._counts["datagrams"] += 1
        self._counts["bytes"] += len(body)
        world.include(body)
        if world.now < self._cut_until.get((sender, to), 0.0):
            self._counts["datagrams_cut"] += 1
            return
        if not self.faultless and world.random.random() < options.loss:
            self._counts["datagrams_lost"] += 1
            return
        self._carry(sender, to, body)
        if options.duplicates and world.random.random() < options.duplicates:
            self._counts["datagrams_doubled"] += 1
            self._carry(sender, to, body)

    def _carry(self, sender: int, to: int, body: bytes) -> None:
        world, options = self._world, self._options
        takes = self._delays[sender, to] * world.random.uniform(0.5, 2.0)
        until, more = self._slow_until.get((sender, to), (0.0, 0.0))
        if world.now < until:
            takes += more
        if not self.faultless and options.tail and world.random.random() < options.tail:
            takes += world.random.random() * TAIL_MAX * options.lease
        world.at(world.now + takes, self._deliver, to, sender, body, world.now)

    # Its faults

    def cut(self, ways: Collection[Way], until: float) -> None:
        """Drop everything that is sent on these ways, `until` then."""
        for way in ways:
            self._cut_until[way] = max(until, self._cut_until.get(way, 0.0))

    def slow_down(self, ways: Collection[Way], until: float, seconds: float) -> None:
        """Delay everything that is sent on these ways by `seconds`."""
        for way in ways:
            self._slow_until[way] = until, seconds

    def around(self, place: int) -> Iterator[Way]:
        """All ways from `place` and to it."""
        for other in range(self._options.size):
            if other != place:
                yield from ((place, other), (other, place))

    def across(self, side: Collection[int]) -> Iterator[Way]:
        """All ways from one side of a line to the other."""
        for way in self._delays:
            if (way[0] in side) != (way[1] in side):
                yield way

    def heal(self) -> None:
        """Restore all ways. Datagrams that are on their way still arrive when they do."""
        now = self._world.now
        self._cut_until = {way: min(until, now) for way, until in self._cut_until.items()}
        self._slow_until.clear()
        self.faultless = True

    # Queries

    def open_since(self, one: int, other: int) -> float:
        """Since when both ways between two peers have been open; in the future if one of them is cut."""
        return max(self._cut_until.get((one, other), 0.0), self._cut_until.get((other, one), 0.0))
