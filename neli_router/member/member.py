"""The member: one process's place in a group, and all that the process may do with it.

    with Member(config, on_event=handler) as member:          joins; its own thread keeps it a member
        with member.leading("nightly") as lease:              waits until it leads, yields the lease
            while work():
                lease.check()                                 raises as soon as another member may lead
                database.write(..., term=lease.term)          an act that is not checked again carries the term

    pulse(timeout)      "do I lead now?", asked again and again              goNELI's ways of working
    background(task)    the task runs, again and again, wherever the role is led

A member leads a *role*: role j, a number, is filled by partition j mod M; a name is a key, as a `Router` routes it. It
does not choose which: it is given its share of the partitions, and leads the roles that fall into them.

A partition is led from when the handler of Acquired has returned until Revoked or Fenced. It is handed over when the
handler of Revoked has returned and every block on it has ended, or after `drain_timeout`. See `protocol.py`.

Nothing here runs on the caller's thread but the waiting, and nothing ever runs on an event loop; for asyncio there is
`AsyncMember`. After a fork, the child's copy is void: its leases do not hold, and every call raises Forked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from neli_router.config.config import Config, owners_at
from neli_router.core.clock import require_supported_platform
from neli_router.core.closing import Closing
from neli_router.core.keyspace import Layout, Role
from neli_router.drivers.ledgers.pump import Tap
from neli_router.drivers.owners.base import Card
from neli_router.drivers.peers.outlook import Outlook
from neli_router.errors import NotLeading
from neli_router.hosts.process import ProcessMark
from neli_router.member import wishes
from neli_router.member.background import Background, Task, require_task
from neli_router.member.engine import FLUSH_MAX, START_MAX, Engine
from neli_router.member.held_partitions import HeldPartitions
from neli_router.member.lease import Lease
from neli_router.member.runtime import THREADS, Runtime
from neli_router.member.wishes import WISH_MAX, CheckedWish
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify
from neli_router.protocols.protocol import Handler, Standing
from neli_router.router.owners_reader import OwnersTap
from neli_router.router.router import Router

if TYPE_CHECKING:
    from neli_router.member.publisher import Publisher

__all__ = ["Member"]


class Member(Closing):
    """A member of a group, from its construction until `close`. May be shared between threads, all of it.

    `config` may be the address of a ledger, if nothing else is to be chosen.

    The constructor waits for the ledger to be opened and read, at most `timeout` seconds, and raises errors that will
    not heal: ConfigError, GroupMismatch, LedgerUnusable, LedgerRewound, Unsupported. A ledger that cannot be reached
    is no such error: the log tells of it, and the member joins when it can be. An error that ends a member later is
    raised by every call from then on.

    `on_event` is called with Acquired, Revoked and Fenced, on threads of the member. If it raises, the member leaves.
    For a program that shows a group to people, `tap` reads along all that the member reads, and `owners_tap`, where the
    protocol borrows a consumer group, all that the store of owners says.
    """

    def __init__(
        self,
        config: Config | str,
        *,
        on_event: Handler | None = None,
        timeout: float = START_MAX,
        tap: Tap | None = None,
        owners_tap: OwnersTap | None = None,
        runtime: Runtime = THREADS,
    ) -> None:
        require_supported_platform()
        config = Config.given(config)
        self._engine = Engine(config, on_event, runtime, tap, owners_tap)
        self._membership = self._engine.membership
        self._layout = config.layout
        self._router = Router(self._engine.feed, name=self.name, wait=False)
        self._publisher = _publisher(config, self._engine)
        self._engine.start(timeout)
        if self._publisher is not None:
            runtime.start(self._publisher)

    # Leading

    @contextmanager
    def leading(self, role: Role, *, timeout: float | None = None) -> Iterator[Lease]:
        """A block of work for `role`: waits until this member leads it, and holds up its handover until the end.

        Raises NotLeading if that takes longer than `timeout` seconds, and LeaseLost at the end of a block whose lease
        no longer holds there, unless the block raised something itself. Raises Closed if the member is being closed.
        """
        partition = self._layout.partition_of_role(role)
        grant = self._membership.lead(partition, timeout)
        if grant is None:
            raise self._membership.not_leading(partition, timeout)
        lease = Lease(self._membership, grant, role)
        with self._membership.working(grant):
            yield lease
            lease.check()

    def lease(self, role: Role) -> Lease | None:
        """The lease of `role`, if this member leads it now. Its handover does not wait for the work: see `leading`."""
        self._membership.require_alive()
        grant = self._membership.grant(self._layout.partition_of_role(role))
        return None if grant is None else Lease(self._membership, grant, role)

    @property
    def led(self) -> Mapping[int, int]:
        """Partition -> term, for all that this member leads now."""
        return self._membership.led()

    def pulse(self, timeout: float, *, role: Role = 0) -> bool:
        """Whether this member leads `role`; if not, waits up to `timeout` seconds for it."""
        partition = self._layout.partition_of_role(role)
        grant = self._membership.lead(partition, timeout)
        if grant is not None:
            self._membership.leave(grant)
        return grant is not None

    def pledge(self, seconds: float, *, processes: Sequence[ProcessMark] = ()) -> None:
        """Say this before another process is given a lease of this member: that one may act for `seconds` from now on.

        If this process dies, its witness knows nothing of the other one. With the pledge, it waits that long before it
        tells the group. A lease is given as its term and `lease.remaining()`: pledge that, each time that you tell it.
        Takes `witness="child"`, or "none", which has nothing to wait for; with others it raises ConfigError. With
        `processes`, all that acts on it has ended when these have, at most two, and then it is not waited for.
        """
        self._membership.require_own_process()
        self._engine.pledge(seconds, processes)

    def background(self, task: Task, *, role: Role = 0, interval: float = 1.0) -> Background:
        """Run `task(lease)` on a thread of its own while this member leads `role`, `interval` seconds after each end.

        It should check its lease, and end within one: a longer run is warned about in the log. An error ends it,
        and is raised by the handle's `wait`; only LeaseLost, for its own lease, makes it wait to lead again.
        """
        require_task(task, interval)
        self._membership.require_open()
        background = Background(self._engine, task, role, interval=interval)
        self._engine.runtime.start(background)
        return background

    # What is known

    @property
    def name(self) -> str:
        return self._engine.member

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def incarnation(self) -> str:
        """The identity of this life: another after each start, and after having been expired."""
        return self._membership.incarnation

    @property
    def router(self) -> Router:
        """Who owns what, fed by what this member reads anyway. Closed with the member."""
        return self._router

    @property
    def state(self) -> State:
        """All that the ledger says, as far as it was read."""
        self._membership.require_own_process()
        return self._membership.state

    @property
    def closed(self) -> bool:
        """Whether this member has ended, for whatever reason."""
        return self._membership.is_over

    @property
    def error(self) -> BaseException | None:
        """The error that ended this member; None while it lives, and if it was closed."""
        return self._membership.void or self._membership.error

    @property
    def engine(self) -> Engine:
        """The inner works, which the asynchronous form shares. Not for programs: it may change in any release."""
        return self._engine

    # For a server that tells others of this member, such as the agent's

    @property
    def standing(self) -> Standing:
        """Which partitions this member may act for, and until when."""
        return self._membership.standing

    @property
    def obstacle(self) -> str:
        """Why the ledger cannot be reached, in its driver's words; empty if it can."""
        return self._membership.obstacle

    @property
    def is_powerless(self) -> bool:
        """Whether this member's heartbeats come back, but too late for it to expire a member that died."""
        return self._membership.is_powerless and not self.closed

    @property
    def outlook(self) -> Outlook | None:
        """What this member knows of its peers; None if it has none, or has not yet begun to listen."""
        return self._membership.outlook

    @property
    def closing(self) -> bool:
        """Whether this member was asked to leave."""
        return self._membership.closing

    def hold(self, partitions: Sequence[int]) -> HeldPartitions:
        """Work on those of `partitions` that are led now, until it is closed."""
        return HeldPartitions(self._membership, partitions)

    def leads(self, partition: int) -> bool:
        return self._membership.grant(partition) is not None

    def why_not(self, partition: int) -> str:
        """Why this member does not lead `partition`."""
        return self._membership.why_not(partition)

    def not_leading(self, partition: int, timeout: float) -> NotLeading:
        """The error of a wait for `partition` that was in vain."""
        return self._membership.not_leading(partition, timeout)

    def certify(self, incarnation: str) -> None:
        """Let the ledger take note that the process of `incarnation` has ended with all its threads. Waits for nothing.

        The others take over at once: so this is only for a server that saw it."""
        # Of one that has not joined yet, a reader knows no name by its incarnation.
        by = self.incarnation if self.incarnation in self.state.seats else self.name
        self._engine.post(Wish(Certify(by=by, incarnation=incarnation)))

    def require_open(self) -> None:
        """Raise the error that ended this member, or Closed if it was asked to leave."""
        self._membership.require_open()

    def observe(self, changed: Callable[[], None], turned: Callable[[float], None]) -> Callable[[], None]:
        """Call `changed` whenever a partition is led or lost and when this member ends, and `turned` with the time
        after every step of its thread. Neither may wait or raise. The answer takes both back."""
        self._membership.changed.tell(changed)
        self._engine.oversee(turned)

        def end() -> None:
            self._membership.changed.forget(changed)
            self._engine.neglect(turned)

        return end

    def ask_close(self) -> None:
        """Begin to leave, and do not wait for the end of it."""
        self._engine.ask_close()

    # Wishes, of operators and of programs that measure their load. The group remembers them beyond this member's life.
    # Each returns when the ledger shows it, and raises LedgerUnavailable if that takes longer than `timeout` seconds.
    # A drain, a pin or a weight for a name that no member has waits for one, and the log says so. (The commands refuse
    # it, because a person may have mistyped it.)

    def rebalance(self) -> None:
        """Pass what this member leads to living peers that are preferred: of `term` with priorities.

        Returns at once: each partition moves when the program has finished with it. Raises BeyondProtocol where nobody
        is preferred.
        """
        self._engine.rebalance()

    def nominate(self, peer: str, partitions: Iterable[int] | None = None) -> None:
        """`peer`, HOST:PORT as in the list, shall lead these partitions of `term`, or all; of `gossip`, all.

        Returns at once, and a word of it may be lost on its way: say it again if it does not come to be. Raises
        BeyondProtocol and ConfigError.
        """
        self._engine.nominate(peer, partitions)

    def shed(self, partitions: Iterable[int] | None = None) -> None:
        """Lead these partitions of `term`, or all, only while no other member can: for a host under load.

        What is led of them goes to the others in good order, and comes back after `shed(())`. Each call says all that
        is shed. It is kept over a restart. Of `gossip`, where one member leads all, it is all or nothing, and nothing
        comes back by itself. Returns at once; raises BeyondProtocol and ConfigError.
        """
        self._engine.shed(partitions)

    @property
    def shedding(self) -> frozenset[int]:
        """The partitions of `term` and `gossip` that this member leads only while no other can."""
        return self._membership.shed

    def drain(self, name: str, *, timeout: float = WISH_MAX) -> None:
        """The member called `name` shall own nothing but what is pinned to it.

        Of `term` and `gossip`, `name` is this member's own, or its HOST:PORT: it sheds everything, and returns at once.
        It keeps what it is then nominated for.
        """
        if self._engine.drains_itself:
            self._engine.require_itself(name)
            self.shed()
        else:
            self.wish(wishes.drain(name), timeout)

    def undrain(self, name: str, *, timeout: float = WISH_MAX) -> None:
        """Take a drain back."""
        if self._engine.drains_itself:
            self._engine.require_itself(name)
            self.shed(())
        else:
            self.wish(wishes.undrain(name), timeout)

    def pin(self, partition: int, name: str, *, timeout: float = WISH_MAX) -> None:
        """`partition` shall belong to the member called `name`. While that one is away, it goes where it would go
        anyway, and the pin stays."""
        self.wish(wishes.pin(partition, name, self._layout), timeout)

    def unpin(self, partition: int, *, timeout: float = WISH_MAX) -> None:
        """Take a pin back."""
        self.wish(wishes.unpin(partition, self._layout), timeout)

    def weigh(self, name: str, weight: int | None, *, timeout: float = WISH_MAX) -> None:
        """`name` counts with `weight` from now on; None lets it count with its own."""
        self.wish(wishes.weigh(name, weight), timeout)

    def load(self, loads: Mapping[int, float], *, timeout: float = WISH_MAX) -> None:
        """Partition -> how much work it is, in any unit that is the same for all; 0 forgets it."""
        self.wish(wishes.load(loads, self._layout), timeout)

    def wish(self, wish: CheckedWish, timeout: float = WISH_MAX) -> None:
        """Make a wish of `neli_router.member.wishes`."""
        with self._engine.wishing(wish, timeout) as attempt:
            if self._membership.wait(attempt.is_due, timeout):
                self._membership.wait(attempt.is_over, attempt.say())

    # The end

    def close(self, *, timeout: float | None = None) -> None:
        """Leave the group in good order: Revoked for all that is led, then hand over. Twice is fine.

        Waits for handlers and blocks, at most `drain_timeout`, or `timeout` if that is less; unfinished work is then
        fenced. The others begin at once then: a process that was given a lease may act until the end that it was told.
        In a handler or a block of this member, which it would wait for, it returns at once, and the member leaves when
        that has ended. In a forked child it does nothing: the parent's member lives on.
        """
        self._engine.close(timeout)
        if self._publisher is not None and not self._membership.must_not_wait and self._membership.void is None:
            self._publisher.await_end(FLUSH_MAX)

    def await_closed(self, *, timeout: float | None = None) -> bool:
        """Wait until this member has ended, at most `timeout` seconds; whether it has.

        Raises the error that ended it, if one did: Replaced, LedgerRewound, GroupMismatch, Diverged,
        LedgerUnusable, HandlerFailed.
        """
        self._membership.wait(lambda: self._membership.is_over, timeout)
        return self._membership.outcome()

    def __repr__(self) -> str:
        membership = self._membership
        if membership.is_over or membership.closing:
            plight = "void" if membership.void else "closed" if membership.ended else "closing"
            return f"<Member {self.name}: {plight}>"
        return f"<Member {self.name}: {len(membership.standing.terms)} of {self._layout.partitions} partitions>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Member cannot be pickled: it is this process's place in the group. Open another where it goes"
        )


def _publisher(config: Config, engine: Engine) -> "Publisher | None":
    """The publisher that tells a store what `engine` leads, if that is wanted."""
    if config.ownership is None or engine.runtime.is_turned:
        return None
    from neli_router.member.publisher import Publisher  # noqa: PLC0415 - as above.

    name = f"{engine.name}-owners"
    card = Card(engine.member, config.address, config.weight, config.zone)
    return Publisher(owners_at(config.ownership).open, config, card, engine.membership, engine.journal, name)
