"""The publisher: reports to an owner store which partitions a member leads, on a thread of its own.

    membership: leases are given or end --notify--> publisher --claim: led, released, expiry--> store
                                                   '--each third of the expiry, while anything is led

The store is a copy for look-ups, so nothing ever waits for it: not the pump, not a handler, not the end of a member.
When the store is unreachable, the log says so once, and what is led is published again when it is back.

    led            published as soon as leases are given, which is when the handler of Acquired has returned
    led no longer  taken back after a lease, unless the ledger still says that it is ours: in the meantime the next
                   owner will have put itself there under a higher term, and no reader ever finds a gap without an owner
    lease lost     no longer renewed, so that it expires; a member that hears itself again renews it
    member ended   everything is taken back immediately

A member of a group without a ledger publishes itself even while it leads nothing, and for one lease at a time: no
record of the group exists, so only the store knows who is a member. Its successor takes its place there when the
protocol allows it, which is after the lease has ended; until then, the store must not show the successor as leader.

Everything is published again now and then, because a store may silently lose some of it in a failover.
"""

import contextlib
import threading
from math import inf
from queue import Empty, SimpleQueue

from neli_router.drivers.owners.base import Card, Claim, Owners, OwnersSource, Receipt, Version
from neli_router.errors import GroupMismatch, LedgerError, NeliError
from neli_router.member.engine import Engine

__all__ = ["TTL_MIN", "Publisher"]

TTL_MIN = 3.0
"""Seconds after which a silent member is forgotten; three leases, if that is longer. A dead owner is replaced by its
successor after one lease, so this matters only for groups that end as a whole. Lowering it costs more renewals."""

RENEWALS = 3
"""How many renewals fit into one expiry, so that two of them may be lost."""

WHOLE_EVERY = 30.0
RETRY_EVERY = 0.2


class Publisher:
    """One member's publisher. Ends automatically when the member does."""

    def __init__(self, engine: Engine, source: OwnersSource) -> None:
        config, self._source = engine.config, source
        self._thread = threading.Thread(target=self._run, name=f"{engine.name}-owners", daemon=True)
        self._card = Card(engine.member, config.address, config.weight, config.zone)
        self._membership, self._journal = engine.membership, engine.journal
        self._layout, self._lease = config.layout, config.lease
        self._is_register = not config.has_ledger
        """Whether the store is the group's register of members."""
        self._ttl = max(TTL_MIN, config.lease * (1 if self._is_register else 3))
        self._store: Owners | None = None
        self._kicks: SimpleQueue[None] = SimpleQueue()
        """Not an Event: a signal handler that closes a member may interrupt a `set()` and then wait for its lock."""
        self.over = threading.Event()
        """Set once the store knows that this member has ended, or cannot be reached."""
        self._holder = ""
        self._told: dict[int, int] = {}
        """Partition -> term, as we believe the store shows it for us."""
        self._fading: dict[int, float] = {}
        """Partitions that are no longer led and were not taken back yet -> since when."""
        self._renewed_at = self._whole_at = -inf
        self._version = Version()
        self._away = False
        self._membership.changed.tell(self._kick)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._membership.is_over:
                with contextlib.suppress(Empty):
                    self._kicks.get(timeout=self._turn_safely())
            self._take_all_back()
        finally:
            if self._store is not None:
                self._store.close()
            self.over.set()

    def _kick(self) -> None:
        if self._kicks.empty():
            self._kicks.put(None)

    def _turn_safely(self) -> float:
        """Publish what is due; return for how long nothing else will be."""
        try:
            left = self._turn()
        except (LedgerError, GroupMismatch) as error:
            self._told, self._whole_at = {}, -inf  # It is unknown what arrived.
            self._complain(error)
            return RETRY_EVERY
        if self._away:
            self._away = False
            self._journal.note("info", "ownership.available")
        return left

    def _turn(self) -> float:
        membership, now = self._membership, self._membership.clock()
        if membership.incarnation != self._holder:  # The old incarnation's entries expire, or have higher terms by now.
            self._holder, self._told, self._fading = membership.incarnation, {}, {}
        led = membership.led()
        is_whole = now - self._whole_at > WHOLE_EVERY
        fresh = led if is_whole else {i: term for i, term in led.items() if self._told.get(i) != term}
        released = self._released(led, now)
        every = self._ttl / RENEWALS
        is_due = self._shows(led) and now - self._renewed_at >= every
        if fresh or released or is_due:
            receipt = self._say(self._ttl, fresh, released)
            self._told = {i: term for i, term in {**self._told, **fresh}.items() if i not in released}
            self._renewed_at = now
            if is_whole:
                self._whole_at = now
            lost, self._version = not receipt.version.continues(self._version), receipt.version
            if lost and not is_whole:
                self._whole_at = -inf
                return 0.0
        if self._fading:
            return self._lease / 4
        return max(0.0, self._renewed_at + every - now) if self._shows(led) else every

    def _shows(self, led: dict[int, int]) -> bool:
        """Whether the store should show this member: one without an incarnation has not begun."""
        return bool(led) or (self._is_register and bool(self._holder))

    def _released(self, led: dict[int, int], now: float) -> dict[int, int]:
        """The entries to take back now."""
        state, holder = self._membership.state, self._holder
        gone = [i for i in self._told if i not in led]
        self._fading = {i: self._fading.get(i, now) for i in gone}
        return {
            i: self._told[i]
            for i in gone
            if now - self._fading[i] >= self._lease
            and not (i < len(state.owners) and state.owners[i] == holder and state.terms[i] == self._told[i])
        }

    def _take_all_back(self) -> None:
        if self._membership.void is not None or not self._holder or not (self._told or self._is_register):
            return
        try:
            self._say(0.0, {}, self._told)
        except (LedgerError, GroupMismatch) as error:
            self._complain(error)

    def _say(self, ttl: float, led: dict[int, int], released: dict[int, int]) -> Receipt:
        if self._store is None:
            self._store = self._source.open()
        # A drained member wants no partitions, which is what a weight of 0 means.
        card = self._card._replace(weight=0) if self._membership.drained else self._card
        return self._store.publish(self._layout, Claim(self._holder, card, ttl, led, released))

    def _complain(self, error: NeliError) -> None:
        if not self._away:  # Once per outage: a line for each failed attempt would bury the first.
            self._away = True
            self._journal.note("warning", "ownership.unavailable", why=str(error))
