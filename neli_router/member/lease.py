"""The lease: what a program holds while it works, and asks before it acts.

    holds  <=>  the grant was not lost  and  the member's standing has the partition under this term
                and  the host's clock has not reached the end of the last heartbeat that came back

Asking reads one published value and the clock: no lock, no ledger, no other thread that would have to be alive. A
process that was stopped for a minute finds its lease over at its first question, before its own pump knows.

A check and the act that it guards are never one: time passes between them. So an act that matters carries `term`, and
what receives it refuses a lower one.
"""

from collections.abc import Callable
from math import inf
from typing import Protocol

from neli_router.errors import LeaseLost, NeliError
from neli_router.keyspace import Role
from neli_router.member.barrier import Grant, Stage
from neli_router.protocol import Standing

__all__ = ["Holding", "Lease", "Revocation", "Tenant"]


class Tenant(Protocol):
    """What a lease needs to know of its member, at any moment."""

    @property
    def member(self) -> str:
        """What the member is called in its group."""

    @property
    def standing(self) -> Standing:
        """What it may act for."""

    @property
    def void(self) -> NeliError | None:
        """Why this object is no member any more, such as after a fork; or None."""

    def clock(self) -> float:
        """Now, on the time line of the standing."""

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for `ready()`; whether it came true within `timeout` seconds."""


class Holding:
    """What the two forms of a lease have in common, which is all but how one waits for its revocation."""

    __slots__ = ("_grant", "_role", "_tenant")

    def __init__(self, tenant: Tenant, grant: Grant, role: Role) -> None:
        self._tenant, self._grant, self._role = tenant, grant, role

    @property
    def role(self) -> Role:
        """As it was asked for. It may be a key, so it stands in no log, no error and no `repr`."""
        return self._role

    @property
    def partition(self) -> int:
        return self._grant.partition

    @property
    def term(self) -> int:
        """The fencing token: a later holder always has a higher one."""
        return self._grant.term

    @property
    def member(self) -> str:
        """The name of the member that holds it."""
        return self._tenant.member

    def remaining(self) -> float:
        """Seconds for which it holds if no further heartbeat comes back; 0 if it is lost. It grows with each one."""
        return max(0.0, self._end() - self._tenant.clock())

    def holds(self) -> bool:
        """Whether it holds now. Costs about a microsecond."""
        return self._tenant.clock() < self._end()

    def check(self) -> None:
        """Raise LeaseLost if it does not hold now (and Forked in a forked child, where no lease ever holds)."""
        if not self.holds():
            raise self.lost()

    def lost(self) -> NeliError:
        """The error that says what was lost, when and why."""
        if self._tenant.void is not None:
            return self._tenant.void
        grant, now = self._grant, self._tenant.clock()
        until = self._tenant.standing.end(grant.partition, grant.term)
        if grant.lost_at is not None:
            found = f"it was lost {now - grant.lost_at:.3f} s ago: {grant.reason}"
        elif grant.partition in self._tenant.standing.terms:
            found = (
                f"it ended {max(0.0, now - until):.3f} s ago, no heartbeat of {self.member} having come back in time"
            )
        else:
            found = f"{self.member} does not hold it any more ({grant.reason or 'it was fenced just now'})"
        return LeaseLost(
            f"the lease of partition {grant.partition} under term {grant.term} was needed",
            found,
            "stop this work now, and undo or fence what it did since: another member may be doing it already",
        )

    def __repr__(self) -> str:
        return f"<Lease of partition {self.partition} under term {self.term} for {self.member}>"

    def _end(self) -> float:
        grant = self._grant
        # Once lost, always lost: after an outage the same term may be this member's again, in a grant of its own.
        return -inf if grant.stage is Stage.LOST else self._tenant.standing.end(grant.partition, grant.term)

    def _is_revoked(self) -> bool:
        return self._grant.stage is not Stage.LED or not self.holds()


class Lease(Holding):
    """One member's right to act for one partition. May be shared between threads; worth nothing in another process."""

    __slots__ = ()

    @property
    def revoked(self) -> "Revocation":
        """Whether it is time to finish: true from when somebody else shall have the partition, or has it."""
        return Revocation(self._is_revoked, self._tenant.wait)


class Revocation:
    """Whether it is time to finish. Becomes true once and stays so; to be used like a `threading.Event`."""

    __slots__ = ("_is_set", "_wait")

    def __init__(self, is_set: Callable[[], bool], wait: Callable[[Callable[[], bool], float | None], bool]) -> None:
        self._is_set, self._wait = is_set, wait

    def is_set(self) -> bool:
        return self._is_set()

    def __bool__(self) -> bool:
        return self._is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, at most `timeout` seconds; whether it is time to finish."""
        return self._wait(self._is_set, timeout)
