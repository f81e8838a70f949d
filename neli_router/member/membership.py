"""The membership: a member's own thread publishes it, and all other threads ask it and wait for it.

    engine (one thread) --standing, state, ended--> membership <--lead, leave, wait, require_open-- any thread

Asking takes no lock: the engine replaces whole values, and a value never changes. Waiting sleeps on one condition,
which is notified when a partition is led, is lost, or the member ends. The passing of time notifies no thread, so none
sleeps for long.

A forked child has these objects, and not the threads that keep them true. So there the membership is *void*: it has no
standing, and every call says so before it touches a lock, because the thread that holds it may not exist here.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from neli_router.config.config import ELECTED
from neli_router.drivers.peers.outlook import Outlook
from neli_router.errors import Closed, NeliError, NotLeading
from neli_router.member.barrier import Barrier, Grant, GrantState
from neli_router.member.runtime import Changed, Runtime
from neli_router.protocols.induction.fold import State
from neli_router.protocols.protocol import NO_STANDING, Standing

__all__ = ["Attempt", "Membership", "anew", "why_not"]


_BY_STATE: Mapping[GrantState, str] = {
    GrantState.QUEUED: "this member owns it, and its handler of events is busy with others",
    GrantState.PREPARING: "this member owns it, and its handler of Acquired has not returned",
    GrantState.FINISHING: "this member is giving it to another one",
}


class Membership:
    """One member's, from its beginning to its end. May be shared between threads."""

    barrier: Barrier
    """Set by the engine, which it tells about what is finished."""

    def __init__(self, member: str, runtime: Runtime, *, protocol: str) -> None:
        self.member, self.runtime, self.clock = member, runtime, runtime.clock
        self.changed = Changed()
        self.standing: Standing = NO_STANDING
        self.state, self.incarnation = State(), ""
        self.closing = self.ended = False
        self.error: BaseException | None = None
        """The error that ended the member; None as long as it lives, and if it was asked to leave."""
        self.void: NeliError | None = None
        """Why these objects are no member any more, although it was not ended."""
        self.obstacle = ""
        """Why the ledger cannot be reached, in its driver's words."""
        self.is_powerless = False
        """Whether this member's Beats come back too late for it to expire a member that died."""
        self.outlook: Outlook | None = None
        """What this member knows of its peers, if its protocol elects among them."""
        self.watching = 0
        """How many callers wait for the state to change, which it does at every record."""
        self.shed: frozenset[int] = frozenset()
        """Among peers: the partitions that this member shall lead only while no other can."""
        self.drained = False
        """Whether these are all that it could lead."""
        self._protocol = protocol
        self._inside = threading.local()

    # Questions

    @property
    def is_over(self) -> bool:
        return self.ended or self.void is not None

    @property
    def must_not_wait(self) -> bool:
        """Whether the member's end waits for the caller: it is a handler, or inside a `leading` block."""
        return self.barrier.is_here or getattr(self._inside, "depth", 0) > 0

    def require_own_process(self) -> None:
        if self.void is not None:
            raise anew(self.void)

    def require_alive(self) -> None:
        """Raise what ended the member, or Closed."""
        if self.outcome():
            raise self._closed("was closed before")

    def require_open(self) -> None:
        """As `require_alive`, and raise Closed from when it is being closed."""
        self.require_alive()
        if self.closing:
            raise self._closed("is being closed")

    def outcome(self) -> bool:
        """Whether the member has ended in good order. Raises what ended it otherwise."""
        self.require_own_process()
        if self.error is not None:
            raise anew(self.error)
        return self.ended

    def led(self) -> dict[int, int]:
        """Partition -> term, for all that leases are given for now."""
        self.require_own_process()
        return {grant.partition: grant.term for grant in self.barrier.led() if self._holds(grant)}

    def grant(self, partition: int) -> Grant | None:
        """The grant that a lease of `partition` can be given for now."""
        grant = self.barrier.grant(partition)
        return grant if grant is not None and grant.state is GrantState.LED and self._holds(grant) else None

    def why_not(self, partition: int) -> str:
        """Why `partition` is not led."""
        if self._protocol in ELECTED:
            return _why_not_elected(self.outlook, partition, self.barrier.grant(partition), self.obstacle)
        if self._protocol != "induction":
            return _why_not_given(self.barrier.grant(partition), self.obstacle)
        return why_not(self.state, self.incarnation, partition, self.barrier.grant(partition), self.obstacle)

    def not_leading(self, partition: int, timeout: float | None) -> NotLeading:
        """The error of a wait for `partition` that was in vain."""
        return NotLeading(
            f"member {self.member} was to lead partition {partition} within {timeout or 0:g} s",
            self.why_not(partition),
            "wait longer, or leave the work to the member that leads it",
        )

    # Work

    def enter(self, partitions: Iterable[int]) -> list[Grant]:
        """Begin to work for those of `partitions` that are led now. The handover of each then waits for `leave`."""
        with self.changed:
            if self.is_over or self.closing:
                return []
            grants = [grant for grant in map(self.grant, partitions) if grant is not None]
            for grant in grants:
                self.barrier.enter(grant)
        return grants

    def leave(self, *grants: Grant) -> None:
        """The work for `grants`, which `enter` began, has ended."""
        if self.void is None:
            self.barrier.leave(grants)

    def lead(self, partition: int, timeout: float | None, give_up: Callable[[], bool] = lambda: False) -> Grant | None:
        """`enter` as soon as it is led; None after `timeout` or `give_up()`. Raises what ends the member meanwhile."""
        attempt = Attempt(self, partition, give_up)
        self.wait(attempt.is_over, timeout)
        return attempt.outcome()

    @contextmanager
    def working(self, grant: Grant) -> Iterator[None]:
        """A block of the calling thread, for which `grant` was entered."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1
            self.leave(grant)

    # Waiting

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for `ready()`, at most `timeout` seconds; whether it came true. It must look for the member's end."""
        self.require_own_process()
        return self.runtime.wait(self.changed, ready, timeout)

    @contextmanager
    def watching_state(self) -> Iterator[None]:
        """Waits in this block are notified of every record, too."""
        with self.changed:
            self.watching += 1
        try:
            yield
        finally:
            with self.changed:
                self.watching -= 1

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def make_void(self, error: NeliError) -> None:
        """These objects are no member any more. Takes no lock."""
        self.void, self.standing = error, NO_STANDING

    def _holds(self, grant: Grant) -> bool:
        return self.standing.end(grant.partition, grant.term) > self.clock()

    def _closed(self, found: str) -> Closed:
        return Closed(f"member {self.member} was needed", f"it {found}", "open another Member")


class Attempt:
    """One wait for leadership: the caller asks `is_over` whenever something changed, and takes the `outcome`."""

    def __init__(self, membership: Membership, partition: int, give_up: Callable[[], bool]) -> None:
        self._membership, self._partition, self._give_up = membership, partition, give_up
        self._grant: Grant | None = None

    def is_over(self) -> bool:
        """Whether there is nothing to wait for any more. If the partition is led, work for it has then begun."""
        membership = self._membership
        if self._grant is None and not (membership.is_over or membership.closing or self._give_up()):
            for grant in membership.enter([self._partition]):
                self._grant = grant
            return self._grant is not None
        return True

    def outcome(self) -> Grant | None:
        """The grant that was entered; None if it was given up. Raises the error that ended the member."""
        if self._grant is None and not self._give_up():
            self._membership.require_open()
        return self._grant


def why_not(state: State, me: str, partition: int, grant: Grant | None, obstacle: str) -> str:
    """Why a member does not lead `partition`. The first reason that applies: each explains those that come after it.

    `me` is the member's incarnation, `obstacle` what keeps it from the ledger, if anything.
    """
    if obstacle:
        return f"the ledger is out of reach ({obstacle})"
    if me not in state.seats:
        return "this member was not admitted to the group yet, for which it must first have read along for a lease"
    if grant is not None and grant.state in _BY_STATE:
        return _BY_STATE[grant.state]
    owner = state.owners[partition]
    if owner == me:
        return "this member owns it, and waits for its own heartbeat, or for the end of its predecessor's lease"
    name = "nobody" if owner is None else state.seats[owner].name
    coming = ", and is to give it to this member" if state.targets[partition] == me else ""
    return f"{name} owns it under term {state.terms[partition]}{coming}"


def _why_not_given(grant: Grant | None, obstacle: str) -> str:
    """The same, for a group that is borrowed of a broker: who leads it instead, the member cannot know."""
    if obstacle:
        return f"the broker is out of reach ({obstacle})"
    if grant is not None and grant.state in _BY_STATE:
        return _BY_STATE[grant.state]
    return "the broker gave it to another member, or it is given and no fresh heartbeat of it has come yet"


def _why_not_elected(outlook: Outlook | None, partition: int, grant: Grant | None, obstacle: str) -> str:
    """The same, among peers. Who leads it instead is what this member believes."""
    if obstacle:
        return f"the peers are out of reach ({obstacle})"
    if grant is not None and grant.state in _BY_STATE:
        return _BY_STATE[grant.state]
    if outlook is None:
        return "this member has not begun to listen to its peers"
    if (led := outlook.leaders[partition]) is None:
        return "this member is none of the replicas that elect its leader"
    if led.leader == outlook.me:
        return f"this member was elected under term {led.term}, and may not act yet, or no more"
    if led.leader is not None:
        return f"{outlook.peers[led.leader]} leads it under term {led.term}"
    return f"nobody leads it: {outlook.why_unled}"


def anew(error: BaseException) -> BaseException:
    """A copy to raise: one that is raised again and again would grow its traceback, and mix that of several threads."""
    if not isinstance(error, NeliError):
        return error  # Not ours, so perhaps it cannot be copied.
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh
