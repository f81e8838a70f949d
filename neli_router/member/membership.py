"""The membership: a member's own thread publishes it, and all other threads read it and wait on it.

    engine (one thread) --standing, state, ended--> membership <--lead, leave, wait, require_open-- any thread

Reading takes no lock: the engine replaces whole values, and a value never changes. Waiting sleeps on one condition,
which is notified when a partition is led, is lost, or the member ends. The passing of time notifies no thread, so no
thread sleeps for long.

A forked child has these objects, but not the threads that keep them up to date. So in the child the membership is
*void*: it has no standing, and every call says so before it touches a lock, which a thread of the parent may hold.

    a lease holds  <=>  its period was not lost  and  the member's standing has the partition under its term
                        and  the host's clock has not reached the end of the last heartbeat that came back

A check reads one published value and the clock, and does not depend on any other thread being alive.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf

from neli_router.config.protocols import ELECTED
from neli_router.core.clock import require_timeout
from neli_router.core.closing import anew
from neli_router.core.keyspace import Role
from neli_router.drivers.peers.outlook import Outlook
from neli_router.errors import Closed, NeliError, NotLeading
from neli_router.member.barrier import Barrier, Period, PeriodState
from neli_router.member.leases import BaseLease, Revocation
from neli_router.member.program import Signals
from neli_router.member.runtime import Changed, Runtime
from neli_router.protocols.induction.fold import State
from neli_router.protocols.protocol import NO_STANDING, Standing

__all__ = ["Attempt", "Lease", "MemberLease", "Membership", "why_not"]


TOLD_AFTER = 1.0
"""Seconds that a program waits to lead before the log says what it waits for."""

Tell = Callable[[int], None]

_BY_STATE: Mapping[PeriodState, str] = {
    PeriodState.QUEUED: "this member owns it, and its handler of events is busy with others",
    PeriodState.PREPARING: "this member owns it, and its handler of Acquired has not returned",
    PeriodState.FINISHING: "this member is giving it to another one",
}


class Membership:
    """One member's membership, from its beginning to its end. May be shared between threads."""

    barrier: Barrier
    """Set by the engine; it reports to the engine what is finished."""

    def __init__(self, member: str, runtime: Runtime, *, protocol: str) -> None:
        self.member, self.runtime, self.clock = member, runtime, runtime.clock
        self.changed = Changed()
        self.standing: Standing = NO_STANDING
        self.state, self.incarnation = State(), ""
        self.closing = self.ended = False
        self.error: BaseException | None = None
        """The error that ended the member; None while it is alive, and if it was asked to leave."""
        self.void: NeliError | None = None
        """Why these objects no longer represent a member, although the member was not ended."""
        self.obstacle = ""
        """Why the ledger cannot be reached, in its driver's words."""
        self.is_powerless = False
        """Whether this member's Beats come back too late for it to expire a dead member."""
        self.outlook: Outlook | None = None
        """This member's view of its peers, if its protocol elects among them."""
        self.watching = 0
        """How many callers wait for a change of the state, which every record brings."""
        self.shed: frozenset[int] = frozenset()
        """Among peers: the partitions that this member should lead only while no other member can."""
        self.drained = False
        """Whether `shed` has every partition that this member could lead."""
        self._protocol = protocol
        self._inside = threading.local()

    # Questions

    @property
    def is_over(self) -> bool:
        return self.ended or self.void is not None

    @property
    def must_not_wait(self) -> bool:
        """Whether the member's end waits for the caller, because it is a handler or inside a `leading` block."""
        return self.barrier.is_here or getattr(self._inside, "depth", 0) > 0

    def require_own_process(self) -> None:
        if self.void is not None:
            raise anew(self.void)

    def require_alive(self) -> None:
        """Raise what ended the member, or Closed."""
        if self.outcome():
            raise self._closed("was closed before")

    def require_open(self) -> None:
        """The same as `require_alive`, but also raise Closed while the member is being closed."""
        self.require_alive()
        if self.closing:
            raise self._closed("is being closed")

    def outcome(self) -> bool:
        """Whether the member has ended in good order. If an error ended it, raise that error."""
        self.require_own_process()
        if self.error is not None:
            raise anew(self.error)
        return self.ended

    def led(self) -> dict[int, int]:
        """Partition -> term, for all partitions for which leases are given now."""
        self.require_own_process()
        return {period.partition: period.term for period in self.barrier.led() if self._holds(period)}

    def period(self, partition: int) -> Period | None:
        """The period under which a lease of `partition` can be given now."""
        period = self.barrier.period(partition)
        return period if period is not None and period.state is PeriodState.LED and self._holds(period) else None

    def why_not(self, partition: int) -> str:
        """Why this member does not lead `partition`."""
        period, is_elected = self.barrier.period(partition), self._protocol in ELECTED
        if self._protocol == "induction":
            return why_not(self.state, self.incarnation, partition, period, self.obstacle)
        if self.obstacle:
            return f"the {'peers are' if is_elected else 'broker is'} out of reach ({self.obstacle})"
        if period is not None and period.state in _BY_STATE:
            return _BY_STATE[period.state]
        if is_elected:
            return _why_not_elected(self.outlook, partition)
        # In a group borrowed from a broker, the member cannot know which other member leads the partition.
        return "the broker gave it to another member, or it is given to this one and no fresh heartbeat has come yet"

    def why_unsettled(self) -> str:
        """Why this member's share has not settled; empty once it leads all that its group has for it, if anything."""
        if (share := self._share()) is None:
            return self.why_not(0)
        led = self.led()
        return next((self.why_not(partition) for partition in share if partition not in led), "")

    def is_ready(self) -> bool:
        """Whether this member's share has settled, or it ends."""
        return self.is_over or self.closing or not self.why_unsettled()

    def differs(self, led: Mapping[int, int] | None) -> bool:
        """Whether this member leads anything else than `led` now, or has ended."""
        return self.is_over or self.led() != led

    def _share(self) -> Collection[int] | None:
        """The partitions that this member is to lead; None while the group has given it no share yet."""
        if self._protocol == "induction":
            if not self.state.is_member(self.incarnation):
                return None
            return [i for i, target in enumerate(self.state.targets) if target == self.incarnation]
        if self._protocol in ELECTED:
            if self.outlook is None:
                return None
            # A partition without a leader may become this member's, so it is waited for.
            leaders = enumerate(self.outlook.leaders)
            return [i for i, led in leaders if led is not None and led.leader in {None, self.outlook.me}]
        return self.led() or None  # In a group borrowed from a broker, the member cannot know that it will get none.

    def not_ready(self, timeout: float | None) -> NotLeading:
        """The error raised when the wait for this member's first share times out."""
        wanted = f"member {self.member} was to lead its share within {timeout or 0:g} s"
        return NotLeading(wanted, self.why_unsettled(), "wait longer, or begin with what it leads")

    def not_leading(self, partition: int, timeout: float | None) -> NotLeading:
        """The error raised when a wait for `partition` times out."""
        return NotLeading(
            f"member {self.member} was to lead partition {partition} within {timeout or 0:g} s",
            self.why_not(partition),
            "wait longer, or leave the work to the member that leads it",
        )

    # Work

    def enter(self, partitions: Iterable[int]) -> list[Period]:
        """Begin work on those of `partitions` that are led now. The handover of each then waits for `leave`."""
        with self.changed:
            if self.is_over or self.closing:
                return []
            periods = [period for period in map(self.period, partitions) if period is not None]
            for period in periods:
                self.barrier.enter(period)
        return periods

    def leave(self, *periods: Period) -> None:
        """End the work for `periods` that `enter` began."""
        if self.void is None:
            self.barrier.leave(periods)

    def lead(
        self,
        partition: int,
        timeout: float | None,
        give_up: Callable[[], bool] = lambda: False,
        tell: Tell | None = None,
    ) -> Period | None:
        """`enter` once `partition` is led; None after `timeout` or `give_up()`. Raises what ends the member.

        If it takes longer than TOLD_AFTER seconds, reports the partition once."""
        require_timeout(timeout)
        attempt = Attempt(self, partition, give_up, tell)
        self.wait(attempt.is_over, timeout)
        return attempt.outcome()

    @contextmanager
    def working(self, period: Period) -> Iterator[None]:
        """A block of work on the calling thread, for which `period` was entered."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1
            self.leave(period)

    # Waiting

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for `ready()`, at most `timeout` seconds; return whether it became true.

        `ready` must also become true when the member ends. A signal breaks the wait off, unless the member is closing.
        """
        self.require_own_process()
        if (signals := Signals.here()) is None:
            return self.runtime.wait(self.changed, ready, timeout)
        signals.waits = self.changed
        try:
            return self.runtime.wait(self.changed, lambda: ready() or (not self.closing and signals.check()), timeout)
        finally:
            signals.waits = None

    @contextmanager
    def watching_state(self) -> Iterator[None]:
        """Waits in this block are also notified of every record."""
        with self.changed:
            self.watching += 1
        try:
            yield
        finally:
            with self.changed:
                self.watching -= 1

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def make_void(self, error: NeliError) -> None:
        """Mark these objects as no longer a member. Takes no lock."""
        self.void, self.standing = error, NO_STANDING

    def _holds(self, period: Period) -> bool:
        return self.standing.end(period.partition, period.term) > self.clock()

    def _closed(self, found: str) -> Closed:
        return Closed(f"member {self.member} was needed", f"it {found}", "open another Member")


class Attempt:
    """One wait for leadership: the caller checks `is_over` whenever something changed, and then takes the `outcome`."""

    def __init__(self, membership: Membership, partition: int, give_up: Callable[[], bool], tell: Tell | None) -> None:
        self._membership, self._partition, self._give_up, self._tell = membership, partition, give_up, tell
        self._tell_at = membership.clock() + TOLD_AFTER
        self._period: Period | None = None

    def is_over(self) -> bool:
        """Whether there is nothing left to wait for. If the partition is led, work on it has then begun."""
        membership = self._membership
        if self._period is None and not (membership.is_over or membership.closing or self._give_up()):
            for period in membership.enter([self._partition]):
                self._period = period
            if self._period is None and self._tell is not None and membership.clock() >= self._tell_at:
                self._tell(self._partition)
                self._tell = None
            return self._period is not None
        return True

    def outcome(self) -> Period | None:
        """The period that was entered; None if the wait was given up. Raises the error that ended the member."""
        if self._period is None and not self._give_up():
            self._membership.require_open()
        return self._period


class MemberLease(BaseLease):
    """The common part of the two forms of a member's lease."""

    __slots__ = ("_membership", "_period")

    def __init__(self, membership: Membership, period: Period, role: Role) -> None:
        super().__init__(role, period.partition, period.term, membership.member, membership.clock)
        self._membership, self._period = membership, period

    def next(self) -> tuple[int, int]:
        """The term, and a number that rises with each call, from 1: the pair is greater than all before it. Send it
        along with what you write, and `fence.admit` lets each pair in once. All leases of this member for one partition
        count together, on any thread. Raises LeaseLost."""
        number = next(self._period.numbers)
        self.check()
        return self._term, number

    def _end(self) -> float:
        # Once lost, always lost: after an outage this member may hold the same term again, but in a new period.
        if self._period.state is PeriodState.LOST:
            return -inf
        return self._membership.standing.end(self._partition, self._term)

    def _is_revoked(self) -> bool:
        return self._period.state is not PeriodState.LED or not self.holds()

    def _not_here(self, wanted: str) -> NeliError | None:
        return self._membership.void

    def _why_lost(self, now: float) -> str:
        period, standing = self._period, self._membership.standing
        if period.lost_at is not None:
            return f"it was lost {now - period.lost_at:.3f} s ago: {period.reason}"
        if period.partition in standing.terms:
            ago = max(0.0, now - standing.end(period.partition, period.term))
            return f"it ended {ago:.3f} s ago, no heartbeat of {self._member} having come back in time"
        return f"{self._member} no longer holds it ({period.reason or 'it was fenced just now'})"


class Lease(MemberLease):
    """One member's right to act for one partition. May be shared between threads, but is void in another process."""

    __slots__ = ()

    @property
    def revoked(self) -> Revocation:
        """Whether it is time to finish: true once another member is to get the partition, or has it."""
        return Revocation(self._is_revoked, self._membership.wait)


def why_not(state: State, me: str, partition: int, period: Period | None, obstacle: str) -> str:
    """Why a member does not lead `partition`: the first reason that applies, since each explains those after it.

    `me` is the member's incarnation; `obstacle` is what keeps it from the ledger, if anything.
    """
    if obstacle:
        return f"the ledger is out of reach ({obstacle})"
    if not state.is_member(me):
        return "this member is not admitted to the group yet: it must first read along for the length of a lease"
    if period is not None and period.state in _BY_STATE:
        return _BY_STATE[period.state]
    owner = state.owners[partition]
    if owner == me:
        return "this member owns it, and waits for its own heartbeat, or for the end of its predecessor's lease"
    name = "no member" if owner is None else state.seats[owner].name
    coming = ", and is to give it to this member" if state.targets[partition] == me else ""
    return f"{name} owns it under term {state.terms[partition]}{coming}"


def _why_not_elected(outlook: Outlook | None, partition: int) -> str:
    """The same, among peers. It names the leader that this member believes in."""
    if outlook is None:
        return "this member has not begun to listen to its peers"
    if (led := outlook.leaders[partition]) is None:
        return "this member is not one of the replicas that elect its leader"
    if led.leader == outlook.me:
        return f"this member was elected under term {led.term}, and may not act yet, or no longer"
    if led.leader is not None:
        return f"{outlook.peers[led.leader]} leads it under term {led.term}"
    return f"no peer leads it: {outlook.why_unled}"
