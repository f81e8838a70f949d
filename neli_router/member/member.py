"""The member: one process's place in a group, and everything that the process may do with it.

    with Member(config, on_event=handler) as member:          joins; its own thread keeps it a member
        with member.leading("nightly") as lease:              waits until it leads, yields the lease
            while work():
                lease.check()                                 raises as soon as another member may lead
                database.write(..., term=lease.term)          an act that is not checked again carries the term

    pulse(timeout)      "do I lead now?", asked again and again              the goNELI style
    background(task)    the task runs again and again, on whichever member leads the role

A member leads a *role*: role j, a number, belongs to partition j mod M; a name is a key, which a `Router` can look up.
A member does not choose its roles: it is given a share of the partitions, and leads the roles that belong to them.

A member leads a partition from the time that the handler of Acquired returns until Revoked or Fenced. The partition is
handed over when the handler of Revoked has returned and every block on it has ended, or after `drain_timeout`. See
`protocol.py`.

Only waiting happens on the caller's thread, and nothing ever runs on an event loop; for asyncio, use `AsyncMember`.
After a fork, the child's copy is void: its leases do not hold, and every call raises Forked.
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
    """A member of a group, from its construction until `close`. All of it may be shared between threads.

    `config` may be just the address of a ledger if the defaults suit you.

    The constructor waits at most `timeout` seconds for the ledger to be opened and read. It raises errors that will not
    heal: ConfigError, GroupMismatch, LedgerUnusable, LedgerRewound, Unsupported. An unreachable ledger raises nothing:
    the problem is logged, and the member joins once the ledger can be reached. After an error that ends the member
    later, every call raises that error.

    `on_event` is called with Acquired, Revoked and Fenced, on threads of the member. If it raises, the member leaves.
    For programs that display a group, `tap` receives all that the member reads. Where the protocol borrows a consumer
    group, `owners_tap` receives all that the owner store says.
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
        """A block of work for `role`: waits until this member leads it, and delays its handover until the block ends.

        Raises NotLeading if the wait takes longer than `timeout` seconds, and Closed if the member is being closed. At
        the end of the block, raises LeaseLost if the lease no longer holds, unless the block itself raised an error.
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
        """The lease of `role`, if this member leads it now. A handover does not wait for your work: see `leading`."""
        self._membership.require_alive()
        grant = self._membership.grant(self._layout.partition_of_role(role))
        return None if grant is None else Lease(self._membership, grant, role)

    @property
    def led(self) -> Mapping[int, int]:
        """Partition -> term, for all partitions that this member leads now."""
        return self._membership.led()

    def pulse(self, timeout: float, *, role: Role = 0) -> bool:
        """Whether this member leads `role`; if it does not, wait up to `timeout` seconds for that."""
        partition = self._layout.partition_of_role(role)
        grant = self._membership.lead(partition, timeout)
        if grant is not None:
            self._membership.leave(grant)
        return grant is not None

    def pledge(self, seconds: float, *, processes: Sequence[ProcessMark] = ()) -> None:
        """Call this before you give another process a lease of this member: it may then act for `seconds` from now.

        If this process dies, its witness does not know about the other process. With the pledge, the witness waits that
        long before it reports the death. A lease is handed out as its term and `lease.remaining()`: pledge that value
        each time you hand out a lease. Needs `witness="child"`, or "none", which has nothing to wait for; raises
        ConfigError with any other witness. `processes` names at most two processes without which nothing acts on the
        lease: once they have all ended, the witness waits no longer.
        """
        self._membership.require_own_process()
        self._engine.pledge(seconds, processes)

    def background(self, task: Task, *, role: Role = 0, interval: float = 1.0) -> Background:
        """Run `task(lease)` on a thread of its own while this member leads `role`, `interval` seconds after each run.

        The task should check its lease, and finish within the length of a lease: the log warns of a longer run. An
        error ends the background, and the handle's `wait` raises it. Only LeaseLost, for the task's own lease, makes
        the background wait until this member leads again.
        """
        require_task(task, interval)
        self._membership.require_open()
        background = Background(self._engine, task, role, interval=interval)
        self._engine.runtime.start(background)
        return background

    # State

    @property
    def name(self) -> str:
        return self._engine.member

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def incarnation(self) -> str:
        """The identity of this life: it changes with each start, and after the member was expired."""
        return self._membership.incarnation

    @property
    def router(self) -> Router:
        """A router fed by what this member reads anyway. Closed with the member."""
        return self._router

    @property
    def state(self) -> State:
        """The state of the ledger, as far as it has been read."""
        self._membership.require_own_process()
        return self._membership.state

    @property
    def closed(self) -> bool:
        """Whether this member has ended, for any reason."""
        return self._membership.is_over

    @property
    def error(self) -> BaseException | None:
        """The error that ended this member; None while it is alive, and if it was closed."""
        return self._membership.void or self._membership.error

    @property
    def engine(self) -> Engine:
        """The internals, shared with the asynchronous form. Not for programs: they may change in any release."""
        return self._engine

    # For a server that speaks for this member to others, such as the agent's

    @property
    def standing(self) -> Standing:
        """Which partitions this member may act for, and until when."""
        return self._membership.standing

    @property
    def obstacle(self) -> str:
        """Why the ledger cannot be reached, in its driver's words; empty if it can be."""
        return self._membership.obstacle

    @property
    def is_powerless(self) -> bool:
        """Whether this member's heartbeats come back, but too late for it to expire a dead member."""
        return self._membership.is_powerless and not self.closed

    @property
    def outlook(self) -> Outlook | None:
        """This member's view of its peers; None if it has none, or has not begun to listen yet."""
        return self._membership.outlook

    @property
    def closing(self) -> bool:
        """Whether this member was asked to leave."""
        return self._membership.closing

    def hold(self, partitions: Sequence[int]) -> HeldPartitions:
        """Hold those of `partitions` that are led now, for work on them, until the returned object is closed."""
        return HeldPartitions(self._membership, partitions)

    def leads(self, partition: int) -> bool:
        return self._membership.grant(partition) is not None

    def why_not(self, partition: int) -> str:
        """Why this member does not lead `partition`."""
        return self._membership.why_not(partition)

    def not_leading(self, partition: int, timeout: float) -> NotLeading:
        """The error raised when a wait for `partition` times out."""
        return self._membership.not_leading(partition, timeout)

    def certify(self, incarnation: str) -> None:
        """Record in the ledger that the process of `incarnation` has ended with all its threads. Does not wait.

        Other members then take over immediately, so only a server that saw the process end may call this."""
        # Before this member has joined, readers cannot resolve its incarnation to a name.
        by = self.incarnation if self.incarnation in self.state.seats else self.name
        self._engine.post(Wish(Certify(by=by, incarnation=incarnation)))

    def require_open(self) -> None:
        """Raise the error that ended this member, or Closed if it was asked to leave."""
        self._membership.require_open()

    def observe(self, changed: Callable[[], None], turned: Callable[[float], None]) -> Callable[[], None]:
        """Call `changed` whenever a partition is led or lost and when this member ends, and `turned` with the time
        after every step of its thread. Neither may wait or raise. The returned function stops both."""
        self._membership.changed.tell(changed)
        self._engine.oversee(turned)

        def end() -> None:
            self._membership.changed.forget(changed)
            self._engine.neglect(turned)

        return end

    def ask_close(self) -> None:
        """Begin to leave, without waiting for the end."""
        self._engine.ask_close()

    # Wishes, of operators and of programs that measure their load. The group remembers them beyond this member's life.
    # Each call returns when the ledger shows the wish, and raises LedgerUnavailable if that takes longer than `timeout`
    # seconds. A drain, a pin or a weight for a name that no member has waits for such a member, and the log says so.
    # (The commands refuse it, because a person may have mistyped the name.)

    def rebalance(self) -> None:
        """Pass what this member leads to living preferred peers. Only for `term` with priorities.

        Returns immediately: each partition moves when the program has finished with it. Raises BeyondProtocol where no
        peer is preferred.
        """
        self._engine.rebalance()

    def nominate(self, peer: str, partitions: Iterable[int] | None = None) -> None:
        """Let `peer`, HOST:PORT as in the list, lead these partitions, or all. With `gossip`, it is always all.

        Returns immediately. The request may be lost on its way: repeat it if it has no effect. Raises BeyondProtocol
        and ConfigError.
        """
        self._engine.nominate(peer, partitions)

    def shed(self, partitions: Iterable[int] | None = None) -> None:
        """Lead these partitions of `term`, or all, only while no other member can: for a host under load.

        Those that this member leads go to the others in good order, and come back after `shed(())`. Each call replaces
        the previous one, and the setting survives a restart. With `gossip`, where one member leads all partitions, it
        is all or nothing, and nothing comes back on its own. Returns immediately; raises BeyondProtocol and
        ConfigError.
        """
        self._engine.shed(partitions)

    @property
    def shedding(self) -> frozenset[int]:
        """The partitions that this member leads only while no other can; for `term` and `gossip`."""
        return self._membership.shed

    def drain(self, name: str, *, timeout: float = WISH_MAX) -> None:
        """Let the member called `name` own nothing except what is pinned to it.

        With `term` and `gossip`, `name` must be this member's own name or its HOST:PORT: the member sheds everything,
        and the call returns immediately. It keeps any partitions that it is nominated for afterwards.
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
        """Assign `partition` to the member called `name`. While that member is away, the partition goes where it would
        go without the pin, and the pin stays."""
        self.wish(wishes.pin(partition, name, self._layout), timeout)

    def unpin(self, partition: int, *, timeout: float = WISH_MAX) -> None:
        """Take a pin back."""
        self.wish(wishes.unpin(partition, self._layout), timeout)

    def weigh(self, name: str, weight: int | None, *, timeout: float = WISH_MAX) -> None:
        """Override the weight of the member called `name`; None restores its own weight."""
        self.wish(wishes.weigh(name, weight), timeout)

    def load(self, loads: Mapping[int, float], *, timeout: float = WISH_MAX) -> None:
        """Set how much work each partition is, in any unit that is the same for all; 0 forgets it."""
        self.wish(wishes.load(loads, self._layout), timeout)

    def wish(self, wish: CheckedWish, timeout: float = WISH_MAX) -> None:
        """Make a wish of `neli_router.member.wishes`."""
        with self._engine.wishing(wish, timeout) as attempt:
            if self._membership.wait(attempt.is_due, timeout):
                self._membership.wait(attempt.is_over, attempt.say())

    # The end

    def close(self, *, timeout: float | None = None) -> None:
        """Leave the group in good order: Revoked for all that is led, then hand over. May be called more than once.

        Waits for handlers and blocks, at most `drain_timeout`, or `timeout` if that is less; unfinished work is then
        fenced. The other members then begin immediately, although a process that was given a lease may act until the
        end that it was given. In a handler or block of this member, `close` cannot wait for its own caller: it returns
        immediately, and the member leaves when that handler or block has ended. In a forked child it does nothing: the
        parent's member lives on.
        """
        self._engine.close(timeout)
        if self._publisher is not None and not self._membership.must_not_wait and self._membership.void is None:
            self._publisher.await_end(FLUSH_MAX)

    def await_closed(self, *, timeout: float | None = None) -> bool:
        """Wait, at most `timeout` seconds, until this member has ended; return whether it has.

        Raises the error that ended it, if any: Replaced, LedgerRewound, GroupMismatch, Diverged, LedgerUnusable,
        HandlerFailed.
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
    """The publisher that reports to a store what `engine` leads, if one is configured."""
    if config.ownership is None or engine.runtime.is_turned:
        return None
    from neli_router.member.publisher import Publisher  # noqa: PLC0415 - as above.

    name = f"{engine.name}-owners"
    card = Card(engine.member, config.address, config.weight, config.zone)
    return Publisher(owners_at(config.ownership).open, config, card, engine.membership, engine.journal, name)
