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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import NoReturn

from neli_router.config.config import Config
from neli_router.core.clock import require_supported_platform
from neli_router.core.closing import Closing
from neli_router.core.keyspace import Key, Layout, Role
from neli_router.drivers.ledgers.pump import Tap
from neli_router.drivers.open import owners_at
from neli_router.hosts.process import ProcessMark
from neli_router.member.background import Background, Task, require_task
from neli_router.member.engine import START_MAX, Engine
from neli_router.member.membership import Lease
from neli_router.member.operator import Operator
from neli_router.member.publisher import Publisher
from neli_router.member.runtime import THREADS, Runtime
from neli_router.protocols.induction.fold import State
from neli_router.protocols.protocol import Handler
from neli_router.router.owners_reader import OwnersTap
from neli_router.router.router import Router
from neli_router.router.table import keys_in

__all__ = ["BaseMember", "Member"]


class BaseMember:
    """The part that waits for nothing, and so is the same with and without an event loop."""

    @property
    def engine(self) -> Engine:
        """The internals, shared by both forms. Not for programs: they may change in any release."""
        raise NotImplementedError

    @property
    def led(self) -> Mapping[int, int]:
        """Partition -> term, for all partitions that this member leads now. Raises the error that ended the member."""
        self.engine.membership.outcome()
        return self.engine.membership.led()

    @property
    def standby(self) -> frozenset[int]:
        """The partitions that come to this member if the zone that leads them is lost: see the option `zone`."""
        self.engine.membership.outcome()
        return self.engine.barrier.standby

    def mine(self, keys: Iterable[Key]) -> list[Key]:
        """Those of `keys` that this member has a lease for now, in their order. Raises BadKey, and like `lease`.

        A lease may end at any time. Before an act that matters, check the key's own `lease`.
        """
        self.engine.membership.require_alive()
        return keys_in(self.engine.membership.led(), keys, self.layout)

    def pledge(self, seconds: float, *, processes: Sequence[ProcessMark] = ()) -> None:
        """Call this before you give another process a lease of this member: it may then act for `seconds` from now.

        If this process dies, its witness does not know about the other process. With the pledge, the witness waits that
        long before it reports the death. A lease is handed out as its term and `lease.remaining()`: pledge that value
        each time you hand out a lease. Needs `witness="child"`, or "none", which has nothing to wait for; raises
        ConfigError with any other witness. `processes` names at most two processes without which nothing acts on the
        lease: once they have all ended, the witness waits no longer.
        """
        self.engine.membership.require_own_process()
        self.engine.pledge(seconds, processes)

    @property
    def name(self) -> str:
        return self.engine.member

    @property
    def layout(self) -> Layout:
        return self.engine.config.layout

    @property
    def incarnation(self) -> str:
        """The identity of this life: it changes with each start, and after the member was expired."""
        return self.engine.membership.incarnation

    @property
    def state(self) -> State:
        """The state of the ledger, as far as it has been read."""
        self.engine.membership.require_own_process()
        return self.engine.membership.state


class Member(BaseMember, Closing):
    """A member of a group, from its construction until `close`. All of it may be shared between threads.

    `config` may be just the address of a ledger if the defaults suit you.

    The constructor opens the ledger and reads it. It raises errors that will not heal: ConfigError, GroupMismatch,
    LedgerUnusable, LedgerRewound, Unsupported. If this takes longer than `timeout` seconds, for example because a
    server is away, it raises LedgerUnavailable; with `wait`, it returns then, and the member joins once it can. After
    an error that ends the member later, every call raises that error, and so does the end of the `with` block, unless
    the block raised another.

    `on_event` is called with Acquired, Revoked, Fenced and Standby, on threads of the member. If it raises, the member
    leaves. For programs that display a group, `tap` receives all that the member reads. Where the protocol borrows a
    consumer group, `owners_tap` receives all that the owner store says.
    """

    def __init__(
        self,
        config: Config | str,
        *,
        on_event: Handler | None = None,
        timeout: float = START_MAX,
        wait: bool = False,
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
        self._operator = Operator(self._engine)
        publisher = None
        if config.ownership is not None and not runtime.is_turned:  # A test that turns the clock has no store.
            publisher = Publisher(self._engine, owners_at(config.ownership))
        self._engine.start(timeout, wait=wait)
        if publisher is not None:
            self._engine.published = publisher.over
            publisher.start()

    # Leading

    @contextmanager
    def leading(self, role: Role, *, timeout: float | None = None) -> Iterator[Lease]:
        """A block of work for `role`: waits until this member leads it, and delays its handover until the block ends.

        If the wait takes longer than a second, the log says why. Raises NotLeading if it takes longer than `timeout`
        seconds, and Closed if the member is being closed. At the end of the block, raises LeaseLost if the lease no
        longer holds, unless the block itself raised an error.
        """
        partition = self._layout.partition_of_role(role)
        period = self._membership.lead(partition, timeout, tell=self._engine.tell_waiting)
        if period is None:
            raise self._membership.not_leading(partition, timeout)
        lease = Lease(self._membership, period, role)
        with self._membership.working(period):
            yield lease
            lease.check()

    def lease(self, role: Role) -> Lease | None:
        """The lease of `role`, if this member leads it now. A handover does not wait for your work: see `leading`."""
        self._membership.require_alive()
        period = self._membership.period(self._layout.partition_of_role(role))
        return None if period is None else Lease(self._membership, period, role)

    def pulse(self, timeout: float, *, role: Role = 0) -> bool:
        """Whether this member leads `role`; if it does not, wait up to `timeout` seconds for that."""
        partition = self._layout.partition_of_role(role)
        period = self._membership.lead(partition, timeout)
        if period is not None:
            self._membership.leave(period)
        return period is not None

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

    @property
    def operator(self) -> Operator:
        """Operator actions: drain, pin, weigh, load, rebalance ..."""
        return self._operator

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until this member's first share has settled: it has joined, and leads all that is meant for it now.

        That may be nothing, if there are more members than partitions. In a group borrowed from a broker, the member
        cannot know that, and waits until it leads a partition. Raises NotLeading, a TimeoutError, after `timeout`
        seconds; Closed, or the error that ends the member.
        """
        membership = self._membership
        with membership.watching_state():
            if not membership.wait(membership.is_ready, timeout):
                raise membership.not_ready(timeout)
        membership.require_open()

    def changes(self) -> Iterator[Mapping[int, int]]:
        """The partitions that this member leads, like `led`: now, and after each change, for as long as it lives.

        If more changes come while the program is busy, it gets the newest state. Raises the error that ends the member.
        """
        membership, seen = self._membership, None
        while not membership.outcome():
            if (led := membership.led()) != seen:
                seen = led
                yield led
            membership.wait(partial(membership.differs, seen), None)

    # State

    @property
    def router(self) -> Router:
        """A router fed by what this member reads anyway. Closed with the member."""
        return self._router

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
        return self._engine

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and self._membership.void is None:
            self._membership.outcome()

    def wait(self, *, timeout: float | None = None) -> bool:
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
