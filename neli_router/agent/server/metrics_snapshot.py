"""The facts that metrics are made of: what the parts of an agent know, by the names that metrics.py asks for.

    chronicle (members, moves, counts) --.
    member (leases, partitions led) -----+--> Facts --> metrics.render --> /metrics
    traffic (clients, look-ups) ---------+
    fence.tally (writes refused) --------'

Nothing is kept here. Each is read where it is known, at the moment of the scrape.
"""

from collections.abc import Mapping
from functools import cached_property

from neli_router.agent.server.connections import Traffic
from neli_router.agent.server.metrics import Delays
from neli_router.fence import tally
from neli_router.member.engine import Engine
from neli_router.status.chronicle import Chronicle

__all__ = ["Facts"]


class Facts:
    """One agent's. `fenced` is counted by whoever hears of it."""

    def __init__(self, engine: Engine, chronicle: Chronicle, traffic: Traffic, version: str) -> None:
        self._engine, self._chronicle, self._traffic = engine, chronicle, traffic
        self.version = version
        self.fenced = 0
        self.delays = Delays(chronicle.beat_delays)

    @cached_property
    def name(self) -> str:
        return self._engine.settings.name

    @cached_property
    def guarantee(self) -> str:
        return self._engine.settings.guarantee

    @cached_property
    def lease(self) -> float:
        return self._engine.settings.lease

    @property
    def lease_left(self) -> float:
        # What the member itself goes by: from the sending of its last Beat that came back. A ledger that brings them
        # late is what this metric is looked at for, and counted from their coming it would not show.
        membership = self._engine.membership
        return max(0.0, membership.standing.until - membership.clock())

    @property
    def leases_left(self) -> Mapping[str, float]:
        told = self._chronicle.told
        seats = told.state.seats
        left = {key: self._left(vital.heard_at) for key, vital in told.vitals.items() if key in seats}
        if (own := self._engine.membership.incarnation) in left:
            left[own] = self.lease_left
        return {seats[key].name: seconds for key, seconds in left.items()}

    @property
    def counts(self) -> Mapping[str, int]:
        return self._chronicle.told.counts

    @property
    def refused_writes(self) -> int:
        return tally.refused

    @property
    def table_age(self) -> float:
        return self._engine.feed.at.age

    @property
    def lookups(self) -> Mapping[str, int]:
        return self._traffic.lookups

    @property
    def members(self) -> int:
        return len(self._chronicle.told.state.seats)

    @property
    def partitions(self) -> int:
        return len(self._chronicle.told.state.owners)

    @property
    def owned(self) -> int:
        return sum(owner is not None for owner in self._chronicle.told.state.owners)

    @property
    def led(self) -> int:
        return 0 if self._engine.membership.is_over else len(self._engine.membership.led())

    @property
    def ledger_available(self) -> bool:
        return not self._engine.membership.obstacle and not self._engine.membership.is_over

    @property
    def waiting(self) -> int:
        return self._traffic.waiting

    @property
    def streams(self) -> int:
        return self._traffic.streams

    @property
    def requests(self) -> Mapping[str, int]:
        traffic = self._traffic
        cut = {"slow": traffic.slow, "idle": traffic.idle, "crowded": traffic.crowded}
        return traffic.answers | {outcome: count for outcome, count in cut.items() if count}

    def _left(self, heard_at: float) -> float:
        return max(0.0, heard_at + self.lease - self._engine.membership.clock())
