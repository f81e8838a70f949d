"""Many members of one group fall silent together: a part of the benchmark `large`.

    a crowd (`_crowd.py`) of N --> its members join again under their own names, in this order:
        two machines     shipped ones, each with a pump: the first that accuse
        two others       Beats in their names, as often as a machine sends them
        a machine        it accuses when the first four had the time to; so do all that follow, at the same moment
        all others       the doomed are among these
    --> at rest --> the doomed fall silent --> expired --> all that they owned has living owners

The clock is a number. A machine's clock moves on while it works, by the processor time that its pump takes, as if it
had a core to itself; the others work meanwhile. A record can be read from the moment at which it was appended. So a
step that takes long makes its member late for its next Beat, and the others see that. Until all are at rest, work takes
no time.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from random import Random

from benchmarks._crowd import beat_of, crowd, settings_of
from neli_router.drivers.ledgers.base import READ_MAX, Entry, Promise
from neli_router.drivers.ledgers.pump import Pump
from neli_router.protocols.induction.admission import join
from neli_router.protocols.induction.events import Effect, Input
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import InductionMachine, Phase
from neli_router.protocols.induction.records import Beat, Expire, decode, encode
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.protocols.protocol import Fenced, News, Settings, Stopped

__all__ = ["SURVIVORS_MIN", "MassExpiry"]

SURVIVORS_MIN = 5
"""Three machines, and two others between them."""

FETCH = 0.002
"""Leases. So much later than it could, a machine that has nothing to do reads: some records together, like a driver."""

MOMENT = 1e-5
"""Seconds that a turn takes in any case."""

LATER = 0.1
"""Leases by which the last of the machines starts after the others, so that it joins after them."""

SILENT_UNTIL = 1.5
"""Leases. Before that, no member that has just joined expires another."""

AFTER = 2.0
"""Leases for which the group is observed when all is over."""

AT_REST, COUNTED = 6.0, 2.0
"""Leases from the start until all are at rest, and the last of them, in which a machine's Beats are counted."""


class _Timed(InductionMachine):
    """Knows how long its longest step took."""

    longest = 0.0

    def step(self, event: Input, now: float) -> list[Effect]:
        started = time.thread_time()
        effects = super().step(event, now)
        self.longest = max(self.longest, time.thread_time() - started)
        return effects


class _Log:
    """The records, those that were appended in a time to come, and the Beats of members that only beat."""

    def __init__(self, state: State, period: float) -> None:
        self.period = period
        self.first = state.at
        self.entries: list[Entry] = []
        self.times: list[float] = []
        """When each could be read."""
        self.state = state
        self.like: Beat | None = None
        self._appended: list[tuple[float, int, bytes, list[int]]] = []
        self._due: list[tuple[float, str]] = []
        self._order = count()

    @property
    def tip(self) -> int:
        return self.first + len(self.entries)

    @property
    def next_at(self) -> float:
        """When the next record can be read that cannot be read yet."""
        return min(self._appended[0][0] if self._appended else inf, self._due[0][0] if self._due else inf)

    def append(self, at: float, payloads: Sequence[bytes], acknowledged: list[int]) -> None:
        for payload in payloads:
            heapq.heappush(self._appended, (at, next(self._order), payload, acknowledged))

    def beat_from(self, at: float, members: Sequence[str]) -> None:
        """Let `members`, and no others, beat from `at` on, at even distances."""
        kept = dict.fromkeys(members)
        self._due = [(due, name) for due, name in self._due if kept.pop(name, self) is None]
        self._due += [(at + number * self.period / len(kept), name) for number, name in enumerate(kept)]
        heapq.heapify(self._due)

    def commit(self, now: float) -> None:
        """Let everything be read that was appended by `now`."""
        while self.next_at <= now:
            at = self.next_at
            if self._appended and self._appended[0][0] == at:
                _, _, payload, acknowledged = heapq.heappop(self._appended)
                acknowledged.append(self.tip)
            else:
                due, name = self._due[0]
                heapq.heapreplace(self._due, (due + self.period, name))
                payload = encode(beat_of(self.like, name, due, self.state))
            self.entries.append(Entry(self.tip, payload))
            self.times.append(at)


class _Handle:
    """A machine's handle of the log, and its clock."""

    promises = frozenset({Promise.NEVER_REWINDS})
    doubts = ()
    address = "memory"

    def __init__(self, log: _Log) -> None:
        self._log, self._position = log, log.first
        self._acknowledged: list[int] = []
        self.now = 0.0
        self.works = False
        """Whether work takes time."""
        self._since = 0.0
        self.beats: list[float] = []
        self.accusations = 0

    def clock(self) -> float:
        return self.now + (time.thread_time() - self._since if self.works else 0.0)

    def turn(self, pump: Pump[_Timed], at: float) -> None:
        """Do one turn, which begins `at`."""
        self._log.commit(at)
        self.now, self._since = at, time.thread_time()
        pump.turn()
        self.now = self.clock() + MOMENT
        self._since = time.thread_time()

    @property
    def more_at(self) -> float:
        """When there is something to read."""
        index = self._position - self._log.first
        return self._log.times[index] if index < len(self._log.times) else self._log.next_at

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        now = self.clock()
        self._log.append(now, payloads, self._acknowledged)
        for record in map(decode, payloads):
            self.accusations += isinstance(record, Expire)
            if isinstance(record, Beat):
                self.beats.append(now)
                self._log.like = record

    def acknowledged(self) -> list[int]:
        offsets, self._acknowledged[:] = list(self._acknowledged), []
        return offsets

    def read(self, timeout: float) -> list[Entry]:
        index = self._position - self._log.first
        entries = self._log.entries[index : index + READ_MAX]
        self._position += len(entries)
        return entries

    def age(self) -> float:
        return inf if self._position < self._log.tip else 0.0

    def seek(self, offset: int) -> None:
        self._position = max(self._log.first, offset)

    def start(self) -> int:
        return self._log.first

    def tip(self) -> int:
        return self._log.tip

    def trim(self, before: int) -> None:
        """Keep everything."""

    def wake(self) -> None:
        """No thread waits."""

    def close(self) -> None:
        """Nothing is open."""


class MassExpiry:
    """A group of `members`, at rest, of which `doomed` are to expire. Times are seconds on its clock."""

    def __init__(self, members: int, partitions: int, lease: float, doomed: int) -> None:
        settings = settings_of(members, partitions, lease)
        state = crowd(settings)
        self._lease = lease
        self._beat: list[str] = []
        """The members that only beat."""
        self._log = _Log(state, settings[0].beat_every)
        self._log.append(0.0, [encode(snapshot("benchmark", state))], [])
        self._log.commit(0.0)
        self._members: list[tuple[_Handle, Pump[_Timed]]] = []
        self.fenced = 0
        first, second, third, fourth, last, *others = settings
        self._start(first)
        self._start(second)
        self._run(LATER * lease)
        self._start(last)
        self._run_until_joined(2)
        self._join([third, fourth])
        self._run_until_joined(3)
        self._join(others)
        self._run(SILENT_UNTIL * lease)
        self._log.beat_from(self.now, Random(1).sample(self._beat, len(self._beat)))
        self._run(AT_REST * lease)
        times = [at for at in self._members[0][0].beats if at >= self.now - COUNTED * lease]
        self._log.period = (times[-1] - times[0]) / (len(times) - 1)
        self._run(self.now + COUNTED * lease)
        # The third and the fourth survive. The last of the machines waits for four others before it accuses.
        self._doomed = frozenset(Random(2).sample(self._beat[2:], doomed))
        self.survivors = members - doomed

    @property
    def now(self) -> float:
        """All that happened before that has been read by all machines that had the time to."""
        return max(handle.now for handle, _ in self._members)

    @property
    def accusations(self) -> list[int]:
        """How many Expire records each machine has written, by rank."""
        return [handle.accusations for handle, _ in self._members]

    @property
    def longest_step(self) -> float:
        return max(pump.machine.longest for _, pump in self._members)

    @property
    def expired(self) -> int:
        """Survivors that the first machine no longer counts as members."""
        state = self._members[0][1].machine.state
        return self.survivors - len(state.seats.keys() - self._doomed)

    def expire(self, limit: float) -> float | None:
        """Let the doomed be silent from now on. Returns after how many seconds all machines have read that everything
        has an owner that lives; None if that takes more than `limit`. Goes on for some leases after that."""
        since, self.fenced = self.now, 0
        for handle, pump in self._members:
            handle.works, handle.accusations, pump.machine.longest = True, 0, 0.0
        self._log.beat_from(since, [name for name in self._beat if name not in self._doomed])
        self._run(since + limit, self._is_taken_over)
        took = self.now - since if self._is_taken_over() else None
        self._run(self.now + AFTER * self._lease)
        return took

    def _is_taken_over(self) -> bool:
        states = {id(machine.state.owners): machine.state for machine in (pump.machine for _, pump in self._members)}
        return all(self._live(state) for state in states.values())

    def _live(self, state: State) -> bool:
        return state.seats.keys().isdisjoint(self._doomed) and {*state.owners} <= state.seats.keys()

    def _start(self, settings: Settings) -> None:
        handle = _Handle(self._log)
        handle.now = max((it.now for it, _ in self._members), default=0.0)
        rng = Random(len(self._members))
        pump = Pump(
            handle,
            lambda state, now: _Timed(settings, state, now, wall=0, rng=rng),
            clock=handle.clock,
            pause=lambda _: None,
            publish=lambda machine, _: _publish(machine),
            tell=self._listen,
        )
        self._members.append((handle, pump))

    def _listen(self, news: News) -> None:
        assert not isinstance(news, Stopped), f"no member was to end, got {news}"
        self.fenced += isinstance(news, Fenced)

    def _join(self, settings: Sequence[Settings]) -> None:
        """Let these join again as members that only beat."""
        for one in settings:
            incarnation = f"{len(self._beat):012x}ffff"
            payload = encode(join(one, incarnation, State(at=self._log.tip), "", 0))
            self._log.append(self.now, [payload], [])
            self._log.commit(self.now)
            self._beat.append(incarnation)

    def _run_until_joined(self, members: int) -> None:
        def have_joined() -> bool:
            return all(pump.machine.phase is Phase.MEMBER for _, pump in self._members[:members])

        self._run(SILENT_UNTIL * self._lease, have_joined)
        assert have_joined(), f"{members} machines were to join"

    def _run(self, until: float, ready: Callable[[], bool] = lambda: False) -> None:
        """Go on until a time, or until something is so."""
        while not ready():
            at, rank = min((self._wakes_at(*member), rank) for rank, member in enumerate(self._members))
            if at >= until:
                for handle, _ in self._members:
                    handle.now = max(handle.now, until)
                return
            handle, pump = self._members[rank]
            handle.turn(pump, at)
            if rank == 0:
                self._log.state = pump.machine.state

    def _wakes_at(self, handle: _Handle, pump: Pump[_Timed]) -> float:
        return max(handle.now, min(pump.machine.deadline, handle.more_at + FETCH * self._lease))


def _publish(machine: InductionMachine) -> None:
    _ = machine.standing
