"""Lending: the one place where leases leave the agent, so that its death is told only when they have ended.

    client --lease? share?--> how long is left --pledged to the member's witness--> then the view, and the answer

A client goes on under its lease when the agent has died: so does a `neli run` until its guardian ends it. A successor
that heard of the agent's death at once would act beside it. So before a client is told of a lease, the agent's own
witness is told until when it holds, and certifies the death after that. An agent that dies in between has told nobody.

All views with a rest are made here, for answers and for events alike; whatever then becomes of them, such as an answer
that lies in the buffers of the door when the agent dies, was pledged before. A client counts the rest from before it
asked, and so never longer than was pledged. That an owner was asked for lets nobody act.

**A `neli run` ends what acts on its lease**, or its guardian does, before it ends itself. So when both have ended, all
of that has, and the lease is no longer waited for. It names its guardian (`wire.GUARDIAN`), which is believed if the
kernel says that this is a child of the process that made the connection. A program that passes bytes on has no such
child, and other clients say nothing: a process that they started may act on.
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
from neli_router.member.member import Member

__all__ = ["Lending", "borrowers"]


class Lending:
    """The leases of `member`, for its agent's clients."""

    def __init__(self, member: Member, drain_timeout: float) -> None:
        self._member, self._drain_timeout = member, drain_timeout

    def lease(self, lease: BaseLease, why: str = "", processes: Sequence[ProcessMark] = ()) -> LeaseView:
        """A lease that this member was given; whether it holds is asked now. `processes` are its `borrowers`."""
        left = self._lent(lease.remaining(), processes)
        return LeaseView(lease.partition, left > 0, lease.member, lease.term, left, self._drain_timeout, why)

    def share(self, leases: Sequence[BaseLease], why: str = "") -> ShareView:
        """Leases that it was given, under one end."""
        terms = {lease.partition: lease.term for lease in leases}
        left = self._lent(min((lease.remaining() for lease in leases), default=0.0))
        return ShareView(self._member.name, terms, left, self._drain_timeout, why)

    def standing(self, partitions: Iterable[int], processes: Sequence[ProcessMark] = ()) -> ShareView:
        """Those of `partitions` that this member may act for, if only to finish."""
        standing, now = self._member.standing, host_clock()
        led = {i: term for i in partitions if (term := standing.terms.get(i)) is not None}
        rests = {i: rest for i, term in led.items() if (rest := standing.end(i, term) - now) > 0}
        # One that is about to be taken from its holder must not shorten the leases of the others.
        least = standing.until - now
        left = min((rest for rest in rests.values() if rest >= least), default=min(rests.values(), default=0.0))
        left = self._lent(left, processes)
        sooner = {i: rest for i, rest in rests.items() if rest < left}
        terms = {i: led[i] for i in rests}
        return ShareView(self._member.name, terms, left, self._drain_timeout, rests=sooner)

    def partition(self, partition: int, *, leads: bool, why: str, processes: Sequence[ProcessMark] = ()) -> LeaseView:
        """One partition. One that was revoked is not led, and has the rest of its lease: its holder may finish."""
        held = self.standing([partition], processes)
        term = held.terms.get(partition, 0)
        return LeaseView(partition, leads, held.member, term, held.remaining, held.drain_timeout, why)

    def nothing(self, partition: int, why: str) -> LeaseView:
        """That this member does not lead it."""
        return LeaseView(partition, leads=False, member=self._member.name, why=why)

    def _lent(self, left: float, processes: Sequence[ProcessMark] = ()) -> float:
        if left > 0:
            self._member.pledge(left, processes=processes)
        return left


def borrowers(scope: Scope) -> Sequence[ProcessMark]:
    """Processes of which one lives for as long as anything acts on this client's leases; none if that is not known."""
    told = next((value for name, value in scope["headers"] if name == GUARDIAN.encode()), b"")
    connection = cast("Any", connection_of(scope).transport.get_extra_info("socket"))
    if not told.isdigit() or connection.family != socket.AF_UNIX:
        return ()
    try:
        client = peer_number(connection)
        return (ProcessMark.of(client), ProcessMark.of(int(told[:20]), parent=client))
    except OSError:
        return ()
