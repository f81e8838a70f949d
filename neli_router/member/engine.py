"""The engine: one member's internals, which run on a thread of their own.

    OPENING --the ledger can be read--> PUMPING --the machine stopped, or something broke--> ENDED
       |-- unreachable, for now: retry     |                                                   ^
       '-- asked to close -----------------+---------------------------------------------------'
                                           |
                                           |-- standing, state --> membership: leases and waiting calls
                                           |-- state, outlook ---> feed: look-ups
                                           |-- effects ----------> barrier: the program's handler
                                           '-- notices ----------> journal

`start` raises, on the caller's thread, any error that is not worth a retry: a ledger that cannot be used, a group with
other settings. A ledger that is only unreachable raises no error; the member joins once the ledger is back.

A driver may hang while it opens a ledger, for as long as its server does not answer. So only the member's own thread
opens the ledger: `start` never waits longer than its timeout, and a member that is asked to close in the meantime ends
immediately, because it leads nothing yet. The thread then closes the ledger if it opens after all.

Whatever ends the engine, the program is fenced before the ledger is released.

    fork  --in the child---> void: the threads, the connection and the place in the group are the parent's
    exit  --before close---> asked to leave in good order, for at most EXIT_MAX, then to leave immediately

Otherwise, a script that ends without `close` would keep its partitions until the others miss its heartbeats. And a
child that continued with its parent's leases would be a second leader that no other member knows of.
"""

import atexit
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from weakref import WeakSet

from neli_router.config.config import Config
from neli_router.config.protocols import BORROWED, ELECTED, Term
from neli_router.drivers.ledgers.pump import Tap
from neli_router.drivers.open import owners_at
from neli_router.drivers.peers.udp import my_place
from neli_router.errors import BeyondProtocol, ConfigError, LedgerTrimmed, LedgerUnavailable, NeliError
from neli_router.hosts.process import ProcessMark
from neli_router.member.barrier import Barrier
from neli_router.member.failures import defect, forked, handler_failed
from neli_router.member.footing import Foothold, Footing, GroupFooting, LedgerFooting, Request
from neli_router.member.journal import Journal
from neli_router.member.membership import Membership
from neli_router.member.peer_footing import PeerFooting
from neli_router.member.runtime import Loop, Runtime
from neli_router.member.wishes import CheckedWish, no_wishes, unheard
from neli_router.protocols import protocol
from neli_router.protocols.electors.events import Nominate, Prefer, Rebalance
from neli_router.protocols.electors.priority import LEAST, electorate
from neli_router.protocols.electors.settings import TermSettings
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.protocol import (
    BEATS_PER_LEASE,
    LEASE_MAX,
    NO_STANDING,
    Close,
    Handler,
    News,
    Released,
    Stopped,
)
from neli_router.router.feed import Feed
from neli_router.router.owners_reader import OwnersReader, OwnersTap

__all__ = ["BREAK_OFF_MAX", "EXIT_MAX", "FLUSH_MAX", "START_MAX", "Engine", "WishAttempt"]

REOPEN_EVERY = 0.2
"""The pause between attempts to open an absent ledger. Opening costs more than reading, and nothing is led yet."""

START_MAX = 5.0
"""How long a program waits for its member to open and read the ledger. Errors within this time are raised to the
program; later errors end the member."""

SLOW_AFTER = 0.5
"""How long opening may take before the log mentions it. A server on the other side of the world answers sooner, and the
person who started the program should not stare at an empty log for longer."""

SLOW = f"no answer has come for {SLOW_AFTER:g} s; still waiting"

BREAK_OFF_MAX = 1.0
"""How long to wait for a member that was asked to leave immediately. Only a driver that hangs takes longer."""

EXIT_MAX = 2.0
"""How long a process waits at exit for handlers and blocks to finish. A higher value is kinder to work in daemon
threads, a lower one to a person who presses Ctrl-C."""

FLUSH_MAX = 0.4
"""How long a closed member may take to release its ledger and write its last log lines. A driver or a log that blocks
for longer blocks only itself."""


class Engine:
    """One member. `turn` and `run` belong to its own thread; everything else may be called from any thread."""

    def __init__(
        self,
        config: Config,
        on_event: Handler | None,
        runtime: Runtime,
        tap: Tap | None = None,
        owners_tap: OwnersTap | None = None,
    ) -> None:
        if on_event is not None and not callable(on_event):
            raise ConfigError([f"on_event must be a function of one event, got a {type(on_event).__name__}"])
        self.config = config = config.named()
        self.lease = config.lease
        self.beat_every = config.lease / BEATS_PER_LEASE if config.beat is None else config.beat
        self.member = str(config.name)
        self.name = f"neli-{self.member}"
        self.runtime, self._tap, self._owners_tap = runtime, tap, owners_tap
        self.membership = Membership(self.member, runtime, protocol=config.protocol_name)
        self.journal = Journal(self.member, f"{self.name}-journal", self.membership.notify)
        self.barrier = self.membership.barrier = Barrier(
            on_event,
            self.membership.changed,
            clock=runtime.clock,
            release=lambda terms: self.post(Released(terms)),
            failed=self._fail,
            lane_name=self.name,
        )
        self.feed = Feed(
            config.public_ledger,
            kind=_kind_of_table(config),
            layout=config.layout,
            max_age=config.max_age,
            clock=runtime.clock,
            watched=not runtime.is_turned,
            # The member logs its own end.
            tell=lambda notice: None if notice.event == "router.stopped" else self.journal.tell(notice),
        )
        self._footing: Footing | None = None
        self._owners_reader: OwnersReader | None = None
        self._close: Close | None = None
        self._stopped: Stopped | None = None
        self._watches: tuple[Callable[[float], None], ...] = ()
        self._obstacles: dict[str, str] = {}
        self._moved = self._tried = self._ending = self._is_left_alone = False

    def start(self, timeout: float) -> None:
        """Open the ledger and read it to its end, then continue in the background. Raises errors that will not heal.

        Returns after `timeout` seconds, no matter how far it got.
        """
        _living.add(self)
        if not (self.config.has_ledger or self._is_alone):
            self._read_owners()
        try:
            if self.runtime.is_turned:  # In a test nothing hangs, and opening must not turn the clock.
                self._try_to_open()
                while self._has_to_read():
                    self.turn()
            self._start_loops()
            if not self.runtime.is_turned:
                self._await_beginning(timeout)
            if self.membership.error is not None:
                raise self.membership.error
        except BaseException as error:
            if self.runtime.is_turned:
                self._end(error)
            else:  # Ctrl-C while the member's thread is at work, or the member has ended already.
                self.ask_close(at_once=True)
            raise
        self._is_left_alone = True

    def _read_owners(self) -> None:
        """Feed the router from the owner store, because the protocol does not know the owners."""
        try:
            source = owners_at(self.config.common_owners)
        except BeyondProtocol as error:
            self.feed.fail(error)
        else:
            self._owners_reader = OwnersReader(self.feed, source, clock=self.runtime.clock, tap=self._owners_tap)

    @property
    def _is_alone(self) -> bool:
        """Whether look-ups use what this member believes, for lack of another source."""
        return self.config.protocol_name in ELECTED and self.config.ownership is None

    def _start_loops(self) -> None:
        loops: tuple[Loop, ...] = (*self.barrier.lanes, self.journal.lane, self)
        for loop in loops:
            self.runtime.start(loop)

    def _await_beginning(self, timeout: float) -> None:
        membership = self.membership
        with membership.watching_state():
            if not membership.wait(self._has_begun, min(timeout, SLOW_AFTER)):
                with membership.changed:
                    if not (self._tried or self._ending):
                        self._cannot_open(SLOW)
                membership.wait(self._has_begun, timeout - SLOW_AFTER)

    def _has_begun(self) -> bool:
        return self.membership.is_over or (self._tried and not self._has_to_read())

    def _has_to_read(self) -> bool:
        """Whether the ledger can be read, but has not been read to its end yet."""
        footing, membership = self._footing, self.membership
        if membership.is_over or footing is None or membership.obstacle:
            return False
        # An error that stops the machine ends this member a moment later, and is raised then.
        return not footing.machine.caught_up or footing.machine.error is not None

    # The loop

    @property
    def deadline(self) -> float:
        """When to turn next, if nothing else comes first."""
        if self.membership.is_over:
            return inf
        return self.runtime.clock() + REOPEN_EVERY if self._footing is None else self._footing.machine.deadline

    def run(self) -> None:
        while not self.membership.is_over:
            self.turn()

    def turn(self) -> bool:
        """Do one bounded piece of work; return False if it had no effect."""
        self._moved = False
        if self.membership.is_over:
            return False
        try:
            if self._footing is not None:
                self._footing.turn()
            elif not self._try_to_open():
                self.runtime.pause(REOPEN_EVERY)
        except BaseException as error:
            # Not to go on: any error ends the member, without a last event from the protocol to the program.
            self.membership.standing = NO_STANDING
            self.barrier.lose_all(f"the member ended by {type(error).__name__}")
            self._end(error)
            if self.runtime.is_turned and not isinstance(error, Exception):
                raise  # Ctrl-C, in a test.
        if self._stopped is not None and not self.membership.ended:
            self._end(self._stopped.error)
        return self._moved

    def _try_to_open(self) -> bool:
        try:
            self._open()
        except (LedgerUnavailable, LedgerTrimmed) as error:
            with self.membership.changed:
                self._cannot_open(str(error))
                self._tried = True
            self.membership.notify()
            return False
        return True

    def _cannot_open(self, why: str) -> None:
        if self._obstacles.get("open", "") in {"", SLOW}:  # A line for each failed attempt would bury the first.
            self.journal.note("warning", "ledger.unavailable", what="open", ledger=self.config.public_ledger, error=why)
        self._meet("open", why)

    def _open(self) -> None:
        footing = self._footed()
        membership = self.membership
        with membership.changed:
            gone = self._ending
            if not gone:
                self._footing, self._tried = footing, True
                if "open" in self._obstacles:
                    self.journal.note("info", "ledger.available", what="open", ledger=self.config.public_ledger)
                self._meet("open", "")
        if gone:  # The member was closed while the ledger was being opened.
            self._let_go(footing)
        membership.notify()

    def _footed(self) -> Footing:
        foothold = Foothold(explain=self.barrier.explain, stepped=self._stepped, moved=self._has_moved, tell=self._tell)
        common = self.config, self.runtime, self.membership, foothold
        if self.config.protocol_name in ELECTED:
            return PeerFooting(*common, feed=self.feed if self._is_alone else None)
        if self.config.protocol_name in BORROWED:
            return GroupFooting(*common)
        return LedgerFooting(*common, feed=self.feed, tap=self._tap)

    # News from the footing, on its thread

    def _has_moved(self) -> None:
        self._moved = True

    def _stepped(self, now: float) -> None:
        for watch in self._watches:
            watch(now)

    def _tell(self, news: News) -> None:
        self._moved = True
        self.journal.tell(news)
        match news:
            case protocol.Acquired() | protocol.Revoked() | protocol.Fenced():
                self.barrier.tell(news)
            case protocol.Notice("ledger.unavailable" | "ledger.available", fields):
                self._meet(str(fields["what"]), str(fields.get("error", "")))
            case Stopped():
                self._stopped = news
                if self._footing is not None:
                    self._footing.wake()  # Otherwise, the next read would wait for records that no machine takes.
            case _:
                pass  # Other notices are for the journal.

    def _meet(self, what: str, obstacle: str) -> None:
        """Record why the ledger cannot be opened, read or appended to; an empty `obstacle` means that it can again."""
        others = {key: text for key, text in self._obstacles.items() if key != what}
        self._obstacles = {**others, what: obstacle} if obstacle else others
        self.membership.obstacle = next(iter(self._obstacles.values()), "")
        if obstacle and what != "append" and self.config.has_ledger:
            self.feed.away(obstacle)

    # Requests of the program, from any thread

    def post(self, event: Request) -> None:
        """Pass `event` to the protocol soon, if the protocol has begun."""
        if not self.membership.is_over and self._footing is not None:
            self._footing.post(event)

    def pledge(self, seconds: float, processes: Sequence[ProcessMark]) -> None:
        """Other processes may act on this member's leases for `seconds` from now. Raises ConfigError if the witness
        cannot wait that long."""
        # The check also catches nan, which a child would ignore.
        if not 0 <= seconds <= LEASE_MAX:
            raise ConfigError(
                [f"a pledge is of 0 to {LEASE_MAX:g} seconds, as long as a lease may be, got {seconds!r:.60}"]
            )
        config = self.config
        if config.has_ledger and (witness := config.induction.witness) not in {"child", "none"}:
            problem = (
                f"a pledge is kept by witness='child', and this member has {witness!r}: other witnesses see "
                "this process alone, and would report its death immediately. Choose 'child', or 'none'"
            )
            raise ConfigError([problem])
        if not self.membership.is_over and self._footing is not None:
            self._footing.pledge(self.runtime.clock() + seconds, processes)

    @contextmanager
    def wishing(self, wish: CheckedWish, timeout: float) -> "Iterator[WishAttempt]":
        """A block that waits for `is_due`, says the wish, and waits for `is_over`. Raises at its end if it failed."""
        self.membership.require_alive()
        if not self.config.has_ledger:
            raise no_wishes(wish.what, self.config.protocol_name)
        with self.membership.watching_state():
            yield WishAttempt(self, wish, timeout)
        if not wish.shown(self.membership.state):
            self.membership.require_alive()
            raise unheard(wish, timeout, self.membership.obstacle)

    def rebalance(self) -> None:
        """Pass what this member leads to living preferred peers. Raises BeyondProtocol where no peer is preferred."""
        wanted = "preferred leaders were wanted"
        self._require_election(wanted)
        options = self.config.options
        if not isinstance(options, Term) or options.policy == "random":
            found = "policy='random'" if isinstance(options, Term) else options.name
            raise BeyondProtocol(wanted, f"{found} has no preferred peers", "name the peer that should lead")
        self.post(Rebalance())

    def nominate(self, peer: str, partitions: Iterable[int] | None) -> None:
        """Let `peer`, spelled as in the list, lead these partitions; None means all."""
        wanted = f"{peer} was wanted as a leader"
        self._require_election(wanted)
        if self.config.protocol_name == "gossip" and partitions is not None:
            raise BeyondProtocol(wanted, "with gossip one member leads all partitions", "leave the partitions out")
        peers, numbers = self.config.peers.peers, None if partitions is None else tuple(partitions)
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
        self.post(Nominate(place, numbers))

    def replicas(self) -> Sequence[Collection[int]]:
        """For each partition, the places of the peers that may lead it."""
        settings, count = self.config.peer_settings(my_place(self.config.peers)), self.config.layout.partitions
        if isinstance(settings, TermSettings):
            return [electorate(settings, i)[0] for i in range(count)]
        return [range(settings.size)] * count

    def shed(self, partitions: Iterable[int] | None) -> None:
        """Lead these partitions, or all, only while no other peer can; an empty list takes that back."""
        self.membership.require_open()
        wanted = "to lead some partitions only while no other member can was wanted"
        if not self.drains_itself:
            raise BeyondProtocol(
                wanted,
                f"members of the protocol {self.config.protocol_name!r} have no priorities",
                "drain the member if its group has a ledger, or stop it, which hands over what it leads",
            )
        everything = range(self.config.layout.partitions)
        numbers = everything if partitions is None else tuple(partitions)
        self._require_partitions(numbers)
        if self.config.protocol_name == "gossip" and set(numbers) not in (set(), set(everything)):
            raise BeyondProtocol(wanted, "with gossip one member leads all partitions", "shed all of them, or none")
        self.post(Prefer(dict.fromkeys(numbers, LEAST) or None))

    @property
    def drains_itself(self) -> bool:
        """Whether each member of this group sheds for itself, and no member can do it for another."""
        return self.config.protocol_name in ELECTED

    def require_itself(self, name: str) -> None:
        """Raise ConfigError if `name` is not this member's."""
        self.membership.require_open()
        mine = [self.member, *filter(None, [self.config.peers.me])]
        if name not in mine:
            problem = (
                f"{name!r:.60} is not this member, which is {' at '.join(mine)}: peers keep no record of wishes for "
                "others, so each member drains itself. Ask the other member's agent, or its program"
            )
            raise ConfigError([problem])

    def _require_partitions(self, numbers: Iterable[int]) -> None:
        count = self.config.layout.partitions
        if strangers := [i for i in numbers if not 0 <= i < count]:
            raise ConfigError([f"partition {strangers[0]} is none of the {count}: they count from 0"])

    def _require_election(self, wanted: str) -> None:
        self.membership.require_open()
        if self.config.protocol_name not in ("term", "gossip"):
            found = f"in a group of the protocol {self.config.protocol_name!r}, no member can be named to lead"
            raise BeyondProtocol(wanted, found, "choose the protocol 'term', where any member may lead")

    def wish(self, wish: CheckedWish) -> None:
        """Write `wish` to the ledger, in the name of the current incarnation."""
        self.post(Wish(wish.record(self.membership.incarnation)))

    def oversee(self, watch: Callable[[float], None]) -> None:
        """Call `watch` with the time, again and again, for things to be watched from outside. It must not wait."""
        with self.membership.changed:
            self._watches = (*self._watches, watch)

    def neglect(self, watch: Callable[[float], None]) -> None:
        """Undo an `oversee`."""
        with self.membership.changed:
            self._watches = tuple(other for other in self._watches if other != watch)

    def ask_close(self, *, at_once: bool = False, error: NeliError | None = None) -> None:
        """Let the member leave; never waits. `at_once` fences the program, without waiting for its work."""
        membership = self.membership
        if membership.is_over or (membership.closing and not at_once):
            return
        error = self._failure or error  # The first failure is the cause of all others.
        self._close = Close(at_once, error)
        membership.error = error  # Before `closing`: from then on, callers must see the failure, if there was one.
        membership.closing = True
        self._end(error, unless_pumping=True)  # Before pumping, there is nothing to hand over, and opening may hang.
        self.post(self._close)
        membership.notify()

    def close(self, timeout: float | None) -> None:
        """Leave in good order within `timeout` seconds, then immediately. A caller that must not wait only asks."""
        membership = self.membership
        if membership.void is not None:
            return
        self.ask_close()
        if membership.must_not_wait:
            return
        if not membership.wait(lambda: membership.is_over, timeout):
            self.ask_close(at_once=True)
            membership.wait(lambda: membership.is_over, BREAK_OFF_MAX)
        membership.wait(lambda: self.journal.lane.is_over, FLUSH_MAX)

    def _fail(self, event: str, error: BaseException) -> None:
        """The program's handler raised."""
        failure = handler_failed(event, error)
        self.journal.note("error", "handler.failed", why=failure.found)
        self.ask_close(at_once=True, error=failure)

    @property
    def _failure(self) -> NeliError | None:
        return None if self._close is None else self._close.error

    # The end

    def _end(self, error: BaseException | None, *, unless_pumping: bool = False) -> None:
        membership, error = self.membership, error or self._failure
        with membership.changed:
            if self._ending or (unless_pumping and self._footing is not None):
                return
            self._ending = True
        membership.standing = NO_STANDING
        if error is None:
            self.feed.close()
            self.journal.note("info", "member.stopped")
        else:
            known = error if isinstance(error, NeliError) else defect(error)
            self.feed.fail(known)
            if self._is_left_alone:  # Otherwise the error is raised to the program, which should report it once.
                self.journal.note("error", "member.stopped", error=type(error).__name__, why=str(known))
        membership.error, membership.ended = error, True
        for lane in self.barrier.lanes:
            lane.end()
        membership.notify()
        if self._owners_reader is not None:
            self._owners_reader.close(0)
        # Last, because a driver may take a while to close, and no caller may wait for it longer than FLUSH_MAX.
        if self._footing is not None:
            self._let_go(self._footing)
        self.journal.lane.end()

    def _let_go(self, footing: Footing) -> None:
        try:
            footing.close()
        except NeliError as error:
            self.journal.note("warning", "ledger.close_failed", error=str(error))

    def on_fork(self, parent: int) -> None:
        """Void this copy, in a child of process `parent`. Takes no lock: the thread holding it may not exist here."""
        self.membership.make_void(forked(self.member, parent))


class WishAttempt:
    """One wish, until the ledger shows it."""

    def __init__(self, engine: Engine, wish: CheckedWish, timeout: float) -> None:
        self._engine, self._membership, self._wish = engine, engine.membership, wish
        self._give_up_at = self._membership.clock() + timeout

    def is_due(self) -> bool:
        """Whether the wish can be said, or never will be: before its genesis, a ledger records nothing."""
        return self._membership.is_over or self._membership.state.genesis is not None

    def say(self) -> float:
        """Write the wish to the ledger; return how many seconds to wait for it to appear."""
        if self._wish.name and self._membership.state.holder(self._wish.name) is None:
            # The member may be about to join. But a mistyped name never joins, and nothing else would report it.
            self._engine.journal.note("warning", "wish.waits_for_member", wish=self._wish.what, name=self._wish.name)
        self._engine.wish(self._wish)
        return self._give_up_at - self._membership.clock()

    def is_over(self) -> bool:
        """Whether the ledger shows the wish, or can no longer show it."""
        return self._membership.is_over or self._wish.shown(self._membership.state)


def _kind_of_table(config: Config) -> str:
    if config.has_ledger:
        return "the ledger"
    return (
        "what this member believes of"
        if config.protocol_name in ELECTED and not config.ownership
        else "the table of owners"
    )


_living: WeakSet[Engine] = WeakSet()
"""The engines of this process that were started and are not garbage-collected yet."""


def _after_fork() -> None:
    parent = os.getppid()
    for engine in list(_living):
        engine.on_fork(parent)
    _living.clear()


def _at_exit() -> None:
    ending = list(_living)
    for engine in ending:
        engine.ask_close()
    give_up_at = time.monotonic() + EXIT_MAX
    for engine in ending:
        engine.close(max(0.0, give_up_at - time.monotonic()))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):  # Windows has none, but must get far enough to be refused with a clear message.
    os.register_at_fork(after_in_child=_after_fork)
