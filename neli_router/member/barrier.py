"""The barrier: it stands between what a member may act for and what its program does about it.

                       handler runs            returned
    QUEUED --Acquired--> PREPARING --------------> LED ------ leases are given, blocks begin
       |                    |                       |
       |                    '------ Revoked --------+--> FINISHING --handler returned, all blocks ended--> released
       |                                            |        |
       '-- Revoked or Fenced: never reported        '- Fenced+--> LOST: leases are void, no block is waited for

The pump reports effects here and never waits. The program receives Acquired and Revoked on one thread (`orderly`), one
after another, and Fenced on a second one (`urgent`), so that a handler that is busy preparing or finishing cannot hold
back the news that it must stop. One that began and ended before the program could be notified is not reported. Standby
is passed on in order with Acquired and Revoked, and has no periods.

A `Period` is a span of time in which a partition belongs to this member. When the partition is acquired again, even
under the same term after an outage, it gets a new period, so a lease that was once lost never holds again.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import count
from operator import call

from neli_router.member.runtime import Lane
from neli_router.protocols.protocol import Acquired, Event, Fenced, Handler, Revoked, Standby

__all__ = ["Barrier", "Period", "PeriodState"]

PeriodState = Enum("PeriodState", "QUEUED PREPARING LED FINISHING LOST")


class Period:
    """A time in which a partition belongs to this member. Only its barrier changes it; any thread may read it."""

    __slots__ = ("lost_at", "numbers", "partition", "reason", "state", "term", "was_told", "working")

    def __init__(self, partition: int, term: int, former: "Period | None" = None) -> None:
        self.partition, self.term = partition, term
        self.numbers: count[int] = former.numbers if former is not None and former.term == term else count(1)
        """All leases of the partition count by it. Periods of one term share it, so that no number repeats."""
        self.state = PeriodState.QUEUED
        self.working = 0
        """The number of blocks in progress."""
        self.was_told = False
        """Whether the Revoked handler has returned."""
        self.lost_at: float | None = None
        self.reason = ""


class Barrier:
    """May be shared between threads. Handlers are called outside of every lock.

    `release` gets the terms of the partitions that are finished, `failed` the name of the event whose handler raised.
    """

    def __init__(
        self,
        on_event: Handler | None,
        changed: threading.Condition,
        *,
        clock: Callable[[], float],
        release: Callable[[Mapping[int, int]], None],
        failed: Callable[[str, BaseException], None],
        lane_name: str,
    ) -> None:
        self._on_event, self._changed, self._clock = on_event, changed, clock
        self._release, self._failed = release, failed
        self._periods: dict[int, Period] = {}
        self._latest: dict[int, Period] = {}
        """The same, but also of partitions that are lost."""
        self._failing = False
        self.standby: frozenset[int] = frozenset()
        """The partitions that this member stands by for."""
        self.orderly: Lane[Callable[[], object]] = Lane(f"{lane_name}-events", call)
        self.urgent: Lane[Callable[[], object]] = Lane(f"{lane_name}-fenced", call)

    @property
    def lanes(self) -> Sequence[Lane[Callable[[], object]]]:
        return () if self._on_event is None else (self.orderly, self.urgent)

    @property
    def is_here(self) -> bool:
        """Whether the caller is a handler."""
        return self.orderly.is_here or self.urgent.is_here

    # Questions of the program

    def period(self, partition: int) -> Period | None:
        """The current period of `partition`, in any state."""
        return self._periods.get(partition)

    def led(self) -> list[Period]:
        with self._changed:
            return [period for period in self._periods.values() if period.state is PeriodState.LED]

    def enter(self, period: Period) -> None:
        """Begin work under `period`, which is led. The caller still holds the lock under which it checked that."""
        period.working += 1

    def leave(self, periods: Sequence[Period]) -> None:
        """End work under each of `periods`."""
        with self._changed:
            for period in periods:
                period.working -= 1
            finished = self._finish(periods)
        self._let_go(finished)

    # News from the pump

    def explain(self, effects: Iterable[object]) -> None:
        """Record why periods are lost, before the standing shows that they are.

        Otherwise a lease that is checked between the two would give the reason of an earlier event: for a block that
        was first revoked and then fenced, it would say that the successor acts.
        """
        for effect in effects:
            if isinstance(effect, Fenced):
                for period in self._known(effect.terms):
                    period.reason = effect.reason

    def tell(self, event: Event) -> None:
        """Record `event` immediately, and notify the program. Never waits for the program."""
        released: list[Period] = []
        with self._changed:
            match event:
                case Acquired(terms=terms):
                    self._acquire(terms)
                case Revoked(terms=terms):
                    released = self._revoke(self._known(terms))
                case Fenced(terms=terms, reason=reason):
                    self._fence(self._known(terms), reason)
                case Standby(partitions):
                    self.standby = frozenset(partitions)
                    if self._on_event is not None:
                        self.orderly.put(partial(self._stand_by, self._on_event, event))
            self._changed.notify_all()
        self._let_go(released)

    def lose_all(self, reason: str) -> None:
        """Lose all periods: the member ended before its protocol could say so."""
        with self._changed:
            self._fence(list(self._periods.values()), reason)
            self.standby = frozenset()
            self._changed.notify_all()

    def _acquire(self, terms: Mapping[int, int]) -> None:
        fresh = [Period(partition, term, self._latest.get(partition)) for partition, term in terms.items()]
        self._latest.update((period.partition, period) for period in fresh)
        for period in fresh:
            if former := self._periods.pop(period.partition, None):
                self._lose(former, f"it was acquired again under term {period.term}")
            self._periods[period.partition] = period
            if self._on_event is None:
                period.state = PeriodState.LED
        if self._on_event is not None:
            self.orderly.put(partial(self._prepare, self._on_event, fresh))

    def _revoke(self, periods: list[Period]) -> list[Period]:
        """Return the periods that need no waiting."""
        asked = [period for period in periods if period.state is not PeriodState.QUEUED]
        for period in periods:
            # A program that never received Acquired does not receive Revoked either.
            period.was_told = period.state is PeriodState.QUEUED or self._on_event is None
            period.state, period.reason = PeriodState.FINISHING, "it was revoked, and its successor acts"
        if self._on_event is not None:
            self.orderly.put(partial(self._conclude, self._on_event, asked))
        return self._finish(periods)

    def _fence(self, periods: list[Period], reason: str) -> None:
        told = [period for period in periods if period.state is not PeriodState.QUEUED]
        for period in periods:
            del self._periods[period.partition]
            self._lose(period, reason)
        if told and self._on_event is not None:
            self.urgent.put(partial(self._call, self._on_event, Fenced(_terms(told), reason)))

    # Work of the lanes

    def _prepare(self, on_event: Handler, periods: list[Period]) -> None:
        if self._failing:
            return  # A program that failed while finishing one partition must not begin another.
        begun = self._move(periods, PeriodState.QUEUED, PeriodState.PREPARING)
        if begun and self._call(on_event, Acquired(_terms(begun))):
            self._move(begun, PeriodState.PREPARING, PeriodState.LED)

    def _conclude(self, on_event: Handler, periods: list[Period]) -> None:
        asked = self._move(periods, PeriodState.FINISHING, PeriodState.FINISHING)
        if asked and self._call(on_event, Revoked(_terms(asked))):
            with self._changed:
                for period in asked:
                    period.was_told = True
                finished = self._finish(asked)
            self._let_go(finished)

    def _stand_by(self, on_event: Handler, event: Standby) -> None:
        if not self._failing:
            self._call(on_event, event)

    def _call(self, on_event: Handler, event: Event) -> bool:
        try:
            on_event(event)
        except BaseException as error:  # noqa: BLE001 - not to go on: any error ends the member.
            self._failing = True
            self._failed(type(event).__name__, error)
            return False
        return True

    def _move(self, periods: Iterable[Period], source: PeriodState, target: PeriodState) -> list[Period]:
        with self._changed:
            moved = [period for period in periods if period.state is source]
            for period in moved:
                period.state = target
            self._changed.notify_all()
        return moved

    # Changes of state; all with the lock held

    def _known(self, terms: Mapping[int, int]) -> list[Period]:
        found = [self._periods.get(partition) for partition in terms]
        return [period for period in found if period is not None and period.term == terms[period.partition]]

    def _finish(self, periods: Iterable[Period]) -> list[Period]:
        finished = [period for period in periods if self._is_finished(period)]
        for period in finished:
            del self._periods[period.partition]
            period.reason = "the program had finished it, and it was handed over"
        return finished

    def _is_finished(self, period: Period) -> bool:
        present = self._periods.get(period.partition) is period
        return present and period.state is PeriodState.FINISHING and period.was_told and period.working == 0

    def _lose(self, period: Period, reason: str) -> None:
        period.state, period.lost_at, period.reason = PeriodState.LOST, self._clock(), reason

    def _let_go(self, periods: list[Period]) -> None:
        # Outside the lock: posting this wakes the pump, which takes locks of the ledger.
        if periods:
            self._release(_terms(periods))


def _terms(periods: Iterable[Period]) -> dict[int, int]:
    return {period.partition: period.term for period in periods}
