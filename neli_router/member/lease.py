"""A member's lease: the program holds it while it works, and checks it before it acts.

    holds  <=>  the period was not lost  and  the member's standing has the partition under this term
                and  the host's clock has not reached the end of the last heartbeat that came back

A check reads one published value and the clock. It takes no lock, reads no ledger, and does not depend on any other
thread being alive. So a process that was stopped for a minute finds its lease over before its own pump knows.
"""

from math import inf

from neli_router.core.keyspace import Role
from neli_router.errors import NeliError
from neli_router.member.barrier import Period, PeriodState
from neli_router.member.leases import BaseLease, Revocation
from neli_router.member.membership import Membership

__all__ = ["Lease", "MemberLease"]


class MemberLease(BaseLease):
    """The common part of the two forms of a member's lease."""

    __slots__ = ("_membership", "_period")

    def __init__(self, membership: Membership, period: Period, role: Role) -> None:
        super().__init__(role, period.partition, period.term, membership.member, membership.clock)
        self._membership, self._period = membership, period

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
