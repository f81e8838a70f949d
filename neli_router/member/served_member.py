"""A member that speaks for other programs: what a server, such as the agent's, needs beyond what a program does.

    programs --ask--> server --standing, leads, why_not, hold ...--> ServedMember
                        ^-----------observe: something changed------------'

A program that is a member itself needs none of this, so that `Member` stays short.

    member.hold(partitions) --those that are led--> LED --revoked: reported once--> FINISHING --close--> handed over
                                                     '------ lost: reported once, and let go of <--'

A `leading` block is the work of one thread or one task for one partition, and ends with it. A client of the agent may
hold hundreds of partitions, and keeps the others when one is lost. So the agent's stream asks the holding for news
whenever something has changed; nothing here waits. The handover of each partition waits until the holding is closed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from neli_router.core.closing import Closing
from neli_router.drivers.peers.outlook import Outlook
from neli_router.errors import NotLeading
from neli_router.member.barrier import Period, PeriodState
from neli_router.member.member import Member
from neli_router.member.membership import Lease, Membership
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.records import Certify
from neli_router.protocols.protocol import Standing

__all__ = ["HeldPartitions", "ServedMember"]


class HeldPartitions(Closing):
    """The subset of `partitions` that is led now. Belongs to one thread."""

    def __init__(self, membership: Membership, partitions: Sequence[int]) -> None:
        self._membership, self._partitions = membership, partitions
        self._periods = {period.partition: period for period in membership.enter(partitions)}
        self._leases = {partition: Lease(membership, period, partition) for partition, period in self._periods.items()}
        self._told_revoked: set[int] = set()
        self._told_more: set[Period] = set()

    @property
    def leases(self) -> Sequence[Lease]:
        """The leases of all that is still held, in the order of their partitions."""
        return [self._leases[partition] for partition in sorted(self._leases)]

    def has_news(self) -> bool:
        """Whether `revoked`, `lost` or `more` has something to report."""
        return bool(self._revoked() or self._lost() or self._more())

    def lost(self) -> Mapping[str, Sequence[Lease]]:
        """Reason -> the leases lost for it since the last call. They are let go of."""
        told: dict[str, list[Lease]] = {}
        for partition in self._lost():
            lease = self._leases.pop(partition)
            period = self._periods.pop(partition)
            # The bare reason: the client's own error begins with "it was lost".
            why = period.reason if period.state is PeriodState.LOST else lease.lost().found
            told.setdefault(why, []).append(lease)
            self._membership.leave(period)
        return told

    def revoked(self) -> Sequence[Lease]:
        """The leases that were revoked since the last call."""
        revoked = self._revoked()
        self._told_revoked.update(revoked)
        return [self._leases[partition] for partition in revoked]

    def more(self) -> Sequence[Lease]:
        """Leases of requested partitions that have become led since the last call. They are not held."""
        more = self._more()
        self._told_more = {period for period in self._told_more if period.state is PeriodState.LED} | set(more)
        return [Lease(self._membership, period, period.partition) for period in more]

    def close(self) -> None:
        """Let go of everything. May be called more than once."""
        self._membership.leave(*self._periods.values())
        self._periods.clear()
        self._leases.clear()

    def _revoked(self) -> Sequence[int]:
        return [
            partition
            for partition, period in self._periods.items()
            if period.state is PeriodState.FINISHING and partition not in self._told_revoked
        ]

    def _lost(self) -> Iterable[int]:
        return [partition for partition, lease in self._leases.items() if not lease.holds()]

    def _more(self) -> Sequence[Period]:
        periods = [self._membership.period(partition) for partition in self._partitions]
        return [
            period
            for period in periods
            if period is not None
            and self._periods.get(period.partition) is not period
            and period not in self._told_more
        ]


class ServedMember(Member):
    """A Member, and what others may know and do through it."""

    @property
    def standing(self) -> Standing:
        """Which partitions this member may act for, and until when."""
        return self._membership.standing

    @property
    def obstacle(self) -> str:
        """Why the ledger cannot be reached, in its driver's words; empty if it can be."""
        return self._membership.obstacle

    @property
    def is_powerless(self) -> bool:
        """Whether this member's heartbeats come back, but too late for it to expire a dead member."""
        return self._membership.is_powerless and not self.closed

    @property
    def outlook(self) -> Outlook | None:
        """This member's view of its peers; None if it has none, or has not begun to listen yet."""
        return self._membership.outlook

    @property
    def closing(self) -> bool:
        """Whether this member was asked to leave."""
        return self._membership.closing

    def hold(self, partitions: Sequence[int]) -> HeldPartitions:
        """Hold those of `partitions` that are led now, for work on them, until the returned object is closed."""
        return HeldPartitions(self._membership, partitions)

    def leads(self, partition: int) -> bool:
        return self._membership.period(partition) is not None

    def why_not(self, partition: int) -> str:
        """Why this member does not lead `partition`."""
        return self._membership.why_not(partition)

    def not_leading(self, partition: int, timeout: float) -> NotLeading:
        """The error raised when a wait for `partition` times out."""
        return self._membership.not_leading(partition, timeout)

    def certify(self, incarnation: str) -> None:
        """Record in the ledger that the process of `incarnation` has ended with all its threads. Does not wait.

        Other members then take over immediately, so only a server that saw the process end may call this."""
        # Before this member has joined, readers cannot resolve its incarnation to a name.
        by = self.incarnation if self.incarnation in self.state.seats else self.name
        self._engine.post(Wish(Certify(by=by, incarnation=incarnation)))

    def require_open(self) -> None:
        """Raise the error that ended this member, or Closed if it was asked to leave."""
        self._membership.require_open()

    def observe(self, changed: Callable[[], None], turned: Callable[[float], None]) -> Callable[[], None]:
        """Call `changed` whenever a partition is led or lost and when this member ends, and `turned` with the time
        after every step of its thread. Neither may wait or raise. The returned function stops both."""
        self._membership.changed.tell(changed)
        self._engine.oversee(turned)

        def end() -> None:
            self._membership.changed.forget(changed)
            self._engine.neglect(turned)

        return end
