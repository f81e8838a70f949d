"""Operator actions: what a person, or a program that measures load, may ask of a group, through one of its members.

    member.operator.drain("a")      the member a should own nothing        with undo=True: again its share
    member.operator.pin(3, "a")     partition 3 should belong to a         with None: wherever it would go
    member.operator.weigh("a", 2)   a should get twice the share           with None: its own weight
    member.operator.load({3: 5.0})  partition 3 is that much work          with 0: as much as any other
    rebalance, nominate, shed       who leads, in a group that elects among its members

The first four are wishes. The ledger keeps them beyond this member's life. Each call returns when the ledger shows the
wish, and raises LedgerUnavailable if that takes longer than `timeout` seconds. A wish for a name that no member has
waits for such a member, and the log says so. (The commands refuse it, because a person may have mistyped the name.)

The others return immediately, and raise BeyondProtocol where the protocol has no such thing.
"""

from collections.abc import Iterable, Mapping

from neli_router.member import wishes
from neli_router.member.engine import Engine
from neli_router.member.wishes import WISH_MAX, CheckedWish

__all__ = ["BaseOperator", "Operator"]


class BaseOperator:
    """The part that does not wait, and so is the same with and without an event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._membership = engine, engine.membership

    def rebalance(self) -> None:
        """Pass what this member leads to living preferred peers. Only for `term` with priorities.

        Each partition moves when the program has finished with it.
        """
        self._engine.rebalance()

    def nominate(self, peer: str, partitions: Iterable[int] | None = None) -> None:
        """Let `peer`, HOST:PORT as in the list, lead these partitions, or all. With `gossip`, it is always all.

        The request may be lost on its way: repeat it if it has no effect. Raises ConfigError, too.
        """
        self._engine.nominate(peer, partitions)

    def shed(self, partitions: Iterable[int] | None = None) -> None:
        """Lead these partitions of `term`, or all, only while no other member can: for a host under load.

        Those that this member leads go to the others in good order, and come back after `shed(())`. Each call replaces
        the previous one, and the setting survives a restart. With `gossip`, where one member leads all partitions, it
        is all or nothing, and nothing comes back on its own. Raises ConfigError, too.
        """
        self._engine.shed(partitions)

    @property
    def shedding(self) -> frozenset[int]:
        """The partitions that this member leads only while no other can; for `term` and `gossip`."""
        return self._membership.shed

    def _drained(self, name: str, *, undo: bool) -> CheckedWish | None:
        """The wish to make; None if this member has drained itself, because its protocol has no other way."""
        if self._engine.drains_itself:
            self._engine.require_itself(name)
            self.shed(() if undo else None)
            return None
        return wishes.undrain(name) if undo else wishes.drain(name)

    def _pinned(self, partition: int, name: str | None) -> CheckedWish:
        layout = self._engine.config.layout
        return wishes.unpin(partition, layout) if name is None else wishes.pin(partition, name, layout)

    def _loaded(self, loads: Mapping[int, float]) -> CheckedWish:
        return wishes.load(loads, self._engine.config.layout)


class Operator(BaseOperator):
    """The operator actions of a Member. May be shared between threads."""

    def drain(self, name: str, *, undo: bool = False, timeout: float = WISH_MAX) -> None:
        """Let the member called `name` own nothing except what is pinned to it; `undo` takes a drain back.

        With `term` and `gossip`, `name` must be this member's own name or its HOST:PORT: the member sheds everything,
        and the call returns immediately. It keeps any partitions that it is nominated for afterwards.
        """
        if (wish := self._drained(name, undo=undo)) is not None:
            self.wish(wish, timeout)

    def pin(self, partition: int, name: str | None, *, timeout: float = WISH_MAX) -> None:
        """Assign `partition` to the member called `name`; None takes a pin back. While that member is away, the
        partition goes where it would go without the pin, and the pin stays."""
        self.wish(self._pinned(partition, name), timeout)

    def weigh(self, name: str, weight: int | None, *, timeout: float = WISH_MAX) -> None:
        """Override the weight of the member called `name`; None restores its own weight."""
        self.wish(wishes.weigh(name, weight), timeout)

    def load(self, loads: Mapping[int, float], *, timeout: float = WISH_MAX) -> None:
        """Set how much work each partition is, in any unit that is the same for all; 0 forgets it."""
        self.wish(self._loaded(loads), timeout)

    def wish(self, wish: CheckedWish, timeout: float = WISH_MAX) -> None:
        """Make a wish of `neli_router.member.wishes`."""
        with self._engine.wishing(wish, timeout) as attempt:
            if self._membership.wait(attempt.is_due, timeout):
                self._membership.wait(attempt.is_over, attempt.say())
