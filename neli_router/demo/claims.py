"""Claims: what one worker may act for, noted in such a way that a referee elsewhere can rely on it.

                   t0 = clock()   lease.remaining() = r   t1 = clock()
    ------------------|------------------|------------------|---------------------------------------------->
                                                            [ the lease holds ......... until t0 + r )

The lease was asked at some moment between t0 and t1, so it holds from t1 at the latest, and until t0 + r at the least.
What is claimed is therefore never more than what the member was granted, and less only by the time between two looks.
A lease that was once lost never holds again, so one that was found to hold twice held all the time in between.

How a claim ends:

    revoked      when the handler of Revoked is called: afterwards the worker does not act for it
    lapsed       at the end it had when last looked at, which has passed by now: perhaps the worker was stopped
    lost early   at the last look that found it held
    killed       nothing is noted any more; then the referee lets it end where it was last said to

A stopped worker thus keeps its claim until the end of its lease: nobody else may act until then, because it may be
woken up at any moment.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from math import inf

from neli_router import protocol
from neli_router.demo.notes import Ended, Fenced, Held, Note, Renewed, Woke
from neli_router.errors import LeaseLost
from neli_router.member.lease import Lease

__all__ = ["Claims"]

RENEWED_MIN = 0.001
"""A renewal is noted if it is longer than this. Asking a hundred leases takes a tenth of it, by which the ends that are
found for one and the same heartbeat differ from look to look."""


class Claims:
    """One member's claims. `on_event` is called on the member's threads, `look` on one of the worker's.

    `asleep_min` is how long none of them must have run for the worker to have been asleep.
    """

    def __init__(self, note: Callable[[Note], None], clock: Callable[[], float], *, asleep_min: float) -> None:
        self.changed = threading.Event()
        """There is something to look at."""
        self._note, self._clock, self._asleep_min = note, clock, asleep_min
        self._lock = threading.Lock()
        self._granted: dict[int, int] = {}
        """Partition -> term, as the member said. The lease can be had as soon as the handler has returned."""
        self._held: dict[int, Lease] = {}
        self._until = -inf
        self._looked_at = -inf
        self._awake_at = clock()

    def on_event(self, event: protocol.Event) -> None:
        """The member's handler: takes note, and lets go at once of what it is asked for."""
        with self._lock:
            self._wake_up()
            match event:
                case protocol.Acquired(terms=terms):
                    self._granted.update(terms)
                case protocol.Revoked(terms=terms):
                    self._let_go(terms)
                case protocol.Fenced(terms=terms, reason=reason):
                    self._let_go(terms)
                    self._note(Fenced(self._clock(), len(terms), reason))
        self.changed.set()

    def look(self, lease_of: Callable[[int], Lease | None]) -> bool:
        """Note what changed since the last look; whether everything that was granted is held."""
        with self._lock:
            self._wake_up()
            sought = self._granted.keys() - self._held.keys()
            found = {partition: lease for partition in sought if (lease := lease_of(partition)) is not None}
            asked_at = self._clock()
            left = {partition: lease.remaining() for partition, lease in {**self._held, **found}.items()}
            answered_at = self._clock()
            self._wake_up()  # It may have slept right here, too.
            self._lose([partition for partition in self._held if left[partition] == 0], answered_at)
            fresh = {partition: lease for partition, lease in found.items() if asked_at + left[partition] > answered_at}
            self._held.update(fresh)
            if self._held:
                until = asked_at + min(left[partition] for partition in self._held)
                if fresh:
                    terms = {partition: lease.term for partition, lease in fresh.items()}
                    self._note(Held(answered_at, until, terms))
                elif until > self._until + RENEWED_MIN:
                    self._note(Renewed(until))
                else:
                    until = self._until
                self._until = until
            self._looked_at = asked_at
            return self._held.keys() == self._granted.keys()

    def _wake_up(self) -> None:
        """Whichever of the threads runs first after a sleep asks a lease, before anything else."""
        now, before = self._clock(), self._awake_at
        self._awake_at = now
        if now - before >= self._asleep_min and self._held:
            refusal = ""
            try:
                next(iter(self._held.values())).check()
            except LeaseLost as error:
                refusal = error.found
            self._note(Woke(now, now - before, refusal))

    def _let_go(self, terms: Mapping[int, int]) -> None:
        """From now on, the worker does not act for these partitions under these terms."""
        # By term: word of a loss comes on another thread than word of a gain, and may come after it.
        for partition in [partition for partition, term in terms.items() if self._granted.get(partition) == term]:
            del self._granted[partition]
        asked_at = self._clock()
        held = [partition for partition, lease in self._held.items() if terms.get(partition) == lease.term]
        # What still holds may have been acted for until this moment, which is more than the last look can tell.
        lasting = [partition for partition in held if self._held[partition].holds()]
        self._drop(lasting, asked_at)
        self._lose([partition for partition in held if partition not in lasting], self._clock())

    def _lose(self, partitions: list[int], now: float) -> None:
        """The leases of these were found lost."""
        self._drop(partitions, self._until if self._until <= now else self._looked_at)

    def _drop(self, partitions: Iterable[int], at: float) -> None:
        if terms := {partition: self._held.pop(partition).term for partition in partitions}:
            self._note(Ended(at, terms))
