"""The publisher: tells a store of owners which partitions a member leads, on a thread of its own.

    membership: leases are given or end --notify--> publisher --claim: led, released, expiry--> store
                                                   '--every third of the expiry, while anything is led

The store is a copy for people who ask, so nothing ever waits for it: not the pump, not a handler, not the end of a
member. When it is away, the log says so once, and what is led is told again when it is back.

    led            told as soon as leases are given, which is when the handler of Acquired has returned
    led no longer  taken back after a lease, unless the ledger still says that it is ours: meanwhile the next owner will
                   have put itself there under a higher term, and no reader ever finds that there is no owner
    lease lost     not renewed any more, so that it expires; a member that hears itself again renews it
    member ended   everything is taken back at once

A member of a group without a ledger tells of itself also while it leads nothing, and for one lease at a time: no record
of the group exists, so the store alone knows who is a member. Its successor takes its place there when the protocol
lets it, which is after the lease has ended; until then routers and people shall not be told that it leads.

Everything is told again now and then, because a store may lose some of it in a failover without a sign of it.
"""

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from neli_router.config.config import Config
from neli_router.drivers.owners.base import Card, Claim, Owners, Receipt, Version
from neli_router.errors import GroupMismatch, LedgerError, NeliError
from neli_router.member.journal import Journal
from neli_router.member.membership import Membership

__all__ = ["TTL_MIN", "Publisher"]

TTL_MIN = 3.0
"""Seconds after which a silent member is forgotten; three leases, if that is longer. An owner that dies is replaced by
its successor after one lease, so this counts for groups that end as a whole. Lowering it costs more renewals."""

RENEWALS = 3
"""In one expiry, so that two of them may be lost."""

WHOLE_EVERY = 30.0
RETRY_EVERY = 0.2


class Publisher:
    """One member's. Ends by itself when the member does."""

    def __init__(
        self,
        owners: Callable[[], Owners],
        config: Config,
        card: Card,
        membership: Membership,
        journal: Journal,
        name: str,
    ) -> None:
        self.name = name
        self.deadline = float("inf")
        self._open, self._card, self._membership, self._journal = owners, card, membership, journal
        self._layout, self._lease = config.layout, config.lease
        self._is_register = not config.has_ledger
        """Whether the store is where members are known."""
        self._ttl = max(TTL_MIN, config.lease * (1 if self._is_register else 3))
        self._store: Owners | None = None
        self._kicks: SimpleQueue[None] = SimpleQueue()
        """Not an Event: a signal handler that closes a member may interrupt one that is being set, and wait for it."""
        self._over = threading.Event()
        self._holder = ""
        self._told: dict[int, int] = {}
        """Partition -> term, as the store says it of us, as far as we know."""
        self._fading: dict[int, float] = {}
        """The partitions that are led no longer and were not taken back, and since when."""
        self._renewed_at = self._whole_at = float("-inf")
        self._version = Version()
        self._away = False
        membership.changed.tell(self._kick)

    def run(self) -> None:
        try:
            while not self._membership.is_over:
                with contextlib.suppress(Empty):
                    self._kicks.get(timeout=self._turn_safely())
            self._take_all_back()
        finally:
            if self._store is not None:
                self._store.close()
            self._over.set()

    def turn(self) -> bool:
        """In a test that turns the clock there is no store to tell."""
        return False

    def await_end(self, timeout: float) -> None:
        """Until the store knows that this member has ended, at most `timeout` seconds."""
        self._over.wait(timeout)

    def _kick(self) -> None:
        if self._kicks.empty():
            self._kicks.put(None)

    def _turn_safely(self) -> float:
        """Tell what there is to tell; return for how long there will be nothing else."""
        try:
            left = self._turn()
        except (LedgerError, GroupMismatch) as error:
            self._told, self._whole_at = {}, float("-inf")  # There is no knowing what arrived.
            self._complain(error)
            return RETRY_EVERY
        if self._away:
            self._away = False
            self._journal.note("info", "ownership.available")
        return left

    def _turn(self) -> float:
        membership, now = self._membership, self._membership.clock()
        if membership.incarnation != self._holder:  # The former one's entries expire, or have a higher term by now.
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
                self._whole_at = float("-inf")
                return 0.0
        if self._fading:
            return self._lease / 4
        return max(0.0, self._renewed_at + every - now) if self._shows(led) else every

    def _shows(self, led: dict[int, int]) -> bool:
        """Whether the store is to know this member: one without an incarnation has not begun."""
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
            self._store = self._open()
        # A drained member asks for no partition: that is what a weight of 0 means.
        card = self._card._replace(weight=0) if self._membership.drained else self._card
        return self._store.publish(self._layout, Claim(self._holder, card, ttl, led, released))

    def _complain(self, error: NeliError) -> None:
        if not self._away:  # Once an outage: a line for each failed try would bury the first.
            self._away = True
            self._journal.note("warning", "ownership.unavailable", why=str(error))
