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
other settings. A ledger that is only unreachable is tried again until the timeout, and then raises an error, too. If
the program prefers to wait, it raises none, and the member joins once the ledger is back.

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
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from math import inf
from weakref import WeakSet

from neli_router.config.config import Config
from neli_router.config.protocols import BORROWED, ELECTED
from neli_router.drivers.ledgers.pump import Tap
from neli_router.drivers.open import owners_at
from neli_router.errors import (
    BeyondProtocol,
    ConfigError,
    Forked,
    HandlerFailed,
    LedgerTrimmed,
    LedgerUnavailable,
    NeliError,
)
from neli_router.hosts.process import ProcessMark
from neli_router.member.barrier import Barrier
from neli_router.member.footing import Footing, GroupFooting, LedgerFooting, PeerFooting, Request
from neli_router.member.journal import Journal
from neli_router.member.membership import Membership
from neli_router.member.runtime import Loop, Runtime
from neli_router.protocols import protocol
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.records import Certify
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

__all__ = ["BREAK_OFF_MAX", "EXIT_MAX", "FLUSH_MAX", "START_MAX", "Engine", "place_of"]

REOPEN_EVERY = 0.2
"""The pause between attempts to open an absent ledger. Opening costs more than reading, and nothing is led yet."""

START_MAX = 10.0
"""How long a program waits for its member to open and read the ledger. A server on a busy host takes some seconds; a
person who mistyped an address reads the first warning after SLOW_AFTER."""

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

_OWN_NEWS = frozenset({"router.stopped", "router.waits"})


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
        table = "what this member believes of" if self._is_alone else "the table of owners"
        self.feed = Feed(
            config.public_ledger,
            kind="the ledger" if config.has_ledger else table,
            layout=config.layout,
            max_age=config.max_age,
            clock=runtime.clock,
            watched=not runtime.is_turned,
            # The member logs its own end, and what it waits for.
            tell=lambda notice: None if notice.event in _OWN_NEWS else self.journal.tell(notice),
        )
        self._footing: Footing | None = None
        self._owners_reader: OwnersReader | None = None
        self._away: NeliError = LedgerUnavailable(
            f"{config.public_ledger} was to be opened", "no answer came", "check the address and the server"
        )
        """Why the ledger is not open yet."""
        self._failure: NeliError | None = None
        """Why this member was asked to leave, if that was for an error."""
        self.published: threading.Event | None = None
        """Set once the owner store knows that this member has ended; None without a store."""
        self._stopped: Stopped | None = None
        self._watches: tuple[Callable[[float], None], ...] = ()
        self._obstacles: dict[str, str] = {}
        self._moved = self._tried = self._ending = self._is_left_alone = False

    def start(self, timeout: float, *, wait: bool) -> None:
        """Open the ledger and read it to its end, then continue in the background. Raises errors that will not heal.

        If it has not got that far after `timeout` seconds, raises LedgerUnavailable, unless the program would `wait`.
        """
        _living.add(self)
        if not (self.config.has_ledger or self._is_alone):
            self._read_owners()
        try:
            if self.runtime.is_turned:  # In a test nothing hangs, and opening must not turn the clock.
                self._try_to_open()
                while self._has_to_read():
                    self.turn()
            loops: tuple[Loop, ...] = (*self.barrier.lanes, self.journal.lane, self)
            for loop in loops:
                self.runtime.start(loop)
            if not self.runtime.is_turned:
                self._await_beginning(timeout, self._has_begun if wait else self._is_ready)
            if self.membership.error is not None:
                raise self.membership.error
            if not (wait or self._is_ready()):
                away, hint = self._away, "to start before the ledger does, and join when it comes, give wait=True"
                raise LedgerUnavailable(f"{away.wanted} within {timeout:g} s", away.found, f"{away.remedy}; {hint}")
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

    def _await_beginning(self, timeout: float, has_begun: Callable[[], bool]) -> None:
        membership = self.membership
        with membership.watching_state():
            if not membership.wait(has_begun, min(timeout, SLOW_AFTER)):
                with membership.changed:
                    if not (self._tried or self._ending):
                        self._cannot_open(SLOW)
                membership.wait(has_begun, timeout - SLOW_AFTER)

    def _is_ready(self) -> bool:
        """Whether the ledger was opened and read to its end."""
        membership = self.membership
        return membership.is_over or (self._footing is not None and not membership.obstacle and not self._has_to_read())

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
        self._moved, state = False, self.membership.state
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
        return self._moved or self.membership.state is not state

    def _try_to_open(self) -> bool:
        try:
            self._open()
        except (LedgerUnavailable, LedgerTrimmed) as error:
            with self.membership.changed:
                self._cannot_open(str(error))
                self._tried, self._away = True, error
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
        common = self.config, self.membership, self._stepped, self._tell
        if self.config.protocol_name in ELECTED:
            return PeerFooting(*common, feed=self.feed if self._is_alone else None)
        if self.config.protocol_name in BORROWED:
            return GroupFooting(*common)
        return LedgerFooting(*common, feed=self.feed, tap=self._tap)

    # News from the footing, on its thread

    def _stepped(self, now: float) -> None:
        for watch in self._watches:
            watch(now)

    def _tell(self, news: News) -> None:
        self._moved = True
        self.journal.tell(news)
        match news:
            case protocol.Acquired() | protocol.Revoked() | protocol.Fenced() | protocol.Standby():
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

    def tell_waiting(self, partition: int) -> None:
        """Log what a program that wants to lead `partition` waits for."""
        self.journal.note("warning", "leading.waits", partition=partition, why=self.membership.why_not(partition))

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

    def certify(self, incarnation: str) -> None:
        """Record in the ledger that the process of `incarnation` has ended with all its threads. Does not wait.

        Other members then take over immediately, so only a server that saw the process end may call this."""
        membership = self.membership
        # Before this member has joined, readers cannot resolve its incarnation to a name.
        by = membership.incarnation if membership.incarnation in membership.state.seats else self.member
        self.post(Wish(Certify(by=by, incarnation=incarnation)))

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
        self._failure = error = self._failure or error  # The first failure is the cause of all others.
        membership.error = error  # Before `closing`: from then on, callers must see the failure, if there was one.
        membership.closing = True
        self._end(error, unless_pumping=True)  # Before pumping, there is nothing to hand over, and opening may hang.
        self.post(Close(at_once, error))
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
        if self.published is not None:
            self.published.wait(FLUSH_MAX)

    def _fail(self, event: str, error: BaseException) -> None:
        failure = HandlerFailed(
            f"the program's handler of {event} was to return",
            f"it raised {type(error).__name__} ({place_of(error)})",
            "fix it and restart the member, which has left: a half-prepared or half-finished partition cannot be led",
        )
        failure.__cause__ = error
        self.journal.note("error", "handler.failed", why=failure.found)
        self.ask_close(at_once=True, error=failure)

    # The end

    def _end(self, error: BaseException | None, *, unless_pumping: bool = False) -> None:
        membership, error = self.membership, error or self._failure
        with membership.changed:
            if self._ending or (unless_pumping and self._footing is not None):
                return
            self._ending = True
        membership.standing, membership.is_powerless = NO_STANDING, False
        if error is None:
            self.feed.close()
            self.journal.note("info", "member.stopped")
        else:
            known = error if isinstance(error, NeliError) else _defect_of(error)
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


def place_of(error: BaseException) -> str:
    """Where `error` was raised: in place of its text, which may quote a key, and a key may be a person's name."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "an unknown place"


def _defect_of(error: BaseException) -> NeliError:
    """Our error that stands in for a foreign one."""
    return NeliError(
        "a member's own thread was to run until the member was closed",
        f"it ended by {type(error).__name__} ({place_of(error)})",
        "this is a defect of neli-router or of a ledger's driver: report it with the traceback of `wait`",
    )


_living: WeakSet[Engine] = WeakSet()
"""The engines of this process that were started and are not garbage-collected yet."""


def _after_fork() -> None:
    """Void the copies in this child. Takes no lock: the thread holding it may not exist here."""
    for engine in list(_living):
        engine.membership.make_void(
            Forked(
                f"member {engine.member} was needed",
                f"process {os.getppid()} opened it and this is process {os.getpid()}, forked from it",
                "open a Member in this process, after the fork; the parent's goes on unharmed",
            )
        )
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
