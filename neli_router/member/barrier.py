"""The barrier: it stands between what a member may act for and what its program does about it.

                       handler runs            returned
    QUEUED --Acquired--> PREPARING --------------> LED ------ leases are given, blocks begin
       |                    |                       |
       |                    '------ Revoked --------+--> FINISHING --handler returned, all blocks ended--> released
       |                                            |        |
       '-- Revoked or Fenced: never reported        '- Fenced+--> LOST: leases are void, no block is waited for

The pump reports effects here and never waits. The program receives Acquired and Revoked on one thread (`orderly`), one
after another, and Fenced on a second one (`urgent`), so that a handler that is busy preparing or finishing cannot hold
back the news that it must stop. A grant that began and ended before the program could be notified is not reported.

A `Grant` is one period in which a partition belongs to this member. When the partition is acquired again, even under
the same term after an outage, it gets a new grant, so a lease that was once lost never holds again.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial

from neli_router.member.runtime import Lane
from neli_router.protocols.protocol import Acquired, Event, Fenced, Handler, Revoked

__all__ = ["Barrier", "Grant", "GrantState"]

GrantState = Enum("GrantState", "QUEUED PREPARING LED FINISHING LOST")


class Grant:
    """One period in which a partition belongs to this member. Only its barrier changes it; any thread may read it."""

    __slots__ = ("lost_at", "partition", "reason", "state", "term", "was_told", "working")

    def __init__(self, partition: int, term: int) -> None:
        self.partition, self.term = partition, term
        self.state = GrantState.QUEUED
        self.working = 0
        """The number of blocks in progress."""
        self.was_told = False
        """Whether the Revoked handler has returned."""
        self.lost_at: float | None = None
        self.reason = ""


class Barrier:
    """May be shared between threads. Handlers are called outside of every lock.

    `release` is called with the terms of the partitions that the program has finished, `failed` with the name of the
    event whose handler raised.
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
        self._grants: dict[int, Grant] = {}
        self._failing = False
        self.orderly: Lane[Callable[[], object]] = Lane(f"{lane_name}-events", _call)
        self.urgent: Lane[Callable[[], object]] = Lane(f"{lane_name}-fenced", _call)

    @property
    def lanes(self) -> Sequence[Lane[Callable[[], object]]]:
        return () if self._on_event is None else (self.orderly, self.urgent)

    @property
    def is_here(self) -> bool:
        """Whether the caller is a handler."""
        return self.orderly.is_here or self.urgent.is_here

    # Questions of the program

    def grant(self, partition: int) -> Grant | None:
        """The current grant of `partition`, in any state."""
        return self._grants.get(partition)

    def led(self) -> list[Grant]:
        with self._changed:
            return [grant for grant in self._grants.values() if grant.state is GrantState.LED]

    def enter(self, grant: Grant) -> None:
        """Begin work under `grant`, which is led. The caller still holds the lock under which it checked that."""
        grant.working += 1

    def leave(self, grants: Sequence[Grant]) -> None:
        """End work under each of `grants`."""
        with self._changed:
            for grant in grants:
                grant.working -= 1
            finished = self._finish(grants)
        self._let_go(finished)

    # News from the pump

    def explain(self, effects: Iterable[object]) -> None:
        """Record why grants are lost, before the standing shows that they are.

        Otherwise a lease that is checked between the two would give the reason of an earlier event: for a block that
        was first revoked and then fenced, it would say that the successor acts.
        """
        for effect in effects:
            if isinstance(effect, Fenced):
                for grant in self._known(effect.terms):
                    grant.reason = effect.reason

    def tell(self, event: Event) -> None:
        """Record `event` immediately, and notify the program. Never waits for the program."""
        released: list[Grant] = []
        with self._changed:
            match event:
                case Acquired(terms=terms):
                    self._acquire(terms)
                case Revoked(terms=terms):
                    released = self._revoke(self._known(terms))
                case Fenced(terms=terms, reason=reason):
                    self._fence(self._known(terms), reason)
            self._changed.notify_all()
        self._let_go(released)

    def lose_all(self, reason: str) -> None:
        """Lose all grants: the member ended before its protocol could say so."""
        with self._changed:
            self._fence(list(self._grants.values()), reason)
            self._changed.notify_all()

    def _acquire(self, terms: Mapping[int, int]) -> None:
        fresh = [Grant(partition, term) for partition, term in terms.items()]
        for grant in fresh:
            if former := self._grants.pop(grant.partition, None):
                self._lose(former, f"it was acquired again under term {grant.term}")
            self._grants[grant.partition] = grant
            if self._on_event is None:
                grant.state = GrantState.LED
        if self._on_event is not None:
            self.orderly.put(partial(self._prepare, self._on_event, fresh))

    def _revoke(self, grants: list[Grant]) -> list[Grant]:
        """Return the grants that need no waiting."""
        asked = [grant for grant in grants if grant.state is not GrantState.QUEUED]
        for grant in grants:
            # A program that never received Acquired does not receive Revoked either.
            grant.was_told = grant.state is GrantState.QUEUED or self._on_event is None
            grant.state, grant.reason = GrantState.FINISHING, "it was revoked, and its successor acts"
        if self._on_event is not None:
            self.orderly.put(partial(self._conclude, self._on_event, asked))
        return self._finish(grants)

    def _fence(self, grants: list[Grant], reason: str) -> None:
        told = [grant for grant in grants if grant.state is not GrantState.QUEUED]
        for grant in grants:
            del self._grants[grant.partition]
            self._lose(grant, reason)
        if told and self._on_event is not None:
            self.urgent.put(partial(self._call, self._on_event, Fenced(_terms(told), reason)))

    # Work of the lanes

    def _prepare(self, on_event: Handler, grants: list[Grant]) -> None:
        if self._failing:
            return  # A program that failed while finishing one partition must not begin another.
        begun = self._move(grants, GrantState.QUEUED, GrantState.PREPARING)
        if begun and self._call(on_event, Acquired(_terms(begun))):
            self._move(begun, GrantState.PREPARING, GrantState.LED)

    def _conclude(self, on_event: Handler, grants: list[Grant]) -> None:
        asked = self._move(grants, GrantState.FINISHING, GrantState.FINISHING)
        if asked and self._call(on_event, Revoked(_terms(asked))):
            with self._changed:
                for grant in asked:
                    grant.was_told = True
                finished = self._finish(asked)
            self._let_go(finished)

    def _call(self, on_event: Handler, event: Event) -> bool:
        try:
            on_event(event)
        except BaseException as error:  # noqa: BLE001 - not to go on: any error ends the member.
            self._failing = True
            self._failed(type(event).__name__, error)
            return False
        return True

    def _move(self, grants: Iterable[Grant], source: GrantState, target: GrantState) -> list[Grant]:
        with self._changed:
            moved = [grant for grant in grants if grant.state is source]
            for grant in moved:
                grant.state = target
            self._changed.notify_all()
        return moved

    # Changes of state; all with the lock held

    def _known(self, terms: Mapping[int, int]) -> list[Grant]:
        found = [self._grants.get(partition) for partition in terms]
        return [grant for grant in found if grant is not None and grant.term == terms[grant.partition]]

    def _finish(self, grants: Iterable[Grant]) -> list[Grant]:
        finished = [grant for grant in grants if self._is_finished(grant)]
        for grant in finished:
            del self._grants[grant.partition]
            grant.reason = "the program had finished it, and it was handed over"
        return finished

    def _is_finished(self, grant: Grant) -> bool:
        present = self._grants.get(grant.partition) is grant
        return present and grant.state is GrantState.FINISHING and grant.was_told and grant.working == 0

    def _lose(self, grant: Grant, reason: str) -> None:
        grant.state, grant.lost_at, grant.reason = GrantState.LOST, self._clock(), reason

    def _let_go(self, grants: list[Grant]) -> None:
        # Outside the lock: posting this wakes the pump, which takes locks of the ledger.
        if grants:
            self._release(_terms(grants))


def _terms(grants: Iterable[Grant]) -> dict[int, int]:
    return {grant.partition: grant.term for grant in grants}


def _call(item: Callable[[], object]) -> None:
    item()
