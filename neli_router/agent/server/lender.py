"""The lender: the one place where leases leave the agent, so that its death is certified only when they have ended.

    client --lease? share?--> how long is left --pledged to the member's witness--> then the view, and the answer

A client continues under its lease after the agent has died; a `neli run` continues until its guardian ends it. If a
successor heard of the agent's death immediately, both would act at the same time. So before a client gets a lease, the
agent's own witness records until when it holds, and certifies the death only after that. An agent that dies between the
two has given no client anything.

All views with time left are made here, for answers and for events alike. Each was pledged before it was sent, whatever
happens to it later: an answer may still lie in the buffers of the door when the agent dies. A client counts the time
left from before it asked, and so never longer than was pledged. Looking up an owner gives no right to act.

**A `neli run` ends whatever acts on its lease** before it ends itself, or its guardian does. So when both processes
have ended, everything that acted on the lease has ended, too, and nothing needs to wait for the lease. `neli run` names
its guardian (`wire.GUARDIAN`), which is believed if the kernel confirms that it is a child of the process that made the
connection. A program that passes bytes on has no such child. Other clients name no guardian, because a process that
they started may act on after them.
"""

import socket
from collections.abc import Iterable, Sequence
from typing import Any, cast

from starlette.types import Scope

from neli_router.agent.server.connections import connection_of
from neli_router.agent.wire import GUARDIAN, LeaseView, ShareView
from neli_router.core.clock import host_clock
from neli_router.hosts.process import ProcessMark, peer_number
from neli_router.member.leases import BaseLease
from neli_router.member.served_member import ServedMember

__all__ = ["Lender", "borrowers"]


class Lender:
    """The leases of `member`, for its agent's clients."""

    def __init__(self, member: ServedMember, drain_timeout: float) -> None:
        self._member, self._drain_timeout = member, drain_timeout

    def lease(self, lease: BaseLease, why: str = "", processes: Sequence[ProcessMark] = ()) -> LeaseView:
        """A lease that this member was given, with the time it has left now. `processes` are its `borrowers`."""
        left = self._lent(lease.remaining(), processes)
        return LeaseView(lease.partition, left > 0, lease.member, lease.term, left, self._drain_timeout, why)

    def share(self, leases: Sequence[BaseLease], why: str = "") -> ShareView:
        """Leases that this member was given, under one common end."""
        terms = {lease.partition: lease.term for lease in leases}
        left = self._lent(min((lease.remaining() for lease in leases), default=0.0))
        return ShareView(self._member.name, terms, left, self._drain_timeout, why)

    def standing(self, partitions: Iterable[int], processes: Sequence[ProcessMark] = ()) -> ShareView:
        """Those of `partitions` that this member may act for, even if only to finish."""
        standing, now = self._member.standing, host_clock()
        led = {i: term for i in partitions if (term := standing.terms.get(i)) is not None}
        rests = {i: rest for i, term in led.items() if (rest := standing.end(i, term) - now) > 0}
        # A partition that is about to be taken from its holder must not shorten the leases of the others.
        least = standing.until - now
        left = min((rest for rest in rests.values() if rest >= least), default=min(rests.values(), default=0.0))
        left = self._lent(left, processes)
        sooner = {i: rest for i, rest in rests.items() if rest < left}
        terms = {i: led[i] for i in rests}
        return ShareView(self._member.name, terms, left, self._drain_timeout, rests=sooner)

    def partition(self, partition: int, *, leads: bool, why: str, processes: Sequence[ProcessMark] = ()) -> LeaseView:
        """One partition. A revoked one is not led but still shows the time left on its lease: its holder may finish."""
        held = self.standing([partition], processes)
        term = held.terms.get(partition, 0)
        return LeaseView(partition, leads, held.member, term, held.remaining, held.drain_timeout, why)

    def nothing(self, partition: int, why: str) -> LeaseView:
        """The view that says that this member does not lead `partition`."""
        return LeaseView(partition, leads=False, member=self._member.name, why=why)

    def _lent(self, left: float, processes: Sequence[ProcessMark] = ()) -> float:
        if left > 0:
            self._member.pledge(left, processes=processes)
        return left


def borrowers(scope: Scope) -> Sequence[ProcessMark]:
    """Processes that outlive everything that acts on this client's leases, at least one of them; empty if unknown."""
    told = next((value for name, value in scope["headers"] if name == GUARDIAN.encode()), b"")
    connection = cast("Any", connection_of(scope).transport.get_extra_info("socket"))
    if not told.isdigit() or connection.family != socket.AF_UNIX:
        return ()
    try:
        client = peer_number(connection)
        return (ProcessMark.of(client), ProcessMark.of(int(told[:20]), parent=client))
    except OSError:
        return ()
