"""Operator actions: what a person, or a program that measures load, may ask of a group, through one of its members.

    member.operator.drain("a")      the member a should own nothing        with undo=True: again its share
    member.operator.pin(3, "a")     partition 3 should belong to a         with None: wherever it would go
    member.operator.weigh("a", 2)   a should get twice the share           with None: its own weight
    member.operator.load({3: 5.0})  partition 3 is that much work          with 0: as much as any other
    member.operator.upgrade()       fold by this release's newest version  never taken back
    rebalance, nominate, shed       who leads, in a group that elects among its members

The first five are wishes. The ledger keeps them beyond this member's life. Each call returns when the ledger shows the
wish, and raises LedgerUnavailable if that takes longer than `timeout` seconds. Until then it writes the wish again from
time to time, because an append may be lost. A wish for a name that no member has waits for such a member, and the log
says so. (The commands refuse it, because a person may have mistyped the name.)

The others return immediately, and raise BeyondProtocol where the protocol has no such thing.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Generic, TypeVar

from neli_router.config.protocols import ELECTED, Term
from neli_router.drivers.peers.udp import my_place
from neli_router.errors import BeyondProtocol, ConfigError
from neli_router.member import wishes
from neli_router.member.engine import Engine
from neli_router.member.wishes import WISH_AGAIN, WISH_MAX, CheckedWish, no_wishes, unheard
from neli_router.protocols.electors.events import Nominate, Prefer, Rebalance
from neli_router.protocols.electors.priority import LEAST, electorate
from neli_router.protocols.electors.settings import TermSettings
from neli_router.protocols.induction.events import Wish

__all__ = ["BaseOperator", "Operator"]


Done = TypeVar("Done")


class BaseOperator(Generic[Done]):
    """All except how to wait. `Done` is what a call returns that waits: nothing, or a coroutine."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._membership, self._config = engine, engine.membership, engine.config

    def drain(self, name: str, *, undo: bool = False, timeout: float = WISH_MAX) -> Done:
        """Let the member called `name` own nothing except what is pinned to it; `undo` takes a drain back.

        With `term` and `gossip`, `name` must be this member's own name or its HOST:PORT: the member sheds everything,
        and the call returns immediately. It keeps any partitions that it is nominated for afterwards.
        """
        if self._drains_itself:
            self.require_itself(name)
            self.shed(() if undo else None)
            return self.wish(None)
        return self.wish(wishes.undrain(name) if undo else wishes.drain(name), timeout)

    def pin(self, partition: int, name: str | None, *, timeout: float = WISH_MAX) -> Done:
        """Assign `partition` to the member called `name`; None takes a pin back. While that member is away, the
        partition goes where it would go without the pin, and the pin stays."""
        layout = self._config.layout
        wish = wishes.unpin(partition, layout) if name is None else wishes.pin(partition, name, layout)
        return self.wish(wish, timeout)

    def weigh(self, name: str, weight: int | None, *, timeout: float = WISH_MAX) -> Done:
        """Override the weight of the member called `name`; None restores its own weight."""
        return self.wish(wishes.weigh(name, weight), timeout)

    def load(self, loads: Mapping[int, float], *, timeout: float = WISH_MAX) -> Done:
        """Set how much work each partition is, in any unit that is the same for all; 0 forgets it."""
        return self.wish(wishes.load(loads, self._config.layout), timeout)

    def upgrade(self, *, timeout: float = WISH_MAX) -> Done:
        """Raise the group's fold version to the newest that this release knows. It cannot go back.

        Waits for members that do not know the version to leave or to be expired. Raises GroupMismatch, which names
        them, if they are still there after `timeout` seconds.
        """
        return self.wish(wishes.upgrade(), timeout)

    def wish(self, wish: CheckedWish | None, timeout: float = WISH_MAX) -> Done:
        """Make a wish of `neli_router.member.wishes`; None is granted already."""
        raise NotImplementedError

    def rebalance(self) -> None:
        """Pass what this member leads to living preferred peers. Only for `term` with priorities.

        Each partition moves when the program has finished with it.
        """
        wanted = "preferred leaders were wanted"
        self._require_election(wanted)
        options = self._config.options
        if not isinstance(options, Term) or options.policy == "random":
            found = "policy='random'" if isinstance(options, Term) else options.name
            raise BeyondProtocol(wanted, f"{found} has no preferred peers", "name the peer that should lead")
        self._engine.post(Rebalance())

    def nominate(self, peer: str, partitions: Iterable[int] | None = None) -> None:
        """Let `peer`, HOST:PORT as in the list, lead these partitions, or all. With `gossip`, it is always all.

        The request may be lost on its way: repeat it if it has no effect. Raises ConfigError, too.
        """
        wanted = f"{peer} was wanted as a leader"
        self._require_election(wanted)
        if self._config.protocol_name == "gossip" and partitions is not None:
            raise BeyondProtocol(wanted, "with gossip one member leads all partitions", "leave the partitions out")
        peers, numbers = self._config.peers.peers, None if partitions is None else tuple(partitions)
        if peer not in peers:
            raise ConfigError([f"unknown peer {str(peer)[:100]!r}; known peers: {', '.join(peers)}"])
        self._require_partitions(numbers or ())
        place, replicas = peers.index(peer), self.replicas()
        for i in numbers or ():
            if place not in replicas[i]:
                found = f"it is no replica of partition {i}, which {', '.join(peers[one] for one in replicas[i])} elect"
                raise BeyondProtocol(wanted, found, "name one of these")
        if not any(place in able for able in replicas):
            raise BeyondProtocol(wanted, "it is not a replica of any partition", "name another peer")
        self._engine.post(Nominate(place, numbers))

    def shed(self, partitions: Iterable[int] | None = None) -> None:
        """Lead these partitions of `term`, or all, only while no other member can: for a host under load.

        Those that this member leads go to the others in good order, and come back after `shed(())`. Each call replaces
        the previous one, and the setting survives a restart. With `gossip`, where one member leads all partitions, it
        is all or nothing, and nothing comes back on its own. Raises ConfigError, too.
        """
        self._membership.require_open()
        wanted = "to lead some partitions only while no other member can was wanted"
        if not self._drains_itself:
            raise BeyondProtocol(
                wanted,
                f"members of the protocol {self._config.protocol_name!r} have no priorities",
                "drain the member if its group has a ledger, or stop it, which hands over what it leads",
            )
        everything = range(self._config.layout.partitions)
        numbers = everything if partitions is None else tuple(partitions)
        self._require_partitions(numbers)
        if self._config.protocol_name == "gossip" and set(numbers) not in (set(), set(everything)):
            raise BeyondProtocol(wanted, "with gossip one member leads all partitions", "shed all of them, or none")
        self._engine.post(Prefer(dict.fromkeys(numbers, LEAST) or None))

    def replicas(self) -> Sequence[Collection[int]]:
        """For each partition, the places of the peers that may lead it."""
        settings, count = self._config.peer_settings(my_place(self._config.peers)), self._config.layout.partitions
        if isinstance(settings, TermSettings):
            return [electorate(settings, i)[0] for i in range(count)]
        return [range(settings.size)] * count

    def require_itself(self, name: str) -> None:
        """Raise ConfigError if `name` is not this member's."""
        self._membership.require_open()
        mine = [self._membership.member, *filter(None, [self._config.peers.me])]
        if name not in mine:
            problem = (
                f"{name!r:.60} is not this member, which is {' at '.join(mine)}: peers keep no record of wishes for "
                "others, so each member drains itself. Ask the other member's agent, or its program"
            )
            raise ConfigError([problem])

    @property
    def shedding(self) -> frozenset[int]:
        """The partitions that this member leads only while no other can; for `term` and `gossip`."""
        return self._membership.shed

    def _steps(self, wish: CheckedWish, timeout: float) -> Generator[tuple[Callable[[], bool], float]]:
        """Yields what to wait for, and for how many seconds. Raises at the end if the wish failed. Close it."""
        membership = self._membership
        membership.require_alive()
        if not self._config.has_ledger:
            raise no_wishes(wish.what, self._config.protocol_name)

        def is_due() -> bool:
            """Whether the wish can be said, or never will be: before its genesis, a ledger records nothing."""
            state = membership.state
            return membership.is_over or (state.genesis is not None and wish.refusal(state) is None)

        def is_settled() -> bool:
            return membership.is_over or wish.shown(membership.state)

        give_up_at = membership.clock() + timeout
        with membership.watching_state():
            yield is_due, timeout
            if is_due() and wish.name and membership.state.holder(wish.name) is None:
                # The member may be about to join. But a mistyped name never joins, and nothing else would say so.
                self._engine.journal.note("warning", "wish.waits_for_member", wish=wish.what, name=wish.name)
            while is_due():
                self._engine.post(Wish(wish.record(membership.incarnation)))
                patience = give_up_at - membership.clock()
                yield is_settled, min(WISH_AGAIN, patience)
                if is_settled() or patience <= WISH_AGAIN:
                    break
                yield is_due, give_up_at - membership.clock()
        if not wish.shown(membership.state):
            membership.require_alive()
            raise wish.refusal(membership.state) or unheard(wish, timeout, membership.obstacle)

    @property
    def _drains_itself(self) -> bool:
        """Whether each member of this group sheds for itself, and no member can do it for another."""
        return self._config.protocol_name in ELECTED

    def _require_partitions(self, numbers: Iterable[int]) -> None:
        count = self._config.layout.partitions
        if strangers := [i for i in numbers if not 0 <= i < count]:
            raise ConfigError([f"partition {strangers[0]} is none of the {count}: they count from 0"])

    def _require_election(self, wanted: str) -> None:
        self._membership.require_open()
        if self._config.protocol_name not in ELECTED:
            found = f"in a group of the protocol {self._config.protocol_name!r}, no member can be named to lead"
            raise BeyondProtocol(wanted, found, "choose the protocol 'term', where any member may lead")


class Operator(BaseOperator[None]):
    """The operator actions of a Member. May be shared between threads."""

    def wish(self, wish: CheckedWish | None, timeout: float = WISH_MAX) -> None:
        if wish is None:
            return
        with closing(self._steps(wish, timeout)) as steps:
            for ready, seconds in steps:
                self._membership.wait(ready, seconds)
