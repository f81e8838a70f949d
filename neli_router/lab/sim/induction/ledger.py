"""The simulated ledger: one log, the network around it, and a handle for each process.

    append --lost, refused, late, twice--> flight --lands--> log [ 1 | 2 | ... | tip ) --visible to a reader, later-->
             (order per writer is kept)                        ^ trimmed, rewound           (in order, without gaps)

A handle keeps the port's promises and nothing beyond them. Records become visible to each reader at its own time. An
append that raised may land all the same. A read that found nothing while records are on their way to this reader
reports how old its knowledge is, takes longer than its timeout, or raises.

A pause that meets a waiting read stops it before it has its answer, or after.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from neli_router.drivers.ledgers.base import READ_MAX, Entry, Promise
from neli_router.errors import LedgerRewound, LedgerTrimmed, LedgerUnavailable
from neli_router.lab.sim.induction.options import RunOptions
from neli_router.lab.sim.thread import TURN, WAKE, SimulatedThread
from neli_router.lab.sim.world import LocalClock, World

__all__ = ["READ_FAILS", "Log", "SimulatedLedger"]

INSTANT = 1e-6
"""In leases: the shortest time a network takes. Without it, a lease could end in the instant in which another begins,
and the rounding of a float would decide between right and wrong."""

HONEST, RAISING = 0.35, 0.2
"""How often a read that times out while records are on their way to it returns nothing, and how often it raises.
Otherwise it takes longer than its timeout."""

READ_FAILS = 0.2
"""In leases: the longest that a read of an unreachable ledger takes to fail."""


class Log:
    """The records of the ledger, and the handles that are connected to it."""

    def __init__(self, world: World, options: RunOptions, on_append: Callable[[int, bytes, str], None]) -> None:
        self.world, self.options, self.on_append = world, options, on_append
        self.offsets: list[int] = []
        self.payloads: list[bytes] = []
        self.times: list[float] = []
        self.first = 0
        """The index of the first record that is still retained."""
        self.trimmed = 0
        self.next_offset = world.random.choice((0, 1))
        self.away_until = 0.0
        self.healed = False
        self.handles: list[SimulatedLedger] = []
        """Handles of live processes, and of dead ones while a record of theirs is in flight."""

    @property
    def tip(self) -> int:
        return self.offsets[-1] + 1 if self.offsets else self.trimmed

    def delay(self) -> float:
        """How long one way takes this time, in seconds."""
        options, random = self.options, self.world.random
        if options.slow:
            leases = options.delay
        elif options.fair or self.healed:
            # Two ways, plus a little for the turn, must fit within D, which is a quarter of a lease.
            leases = min(random.expovariate(1 / options.delay), 0.11)
        elif random.random() < options.tail:
            leases = random.uniform(0.0, options.tail_leases)
        else:
            leases = random.expovariate(1 / options.delay)
        return (leases + INSTANT) * options.lease

    def extend(self, writer: "SimulatedLedger | None", payloads: Sequence[bytes]) -> None:
        """Append `payloads` now; None stands for a stranger."""
        now, random = self.world.now, self.world.random
        who = writer.label if writer is not None else "stranger"
        confirmed = writer is not None and not writer.closed and random.random() < self.options.acknowledged
        for payload in payloads:
            offset = self.next_offset
            self.next_offset += random.choice((1, 1, 2, 5)) if self.options.sparse else 1
            self.offsets.append(offset)
            self.payloads.append(payload)
            self.times.append(now)
            self.world.include(payload)
            self.on_append(offset, payload, who)
            if confirmed and writer is not None:
                writer.confirm(offset)
        for handle in self.handles:
            if not handle.closed:
                handle.reveal(now + self.delay(), len(payloads))

    def trim(self, before: int) -> None:
        self.trimmed = max(self.trimmed, min(before, self.tip))  # A rewind may have gone below `before`.
        self.first = bisect_left(self.offsets, self.trimmed)

    def rewind(self, keep: int) -> None:
        """Lose all records but the first `keep`, as `options.rewind` says."""
        lost = self.next_offset
        del self.offsets[keep:], self.payloads[keep:], self.times[keep:]
        if self.options.rewind == "anew":
            self.first = self.trimmed = 0
        if self.options.rewind != "onward":
            self.next_offset = self.offsets[-1] + 1 if self.offsets else 0
        self.trimmed = min(self.trimmed, self.tip, self.next_offset)  # Lost records need not be dropped.
        self.first = min(self.first, keep)
        for handle in self.handles:
            handle.forget(keep)
        self.world.note("ledger", f"rewound from {lost} to {self.next_offset}, {keep} records kept")

    def heal(self) -> None:
        """From now on, everything arrives soon."""
        self.healed = True
        self.away_until = self.world.now
        for handle in self.handles:
            handle.heal()


class SimulatedLedger:
    """The handle of one process, which is called on its `thread`. `on_send` sees what is appended."""

    promises = frozenset(Promise)
    doubts = ()
    address = "simulated"

    def __init__(
        self,
        log: Log,
        label: str,
        thread: SimulatedThread,
        clock: LocalClock,
        *,
        on_send: Callable[[Sequence[bytes]], None],
    ) -> None:
        self.log, self.label = log, label
        self._world, self._options = log.world, log.options
        self._thread, self._clock, self._on_send = thread, clock, on_send
        self.closed = False
        self.direct = True
        """Whether reads see the whole log and do not wait: at the start, and after LedgerTrimmed."""
        self.mute_until = self.deaf_until = 0.0
        self._position = 0
        self._known_at = -inf
        """When everything this reader was given was all there was; -inf if it has yet to read some of it."""
        self._visible = [self._world.now] * len(log.offsets)
        self._flights: deque[tuple[float, list[bytes]]] = deque()
        self._landed_at = 0.0
        self._confirmed: deque[tuple[float, int]] = deque()
        log.handles.append(self)

    # The port

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:  # Power never fails.
        self._thread.moment()
        self._on_send(payloads)
        options, random, now = self._options, self._world.random, self._world.now
        sent, refused = list(payloads), False
        starts = now
        cut_until = max(self.mute_until, self.log.away_until)
        if not self.log.healed:
            if now < cut_until:
                refused = random.random() < 0.5
                if random.random() < 0.7:
                    sent.clear()
                starts = max(starts, cut_until)
            elif random.random() < options.loss:
                del sent[random.randrange(len(sent)) :]
                refused = random.random() < 0.5
            elif random.random() < options.failed:
                starts, refused = starts + random.uniform(0.0, options.tail_leases) * options.lease, True
            if random.random() < options.repeated:
                sent += sent  # A client got no answer and tried again.
        if sent:
            self._landed_at = max(self._landed_at, starts + self.log.delay())
            self._flights.append((self._landed_at, sent))
            self._world.at(self._landed_at, self._land)
        if len(sent) != len(payloads) or refused:
            self._world.note(self.label, f"  (append: {len(sent)} of {len(payloads)} sent, refused={refused})")
        if refused:
            raise self._unavailable()

    def acknowledged(self) -> list[int]:
        self._thread.moment()
        offsets: list[int] = []
        while self._confirmed and self._confirmed[0][0] <= self._world.now:
            offsets.append(self._confirmed.popleft()[1])
        return offsets

    def read(self, timeout: float) -> list[Entry]:
        if self.direct:
            self._require_reachable()
            entries = self._entries(READ_MAX)
        else:
            entries = self._wait(self._clock.when(self._clock.at(self._world.now) + timeout))
            what = f"{entries[0].offset} to {entries[-1].offset}" if entries else "nothing"
            self._world.note(self.label, f"read {what}")
        if entries:
            self._position = entries[-1].offset + 1
        at = bisect_left(self.log.offsets, self._position)
        if at < self._seen():
            self._known_at = -inf
        else:  # The first record it has not been given has been there since then.
            self._known_at = self.log.times[at] if at < len(self.log.times) else self._world.now
        self._thread.moment()
        return entries

    def age(self) -> float:
        self._thread.moment()
        return (self._world.now - self._known_at) * (1 + self._options.drift)  # By any clock: never too young.

    def seek(self, offset: int) -> None:
        self._thread.moment()
        self._position = offset

    def start(self) -> int:
        self._require_reachable()
        return self.log.offsets[self.log.first] if self.log.first < len(self.log.offsets) else self.log.tip

    def tip(self) -> int:
        self._require_reachable()
        return self.log.tip

    def trim(self, before: int) -> None:
        if not self._options.retained:
            self._world.at(self._world.now + self.log.delay(), self.log.trim, before)

    def wake(self) -> None:
        self._thread.wake(self._world.now + self._world.random.uniform(0.0, WAKE) * self._options.lease)

    def close(self) -> None:
        """The process is gone. The records that it sent are not."""
        self.closed = True
        self._visible.clear()
        self._confirmed.clear()
        if not self._flights:
            self.log.handles.remove(self)

    # For the world

    @property
    def unreachable_until(self) -> float:
        return max(self.deaf_until, self.log.away_until)

    def reveal(self, time: float, count: int) -> None:
        """`count` new records become visible at `time`, or later if this reader is behind."""
        time = max(time, self._visible[-1]) if self._visible else time
        self._visible.extend([time] * count)
        if self._world.now >= self.unreachable_until:
            self._thread.wake(max(time, self._world.now + TURN * self._options.lease))

    def confirm(self, offset: int) -> None:
        soonest = self._confirmed[-1][0] if self._confirmed else 0.0
        self._confirmed.append((max(soonest, self._world.now + self.log.delay()), offset))

    def forget(self, keep: int) -> None:
        """The log keeps only its first `keep` records; records in flight may be lost with the others."""
        del self._visible[keep:]
        if self._world.random.random() < 0.5:
            self._flights.clear()

    def heal(self) -> None:
        now = self._world.now
        self.mute_until = self.deaf_until = now
        soon = now + self.log.delay()
        self._landed_at = min(self._landed_at, soon)
        self._flights = deque((min(at, soon), payloads) for at, payloads in self._flights)
        self._world.at(soon, self._land)
        self._visible = [min(at, soon) for at in self._visible]

    def _land(self) -> None:
        while self._flights and self._flights[0][0] <= self._world.now:
            self.log.extend(self, self._flights.popleft()[1])
        if self.closed and not self._flights and self in self.log.handles:
            self.log.handles.remove(self)

    def _wait(self, give_up_at: float) -> list[Entry]:
        """Wait for records until then, or for longer."""
        world, options, random = self._world, self._options, self._world.random
        while True:
            if world.now < self.unreachable_until:
                self._thread.sleep(world.now + random.uniform(0.02, READ_FAILS) * options.lease)
                raise self._unavailable()
            visible = self._next_visible()
            wake_at = give_up_at if visible is None else min(visible, give_up_at)
            self._thread.sleep(max(wake_at, world.now + TURN * options.lease))
            self._thread.moment()
            if world.now < self.unreachable_until or (not self.log.healed and random.random() < options.read_failed):
                raise self._unavailable()
            entries = self._entries(READ_MAX if options.batch_max == READ_MAX else random.randint(1, options.batch_max))
            visible = self._next_visible()
            if entries or visible is None:
                return entries
            if world.now >= give_up_at:
                if options.slow or (luck := random.random()) < HONEST:
                    return entries  # All that it was given; the handle knows how old that is.
                if luck < HONEST + RAISING:
                    raise self._unavailable()
                give_up_at = inf

    def _entries(self, most: int) -> list[Entry]:
        """The entries of a read that returns now."""
        log = self.log
        if self._position < log.trimmed:
            self.direct = True
            raise LedgerTrimmed(f"the record at {self._position} was wanted", f"the log starts at {log.trimmed}", "-")
        if self._options.noticed and self._position > log.tip:
            raise LedgerRewound(f"position {self._position} was read", f"the tip is {log.tip}", "start again")
        index = bisect_left(log.offsets, self._position)
        stop = min(self._seen(), index + most)
        return [Entry(log.offsets[at], log.payloads[at]) for at in range(index, stop)]

    def _next_visible(self) -> float | None:
        """When the next record becomes visible, which may have been long ago; None at the tip."""
        index = bisect_left(self.log.offsets, self._position)
        return self._visible[index] if index < len(self._visible) else None

    def _unavailable(self) -> LedgerUnavailable:
        return LedgerUnavailable("the ledger was to answer", "it did not", "wait for the simulation to heal")

    def _seen(self) -> int:
        return len(self.log.offsets) if self.direct else bisect_right(self._visible, self._world.now)

    def _require_reachable(self) -> None:
        self._thread.moment()
        if self._world.now < self.unreachable_until:
            raise self._unavailable()
