"""The footing of a member whose protocol borrows a broker's consumer group: a subscription, and NELI or Fast NELI.

    pump --standing--> membership: leases and waiting calls

Such a member knows what it leads, but not who leads the rest: no record of the group exists. Its router is fed by the
owner store, where every member publishes what it leads, or by nothing: see `engine.py`.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from neli_router.config.config import Config
from neli_router.drivers.consumer_groups.pump import SubscriptionPump
from neli_router.errors import NeliError
from neli_router.hosts.process import ProcessMark
from neli_router.member.footing import Foothold, Request
from neli_router.member.membership import Membership
from neli_router.member.runtime import Runtime
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.machine import GroupMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.protocol import Close, Machine, Notice, Released

__all__ = ["GroupFooting"]


class GroupFooting:
    """An open `Footing`. Raises LedgerError, ConfigError and GroupMismatch."""

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        *,
        membership: Membership,
        foothold: Foothold,
    ) -> None:
        self._membership, self._stepped = membership, foothold.stepped
        settings = config.group_settings()
        self._subscription = runtime.subscription(config, settings)
        try:
            for doubt in self._subscription.doubts:
                foothold.tell(Notice("group.doubt", {"doubt": doubt}))
            self._pump = SubscriptionPump(
                self._subscription,
                _machine(settings, self._subscription.partitions, runtime),
                clock=runtime.clock,
                publish=self._publish,
                tell=foothold.tell,
                explain=foothold.explain,
            )
        except BaseException:
            with contextlib.suppress(NeliError):  # The first failure is the one to report.
                self.close()
            raise
        # Now, not at the first step: the member is published to the owner store as soon as the engine has this footing.
        membership.incarnation = self._pump.machine.incarnation

    @property
    def machine(self) -> Machine[Any, Any]:
        return self._pump.machine

    def turn(self) -> None:
        self._pump.turn()

    def post(self, event: Request) -> None:
        assert isinstance(event, Released | Close), "the engine refuses wishes to such a group"
        self._pump.post(event)

    def wake(self) -> None:
        self._subscription.wake()

    def pledge(self, until: float, processes: Sequence[ProcessMark]) -> None:
        pass  # No witness reports a death: the broker ends the session of a silent member.

    def close(self) -> None:
        self._subscription.close()

    def _publish(self, machine: GroupMachine, now: float) -> None:
        self._membership.standing, self._membership.incarnation = machine.standing, machine.incarnation
        self._stepped(now)


def _machine(settings: NeliSettings | FastNeliSettings, partitions: int, runtime: Runtime) -> GroupMachine:
    now, rng = runtime.clock(), runtime.rng()
    if isinstance(settings, NeliSettings):
        return NeliMachine(settings, partitions, now, rng=rng)
    return FastNeliMachine(settings, partitions, now, rng=rng, wall_nanoseconds=1000 * runtime.wall())
