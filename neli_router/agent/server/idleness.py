"""Idleness: an agent without clients gives its partitions to hosts that have some.

    wanted --no client asks for a lease, or holds one, for `idle_after` seconds--> idle: its member weighs 0
       ^-- a client asks: the weight that it had ----------------------------------'

A job may die and leave its host's agent alive. That agent renews its lease, so no other host ever gets its partitions,
and their work stands still.

**Being idle is a weight of 0**, a wish like that of `neli weigh`. So partitions move in good order, and a restarted
agent reads in the ledger that it is idle. If all members are idle, all count alike, and each keeps its share. The first
host that is asked then gets everything. An operator's pin still holds; a weight that an operator sets meanwhile counts
from the next client on, unless the agent restarts before.

**Nothing is handed over under a client.** A lease that a client gets in the same moment is revoked, and the handover
waits for its end as always.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from neli_router.core import logs
from neli_router.core.clock import host_clock
from neli_router.errors import LedgerError, NeliError
from neli_router.member.async_member import AsyncMember
from neli_router.status.group_view import GroupView

__all__ = ["Demand", "give_way_when_idle"]

LOOK_EVERY = 1.0
"""Seconds between two looks. A client that comes is noticed immediately."""


class Demand:
    """The clients that want leases of an agent. Belongs to its loop."""

    def __init__(self) -> None:
        self._clients, self._asked_at, self._has_begun, self._came = 0, host_clock(), False, asyncio.Event()

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """A client holds leases, or waits for them."""
        self.once()
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1
            self._asked_at = host_clock()

    def once(self) -> None:
        """A client asked for leases, and its request holds none."""
        self._asked_at, self._has_begun = host_clock(), True
        self._came.set()

    @property
    def idle_for(self) -> float:
        """Seconds without a client, at the longest since the agent started."""
        return 0.0 if self._clients else host_clock() - self._asked_at

    def is_there(self, within: float) -> bool:
        """Whether there was a client in the last `within` seconds. A start is none."""
        return self._has_begun and self.idle_for < within

    async def coming(self) -> None:
        """Wait for a client."""
        self._came.clear()
        await self._came.wait()


async def give_way_when_idle(member: AsyncMember, demand: Demand, after: float) -> None:
    """Let `member` weigh 0 while no client wants a lease, until it has ended or this is cancelled."""
    former: int | None = None
    while not member.closed:
        wished = GroupView(member.state).wished_weight(member.name)
        try:
            if wished != 0 and (led := len(member.led)) and demand.idle_for >= after:
                former = wished
                await member.operator.weigh(member.name, 0)
                logs.logger().warning("agent.idle", member=member.name, led=led, after=after)
            elif wished == 0 and demand.is_there(after):
                await member.operator.weigh(member.name, former)
                logs.logger().info("agent.wanted", member=member.name)
        except LedgerError as error:
            logs.logger().warning("agent.idleness_unsaid", why=str(error))
        except NeliError:
            return  # The member has ended, and the agent says why.
        if wished == 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await demand.coming()
        else:
            await asyncio.sleep(min(LOOK_EVERY, after))
