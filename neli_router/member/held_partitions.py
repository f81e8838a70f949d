"""The partitions that one client of a server holds, such as the agent's: what a program itself does not need.

    HeldPartitions(partitions) --those that are led--> LED --revoked: reported once--> FINISHING --close--> handed over
                                                        '------ lost: reported once, and let go of <--'

A `leading` block is the work of one thread or one task for one partition, and ends with it. A client of the agent may
hold hundreds of partitions, and keeps the others when one is lost. So the agent's stream asks the holding for news
whenever something has changed; nothing here waits. The handover of each partition waits until the holding is closed.
"""

from collections.abc import Iterable, Mapping, Sequence

from neli_router.core.closing import Closing
from neli_router.member.barrier import Period, PeriodState
from neli_router.member.membership import Lease, Membership

__all__ = ["HeldPartitions"]


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
